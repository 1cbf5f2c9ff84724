"""Rules of operators that write where an index says: scatters, sums by index, histograms.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. All are one step (`steps.Scattered`): a base, places, values, and how those join that have one place. What lies
outside of the base, for which PyTorch raises an error or ends the CUDA context, is left out. Sums by an index that is
known to rise are segments (`segment.py`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

from rag_kernels.eval.records import Node, Ref
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF, is_float
from rag_kernels.offline.ir.expressions import Expr, both, cast, equal, floor, mul, quotient, rest, where
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.arguments import out_dtype
from rag_kernels.offline.lowering.computed import apart, iota, loop
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules.place import stretched
from rag_kernels.offline.lowering.rules.segment import KINDS, start_of, summed_by_segments

JOINED_AS = {"int16": "int32", "int8": "int32", "uint8": "int32"}  # narrow integers wrap when they are cast back


def replaced(
    lowering: Lowering, node: Node, base: ir.Value, places: Sequence[ir.Form | ir.Value], value: ir.Value
) -> ir.Value:
    """Return `base` with elements of `value` in their places; nothing joins, so that sixteen bits are kept as such."""
    value = lowering.cast(value, base.dtype)
    if node.outputs[0].dtype in HALF and base.dtype == "float32":
        value = lowering.with_dims(value, value.dims)
        return lowering.scattered(base, places, value, None, node.outputs[0].dtype)
    return joined(lowering, base, places, value, None)


def joined(
    lowering: Lowering, base: ir.Value, places: Sequence[ir.Form | ir.Value], value: ir.Value, kind: Kind | None
) -> ir.Value:
    """Return `base` with elements of `value` joined at their places, in the dtype of `base`."""
    dtype = base.dtype
    if kind and dtype == "bool":
        raise ir.Unfusable("truth values that join")
    wide = dtype if kind is None else JOINED_AS.get(dtype, dtype)
    value = lowering.with_dims(lowering.cast(value, wide), value.dims)
    return lowering.cast(lowering.scattered(lowering.cast(base, wide), places, value, kind), dtype)


def reduced_by(
    lowering: Lowering,
    base: ir.Value,
    places: Sequence[ir.Form | ir.Value],
    value: ir.Value,
    how: str,
    *,
    include_self: bool = True,
) -> ir.Value:
    """Return `base` with values joined `how`; without `include_self` only where no value comes does it keep its own."""
    kind = KINDS[how]
    value = lowering.cast(value, base.dtype)
    one = lowering.with_dims(ir.Const((), "float32", 1), value.dims)
    if not include_self or how == "mean":
        none = lowering.with_dims(ir.Const((), "float32", int(include_self)), base.dims)
        count: ir.Value = lowering.scattered(none, places, one, Kind.SUM)
    if not include_self:
        neutral = start_of(kind, base.dtype)
        base = lowering.op(lambda n, x: where(n > 0, neutral, x), count, base, dtype=base.dtype)
    out = joined(lowering, base, places, value, kind)
    if how == "mean":
        if not is_float(out.dtype):
            raise ir.Unfusable("a mean of integers")
        out = lowering.op(lambda total, n: total / cast(where(n > 0, n, 1), total.dtype), out, count)
    return out


def index_of(lowering: Lowering, argument: Any, *, loops: bool = False) -> ir.Value:
    """Return a tensor of indices, each dimension one loop, or where several `loops` may be, as it is laid out."""
    index = lowering.value(argument)
    if index.dtype not in {"int64", "int32"}:
        raise ir.Unfusable(f"indices of {index.dtype}")
    if not loops and any(len(ir.leaves(group)) > 1 for group in index.dims):
        index = lowering.reload(index)
    return once_a_row(lowering, index)


CHEAP = 6  # operators of an index that each element of a row may compute again


def once_a_row(lowering: Lowering, index: ir.Value) -> ir.Value:
    """Return an index, stored first if it costs more than a few operators and many elements have it in common."""
    used = ir.tree_atoms(index)
    own = [bool(set(ir.leaves(group)) & used) for group in index.dims]
    cost = sum(isinstance(v, ir.Op) and v.operator is not Operator.SAME for v in ir.walk(index))
    if cost <= CHEAP or all(mine or not group for mine, group in zip(own, index.dims, strict=True)):
        return index
    squeezed = tuple(group for mine, group in zip(own, index.dims, strict=True) if mine)
    groups = iter((load := lowering.reload(lowering.with_dims(index, squeezed))).dims)
    return lowering.with_dims(
        load, tuple(next(groups) if mine else group for mine, group in zip(own, index.dims, strict=True))
    )


def along(group: ir.Group) -> ir.Form:
    """Return the index that runs through a dimension."""
    if len(group) > 1:
        raise ir.Unfusable("an index whose loops were merged")
    return ir.Form(tuple((atom, 1) for atom in group))


def wrapped(lowering: Lowering, index: ir.Value, base: ir.Value, dim: int) -> ir.Value:
    """Return indices into a dimension as int64, those below zero counted from its end."""
    size = lowering.size(base.dims[dim], "int64")
    return lowering.op(lambda i, n: where(i < 0, i + n, i), lowering.cast(index, "int64"), size)


# Scatters along a dimension -----------------------------------------------------------------------------------------


def source_at(lowering: Lowering, source: ir.Value, index: ir.Value) -> ir.Value:
    """Return the elements of `source` for those of the index, which may be shorter."""
    if not source.dims or source.shape == index.shape:
        return source
    load = apart(lowering, source)
    picks = tuple(along(group) for group in index.dims)
    return lowering.tracked(ir.Load(index.dims, load.dtype, load.buffer, load.stored, picks, load.storage))


def scatter(lowering: Lowering, node: Node) -> ir.Value:
    """Return scatter, scatter_add and scatter_reduce: one place along `dim` for each element of the index."""
    name = base_name(node.op)
    if name == "scatter_add" and (found := summed_by_segments(lowering, node)) is not None:
        return found
    base, dim, index = lowering.value(given(node, 0)), given(node, 1), index_of(lowering, given(node, 2))
    if not base.dims:
        raise ir.Unfusable("a scatter of a single number")
    dim %= len(base.dims)
    source = source_at(lowering, lowering.value(given(node, 3, "value"), base.dtype), index)
    how = given(node, 4, "reduce") or ("sum" if name == "scatter_add" else "set")
    if how in {"set", "sum"} and is_one_each(base, index, dim) and given(node, 5, "include_self", True):
        return chosen(lowering, base, dim, index, source, add=how == "sum")
    index, value = on_loops(lowering, index, source, computed={dim})
    groups = enumerate(index.dims)
    places: list[ir.Form | ir.Value] = [lowering.cast(index, "int64") if d == dim else along(g) for d, g in groups]
    if how == "set":
        return replaced(lowering, node, base, places, value)
    return reduced_by(lowering, base, places, value, how, include_self=given(node, 5, "include_self", True))


def is_one_each(base: ir.Value, index: ir.Value, dim: int) -> bool:
    """Return whether an index has one place along a dimension for each element of the others."""
    lines = [size for d, size in enumerate(base.shape) if d != dim]
    each = index.shape[dim] == 1 and [size for d, size in enumerate(index.shape) if d != dim] == lines
    return each and bool(base.dims[dim]) and (is_float(base.dtype) or base.dtype in {"int64", "int32", "bool"})


def chosen(lowering: Lowering, base: ir.Value, dim: int, index: ir.Value, source: ir.Value, *, add: bool) -> ir.Value:
    """Return `base` with one element of each line replaced, or added to, as a choice for each element.

    So it is part of what reads it: the gradient of a loss by classes has a one in each row of zeros.
    """
    if add and base.dtype == "bool":
        raise ir.Unfusable("truth values that join")
    place = iota(lowering, base.dims[dim], len(base.dims) - 1 - dim)
    index, source = lowering.cast(index, "int64"), lowering.cast(source, base.dtype)

    def choice(p: Expr, i: Expr, b: Expr, s: Expr) -> Expr:
        return where(equal(p, i), b + s if add else s, b)

    return lowering.op(choice, place, index, base, source, dtype=base.dtype)


def on_loops(
    lowering: Lowering, index: ir.Value, source: ir.Value, *, computed: Container[int]
) -> tuple[ir.Value, ir.Value]:
    """Return the index and the source on the same loops, which are the index's.

    Along dimensions whose places are computed these may be several.
    """
    if not source.dims:
        return index, lowering.with_dims(source, index.dims)
    index, source = lowering.align([index, source])
    if any(len(ir.leaves(group)) > 1 for d, group in enumerate(index.dims) if d not in computed):
        raise ir.Unfusable("indices whose loops were split")
    return index, lowering.with_dims(source, index.dims)


# Rows by index ------------------------------------------------------------------------------------------------------


def index_rows(how: str) -> Rule:
    """Return the rule of index_add, index_copy, index_fill or index_reduce: parts along `dim` go where they belong."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        if how == "sum" and (found := summed_by_segments(lowering, node)) is not None:
            return found
        base, dim, index = (
            lowering.value(given(node, 0)),
            given(node, 1),
            index_of(lowering, given(node, 2), loops=True),
        )
        if not base.dims or len(index.dims) > 1:
            raise ir.Unfusable("a single number")
        dim %= len(base.dims)
        source = lowering.value(given(node, 3, "value"), base.dtype)
        if any(len(ir.leaves(group)) > 1 for d, group in enumerate(source.dims) if d != dim):
            source = lowering.reload(source)
        if not source.dims:  # a number for each element of these parts
            load = apart(lowering, base)
            rows = index.dims[0] if index.dims else ()
            source = lowering.with_dims(source, (*load.dims[:dim], rows, *load.dims[dim + 1 :]))
        column = lowering.with_dims(index, (*(index.dims or ((),)), *[()] * (len(base.dims) - 1 - dim)))
        column, source = lowering.align([column, source])
        if any(len(ir.leaves(group)) > 1 for d, group in enumerate(source.dims) if d != dim):
            raise ir.Unfusable("rows whose loops were split")
        alpha = given(node, 4, "alpha", 1) if how == "sum" else 1
        if alpha != 1:
            source = lowering.op(mul, source, lowering.scalar(alpha, source.dtype))
        at = wrapped(lowering, column, base, dim)
        places: list[ir.Form | ir.Value] = [at if d == dim else along(g) for d, g in enumerate(source.dims)]
        kind = given(node, 4, "reduce") if how == "reduce" else how
        if kind == "set":
            return replaced(lowering, node, base, places, source)
        return reduced_by(lowering, base, places, source, kind, include_self=given(node, 5, "include_self", True))

    return rule


