"""Convolutions of sixteen-bit numbers, and of fp32 as TF32, on Hopper: implicit products that the copy engine feeds.

Comes in: a Contraction whose right factor is a tensor of images, channels and places read through a window, and whose
left factor are filters. Goes out: the kernel and its launch, as in `gemm_wgmma.py`, of which it is a case: rows are
filters, columns are pixels of all images, and a step of the depth is one place of the window and a block of channels.
Both factors are copied so that channels lie side by side; what the window reads outside of an image arrives as zeros.
Few channels take shorter lines in shared memory, of several places of the window in one step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rag_kernels.offline.codegen.contraction import Contraction, Side
from rag_kernels.offline.codegen.loop_nest import Loop, Poly, loop_over, merge, text_of
from rag_kernels.offline.cuda.gemm.tensor_core import TensorKernel
from rag_kernels.offline.cuda.gemm.wgmma import (
    LINE,
    Matrix,
    Shape,
    WgmmaKernel,
    common_step,
    plain_load,
    shape_for,
    shape_of,
)
from rag_kernels.offline.cuda.hopper import TENSOR_MAP_TYPES
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.patterns import strip

FEWEST = 16  # channels: below, most of a step would be zeros
REACH = {1: (1 << 15, (1 << 16) - 1), 2: (1 << 7, (1 << 8) - 1), 3: (1 << 4, (1 << 5) - 1)}
"""By dimensions of a window: how far it may begin outside of an image, and how far it may reach."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension along which a window moves: its size and places as C, where the window begins and what it takes.

    `first` is where the first window begins, `every` is between windows, `apart` between elements of one; `backwards`
    where the filter's first element meets the last of these.
    """

    size: str
    places: str
    first: int
    every: int
    apart: int
    taps: int
    backwards: bool


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor that is read through a window: images, channels, and axes, outermost first."""

    load: ir.Load
    images: str
    channels: str
    axes: tuple[Axis, ...]

    @property
    def places(self) -> str:
        """Return how many elements a channel has, as C."""
        return " * ".join(f"int64_t({axis.size})" for axis in self.axes)

    @property
    def taps(self) -> int:
        """Return the elements of a window."""
        total = 1
        for axis in self.axes:
            total *= axis.taps
        return total


def terms_of(form: ir.Form) -> dict[tuple[ir.Atom, ...], int]:
    """Return the factors of a form by the leaves of its loops."""
    return {atom.leaves(): factor for atom, factor in form.terms}


def same(a: ir.Form, b: ir.Form) -> bool:
    """Return whether two forms are equal."""
    return terms_of(a) == terms_of(b) and a.offset == b.offset and not a.sizes and not b.sizes


@dataclass(slots=True)
class _Found:
    """A window, and the loops of its channels, of its elements, and of its pixels in the order of memory."""

    window: Window
    channels: tuple[ir.Atom, ...]
    taps: tuple[ir.Atom, ...]
    filters: Matrix | None = None
    steps: tuple[Poly, Poly, Poly] = ({}, {}, {})


def window_read(c: Contraction, side: Side) -> _Found | None:
    """Return the factor as a tensor read through a window, or None if it is none."""
    load = strip(side.value)
    if c.phases or c.batches or c.second or not isinstance(load, ir.Load) or len(load.stored) not in (3, 4, 5):
        return None
    forms = [item for item in load.index if isinstance(item, ir.Form) and not item.sizes]
    lanes = [leaf for loop in side.lanes for leaf in loop.leaves]
    depth = {leaf for loop in c.depth for leaf in loop.leaves}
    if len(forms) != len(load.index):
        return None
    image, channel = (terms_of(form) for form in forms[:2])
    pixels, channels = (tuple(leaf for group in found for leaf in group) for found in (image, channel))
    plain = all(f.offset == 0 and set(terms_of(f).values()) <= {1} for f in forms[:2])
    if not plain or not set(pixels) <= set(lanes) or not set(channels) <= depth:
        return None
    if ir.size_of(pixels) != ir.size_of(load.stored[0]) or ir.size_of(channels) != ir.size_of(load.stored[1]):
        return None
    axes: list[Axis] = []
    taps: list[ir.Atom] = []
    for form, stored in zip(forms[2:], load.stored[2:], strict=True):
        moved = [(group, factor) for group, factor in terms_of(form).items() if set(group) <= set(lanes)]
        inside = [(group, factor) for group, factor in terms_of(form).items() if set(group) <= depth]
        if len(moved) + len(inside) != len(form.terms) or len(moved) > 1 or len(inside) > 1:
            return None
        group, every = moved[0] if moved else ((), 1)
        (taken, apart) = inside[0] if inside else ((), 1)
        count, first = ir.size_of(taken), form.offset
        reach = (count - 1) * abs(apart)
        first -= reach if apart < 0 else 0
        axis = Axis(
            c.nest.names.product(stored), c.nest.names.product(group), first, every, abs(apart), count, apart < 0
        )
        last = first + (ir.size_of(group) - 1) * every - (ir.size_of(stored) - 1)
        below, far = REACH[len(forms) - 2]
        if not 0 < every <= 8 or reach > far or first < -below or abs(last) + every > below - 1:
            return None
        axes.append(axis)
        pixels, taps = (*pixels, *group), [*taps, *taken]
    for guard in side.guards:
        if guard.every != 1 or not any(
            same(guard.form, form) and guard.limit == stored
            for form, stored in zip(forms[2:], load.stored[2:], strict=True)
        ):
            return None
    if list(pixels) != lanes or len(channels) + len(taps) != len(depth):
        return None
    names = c.nest.names
    window = Window(load, names.product(load.stored[0]), names.product(load.stored[1]), tuple(axes))
    return _Found(window, channels, tuple(taps))


