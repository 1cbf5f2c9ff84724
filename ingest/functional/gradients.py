"""A problem's backward pass as a problem of its own: the gradients of every input and parameter.

Comes in: a Problem. Goes out: a Problem whose `Model` returns the gradients of the floating-point inputs, then those of
the parameters that want one, in order. Works on text (`differentiated`); which gradients come out of it
`gradients_child` finds, in a child process.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import FunctionalProblem, Problem, ProblemError
from rag_kernels.ingest.functional.differentiated import differentiated

CHILD = "rag_kernels.ingest.functional.gradients_child:names_here"

_BACKWARD = """
class Model(_Differentiated):
    def forward(self, grad_output, *inputs):
        *_, gradients = self.differentiate(grad_output, inputs)
        return tuple(g for g in gradients.values() if g is not None)
"""


@dataclass(frozen=True, slots=True)
class GradientNames:
    """What a backward takes and gives, in order: numbers of the forward's outputs whose gradients it gets, and paths of
    the forward's arguments whose gradients it returns, as in `TensorArgument`.
    """

    outputs: tuple[int, ...]
    arguments: tuple[str, ...]


def gradient_names(backward: FunctionalProblem, *, deadline_s: float = 300.0) -> GradientNames:
    """Return the names of what a backward takes and gives, found and checked in a child process.

    Raises ProblemError where its functional form gives other gradients than the forward has.
    """
    with Workers() as workers:
        try:
            reply = workers.call(CHILD, {"backward": backward}, deadline_s=deadline_s)
        except WorkerFailed as failure:
            raise ProblemError(
                f"The gradients of {backward.problem.name} cannot be named ({failure.message}): make its sizes smaller."
            ) from failure
    if "reason" in reply:
        raise ProblemError(str(reply["reason"]))
    return GradientNames(tuple(map(int, reply["outputs"])), tuple(map(str, reply["arguments"])))


def backward_problem(problem: Problem) -> Problem:
    """Return the problem of computing the gradients of another's forward."""
    return Problem(f"{problem.name}_backward", differentiated(problem.source, _BACKWARD))