def index_put(lowering: Lowering, node: Node) -> ir.Value:
    """Return the first tensor with values put, or added, where index tensors say."""
    base, names = lowering.value(given(node, 0)), tuple(given(node, 1))
    added = bool(given(node, 3, "accumulate", False))
    value = lowering.cast(lowering.value(given(node, 2), base.dtype), base.dtype)
    indices = [None if name is None else lowering.value(name) for name in names]
    if any(i is not None and i.dtype == "bool" for i in indices):
        return put_by_mask(lowering, base, indices, value, added=added)
    names = (*names, *[None] * (len(base.dims) - len(names)))
    chosen = [d for d, name in enumerate(names) if name is not None]
    places = lowering.align([index_of(lowering, names[d]) for d in chosen])
    rank = max(len(p.dims) for p in places)
    between = tuple(next((p.dims[i] for p in places if len(p.dims) >= -i and p.dims[i]), ()) for i in range(-rank, 0))
    if any(len(ir.leaves(group)) > 1 for group in between):
        raise ir.Unfusable("indices whose loops were split")
    kept = {d: loop(base.shape[d]) for d in range(len(base.dims)) if d not in chosen}
    start = chosen[0] if chosen == list(range(chosen[0], chosen[0] + len(chosen))) else 0
    rest = list(kept.values())
    dims = (*rest[:start], *between, *rest[start:])
    trailing = len(dims) - start - rank
    value = stretched(lowering, value, tuple(map(ir.size_of, dims)))
    frame = lowering.with_dims(ir.Const((), "bool", True), dims)
    frame, value = lowering.align([frame, value])
    value = lowering.with_dims(value, dims)
    found: list[ir.Form | ir.Value] = [along(kept[d]) if d in kept else ir.Form(()) for d in range(len(base.dims))]
    for d, place in zip(chosen, places, strict=True):
        here = lowering.with_dims(place, (*place.dims, *[()] * trailing)) if trailing else place
        found[d] = wrapped(lowering, here, base, d)
    return joined(lowering, base, found, value, Kind.SUM) if added else replaced(lowering, node, base, found, value)


