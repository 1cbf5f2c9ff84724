"""Rules for convolutions: a product of two loads, summed over channels and the places of a window.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. A dimension of the window is an index and a guard, so that zeros around an image are never stored.
"""

from __future__ import annotations

from typing import Any

from rag_kernels.eval.records import Node, Ref
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import add, mul, quotient
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules.pool import per_dimension, windows_along
from rag_kernels.offline.lowering.rules.product import factor_of, operand, shape_of


def convolution(rank: int, *, transpose: bool = False) -> Rule:
    """Return the rule of a convolution over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        x, weight, bias = given(node, 0), given(node, 1), given(node, 2, "bias")
        if transpose:
            groups, dilation = given(node, 6, "groups", 1), given(node, 7, "dilation", 1)
        else:
            dilation, groups = given(node, 5, "dilation", 1), given(node, 6, "groups", 1)
        padding = given(node, 4, "padding", 0)
        if node.op.endswith(".padding"):
            padding = named_padding(given(node, 4, "padding", "valid"), shape_of(lowering, weight)[2:], dilation)
        if len(node.outputs[0].shape) != rank + 2:
            raise ir.Unfusable("no batch")
        window = [per_dimension(v, rank, None) for v in (given(node, 3, "stride", 1), padding, dilation)]
        x, zeros = (x, ((0, 0),) * rank) if transpose else unpadded(lowering, x, rank)
        around = [2 * pad + sum(more) for pad, more in zip(window[1], zeros, strict=True)]
        window[1] = [pad + before for pad, (before, _) in zip(window[1], zeros, strict=True)]
        factors = factor_of(lowering, x, windows=True), factor_of(lowering, weight, windows=True)
        out = windowed(lowering, *factors, node.outputs[0].shape, groups, (window, around), transpose)
        if bias is None:
            return out
        offset = lowering.value(bias)
        return lowering.op(add, out, lowering.with_dims(offset, (*offset.dims, *[()] * rank)))

    return rule


def unpadded(lowering: Lowering, argument: Any, rank: int) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """Return what a convolution reads without the zeros that `F.pad` lays around it, and how many these are.

    They are so many before and after along each dimension, which the guards of the window see to.
    """
    name = argument.name if isinstance(argument, Ref) else ""
    node = next((node for node in lowering.fp.nodes if node.name == name), None)
    none = argument, ((0, 0),) * rank
    if node is None or base_name(node.op) not in {"pad", "constant_pad_nd"}:
        return none
    named = base_name(node.op) == "pad"
    other = named and given(node, 2, "mode", "constant") != "constant"
    widths = [*given(node, 1), *[0] * (2 * rank)]
    if other or given(node, 2 + named, "value", 0) or len(given(node, 1)) > 2 * rank or min(widths) < 0:
        return none
    return given(node, 0), tuple((widths[2 * i], widths[2 * i + 1]) for i in reversed(range(rank)))


def named_padding(name: str, kernel: tuple[int, ...], dilation: Any) -> tuple[int, ...]:
    """Return how many elements come before the first one: none for `valid`, for `same` so many that sizes stay.

    Where an odd number is needed, the one more comes after the last element, which the guards of the window see to.
    """
    steps = per_dimension(dilation, len(kernel), 1)
    return tuple((step * (k - 1)) // 2 if name == "same" else 0 for k, step in zip(kernel, steps, strict=True))


def whole_load(lowering: Lowering, value: ir.Value) -> ir.Load:
    """Return the value as a load that steps through its buffer dimension by dimension."""
    found = lowering.stored(value)
    plain = [ir.Form(tuple((a, 1) for a in group)) for group in found.dims]
    return found if found.stored == found.dims and list(found.index) == plain else lowering.reload(value)


def windowed(
    lowering: Lowering,
    x: ir.Value,
    weight: ir.Value,
    shape: tuple[int, ...],
    groups: int,
    windows: tuple[list[list[int]], list[int]],
    transpose: bool,
) -> ir.Value:
    """Return the sum over channels and window positions, one loop each.

    A dimension of the window is an index and a guard. `windows` has strides, pads before and dilations, each with one
    number for each dimension, and pads before and after together.
    """
    window, around = windows
    if x.dtype != "float32" or weight.dtype != "float32":
        raise ir.Unfusable(f"a convolution of {x.dtype}")
    source, weight = whole_load(lowering, x), operand(lowering, weight)
    source = ir.load_again(source)  # loops of its own: the window replaces them
    batch, channels, filters = source.dims[0], source.shape[1] // groups, shape[1] // groups
    over_group, over_channel = ir.regroup(source.dims[1], (groups, channels), fixed=(0,))
    kernel = weight.shape[2:]
    order = (groups, channels, filters) if transpose else (groups, filters, channels)
    weight = lowering.view(weight, (*order, *kernel), fixed=(0,))
    if transpose:
        weight = lowering.with_dims(weight, (weight.dims[0], weight.dims[2], weight.dims[1], *weight.dims[3:]))
    out: list[ir.Group] = []
    index: list[ir.Form | ir.Value] = list(source.index[:2])
    taps: list[ir.Atom] = []
    guards: list[ir.Index] = []
    for i, (stride, pad, dilation) in enumerate(zip(*window, strict=True)):
        plain = kernel[i] == stride == 1 and not pad  # every place is read where it is written
        o: ir.Group = source.dims[2 + i] if plain else () if shape[2 + i] == 1 else (ir.Atom(shape[2 + i]),)
        k: ir.Group = () if kernel[i] == 1 else (ir.Atom(kernel[i], fixed=True, window=True),)
        if o and not plain and not transpose:
            o[0].along = windows_along(
                source.stored[2 + i], shape[2 + i], (kernel[i] - 1) * dilation + 1, stride, around[i]
            )
        if o and not plain and transpose:
            each = source.stored[2 + i]
            o[0].along = ir.Along((each,) * stride, shape[2 + i] - stride * ir.size_of(each))
        lowering.loops.unify(k, weight.dims[3 + i])
        place, guard = position(o, k, source.stored[2 + i], (stride, pad, dilation), transpose)
        out.append(o)
        index.append(place)
        taps += k
        guards += guard
    dims = (batch, over_group, (), *out, over_channel)
    values = lowering.tracked(ir.Load(dims, "float32", source.buffer, source.stored, tuple(index), source.storage))
    factors = lowering.with_dims(weight, ((), weight.dims[0], weight.dims[1], *[()] * len(out), weight.dims[2]))
    terms = lowering.op(mul, values, factors)
    over = (*terms.dims[-1], *taps)
    total: ir.Value = ir.Op(terms.dims[:-1], "float32", Operator.SAME, (terms,))
    if over:
        total = ir.Reduce(terms.dims[:-1], "float32", Kind.SUM, terms, over, tuple(guards))
    return lowering.view(lowering.tracked(total), shape)


def position(
    o: ir.Group, k: ir.Group, stored: ir.Group, window: tuple[int, int, int], transpose: bool
) -> tuple[ir.Form | ir.Value, list[ir.Index]]:
    """Return where output `o` and window position `k` read one dimension, and the guard if that may lie outside."""
    stride, pad, dilation = window
    size, outputs, taps = ir.size_of(stored), ir.size_of(o), ir.size_of(k)
    if not transpose:
        form = ir.Form(tuple((a, stride) for a in o) + tuple((a, dilation) for a in k), -pad)
        outside = pad or (outputs - 1) * stride - pad + (taps - 1) * dilation >= size
        return form, [ir.Index((), "bool", form, stored)] if outside else []
    form = ir.Form(tuple((a, 1) for a in o) + tuple((a, -dilation) for a in k), pad)
    if stride == 1:
        outside = pad < (taps - 1) * dilation or outputs - 1 + pad >= size
        return form, [ir.Index((), "bool", form, stored)] if outside else []
    place = quotient(ir.Index((), "int64", form), stride)
    return place.value, [ir.Index((), "bool", form, stored, every=stride)]