def filters_read(c: Contraction, side: Side, found: _Found) -> _Found | None:
    """Return the window with its filters, or None if these are computed or have no steps of their own."""
    load = plain_load(side)
    if load is None or c.nest.accesses[load].values:
        return None
    access, names = c.nest.accesses[load], c.nest.names
    each = [[Loop((leaf,), "", "", leaf.size) for leaf in group] for group in (found.channels, found.taps)]
    row, channel = common_step(access, side.lanes, names), common_step(access, each[0], names)
    one: Poly = {(): 1}
    tap = common_step(access, each[1], names) if each[1] else one
    if not row or not channel or not tap:
        return None
    found.steps = (row, tap, channel)
    sizes = (found.window.channels, str(found.window.taps), c.extents(side.lanes))
    found.filters = Matrix(load, access.constant, sizes, (channel, tap, row), ("term", "tap", "lane"))
    return found


def with_merged_columns(c: Contraction) -> Contraction:
    """Return the contraction with columns merged as far as what stands behind the sum allows."""
    stores = c.nest.region.stores
    behind = list(ir.walk(*stores.values(), enter=lambda v: v not in c.totals))
    every = [*c.nest.stores.values(), *(c.nest.accesses[v] for v in behind if isinstance(v, ir.Load))]
    pinned = {leaf for v in behind if isinstance(v, ir.Index) for leaf in ir.own_atoms(v)}
    leaves = [leaf for loop in c.columns for leaf in loop.leaves]
    loops = [loop_over(g, f"j{k}", c.nest.names) for k, g in enumerate(merge(leaves, every, pinned, c.nest.names))]
    nest = replace(c.nest, outer=[*c.batches, *c.rows, *loops])
    return replace(c, nest=nest, right=replace(c.right, lanes=loops))


