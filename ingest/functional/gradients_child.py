"""The names of a backward's arguments and results: the part that runs the problem's code, in a child process only.

Comes in: a payload with the functional form of a backward. Goes out: numbers of outputs and names of arguments, or a
reason. Names come from autograd over the forward's own leaves; that the functional form gives these gradients is then
checked with the numbers that the problem draws.
"""

from __future__ import annotations

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
    model: Any = build(backward.problem, module)
    given = make_inputs(backward.problem, module)
    pulled, *inputs = given
    _, taken, _, gradients = model.differentiate(pulled, inputs)  # as its text defines it
    found = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    made = _functional(backward, model, given)
    alike = len(made) == len(found) and all(map(_alike, made, found.values()))
    if not alike:
        raise ProblemError(f"{backward.problem.name} does not give the gradients of {', '.join(found)}, in this order.")
    return {"outputs": taken, "arguments": list(found)}


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
