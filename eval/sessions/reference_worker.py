"""A problem's reference worker as the judge talks to it: it holds the module, and works out what is right.

Comes in: a FunctionalProblem. Goes out: replies; where the worker fails the problem is at fault, not a candidate
(`ProblemError`). The memory that both sides see is laid out here; what stands in it is `ProblemContents`'s to say.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.shared_arena import Arena, tensor_bytes
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.machine.device_lock import DeviceLock
from rag_kernels.eval.messages.to_reference import EmptyExchange, Exchanged, Opened, OpenReference, ReferenceRequest
from rag_kernels.eval.process.workers import Worker, WorkerFailed, Workers
from rag_kernels.eval.records import Device, FunctionalProblem, MachineError, ProblemError

T = TypeVar("T")
OPERAND_ROUNDOFF = {"strict": 0.0, "tf32": 2.0**-11, "any": 2.0**-8}  # of fp32 products, by the precision allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a session works with. `idle`: workers that others are done with; `keep` is told of better ceilings."""

    workers: Workers
    candidate_workers: Workers
    device: Device
    limits: Limits
    device_lock: DeviceLock = field(default_factory=lambda: DeviceLock((), Path()))  # everything is one's own
    idle: list[Worker] | None = None
    keep: Callable[[Device], Device] = lambda device: device


