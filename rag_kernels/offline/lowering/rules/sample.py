"""Rules of images read at computed points, and of windows as columns: grid_sample, affine_grid, unfold, fold.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. All are expressions over loads at computed places: nothing is written to a place that is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import (
    Expr,
    Pointwise,
    absolute,
    both,
    cast,
    equal,
    floor,
    mul,
    nearest,
    quotient,
    rest,
    sqrt,
    square,
    sub,
    where,
)
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.computed import apart, at, iota, length, loop
from rag_kernels.offline.lowering.lower import Lowering
from rag_kernels.offline.lowering.rules.place import bordered, cubic_weight, is_inside
from rag_kernels.offline.lowering.rules.pool import windows, windows_along

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)

# Points -------------------------------------------------------------------------------------------------------------


def grid_sample(lowering: Lowering, node: Node) -> ir.Value:
    """Return an image read at points between -1 and 1, of which the grid has the last coordinate first."""
    value, grid = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    image = apart(lowering, one_of(lowering, value))
    how, padding, corners = given(node, 2), given(node, 3), bool(given(node, 4))
    rank = len(image.dims) - 2
    if image.dtype != grid.dtype or image.dtype not in {"float32", "float64"}:
        raise ir.Unfusable(f"points of {grid.dtype} in an image of {image.dtype}")
    if any(len(ir.leaves(group)) > 1 for group in grid.dims):
        grid = lowering.reload(grid)
    batch = image.dims[0] or value.dims[0]
    if batch and grid.dims[0]:
        lowering.loops.unify(batch, grid.dims[0])
    points = []
    for d in range(rank):
        part = at(lowering, grid, rank + 1, ir.Const((), "int64", rank - 1 - d), ())
        size = length(lowering, image, 2 + d, image.dtype)
        point = lowering.op(unnormalized(corners), part, size)
        if how != BICUBIC:
            point = lowering.op(back_inside(padding, corners), point, size)
        points.append(lowering.with_dims(point, (point.dims[0], (), *point.dims[1 : 1 + rank])))
    if how == NEAREST:
        return tap(lowering, image, [lowering.op(nearest, p) for p in points])
    reach = (-1, 0, 1, 2) if how == BICUBIC else (0, 1)
    below = [lowering.op(floor, p) for p in points]
    parts = [lowering.op(sub, p, low) for p, low in zip(points, below, strict=True)]
    total: ir.Value | None = None
    for steps in product(reach, repeat=rank):
        weight: ir.Value | None = None
        places = []
        for d, step in enumerate(steps):
            place = lowering.op(lambda low, step=step: low + step, below[d])
            if how == BICUBIC:
                place = lowering.op(back_inside(padding, corners), place, length(lowering, image, 2 + d, image.dtype))
            places.append(place)
            one = lowering.op(lambda t, step=step: weight_of(t, step, cubic=how == BICUBIC), parts[d])
            weight = one if weight is None else lowering.op(mul, weight, one)
        assert weight is not None
        term = lowering.op(mul, tap(lowering, image, places), weight)
        total = term if total is None else lowering.op(lambda a, b: a + b, total, term)
    assert total is not None
    return total


def one_of(lowering: Lowering, images: ir.Value) -> ir.Value:
    """Return one image where all are alike, a table that is expanded; else the images."""
    batch = ir.leaves(images.dims[0])
    alike = batch and ir.tree_atoms(images).isdisjoint(batch)
    return lowering.with_dims(images, ((), *images.dims[1:])) if alike else images


def unnormalized(corners: bool) -> Pointwise:
    """Return where between pixels a coordinate between -1 and 1 lies."""
    if corners:
        return lambda x, n: (x + 1) / 2 * (n - 1)
    return lambda x, n: ((x + 1) * n - 1) / 2


def back_inside(padding: int, corners: bool) -> Pointwise:
    """Return how a coordinate outside of the image is moved into it."""
    if padding == ZEROS:
        return lambda x, _: x
    if padding == BORDER:
        return clipped

    def reflected(x: Expr, n: Expr) -> Expr:
        low: Expr | float = 0.0 if corners else -0.5
        span = n - 1 if corners else n
        away = absolute(x - low)
        turns = floor(away / where(span > 0, span, 1))
        extra = away - turns * span
        even = equal(turns - 2 * floor(turns / 2), 0)
        found = where(even, extra + low, span - extra + low)
        return clipped(where(span > 0, found, 0.0), n)

    return reflected


def clipped(x: Expr, n: Expr) -> Expr:
    """Return a coordinate between the first and the last pixel; NaN becomes the first, as in PyTorch."""
    return where(x > 0, where(x < n - 1, x, n - 1), 0.0)


def weight_of(part: Expr, step: int, *, cubic: bool) -> Expr:
    """Return the weight of the pixel `step` after the one before a point, which lies `part` behind that."""
    if cubic:
        return cubic_weight(part, step)
    return part if step else 1 - part


def tap(lowering: Lowering, image: ir.Load, places: Sequence[ir.Value]) -> ir.Value:
    """Return the pixels at whole coordinates, 0 outside of the image."""
    inside: ir.Value | None = None
    picks: list[ir.Form | ir.Value] = list(image.index[:2])
    for d, place in enumerate(places):
        size = length(lowering, image, 2 + d, place.dtype)
        fits = lowering.op(is_inside, place, size)
        picks.append(lowering.op(lambda fits, i: cast(where(fits, i, 0), "int64"), fits, place))
        inside = fits if inside is None else lowering.op(both, inside, fits)
    assert inside is not None
    dims = (image.dims[0] or places[0].dims[0], image.dims[1], *places[0].dims[2:])
    pixel = lowering.tracked(ir.Load(dims, image.dtype, image.buffer, image.stored, tuple(picks), image.storage))
    return lowering.op(lambda inside, x: where(inside, x, 0), inside, pixel)


def affine_grid(lowering: Lowering, node: Node) -> ir.Value:
    """Return the points of an image's pixels under an affine map of each batch."""
    theta, size, corners = lowering.value(given(node, 0)), tuple(given(node, 1)), bool(given(node, 2))
    rank = len(size) - 2
    groups = [loop(n) for n in size[2:]]
    total = at(lowering, theta, 2, ir.Const((), "int64", rank), ())
    total = lowering.with_dims(total, (total.dims[0], *[()] * rank, total.dims[1]))
    for d in range(rank):
        column = at(lowering, theta, 2, ir.Const((), "int64", rank - 1 - d), ())
        column = lowering.with_dims(column, (column.dims[0], *[()] * rank, column.dims[1]))
        here = lowering.cast(iota(lowering, groups[d], rank - d), theta.dtype)
        count = lowering.size(groups[d], theta.dtype)

        def point(i: Expr, n: Expr) -> Expr:
            if corners:
                return where(n > 1, i * (2 / where(n > 1, n - 1, 1)) - 1, 0.0)
            return (2 * i + 1) / n - 1

        place = lowering.op(point, here, count)
        total = lowering.op(lambda t, c, x: t + c * x, total, column, place)
    return total


