"""At which sizes beside the problem's own is a candidate right? The search for what its contract may promise.

Comes in: a LoadedCandidate, and what its problem knows of other sizes. Goes out: the sizes at which it was right, and
at which it raised; a label where it was wrong or crashed. A rejection at other sizes ends the trial: a kernel that
writes late there is no less dishonest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter

from rag_kernels.eval.contract import contract
from rag_kernels.eval.records import (
    ALIGNED,
    SPECIALISED,
    Contract,
    Crashed,
    FunctionalProblem,
    Rejected,
)
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.traits.named_numbers import NamedNumbers
from rag_kernels.eval.trial.checks import Checks, Findings
from rag_kernels.eval.trial.long_use_checks import AFTER_REFUSED
from rag_kernels.eval.trial.precision_checks import products

MOST_RESTS_S = 10.0
MOST_TILES_S, MOST_OF_TILES_S = 3.0, 10.0  # of a kernel that takes any size, and of one that refuses some
FEW_LINES, LONG_LINE = 3, 1024
MOST_DRAWN_S, MOST_MULTIPLES_S, MOST_PACKED_S, MOST_NAMED_S = 3.0, 1.5, 3.0, 3.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Other sizes, by the name that a verdict has for them.

    `beyond`: what adds up at sizes beyond the problem's own is tried there too. `together`: the check is noted once for
    all sizes of the name, not at each. No more of them are tried after `most_s`.
    """

    name: str
    beyond: bool = False
    together: bool = False
    most_s: float = math.inf


SMALLER = Sizes("smaller sizes")
ODD = Sizes("odd sizes")
LARGER = Sizes("larger sizes", beyond=True)
BETWEEN = Sizes("sizes between")
FEW = Sizes("few elements", together=True)  # of one size
GROWN = Sizes("grown sizes", beyond=True, together=True)
SQUARE = Sizes("sizes as large as each other", together=True)
MULTIPLES = Sizes("sizes so many times as large as each other", together=True, most_s=MOST_MULTIPLES_S)
PACKED = Sizes("sizes that are others in one number", together=True, most_s=MOST_PACKED_S)
TILES = Sizes("numbers of tiles", together=True, most_s=MOST_TILES_S)
NAMED = Sizes("sizes that it names", together=True, most_s=MOST_NAMED_S)
DRAWN = Sizes("drawn sizes", together=True, most_s=MOST_DRAWN_S)
NARROWED = Sizes("other sizes of its inputs", beyond=True, together=True)
LEAST = Sizes("least sizes", together=True)  # a few hundred elements, with each rest that a vector leaves


def _is_refused(stopped: Stopped) -> bool:
    """Return whether it raised, and did no harm."""
    return isinstance(stopped.verdict, Crashed) and stopped.verdict.raised


def _told(session: ProblemSession, sizes: Sizes, stopped: Stopped) -> str:
    why = getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", "")
    return f"at {sizes.name} ({session.fp.notice or 'scaled'}): {why}"[:300]


def _is_long(session: ProblemSession) -> bool:
    """Return whether an input has so few lines, as long as that, that many threads may share one."""
    shapes = [a.spec.shape for a in session.fp.tensors if a.role == "input" and a.spec.shape]
    return any(min(shape) <= FEW_LINES and max(shape) >= LONG_LINE for shape in shapes)


