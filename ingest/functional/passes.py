"""Which pass of a problem is wanted: its forward, its gradients, or both as one step of training.

Comes in: a Problem or its file. Goes out: the Problem of that pass. What commands and functions have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import Problem, ProblemError
from rag_kernels.ingest.functional.gradients import backward_problem
from rag_kernels.ingest.functional.training_step import training_step

Pass = Literal["forward", "backward", "training"]


def pass_of(*, backward: bool, training: bool) -> Pass:
    """Return the pass that two switches mean. Raises ProblemError where both are set."""
    if backward and training:
        raise ProblemError("A step of training has the backward in it: take `training` or `backward`, not both.")
    return "backward" if backward else "training" if training else "forward"


def of_pass(problem: Problem, wanted: Pass, *, fixed: Sequence[int] = ()) -> Problem:
    """Return the problem of a pass of another; a step of training has no gradients of the inputs of `fixed` numbers."""
    match wanted:
        case "forward":
            return problem
        case "backward":
            return backward_problem(problem)
        case "training":
            return training_step(problem, fixed=fixed)


def load_pass(path: Path, wanted: Pass) -> Problem:
    """Read a KernelBench file and return the problem of a pass.

    Raises ProblemError for a file that is no problem.
    """
    return of_pass(load_problem(path), wanted)
