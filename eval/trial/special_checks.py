"""Is a candidate right on inputs of special kinds, on numbers that it names, behind other contents?

Comes in: the Checks of a loaded candidate, and where it is bound to small sizes. Goes out: labels, and what was
checked; the trial ends on a gross error.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.records import Rejected, Wrong
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.traits.input_kinds import (
    ALIKE,
    BEGUN,
    BESIDE_HUGE,
    ENDS_TOGETHER,
    FAR_NAMED_NUMBERS,
    FEW_HUGE,
    INTEGER_KINDS,
    MOVED,
    MULTIPLES,
    NAMED_NUMBERS,
    NON_FINITE,
    OVERFLOW,
    PADDED,
    REPEATED,
    SPECIAL,
    TWICE,
    WIDE,
)
from rag_kernels.eval.traits.named_numbers import NamedNumbers
from rag_kernels.eval.traits.steps import alike_inputs
from rag_kernels.eval.traits.suitable_kinds import wide_in_words
from rag_kernels.eval.trial.checks import Checks


def special_values(
    checks: Checks, place: BoundBuffers, kinds: Sequence[str] = (*SPECIAL, NON_FINITE, OVERFLOW)
) -> None:
    """Try unusual inputs on which the problem itself is sound, with every tensor ending at a guard page."""
    if "special values" in checks.without:
        return
    tried = []
    for kind in place.session.rng.sample(kinds, len(kinds)):
        if _is_tried(checks, place, kind, place.session.specials.draw(kind)):
            tried.append(kind)
    if tried:
        checks.found.checks.append(f"{len(tried)} kinds of special values")


def named_numbers(checks: Checks, place: BoundBuffers, named: NamedNumbers, times: int) -> None:
    """Try inputs that have something of the numbers which the candidate names: so many draws, and half as many of far
    ones if its text has some.
    """
    if "special values" in checks.without:
        return
    tried = False
    far = times // 2 if named.has_far else 0
    for kind in [NAMED_NUMBERS] * times + [FAR_NAMED_NUMBERS] * far:
        tried |= _is_tried(checks, place, kind, place.session.specials.named(kind, named))
    if tried:
        checks.found.checks.append("numbers of its own")


def _is_tried(checks: Checks, place: BoundBuffers, kind: str, draw: int | None) -> bool:
    """Call the candidate on a draw of a kind, note what is wrong, and return True; False where there is no draw."""
    if draw is None:
        return False
    recipe = plain(draw, len(place.session.specs))
    checks.note_special(place, recipe, _behind(checks, place, (recipe,), kind), kind)
    return True


def stale_lines(checks: Checks, place: BoundBuffers) -> None:
    """Require that what is made of a content is made anew where the same lines of it come in another order, or
    its numbers with other digits: right behind another content, it is to be right behind this one.
    """
    if "special values" in checks.without:
        return
    session = place.session
    for kind in MOVED:
        moved = session.specials.draw(kind)
        begun = None if moved is None else session.specials.draw(FEW_HUGE if kind == BESIDE_HUGE else BEGUN)
        if moved is None or begun is None:
            continue
        first, before, recipe = (plain(draw, len(session.specs)) for draw in (0, begun, moved))
        wrong = _behind(checks, place, (before, recipe), kind)
        if wrong is not None and _behind(checks, place, (first, recipe), kind) is None:
            checks.stop(place, recipe, wrong)
        checks.note_special(place, recipe, wrong if kind != BESIDE_HUGE else None, kind)
        checks.found.checks.append(kind)


def _behind(checks: Checks, place: BoundBuffers, contents: Sequence[Recipe], kind: str) -> Wrong | None:
    """Return what is wrong with a call's outputs on the last of these contents, called one behind another: on a GPU
    over what the one before left, as where a program uses memory again.
    """
    for number, content in enumerate(contents):
        checks.subject.prepare(place, content, former=number > 0)
        checks.subject.call(place)
    return checks.compared(place.session, checks.subject.outputs(place), contents[-1], kind)


def one_twice(checks: Checks, place: BoundBuffers) -> None:
    """Require that one tensor given for two arguments is as good as two with the same content (CPU).

    What is wrong for two of them as well is a label.
    """
    session, subject = place.session, checks.subject
    if "special values" in checks.without:
        return
    kinds = [(kind, draw) for kind in TWICE if (draw := session.specials.draw(kind)) is not None]
    one = subject.bind(session, tight=True, same=alike_inputs(session.fp)) if kinds and not session.on_gpu else None
    for kind, draw in kinds:
        recipe = plain(draw, len(session.specs))
        for at in (place, one):
            if at is None:
                continue
            subject.prepare(at, recipe)
            subject.call(at)
            wrong = checks.compared(session, subject.outputs(at), recipe, kind)
            if wrong is not None and at is one:
                checks.stop(at, recipe, wrong)
            checks.note_special(at, recipe, wrong, kind)
            if wrong is not None:
                break
        checks.found.checks.append(kind)


def integers(checks: Checks, place: BoundBuffers) -> bool:
    """Try integers of other kinds than the problem draws; False if the worker is lost.

    Few values that come again are such as it might draw: what is wrong there is wrong. What is beyond is a label.
    """
    if "special values" in checks.without:
        return True
    session = place.session
    for kind in INTEGER_KINDS:
        draw = session.specials.draw(kind)
        if draw is None:
            continue
        recipe = plain(draw, len(session.specs))
        try:
            checks.call_and_compare(place, recipe, kind)
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected) or kind in (REPEATED, MULTIPLES, ALIKE, ENDS_TOGETHER, PADDED):
                raise
            checks.found.label(f"fragile: {kind}")
            why = getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", "")
            beyond = f"not for {wide_in_words(session.fp) if kind == WIDE else kind}"
            checks.found.notes.append(f"right for integers as the problem draws them, {beyond}: {why}")
            if not stopped.alive:
                return False
            continue
        checks.found.checks.append(kind)
    return True