def put_by_mask(
    lowering: Lowering, base: ir.Value, indices: Sequence[ir.Value | None], value: ir.Value, *, added: bool
) -> ir.Value:
    """Return the first tensor with one number put, or added, where a mask holds."""
    [mask] = [i for i in indices if i is not None] if sum(i is not None for i in indices) == 1 else [None]
    if mask is None or indices[0] is None or math.prod(value.shape) != 1:
        raise ir.Unfusable("several numbers where a mask holds")
    value = lowering.with_dims(value, ())
    mask = lowering.with_dims(mask, (*mask.dims, *[()] * (len(base.dims) - len(mask.dims))))
    return lowering.op(lambda m, v, x: where(m, x + v if added else v, x), mask, value, base)


def embedding_backward(lowering: Lowering, node: Node) -> ir.Value:
    """Return the gradient of an embedding's table: sums of rows that share an index."""
    gradient, index = lowering.value(given(node, 0)), index_of(lowering, given(node, 1))
    if given(node, 4, "scale_grad_by_freq", False):
        raise ir.Unfusable("gradients scaled by frequency")
    padding = given(node, 3, "padding_idx", -1)
    base = lowering.with_dims(ir.Const((), gradient.dtype, 0), ir.tensor_dims(node.outputs[0].shape))
    rows = lowering.with_dims(index, (*index.dims, ()))
    rows, gradient = lowering.align([rows, gradient])
    place = lowering.cast(rows, "int64")
    if padding >= 0:
        place = lowering.op(lambda i: where(equal(i, padding), -1, i), place)
    return joined(lowering, base, (place, along(gradient.dims[-1])), gradient, Kind.SUM)