@dataclass(slots=True)
class WindowKernel(WgmmaKernel):
    """A kernel for a convolution."""

    window: Window | None = None
    steps: tuple[Poly, Poly, Poly] = ({}, {}, {})  # of filters: rows, places of the window, channels
    bytes_of_line: int = LINE

    @property
    def line(self) -> int:
        return self.bytes_of_line

    @property
    def block(self) -> int:
        """Return the channels of a line."""
        return self.line // self.itemsize

    @property
    def terms(self) -> str:
        """Return the terms with those that fill up the last block of channels, as C."""
        assert self.window
        return f"{self.window.taps} * (({self.window.channels} + {self.block - 1}) / {self.block}) * {self.block}"

    def before_loads(self) -> list[str]:
        """Return the statements that say where the window of a tile's first pixel begins."""
        assert self.window
        share = self.shape.columns // self.shape.cluster
        lines = [f"const int pixel = column0{f' + int(rank) * {share}' if self.shape.cluster > 1 else ''};"]
        rest = "pixel"
        for n, axis in reversed(list(enumerate(self.window.axes))):
            lines.append(f"const int from_{n} = {rest} % ({axis.places}) * {axis.every} + {axis.first};")
            rest = f"({rest} / ({axis.places}))"
        return [*lines, f"const int image = {rest};"]

    def loads(self) -> list[str]:
        """Return the statements that fill a stage, line by line of a pixel."""
        assert self.window
        s, taps, out = self.shape, self.window.taps, []
        share, all_ = s.columns // s.cluster, s.cluster > 1
        for n in range(LINE // self.line):
            place = f"(k * {LINE // self.line} + {n})" if self.line < LINE else "k"
            out += [f"const int tap{n} = {place} % {taps}, channel{n} = {place} / {taps} * {self.block};"]
            rest, offsets = f"tap{n}", []
            for axis in reversed(self.window.axes):
                at = f"{rest} % {axis.taps}"
                offsets.append(f"({axis.taps - 1} - {at}) * {axis.apart}" if axis.backwards else f"{at} * {axis.apart}")
                rest = f"({rest} / {axis.taps})"
            froms = [f"from_{k}" for k in reversed(range(len(self.window.axes)))]
            places = ", ".join([f"channel{n}", *froms, "image", *offsets])
            left = f"left + {n * s.rows * self.line}"
            right = f"right + {n * s.columns * self.line}" + (f" + rank * {share * self.line}" if all_ else "")
            out.append(f"tma_load(&left_map, {left}, bar, channel{n}, tap{n}, row0);")
            name, mask = ("tma_load_window_all", f"{(1 << s.cluster) - 1}, ") if all_ else ("tma_load_window", "")
            out.append(f"{name}(&right_map, {right}, bar, {mask}{places});")
        return out

    def condition(self, pointers: dict[str, str]) -> str:
        assert self.window and self.left
        pixels = self.contraction.extents(self.contraction.columns)
        channels, taps, rows = self.left.sizes
        sizes = ", ".join(f"int64_t({text})" for text in (self.window.images, channels, taps, rows, pixels))
        return f"tma_counts({{{sizes}, {self.window.places}}}) && {channels} >= {FEWEST}"

    def map(self, matrix: Matrix, name: str, lanes: int, pointers: dict[str, str]) -> list[str]:
        assert self.window and self.left
        w, kind = self.window, TENSOR_MAP_TYPES[self.numbers]
        if name == "left":
            place = pointers[matrix.load.buffer] + (f" + {text_of(matrix.start)}" if matrix.start else "")
            row, tap, channel = (f"int64_t({text_of(step)})" for step in self.steps)
            channels, taps, rows = matrix.sizes
            given = f"{place}, {rows}, {taps}, int({channels}), {row}, {tap}, {channel}, stream"
            sizes = f"{{int64_t({channels}), {taps}, int64_t({rows})}}"
            return [
                f"const auto left_factor = tma_filters({given});",
                f"const CUtensorMap left_map = tma_map<3>({kind}, {self.itemsize}, left_factor.copy, {sizes}, "
                f"left_factor.strides, {{{self.block}, 1, {lanes}}});",
            ]
        inner = w.axes[::-1]
        places = w.places
        sizes = ", ".join(f"int64_t({t})" for t in (w.channels, *(axis.size for axis in inner), w.images))
        lower = ", ".join(str(axis.first) for axis in inner)
        upper = ", ".join(f"int64_t({a.places} - 1) * {a.every} + {a.first} - int64_t({a.size} - 1)" for a in inner)
        every = ", ".join(str(axis.every) for axis in inner)
        return [
            f"const auto right_factor = tma_channels({pointers[w.load.buffer]}, {w.images}, int({w.channels}), "
            f"int({places}), stream);",
            f"const CUtensorMap right_map = tma_window_map<{len(inner) + 2}>({kind}, {self.itemsize}, "
            f"right_factor.copy, {{{sizes}}}, {{{lower}}}, {{{upper}}}, {{{every}}}, {self.block}, {lanes});",
        ]


def line_for(channels: int, itemsize: int) -> int:
    """Return the bytes of a line: the longest with which steps have least to fill up."""
    return min((128, 64, 32), key=lambda line: (-(-channels * itemsize // line) * line, -line))


def window_kernel(kernel: TensorKernel, wanted: tuple[int, int, int]) -> WindowKernel | None:
    """Return the kernel for a contraction in one pass whose right factor is read through a window, or None."""
    c, numbers = kernel.contraction, kernel.numbers
    found = window_read(c, c.right) if numbers else None
    found = filters_read(c, c.left, found) if found else None
    if found is None or found.filters is None or ir.size_of(found.channels) < FEWEST:
        return None
    window, itemsize = found.window, 2 if numbers in HALF else 4
    if itemsize == 4 and {window.load.storage, found.filters.load.storage} != {"float32"}:
        return None
    shape: Shape = shape_of(wanted, shape_for(c, itemsize))
    pixels = Matrix(window.load, {}, (), (), ("term", "lane"))
    line = line_for(ir.size_of(found.channels), itemsize)
    merged = with_merged_columns(c)
    return WindowKernel(
        merged,
        replace(kernel.printer, nest=merged.nest),
        kernel.kind,
        0,
        kernel.tile,
        numbers,
        found.filters,
        pixels,
        shape,
        window=window,
        steps=found.steps,
        bytes_of_line=line,
    )
