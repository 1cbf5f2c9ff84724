"""A problem as a parameterized call, worked out in a child process and checked against the module.

Comes in: a `Problem`, the `Workers` whose children may run its code, and how many bytes its tensors may take. Goes out:
a `FunctionalProblem`, at full size if that fits, else scaled down with a notice that says which constants were reduced;
or a ProblemError whose sentence says what to do. Nothing is materialised to find out. This module never imports torch:
`functionalize_child` does, in the child.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from rag_kernels.eval.buffers.shared_arena import tensor_bytes
from rag_kernels.eval.machine.device import nvidia_smi
from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.progress import doing
from rag_kernels.eval.records import Backend, Device, FunctionalProblem, Problem, ProblemError
from rag_kernels.eval.sizes.fitting import fit, roomiest

PRELOAD = ("torch._dynamo", "rag_kernels.ingest.functional.functionalize_child")
CHILD = "rag_kernels.ingest.functional.functionalize_child:functionalize_here"
CHILD_OF_SEVERAL = "rag_kernels.ingest.functional.functionalize_child:functionalize_several_here"
RUNS = "rag-kernels runs the module of"  # and the problem's id: what a child that was killed had told last
ANY = "any"  # among the sizes that a child is told not to run: all but the problem's own
MOST_CRASHES = 6  # sizes at which a module may end its process before no others are tried
CPU_SHARE = 24  # draws, outputs, the fp64 oracle and two workers' temporaries share the memory
GPU_SHARE = 7
PROMISED = 3  # times that room, for sizes that were promised: shares are generous, and free memory comes and goes
SCALED = "scaled down to fit"


def open_workers() -> Workers:
    """Start a warm parent that has imported what every problem takes, which saves seconds for each."""
    return Workers(preload=PRELOAD)


def functionalize_to_fit(
    problem: Problem,
    *,
    workers: Workers,
    max_bytes: int,
    where: str = "this machine",
    full: FunctionalProblem | None = None,
) -> FunctionalProblem:
    """Return the functional form of the problem, or of a smaller one whose tensors fit into `max_bytes`, with a notice
    that says `where` there is no more room. `full` is the problem's own form where it is known.

    Raises ProblemError when there is no functional form.
    """
    full = full or functionalize(problem, workers=workers)
    if footprint(full) <= max_bytes:
        return full
    forms = {problem.id: full}

    def measure(candidate: Problem) -> int:
        if candidate.id not in forms:
            forms[candidate.id] = functionalize(candidate, workers=workers, resized=True)
        return footprint(forms[candidate.id])

    smaller, _ = fit(problem, max_bytes=max_bytes, measure=measure)
    smaller, change = roomiest(problem, smaller, max_bytes=max_bytes, measure=measure)
    return replace(forms[smaller.id], notice=f"{SCALED} {where}: {change}")


def functionalize_as(promised: FunctionalProblem, *, workers: Workers, max_bytes: int) -> FunctionalProblem:
    """Return the functional form of a problem at the sizes that its writer was told, whatever room there is now.

    Raises ProblemError where these sizes cannot be judged here: no others are put in their place.
    """
    need, name = footprint(promised), promised.problem.name
    if need > PROMISED * max_bytes:
        sizes = ", ".join(f"{a.name} {list(a.spec.shape)}" for a in promised.tensors if a.role == "input")
        raise ProblemError(
            f"{name} was written for {sizes}, {need / 1e6:.0f} MB with what it computes, and this machine has room for "
            f"{max_bytes / 1e6:.0f} MB: judge it where there is more memory, or write it anew for this machine."
        )
    now = functionalize(promised.problem, workers=workers)
    if (now.arguments, now.outputs) != (promised.arguments, promised.outputs):
        raise ProblemError(
            f"{name} has other arguments or outputs here than its writer was told: write it anew with the torch of "
            "this machine."
        )
    return replace(now, notice=promised.notice)


def functionalize(
    problem: Problem,
    *,
    workers: Workers,
    deadline_s: float = 60.0,
    memory_bytes: int | None = None,
    threads: int | None = None,
    resized: bool = False,
    named: bool = True,
) -> FunctionalProblem:
    """Record, emit and verify one problem in a child process.

    `resized` says that the sizes are not the author's: the result's problem then folds the indices that it draws into
    what they index (`ingest.functional.ranges`). Sizes are `named` in its text unless nobody will read it.

    Raises ProblemError with the reason when the problem cannot be used, or when the child fails or takes longer than
    `deadline_s`.
    """
    doing(f"tracing {problem.name}")
    payload = {"problem": problem, "threads": threads, "resized": resized, "named": named}
    crashed: list[str] = []
    crash = ""
    while True:
        try:
            asked = payload | {"crashed": crashed}
            reply = workers.call(CHILD, asked, deadline_s=deadline_s, memory_bytes=memory_bytes)
        except WorkerFailed as failure:
            if failure.kind != "crashed" or ANY in crashed:
                raise ProblemError(_sentence(problem, failure, deadline_s)) from failure
            crash = f"{failure.message}{_where(problem, failure)}"
            ran = _ran_last(failure)
            if ran == problem.id:
                raise ProblemError(_sentence(problem, failure, deadline_s)) from failure
            crashed.append(ran if ran and ran not in crashed and len(crashed) < MOST_CRASHES else ANY)
            continue
        if not isinstance(reply, FunctionalProblem):
            raise ProblemError(str(reply["reason"]))
        if crash and not reply.verified:
            return replace(reply, notice=f"{reply.notice} (at smaller sizes the module ended its process: {crash})")
        return reply


def functionalize_each(
    problems: Sequence[Problem], *, workers: Workers, deadline_s: float = 60.0, like: FunctionalProblem | None = None
) -> list[FunctionalProblem | None]:
    """Return the functional forms of problems at sizes that are not their author's; None where there is none.

    Those of a graph that is `like` one that was verified, by its key, are run and not compared with the module again;
    they have its constants, so that its kernels are called with them.

    One child records them all, which takes a third of the time that a child for each would; where it fails each gets
    one of its own.
    """
    if len(problems) > 1:
        known = like and (like.graph_key, [name for name, _ in like.constants])
        payload = {"problems": list(problems), "threads": None, "like": known}
        with suppress(WorkerFailed):
            replies = workers.call(CHILD_OF_SEVERAL, payload, deadline_s=deadline_s * len(problems))
            return [reply if isinstance(reply, FunctionalProblem) else None for reply in replies]
    forms: list[FunctionalProblem | None] = []
    for problem in problems:
        try:
            forms.append(functionalize(problem, workers=workers, deadline_s=deadline_s, resized=True, named=False))
        except ProblemError:
            forms.append(None)
    return forms


def _ran_last(failure: WorkerFailed) -> str:
    """Return the id of the problem whose module a child ran when it was killed; "" where its last words do not say."""
    told = [line for line in failure.log.splitlines() if line.startswith(RUNS)]
    return told[-1].removeprefix(RUNS).strip() if told else ""


def _where(problem: Problem, failure: WorkerFailed) -> str:
    """Return the innermost line of the problem's own text that a child's last words name."""
    found = re.search(rf'File "<{re.escape(problem.name)}>", (line \d+ in \w+)', failure.log)
    return f", {found[1]}" if found else ""


def _sentence(problem: Problem, failure: WorkerFailed, deadline_s: float) -> str:
    if failure.kind == "timed_out":
        return (
            f"{problem.name} was not functionalized within {deadline_s:g} s: its forward, get_inputs or __init__ hangs "
            "or is very slow; make its sizes smaller or its loops shorter."
        )
    if failure.kind == "memory":
        return f"{problem.name} allocates more memory than there is ({failure.message}); make its sizes smaller."
    told = f"{problem.name} ended its process while it was functionalized ({failure.message}{_where(problem, failure)})"
    if failure.signal in (signal.SIGSEGV, signal.SIGBUS):
        return f"{told}: an operator reads or writes out of bounds there; correct its indices, offsets or sizes."
    tail = failure.log.strip().splitlines()[-1:]
    return f"{told}: {tail[0]}" if tail and not tail[0].startswith(RUNS) else f"{told}."


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one problem: its functional form, or the reason why there is none."""

    name: str
    functional: FunctionalProblem | None
    reason: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.functional is not None


