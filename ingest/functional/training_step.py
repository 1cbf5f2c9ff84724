"""A problem's forward and its gradients as one problem: a step of training, judged and timed as one call.

Comes in: a Problem. Goes out: a Problem whose `Model` returns the forward's outputs, then the gradients of the
floating-point inputs and of the parameters that want one, in order. `TRAINING_STEP` in its text holds which these are
as soon as the module ran, and becomes the `step` of the functional form. Works on text (`differentiated`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.eval.records import Problem
from rag_kernels.ingest.functional.differentiated import differentiated

SUFFIX = "_training"
_STEP = """
TRAINING_STEP = {}


class Model(_Differentiated):
    def forward(self, grad_output, *inputs):
        outputs, pulled, named, gradients = self.differentiate(grad_output, inputs)
        if not torch.compiler.is_compiling():
            fixed = [name for name, x in named.items() if x.is_floating_point() and not x.requires_grad]
            given = [name for name, g in gradients.items() if g is not None]
            TRAINING_STEP.update(outputs=len(outputs), pulled=pulled, gradients=given, fixed=fixed)
        return tuple(y.detach() for y in outputs), tuple(g for g in gradients.values() if g is not None)
"""


def training_step(problem: Problem, *, fixed: Sequence[int] = ()) -> Problem:
    """Return the problem of computing another's forward and its gradients, but of the inputs of `fixed` numbers."""
    return Problem(f"{problem.name}{SUFFIX}", differentiated(problem.source, _STEP, fixed=fixed))
