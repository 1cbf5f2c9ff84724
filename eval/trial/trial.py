"""One candidate against one problem: is it right on every call, how fast is it, and what kind of result is it?

Comes in: a ProblemKnowledge, a Candidate with its library. Goes out: `Passed` or the verdict that stopped it. The order
of checks is here, cheapest first; there is no phase that the candidate could tell from another: every call is the same
request with new content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import TypeVar

from rag_kernels.eval.build.products import Library, Programs
from rag_kernels.eval.messages.to_candidate import Strided
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.progress import doing
from rag_kernels.eval.records import (
    ALIGNED,
    MORE_MEMORY,
    ONE_CALLER,
    OTHER_PROCESSORS,
    PROCESS_WIDE,
    STATIC_ROOM,
    Candidate,
    Measurement,
    Passed,
    Rejected,
    Verdict,
    unchecked,
)
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.timing.baseline import Baseline
from rag_kernels.eval.traits.named_numbers import NamedNumbers
from rag_kernels.eval.trial.activity_checks import done_means_done, nothing_came_later, waits_for_its_inputs
from rag_kernels.eval.trial.checks import FINITE_ONLY, Checks, Findings
from rag_kernels.eval.trial.gpu_use_checks import GpuUse
from rag_kernels.eval.trial.long_use_checks import (
    CALLERS,
    CALLERS_BYTES,
    COMPOSED_S,
    after_refused,
    after_refused_far,
    by_itself,
    ends_well,
    first_at_once,
    in_filled_memory,
    infinities,
    keeps_nothing,
    keeps_results_apart,
    leaves_nothing,
    many_at_once,
    many_calls,
    on_small_stack,
    refused_first,
    together,
)
from rag_kernels.eval.trial.other_sizes import SMALLER, OtherSizes
from rag_kernels.eval.trial.physical_floor import Finding, finding, settled_floor_us
from rag_kernels.eval.trial.precision_checks import factors, probe
from rag_kernels.eval.trial.result_class import ResultClass, classify, fuses_nothing, links_library
from rag_kernels.eval.trial.special_checks import integers, named_numbers, one_twice, special_values, stale_lines
from rag_kernels.eval.trial.surroundings import (
    looks_around,
    numbers_it_names,
    process_wide,
    takes_static_room,
)
from rag_kernels.eval.trial.timed import Timed, Timing, measurement
from rag_kernels.eval.trial.under_sanitizers import MOST_SANITIZED_BYTES, SANITIZED_BYTES, UnderSanitizers

MOST_ALONE = 6  # tensors that alone begin at any element, in a confirmation; before it one
NAMED_TIMES = {False: 2, True: 6}  # draws that have something of its numbers; in a confirmation
STRIDED: tuple[Strided, ...] = ("exchanged", "with gaps")
T = TypeVar("T")

ALLOCATED_BYTES = 64  # what PyTorch's memory on a CPU begins at multiples of
LITTLE_BYTES = {"cpu": 4 << 20, "cuda": 32 << 20}  # stacks and huge pages; code and stacks that a driver loads late
LOADED_BYTES = 16 << 20  # a library with its variables; honest ones take 1 MiB
LITTLE_SHARE = 0.05  # of arguments and outputs

STAGES = {  # in words, for whoever waits
    "load": "loading",
    "prepare": "preparing eager and torch.compile",
    "check": "comparing results",
    "special": "trying special values",
    "repeat": "repeating calls",
    "sanitize": "running under sanitizers",
    "classify": "finding out what ran",
    "time": "timing",
    "odd": "trying other sizes",
}


class Trial:
    """A candidate and what has been seen of it. `thorough` adds the checks that a published result needs."""

    def __init__(
        self,
        known: ProblemKnowledge,
        candidate: Candidate,
        library: Library | None,
        *,
        thorough: bool = False,
        checked: Callable[[], tuple[Programs, Workers]] | None = None,
        older: Callable[[], Mapping[str, Library]] = dict,
        loaded: Callable[[], LoadedCandidate] | None = None,
        baselines: Callable[[], None] | None = None,
    ) -> None:
        self.loaded = loaded  # hands over a worker that has loaded the candidate already
        self.baselines = baselines or (
            lambda: None
        )  # prepares what it races, once: beside sanitizers, or before timing
        self.known, self.session = known, known.session
        self.older = older  # builds it for older processors, where it asks
        self.candidate, self.library, self.checked = candidate, library, checked
        self.thorough = thorough or self.session.limits.thorough
        self.without = self.session.limits.without
        self.found = Findings()
        self.searches = self.thorough and "odd shapes" not in self.without  # at last, for the sizes that it serves
        self.others = OtherSizes(known, self.found, self.without, lambda: self.names, may_refuse=self.searches)
        self.tried_special = False
        self.by_itself = True  # none of its code is a numerical library's
        self.loaded_bytes = 0  # that a process has more for having loaded it
        self.call_s, self.slowest_s = 0.0, 0.0  # of one at the problem's own sizes, the last and the slowest
        self.extra_bytes: int | None = None  # of a call, at most, beside arguments and outputs
        self.stage_s: dict[str, float] = {}

    def run(self, baseline: Baseline | None) -> Verdict:
        """Load; a call's memory, idle when done, special values, draws; in a confirmation repeats and sanitizers; the
        class; time; in a confirmation other sizes; idle once more.

        `baseline` None means that compile is timed live (a confirmation). A worker that is lost at other sizes is
        replaced by another one.
        """
        try:
            with self._stage("load", self._open) as subject:
                place = self._stage("load", lambda: subject.bind(self.session))
                checks = Checks(subject, place, self.found, self.without)
                self.extra_bytes = self._stage("check", lambda: subject.peak_bytes(place))
                self._stage("check", lambda: done_means_done(checks))
                small_alive = self._stage("special", lambda: self._special(subject, checks))
                if small_alive:
                    return self._rest(subject, place, baseline)
            with self._stage("load", self._open) as subject:  # what it did at other sizes is no failure
                return self._rest(subject, self._stage("load", lambda: subject.bind(self.session)), baseline)
        except Stopped as stopped:
            return stopped.verdict

    def _rest(self, subject: LoadedCandidate, place: BoundBuffers, baseline: Baseline | None) -> Verdict:
        checks = Checks(subject, place, self.found, self.without)
        if not self.tried_special:  # its worker was lost at smaller sizes
            self._stage("special", lambda: self._special_where_it_can(subject, checks))
        self._stage("check", checks.draws)
        self._stage("check", lambda: waits_for_its_inputs(checks))
        self._stage("check", lambda: keeps_results_apart(checks))
        self._stage("check", lambda: self._elsewhere(subject, checks))
        self.call_s = subject.accounts[-1].call_s
        self.slowest_s = max(account.call_s for account in subject.accounts)
        if self.thorough:
            self._stage("check", lambda: factors(checks))
            self._stage("check", checks.greatest_integers)
            self._stage("repeat", lambda: checks.repeats(self.session.limits.repeats))
            if self.session.on_gpu:  # as long as its small sizes are there
                self._stage("repeat", self._as_programs_do)
            self._stage("sanitize", self._sanitize)
        seen = self._stage("classify", lambda: self._classify(subject, place, checks))
        self._stage("prepare", self.baselines)
        timed = self._stage("time", lambda: Timing(self.known, checks, thorough=self.thorough).run(baseline))
        self.extra_bytes = max((b for b in (self.extra_bytes, timed.peak_bytes) if b is not None), default=None)
        self._stage("check", lambda: leaves_nothing(checks))
        if self.candidate.tier != "module":
            self._stage("repeat", lambda: checks.teams(self.others.small_place(subject, place)))
        if self.thorough:
            self._stage("repeat", self._in_another_worker)
            self._stage("repeat", self._on_older_processors)
        if not self.searches or self._stage("odd", lambda: self.others.search(subject)):
            if self.thorough:
                self._stage("repeat", self._refused_first)
            leaves_nothing(checks)  # at other sizes
            checks.leaning()
            done_means_done(checks)
            nothing_came_later(checks)
        return self._passed(timed, baseline, seen)

    def _open(self) -> LoadedCandidate:
        loaded, self.loaded = self.loaded, None
        subject = loaded() if loaded is not None else LoadedCandidate(self.session, self.candidate, self.library)
        self.loaded_bytes = max(self.loaded_bytes, subject.loaded_bytes)
        return subject

    def _stage(self, name: str, work: Callable[[], T]) -> T:
        doing(STAGES.get(name, name))
        start = perf_counter()
        try:
            return work()
        finally:
            self.stage_s[name] = self.stage_s.get(name, 0.0) + perf_counter() - start

    # Checks

    def _special(self, subject: LoadedCandidate, checks: Checks) -> bool:
        """Try the probe and special values, at the problem's own sizes or at smaller ones; return False if the worker
        is lost.
        """
        small = self.known.small
        if small is None:
            return self._special_at_own_sizes(subject, checks, "the problem is large and could not be scaled down")
        if small is not self.session and not self.others.try_at(subject, small, SMALLER):
            return False
        if self.others.fails_somewhere:
            return self._special_where_it_can(subject, checks)
        tight = subject.places[-1] if small is not self.session else self.others.tight(subject, small)
        probe(checks, tight)
        special_values(checks, tight)
        named_numbers(checks, tight, self.names, self.named_times)
        stale_lines(checks, tight)
        one_twice(checks, tight)
        self.tried_special = True
        if not ("strides" in self.without or self._takes_strides(subject, small)):
            return False
        return integers(checks, tight) and self._takes_any_element(subject, small)

    @cached_property
    def names(self) -> NamedNumbers:
        """Numbers that the candidate's text and code name."""
        path = None if self.library is None else self.library.path
        return numbers_it_names(path, self.candidate.source, on_gpu=self.session.on_gpu)

    @property
    def named_times(self) -> int:
        return NAMED_TIMES[self.thorough]

    def _special_where_it_can(self, subject: LoadedCandidate, checks: Checks) -> bool:
        """Try special values at the smallest sizes that it takes, in a worker of its own; else at the problem's own.

        Return False if the worker is lost.
        """
        self.tried_special = True
        if "special values" not in self.without:  # else the probe is left
            with ExitStack() as opened:
                if (other := self.others.find_smallest(opened, self._open)) is not None:
                    at_these = Checks(other, other.places[-1], self.found, self.without)
                    probe(at_these, other.places[-1])
                    special_values(at_these, other.places[-1])
                    named_numbers(at_these, other.places[-1], self.names, self.named_times)
                    stale_lines(at_these, other.places[-1])
                    one_twice(at_these, other.places[-1])
                    return True
        return self._special_at_own_sizes(subject, checks, "it does not take smaller sizes")

    def _special_at_own_sizes(self, subject: LoadedCandidate, checks: Checks, why: str) -> bool:
        """Try, where there are no smaller sizes, as many special kinds as there is room for; return False if the worker
        is lost.
        """
        self.tried_special = True
        if "special values" in self.without:
            probe(checks, self.others.tight(subject, self.session))
            return True
        kinds = [kind for kind, _ in self.session.specials.own]
        if not kinds:
            self.found.label(unchecked("special values"))
            self.found.notes.append(f"special values not tried: {why}, and its own sizes take too much memory")
            return True
        self.found.notes.append(f"special values at its own sizes: {why}")
        tight = self.others.tight(subject, self.session)
        probe(checks, tight)
        special_values(checks, tight, kinds)
        named_numbers(checks, tight, self.names, self.named_times)
        return True

    def _takes_strides(self, subject: LoadedCandidate, session: ProblemSession) -> bool:
        """Try another layout in memory, and label a candidate that depends on it. Return False if the worker is lost.

        A kernel gets no label: its contract promises contiguous tensors.
        """
        if all(len(a.spec.shape) < 2 for a in session.fp.tensors if a.role == "input"):
            return True
        kernel = self.candidate.tier == "kernel"
        try:
            for how in STRIDED[: 1 if kernel else None]:
                place = subject.bind(session, strided=how)
                Checks(subject, place, self.found, self.without).first_draw("strided input", copied=True)
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            if not kernel:
                self.found.label("contiguous-only")
            return stopped.alive
        self.found.checks.append("strides")
        return True

    def _elsewhere(self, subject: LoadedCandidate, checks: Checks) -> None:
        """Require that it is right where tensors lie as PyTorch has them: in a heap, and not at borders of pages."""
        most = MOST_SANITIZED_BYTES if self.thorough else SANITIZED_BYTES
        small = self.session.content_bytes + self.session.output_bytes <= most
        if small and not self.session.on_gpu and "guard pages" not in self.without:
            ways: tuple[bool | None, ...] = (None, True, False)  # where PyTorch has large ones; within heaps
            for low in ways if self.thorough else (self.session.rng.choice((None, *ways)),):
                step = None if low is None else ALLOCATED_BYTES
                checks.elsewhere(subject.bind(self.session, step=step, low=low, mapped=low is None))

    def _takes_any_element(self, subject: LoadedCandidate, session: ProblemSession) -> bool:
        """Label a need for tensors that begin where PyTorch allocates them; False if the worker is lost."""
        if session.on_gpu or "guard pages" in self.without:
            return True
        tensors = len(session.specs) + len(session.fp.outputs)
        alone = session.rng.sample(range(tensors), min(tensors, MOST_ALONE if self.thorough else 1))
        try:
            for number in (None, *alone):
                place = subject.bind(session, step=0, alone=number)
                Checks(subject, place, self.found, self.without).first_draw("at any element")
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            self.found.label(ALIGNED)
            reason = getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", "")
            self.found.notes.append(f"not where tensors begin at any element: {reason}"[:300])
            return stopped.alive
        self.found.checks.append("any alignment")
        return True

    def _as_programs_do(self) -> None:
        """Call a CUDA kernel, or a composed source, as programs do: by threads, on streams, for long, from a graph."""
        if self.candidate.tier == "module" or "repeats" in self.without:
            return
        with self._open() as other:
            checks = Checks(other, other.bind(self.session), self.found, self.without)
            use = GpuUse(checks, lambda: self.others.place_for_many(other), self.call_s)
            use.run(self._open)
            self.by_itself = use.without_libraries

    def _in_another_worker(self) -> None:
        """Call a C++ kernel many times at the least sizes, at rests of vectors, and from two threads at once; composed
        ones at their own or the least sizes.
        """
        if self.session.on_gpu or self.candidate.tier == "module" or "repeats" in self.without:
            return
        if self.candidate.tier == "composed":
            with self._open() as other:
                place = self.others.place_for_many(other)
                many_calls(Checks(other, place, self.found, self.without), place, COMPOSED_S)
                first, second = (other.bind(self.session, step=ALLOCATED_BYTES) for _ in range(2))
                checks = Checks(other, first, self.found, self.without)
                if self._by_several_callers(checks, [first, second]):
                    ends_well(checks, self._open)
            return
        with self._open() as other:
            place = other.bind(self.session)
            self.by_itself = by_itself(Checks(other, place, self.found, self.without), place)
        if self.session.fp.bounds:
            with self._open() as other:
                after_refused(Checks(other, place := other.bind(self.session), self.found, self.without), place)
        for spoiled in (True, False):  # by infinities, which some honest kernels do not survive
            with self._open() as other:
                first, second = (other.bind(self.session, step=ALLOCATED_BYTES) for _ in range(2))
                checks = Checks(other, first, self.found, self.without)
                if not spoiled:
                    in_filled_memory(checks, first)
                elif self._fails_at_once(first_at_once(checks, first, second, self.slowest_s)):
                    continue
                if spoiled and not self._survives_infinities(other):
                    continue
                if not (self.others.fails_somewhere or self.others.try_least(other)):
                    return
                place = self.others.place_for_many(other)
                many_calls(Checks(other, place, self.found, self.without), place)
                many_at_once(Checks(other, place, self.found, self.without), place)
                least = place.session
                whole = self.session.content_bytes + self.session.output_bytes
                of_many = self.session if whole <= CALLERS_BYTES else least
                smaller = [place] * (least is not self.session)
                callers = (
                    [first, second],
                    *([first, p] for p in smaller),
                    [other.bind(of_many, step=ALLOCATED_BYTES) for _ in range(CALLERS)],
                )
                for places in () if ONE_CALLER in self.found.labels else callers:  # alike, beside the least, many
                    if not self._by_several_callers(Checks(other, first, self.found, self.without), places):
                        return
                sized = None if self.others.fails_somewhere else self.others.small_place(other, first)
                keeps_nothing(Checks(other, first, self.found, self.without), place, sized)
                checks = Checks(other, first, self.found, self.without)
                alive = on_small_stack(checks, first)
                if alive and "squares and tiles" not in self.without:
                    alive = after_refused_far(checks, first)
                if alive:
                    ends_well(checks, self._open)
                return

    def _refused_first(self) -> None:
        """Require of a C++ kernel that it is right where the first call of a process is one that it refuses."""
        if (
            self.session.on_gpu
            or self.candidate.tier != "kernel"
            or "repeats" in self.without
            or not self.others.refusing
        ):
            return
        with self._open() as other:
            place = other.bind(self.session)
            refused_first(Checks(other, place, self.found, self.without), place, self.others.refusing)

    def _by_several_callers(self, checks: Checks, places: Sequence[BoundBuffers]) -> bool:
        """Return whether it is right where a thread for each place calls it at once; label it where it is not."""
        return not self._fails_at_once(together(checks, places, self.call_s))

    def _fails_at_once(self, why: str) -> bool:
        """Label a candidate that fails where several threads call it at once; return whether it does."""
        if why:
            self.found.label(ONE_CALLER)
            self.found.notes.append(f"wrong where several threads call it at once: {why}"[:300])
        return bool(why)

    def _on_older_processors(self) -> None:
        """Label a C++ kernel that is wrong as it is built for older processors, where it is right as built for this."""
        for name, library in self.older().items() if "repeats" not in self.without else ():
            if (why := self._fails(library)) and not self._fails(self.library):
                self.found.label(OTHER_PROCESSORS)
                self.found.notes.append(f"wrong as it is built for {name}: {why}"[:300])
                return
            self.found.checks.append(f"built for {name}")

    def _fails(self, library: Library | None) -> str:
        """Return how one build of it fails, at sizes without a divisor too, or nothing; it is noted nowhere."""
        odd = None if self.others.fails_somewhere or self.known.odd is None else self.known.odd.first()
        try:
            with LoadedCandidate(self.session, self.candidate, library) as other:
                for session in (self.session, odd):
                    if session is not None:
                        Checks(other, other.bind(session), Findings(), self.without).own_draws()
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            return str(getattr(stopped.verdict, "where", "") or getattr(stopped.verdict, "reason", ""))
        return ""

    def _survives_infinities(self, subject: LoadedCandidate) -> bool:
        """Make a call of which later ones may find nothing; label a kernel that ends in it, and return False."""
        try:
            place = subject.bind(self.known.small or self.session)
            infinities(Checks(subject, place, self.found, self.without))
        except Stopped as stopped:
            if isinstance(stopped.verdict, Rejected):
                raise
            self.found.label(FINITE_ONLY)
            self.found.notes.append(f"on infinite inputs: {getattr(stopped.verdict, 'reason', '')}"[:300])
            return False
        return True

    def _sanitize(self) -> None:
        """Run it under sanitizers, unless they were left out."""
        if "sanitizers" not in self.without and self.checked is not None:
            under = UnderSanitizers(self.known, self.candidate, self.found, self.others, self._open, call_s=self.call_s)
            under.run(self.checked, self.baselines)

    def _classify(self, subject: LoadedCandidate, place: BoundBuffers, checks: Checks) -> ResultClass:
        linked = ""
        if self.library is not None and self.candidate.tier == "kernel":
            linked = links_library(self.library.path, self.candidate.source, on_gpu=self.session.on_gpu)
        around = self.library and looks_around(self.library.path, self.candidate.source, on_gpu=self.session.on_gpu)
        if around:
            self.found.label("suspicious: looks around")
            self.found.notes.append(f"it could find out where it runs, and behave there: {around}")
        if self.library and not self.session.on_gpu and takes_static_room(self.library.path):
            self.found.label(STATIC_ROOM)
            self.found.notes.append("its threads' variables are `initial-exec`: a few such libraries load together")
        if self.library and not self.session.on_gpu and (names := process_wide(self.library.path)):
            self.found.label(PROCESS_WIDE)
            self.found.notes.append(f"other kernels' variables of these names would be its own: {', '.join(names[:3])}")
        if linked:
            self.found.notes.append(f"calls library functions: {linked}")
            return ResultClass("library rewrite")
        profile = None
        if self.candidate.tier == "module" or (self.thorough and self.candidate.tier == "composed"):
            subject.prepare(place, self.session.random_recipe())
            profile = subject.profile(place)
        decoy = checks.ghost() if self.thorough and self.candidate.tier == "composed" else ""
        if not decoy and self.candidate.tier == "composed" and fuses_nothing(self.candidate.source, self.session.fp):
            self.found.notes.append("its library calls are as many as the problem's operators: nothing is fused")
            return ResultClass("library rewrite")
        seen = classify(self.candidate.tier, profile, decoy=decoy, on_gpu=self.session.on_gpu)
        if seen.note:
            self.found.notes.append(seen.note)
        return seen

    def _passed(self, timed: Timed, baseline: Baseline | None, seen: ResultClass) -> Verdict:
        session, found, strict = self.session, self.found, self.found.precision == "strict"
        measured = measurement(self.known, timed, baseline, floor_us=0.0, extra_bytes=self.extra_bytes)
        best_us = min(measured.eager_us, measured.compile_us or measured.eager_us)
        floor_us = settled_floor_us(session, measured.candidate_us, best_us, strict=strict)
        measured = replace(measured, floor_us=floor_us)
        if "physical floor" not in self.without:
            self._floor(finding(session, measured.candidate_us, best_us, strict=strict))
        self._memory(measured)
        if timed.times.stopped_early:
            found.notes.append("timed with few pairs: slower than the best candidate so far")
        found.notes += self.known.notes(measured)
        for text in self.known.labels:
            found.label(text)
        if not self.by_itself:
            seen = ResultClass("library rewrite", "")
            found.notes.append("it ends where no code of numerical libraries can be run: it calls one")
        passed = Passed(
            label=seen.label,
            precision=found.precision,
            error_ratio=found.worst_ratio,
            measurement=measured,
            checks=tuple(dict.fromkeys(found.checks)),
            notes=tuple(found.notes),
            labels=tuple(found.labels),
            own_share=seen.own_share,
            contract=self.others.contract(),
            baseline_precision=session.baseline_precision,
        )
        if passed.claims_speed:  # what is under suspicion is no bar for others
            self.known.leader.note(measured.speedup_eager.low)
        return passed

    def _memory(self, measured: Measurement) -> None:
        """Label a call that takes more memory than the module's, beyond what a process takes now and then."""
        if self.loaded_bytes > LOADED_BYTES and self.candidate.tier == "kernel" and not self.session.on_gpu:
            self.found.label(MORE_MEMORY)
            self.found.notes.append(f"its process has {self.loaded_bytes / 2**20:,.0f} MiB more for having loaded it")
        mine, eager = measured.candidate_extra_bytes, measured.eager_extra_bytes
        if mine is None or eager is None:
            return
        moved = self.session.content_bytes + self.session.output_bytes
        if mine > eager + LITTLE_BYTES[self.session.device.backend] + LITTLE_SHARE * moved:
            self.found.label(MORE_MEMORY)
            told = f"{mine / 2**20:,.0f} MiB beside arguments and outputs, the module {eager / 2**20:,.0f}"
            self.found.notes.append(f"a call takes {told}")

    def _floor(self, finding: Finding) -> None:
        """Refuse what is faster than memory though it must read its inputs from there."""
        if finding.pruned:
            self.found.label("algebraic pruning")
            self.found.notes.append("faster than this device multiplies: it computes less than the problem spells out")
        if finding.impossible:
            raise Stopped(Rejected("impossible_time", finding.impossible))
        if finding.suspicious:
            self.found.label("suspicious: faster than memory")
