"""Rules for normalisations, and for elements at computed places.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

import math
from typing import Any

from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import (
    Expr,
    absolute,
    add,
    both,
    mul,
    rsqrt,
    sqrt,
    square,
    where,
)
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.computed import placed
from rag_kernels.offline.lowering.lower import Lowering
from rag_kernels.offline.lowering.rules.reduce import centred_square, mean_of

LOWEST = {"bool": False, "uint8": 0, "int8": -128, "int16": -32768, "int32": -(1 << 31), "int64": -(1 << 63)}
"""What an integer element becomes whose index is out of range; a floating one becomes NaN."""
MOST_WANTED = 4  # times that a computed tensor has more elements than are taken of it, each computed where it is wanted


def inverse_root(var: Expr, eps: Expr) -> Expr:
    return rsqrt(var + eps)


def scaled_difference(x: Expr, mean: Expr, scale: Expr) -> Expr:
    return (x - mean) * scale


def normalise(lowering: Lowering, value: ir.Value, dims: list[int], eps: Any) -> ir.Value:
    """Return (value - mean) / sqrt(variance + eps) over these dimensions."""
    mean = mean_of(lowering, value, dims, True)
    var = mean_of(lowering, centred_square(lowering, value, mean), dims, True)
    scale = lowering.op(inverse_root, var, lowering.scalar(eps, value.dtype))
    return lowering.op(scaled_difference, value, mean, scale)


def affine(lowering: Lowering, value: ir.Value, weight: Any, bias: Any, trailing: int = 0) -> ir.Value:
    """Return the value times weight plus bias; `trailing` dimensions follow those that weight and bias have."""
    for argument, function in ((weight, mul), (bias, add)):
        if argument is not None:
            parameter = lowering.value(argument)
            parameter = lowering.with_dims(parameter, (*parameter.dims, *[()] * trailing)) if trailing else parameter
            value = lowering.op(function, value, parameter)
    return value


def layer_norm(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    shape = given(node, 1, "normalized_shape")
    dims = list(range(len(value.dims) - len(shape), len(value.dims)))
    out = normalise(lowering, value, dims, given(node, 4, "eps", 1e-5))
    return affine(lowering, out, given(node, 2, "weight"), given(node, 3, "bias"))


def rms_norm(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    shape = given(node, 1, "normalized_shape")
    eps = given(node, 3, "eps")
    if eps is None:
        eps = 1.1920928955078125e-07
    dims = list(range(len(value.dims) - len(shape), len(value.dims)))
    mean = mean_of(lowering, lowering.op(square, value), dims, True)
    out = lowering.op(lambda x, mean, eps: x * inverse_root(mean, eps), value, mean, lowering.scalar(eps, value.dtype))
    return affine(lowering, out, given(node, 2, "weight"), None)


def batch_norm(lowering: Lowering, node: Node) -> ir.Value:
    """Return batch norm by batch statistics in train mode, by running ones otherwise.

    Running buffers are not updated (see the contract).
    """
    value = lowering.value(given(node, 0))
    weight, bias, mean, var, training, _, eps = node.args[1:8]
    trailing = len(value.dims) - 2
    if training:
        out = normalise(lowering, value, [0, *range(2, len(value.dims))], eps)
    else:
        m, v = (lowering.with_dims(p, (*p.dims, *[()] * trailing)) for p in (lowering.value(mean), lowering.value(var)))
        scale = lowering.op(inverse_root, v, lowering.scalar(eps, value.dtype))
        out = lowering.op(scaled_difference, value, m, scale)
    return affine(lowering, out, weight, bias, trailing)


def instance_norm(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    weight, bias, _, _, use_input_stats, _, eps = node.args[1:8]
    if not use_input_stats:
        raise ir.Unfusable("running statistics")
    out = normalise(lowering, value, list(range(2, len(value.dims))), eps)
    return affine(lowering, out, weight, bias, len(value.dims) - 2)


def group_norm(lowering: Lowering, node: Node) -> ir.Value:
    value, groups = lowering.value(given(node, 0)), given(node, 1)
    shape = value.shape
    split_ = lowering.view(value, (shape[0], groups, shape[1] // groups, *shape[2:]), fixed=(1,))
    out = normalise(lowering, split_, list(range(2, len(shape) + 1)), given(node, 4, "eps", 1e-5))
    out = lowering.view(out, shape)
    return affine(lowering, out, given(node, 2, "weight"), given(node, 3, "bias"), len(shape) - 2)


def weight_norm(lowering: Lowering, node: Node) -> ir.Value:
    """Return v * (g / |v|), with a norm for each index of one dimension."""
    v, g, dim = lowering.value(given(node, 0)), lowering.value(given(node, 1)), given(node, 2, "dim", 0)
    over = [d for d in range(len(v.dims)) if dim == -1 or d != dim % len(v.dims)]
    norm = lowering.op(sqrt, lowering.reduce("sum", lowering.op(square, v), over, keep=True))
    return lowering.op(lambda v, g, norm: v * (g / norm), v, g, norm)


def gather_along(lowering: Lowering, source: ir.Value, dim: int, index: ir.Value) -> ir.Value:
    """Return source[..., index, ...] along `dim` (see `picked`).

    The other dimensions share loops where they are as long as the index's, which may be shorter.
    """
    source = whole_along(lowering, source, dim)
    picks = list(source.index)
    for i, (ours, theirs) in enumerate(zip(source.dims, index.dims, strict=True)):
        if i != dim and ir.size_of(ours) != ir.size_of(theirs):
            source = whole_along(lowering, source, i)
            picks[i] = whole(theirs)
        elif i != dim and ours and theirs:
            lowering.loops.unify(ours, theirs)
    return picked(lowering, source, dim, index, (index.dims, picks))


def gather(lowering: Lowering, node: Node) -> ir.Value:
    source, index = lowering.value(given(node, 0)), lowering.value(given(node, 2))
    dim = given(node, 1) % len(source.dims)
    computed = computed_along(lowering, source, dim, index)
    return gather_along(lowering, source, dim, index) if computed is None else computed


def computed_along(lowering: Lowering, source: ir.Value, dim: int, index: ir.Value) -> ir.Value | None:
    """Return source[..., index, ...] along `dim` of what is computed, each element where it is wanted.

    None for a tensor, where most elements are wanted, and where what an element takes is not found so: those of a loss
    are one of each row, and all of them would be written for it.
    """
    leaf, others = ir.leaves(source.dims[dim]), [i for i in range(len(source.dims)) if i != dim]
    alike = all(source.shape[i] == index.shape[i] for i in others)
    few = MOST_WANTED * math.prod(index.shape) <= math.prod(source.shape)
    if isinstance(strip(source), ir.Load | ir.Const) or len(leaf) != 1 or not alike or not few:
        return None
    for i in others:
        lowering.loops.unify(source.dims[i], index.dims[i])
    inside, place = in_range(lowering, index, source.dims[dim])
    try:
        found = lowering.tracked(placed(source, leaf[0], place, index.dims))
    except ir.Unfusable:
        return None
    return or_none(lowering, inside, found)


def take_along(lowering: Lowering, node: Node) -> ir.Value:
    """Return the elements at indices along a dimension; the other dimensions of both are stretched to each other."""
    source, index, dim = lowering.value(given(node, 0)), lowering.value(given(node, 1)), given(node, 2, "dim")
    if dim is None:
        source = lowering.reload(lowering.view(source, (math.prod(source.shape),)))
        index, dim = lowering.reload(lowering.view(index, (math.prod(index.shape),))), 0
    dim %= len(source.dims)
    if any(a != b for i, (a, b) in enumerate(zip(source.shape, index.shape, strict=True)) if i != dim):
        raise ir.Unfusable("indices that are stretched")
    size = lowering.size(source.dims[dim], index.dtype)
    return gather_along(lowering, source, dim, lowering.op(lambda i, n: where(i < 0, i + n, i), index, size))


def renorm(lowering: Lowering, node: Node) -> ir.Value:
    """Return the tensor with parts along a dimension made smaller whose norm is greater than a number."""
    value, p, dim, most = lowering.value(given(node, 0)), given(node, 1), given(node, 2), given(node, 3)
    if p not in {1, 2}:
        raise ir.Unfusable(f"a norm of order {p}")
    dims = [d for d in range(len(value.dims)) if d != dim % len(value.dims)]
    size = lowering.reduce(Kind.SUM, lowering.op(square if p == 2 else absolute, value), dims, keep=True)
    size = lowering.op(sqrt, size) if p == 2 else size
    return lowering.op(lambda x, n: x * where(n > most, most / (n + 1e-7), 1.0), value, size)


def embedding(lowering: Lowering, node: Node) -> ir.Value:
    table, index = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    table = whole_along(lowering, table, 0)
    rows = lowering.with_dims(index, (*index.dims, ()))
    return picked(lowering, table, 0, rows, ((*index.dims, table.dims[1]), list(table.index)))


def whole(group: ir.Group) -> ir.Form:
    """Return the index that runs through all of a group's loops."""
    if len(group) > 1:
        raise ir.Unfusable("an index whose loops were merged")
    return ir.Form(tuple((atom, 1) for atom in group))


