"""Exactness probes: weights whose products are exact, so that a lower precision shows in one run.

Comes in: a FunctionalProblem. Goes out: which arguments become one-hot (each output takes one input, times a power of
two) while the others are full-mantissa normals. A matrix product is then a copy, whatever its order of summation:
fp32 keeps all 24 bits, TF32 and fp16 eleven, bf16 eight. Runs in the reference worker.
"""

from __future__ import annotations

import math

import torch

from rag_kernels.eval.aten import Along, operator
from rag_kernels.eval.numerics.blocks import one_thread, pieces
from rag_kernels.eval.numerics.input_draws import one_hot_rows
from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorArgument


def targets(fp: FunctionalProblem, *, other: bool = False) -> dict[str, Along]:
    """Return argument name -> the side of it on which the outputs are.

    Empty where no product has an argument to probe. A one-hot factor is exact in any precision, so it is the `other`
    factors' precision that shows where these are one-hot; empty where no product has two.
    """
    return {} if other and _chosen(fp, other=True) == _chosen(fp, other=False) else _chosen(fp, other=other)


def _chosen(fp: FunctionalProblem, *, other: bool) -> dict[str, Along]:
    nodes = {n.name: n for n in fp.nodes}
    arguments = {a.name: a for a in fp.tensors if a.spec.dtype in {"float32", "float64"} and len(a.spec.shape) > 1}
    chosen: dict[str, Along] = {}
    for node in fp.nodes:
        traits = operator(node.op)
        for factors in (traits.one_hot[:: -1 if other else 1], traits.weights_one_hot):
            for position, along in factors:
                found = _argument(node.args[position], along, nodes, arguments) if position < len(node.args) else None
                if found is not None:
                    chosen.setdefault(*found)
                    break
    return chosen


def _argument(
    value: object, along: Along, nodes: dict[str, Node], arguments: dict[str, TensorArgument]
) -> tuple[str, Along] | None:
    """Return the argument behind an operand, through transposes."""
    while isinstance(value, Ref) and value.name in nodes and _is_transpose(nodes[value.name]):
        along = "rows" if along == "columns" else "columns"
        value = nodes[value.name].args[0]
    if not isinstance(value, Ref) or value.name not in arguments:
        return None
    return value.name, along


def _is_transpose(node: Node) -> bool:
    return operator(node.op).transposes in {"matrix", "dims"}


def one_hot(value: torch.Tensor, along: Along, generator: torch.Generator) -> torch.Tensor:
    """Return the probe's content for one argument of two or more dimensions."""
    if along == "columns":
        return one_hot(value.mT, "rows", generator).mT
    flat = value.reshape(-1, value.shape[-1]) if along == "rows" else value
    return one_hot_rows(flat, generator).reshape(value.shape)


def relative_error(got: torch.Tensor, oracle: torch.Tensor) -> float:
    """Return the largest error, relative to the element or to the RMS of all, whichever is larger."""
    flat, exact = got.reshape(-1), oracle.reshape(-1)
    worst = torch.zeros((), dtype=torch.float64, device=got.device)
    with one_thread():
        norm = math.hypot(*(float(exact[piece].double().norm()) for piece in pieces(exact)))
        least = max(norm / max(1.0, exact.numel() ** 0.5), 1e-300)
        for piece in pieces(exact):
            right = exact[piece].double()
            errors = (flat[piece].double() - right).abs_() / right.abs().clamp_(min=least)
            worst = torch.maximum(worst, errors.max())
    return float(worst)
