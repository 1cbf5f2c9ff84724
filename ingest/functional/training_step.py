"""A problem's forward and its gradients as one problem: a step of training, judged and timed as one call.

Comes in: a Problem. Goes out: a Problem whose `Model` takes the gradient of the output (a tuple, where several of the
forward's have one) before the forward's inputs, and returns the forward's outputs, then the gradients of the
floating-point inputs and of the parameters that want one, in order. `TRAINING_STEP` in its text holds which these are
as soon as the module ran, and becomes the `step` of the functional form. Works on text.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.eval.records import Problem
from rag_kernels.ingest.functional.gradients import as_forward

SUFFIX = "_training"
_STEP = """

# Added by rag-kernels: the forward above and its gradients, as one call.
import inspect

import torch

TRAINING_STEP = {{}}
_forward_inputs = get_inputs
_without_gradient = {fixed!r}  # numbers of inputs
_output_forms = []


def _tensors(result):
    return [y for y in torch.utils._pytree.tree_leaves(result) if isinstance(y, torch.Tensor)]


def _leaves(inputs):
    leaves, tree = torch.utils._pytree.tree_flatten(inputs)
    for i, x in enumerate(leaves):
        if isinstance(x, torch.Tensor):
            leaves[i] = x.detach().requires_grad_(x.is_floating_point() and i not in _without_gradient)
    return leaves, torch.utils._pytree.tree_unflatten(leaves, tree)


class Model(torch.nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.forward_model = ForwardModel(*args)
        self.wanted = [name for name, p in self.forward_model.named_parameters() if p.requires_grad]

    def forward(self, grad_output, *inputs):
        with torch.enable_grad():
            leaves, given = _leaves(inputs)
            owned = {{
                name: p.detach().requires_grad_(name in self.wanted)
                for name, p in self.forward_model.named_parameters()
            }}
            outputs = _tensors(torch.func.functional_call(self.forward_model, owned, tuple(given)))
            named = {{str(i): x for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)}} | owned
            fixed = [name for name, x in named.items() if x.is_floating_point() and not x.requires_grad]
            named = {{name: x for name, x in named.items() if x.requires_grad}}
            taken = [i for i, y in enumerate(outputs) if y.requires_grad]
            pulled = list(grad_output) if isinstance(grad_output, tuple | list) else [grad_output]
            flows = [outputs[i] for i in taken]
            found = torch.autograd.grad(flows, list(named.values()), pulled, allow_unused=True)
        if not torch.compiler.is_compiling():
            gradients = [name for name, g in zip(named, found) if g is not None]
            TRAINING_STEP.update(outputs=len(outputs), pulled=taken, gradients=gradients, fixed=fixed)
        return tuple(y.detach() for y in outputs), tuple(g for g in found if g is not None)


def _signature():
    own, *rest = inspect.signature(ForwardModel.forward).parameters.values()
    grad_output = inspect.Parameter("grad_output", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([own, grad_output, *(p.replace(default=inspect.Parameter.empty) for p in rest)])


Model.forward.__signature__ = _signature()


def get_inputs():
    inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in _forward_inputs()]
    if not _output_forms:
        with torch.enable_grad():
            _, given = _leaves([x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
            outputs = _tensors(ForwardModel(*get_init_inputs())(*given))
        _output_forms.extend((y.shape, y.dtype) for y in outputs if y.requires_grad)
    if not _output_forms:
        raise ValueError("no output of the forward has a gradient")
    torch.manual_seed((torch.initial_seed() + 1) % 2**62)
    drawn = tuple(torch.randn(shape, dtype=dtype) for shape, dtype in _output_forms)
    return [drawn[0] if len(drawn) == 1 else drawn, *inputs]
"""


def training_step(problem: Problem, *, fixed: Sequence[int] = ()) -> Problem:
    """Return the problem of computing another's forward and its gradients, but of the inputs of `fixed` numbers."""
    return Problem(f"{problem.name}{SUFFIX}", as_forward(problem.source).rstrip() + _STEP.format(fixed=tuple(fixed)))