class ReferenceWorker:
    """Open with a problem, close when done; a context manager. `rng` is seeded from the operating system."""

    def __init__(self, fp: FunctionalProblem, resources: Resources) -> None:
        if fp.uses_random:
            raise ProblemError(
                f"{fp.problem.name} draws random numbers in its forward (dropout in train mode?), so no kernel can be "
                "compared with it; set p=0 or leave the random operator out."
            )
        self.fp, self.device, self.limits = fp, resources.device, resources.limits
        self.workers, self.candidate_workers = resources.workers, resources.candidate_workers
        self._idle, self.rests = resources.idle, False  # see `rest`
        self.device_lock = resources.device_lock
        self.rng = random.SystemRandom()
        self.specs = [a.spec for a in fp.tensors]
        self.content = Arena(self.specs, readers_only="read-only inputs" not in self.limits.without)
        self.submitted = Arena(fp.outputs, readers_only=True)
        self._shared: tuple[int, int] | None = None  # see `share`
        self.content_bytes = sum(tensor_bytes(s) for s in self.specs)
        self.output_bytes = sum(tensor_bytes(s) for s in fp.outputs)
        self.core = self.rng.choice(sorted(os.sched_getaffinity(0)))  # from which work is sent to a GPU, on either side
        self.call_s = 0.0  # of an eager call, once one has been timed
        self.worker = self.open_worker()

    @property
    def on_gpu(self) -> bool:
        return self.device.backend == "cuda"

    @property
    def memory_bytes(self) -> int:
        return self.limits.memory_bytes + 4 * (self.content_bytes + 4 * self.output_bytes)

    @property
    def call_limit_s(self) -> float:
        return max(self.limits.call_s, 30 * self.call_s)

    @property
    def baseline_precision(self) -> str:
        """Of fp32 products of eager and compile: TF32 where a lower precision is allowed, on a GPU alone."""
        return "tf32" if self.on_gpu and self.limits.precision != "strict" else "strict"

    def open_worker(self) -> Worker:
        message = OpenReference(
            problem=self.fp,
            device=self.device.backend,
            threads=threads(),
            content=self.content.describe(),
            outputs=self.submitted.describe(),
            tf32=self.baseline_precision == "tf32",
            operands=OPERAND_ROUNDOFF[self.limits.precision],
            seed=self.rng.getrandbits(40),
        )
        fds = [self.content.fd, self.submitted.fd]
        worker = self._idle_worker() or self._new_worker()
        try:
            self.opened, _ = _exchange(worker, message, Opened, deadline_s=self.limits.open_s, fds=fds)
        except WorkerFailed as failure:
            worker.close()
            raise self.problem_error("could not be set up", failure) from failure
        return worker

    def _idle_worker(self) -> Worker | None:
        """Take a worker that others are done with, if one may have as much memory as this problem may take."""
        idle, most = self._idle or [], self._most_bytes or 0
        at = next((i for i, one in enumerate(idle) if one.memory_bytes is None or one.memory_bytes >= most), None)
        return None if at is None else idle.pop(at)

    @property
    def _most_bytes(self) -> int | None:
        """What a worker may take: a power of two, which is enough for other sizes, too."""
        return None if self.on_gpu else 1 << (3 * self.memory_bytes).bit_length()

    def _new_worker(self) -> Worker:
        role = "rag_kernels.eval.children.reference.worker:serve" + "_cuda" * self.on_gpu
        worker = self.workers.spawn(role, memory_bytes=self._most_bytes, limit_address_space=False)
        if self.on_gpu:  # the next session, of another size perhaps, finds a GPU's context made
            self.workers.spare(role, limit_address_space=False)
            try:  # a context takes seconds where many are made, and no turn
                with self.device_lock.away():
                    worker.wait_until_ready(deadline_s=self.limits.open_s)
            except WorkerFailed as failure:
                worker.close()
                raise self.problem_error("could not be set up", failure) from failure
        return worker

    def rest(self) -> None:
        """Let another session have the worker, since a new one takes time, on a GPU seconds: nothing more is asked."""
        if self._idle is not None and not self.rests:
            self.rests = True
            self._idle.append(self.worker)

    def problem_error(self, what: str, failure: WorkerFailed) -> ProblemError:
        return ProblemError(f"The problem {self.fp.problem.name} {what}: {failure.message}.")

    def ask(
        self,
        request: ReferenceRequest,
        kind: type[T],
        *,
        deadline_s: float | None = None,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        """Send one request to the reference worker and return its reply.

        Raises ProblemError where it fails: that is the problem's fault, not a candidate's.
        """
        self.device_lock.give_way()
        try:
            return self.send(request, kind, deadline_s=deadline_s or self.limits.open_s, fds=fds, spin=spin)
        except WorkerFailed as failure:
            raise self.problem_error(f"failed in `{type(request).__name__}`", failure) from failure

    def send(
        self,
        request: ReferenceRequest,
        kind: type[T],
        *,
        deadline_s: float,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        """Send one request and return its reply; raises WorkerFailed, which is the caller's to judge."""
        reply, unasked = _exchange(self.worker, request, kind, deadline_s=deadline_s, fds=fds, spin=spin)
        for fd in unasked:
            os.close(fd)
        return reply

    def share(self) -> tuple[int, int]:
        """Empty the memory through which a new candidate gets draws and hands its outputs over, and return its
        descriptor and bytes (GPU only). Raises MachineError where this GPU's memory cannot be shared.
        """
        self.device_lock.give_way()
        try:
            reply, made = _exchange(self.worker, EmptyExchange(), Exchanged, deadline_s=self.limits.open_s)
        except WorkerFailed as failure:
            if failure.kind == "not_shared":
                raise MachineError(f"{failure.message}. Ask `rag-kernels doctor` what to do.") from failure
            raise self.problem_error("failed in `EmptyExchange`", failure) from failure
        if self._shared is None:
            self._shared = made[0], reply.size_bytes
        return self._shared

    def unshare(self) -> None:
        if self._shared is not None:
            os.close(self._shared[0])
            self._shared = None

    def close(self) -> None:
        if not self.rests:
            self.worker.close()
        self.unshare()
        for arena in (self.content, self.submitted):
            arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _exchange(
    worker: Worker,
    request: OpenReference | ReferenceRequest,
    kind: type[T],
    *,
    deadline_s: float,
    fds: Sequence[int] = (),
    spin: bool = False,
) -> tuple[T, list[int]]:
    """Send a request and wait; return the reply, and the descriptors that came with it.

    Raises WorkerFailed, also where the reply is not of this kind.
    """
    reply, received = worker.exchange(codec.encode(request), deadline_s=deadline_s, fds=fds, spin=spin)
    try:
        return codec.decode_as(kind, reply), received
    except codec.Malformed as malformed:
        for fd in received:
            os.close(fd)
        raise WorkerFailed("crashed", f"its answer was not what was asked for ({malformed})", worker.log()) from None