def functionalize_many(
    problems: Iterable[Problem],
    *,
    workers: Workers,
    jobs: int = 2,
    deadline_s: float = 60.0,
    memory_bytes: int | None = None,
) -> Iterator[Row]:
    """Yield a row for each of several problems in the order given, `jobs` at a time with one thread each."""

    def row(problem: Problem) -> Row:
        started = time.monotonic()
        try:
            functional = functionalize(
                problem, workers=workers, deadline_s=deadline_s, memory_bytes=memory_bytes, threads=1
            )
            return Row(problem.name, functional, "", time.monotonic() - started)
        except ProblemError as error:
            return Row(problem.name, None, str(error), time.monotonic() - started)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(row, problems)


def room_bytes(backend: Backend) -> int:
    """Return how many bytes a problem's tensors may take: a share of the free memory of the host or the GPU."""
    host = int(psutil.virtual_memory().available)
    if backend == "cpu":
        return host // CPU_SHARE
    free_mib = nvidia_smi("memory.free")
    if free_mib is None:
        return host // CPU_SHARE  # CUDA without a GPU: candidates are only compiled
    return min((int(free_mib) << 20) // GPU_SHARE, host // 3)


def room_on(device: Device) -> int:
    """Return the same for a device that is not here, by the memory that its record names; without one, no bound."""
    if device.backend == "cuda":
        total_mib = re.match(r"(\d+)(?: MiB)?,", device.machine)
        return (int(total_mib[1]) << 20) // GPU_SHARE if total_mib else sys.maxsize
    total_gib = re.search(r"(\d+) GiB$", device.machine)
    return (int(total_gib[1]) << 30) // CPU_SHARE if total_gib else sys.maxsize


def footprint(problem: FunctionalProblem) -> int:
    """Return the bytes of the arguments, the outputs and twice the largest intermediate."""
    ends = sum(tensor_bytes(a.spec) for a in problem.tensors) + sum(tensor_bytes(s) for s in problem.outputs)
    return ends + 2 * max((sum(tensor_bytes(s) for s in n.outputs) for n in problem.nodes), default=0)
