"""Rules of operators that join rows by segments: segments, bags of an embedding, sums by an index that rises.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. All are one step (`steps.Segmented`): rows, where each segment of them begins and ends, and how they join.
"""

from __future__ import annotations

import math
from typing import Any

from rag_kernels.eval.records import Node, Ref
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import RANGE, is_float
from rag_kernels.offline.ir.expressions import add, equal, inverse, mul, where
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.computed import apart, at, iota
from rag_kernels.offline.lowering.lower import Lowering
from rag_kernels.offline.lowering.rules.place import indexed
from rag_kernels.offline.lowering.rules.shape import slice_value

KINDS = {"sum": Kind.SUM, "add": Kind.SUM, "mean": Kind.SUM, "prod": Kind.PROD, "multiply": Kind.PROD}
KINDS |= {"amax": Kind.MAX, "max": Kind.MAX, "amin": Kind.MIN, "min": Kind.MIN}
Ends = tuple[ir.Value, ir.Value]  # where segments begin, and where they end


def start_of(kind: Kind, dtype: str) -> float | int:
    """Return what joins with nothing to itself."""
    if kind in {Kind.SUM, Kind.PROD}:
        return int(kind is Kind.PROD)
    if is_float(dtype):
        return -math.inf if kind is Kind.MAX else math.inf
    if dtype == "uint8":
        return 0 if kind is Kind.MAX else 255
    most = (1 << RANGE[dtype]) - 1
    return -most - 1 if kind is Kind.MAX else most


def segment_reduce(lowering: Lowering, node: Node) -> ir.Value:
    """Return reductions of the rows between offsets, or of so many rows as lengths say; of none the neutral element."""
    value, how = lowering.value(given(node, 0)), given(node, 1, "reduce")
    lengths, offsets = given(node, 2, "lengths"), given(node, 4, "offsets")
    initial = given(node, 7, "initial")
    if given(node, 5, "axis", 0) != 0 or how not in KINDS or not value.dims or initial is not None:
        raise ir.Unfusable("segments of another form")
    bounds = lowering.value(offsets if offsets is not None else lengths)
    if len(bounds.dims) != 1:
        raise ir.Unfusable("segments of several dimensions")
    ends = segment_ends(lowering, bounds) if offsets is not None else ends_of(lowering, bounds)
    value = lowering.reload(value) if any(len(ir.leaves(group)) > 1 for group in value.dims) else value
    empty = math.nan if how == "mean" else start_of(KINDS[how], value.dtype)
    storage = node.outputs[0].dtype
    return lowering.segmented(value, ends, KINDS[how], mean=how == "mean", empty=empty, storage=storage)


def ends_of(lowering: Lowering, lengths: ir.Value) -> Ends:
    """Return where segments of these lengths begin and end."""
    lengths = lowering.reload(lengths) if len(ir.leaves(lengths.dims[0])) > 1 else lengths
    end = lengths
    if lengths.dims[0]:
        total = ir.Scan(lengths.dims, lengths.dtype, Kind.SUM, lengths, ir.leaves(lengths.dims[0])[0])
        end = lowering.reload(lowering.tracked(total))
    return lowering.op(lambda e, n: e - n, end, lengths), end


def segment_ends(lowering: Lowering, bounds: ir.Value) -> Ends:
    """Return where segments begin and end, by bounds of which there is one more than segments."""
    count = bounds.shape[0] - 1
    if len(ir.leaves(bounds.dims[0])) > 1 or any(isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(bounds)):
        bounds = lowering.reload(bounds)
    begin, end = (slice_value(lowering, bounds, 0, first, count, ends=True) for first in (0, 1))
    return begin, end


