"""Rules for pooling: windows are small reduced loops.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import div, hit_place, maximum, minimum, mul, sub
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.computed import for_windows
from rag_kernels.offline.lowering.lower import Lowering, Rule


def per_dimension(value: Any, rank: int, default: Any) -> list[int]:
    """Return one number for each of `rank` dimensions, from one number, a tuple, or the default."""
    value = default if value is None or value == () else value
    items = list(value) if isinstance(value, tuple | list) else [value]
    return items * rank if len(items) == 1 else items


def constant_form(form: ir.Form, group: ir.Group) -> Callable[[], tuple[ir.Form, ir.Group]]:
    """Return a function that returns this form and group, for `Lowering.reindex`."""
    return lambda: (form, group)


def windows_along(group: ir.Group, count: int, size: int, stride: int, pads: int = 0) -> ir.Along | None:
    """Return how many windows of a size there are along a dimension with so much padding; None: not all are whole."""
    along = ir.Along((group,), pads - size, stride, 1) if stride > 1 else ir.Along((group,), pads - size + 1)
    return along if (ir.size_of(group) + pads - size) // stride + 1 == count else None


def windows(
    lowering: Lowering,
    value: ir.Value,
    sizes: list[int],
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    out: Any,
) -> tuple[ir.Value, ir.Group, tuple[ir.Index, ...]]:
    """Return the value read at `o * stride - pad + k * dilation` on the last dimensions, the loops of k, and guards."""
    rank = len(sizes)
    over: list[ir.Atom] = []
    guards: list[ir.Index] = []
    for size, stride in zip(sizes, strides, strict=True):
        value = for_windows(lowering, value, size, stride)
    for i in range(rank):
        dim = len(value.dims) - rank + i
        size = value.shape[dim]
        if (sizes[i], strides[i], pads[i]) == UNIT and out[dim] == size:
            continue
        o = () if out[dim] == 1 else (ir.Atom(out[dim]),)
        k = () if sizes[i] == 1 else (ir.Atom(sizes[i], fixed=True, window=True),)
        terms = tuple((a, strides[i]) for a in o) + tuple((a, dilations[i]) for a in k)
        form = ir.Form(terms, -pads[i])
        last = (out[dim] - 1) * strides[i] - pads[i] + (sizes[i] - 1) * dilations[i]
        limit = value.dims[dim]
        whole = partial(
            windows_along,
            count=out[dim],
            size=(sizes[i] - 1) * dilations[i] + 1,
            stride=strides[i],
            pads=2 * pads[i],
        )
        value = lowering.reindex(value, dim, constant_form(form, o), whole)
        over += k
        if pads[i] or last >= size:
            guards.append(ir.Index((), "bool", form, limit))
    return value, tuple(over), tuple(guards)


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension."""

    size: int
    stride: int
    pad: int
    dilation: int = 1

    @property
    def overlaps(self) -> bool:
        return self.size > self.stride


UNIT = (1, 1, 0)
PASS_TAPS = 24  # elements that a window could read in the time in which one more tensor is written and read


def pooled(lowering: Lowering, value: ir.Value, kind: Kind, along: list[Window], shape: tuple[int, ...]) -> ir.Value:
    """Return the reduction over windows along the last dimensions, to a tensor of this shape.

    Large windows that overlap go through one dimension after the other: 15 + 15 elements each, and not 225.
    """
    rank = len(along)
    for part in turns(along):
        of_it = [along[i] if i in part else Window(1, 1, 0) for i in range(rank)]
        lead = len(value.shape) - rank
        out = tuple(shape[d] if d - lead in part or d < lead else value.shape[d] for d in range(len(value.shape)))
        fields = [[getattr(w, name) for w in of_it] for name in ("size", "stride", "pad", "dilation")]
        window, over, guards = windows(lowering, value, fields[0], fields[1], fields[2], fields[3], out)
        value = window
        if over:
            value = lowering.tracked(ir.Reduce(window.dims, value.dtype, kind, window, over, guards))
    return value


def turns(along: list[Window]) -> list[list[int]]:
    """Return which dimensions of windows are taken together, in order: all, or one after the other.

    What shrinks a tensor most comes first, then what lies together in memory.
    """
    wide = [i for i, w in enumerate(along) if w.size > 1]
    order = sorted(wide, key=lambda i: (-along[i].stride, -i))
    again = [math.prod(along[i].stride for i in order[n + 1 :]) for n in range(len(order))]  # elements for a last one
    apart = sum(n * along[i].size + PASS_TAPS * n for n, i in zip(again, order, strict=True)) - PASS_TAPS
    together = math.prod(along[i].size for i in wide)
    if len(wide) < 2 or apart >= together or not all(along[i].overlaps for i in wide):
        return [list(range(len(along)))]
    plain = [i for i in range(len(along)) if i not in wide]
    return [[order[0], *plain], *([i] for i in order[1:])]