class OtherSizes:
    """What one candidate did at other sizes so far: `served` those at which it was right.

    `refused` says where it raised, where that is no fault since narrower sizes are tried later (`may_refuse`). `names`
    tells which numbers it names. `smallest` are those that it takes where it refuses the usual small ones, `tiny` those
    of microseconds a call.
    """

    def __init__(
        self,
        known: ProblemKnowledge,
        found: Findings,
        without: frozenset[str],
        names: Callable[[], NamedNumbers] = NamedNumbers,
        *,
        may_refuse: bool = False,
    ) -> None:
        self.names = names
        self.known, self.found, self.without, self.may_refuse = known, found, without, may_refuse
        self.served: list[FunctionalProblem] = []
        self.refused = ""
        self.refusing: list[FunctionalProblem] = []  # at all of its sizes that it refused, where that is no fault
        self.smallest: ProblemSession | None = None
        self.tiny: ProblemSession | None = None

    @property
    def fails_somewhere(self) -> bool:
        """Whether anything is known against other sizes: that it was wrong at some, or refused some."""
        return self._is_specialised or bool(self.refused)

    @property
    def _is_specialised(self) -> bool:
        return SPECIALISED in self.found.labels

    def contract(self) -> Contract:
        """Return what it serves: the sizes at which it was right, unless it was wrong at others."""
        served = [] if self._is_specialised else self.served
        tight = bool(served) and not self.known.session.on_gpu and "guard pages" not in self.without
        return contract(self.known.session.fp, served, any_alignment=tight and ALIGNED not in self.found.labels)

    def place_for_many(self, subject: LoadedCandidate) -> BoundBuffers:
        """Return where it is bound to the smallest sizes at which it was right; its own where those are all."""
        session = self.tiny or self.smallest or self._small or self.known.session
        return next((p for p in subject.places if p.session is session), None) or subject.bind(session)

    def small_place(self, subject: LoadedCandidate, place: BoundBuffers) -> BoundBuffers:
        """Return where it is bound to the problem at small sizes, or else `place`."""
        return next((p for p in subject.places if p.session is self._small), place)

    @property
    def _small(self) -> ProblemSession | None:
        return None if self.fails_somewhere else self.known.small

    def tight(self, subject: LoadedCandidate, session: ProblemSession) -> BoundBuffers:
        """Bind the candidate to buffers that end at guard pages, where there are some."""
        return subject.bind(session, tight=not session.on_gpu and "guard pages" not in self.without)

    def try_at(self, subject: LoadedCandidate, session: ProblemSession, sizes: Sizes) -> bool:
        """Note whether it is right at these sizes, and label it where it is wrong; return False if the worker is lost.

        It is a label and no fault, since the contract names one size. A kernel may refuse few elements: exported files
        take the module for what its own checks refuse.
        """
        few = sizes is FEW
        stopped = self._failure(
            subject, session, beyond=sizes.beyond, probed=sizes.beyond or few, by_many=few and _is_long(session)
        )
        if stopped is None:
            self.found.checks += [sizes.name] * (not sizes.together)
            self.served.append(session.fp)
            return True
        reason = _told(session, sizes, stopped)
        if _is_refused(stopped) and stopped.alive and self.may_refuse:
            self.refused = "" if sizes is FEW else reason
            self.refusing.append(session.fp)
            self._ask_again(subject)
        else:
            self._specialised(reason)
        return stopped.alive

    def _failure(
        self,
        subject: LoadedCandidate,
        session: ProblemSession,
        *,
        beyond: bool = False,
        probed: bool = False,
        by_many: bool = False,
    ) -> Stopped | None:
        """Return how it fails at these sizes, or None where it is right; a rejection there ends the trial."""
        try:
            checks = Checks(subject, self.tight(subject, session), self.found, self.without)
            checks.own_draws()
            if beyond:
                checks.beyond()
            if probed:
                products(checks)
            if by_many:
                checks.by_many()
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            return stopped
        return None

    def _ask_again(self, subject: LoadedCandidate) -> None:
        """Require that it is right at its own sizes after it has refused others."""
        own = next((place for place in subject.places if place.session is self.known.session), None)
        if own is not None:
            Checks(subject, own, self.found, self.without).first_draw(AFTER_REFUSED)

    def _specialised(self, reason: str) -> None:
        self.found.label(SPECIALISED)
        self.found.notes.append(reason)

    def find_smallest(self, opened: ExitStack, open_worker: Callable[[], LoadedCandidate]) -> LoadedCandidate | None:
        """Return it in a worker of its own, bound at last to the smallest sizes that it takes; None if it takes none.

        It failed at the usual small sizes: what it does at these is no fault.
        """
        other: LoadedCandidate | None = None
        for session in self.known.larger or ():
            other = other or opened.enter_context(open_worker())
            stopped = self._failure(other, session)
            if stopped is None:
                self.smallest = session
                self.served.append(session.fp)
                self.found.checks.append(f"{SMALLER.name}: {session.fp.notice}")
                return other
            session.rest()
            other = other if stopped.alive else None
        return None

    def try_least(self, subject: LoadedCandidate) -> bool:
        """Try it where a call takes microseconds, as long as there is time; return False if the worker is lost."""
        begun, right = perf_counter(), 0
        for session in self.known.least or ():
            if not self.try_at(subject, session, LEAST):
                return False
            if self.fails_somewhere:
                return True
            right += 1
            self.tiny = self.tiny or session
            if session is not self.tiny:
                session.rest()
            if perf_counter() - begun > MOST_RESTS_S:
                break
        self.found.checks += [f"{right} {LEAST.name}"] * bool(right)
        return True

    def search(self, subject: LoadedCandidate) -> bool:
        """Try odd and larger sizes, some between, of few elements, and grown ones; where it refuses one, narrower ones
        instead of the rest. Return False if the worker is lost.

        Where it was wrong at one, and so serves none, the others are tried all the same: it may be dishonest there.
        """
        for sizes, sessions in self._searched():
            if self.refused:
                break
            if not self._try_each(subject, sessions, sizes):
                return False
        return not self.refused or (self._search_narrower(subject) and self._try_what_it_takes(subject))

    def _searched(self) -> Iterator[tuple[Sizes, Iterable[ProblemSession]]]:
        for sizes, found in ((ODD, self.known.odd), (LARGER, self.known.large)):
            if found is not None and (first := found.first()) is not None:
                yield sizes, (first,)
        yield BETWEEN, self.known.between or ()
        if "squares and tiles" not in self.without:
            yield SQUARE, self.known.square or ()
            yield MULTIPLES, self.known.multiples or ()
            yield PACKED, self.known.packed or ()
            yield TILES, self.known.tiles or ()
            yield DRAWN, self.known.drawn or ()
            yield NAMED, self.known.sizes_named(self.names().wholes)
        yield FEW, self.known.few.get("all", ())
        yield GROWN, self.known.grown or ()

    def _try_each(self, subject: LoadedCandidate, sessions: Iterable[ProblemSession], sizes: Sizes) -> bool:
        """Try sizes until it refuses some, and list those at which it was right; return False if the worker is lost.

        Nothing else is tried at them, so that their workers may serve the next ones.
        """
        right: list[str] = []
        alive, begun = True, perf_counter()
        for session in sessions:
            alive = self.try_at(subject, session, sizes)
            session.rest()
            if not alive or self.refused:
                break
            right += [session.fp.notice] * (session.fp in self.served)
            if perf_counter() - begun > sizes.most_s:
                break
        if alive and right and sizes is FEW:
            self.found.checks.append(f"{len(right)} times {sizes.name}")
        if alive and right and sizes in (SQUARE, MULTIPLES, PACKED, TILES, DRAWN, NAMED):
            self._note(sizes, len(right))
        if alive and right and sizes is GROWN:
            self.found.checks.append(f"{sizes.name}: {'; '.join(right)}")
        return alive

    def _search_narrower(self, subject: LoadedCandidate) -> bool:
        """Try other sizes of the inputs alone, or else of the batch, where it refuses other ones of the module; return
        False if the worker is lost.

        What it serves is what it takes of these alone.
        """
        why = self.refused
        for reach, sessions in self.known.within.items():
            if self._is_specialised:
                break
            self.refused, self.served = "", []
            if not self._try_each(subject, sessions, NARROWED):
                return False
            few = self.known.few.get(reach, ()) if self.served and not self.fails_somewhere else ()
            if not self._try_each(subject, few, FEW):
                return False
            if not self.fails_somewhere and self.served:
                self.found.checks.append(NARROWED.name)
                self.found.notes.append(f"serves other sizes of its inputs, and refuses others: {why}"[:300])
                self.refused = why
                return True
        if not self._is_specialised:
            self._specialised(why)
        return True

    def _try_what_it_takes(self, subject: LoadedCandidate) -> bool:
        """Try sizes as large as each other, and numbers of the least tile that a kernel takes which refuses others;
        return False if the worker is lost.

        What it refuses here is no fault, and what it takes is none of what it serves.
        """
        if "squares and tiles" in self.without:
            return True
        begun = perf_counter()
        multiples = self.known.multiples or ()
        for sizes, tried in (
            (SQUARE, [[self.known.square or ()]]),
            (MULTIPLES, [[multiples]]),
            (TILES, self.known.tiled),
        ):
            right = 0
            for lengths in tried:
                for sessions in lengths:
                    taken, alive = self._try_taken(subject, sessions, sizes, begun + MOST_OF_TILES_S)
                    right += taken
                    if not alive or self._is_specialised:
                        return alive
                    if taken:
                        break
            self._note(sizes, right)
        return True

    def _try_taken(
        self, subject: LoadedCandidate, sessions: Iterable[ProblemSession], sizes: Sizes, until: float
    ) -> tuple[int, bool]:
        """Return at how many of these sizes it is right, the first of which it has to take, and whether the worker is
        alive.
        """
        right = 0
        for session in sessions:
            stopped = self._failure(subject, session)
            session.rest()
            right += stopped is None
            if stopped is not None and not (_is_refused(stopped) and stopped.alive):
                self._specialised(_told(session, sizes, stopped))
                return right, stopped.alive
            if (stopped is not None and not right) or perf_counter() > until:
                break
        return right, True

    def _note(self, sizes: Sizes, right: int) -> None:
        self.found.checks += [f"{right} {sizes.name}"] * bool(right)
