"""Rules that move elements: padding, rolling, resizing, advanced indexing, and writing a part of a tensor.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Each says at which computed place an element of the result is read (`computed.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rag_kernels.eval.records import Node
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import (
    Expr,
    Pointwise,
    absolute,
    add,
    both,
    differ,
    div,
    equal,
    floor,
    less,
    mul,
    quotient,
    rest,
    sub,
    where,
)
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.arguments import out_dtype
from rag_kernels.offline.lowering.computed import apart, at, iota, is_light, length, loop
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules.norm import LOWEST
from rag_kernels.offline.lowering.rules.order import sorted_place
from rag_kernels.offline.lowering.rules.shape import cat, slice_value

COSTLY_AGAIN = 2  # costly operators of a value that is moved and read where it lies, too, without a buffer of its own

# Padding and rolling ------------------------------------------------------------------------------------------------


def first_at_least(place: Expr, _: Expr) -> Expr:
    return where(place < 0, 0, place)


def last_at_most(place: Expr, count: Expr) -> Expr:
    return where(place >= count, count - 1, place)


OUTSIDE: dict[str, tuple[Pointwise, Pointwise]] = {
    "reflect": (lambda i, _: where(i < 0, -i, i), lambda i, n: where(i >= n, 2 * (n - 1) - i, i)),
    "replicate": (first_at_least, last_at_most),
    "circular": (lambda i, n: where(i < 0, i + n, i), lambda i, n: where(i >= n, i - n, i)),
    "constant": (first_at_least, last_at_most),
}
"""Where a place before the first and after the last element is read, by mode, of a dimension's length."""


