"""A candidate's worker as the judge talks to it: it loads the candidate and answers requests of any kind.

Comes in: a problem's session, a candidate and what was built of it. Goes out: replies, each to the request that was
sent; whatever goes wrong in the worker ends the trial as a verdict (`Stopped`). Knows nothing of buffers and contents.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar

from rag_kernels.eval import codec
from rag_kernels.eval.build.products import Library
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.messages.protocol import numbered, reply_to
from rag_kernels.eval.messages.to_both import Done
from rag_kernels.eval.messages.to_candidate import (
    CandidateCode,
    CandidateReply,
    CandidateRequest,
    EndProcess,
    Instead,
    Mute,
    OpenCandidate,
    StateLeft,
    TellState,
    UseThreads,
)
from rag_kernels.eval.process.workers import Worker, WorkerFailed
from rag_kernels.eval.records import Candidate, MachineError, Rejected
from rag_kernels.eval.sessions.candidate_failure import Stopped, failure_verdict, room_is_ours
from rag_kernels.eval.sessions.problem_session import ProblemSession

T = TypeVar("T", bound=CandidateReply)
END_S = 5.0  # of a process; who takes longer is not looked at
BUSY_LIMIT_S = 0.2  # after which a thread that wants a core is waited for no longer


class CandidateWorker:
    """One candidate in one worker; a context manager. `session` is the problem it is for."""

    def __init__(self, session: ProblemSession, candidate: Candidate, library: Library | None) -> None:
        self.session, self.candidate, self.limits = session, candidate, session.limits
        self.is_module = candidate.tier == "module"
        self._requests = 0
        self.loaded_bytes = 0  # that its process has more for having loaded it
        role = "rag_kernels.eval.children.candidate.worker:serve"
        if session.on_gpu:
            role += "_cuda_module" if self.is_module else "_cuda"
        memory = None if session.on_gpu else session.memory_bytes
        limited, workers = not (session.on_gpu or self.is_module), session.candidate_workers
        self.worker: Worker = workers.spawn(
            role, memory_bytes=memory, limit_address_space=limited, may_fork=self.is_module
        )
        if session.on_gpu:  # the next candidate's GPU context is made while this one is checked
            workers.spare(role, memory_bytes=memory, limit_address_space=limited, may_fork=self.is_module)
        try:
            code = CandidateCode(
                candidate.tier,
                candidate.source,
                library=str(library.path) if library else "",
                cubin=str(library.cubin or "") if library else "",
            )
            tf32 = session.baseline_precision == "tf32"
            message = OpenCandidate(session.device.backend, threads(), code, tf32)
            if session.on_gpu and not self.is_module:  # modules are loaded in threads, and turns belong to one
                with session.device_lock.away():
                    self._wait_until_ready()
            before = self.worker.resident()
            self._send_or_stop(message, Done, stage="load", deadline_s=self._load_limit_s, fds=())
            after = self.worker.resident()
            if before is not None and after is not None:
                self.loaded_bytes = max(0, after.own - before.own)
        except Stopped:
            self.close()
            raise

    def _wait_until_ready(self) -> None:
        """Wait for the GPU's context, which its worker makes before it hears of a candidate."""
        try:
            self.worker.wait_until_ready(deadline_s=self.limits.open_s)
        except WorkerFailed as failure:
            raise Stopped(failure_verdict(failure, "load", self.limits.open_s), alive=failure.alive) from failure

    @property
    def _load_limit_s(self) -> float:
        return self.limits.module_load_s if self.is_module else self.limits.load_s

    def ask(
        self,
        request: CandidateRequest,
        kind: type[T],
        *,
        stage: str = "call",
        deadline_s: float | None = None,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        """Send one request and return its reply; whatever goes wrong with it ends the trial (raises Stopped)."""
        self.session.device_lock.give_way()
        deadline_s = deadline_s or self.limits.open_s
        return self._send_or_stop(request, kind, stage=stage, deadline_s=deadline_s, fds=fds, spin=spin)

    def _send_or_stop(
        self,
        request: OpenCandidate | CandidateRequest,
        kind: type[T],
        *,
        stage: str,
        deadline_s: float,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        try:
            return self.send(request, kind, deadline_s=deadline_s, fds=fds, spin=spin)
        except WorkerFailed as failure:
            if room_is_ours(failure, stage, self.candidate.tier):
                raise self.no_room() from failure
            raise Stopped(failure_verdict(failure, stage, deadline_s), alive=failure.alive) from failure

    def send(
        self,
        request: OpenCandidate | CandidateRequest,
        kind: type[T],
        *,
        deadline_s: float,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        """Send one numbered request and return its reply, which has this number and is of this kind, or is not our
        worker's.

        Raises WorkerFailed, and Stopped (`forged_answer`) for another reply.
        """
        number, self._requests = self._requests, self._requests + 1
        reply = self.worker.request(numbered(request, number), deadline_s=deadline_s, fds=fds, spin=spin)
        try:
            return reply_to(number, kind, reply)
        except codec.Malformed:
            why = "The candidate's process gave an answer that was not asked for: something else writes to its channel."
            raise Stopped(Rejected("forged_answer", why)) from None

    def no_room(self) -> MachineError:
        return MachineError(
            f"The GPU has too little free memory to judge {self.session.fp.problem.name}: "
            "stop other programs on it, or make the problem smaller."
        )

    def stand(self) -> None:
        """Stop its processes until it is asked for something; work on a GPU goes on."""
        if not self.worker.freeze():
            raise Stopped(Rejected("background_work", "A thread of the candidate's process could not be stopped."))

    def mute(self, instead: Instead) -> None:
        """Let the kernels of a composed source do something else from now on, or work again."""
        self.ask(Mute(instead), Done)

    def use_threads(self, count: int, *, levels: int = 1) -> None:
        self.ask(UseThreads(count, levels), Done)

    def state(self) -> StateLeft:
        """Return what calls have left behind in the process, but for memory."""
        return self.ask(TellState(), StateLeft)

    def end(self) -> str:
        """Let its process end as a program's does; return what goes wrong then, or nothing. It is gone afterwards."""
        code = self.session.rng.randrange(3, 120)
        try:
            self.send(EndProcess(code), Done, deadline_s=END_S)
        except WorkerFailed as failure:
            ended = failure.code == code or failure.kind == "timed_out"  # a machine at work is no fault
            return "" if ended else failure.message
        return "it answered where it was to end"

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the worker meanwhile, and until it is asked for something; work on a GPU goes on."""
        self.stand()
        yield

    def used_s(self) -> float:
        """Return CPU seconds that the worker's processes have used so far."""
        return self.worker.cpu_s()

    def busy_s(self, seconds: float) -> float:
        """Let the worker run without asking it for anything, and return the CPU seconds that its processes use
        meanwhile; longer where a thread still wants a core, which it may not get on a machine at work.
        """
        before = self.used_s()
        self.worker.thaw()
        time.sleep(seconds)
        end = time.monotonic() + BUSY_LIMIT_S
        while self.worker.runs and time.monotonic() < end:
            time.sleep(seconds)
        return self.used_s() - before

    def close(self) -> None:
        self.worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
