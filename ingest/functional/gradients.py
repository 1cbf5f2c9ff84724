"""A problem's backward pass as a problem of its own: the gradients of every input and parameter.

Comes in: a Problem. Goes out: a Problem whose `Model` takes the gradient of the output (a tuple, where the forward
returns several tensors) before the forward's inputs, and returns the gradients of the floating-point inputs, then those
of the parameters that want one, in order. It is the same text with lines after it, so its sizes scale as the forward's
do. Works on text; which gradients come out of it `gradients_child` finds, in a child process.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass

from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import FunctionalProblem, Problem, ProblemError

CHILD = "rag_kernels.ingest.functional.gradients_child:names_here"

_BACKWARD = """

# Added by rag-kernels: the gradients of the forward above.
import inspect

import torch

_forward_inputs = get_inputs
_output_forms = []


class Model(torch.nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.forward_model = ForwardModel(*args)
        self.wanted = [name for name, p in self.forward_model.named_parameters() if p.requires_grad]

    def forward(self, grad_output, *inputs):
        with torch.enable_grad():
            leaves, tree = torch.utils._pytree.tree_flatten(inputs)
            leaves = [
                x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in leaves
            ]
            owned = {
                name: p.detach().requires_grad_(name in self.wanted)
                for name, p in self.forward_model.named_parameters()
            }
            given = torch.utils._pytree.tree_unflatten(leaves, tree)
            outputs = _tensors(torch.func.functional_call(self.forward_model, owned, given))
            wanted = [x for x in [*leaves, *owned.values()] if isinstance(x, torch.Tensor) and x.requires_grad]
            pulled = list(grad_output) if isinstance(grad_output, tuple | list) else [grad_output]
            outputs = [y for y in outputs if y.requires_grad]
            found = torch.autograd.grad(outputs, wanted, pulled[: len(outputs)], allow_unused=True)
        return tuple(g for g in found if g is not None)


def _signature():
    own, *rest = inspect.signature(ForwardModel.forward).parameters.values()
    grad_output = inspect.Parameter("grad_output", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([own, grad_output, *(p.replace(default=inspect.Parameter.empty) for p in rest)])


Model.forward.__signature__ = _signature()


def _tensors(result):
    return [y for y in torch.utils._pytree.tree_leaves(result) if isinstance(y, torch.Tensor)]


def get_inputs():
    inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in _forward_inputs()]
    if not _output_forms:
        with torch.enable_grad():
            leaves, tree = torch.utils._pytree.tree_flatten(inputs)
            leaves = [
                x.clone().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in leaves
            ]
            outputs = _tensors(ForwardModel(*get_init_inputs())(*torch.utils._pytree.tree_unflatten(leaves, tree)))
        _output_forms.extend((y.shape, y.dtype) for y in outputs if y.requires_grad)
    if not _output_forms:
        raise ValueError("no output of the forward has a gradient")
    torch.manual_seed((torch.initial_seed() + 1) % 2**62)
    drawn = tuple(torch.randn(shape, dtype=dtype) for shape, dtype in _output_forms)
    return [drawn[0] if len(drawn) == 1 else drawn, *inputs]
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
    return Problem(f"{problem.name}_backward", as_forward(problem.source).rstrip() + _BACKWARD)


def as_forward(source: str) -> str:
    """Return the source with its `Model` called `ForwardModel`, or with that as a second name for an imported one."""
    if not any(isinstance(node, ast.ClassDef) and node.name == "Model" for node in ast.parse(source).body):
        return f"{source.rstrip()}\n\nForwardModel = Model\n"
    lines = source.splitlines(keepends=True)
    names = [
        token
        for before, token in _pairs(source)
        if token.type == tokenize.NAME and token.string == "Model" and before != "."
    ]
    for token in reversed(names):
        (row, start), (_, end) = token.start, token.end
        lines[row - 1] = f"{lines[row - 1][:start]}ForwardModel{lines[row - 1][end:]}"
    return "".join(lines)


def _pairs(source: str) -> list[tuple[str, tokenize.TokenInfo]]:
    """Return each token with the text of the one before it."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    return list(zip(["", *(t.string for t in tokens)], tokens, strict=False))