# Histograms -----------------------------------------------------------------------------------------------------


def histogram(lowering: Lowering, node: Node) -> ir.Value:
    """Return histc: how many elements lie in each of `bins` equal parts between two numbers, or the extremes."""
    value, bins = lowering.value(given(node, 0)), given(node, 1, "bins", 100)
    low, high = given(node, 2, "min", 0), given(node, 3, "max", 0)
    if not isinstance(bins, int) or isinstance(low, Ref) or isinstance(high, Ref) or not is_float(value.dtype):
        raise ir.Unfusable("bounds that are no numbers")
    if low == high:
        every = list(range(len(value.dims)))
        least, most = (lowering.reduce(kind, value, every, keep=False) for kind in (Kind.MIN, Kind.MAX))
        bounds = [lowering.op(lambda a, b: where(equal(a, b), a - 1, a), least, most)]
        bounds.append(lowering.op(lambda a, b: where(equal(a, b), b + 1, b), least, most))
        bounds = [lowering.reload(bound) for bound in bounds]
    else:
        bounds = [ir.Const((), value.dtype, low), ir.Const((), value.dtype, high)]

    def part(x: Any, a: Any, b: Any) -> Any:
        at = cast(floor((x - a) * bins / (b - a)), "int64")
        return where(both(x >= a, x <= b), where(at >= bins, bins - 1, at), -1)

    place = lowering.op(part, value, *bounds)
    one = lowering.with_dims(ir.Const((), value.dtype, 1), value.dims)
    base = lowering.with_dims(ir.Const((), value.dtype, 0), loop_of(bins))
    return joined(lowering, base, (place,), one, Kind.SUM)


def bincount(lowering: Lowering, node: Node) -> ir.Value:
    """Return how often each number comes, or the sums of its weights; `minlength` says how many numbers there are."""
    place, weights, least = (
        index_of(lowering, given(node, 0)),
        given(node, 1, "weights"),
        given(node, 2, "minlength", 0),
    )
    if not least or len(place.dims) != 1:
        raise ir.Unfusable("as many counts as values ask for")
    dtype = out_dtype(node)
    value: ir.Value = ir.Const((), dtype, 1) if weights is None else lowering.cast(lowering.value(weights), dtype)
    place, value = on_loops(lowering, place, value, computed={0})
    base = lowering.with_dims(ir.Const((), dtype, 0), loop_of(least))
    return joined(lowering, base, (lowering.cast(place, "int64"),), value, Kind.SUM)


def loop_of(size: int) -> tuple[ir.Group, ...]:
    return (loop(size, fixed=True),)


def spread(
    lowering: Lowering, value: ir.Value, index: ir.Value, shape: tuple[int, ...], rank: int, kind: Kind | None
) -> ir.Value:
    """Return zeros of a shape with elements at indices that count through the last `rank` dimensions together.

    The indices are taken apart, so that what is written has the shape of the result, and need not be copied into it.
    """
    outer = len(shape) - rank
    groups = [loop(size, fixed=dim > outer) for dim, size in enumerate(shape)]
    base = lowering.with_dims(ir.Const((), value.dtype, 0), tuple(groups))
    index, value = on_loops(lowering, index, value, computed=range(outer, len(shape)))
    places: list[ir.Form | ir.Value] = [along(group) for group in index.dims[:outer]]
    place, inner = lowering.cast(index, "int64"), list[ir.Value]()
    for size in reversed(shape[outer + 1 :]):
        inner.insert(0, lowering.op(rest, place, lowering.scalar(size, "int64")))
        place = lowering.op(quotient, place, lowering.scalar(size, "int64"))
    return joined(lowering, base, [*places, place, *inner], value, kind)


def max_pool_backward(rank: int) -> Rule:
    """Return the rule of the gradient of max pooling: each output's goes to where its maximum stood."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        gradient, index = lowering.value(given(node, 0)), index_of(lowering, given(node, 7))
        return spread(lowering, gradient, index, node.outputs[0].shape, rank, Kind.SUM)

    return rule


def max_unpool(rank: int) -> Rule:
    """Return the rule of the partial inverse of max pooling."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, index = lowering.value(given(node, 0)), index_of(lowering, given(node, 1))
        return spread(lowering, value, index, node.outputs[0].shape, rank, None)

    return rule