def pad(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value with borders, or without them where a width is negative; the last dimension comes first."""
    value, widths = lowering.value(given(node, 0)), given(node, 1)
    mode, number = given(node, 2, "mode", "constant"), given(node, 3, "value", 0)
    if base_name(node.op) == "constant_pad_nd":
        mode, number = "constant", given(node, 2, "value", 0)
    filling = lowering.scalar(number or 0, value.dtype)
    if is_costly_twice(lowering, node, value):
        value = lowering.reload(value)
    for i, (left, right) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        dim = len(value.dims) - 1 - i
        value = bordered(lowering, value, dim, (left, right), mode, filling)
    return value


def cat_or_bordered(lowering: Lowering, node: Node) -> ir.Value:
    """Return tensors side by side; a shift in time, a number before or behind a tensor, as that tensor with a border.

    What reads it reads the tensor's neighbours then. A result is written piece by piece.
    """
    dim = given(node, 1, "dim", 0) % len(node.outputs[0].shape)
    values = [lowering.value(name) for name in given(node, 0)]
    numbers = [v.number if isinstance(v := strip(value), ir.Const) and not v.name else None for value in values]
    inside = [place for place, number in enumerate(numbers) if number is None]
    grows = lowering.growing.get(node.name, node) is not node or node.name in lowering.slots
    alike = len(inside) == 1 and len(set(numbers)) == 2  # of one number, and the tensor's None
    if not alike or grows or node.name in lowering.fp.results:
        return cat(lowering, node)
    (place,), dtype = inside, out_dtype(node)
    for value in values:
        for atom in ir.leaves(value.dims[dim]):
            atom.fixed = True
    sizes = [value.shape[dim] for value in values]
    filling = lowering.scalar(next(number for number in numbers if number is not None), dtype)
    widths = sum(sizes[:place]), sum(sizes[place + 1 :])
    return bordered(lowering, lowering.cast(values[place], dtype), dim, widths, "constant", filling)


def is_costly_twice(lowering: Lowering, node: Node, value: ir.Value) -> bool:
    """Return whether what a node moves takes much to compute, and other nodes read it where it lies.

    A running sum by doubling would compute it twice as often in each round.
    """
    if is_light(value, lowering.again, costly=COSTLY_AGAIN):
        return False
    made = {one.name: one for one in lowering.fp.nodes}
    readers = Counter(name for one in lowering.fp.nodes for name in refs(one.args))
    name: str = given(node, 0).name
    while readers[name] == 1 and name in made and operator(made[name].op).view:
        name = given(made[name], 0).name
    return readers[name] > 1


def bordered(
    lowering: Lowering, value: ir.Value, dim: int, widths: tuple[int, int], mode: str, filling: ir.Value
) -> ir.Value:
    """Return the value with `widths` elements more before and after along a dimension."""
    left, right = widths
    size = value.shape[dim]
    if left <= 0 and right <= 0:
        return slice_value(lowering, value, dim, -left, size + left + right)
    group = loop(size + left + right)
    for atom in group:
        atom.along = ir.Along((value.dims[dim],), left + right)
    here = iota(lowering, group, len(value.dims) - 1 - dim, start=-left)
    before, after = OUTSIDE[mode]
    count = length(lowering, value, dim)
    place = lowering.op(before, here, count) if left > 0 else here
    place = lowering.op(after, place, count) if right > 0 else place
    once = mode == "constant" and not any(isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(value))
    out = at(lowering, value, dim, place, group, light=once)  # each element is read once then
    if mode != "constant":
        return out
    return lowering.op(where, lowering.op(is_inside, here, count), out, filling)


def is_inside(place: Expr, count: Expr) -> Expr:
    return both(place >= 0, place < count)


def roll(lowering: Lowering, node: Node) -> ir.Value:
    value, shifts, dims = lowering.value(given(node, 0)), given(node, 1), given(node, 2, "dims", ())
    shifts, dims = (x if isinstance(x, tuple) else (x,) for x in (shifts, dims))
    shape = value.shape
    if not dims:
        value, dims = lowering.view(value, (math.prod(shape),)), (0,)
    for shift, d in zip(shifts, dims, strict=True):
        dim = d % len(value.dims)
        size = value.shape[dim]
        if shift % size:
            group = loop(size)
            here = iota(lowering, group, len(value.dims) - 1 - dim)
            count = length(lowering, value, dim)
            place = lowering.op(rolled(shift, far=abs(shift) >= size), here, count)
            value = at(lowering, value, dim, place, group)
    return value if value.shape == shape else lowering.view(value, shape)


def centred(*, back: bool) -> Rule:
    """Return the rule of `fftshift`, or of what takes it back: a roll by half of the length."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, dims = lowering.value(given(node, 0)), given(node, 1, "dim")
        every = range(len(value.dims)) if dims is None else dims if isinstance(dims, tuple) else (dims,)
        for dim in (d % len(value.dims) for d in every):
            group, count = loop(value.shape[dim]), length(lowering, value, dim)
            here = iota(lowering, group, len(value.dims) - 1 - dim)
            half: Pointwise = (lambda n: quotient(n, 2)) if back else (lambda n: n - quotient(n, 2))
            place = lowering.op(lambda i, n, half=half: rest(i + half(n), n), here, count)
            value = at(lowering, value, dim, place, group)
        return value

    return rule


def rolled(shift: int, *, far: bool) -> Pointwise:
    """Return from where an element comes that moved by `shift`; `far`: by more than the length."""
    if far:
        return lambda i, n: rest(rest(i - shift, n) + n, n)
    before, after = OUTSIDE["circular"]
    return lambda i, n: (before if shift > 0 else after)(i - shift, n)


# Repeating ----------------------------------------------------------------------------------------------------------


def repeat(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value several times after itself, along each dimension: repeat and tile."""
    value, times = lowering.value(given(node, 0)), tuple(given(node, 1))
    times = (*[1] * (len(value.dims) - len(times)), *times)
    groups = [()] * (len(times) - len(value.dims)) + list(value.dims)
    dims = tuple((*loop(n, fixed=bool(group)), *group) for n, group in zip(times, groups, strict=True))
    return lowering.with_dims(value, dims)


def repeat_interleave(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value with each element several times in a row."""
    value, times, dim = lowering.value(given(node, 0)), given(node, 1, "repeats"), given(node, 2, "dim")
    if not isinstance(times, int):
        return repeat_by_counts(lowering, node)
    if dim is None:
        value, dim = lowering.view(value, (math.prod(value.shape),)), 0
    dim %= len(value.dims)
    dims = (*value.dims[:dim], (*value.dims[dim], *loop(times, fixed=True)), *value.dims[dim + 1 :])
    return lowering.with_dims(value, dims)


def repeat_by_counts(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value with each element as often as a tensor says, for an output of known length."""
    value, counts, dim = lowering.value(given(node, 0)), lowering.value(given(node, 1)), given(node, 2, "dim")
    if dim is None:
        value, dim = lowering.reload(lowering.view(value, (math.prod(value.shape),))), 0
    dim %= max(1, len(value.dims))
    if len(counts.dims) != 1 or not counts.dims[0] or counts.dtype not in {"int64", "int32"}:
        raise ir.Unfusable("counts of another form")
    counts = lowering.reload(counts)
    [leaf] = ir.leaves(counts.dims[0])
    ends = lowering.reload(lowering.tracked(ir.Scan(counts.dims, counts.dtype, Kind.SUM, counts, leaf)))
    group = loop(node.outputs[0].shape[dim])
    trailing = len(value.dims) - 1 - dim
    here = lowering.cast(iota(lowering, group, trailing), counts.dtype)
    place = sorted_place(lowering, ends, here, right=True)
    place = lowering.op(last_at_most, lowering.cast(place, "int64"), length(lowering, value, dim))
    return at(lowering, value, dim, place, group)


# Resizing -----------------------------------------------------------------------------------------------------------


def upsample_nearest(rank: int) -> Rule:
    """Return the rule of nearest neighbours over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, out, scales = lowering.value(given(node, 0)), node.outputs[0].shape, scales_of(node, rank, 2)
        for i, scale in enumerate(scales):
            dim = len(out) - rank + i
            size, wanted = value.shape[dim], out[dim]
            if wanted % size == 0 and scale in (None, wanted / size):
                group = (*value.dims[dim], *loop(wanted // size, fixed=True))
                value = lowering.with_dims(value, (*value.dims[:dim], group, *value.dims[dim + 1 :]))
            else:
                value = nearest(lowering, value, dim, wanted, scale)
        return value

    return rule


def scales_of(node: Node, rank: int, position: int) -> list[float | None]:
    """Return one scale for each resized dimension, None where it follows from the sizes."""
    if node.op.endswith(".vec"):
        scales = given(node, position, "scale_factors") or [None] * rank
    else:
        names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[rank]
        scales = [given(node, position + i, name) for i, name in enumerate(names)]
    return [None if s is None or s <= 0 else float(s) for s in scales]


def step_of(lowering: Lowering, value: ir.Value, dim: int, group: ir.Group, scale: float | None) -> ir.Value:
    """Return how many source elements one element of the result spans, in float32 as PyTorch has it."""
    if scale is not None:
        return ir.Const((), "float32", 1.0 / scale)
    return lowering.op(div, length(lowering, value, dim, "float32"), lowering.size(group, "float32"))


def nearest(lowering: Lowering, value: ir.Value, dim: int, wanted: int, scale: float | None) -> ir.Value:
    """Return the value with a dimension resized to the nearest element before."""
    group = loop(wanted)
    here = lowering.cast(iota(lowering, group, len(value.dims) - 1 - dim), "float32")
    place = lowering.op(mul, here, step_of(lowering, value, dim, group, scale))
    place = lowering.op(last_at_most, lowering.cast(lowering.op(floor, place), "int64"), length(lowering, value, dim))
    return at(lowering, value, dim, place, group)


def upsample_linear(rank: int) -> Rule:
    """Return the rule of linear interpolation over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, out, corners = lowering.value(given(node, 0)), node.outputs[0].shape, given(node, 2, "align_corners")
        for i, scale in enumerate(scales_of(node, rank, 3)):
            dim = len(out) - rank + i
            if out[dim] != value.shape[dim] or scale not in (None, 1.0):
                value = linear(lowering, value, dim, out[dim], (scale, bool(corners)))
        return value

    return rule


def source_of(
    lowering: Lowering, value: ir.Value, dim: int, group: ir.Group, how: tuple[float | None, bool]
) -> ir.Value:
    """Return where along a dimension the centre of each element of the result lies, in float32; `how`: scale, corners.

    Before the first element it may be negative.
    """
    scale, corners = how
    here = lowering.cast(lowering.cast(iota(lowering, group, len(value.dims) - 1 - dim), "int32"), "float32")
    if corners:
        count, wanted = length(lowering, value, dim, "float32"), lowering.size(group, "float32")
        return lowering.op(lambda i, n, out: where(out > 1, i * ((n - 1) / (out - 1)), 0), here, count, wanted)
    step = step_of(lowering, value, dim, group, scale)
    return lowering.op(lambda i, step: step * (i + 0.5) - 0.5, here, step)


def linear(lowering: Lowering, value: ir.Value, dim: int, wanted: int, how: tuple[float | None, bool]) -> ir.Value:
    """Return the value with a dimension resized between the two elements around each place.

    Places have 32 bits, as PyTorch's: a GPU turns 64 bits into floats and back at a quarter of the speed.
    """
    group = loop(wanted)
    centre = lowering.op(lambda x: where(x < 0, 0, x), source_of(lowering, value, dim, group, how))
    low = lowering.op(last_at_most, lowering.cast(centre, "int32"), length(lowering, value, dim, "int32"))
    high = lowering.op(lambda i, n: where(i + 1 < n, i + 1, i), low, length(lowering, value, dim, "int32"))
    part = lowering.op(lambda x, i: where(x - i > 1, 1, x - i), centre, lowering.cast(low, "float32"))
    part = lowering.cast(part, value.dtype)
    value = value if is_read_once(value) else lowering.reload(value)
    below, above = (at(lowering, value, dim, lowering.cast(place, "int64"), group) for place in (low, high))
    return lowering.op(lambda a, b, part: (1 - part) * a + part * b, below, above, part)


def is_read_once(value: ir.Value) -> bool:
    """Return whether a value reads so few elements that it may be computed at both sides of each place."""
    return len([v for v in ir.walk(value) if isinstance(v, ir.Load)]) <= 4


CUBIC = -0.75  # PyTorch's coefficient


def upsample_cubic(lowering: Lowering, node: Node) -> ir.Value:
    """Return bicubic interpolation of the last two dimensions."""
    value, out, corners = lowering.value(given(node, 0)), node.outputs[0].shape, given(node, 2, "align_corners")
    for i, scale in enumerate(scales_of(node, 2, 3)):
        value = cubic(lowering, value, len(out) - 2 + i, out[len(out) - 2 + i], (scale, bool(corners)))
        value = lowering.reload(value) if i == 0 else value
    return value


def cubic(lowering: Lowering, value: ir.Value, dim: int, wanted: int, how: tuple[float | None, bool]) -> ir.Value:
    """Return the value with a dimension resized by the cubic through the four elements around each place."""
    group = loop(wanted)
    centre = source_of(lowering, value, dim, group, how)
    below = lowering.op(floor, centre)
    part = lowering.op(sub, centre, below)
    count, terms = length(lowering, value, dim), []
    for tap in range(-1, 3):
        place = lowering.op(lambda i, n, tap=tap: first_at_least(i + tap, n), lowering.cast(below, "int64"), count)
        place = lowering.op(last_at_most, place, count)
        weight = lowering.cast(lowering.op(lambda x, tap=tap: cubic_weight(x, tap), part), value.dtype)
        terms.append(lowering.op(mul, at(lowering, value, dim, place, group), weight))
    return lowering.op(lambda a, b, c, d: a + b + c + d, *terms)


def cubic_weight(part: Expr, tap: int) -> Expr:
    """Return the weight of the element `tap` after the one before a place, which lies `part` behind that."""
    gap = absolute(part - tap)
    if tap in (0, 1):
        return ((CUBIC + 2) * gap - (CUBIC + 3)) * gap * gap + 1
    return ((CUBIC * gap - 5 * CUBIC) * gap + 8 * CUBIC) * gap - 4 * CUBIC


# Indexing -----------------------------------------------------------------------------------------------------------


def index(lowering: Lowering, node: Node) -> ir.Value:
    """Return elements at integer tensors: `x[:, i, j]`. Nothing outside of the tensor is read (see `norm.py`)."""
    source, names = lowering.value(given(node, 0)), tuple(given(node, 1))
    names = (*names, *[None] * (len(source.dims) - len(names)))
    chosen = [d for d, name in enumerate(names) if name is not None]
    places = lowering.align([lowering.value(names[d]) for d in chosen])
    if any(p.dtype not in {"int64", "int32"} for p in places):
        raise ir.Unfusable("a mask, whose result's shape depends on the data")
    return indexed(lowering, source, chosen, places)


def index_select(lowering: Lowering, node: Node) -> ir.Value:
    source = lowering.value(given(node, 0))
    return indexed(lowering, source, [given(node, 1) % len(source.dims)], [lowering.value(given(node, 2))])


def take(lowering: Lowering, node: Node) -> ir.Value:
    """Return elements at indices that count through the whole tensor."""
    source = lowering.value(given(node, 0))
    flat = lowering.reload(lowering.view(source, (math.prod(source.shape),)))
    return indexed(lowering, flat, [0], [lowering.value(given(node, 1))])


def indexed(lowering: Lowering, source: ir.Value, chosen: Sequence[int], places: Sequence[ir.Value]) -> ir.Value:
    """Return `source` at `places`, one for each of the dimensions `chosen`, which count from the end below zero."""
    load = apart(lowering, source)
    rank = max(len(p.dims) for p in places)
    between = tuple(next((p.dims[i] for p in places if len(p.dims) >= -i and p.dims[i]), ()) for i in range(-rank, 0))
    kept = [load.dims[d] for d in range(len(load.dims)) if d not in chosen]
    together = list(chosen) == list(range(chosen[0], chosen[0] + len(chosen)))
    start = chosen[0] if together else 0
    dims = (*kept[:start], *between, *kept[start:])
    trailing = len(dims) - start - rank
    picks: list[ir.Form | ir.Value] = list(load.index)
    inside: ir.Value | None = None
    for d, place in zip(chosen, places, strict=True):
        here = lowering.with_dims(place, (*place.dims, *[()] * trailing)) if trailing else place
        size = lowering.size(load.stored[d], here.dtype)
        here = lowering.op(lambda i, n: where(i < 0, i + n, i), here, size)
        fits = lowering.op(is_inside, here, size)
        picks[d] = lowering.cast(lowering.op(lambda fits, i: where(fits, i, 0), fits, here), "int64")
        inside = fits if inside is None else lowering.op(both, inside, fits)
    assert inside is not None
    found = replace_load(lowering, load, dims, picks)
    return lowering.op(lambda inside, x: where(inside, x, LOWEST.get(found.dtype, math.nan)), inside, found)


def replace_load(
    lowering: Lowering, load: ir.Load, dims: tuple[ir.Group, ...], picks: Sequence[ir.Form | ir.Value]
) -> ir.Value:
    """Return a load of the same buffer with other indices."""
    return lowering.tracked(ir.Load(dims, load.dtype, load.buffer, load.stored, tuple(picks), load.storage))


def diagonal(lowering: Lowering, node: Node) -> ir.Value:
    """Return a diagonal of two dimensions along a new last one."""
    value: ir.Value = apart(lowering, lowering.value(given(node, 0)))
    offset = given(node, 1, "offset", 0)
    rows, columns = given(node, 2, "dim1", 0) % len(value.dims), given(node, 3, "dim2", 1) % len(value.dims)
    along = loop(node.outputs[0].shape[-1])
    terms = tuple((a, 1) for a in along)
    value = lowering.reindex(value, rows, lambda: (ir.Form(terms, max(0, -offset)), ()))  # one loop, one dimension
    value = lowering.reindex(value, columns, lambda: (ir.Form(terms, max(0, offset)), along))
    return lowering.with_dims(value, (*(g for d, g in enumerate(value.dims) if d not in {rows, columns}), along))


def one_hot(lowering: Lowering, node: Node) -> ir.Value:
    value, classes = lowering.value(given(node, 0)), node.outputs[0].shape[-1]
    wide = lowering.with_dims(value, (*value.dims, ()))
    return lowering.cast(lowering.op(equal, wide, iota(lowering, loop(classes, fixed=True))), "int64")


# Writing a part -----------------------------------------------------------------------------------------------------


def slice_scatter(lowering: Lowering, node: Node) -> ir.Value:
    """Return the first tensor with a slice of it replaced by the second one."""
    value, source = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    dim = given(node, 2, "dim", 0) % len(value.dims)
    size, step = value.shape[dim], given(node, 5, "step", 1)
    start = min(given(node, 3, "start") or 0, size)
    return overlaid(lowering, value, source, dim, (max(start, -size), step))


def select_scatter(lowering: Lowering, node: Node) -> ir.Value:
    """Return the first tensor with one index of a dimension replaced by the second one."""
    value, source = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    dim = given(node, 2, "dim") % len(value.dims)
    source = lowering.with_dims(source, (*source.dims[:dim], (), *source.dims[dim:]))
    return overlaid(lowering, value, source, dim, (given(node, 3, "index"), 1))


def overlaid(lowering: Lowering, value: ir.Value, source: ir.Value, dim: int, slots: tuple[int, int]) -> ir.Value:
    """Return `value` where it is not covered by `source`, which lies along a dimension in steps.

    `slots`: where it starts, from the end below zero, and the step.
    """
    start, step = slots
    source = lowering.cast(source, value.dtype)
    if source.shape[dim] == value.shape[dim]:
        return stretched(lowering, source, value.shape)
    if len(ir.leaves(value.dims[dim])) > 1:
        value = lowering.reload(value)
    trailing = len(value.dims) - 1 - dim
    here = iota(lowering, value.dims[dim], trailing)
    first: ir.Value = ir.Const((), "int64", start)
    first = first if start >= 0 else lowering.op(add, length(lowering, value, dim), first)
    here = lowering.op(sub, here, first)
    count = length(lowering, source, dim)

    def covered(i: Expr, n: Expr) -> Expr:
        within = both(i >= 0, i < n * step)
        return within if step == 1 else both(within, equal(rest(i, step), 0))

    def place(i: Expr, n: Expr) -> Expr:
        return where(i < 0, 0, where(i >= n * step, n - 1, i if step == 1 else quotient(i, step)))

    inside = lowering.op(covered, here, count)
    covering = at(lowering, source, dim, lowering.op(place, here, count), value.dims[dim])
    return lowering.op(where, inside, covering, value)


def diff(lowering: Lowering, node: Node) -> ir.Value:
    """Return differences of neighbours along a dimension, `n` times over, with what is set before and after it."""
    value, dim = lowering.value(given(node, 0)), given(node, 2, "dim", -1)
    dim %= len(value.dims)
    for position, name in ((3, "prepend"), (4, "append")):
        if (more := given(node, position, name)) is not None:
            other = lowering.value(more)
            value = beside(lowering, *((other, value) if name == "prepend" else (value, other)), dim)
    for _ in range(given(node, 1, "n", 1)):
        size = value.shape[dim] - 1
        before, after = slice_value(lowering, value, dim, 0, size), slice_value(lowering, value, dim, 1, size)
        value = lowering.op(differ if value.dtype == "bool" else sub, after, before)
    return value


def beside(lowering: Lowering, left: ir.Value, right: ir.Value, dim: int) -> ir.Value:
    """Return two tensors side by side along a dimension, computed where they are read."""
    group = loop(left.shape[dim] + right.shape[dim])
    here = iota(lowering, group, len(left.dims) - 1 - dim)
    first = length(lowering, left, dim)
    on_left = at(lowering, left, dim, lowering.op(last_at_most, here, first), group)
    on_right = at(lowering, right, dim, lowering.op(lambda i, n: where(i < n, 0, i - n), here, first), group)
    return lowering.op(where, lowering.op(less, here, first), on_left, on_right)


def copy(lowering: Lowering, node: Node) -> ir.Value:
    """Return the second tensor in the form of the first one."""
    dtype = out_dtype(node)
    source = lowering.cast(lowering.value(given(node, 1), dtype), dtype)
    return stretched(lowering, source, node.outputs[0].shape)


def stretched(lowering: Lowering, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Return the value broadcast to a shape."""
    groups = [()] * (len(shape) - len(value.dims)) + list(value.dims)
    dims = tuple(g if ir.size_of(g) == n else loop(n) for g, n in zip(groups, shape, strict=True))
    return lowering.with_dims(value, dims)


def fill(lowering: Lowering, node: Node) -> ir.Value:
    """Return a number, or the element of a tensor, in the form of the first tensor: fill, zero."""
    number: Any = 0 if base_name(node.op) == "zero" else given(node, 1)
    dtype = out_dtype(node)
    value = lowering.cast(lowering.value(number, dtype), dtype)
    return stretched(lowering, value, node.outputs[0].shape)
