"""How long one problem's reference takes, on the judge's clock: eager, and the baselines beside it.

Comes in: a ProblemSession, whose reference worker makes the calls. Goes out: seconds of a call, or of each of a burst.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rag_kernels.eval.buffers.call_content import plain
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.machine.device import floor_us
from rag_kernels.eval.messages.to_both import Done, MemoryTaken, Settle, TellMemory
from rag_kernels.eval.messages.to_reference import CallVariant, CompileAhead, PrepareVariant, ReadyVariant, Timed
from rag_kernels.eval.process.process_tree import grown_bytes
from rag_kernels.eval.process.workers import WorkerFailed
from rag_kernels.eval.sessions.problem_session import ProblemSession

log = logging.getLogger(__name__)
VARIANTS = {
    "eager": "eager",
    "compile": "torch.compile",
    "graph": "a CUDA graph of eager",
    "autotune": 'torch.compile(mode="max-autotune")',
}
ALONE = "; compared with eager alone"


class BaselineFailed(ProblemError):
    """A baseline beside eager that had been prepared failed in a later call; `note` says which, and how."""

    def __init__(self, variant: str, failure: WorkerFailed) -> None:
        self.variant, self.note, self.alive = variant, _failed(variant, failure), failure.alive
        super().__init__(f"{self.note}.")


class ReferenceTimes:
    """Times one session's reference. `variants` are the baselines beside eager that have been prepared."""

    def __init__(self, session: ProblemSession) -> None:
        self._session = session
        session.after_restart.append(self.prepare_again)
        self._left_out: dict[str, str] = {}  # why, by variant
        self.eager_s: list[float] = []
        self.round_trips: list[float] = []  # seconds of requests for no call, beside bursts
        self.host_s: dict[str, float] = {}  # GPU: seconds until a variant's call was launched, by the last burst
        self.compile_note = "torch.compile was not asked for"
        self._peak_bytes: int | None = None
        self.out_of_memory = False  # when torch.compile was prepared
        self.variants: list[str] = []
        self._prepared = False

    def call(self, variant: str, *, cold: bool = False, calls: int = 1, delay_s: float | None = None) -> float:
        """Return the seconds of one reference call on the current content; of several in a row the mean.

        On a GPU the calls are queued behind a delay and timed by events in the reference worker, which runs nothing of
        a candidate; `delay_s=0` is by the judge's clock, with the host's time. A CPU's are by the judge's clock always.
        Behind a delay they are as many as the host can launch before it ends, at most `calls`: of more the device would
        wait for the host.
        """
        session = self._session
        delay_s = self.delay_s(calls) if delay_s is None else delay_s
        calls = min(calls, self._launched(variant)) if delay_s else calls
        if cold and not session.on_gpu:
            session.empty_caches()
        # After it, as for a candidate: it wakes the worker.
        ready = ReadyVariant(cold and session.on_gpu, calls)
        session.ask(ready, Done)
        if delay_s:
            return self._delayed_s(variant, ready, delay_s) / calls
        if calls > 1:
            self.ask_for_nothing()
        seconds = self._asked_s(variant, calls)
        return (seconds - self.round_trip_s(seconds) if calls > 1 else seconds) / calls

    def _delayed_s(self, variant: str, ready: ReadyVariant, delay_s: float) -> float:
        """Return the device's seconds of a burst behind a delay: of one that the host had launched before it ended.

        A host that others keep busy needs longer now and then. What never is in time counts as it came.
        """
        rule = self._session.limits.timing
        taken = self._ask(variant, ready.calls, delay_s)
        for _ in range(rule.late_tries - 1):
            if not taken.late or delay_s >= rule.most_delay_s:
                break
            self.host_s[variant] = taken.host_s / ready.calls
            delay_s = max(delay_s, self.delay_s(ready.calls))
            self._session.ask(ready, Done)
            taken = self._ask(variant, ready.calls, delay_s)
        self.host_s[variant] = taken.host_s / ready.calls
        return taken.device_s

    def peak_bytes(self) -> int | None:
        """Return what a call of eager takes at most beside its arguments and outputs; None where nothing tells."""
        if self._peak_bytes is None:
            session = self._session
            session.write(session.random_recipe())
            self.call("eager", delay_s=0.0)  # which makes what is made once
            session.ask(ReadyVariant(cold=False, calls=1), Done)
            session.ask(Settle(), Done)
            before = session.worker.resident()
            session.worker.forget_peak()
            self._asked_s("eager", 1)
            if session.on_gpu:
                taken: int | None = session.ask(TellMemory(), MemoryTaken).peak_bytes
            else:
                taken = grown_bytes(before, session.worker.resident())
            self._peak_bytes = None if taken is None else max(0, taken - session.output_bytes)
        return self._peak_bytes

    def delay_s(self, calls: int) -> float:
        """Return how long a burst of so many calls is delayed: until the host has launched them all. 0 on a CPU."""
        rule = self._session.limits.timing
        if not self._session.on_gpu:
            return 0.0
        host_s = calls * max(self.host_s.values(), default=0.0)
        return min(rule.least_delay_s + rule.delay_per_host * host_s, rule.most_delay_s)

    def _launched(self, variant: str) -> int:
        """Return how many of a variant's calls the host launches behind the longest delay, by its last burst."""
        rule = self._session.limits.timing
        host_s = rule.delay_per_host * self.host_s.get(variant, 0.0)
        return max(1, int((rule.most_delay_s - rule.least_delay_s) / host_s)) if host_s else rule.burst_calls

    def ask_for_nothing(self, delay_s: float = 0.0) -> None:
        """Note how long a request for no call takes, behind a delay or without."""
        self.round_trips.append(self._asked_s("eager", 0, delay_s))

    @contextmanager
    def on_one_core(self) -> Iterator[None]:
        """Send the reference's work from the candidate's core on a GPU, since one core may be a fifth faster."""
        if not self._session.on_gpu:
            yield
            return
        self._session.worker.keep_to([self._session.core])
        try:
            yield
        finally:
            self._session.worker.keep_to(os.sched_getaffinity(0))

    def _asked_s(self, variant: str, calls: int, delay_s: float = 0.0) -> float:
        start = time.perf_counter() + delay_s
        self._ask(variant, calls, delay_s)
        return time.perf_counter() - start

    def _ask(self, variant: str, calls: int, delay_s: float) -> Timed:
        session = self._session
        limit_s = max(session.limits.open_s, session.call_limit_s)
        request = CallVariant(variant, calls, time.monotonic() + delay_s if delay_s else 0.0)
        if variant == "eager":
            return session.ask(request, Timed, deadline_s=limit_s, spin=bool(delay_s))
        session.device_lock.give_way()
        try:
            return session.send(request, Timed, deadline_s=limit_s, spin=bool(delay_s))
        except WorkerFailed as failure:
            raise BaselineFailed(variant, failure) from failure

    def round_trip_s(self, burst_s: float) -> float:
        """Return what asking and answering took of a burst: the median of requests for no call at all."""
        most_s = self._session.limits.timing.most_trip * burst_s
        return min(statistics.median(self.round_trips), most_s) if self.round_trips else 0.0

    def calls_for(self, call_s: float) -> int:
        """Return how many calls to time together where the device takes so long for one."""
        session, rule = self._session, self._session.limits.timing
        alone_s = max(call_s, floor_us(session.fp.features, session.device) * 1e-6)
        if not session.on_gpu or alone_s > rule.single_s:
            return 1
        room = rule.burst_bytes // (session.content_bytes + session.output_bytes)
        return max(1, min(rule.burst_calls, max(rule.few_calls, math.ceil(rule.burst_s / alone_s)), room))

    def expect(self) -> None:
        """Have limits that suit a slow problem while others may compute: eager's time is measured in a race's turn."""
        self._session.write(self._session.random_recipe())
        self._session.call_s = min(
            self.call("eager", delay_s=0.0) for _ in range(self._session.limits.timing.eager_calls)
        )

    def eager_estimate_s(self) -> float:
        """Return the best of the rule's `eager_calls`, measured once per session."""
        if not self.eager_s:
            with self._session.device_lock.alone():
                self._session.write(self._session.random_recipe())
                self.eager_s = [self.call("eager") for _ in range(self._session.limits.timing.eager_calls)]
            self._session.call_s = min(self.eager_s)
        return min(self.eager_s)

    def prepare_once(self) -> None:
        """Prepare them, if that has not been done."""
        if not self._prepared:
            self._prepared = True
            self.prepare_baselines()

    def prepare_baselines(self) -> None:
        """Prepare what candidates race beside eager; `compile_note` says why torch.compile is not among it.

        On a GPU others may compute and time while compilers run on the host's cores.
        """
        session, ahead = self._session, time.monotonic()
        if session.on_gpu:
            self._lay_out()
            with session.device_lock.away():
                try:
                    session.send(CompileAhead(), Done, deadline_s=session.limits.compile_s)
                except WorkerFailed as failure:  # which comes again, or is none of the compiler's
                    log.info("not compiled ahead: %s", failure.message[:300])
                    if not failure.alive:  # why it died is none of what comes next
                        session.restart(by_content=False)
        then = time.monotonic()
        self.compile_note = self._prepare_unless_left_out("compile")
        log.debug("torch.compile: %.1f s ahead, %.1f s to be ready", then - ahead, time.monotonic() - then)
        if session.on_gpu:
            self._prepare_unless_left_out("graph")
        if session.limits.max_autotune and not self.compile_note:
            self._prepare_unless_left_out("autotune")
        self._tell_if_alone()

    def leave_out(self, failed: BaselineFailed) -> None:
        """Prepare the others alone: this one failed in another session."""
        self._left_out[failed.variant] = failed.note

    def _prepare_unless_left_out(self, variant: str) -> str:
        return self._left_out.get(variant) or self._prepare(variant)

    def drop(self, failed: BaselineFailed) -> None:
        """Go on without a baseline that failed, in a new reference worker where it ended the old one."""
        self.variants.remove(failed.variant)
        if failed.variant == "compile":
            self.compile_note = failed.note
        self._tell_if_alone()
        if not failed.alive:
            self._session.restart(by_content=False)

    def _tell_if_alone(self) -> None:
        if not self.variants and not self.compile_note.endswith(ALONE):
            self.compile_note += ALONE

    def prepare_again(self) -> None:
        """Prepare in a new reference worker what had been prepared in the one before; what fails now is told."""
        had, self.variants = self.variants, []
        for variant in had:
            note = self._prepare(variant)
            if variant == "compile" and note:
                self.compile_note = note
        if had:
            self._tell_if_alone()

    def _prepare(self, variant: str) -> str:
        """Make a variant callable; returns "" or why it is not. A worker that dies of it is followed by a new one."""
        self._lay_out()
        try:
            self._session.send(PrepareVariant(variant), Done, deadline_s=self._session.limits.compile_s)
        except WorkerFailed as failure:
            self.out_of_memory |= variant == "compile" and failure.kind == "memory"
            if not failure.alive:
                self._session.restart(by_content=False)
            return _failed(variant, failure)
        self.variants.append(variant)
        return ""

    def _lay_out(self) -> None:
        """Lay out a draw of the problem's own: memory that nobody wrote to holds places that are none."""
        self._session.write(plain(0, len(self._session.specs)))


def _failed(variant: str, failure: WorkerFailed) -> str:
    how = "died" if failure.kind == "crashed" else "failed"
    return f"{VARIANTS[variant]} {how}: {failure.message}"[:300]
