"""A judge in a process of its own on some host of a cluster.

Comes in: problems and candidates. Goes out: an `About` once it is open, then a verdict for each candidate, or a `Fault`
where it could give none. It opens a `LocalJudge` on the GPU that it was given, or on its share of the cores, with that
host's cache and sandbox; it writes no archive. Knows nothing of Ray.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from rag_kernels.eval.judge import JUDGE_VERSION, LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import units
from rag_kernels.eval.machine.hardware import hardware
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.records import (
    Backend,
    Candidate,
    Device,
    Environment,
    FunctionalProblem,
    Judged,
    MachineError,
    ProblemError,
)
from rag_kernels.ingest.functional.functionalize import room_bytes
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.version import __version__

log = logging.getLogger(__name__)

VERSION = f"{__version__} (judge {JUDGE_VERSION})"


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """Describe every judge of a run. `cpus` is how many cores one of them has for itself."""

    backend: Backend
    limits: Limits
    cpus: int
    cache: str = ""  # a folder of each host; empty: its default place


@dataclass(frozen=True, slots=True)
class About:
    """Describe an open judge. `unit` is its GPU or its cores, `facts` are of its device."""

    host: str
    unit: str
    version: str
    device: Device
    environment: Environment
    can_run: bool
    facts: tuple[str, ...]
    room_bytes: int

    @property
    def where(self) -> str:
        return f"{self.host} ({self.unit})"


@dataclass(frozen=True, slots=True)
class Fault:
    """Say why a judge gave no verdict: the problem, what its machine lacks, or anything else."""

    kind: Literal["problem", "machine", "other"]
    text: str

    def raised(self) -> Exception:
        """Return the exception that a local judge would have raised."""
        kinds: dict[str, type[Exception]] = {"problem": ProblemError, "machine": MachineError, "other": RuntimeError}
        return kinds[self.kind](self.text)


class RemoteJudge:
    """Judge for another host. Open it first. One judgement at a time; builds may run beside it, from other threads."""

    def __init__(self, wanted: JudgeSpec) -> None:
        self._wanted = wanted
        self._cache = Path(wanted.cache) if wanted.cache else default_cache()
        self._judge: LocalJudge | None = None
        self._cores = os.sched_getaffinity(0)
        self._share: IO[str] | None = None
        self._building: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def open(self) -> About | Fault:
        """Take a share of the cores and start the judge's processes."""
        wanted = self._wanted
        try:
            self._take_share()
            os.sched_setaffinity(0, self._cores)
            judge = self._judge = open_judge(
                wanted.backend, limits=wanted.limits, cache_dir=self._cache, at_other_sizes=at_other_sizes
            )
            return About(
                host=platform.node(),
                unit=units("cuda")[0] if wanted.backend == "cuda" else self._named_cores(),
                version=VERSION,
                device=judge.device,
                environment=judge.environment,
                can_run=judge.can_run,
                facts=hardware(judge.device, judge.workers, judge.cache),
                room_bytes=room_bytes(wanted.backend),
            )
        except Exception as error:
            return _fault(error)

    def _take_share(self) -> None:
        """Lock and return the first share of this host's cores that no other judge holds."""
        cores, size = sorted(self._cores), self._wanted.cpus
        folder = self._cache / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(len(cores) // size):
            share = (folder / f"{platform.node()}-share{number}-of{size}.lock").open("w")
            with suppress(BlockingIOError):
                fcntl.flock(share, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._cores, self._share = set(cores[number * size : (number + 1) * size]), share
                return
            share.close()

    def _named_cores(self) -> str:
        cores = sorted(self._cores)
        return f"core {cores[0]}" if len(cores) == 1 else f"cores {cores[0]} to {cores[-1]}"

    def build(self, candidate: Candidate) -> None:
        """Build a candidate that may be judged soon; a judgement that comes meanwhile waits for it."""
        done: Future[None] = Future()
        with self._lock:
            if self._judge is None or candidate.id in self._building:
                return
            self._building[candidate.id] = done
        try:
            os.sched_setaffinity(0, self._cores)
            self._judge.build_ahead(candidate)
        except Exception as error:  # it shows again when the candidate is judged
            log.warning("%s was not built ahead: %s", candidate.id, error)
        finally:
            done.set_result(None)

    def judge(self, problem: FunctionalProblem, candidate: Candidate, confirm: bool) -> Judged | Fault:
        """Return a verdict, or a Fault for whatever goes wrong on our side, so that another judge can be asked."""
        os.sched_setaffinity(0, self._cores)
        try:
            assert self._judge is not None, "the judge has not been opened"
            with self._lock:
                ahead = self._building.pop(candidate.id, None)
            if ahead is not None:
                ahead.result()
            if confirm:
                return self._judge.confirm(problem, candidate)
            [(_, judged)] = self._judge.judge(problem, [candidate])
            return judged
        except Exception as error:
            return _fault(error)

    def here(self) -> None:
        """Return at once: an answer says that this process lives and can be reached."""

    def close(self) -> None:
        """End the judge's processes; without it they end when this process does."""
        if self._judge is not None:
            self._judge.close()


def _fault(error: Exception) -> Fault:
    if isinstance(error, ProblemError):
        return Fault("problem", str(error))
    if isinstance(error, MachineError):
        return Fault("machine", str(error))
    log.warning("A judge failed.", exc_info=error)
    return Fault("other", f"{type(error).__name__}: {error}")
