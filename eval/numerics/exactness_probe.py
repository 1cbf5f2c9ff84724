"""Exactness probes: weights whose products are exact, so that a lower precision shows in one run.

Comes in: a FunctionalProblem. Goes out: which arguments become one-hot (each output takes one input, times a power of
two) while the others are full-mantissa normals. A matrix product is then a copy, whatever its order of summation:
fp32 keeps all 24 bits, TF32 and fp16 eleven, bf16 eight. What a softmax weighs is copied where it is certain: a query
is one of the keys, many times over. Runs in the reference worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from rag_kernels.eval.numerics.blocks import one_thread, pieces
from rag_kernels.eval.numerics.input_draws import one_hot_rows
from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorArgument
from rag_kernels.eval.traits.aten import Along, base_name, operator
from rag_kernels.eval.traits.input_kinds import OTHER_PROBE, PROBE, WEIGHED_PROBE

CERTAIN = 1e7  # by how much, before it is scaled, one score is above all others: nothing of these is left
Content = Callable[[torch.Tensor], torch.Tensor]


def probes_of(fp: FunctionalProblem) -> tuple[str, ...]:
    """Return the kinds of probes that there are for a problem."""
    found = {PROBE: targets(fp), OTHER_PROBE: targets(fp, other=True), WEIGHED_PROBE: list(weighing(fp))}
    return tuple(kind for kind, chosen in found.items() if chosen)


def probed_contents(fp: FunctionalProblem, kind: str, generator: torch.Generator) -> dict[str, Content]:
    """Return by argument how a probe's content comes of an ordinary one; the others are normals."""
    if kind != WEIGHED_PROBE:
        chosen = targets(fp, other=kind == OTHER_PROBE)
        return {name: partial(one_hot, along=along, generator=generator) for name, along in chosen.items()}
    shapes = {a.name: a.spec.shape for a in fp.tensors}
    made: dict[str, Content] = {}
    for query, key in weighing(fp):
        keys = torch.nn.functional.normalize(
            torch.randn(shapes[key], generator=generator, device=generator.device), dim=-1
        )
        rows, heads = shapes[query][-2], math.prod(shapes[query][:-2]) // max(1, math.prod(shapes[key][:-2]))
        meant = torch.arange(rows, device=keys.device).clamp(max=shapes[key][-2] - 1)
        queries = CERTAIN * (keys.repeat_interleave(heads, -3) if heads > 1 else keys)[..., meant, :]
        made |= {key: _always(keys), query: _always(queries)}
    return made


def _always(content: torch.Tensor) -> Content:
    return lambda own: content.reshape(own.shape).to(own.dtype)


def weighing(fp: FunctionalProblem) -> Iterator[tuple[str, str]]:
    """Yield the arguments whose products, through a softmax, weigh what the outputs are made of: queries and keys."""
    nodes = {n.name: n for n in fp.nodes}
    arguments = {a.name: a for a in fp.tensors if a.spec.dtype in {"float32", "float64"} and len(a.spec.shape) > 1}
    for node in fp.nodes:
        traits = operator(node.op)
        scores: tuple[tuple[object, Along], ...] = ()
        if traits.weights_one_hot:
            scores = (node.args[0], "rows"), (node.args[1], "rows")
        elif traits.cost == "product" and node.args:
            softmax = _behind(node.args[0], nodes, lambda n: base_name(n.op) in {"softmax", "_softmax"})
            product = softmax and _behind(softmax.args[0], nodes, lambda n: operator(n.op).cost == "product")
            scores = ((product.args[0], "rows"), (product.args[1], "columns")) if product else ()
        found = [_argument(value, along, nodes, arguments) for value, along in scores]
        names = [one[0] for one in found if one is not None and one[1] == "rows"]
        if len(names) == 2:
            query, key = names
            mine, theirs = (arguments[name].spec.shape for name in (query, key))
            fits = mine[-1] == theirs[-1] and mine[:-3] == theirs[:-3] and len(mine) == len(theirs)
            if query != key and fits and (len(mine) < 3 or mine[-3] % theirs[-3] == 0):
                yield query, key


def _behind(value: object, nodes: dict[str, Node], wanted: Callable[[Node], bool]) -> Node | None:
    """Return the node that a value comes of, element by element."""
    node = nodes.get(value.name) if isinstance(value, Ref) else None
    if node is None or wanted(node):
        return node
    traits = operator(node.op)
    if not (traits.elementwise or traits.free or traits.dropout):
        return None
    found = (_behind(argument, nodes, wanted) for argument in node.args)
    return next((one for one in found if one is not None), None)


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
