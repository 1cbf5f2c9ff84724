"""The text of a problem whose module computes another's forward and its gradients.

Comes in: a KernelBench source, and what its `Model` is to return. Goes out: a source whose `Model` takes the gradient
of the output (a tuple, where several of the forward's have one) before the forward's inputs. It is the same text with
lines after it, so its sizes scale as the forward's do. Works on text.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence

_TEXT = """

# Added by rag-kernels: the forward above, and its gradients.
import inspect

import torch

_forward_inputs = get_inputs
_without_gradient = {}  # numbers of inputs
_output_forms = []


def _tensors(result):
    return [y for y in torch.utils._pytree.tree_leaves(result) if isinstance(y, torch.Tensor)]


def _leaves(inputs):
    leaves, tree = torch.utils._pytree.tree_flatten(inputs)
    for i, x in enumerate(leaves):
        if isinstance(x, torch.Tensor):
            leaves[i] = x.detach().requires_grad_(x.is_floating_point() and i not in _without_gradient)
    return leaves, torch.utils._pytree.tree_unflatten(leaves, tree)


class _Differentiated(torch.nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.forward_model = ForwardModel(*args)
        self.wanted = [name for name, p in self.forward_model.named_parameters() if p.requires_grad]

    def differentiate(self, grad_output, inputs):
        # The outputs; the numbers of those that have a gradient; tensor arguments by name; gradients by name or None.
        with torch.enable_grad():
            leaves, given = _leaves(inputs)
            owned = {
                name: p.detach().requires_grad_(name in self.wanted)
                for name, p in self.forward_model.named_parameters()
            }
            outputs = _tensors(torch.func.functional_call(self.forward_model, owned, tuple(given)))
            named = {str(i): x for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)} | owned
            moved = [name for name, x in named.items() if x.requires_grad]
            pulled = [i for i, y in enumerate(outputs) if y.requires_grad]
            grads = list(grad_output) if isinstance(grad_output, tuple | list) else [grad_output]
            flows, wanted = [outputs[i] for i in pulled], [named[name] for name in moved]
            found = torch.autograd.grad(flows, wanted, grads[: len(flows)], allow_unused=True)
        return outputs, pulled, named, dict(zip(moved, found))


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
_SIGNATURE = """

def _signature():
    own, *rest = inspect.signature(ForwardModel.forward).parameters.values()
    name = "grad_output"
    while any(p.name == name for p in rest):
        name += "_"
    grad_output = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([own, grad_output, *(p.replace(default=inspect.Parameter.empty) for p in rest)])


Model.forward.__signature__ = _signature()
"""


def differentiated(source: str, model: str, *, fixed: Sequence[int] = ()) -> str:
    """Return the source of a forward followed by that of its gradients, and of a `model` that returns what is wanted.

    `model` is the text of a class `Model(_Differentiated)`, whose `differentiate` has all of it. Inputs of `fixed`
    numbers get no gradient.
    """
    text = _TEXT.replace("_without_gradient = {}", f"_without_gradient = {tuple(fixed)!r}")
    return f"{as_forward(source).rstrip()}{text}{model.rstrip()}\n{_SIGNATURE}"


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
