"""Is a candidate right on a GPU as programs use it: by threads on streams of their own, beside other work, in a graph?

It is called many times, too, and what it keeps is looked at.

Comes in: the Checks of a loaded candidate, in a worker of its own that has made no call yet. Goes out: labels, notes
and what was checked; the trial ends where it is wrong in what every program does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rag_kernels.eval.records import NO_GRAPH, ONE_CALLER, Rejected
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.trial.checks import Checks
from rag_kernels.eval.trial.long_use_checks import (
    CALLERS,
    CALLERS_BYTES,
    after_refused_far,
    after_so_many,
    at_once,
    by_itself,
    ends_well,
    keeps_nothing,
    many_calls,
    together,
)

MANY_CALLS_S = 0.6  # of many calls in a row: some 10,000
ROUNDS, ROUNDS_S = (1 << 8, 1 << 10, 1 << 12, 1 << 16), 0.4  # calls after which a number of them begins again
LEAST_LINES = 4
TURNS = 200  # calls at each of two places, beside other work
WAITS_S = 20.0  # after which, and its calls, threads wait for each other for ever
MOST_BYTES = 256 << 20  # of arguments and outputs, of which several copies are made
BESIDE, FIRST_CALLS, IN_A_GRAPH = "beside other work", "two first calls at once", "in a CUDA graph"
FIRST_LINES, ELSEWHERE = "after first lines alone", "one argument elsewhere"
HELD_UP = "beside held multiprocessors"
UNJOINED = "unjoined work"  # of the driver's sentence
NOT_JOINED = (
    "Work of the call goes on on another stream, and nothing joins it to the one that it is called on: who comes next "
    "there may find it undone. Record an event behind it and let the stream wait for that."
)
MOST_CROSSED = 6  # arguments


class GpuUse:
    """Of one candidate: `checks` are at its own sizes, `small` is where it is bound to few elements."""

    def __init__(self, checks: Checks, small: Callable[[], BoundBuffers], call_s: float) -> None:
        self.checks, self.subject, self.found, self.call_s = checks, checks.subject, checks.found, call_s
        session = checks.place.session
        self.is_kernel = self.subject.candidate.tier == "kernel"
        self.whole_bytes = session.content_bytes + session.output_bytes
        self.small = small
        self.without_libraries = True  # as far as was seen
        own = self.whole_bytes <= MOST_BYTES
        self.places = (
            (checks.place, self.subject.bind(session)) if own else (small(), self.subject.bind(small().session))
        )

    def run(self, opened: Callable[[], LoadedCandidate]) -> None:
        """Try it all, as long as its worker lives."""
        steps: list[Callable[[], bool]] = [self._first_calls, self._many_calls, self._beside_others, self._callers]
        if self.is_kernel:
            steps += [self._other_addresses, self._after_first_lines, self._keeps_nothing]
        steps += [self._in_a_graph]
        if self.is_kernel:
            steps += [self._by_itself, self._held_up, self._refuses]
        if all(step() for step in steps):
            ends_well(self.checks, opened)

    def _first_calls(self) -> bool:
        """Label a candidate that is wrong where two threads make its first calls at once."""
        recipes = [place.session.random_recipe() for place in self.places]
        for place, recipe in zip(self.places, recipes, strict=True):
            place.session.require_answer(recipe)
            self.subject.prepare(place, recipe)
        try:
            self.subject.call_first(*self.places, WAITS_S)
            for place, recipe in zip(self.places, recipes, strict=True):
                self.checks.compare(place, self.subject.outputs(place), recipe, FIRST_CALLS)
        except Stopped as stopped:
            return self._labelled(ONE_CALLER, "wrong where its first calls are two threads'", stopped)
        self.found.checks.append(FIRST_CALLS)
        return True

    def _many_calls(self) -> bool:
        small = self.small()
        many_calls(Checks(self.subject, small, self.found, self.checks.without), small, MANY_CALLS_S)
        if small.session is not self.checks.place.session:
            after_so_many(self.checks, small, ROUNDS, ROUNDS_S)
        return True

    def _other_addresses(self) -> bool:
        """Require that it is right where one argument lies elsewhere than in the call before, and no other: what it
        keeps by some addresses is of another tensor.
        """
        first, second = self.places
        session = first.session
        if session.own_draws < 2:
            return True
        for number in _may_be_crossed(session)[:MOST_CROSSED]:
            others, recipe = (session.random_recipe((d,)) for d in session.rng.sample(range(session.own_draws), 2))
            self.subject.prepare(second, others)
            self.subject.prepare(first, session.random_recipe())
            self.subject.call(first)
            self.subject.prepare(first, recipe)
            self.subject.call_crossed(first, number, second)
            mixed = (*recipe[:number], others[number], *recipe[number + 1 :])
            self.checks.compare(first, self.subject.outputs(first), mixed, ELSEWHERE)
        self.found.checks.append(ELSEWHERE)
        return True

    def _after_first_lines(self) -> bool:
        """Require that a call on whole tensors is right where the one before was on their first lines alone, at the
        same places.
        """
        place = self.subject.bind(self.places[0].session)
        lines = next(iter(place.session.fp.outputs[0].shape), 0)
        recipe = place.session.random_recipe()
        if lines < LEAST_LINES:
            return True
        place.session.require_answer(recipe)
        self.subject.prepare(place, recipe)
        try:
            self.subject.call_on_first(place, [lines // 2 + 1], WAITS_S)
        except Stopped as stopped:  # some refuse other sizes
            if isinstance(stopped.verdict, Rejected) or not stopped.alive:
                raise
            return True
        self.subject.call(place)
        self.checks.compare(place, self.subject.outputs(place), recipe, FIRST_LINES)
        self.found.checks.append(FIRST_LINES)
        return True

    def _by_itself(self) -> bool:
        """Note whether it makes a call where no code of a numerical library can be run."""
        self.without_libraries = by_itself(self.checks, self.checks.place)
        return self.without_libraries

    def _beside_others(self) -> bool:
        """Require that it is right on two contents in turn where other work takes a part of the GPU."""
        recipes = [self.places[0].session.random_recipe()]
        recipes.append(self.places[1].session.specials.mixed or self.places[1].session.random_recipe())
        at_once(self.checks, self.places, recipes, partial(self.subject.call_in_turn, self.places, TURNS), BESIDE)
        self.found.checks.append(BESIDE)
        return True

    def _callers(self) -> bool:
        """Label a candidate that is wrong where several threads call it at once, each on a stream of its own."""
        of_many = self.checks.place.session if self.whole_bytes <= CALLERS_BYTES else self.small().session
        callers: tuple[Callable[[], Sequence[BoundBuffers]], ...] = (
            lambda: self.places,
            lambda: [self.subject.bind(of_many) for _ in range(CALLERS)],
        )
        for places in callers:
            if why := together(self.checks, places(), self.call_s, WAITS_S):
                self.found.label(ONE_CALLER)
                self.found.notes.append(f"wrong where several threads call it at once: {why}"[:300])
                return False
        return True

    def _keeps_nothing(self) -> bool:
        small = self.small()
        keeps_nothing(self.checks, small, small)
        return True

    def _in_a_graph(self) -> bool:
        """Label a candidate whose call cannot be recorded in a graph, or is wrong where that is launched on another
        content.
        """
        place = self.places[0]
        session = place.session
        try:
            self.subject.prepare(place, session.random_recipe())
            self.subject.record_graph(place)
            self.subject.prepare(place, recipe := session.random_recipe())
            session.require_answer(recipe)
            self.subject.launch_graph(place)
            self.checks.compare(place, self.subject.outputs(place), recipe, IN_A_GRAPH)
        except Stopped as stopped:
            if UNJOINED in getattr(stopped.verdict, "reason", ""):
                raise Stopped(Rejected("late_write", NOT_JOINED)) from None
            return self._labelled(NO_GRAPH, "not where its call is recorded in a CUDA graph", stopped)
        self.found.checks.append(IN_A_GRAPH)
        return True

    def _held_up(self) -> bool:
        """Label a kernel whose calls wait for each other where others hold a part of the multiprocessors."""
        recipes = [place.session.random_recipe() for place in self.places]
        for place, recipe in zip(self.places, recipes, strict=True):
            place.session.require_answer(recipe)
            self.subject.prepare(place, recipe)
        try:
            self.subject.call_held_up(*self.places, WAITS_S)
            for place, recipe in zip(self.places, recipes, strict=True):
                self.checks.compare(place, self.subject.outputs(place), recipe, HELD_UP)
        except Stopped as stopped:
            return self._labelled(
                ONE_CALLER, "wrong where others hold multiprocessors, and two callers the rest", stopped
            )
        self.found.checks.append(HELD_UP)
        return True

    def _refuses(self) -> bool:
        return "squares and tiles" in self.checks.without or after_refused_far(self.checks, self.checks.place)

    def _labelled(self, label: str, told: str, stopped: Stopped) -> bool:
        """Label what was seen, unless it ends the trial; return whether the worker is there still."""
        if isinstance(stopped.verdict, Rejected):
            raise stopped
        self.found.label(label)
        why = getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", "")
        self.found.notes.append(f"{told}: {why}"[:300])
        return stopped.alive


def _may_be_crossed(session: ProblemSession) -> list[int]:
    """Return, in any order, arguments whose content may be another one's while all others stay: what belongs together
    stays so.
    """
    tensors = session.fp.tensors
    free = [i for i, a in enumerate(tensors) if session.movable[i] or a.role == "parameter"]
    free = [i for i in free if i not in session.together]
    return session.rng.sample(free, len(free)) if len(tensors) > 1 else []
