"""Record what a composed forward calls its kernels with, for sanitizers, which run programs around the kernels.

Comes in: what opens a worker that has loaded the candidate, and sessions one after another. Goes out: bytes of calls.
"""

from __future__ import annotations

from collections.abc import Callable

from rag_kernels.eval.records import Rejected
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_session import ProblemSession


class Recorder:
    """A worker that serves all sizes until it fails, when another one is opened; a context manager that closes it."""

    def __init__(self, open_worker: Callable[[], LoadedCandidate]) -> None:
        self._open = open_worker
        self._worker: LoadedCandidate | None = None

    def calls(self, session: ProblemSession) -> tuple[bytes, str]:
        """Return the calls of one forward, and why there are none; a rejection ends the trial."""
        try:
            self._worker = self._worker or self._open()
            place = self._worker.bind(session)
            self._worker.prepare(place, session.random_recipe())
            calls, left_out = self._worker.recorded(place)
        except Stopped as stopped:
            self.close()
            if isinstance(stopped.verdict, Rejected):
                raise
            calls, left_out = b"", getattr(stopped.verdict, "reason", "")
        return calls, "" if calls else left_out or "its forward called none of its kernels"

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
