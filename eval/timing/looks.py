"""What is looked at in a race, drawn in secret before its first pair: which calls, and on which content.

Comes in: a ProblemSession and the number of pairs. Goes out: the pairs whose outputs are checked, the calls that only
look timed, and the pairs on contents that share nothing with earlier ones. Knows nothing of clocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

from rag_kernels.eval.buffers.call_content import Recipe, moved_together, nudged, plain, with_rows_of
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.remembered_contents import MIXED, NUDGED, PLAIN
from rag_kernels.eval.traits.input_kinds import EDGES

EACH = 2  # looks of a sort in a race, and special values at its end
SPECIALS = 3  # kinds of special values in a race that is not thorough, beside edges
MIXED_SHARE = 0.5  # of special values, which are a few rows among others then


@dataclass(frozen=True, slots=True)
class Look:
    """A call in a race that is looked at closely: `again` as others, `nudged` by one element, or `special`.

    `halves` is one of a training step with another forward between its forward and its backward.

    Then `kind` is the kind of special values, and `draw` one of them.
    """

    what: str
    kind: str = ""
    draw: int = 0


@dataclass(frozen=True, slots=True)
class Looks:
    """What is looked at in one race, by the number of the pair; of a race for a second figure nothing.

    `unrelated` has draws. `last` is looked at when all is timed: a kernel may wait that long, but not longer.
    """

    checked: frozenset[int] = frozenset()
    calls: dict[int, list[Look]] = field(default_factory=dict)
    unrelated: dict[int, list[int]] = field(default_factory=dict)
    last: tuple[Look, ...] = ()

    @property
    def watched(self) -> set[int]:
        """Return the pairs whose own content is looked at, or is but for one element."""
        return {*self.checked, *(n for n, some in self.calls.items() if any(look.what == "nudged" for look in some))}


def draw_ahead(session: ProblemSession) -> None:
    """Make the draws that races ask for, while others may compute: a race has the device alone."""
    without = session.limits.without
    if not without & {"looks", "fresh content"}:
        _ = session.specials.own
    if not without & {"unrelated content", "fresh content"}:
        _ = session.fresh


def draw_looks(session: ProblemSession, count: int, *, in_bursts: bool, thorough: bool) -> Looks:
    """Draw what is looked at in a race of so many pairs; `thorough` looks at special values of each kind."""
    calls = _calls(session, count, in_bursts=in_bursts, thorough=thorough)
    last = _last(session, in_bursts=in_bursts) if calls else ()
    return Looks(checked_pairs(session, count), calls, _unrelated(session, count, in_bursts=in_bursts), last)


def checked_pairs(session: ProblemSession, count: int) -> frozenset[int]:
    """Return the pairs whose outputs are checked: some of the few that are made in any case, some of those that
    most candidates get, and some of the others.
    """
    rule = session.limits.timing
    few, least = min(count, rule.few_pairs), min(count, rule.pairs)
    early = rule.rechecked if few == least else 1
    stretches = (
        (range(few), early),
        (range(few, least), rule.rechecked - early),
        (range(least, count), rule.rechecked),
    )
    return frozenset(n for s, wanted in stretches for n in session.rng.sample(s, min(wanted, len(s))))


def _calls(session: ProblemSession, count: int, *, in_bursts: bool, thorough: bool) -> dict[int, list[Look]]:
    """Draw which calls are looked at closely, and at which places: half of them among the few that all get."""
    rule = session.limits.timing
    if session.limits.without & {"looks", "fresh content"}:
        return {}
    special = [Look("special", *found) for found in session.specials.own]
    looks = [Look("again")] * EACH + [Look("nudged")] * EACH
    looks += [Look("halves")] * (EACH if session.fp.step is not None and not in_bursts else 0)
    always = [look for look in special if look.kind == EDGES]  # which are others at other sizes
    others = [look for look in special if look.kind != EDGES]
    looks += special if thorough else [*always, *session.rng.sample(others, min(len(others), SPECIALS))]
    few = min(count, rule.few_pairs)
    drawn: dict[int, list[Look]] = {}
    for number, look in enumerate(session.rng.sample(looks, len(looks))):
        if in_bursts and look.what == "again":
            continue
        at = session.rng.randrange(few if number % 2 == 0 else min(count, rule.pairs))
        drawn.setdefault(at, []).append(look)
    return drawn


def _last(session: ProblemSession, *, in_bursts: bool) -> tuple[Look, ...]:
    special = [Look("special", *found) for found in session.specials.own]
    halves = [Look("halves")] * (session.fp.step is not None)
    looks = [] if in_bursts else [*session.rng.sample(special, min(EACH, len(special))), Look("nudged")]
    return (*halves, *looks)


def _unrelated(session: ProblemSession, count: int, *, in_bursts: bool) -> dict[int, list[int]]:
    """Draw the pairs whose contents share nothing with earlier ones, with their draws: of a burst each has some."""
    rule = session.limits.timing
    if session.limits.without & {"fresh content", "unrelated content"}:
        return {}
    draws, pairs = list(session.fresh), rule.unrelated_pairs
    groups = [draws[i::pairs] for i in range(pairs)] if in_bursts else [[draw] for draw in draws]
    groups = [group for group in groups if group]
    least = min(count, rule.pairs)
    wide = least / max(1, len(groups))  # one in each stretch of the race, since a machine's load comes in stretches
    starts = [int(i * wide) for i in range(len(groups) + 1)]
    numbers = [session.rng.randrange(a, max(a + 1, b)) for a, b in itertools.pairwise(starts)]
    return dict(zip(numbers, groups, strict=True))


def looked_at(session: ProblemSession, met: set[Recipe], look: Look, recipe: Recipe) -> Recipe:
    """Return the content of such a call: as before but for one element, or of a special kind in part or whole.

    `met` are the remembered contents that this candidate was called on.
    """
    specs = session.specs
    if look.what == "nudged":
        known = session.remembered.number(recipe) is not None  # else its draws may become others
        make = partial(nudged, recipe, specs, session.own.ordered, session.rng)
        return remembered(session, met, recipe, NUDGED, make) if known else make()
    if look.what != "special":
        return remembered(session, met)
    if look.kind == EDGES or session.rng.random() >= MIXED_SHARE:
        return plain(look.draw, len(specs))

    def mixed() -> Recipe:
        return moved_together(with_rows_of(own, look.draw, specs, session.rng), session.together)

    own = session.random_recipe()
    return remembered(session, met, look.kind, MIXED, mixed)


def remembered(
    session: ProblemSession,
    met: set[Recipe],
    sort: Hashable = "",
    most: int = PLAIN,
    make: Callable[[], Recipe] | None = None,
) -> Recipe:
    """Return a secret content whose answer is remembered, new to this candidate's process."""
    return session.remembered.content(sort, most, met, make or session.random_recipe)
