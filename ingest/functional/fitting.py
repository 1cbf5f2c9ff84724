"""A problem at a size that this machine can judge.

Comes in: a Problem and how many bytes its tensors may take. Goes out: its FunctionalProblem, at full size if that
fits, else scaled down with a notice that says which constants were reduced. Nothing is materialised to find out.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import psutil

from rag_kernels.eval.buffers.shared_arena import tensor_bytes
from rag_kernels.eval.machine.device import nvidia_smi
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Backend, Device, FunctionalProblem, Problem, ProblemError
from rag_kernels.eval.scaled_problem import fit
from rag_kernels.ingest.functional.functionalize import functionalize

CPU_SHARE = 24  # draws, outputs, the fp64 oracle and two workers' temporaries share the memory
GPU_SHARE = 7
PROMISED = 3  # times that room, for sizes that were promised: shares are generous, and free memory comes and goes
SCALED = "scaled down to fit"


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

    smaller, change = fit(problem, max_bytes=max_bytes, measure=measure)
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
