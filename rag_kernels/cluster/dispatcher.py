"""Assign candidates to judges, and handle the loss of a judge.

Comes in: jobs from any thread, and a pool that starts judges. Goes out: a verdict for each job, in its future. All
decisions are made in one thread, on events. Knows nothing of Ray, archives or searches.

A judge keeps the problem that it has open as long as there is work on it, and judges without work take over what waits
elsewhere: not what came just now, since work on other problems may follow, nor the last that its judge will be at soon.
A lost judge is replaced, and its job goes to another one. What that costs:

- the host is gone: the job starts again, as often as that happens;
- the process died on a living host: the same, but a candidate under which three judges died has crashed;
- the judge says that something is wrong: another one is asked. If two of them say that it is the problem, or three say
  anything, it is raised, as a local judge would have done;
- a GPU or a set of cores that failed five times in a row is given no more work.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from rag_kernels.cluster.records import FailedTry, Job, JudgePool, JudgeSlot, LostError
from rag_kernels.cluster.remote_judge import VERSION, About, Fault
from rag_kernels.eval.records import Candidate, Crashed, FunctionalProblem, Judged, MachineError

log = logging.getLogger(__name__)

TICK_S, SOON_S = 1.0, 0.1
AHEAD = 4  # candidates that a judge builds ahead
PATIENCE_S = 60.0  # after which age counts more than what a judge has open


@dataclass(frozen=True, slots=True)
class Rules:
    """Bound how often something is tried, and how many seconds it is waited for."""

    job_tries: int = 3
    problem_tries: int = 2
    unit_tries: int = 5
    open_tries: int = 3  # judges in a row that could not be opened while none is open
    backoff_s: float = 2.0  # after the first of them; twice as long after each other
    absent_s: float = 900.0  # so long a cluster may be without any judge
    just_now_s: float = 0.3  # in which a search hands in its candidates of several problems
    last_s: float = 5.0  # that the last one of a problem is left to the judge that has it open, and is at another one
    verdict_s: float = 3600.0  # beyond all limits of a judge: it hangs


class Dispatcher:
    """Start judges at once and give them jobs; `ready` is done when the first judge is open. Close it when done."""

    def __init__(self, pool: JudgePool, *, build_ahead: bool, rules: Rules | None = None) -> None:
        self._pool, self._build_ahead, self._rules = pool, build_ahead, rules or Rules()
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._slots: list[JudgeSlot] = []
        self._queue: list[Job] = []
        self._numbers = itertools.count()
        self._failed: Counter[str] = Counter()  # by unit, in a row
        self._misses: list[str] = []  # why judges did not open, in a row
        self._start_at = 0.0  # not before
        self._last_open = time.monotonic()  # when a judge was there
        self._closed = False
        self._broken: Exception | None = None
        self.about: About | None = None  # of the first judge; the others are of the same device
        self.ready: Future[About] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dispatch")
        self._thread.start()

    def submit(self, problem: FunctionalProblem, candidate: Candidate, *, confirm: bool = False) -> Job:
        """Queue a job, from any thread. Cancelling its `answer` takes the job back, unless it has begun."""
        job = Job(problem, candidate, confirm, next(self._numbers))
        self._events.put(partial(self._add, job))
        return job

    @property
    def judges(self) -> int:
        """Return how many judges are open now."""
        return sum(slot.works for slot in list(self._slots))

    def close(self) -> None:
        """End all judges; jobs that are left fail."""
        self._events.put(partial(setattr, self, "_closed", True))
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            try:
                with suppress(Empty):
                    self._events.get(timeout=SOON_S if self._queue else TICK_S)()
                    while True:  # all that has come, before anything is handed out
                        self._events.get_nowait()()
                self._start_judges()
                self._look_after()
                self._hand_out()
            except Exception as error:
                self._give_up(error)
        self._give_up(RuntimeError("The judges were closed."))
        with ThreadPoolExecutor(max_workers=len(self._slots) or 1) as closing:
            for slot in self._slots:
                closing.submit(slot.handle.close)
        self._slots.clear()

    def _add(self, job: Job) -> None:
        if self._broken is not None:
            _fail(job, self._broken)
        else:
            self._queue.append(job)

    # Judges

    def _start_judges(self) -> None:
        if self._broken is not None or time.monotonic() < self._start_at:
            return
        while len(self._slots) < max(1, self._pool.wanted()):
            slot = JudgeSlot(self._pool.start())
            self._slots.append(slot)
            self._when(slot.handle.open(), partial(self._opened, slot))

    def _when(self, done: Future[Any], act: Callable[[Future[Any]], None]) -> None:
        """Act on a future's end in the dispatcher's thread; futures end in threads of Ray."""
        done.add_done_callback(lambda future: self._events.put(partial(act, future)))

    def _opened(self, slot: JudgeSlot, opened: Future[About | Fault]) -> None:
        try:
            about = opened.result()
        except LostError as lost:
            return self._missed(slot, str(lost))
        if isinstance(about, Fault):
            return self._missed(slot, about.text)
        slot.about, self._last_open = about, time.monotonic()
        self._misses.clear()
        if about.version != VERSION:
            self._retire(slot, f"it has rag-kernels {about.version}, and this host {VERSION}: install the same")
        elif self.about is not None and about.device.key != self.about.device.key:
            theirs, ours = (f"{d.name} ({d.machine or d.arch})" for d in (about.device, self.about.device))
            self._retire(slot, f"it has {theirs}, and times there do not compare with those on {ours}")
        elif self._failed[about.where] >= self._rules.unit_tries:
            self._retire(slot, f"it failed {self._rules.unit_tries} times in a row")
        elif self.about is None:
            self.about = about
            self.ready.set_result(about)
        if slot.works:
            log.info("A judge is open on %s.", about.where)

    def _retire(self, slot: JudgeSlot, why: str) -> None:
        assert slot.about is not None
        slot.retired = True
        log.warning("The judge on %s gets no work: %s.", slot.about.where, why)
        if all(s.retired for s in self._slots) and len(self._slots) >= self._pool.wanted():
            self._give_up(MachineError(f"No judge is left: that on {slot.about.where} gets no work, since {why}."))

    def _missed(self, slot: JudgeSlot, why: str) -> None:
        self._drop(slot)
        self._misses.append(why)
        self._start_at = time.monotonic() + self._rules.backoff_s * 2 ** (len(self._misses) - 1)
        if len(self._misses) >= self._rules.open_tries and not any(s.works for s in self._slots):
            self._give_up(MachineError(f"No judge could be opened on the cluster: {why}"))

    def _drop(self, slot: JudgeSlot) -> None:
        slot.handle.end()
        if slot in self._slots:
            self._slots.remove(slot)
        for job in self._queue:
            job.built_by = None if job.built_by is slot else job.built_by

    def _look_after(self) -> None:
        """End judges that hang, and do not wait for ever for a cluster that has gone."""
        now = time.monotonic()
        for slot in [s for s in self._slots if s.job is not None and now - s.since > self._rules.verdict_s]:
            slot.handle.end()  # its answer is a LostError now
            slot.since = now
        if any(slot.works for slot in self._slots):
            self._last_open = now
        elif now - self._last_open > self._rules.absent_s and self._broken is None:
            minutes = round(self._rules.absent_s / 60)
            self._give_up(
                MachineError(f"The cluster has had no place for a judge for {minutes} minutes: see `ray status`.")
            )

    def _give_up(self, error: Exception) -> None:
        self._broken = self._broken or error
        if not self.ready.done():
            self.ready.set_exception(self._broken)
        for job in [*self._queue, *(s.job for s in self._slots if s.job)]:
            _fail(job, self._broken)
        self._queue.clear()

    # Jobs

    def _hand_out(self) -> None:
        self._queue = [job for job in self._queue if not job.answer.cancelled()]
        for slot in [s for s in self._slots if s.works and s.job is None]:
            fit = [job for job in self._queue if self._may(slot, job) and not self._is_anothers(slot, job)]
            if fit:
                job = min(fit, key=partial(self._reluctance, slot))
                self._queue.remove(job)
                slot.job, slot.since, slot.problem = job, time.monotonic(), job.problem.problem.id
                self._when(
                    slot.handle.judge(job.problem, job.candidate, job.confirm), partial(self._finished, slot, job)
                )
        if self._build_ahead:
            self._build()

    def _build(self) -> None:
        """Let compilers work on the next jobs, where they are likely to be judged."""
        load = Counter(job.built_by for job in self._queue if job.built_by is not None)
        for slot in [s for s in self._slots if s.works]:
            left = [job for job in self._queue if job.built_by is None and not job.confirm and self._may(slot, job)]
            for job in sorted(left, key=partial(self._reluctance, slot))[: AHEAD - load[slot]]:
                job.built_by = slot
                slot.handle.build(job.candidate)

    def _may(self, slot: JudgeSlot, job: Job) -> bool:
        """Return whether a judge may have a job: it goes back to where it failed only if there is no other place."""
        assert slot.about is not None
        tried = {one.unit for one in job.tries}
        return slot.about.where not in tried or all(s.about.where in tried for s in self._slots if s.works and s.about)

    def _is_anothers(self, slot: JudgeSlot, job: Job) -> bool:
        """Return whether a job is left to a judge that has its problem open: to open it here takes seconds."""
        problem, now = job.problem.problem.id, time.monotonic()
        there = [s for s in self._slots if s.works and s.problem == problem]
        if job.confirm or job.tries or slot in there or not there:
            return False
        last = sum(other.problem.problem.id == problem for other in self._queue) == 1
        soon = any(s.job and now - s.since < self._rules.last_s for s in there)
        return now - job.asked_at < self._rules.just_now_s or (last and soon)

    def _reluctance(self, slot: JudgeSlot, job: Job) -> tuple[int, int, bool, int]:
        """Return a sort key, least first: what waits for minutes, what is open here, what is open nowhere, the rest."""
        problem = job.problem.problem.id
        elsewhere = any(s.problem == problem for s in self._slots if s is not slot)
        place = 0 if slot.problem == problem else 2 if elsewhere else 1
        waited = int((time.monotonic() - job.asked_at) / PATIENCE_S)
        return -waited, place, job.built_by is not slot, job.number

    def _finished(self, slot: JudgeSlot, job: Job, said: Future[Judged | Fault]) -> None:
        assert slot.about is not None
        slot.job = None
        try:
            answer: Judged | Fault | LostError = said.result()
        except LostError as lost:
            answer = lost
        unit = slot.about.where
        if isinstance(answer, Judged):
            self._failed[unit] = 0
            self._blame(job)
            _answer(job, answer)
            return
        slot.problem = ""
        if isinstance(answer, LostError):
            log.warning("The judge on %s is lost (%s): its candidate goes to another.", unit, answer)
            self._drop(slot)
        elif answer.kind != "problem":
            log.warning("The judge on %s failed (%s): it is started anew.", unit, answer.text)
            self._drop(slot)
        if isinstance(answer, Fault) or not answer.host_too:
            job.tries.append(FailedTry(unit, answer))
            self._failed[unit] += answer.kind != "problem" if isinstance(answer, Fault) else 1
        self._once_more(job, slot.about)

    def _blame(self, job: Job) -> None:
        """Count what looked like the problem's fault against the units that said so, and start their judges anew."""
        for unit in [one.unit for one in job.tries if isinstance(one.why, Fault) and one.why.kind == "problem"]:
            self._failed[unit] += 1
            for slot in [s for s in self._slots if s.about and s.about.where == unit and s.job is None]:
                self._drop(slot)

    def _once_more(self, job: Job, about: About) -> None:
        losses, faults = job.losses, job.faults
        of_problem = [fault for fault in faults if fault.kind == "problem"]
        if len(losses) >= self._rules.job_tries:
            for one in job.tries:
                self._failed[one.unit] = 0  # it was the candidate
            why = f"Each of {self._rules.job_tries} judges that ran it died with it, on hosts that live."
            _answer(job, Judged(Crashed(why, "\n".join(losses)), about.device, about.environment))
        elif len(of_problem) >= self._rules.problem_tries:
            _fail(job, of_problem[-1].raised())
        elif len(job.tries) >= self._rules.job_tries:
            _fail(job, faults[-1].raised())
        else:
            job.built_by = None
            self._queue.insert(0, job)


def _answer(job: Job, judged: Judged) -> None:
    with suppress(InvalidStateError):  # nobody waits for it any more
        job.answer.set_result(judged)


def _fail(job: Job, error: Exception) -> None:
    with suppress(InvalidStateError):
        job.answer.set_exception(error)