def embedding_bag(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    """Return sums, means or maxima of rows of a table, by bags that offsets begin; of none zero."""
    table, index, offsets = (lowering.value(given(node, i)) for i in range(3))
    how = ("sum", "mean", "max")[given(node, 4, "mode", 0)]
    weights, padding = given(node, 6, "per_sample_weights"), given(node, 8, "padding_idx", -1)
    if given(node, 3, "scale_grad_by_freq", False) or not index.dims[0]:
        raise ir.Unfusable("bags of another form")
    index = lowering.reload(index) if not isinstance(index, ir.Load) else apart(lowering, index)
    rows = indexed(lowering, table, [0], [index])
    if weights is not None:
        each = lowering.value(weights)
        each = lowering.reload(each) if len(ir.leaves(each.dims[0])) > 1 else each  # rows are one loop
        each, rows = lowering.align([lowering.with_dims(each, (*each.dims, ())), rows])
        rows = lowering.with_dims(lowering.op(mul, rows, each), rows.dims)
    takes = None
    if padding is not None and padding >= 0:
        number = lowering.with_dims(lowering.cast(index, "int64"), rows.dims[:1])
        takes = lowering.op(lambda i: inverse(equal(i, padding)), number)
    ends = bag_ends(lowering, offsets, index.dims[0], node.outputs[0].shape[0])
    kind, storage = KINDS[how], node.outputs[0].dtype
    return (lowering.segmented(rows, ends, kind, takes=takes, mean=how == "mean", storage=storage),)


def bag_ends(lowering: Lowering, offsets: ir.Value, rows: ir.Group, bags: int) -> Ends:
    """Return where bags begin and end: the last one with the rows, unless there is one offset more than bags."""
    if offsets.shape[0] > bags:
        return segment_ends(lowering, offsets)
    offsets = lowering.reload(offsets) if len(ir.leaves(offsets.dims[0])) > 1 else offsets
    total = lowering.size(rows, offsets.dtype)
    if not offsets.dims[0]:
        return offsets, lowering.with_dims(total, offsets.dims)
    count = lowering.size(offsets.dims[0], "int64")
    here = iota(lowering, offsets.dims[0])
    behind = lowering.op(lambda i, n: where(i + 1 < n, i + 1, i), here, count)
    following = at(lowering, offsets, 0, behind, offsets.dims[0])
    end = lowering.op(lambda i, n, o, last: where(i + 1 < n, o, last), here, count, following, total)
    return offsets, end


# Sums by an index that rises ----------------------------------------------------------------------------------------


def summed_by_segments(lowering: Lowering, node: Node) -> ir.Value | None:
    """Return index_add or scatter_add along the first dimension whose index is known to rise; None for another."""
    base, dim, index = lowering.value(given(node, 0)), given(node, 1), given(node, 2)
    source = lowering.value(given(node, 3), base.dtype)
    alpha = given(node, 4, "alpha", 1)
    if not isinstance(index, Ref) or not base.dims or dim % len(base.dims) or len(source.dims) != len(base.dims):
        return None
    if source.shape[1:] != base.shape[1:] or not (is_float(base.dtype) or base.dtype in {"int64", "int32"}):
        return None
    ends = rising(lowering, index, base.shape[0], source)
    if ends is None:
        return None
    source = lowering.reload(source) if any(len(ir.leaves(group)) > 1 for group in source.dims) else source
    if alpha != 1:
        source = lowering.op(mul, source, lowering.scalar(alpha, source.dtype))
    source = lowering.cast(source, base.dtype)
    inner = strip(base)
    if isinstance(inner, ir.Const) and not inner.number and not inner.name:
        return lowering.segmented(source, ends, Kind.SUM, storage=node.outputs[0].dtype)
    return lowering.op(add, base, lowering.segmented(source, ends, Kind.SUM))


def rising(lowering: Lowering, index: Ref, segments: int, source: ir.Value) -> Ends | None:
    """Return where the rows of each number begin and end in an index that counts them up, one for each row.

    It repeats the numbers of segments by how long these are, or looks rows up among bounds, which are in order.
    """
    nodes = {node.name: node for node in lowering.fp.nodes}
    node = nodes.get(index.name)
    if node is None or node.outputs[0].shape not in {source.shape, source.shape[:1]}:
        return None
    while node and base_name(node.op) in {"unsqueeze", "expand"}:  # the same for all columns
        if node.outputs[0].shape[0] != source.shape[0] or not isinstance(node.args[0], Ref):
            return None  # along another dimension than the first
        node = nodes.get(node.args[0].name)
    if node is None or node.outputs[0].shape != source.shape[:1]:
        return None
    if base_name(node.op) == "repeat_interleave":
        counts = given(node, 1, "repeats")
        whole = counts_up(nodes, given(node, 0), segments) and given(node, 2, "dim") in {None, 0, -1}
        return ends_of(lowering, lowering.value(counts)) if whole and isinstance(counts, Ref) else None
    before = base_name(node.op) == "sub" and node.args[1] == 1 and not node.kwargs
    if before and isinstance(node.args[0], Ref):
        node = nodes.get(node.args[0].name)
    if node is None or base_name(node.op) not in {"searchsorted", "bucketize"}:
        return None
    bounds, rows = (given(node, i) for i in ((0, 1) if base_name(node.op) == "searchsorted" else (1, 0)))
    keywords = dict(node.kwargs)
    right = given(node, 3, "right", False) or keywords.get("side") == "right"
    if not right or keywords.get("sorter") is not None or not counts_up(nodes, rows, source.shape[0]):
        return None
    found = lowering.value(bounds)
    if len(found.dims) != 1 or found.shape[0] not in ({segments, segments + 1} if before else {segments}):
        return None
    if before:
        return bag_ends(lowering, found, source.dims[0], segments)
    if not found.dims[0] or len(ir.leaves(found.dims[0])) > 1:
        return None
    here = iota(lowering, found.dims[0])
    last = at(lowering, found, 0, lowering.op(lambda i: where(i > 0, i - 1, 0), here), found.dims[0])
    return lowering.op(lambda i, bound: where(i > 0, bound, 0), here, last), found


def counts_up(nodes: dict[str, Node], value: Any, count: int) -> bool:
    """Return whether a value is 0, 1 and so on up to a count."""
    node = nodes.get(value.name) if isinstance(value, Ref) else None
    if node is None or base_name(node.op) != "arange":
        return False
    return node.args in {(count,), (0, count), (0, count, 1)}
