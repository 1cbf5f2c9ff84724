"""Work for one judge, one piece after the other, while whoever asked may look how it stands, or call it off.

Comes in: functions of a `Session`. Goes out: a `Job` for each. One thread opens the session with the first job, runs
all of them and closes it: nothing else runs here while a kernel is timed. Knows nothing of protocols.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from rag_kernels.agents.records import JobReport, JudgedKernel, State
from rag_kernels.eval.errors import Internal, RagKernelsError
from rag_kernels.run.session import Session

log = logging.getLogger(__name__)

KEPT = 200  # jobs that are remembered after their end

Work = Callable[[Session], Generator[JudgedKernel, None, str]]


class Job:
    """Hold one piece of work and what came of it so far. `work` yields results, and returns a closing sentence."""

    def __init__(self, what: str, work: Work) -> None:
        self.id = f"j_{secrets.token_hex(4)}"
        self.what, self.work = what, work
        self.state: State = "queued"
        self.message = ""
        self.results: list[JudgedKernel] = []
        self.ended = threading.Event()
        self.called_off = False
        self._began = time.monotonic()
        self._took_s = 0.0

    def report(self) -> JobReport:
        """Return how it stands now."""
        seconds = self._took_s if self.ended.is_set() else time.monotonic() - self._began
        return JobReport(self.id, self.state, self.what, round(seconds, 1), list(self.results), self.message)

    def end(self, state: State, message: str) -> None:
        """Close the job, with a sentence for whoever asked."""
        self._took_s = time.monotonic() - self._began
        self.state, self.message = state, message
        self.ended.set()


class Jobs:
    """Run jobs in the order in which they came. Thread-safe. `open_session` is entered by the first job."""

    def __init__(self, open_session: Callable[[], AbstractContextManager[Session]]) -> None:
        self._open = open_session
        self._waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._known: dict[str, Job] = {}
        self._thread = threading.Thread(target=self._run, daemon=True, name="judging")
        self._thread.start()

    def add(self, what: str, work: Work) -> Job:
        """Queue a piece of work."""
        job = Job(what, work)
        self._known[job.id] = job
        for old in [name for name, one in self._known.items() if one.ended.is_set()][:-KEPT]:
            del self._known[old]
        self._waiting.put(job)
        return job

    def find(self, job_id: str) -> Job | None:
        return self._known.get(job_id)

    def cancel(self, job: Job) -> None:
        """Call a job off: one that waits ends at once, one that runs with the verdict that is under way."""
        job.called_off = True

    def close(self, wait_s: float = 30.0) -> None:
        """End with the verdict that is under way, and close the session."""
        for job in list(self._known.values()):
            self.cancel(job)
        self._waiting.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        with ExitStack() as stack:
            session: Session | None = None
            while (job := self._waiting.get()) is not None:
                if job.called_off:
                    job.end("cancelled", "It was called off before it began.")
                    continue
                job.state = "running"
                try:
                    session = session or stack.enter_context(self._open())
                    _do(job, session)
                except Exception as error:  # whatever it is, the next job has a right to be tried
                    expected = isinstance(error, RagKernelsError | OSError) and not isinstance(error, Internal)
                    if not expected:
                        log.exception("A job failed.")
                    job.end("failed", str(error) if expected else f"A fault of rag-kernels: {_named(error)}")


def _do(job: Job, session: Session) -> None:
    work = job.work(session)
    try:
        while not job.called_off:
            job.results.append(next(work))
        work.close()
        job.end("cancelled", "It was called off; what was judged by then stands.")
    except StopIteration as end:
        job.end("done", end.value or "")


def _named(error: Any) -> str:
    return f"{type(error).__name__}: {error}"