def max_pool(rank: int) -> Rule:
    """Return the rule of max pooling over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        sizes = per_dimension(given(node, 1), rank, None)
        strides = per_dimension(given(node, 2, "stride"), rank, tuple(sizes))
        pads = per_dimension(given(node, 3, "padding", 0), rank, 0)
        dilations = per_dimension(given(node, 4, "dilation", 1), rank, 1)
        along = [Window(*each) for each in zip(sizes, strides, pads, dilations, strict=True)]
        return pooled(lowering, lowering.value(given(node, 0)), Kind.MAX, along, node.outputs[0].shape)

    return rule


def max_pool_with_indices(rank: int) -> Rule:
    """Return the rule of max pooling with where in an image each maximum stands first."""

    def rule(lowering: Lowering, node: Node) -> tuple[ir.Value, ir.Value]:
        sizes = per_dimension(given(node, 1), rank, None)
        strides = per_dimension(given(node, 2, "stride"), rank, tuple(sizes))
        pads = per_dimension(given(node, 3, "padding", 0), rank, 0)
        dilations = per_dimension(given(node, 4, "dilation", 1), rank, 1)
        value = lowering.value(given(node, 0))
        if any(len(ir.leaves(group)) > 1 for group in value.dims):
            value = lowering.reload(value)
        lengths = value.dims[-rank:]
        window, over, guards = windows(lowering, value, sizes, strides, pads, dilations, node.outputs[0].shape)
        best = lowering.tracked(ir.Reduce(window.dims, value.dtype, Kind.MAX, window, over, guards))
        taps = iter(over)
        place: ir.Value = ir.Const((), "int64", 0)
        for i, group in enumerate(lengths):
            tap = (next(taps),) if sizes[i] > 1 else ()
            terms = tuple((a, strides[i]) for a in window.dims[len(window.dims) - rank + i])
            form = ir.Form((*terms, *((a, dilations[i]) for a in tap)), -pads[i])
            here = ir.Index((), "int64", form)
            place = lowering.op(lambda at, n, here: at * n + here, place, lowering.size(group, "int64"), here)
        hit = lowering.op(hit_place, window, best, place)
        return best, lowering.tracked(ir.Reduce(window.dims, "int64", Kind.MIN, hit, over, guards))

    return rule


def avg_pool(rank: int) -> Rule:
    """Return the rule of average pooling over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        sizes = per_dimension(given(node, 1), rank, None)
        strides = per_dimension(given(node, 2, "stride"), rank, tuple(sizes))
        pads = per_dimension(given(node, 3, "padding", 0), rank, 0)
        divisor, ceil = given(node, 6, "divisor_override"), given(node, 4, "ceil_mode", False)
        padded = given(node, 5, "count_include_pad", True)
        value, shape = lowering.value(given(node, 0)), node.outputs[0].shape
        along = [Window(*each) for each in zip(sizes, strides, pads, strict=True)]
        total = pooled(lowering, value, Kind.SUM, along, shape)
        if divisor is not None or (not ceil and (padded or not any(pads))):
            return lowering.op(lambda total: total / (divisor or math.prod(sizes)), total)
        places = counts(lowering, total.dims[-rank:], value.dims[-rank:], along, padded)
        return lowering.op(div, total, lowering.cast(places, value.dtype))

    return rule


def counts(
    lowering: Lowering, out: Sequence[ir.Group], source: Sequence[ir.Group], along: list[Window], padded: bool
) -> ir.Value:
    """Return how many places of each window count: those in the tensor, or in its padding too."""
    each = [counted(lowering, *one, padded) for one in zip(out, source, along, strict=True)]
    laid = [lowering.with_dims(n, (out[i], *[()] * (len(along) - 1 - i))) for i, n in enumerate(each)]
    return reduce(lambda a, b: lowering.op(mul, a, b), laid)


def counted(lowering: Lowering, out: ir.Group, source: ir.Group, window: Window, padded: bool) -> ir.Value:
    """Return how many places of each window along one dimension count."""
    form = ir.Form(tuple((a, window.stride) for a in out), -window.pad)
    first = lowering.tracked(ir.Index((out,), "int64", form))
    length = lowering.size(source, "int64")
    end = lowering.op(lambda first, length: minimum(first + window.size, length + window.pad), first, length)
    if padded:
        return lowering.op(sub, end, first)
    return lowering.op(lambda first, end, length: minimum(end, length) - maximum(first, 0), first, end, length)
