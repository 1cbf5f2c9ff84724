"""The names of a backward's arguments and results: the part that runs the problem's code, in a child process only.

Comes in: a payload with the functional form of a backward. Goes out: numbers of outputs and names of arguments, or a
reason. Names come from autograd over the forward's own leaves; that the functional form gives these gradients is then
checked with the numbers that the problem draws.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rag_kernels.eval.records import FunctionalProblem, ProblemError, ScalarArgument
from rag_kernels.ingest.graphs.recording import build, error_line, execute, make_inputs, state_at

NEAR = 1e-2  # of the largest: another gradient is not that near, in whatever precision


def names_here(payload: dict[str, Any]) -> dict[str, Any]:
    """Return `outputs` and `arguments` of `payload["backward"]`, or `{"reason": sentence}`."""
    torch.manual_seed(0)
    backward: FunctionalProblem = payload["backward"]
    try:
        return _names(backward)
    except ProblemError as error:
        return {"reason": str(error)}
    except Exception as error:  # whatever a problem's own code raises
        return {"reason": f"The gradients of {backward.problem.name} cannot be named: {error_line(error)}."}


def _names(backward: FunctionalProblem) -> dict[str, Any]:
    module = execute(backward.problem)
    model = build(backward.problem, module)
    given = make_inputs(backward.problem, module)
    taken, found = _gradients(module, model, given)
    made = _functional(backward, model, given)
    alike = len(made) == len(found) and all(map(_alike, made, found.values()))
    if not alike:
        raise ProblemError(f"{backward.problem.name} does not give the gradients of {', '.join(found)}, in this order.")
    return {"outputs": taken, "arguments": list(found)}


def _gradients(module: ModuleType, model: nn.Module, given: list[Any]) -> tuple[list[int], dict[str, Tensor]]:
    """Return which outputs have gradients, and those of the forward's leaves and wanted parameters by name."""
    pulled, *inputs = given
    leaves, tree = pytree.tree_flatten(inputs)
    leaves = [x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x for x in leaves]
    forward: Any = model.forward_model
    wanted: Any = model.wanted
    owned = {name: p.detach().requires_grad_(name in wanted) for name, p in forward.named_parameters()}
    named = {str(i): leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)} | owned
    named = {name: leaf for name, leaf in named.items() if leaf.requires_grad}
    with torch.enable_grad():
        arguments = pytree.tree_unflatten(leaves, tree)
        outputs = module._tensors(torch.func.functional_call(forward, owned, tuple(arguments)))
        taken = [i for i, output in enumerate(outputs) if output.requires_grad]
        pulls = list(pulled) if isinstance(pulled, tuple | list) else [pulled]
        found = torch.autograd.grad([outputs[i] for i in taken], list(named.values()), pulls, allow_unused=True)
    return taken, {name: g for name, g in zip(named, found, strict=True) if g is not None}


def _functional(backward: FunctionalProblem, model: nn.Module, given: list[Any]) -> list[Tensor]:
    leaves = pytree.tree_leaves(given)
    values = [
        leaves[int(a.path)] if isinstance(a, ScalarArgument) or a.role == "input" else state_at(model, a.path)
        for a in backward.arguments
    ]
    names: dict[str, Any] = {}
    exec(compile(backward.source, "<functional>", "exec"), names)
    with torch.no_grad():
        made = names["module_fn"](*values)
    return [made] if isinstance(made, Tensor) else list(made)


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.double(), other.double()
    near = NEAR * other[other.isfinite()].abs().max() if other.isfinite().any() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=float(near), equal_nan=True)
