"""What torch.compile builds once on a machine (a header, probes of the CPU's vectors), built while nothing is timed.

Comes in: the reference's workers, and the cache that they compile into. Goes out: nothing but what is in the cache
then. Knows nothing of problems.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rag_kernels.eval import codec
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.process.workers import Worker, WorkerFailed, Workers

log = logging.getLogger(__name__)
MOST_S = 120.0
NOTE = "inductor/warm"  # in the cache, when it has been done
TARGET = "rag_kernels.eval.children.reference.compile_problem:compile_something"


class CompilerWarmUp:
    """Begun when it is made, in a child process; `wait` for it before anything is timed."""

    def __init__(self, workers: Workers, cache: Path) -> None:
        self._workers, self._note = workers, cache / NOTE
        self._worker: Worker | None = None
        self._closed = False
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._done = self._pool.submit(self._run)

    def _run(self) -> None:
        if self._note.is_file():
            return
        try:
            with self._workers.spawn("rag_kernels.eval.process.warm_parent:one_shot") as self._worker:
                if self._closed:
                    return
                request = {"target": TARGET, "payload": codec.encode({"threads": threads()})}
                self._worker.request(request, deadline_s=MOST_S)
            self._note.parent.mkdir(parents=True, exist_ok=True)
            self._note.touch()
        except WorkerFailed as failure:  # a baseline that fails for the same reason says so
            log.info("torch.compile could not get ready ahead: %s", failure.message[:300])

    def wait(self) -> None:
        """Wait until it is done."""
        self._done.result()

    def close(self) -> None:
        """End it, if it goes on."""
        self._closed = True
        if not self._done.done() and self._worker is not None:
            with suppress(OSError):
                self._worker.kill()
        self._pool.shutdown()
