"""A module in a file of the user's, `mymodel.py:Block`, as a problem.

Comes in: a file, a name in it, and texts of the arguments of its constructor and of its forward. Goes out: a Problem,
made in a child process. This module never imports torch: `ingest.live.named_module_child` does, in the child.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import Problem, ProblemError

CHILD = "rag_kernels.ingest.live.named_module_child:problem_here"


@dataclass(frozen=True, slots=True)
class Named:
    """The problem that a module of a file is. `fixed` are the numbers of inputs of which no gradient is wanted."""

    problem: Problem
    fixed: tuple[int, ...] = ()


def named_module(written: str) -> tuple[Path, str] | None:
    """Return the file and the name of `mymodel.py:Block`, or None for anything else."""
    file, colon, name = written.rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") and name.isidentifier() else None


def problem_of_named(file: Path, name: str, *, inputs: str, init: str = "", deadline_s: float = 300.0) -> Named:
    """Return the problem that a module of a file is for these inputs.

    `inputs` and `init` are arguments as they stand in a call: `torch.randn(8, 512), mask=None`. Raises ProblemError
    where the file or the module cannot be used.
    """
    if not file.is_file():
        raise ProblemError(f"There is no file {file}.")
    if not inputs.strip():
        raise ProblemError(f'Say what {name} is called with: --inputs "torch.randn(8, 128, 512)", as in a call of it.')
    payload = {"file": str(file.resolve()), "name": name, "inputs": inputs, "init": init}
    with Workers() as workers:
        try:
            reply = workers.call(CHILD, payload, deadline_s=deadline_s)
        except WorkerFailed as failure:
            tail = failure.log.strip().splitlines()[-1:] or [failure.message]
            raise ProblemError(f"{file}:{name} could not be traced ({failure.message}): {tail[0]}") from failure
    if "reason" in reply:
        raise ProblemError(str(reply["reason"]))
    return Named(problem_from_source(name, str(reply["source"])), tuple(map(int, reply["fixed"])))