# Windows as columns -------------------------------------------------------------------------------------------------


def two(numbers: Any) -> list[int]:
    """Return one number for each of two dimensions."""
    found = list(numbers) if isinstance(numbers, tuple) else [numbers]
    return [int(n) for n in (found * 2 if len(found) == 1 else found)]


def im2col(lowering: Lowering, node: Node) -> ir.Value:
    """Return windows of images as columns: F.unfold."""
    value = lowering.value(given(node, 0))
    kernel, dilation, padding, stride = (two(given(node, i)) for i in range(1, 5))
    if len(value.dims) != 4:
        raise ir.Unfusable("no batch")
    sizes = [
        (value.shape[2 + d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in range(2)
    ]
    for d in range(2):
        value = bordered(lowering, value, 2 + d, (padding[d], padding[d]), "constant", ir.Const((), value.dtype, 0))
    read, over, guards = windows(lowering, value, kernel, stride, [0, 0], dilation, (*value.shape[:2], *sizes))
    assert not guards
    taps = iter(over)
    k = [(next(taps),) if size > 1 else () for size in kernel]
    return lowering.with_dims(read, (read.dims[0], (*read.dims[1], *k[0], *k[1]), (*read.dims[2], *read.dims[3])))


def col2im(lowering: Lowering, node: Node) -> ir.Value:
    """Return images whose pixels are sums over the windows that hold them: F.fold."""
    columns, size = lowering.value(given(node, 0)), tuple(given(node, 1))
    kernel, dilation, padding, stride = (two(given(node, i)) for i in range(2, 6))
    if len(columns.dims) != 3:
        raise ir.Unfusable("no batch")
    counts = [(size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in range(2)]
    batch, channels = columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1])
    columns = lowering.reload(columns) if not isinstance(columns, ir.Load) else columns
    value = lowering.view(apart(lowering, columns), (batch, channels, *kernel, *counts), fixed=(2, 3))
    inside: ir.Value | None = None
    for d in range(2):
        one = Window(kernel[d], dilation[d], padding[d], stride[d])
        value, hit = folded(lowering, value, d, loop(size[d]), one)
        inside = hit if inside is None else lowering.op(both, inside, hit)
    assert inside is not None
    value = lowering.op(lambda ok, x: where(ok, x, 0), inside, value)
    return lowering.reduce(Kind.SUM, value, (2, 3), keep=False)


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension."""

    size: int
    dilation: int
    pad: int
    stride: int

    @property
    def taps(self) -> int:
        """Return how many windows a pixel may lie in: of windows that step, some."""
        return -(-self.size // self.stride) if self.dilation == 1 else self.size


def folded(lowering: Lowering, value: ir.Value, d: int, pixels: ir.Group, window: Window) -> tuple[ir.Value, ir.Value]:
    """Return windows' elements at the pixels along one of two dimensions, and which of these elements there are.

    The element's place in its window, and the window's, are of the dimensions 2 + d and 4 + d of the value. Afterwards
    they are which of the pixel's windows it is, and the pixel's.
    """
    size, stride, pad = window.size, window.stride, window.pad
    here = iota(lowering, pixels, 1 - d)
    reach = window.dilation * (size - 1) + 1
    for leaf in ir.leaves(value.dims[4 + d]):
        leaf.along = leaf.along or windows_along(pixels, leaf.size, reach, stride, 2 * pad)
    count = length(lowering, value, 4 + d)
    if window.dilation == 1 and stride > 1:
        taps = () if window.taps == 1 else (ir.Atom(window.taps, fixed=True, window=True),)
        tap = iota(lowering, taps, 3 - d)
        found = lowering.op(lambda i, t: quotient(i + pad, stride) - t, here, tap)
        k = lowering.op(lambda i, w: i + pad - w * stride, here, found)
        hit = lowering.op(lambda w, k, n: both(both(w >= 0, w < n), k < size), found, k, count)
        value = at(lowering, value, 2 + d, lowering.op(lambda ok, k: where(ok, k, 0), hit, k), taps, light=True)
    else:
        tap = iota(lowering, value.dims[2 + d], 3 - d)
        moved = lowering.op(lambda i, k: i + pad - k * window.dilation, here, tap)
        hit = lowering.op(lambda i, n: both(both(i >= 0, i < n * stride), equal(rest(i, stride), 0)), moved, count)
        found = lowering.op(lambda i: quotient(i, stride), moved)
    place = lowering.op(lambda ok, w: where(ok, w, 0), hit, found)
    return at(lowering, value, 4 + d, place, pixels, light=True), hit


def cdist(lowering: Lowering, node: Node) -> ir.Value:
    """Return the distance of each row of the first tensor to each of the second."""
    left, right, p = lowering.value(given(node, 0)), lowering.value(given(node, 1)), given(node, 2, "p", 2)
    left = lowering.with_dims(left, (*left.dims[:-1], (), left.dims[-1]))
    right = lowering.with_dims(right, (*right.dims[:-2], (), *right.dims[-2:]))
    gap = lowering.op(lambda x, y: absolute(x - y), left, right)
    last = [len(gap.dims) - 1]
    if p == 2:
        return lowering.op(sqrt, lowering.reduce(Kind.SUM, lowering.op(square, gap), last, keep=False))
    if p not in (1, float("inf")):
        raise ir.Unfusable(f"a distance of order {p}")
    return lowering.reduce(Kind.SUM if p == 1 else Kind.MAX, gap, last, keep=False)