def whole_along(lowering: Lowering, source: ir.Value, dim: int) -> ir.Load:
    """Return the value as a load that has all of a stored dimension at `dim`: a part of one is stored first."""
    load = lowering.stored(source)
    if len(load.index) == len(load.dims) and len(load.stored[dim]) <= 1 and load.index[dim] == whole(load.stored[dim]):
        return load
    return lowering.reload(load)


def picked(
    lowering: Lowering,
    source: ir.Load,
    dim: int,
    index: ir.Value,
    others: tuple[tuple[ir.Group, ...], list[ir.Form | ir.Value]],
) -> ir.Value:
    """Return elements of `source` at `index` along `dim`; `others`: the result's dimensions and the other indices.

    Nothing outside of the tensor is read. Where an index is out of range, for which PyTorch raises an error or ends the
    CUDA context, a floating result is NaN, an integer the lowest of its type.
    """
    inside, place = in_range(lowering, index, source.stored[dim])
    dims, picks = others
    picks[dim] = place
    load = lowering.tracked(ir.Load(dims, source.dtype, source.buffer, source.stored, tuple(picks), source.storage))
    return or_none(lowering, inside, load)


def in_range(lowering: Lowering, index: ir.Value, group: ir.Group) -> tuple[ir.Value, ir.Value]:
    """Return whether an index lies inside of a dimension, and the place that is read: the first one elsewhere."""
    size = lowering.size(group, index.dtype)
    inside = lowering.op(lambda index, size: both(index >= 0, index < size), index, size)
    return inside, lowering.op(lambda inside, index: where(inside, index, 0), inside, index)


def or_none(lowering: Lowering, inside: ir.Value, found: ir.Value) -> ir.Value:
    """Return what was read at a place inside, and what stands for nothing elsewhere."""
    return lowering.op(lambda inside, x: where(inside, x, LOWEST.get(found.dtype, math.nan)), inside, found)
