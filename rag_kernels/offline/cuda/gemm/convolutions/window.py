"""Convolutions of sixteen-bit numbers, and of fp32 as TF32, on Hopper: implicit products that the copy engine feeds.

Comes in: a Contraction whose right factor is a tensor of images, channels and places read through a window, and whose
left factor are filters. Goes out: the kernel and its launch, as in `gemm_wgmma.py`, of which it is a case: rows are
filters, columns are pixels of all images, and a step of the depth is one place of the window and a block of channels.
Both factors are copied so that channels lie side by side; what the window reads outside of an image arrives as zeros.
Few channels take shorter lines in shared memory, of several places of the window in one step. A transposed convolution
with a stride is computed phase by phase, each a convolution of its own over the same copies. Groups of channels with
filters of their own are products of their own: each begins at its first channel and its first filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag_kernels.offline.codegen.contraction import Contraction, Phase, Side
from rag_kernels.offline.codegen.loop_nest import Loop, Poly, loop_over, merge, text_of
from rag_kernels.offline.cuda.gemm.hopper import text
from rag_kernels.offline.cuda.gemm.hopper.shape import LINE, Product, best_shape, shape_of
from rag_kernels.offline.cuda.gemm.hopper.tma_matrix import Matrix, common_step, plain_load
from rag_kernels.offline.cuda.gemm.hopper.wgmma import WgmmaKernel
from rag_kernels.offline.cuda.gemm.tensor_core import TensorKernel
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import operands, strip

FEWEST = 16  # channels: below, gathered tiles are faster
REACH = {1: (1 << 15, (1 << 16) - 1), 2: (1 << 7, (1 << 8) - 1), 3: (1 << 4, (1 << 5) - 1)}
"""By dimensions of a window: how far it may begin outside of an image, and how far it may reach."""
FILLED = 128  # lanes of a tile that an image should fill
BEYOND = 1 << 24  # no filter has so many elements


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension along which a window moves: its size and places as C, where the window begins and what it takes.

    `first` is where the first window begins, `every` is between windows, `apart` between elements of one; `backwards`
    where the filter's first element meets the last of these. `whole` are the filter's elements along it; in a phase
    those that it takes are `begin`, `begin + step`, ..., and windows begin `later` than the earliest of all phases.
    """

    size: str
    places: str
    first: int
    every: int
    apart: int
    taps: str
    backwards: bool
    whole: int
    begin: str = "0"
    step: int = 1
    later: str = ""
    fewest: int = 0  # elements of a window, in any phase
    most: int = 0
    reach: int = 0  # how far beyond the first element of a window, in any phase, another one lies
    count: int = 0  # windows

    def of_filter(self, tap: str) -> str:
        """Return which of the filter's elements a tap is, as C."""
        return tap if self.begin == "0" else f"({self.begin} + {tap} * {self.step})"


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor that is read through a window: images, channels of a group and of all, and axes, outermost first."""

    load: ir.Load
    images: str
    channels: str
    every: str
    axes: tuple[Axis, ...]

    @property
    def places(self) -> str:
        """Return how many elements a channel has, as C."""
        return " * ".join(f"int64_t({axis.size})" for axis in self.axes)

    @property
    def taps(self) -> str:
        """Return the elements of a window, as C."""
        plain = all(axis.taps.isdigit() for axis in self.axes)
        return str(self.whole) if plain else f"({' * '.join(axis.taps for axis in self.axes)})"

    @property
    def whole(self) -> int:
        """Return the elements of a filter."""
        return math.prod(axis.whole for axis in self.axes)


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


def places_of(index: Sequence[ir.Form | ir.Value]) -> tuple[list[ir.Form], list[int]]:
    """Return indices as forms, and the numbers that these are divided by; as many as there are of this kind."""
    forms: list[ir.Form] = []
    over: list[int] = []
    for item in index:
        form, divisor = item, 1
        parts = operands(item, Operator.QUOTIENT) if isinstance(item, ir.Value) else None
        if parts and isinstance(parts[0], ir.Index) and isinstance(parts[1], ir.Const):
            form, divisor = parts[0].form, int(parts[1].number)
        if isinstance(form, ir.Form) and not form.sizes:
            forms.append(form)
            over.append(divisor)
    return forms, over


@dataclass(frozen=True, slots=True)
class Place:
    """Where windows lie along one dimension: `offset + window * every + tap * apart`, of so many of each, in `size`."""

    offset: int
    every: int
    apart: int
    windows: int
    taps: int
    size: int

    def of_phase(self, phase: Phase, number: int) -> Place | None:
        """Return the windows of one phase, whose places are multiples of the stride; None where these are empty."""
        if phase.first[number] >= BEYOND:
            return None
        offset = number + self.offset + phase.first[number] * self.apart
        windows = (self.windows - number + phase.stride - 1) // phase.stride
        return Place(offset // phase.stride, 1, self.apart_in(phase), windows, phase.taps[number], self.size)

    def apart_in(self, phase: Phase) -> int:
        """Return what lies between two elements of a phase's window."""
        return self.apart * phase.step // phase.stride if max(phase.taps) > 1 else -1

    def fits(self, dimensions: int, phase: Phase | None) -> bool:
        """Return whether the copy engine reaches all of it, in every phase."""
        if phase:
            places = [place for n in range(phase.stride) if (place := self.of_phase(phase, n))]
            far = max(p.offset for p in places) - min(p.offset + (p.taps - 1) * p.apart for p in places)
            return far <= REACH[dimensions][1] and all(p.fits(dimensions, None) for p in places)
        reach = (self.taps - 1) * abs(self.apart)
        first = self.offset - (reach if self.apart < 0 else 0)
        last = first + (self.windows - 1) * self.every - (self.size - 1)
        below, far = REACH[dimensions]
        return 0 < self.every <= 8 and reach <= far and first >= -below and abs(last) + self.every <= below - 1


def axis_of(place: Place) -> Axis:
    """Return a dimension without phases; its sizes are left out."""
    first = place.offset - ((place.taps - 1) * -place.apart if place.apart < 0 else 0)
    apart, back = abs(place.apart), place.apart < 0
    reach, taps = (place.taps - 1) * apart, place.taps
    axis = Axis("", "", first, place.every, apart, str(taps), back, taps, fewest=taps, most=taps, reach=reach)
    return replace(axis, count=place.windows)


def phased(number: int, phase: Phase, place: Place) -> Axis | None:
    """Return a dimension of a transposed convolution with a stride, whose phase has that number, or None."""
    fewest, most = min(phase.taps), max(phase.taps)
    if place.every != 1 or place.apart > 0 or (most > 1 and place.apart * phase.step % phase.stride):
        return None
    places = [place.of_phase(phase, n) for n in range(phase.stride)]
    firsts = [p.offset + (p.taps - 1) * p.apart if p else None for p in places]
    first = min(at for at in firsts if at is not None)
    later = [0 if at is None else at - first for at in firsts]
    told = "".join(f"phase{number} == {n} ? {at} : " for n, at in enumerate(later[:-1]))
    apart = -place.apart_in(phase)
    reach = max((p.taps - 1) * apart + at for p, at in zip(places, later, strict=True) if p)
    axis = Axis("", "", first, 1, apart, f"taps{number}", True, place.taps, fewest=fewest, most=most, reach=reach)
    count = -(-place.windows // phase.stride)
    return replace(axis, begin=f"first{number}", step=phase.step, later=f"({told}{later[-1]})", count=count)


def filled(phase: Phase) -> Phase:
    """Return a phase whose empty windows have one element each, beyond the filter's end, which is read as zero."""
    first = tuple(at if count else BEYOND for at, count in zip(phase.first, phase.taps, strict=True))
    return replace(phase, first=first, taps=tuple(max(1, count) for count in phase.taps))


def window_read(c: Contraction, side: Side) -> _Found | None:
    """Return the factor as a tensor read through a window, or None if it is none."""
    load = strip(side.value)
    if c.second or (c.batches and c.phases) or not isinstance(load, ir.Load) or len(load.stored) not in (3, 4, 5):
        return None
    forms, over = places_of(load.index)
    lanes = [leaf for loop in side.lanes for leaf in loop.leaves]
    depth = {leaf for loop in c.depth for leaf in loop.leaves}
    if len(forms) != len(load.index) or set(over[:2]) - {1}:
        return None
    image, channel = (terms_of(form) for form in forms[:2])
    pixels, of_all = (tuple(leaf for group in found for leaf in group) for found in (image, channel))
    groups = tuple(leaf for loop in c.batches for leaf in loop.leaves)
    channels = of_all[len(groups) :]
    plain = all(f.offset == 0 and set(terms_of(f).values()) <= {1} for f in forms[:2])
    if not plain or not set(pixels) <= set(lanes) or of_all[: len(groups)] != groups or not set(channels) <= depth:
        return None
    if ir.size_of(pixels) != ir.size_of(load.stored[0]) or ir.size_of(of_all) != ir.size_of(load.stored[1]):
        return None
    axes: list[Axis] = []
    taps: list[ir.Atom] = []
    for form, divisor, stored in zip(forms[2:], over[2:], load.stored[2:], strict=True):
        moved = [(group, factor) for group, factor in terms_of(form).items() if set(group) <= set(lanes)]
        inside = [(group, factor) for group, factor in terms_of(form).items() if set(group) <= depth]
        if len(moved) + len(inside) != len(form.terms) or len(moved) > 1 or len(inside) > 1:
            return None
        group, every = moved[0] if moved else ((), 1)
        (taken, apart) = inside[0] if inside else ((), 1)
        made = Place(form.offset, every, apart, ir.size_of(group), ir.size_of(taken), ir.size_of(stored))
        number = next((n for n, p in enumerate(c.phases) if (p.output,) == group and divisor == p.stride), None)
        axis = phased(number, c.phases[number], made) if number is not None else axis_of(made) if divisor == 1 else None
        if axis is None or not made.fits(len(forms) - 2, c.phases[number] if number is not None else None):
            return None
        names = c.nest.names
        loop = next((loop for loop in c.columns if loop.leaves == group), None)
        places = c.extent(loop) if number is not None and loop else names.product(group)
        axes.append(replace(axis, size=names.product(stored), places=places))
        pixels, taps = (*pixels, *group), [*taps, *taken]
    for guard in side.guards:
        if not any(
            same(guard.form, form) and guard.limit == stored and guard.every == divisor
            for form, divisor, stored in zip(forms[2:], over[2:], load.stored[2:], strict=True)
        ):
            return None
    if list(pixels) != lanes or len(channels) + len(taps) != len(depth):
        return None
    names = c.nest.names
    images, all_ = names.product(load.stored[0]), names.product(load.stored[1])
    window = Window(load, images, names.product(channels) if groups else all_, all_, tuple(axes))
    return _Found(window, channels, tuple(taps))


def filters_read(c: Contraction, side: Side, found: _Found) -> _Found | None:
    """Return the window with its filters, or None if these are computed or have no steps of their own."""
    load = plain_load(side)
    if load is None or c.nest.accesses[load].values:
        return None
    access, names = c.nest.accesses[load], c.nest.names
    each = [[Loop((leaf,), "", "", leaf.size) for leaf in group] for group in (found.channels, found.taps)]
    rows = [*c.batches, *side.lanes]
    row, channel = common_step(access, rows, names), common_step(access, each[0], names)
    one: Poly = {(): 1}
    tap = common_step(access, each[1], names) if each[1] else one
    if not row or not channel or not tap:
        return None
    found.steps = (row, tap, channel)
    sizes = (found.window.channels, str(found.window.whole), c.extents(rows))
    found.filters = Matrix(load, access.constant, sizes, (channel, tap, row), ("term", "tap", "lane"))
    return found


def by_images(kernel: TensorKernel) -> TensorKernel | None:
    """Return a product whose columns, or rows, are lanes of several images as one with a product for each image.

    A convolution of one place reads its input so, without a copy, where an image has lanes enough to fill tiles; of
    sixteen bits: gathered tiles are faster than what TF32 would take through registers. None: there are no such.
    """
    c = kernel.contraction
    if c.second or c.phases or kernel.numbers not in HALF:
        return None
    right, left = plain_load(c.right), plain_load(c.left)
    if right is not None and (apart := _apart(with_merged_columns(c, right).columns)):
        images, inner = apart
        nest = replace(c.nest, outer=[*c.batches, *images, *c.rows, inner])
        c = replace(c, nest=nest, batches=[*c.batches, *images], right=replace(c.right, lanes=[inner]))
    elif left is not None and (apart := _apart(c.rows)):
        images, inner = apart
        nest = replace(c.nest, outer=[*c.batches, *images, inner, *c.columns])
        c = replace(c, nest=nest, batches=[*c.batches, *images], left=replace(c.left, lanes=[inner]))
    else:
        return None
    return replace(kernel, contraction=c, printer=replace(kernel.printer, nest=c.nest))


def _apart(lanes: list[Loop]) -> tuple[list[Loop], Loop] | None:
    """Return the loops over images and the lanes of one, if these fill tiles."""
    *images, inner = lanes
    filled = inner.count / (-(-inner.count // FILLED) * FILLED)
    return (images, inner) if images and not inner.count % 8 and inner.count >= FILLED and filled >= 0.75 else None


def with_merged_columns(c: Contraction, *read: ir.Load) -> Contraction:
    """Return the contraction with columns merged as far as what stands behind the sum, and these loads, allow."""
    stores = c.nest.region.stores
    behind = list(ir.walk(*stores.values(), enter=lambda v: v not in c.totals))
    loads = [*read, *(v for v in behind if isinstance(v, ir.Load))]
    every = [*c.nest.stores.values(), *(c.nest.accesses[v] for v in loads)]
    pinned = {leaf for v in behind if isinstance(v, ir.Index) for leaf in ir.own_atoms(v)}
    pinned |= {phase.output for phase in c.phases}
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
    channels: int = 0  # of this problem

    def note(self, needs: Needs) -> None:
        assert self.window and self.left
        needs.tiles = True
        needs.copy_engine = needs.copies = needs.windows = True
        needs.columns.add(self.shape.columns)

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
        return self.terms_of(str(self.window.whole))

    @property
    def least_terms(self) -> str:
        assert self.window
        return self.terms_of(str(math.prod(axis.fewest for axis in self.window.axes)))

    def terms_of(self, taps: str) -> str:
        """Return the terms of so many elements of a window."""
        assert self.window
        return f"{taps} * (({self.window.channels} + {self.block - 1}) / {self.block}) * {self.block}"

    def begin(self) -> str:
        """Return the statements by which blocks find their tiles, and the phase of each."""
        c, kept = self.contraction, WgmmaKernel.begin(self)
        if not c.phases or self.window is None:
            return kept
        lines = []
        for n, phase in reversed(list(enumerate(self.phases_apart()))):
            lines.append(f"phase{n} = which % {phase.stride}, which /= {phase.stride};")
        lines += c.phase_tables("")
        item = text.ITEM_OF_PHASE.replace("PHASE\n", "".join(f"  {line}\n" for line in lines))
        declared = [f"int phase{n} = 0, first{n} = 0, taps{n} = 0;" for n in range(len(c.phases))]
        item = item.replace("TERMS", self.terms_of(self.window.taps))
        return "\n".join([*declared, text.BEGIN.replace("ITEM\n", item)])

    def phases_apart(self) -> list[Phase]:
        """Return the phases, of the first axes that have some, of which a tile has one each."""
        return list(self.contraction.phases)

    @property
    def phases(self) -> int:
        return math.prod(phase.stride for phase in self.phases_apart())

    def before_loads(self) -> list[str]:
        """Return the statements that say where the window of a tile's first pixel begins."""
        assert self.window
        share = self.shape.columns // self.shape.cluster
        lines = [f"const int pixel = column0{f' + int(rank) * {share}' if self.shape.cluster > 1 else ''};"]
        rest = "pixel"
        for n, axis in reversed(list(enumerate(self.window.axes))):
            lines.append(f"const int from_{n} = {rest} % ({axis.places}) * {axis.every} + {axis.first};")
            rest = f"({rest} / ({axis.places}))"
        lines.append(f"const int image = {rest};")
        if self.contraction.batches:
            lines.append(f"const int of_group = z * {self.window.channels}, filter0 = z * rows + row0;")
        return lines

    def loads(self) -> list[str]:
        """Return the statements that fill a stage, line by line of a pixel."""
        assert self.window
        s, taps, out = self.shape, self.window.taps, []
        share, all_ = s.columns // s.cluster, s.cluster > 1
        for n in range(LINE // self.line):
            place = f"(k * {LINE // self.line} + {n})" if self.line < LINE else "k"
            out += [f"const int tap{n} = {place} % {taps}, channel{n} = {place} / {taps} * {self.block};"]
            offsets, tap = self.places_of_tap(f"tap{n}")
            froms = [f"from_{k}" for k in reversed(range(len(self.window.axes)))]
            grouped = bool(self.contraction.batches)
            channel, row = (f"of_group + channel{n}", "filter0") if grouped else (f"channel{n}", "row0")
            places = ", ".join([channel, *froms, "image", *offsets])
            left = f"left + {n * s.rows * self.line}"
            right = f"right + {n * s.columns * self.line}" + (f" + rank * {share * self.line}" if all_ else "")
            out.append(f"rk::tma_load(&left_map, {left}, bar, channel{n}, {tap}, {row});")
            several, mask = ("_all", f"{(1 << s.cluster) - 1}, ") if all_ else ("", "")
            out.append(f"rk::tma_load_window{several}(&right_map, {right}, bar, {mask}{places});")
        return out

    def places_of_tap(self, number: str) -> tuple[list[str], str]:
        """Return where a window's element of this number lies along each axis, innermost first, and the filter's."""
        assert self.window
        rest, offsets, of_filter, below = number, list[str](), list[str](), 1
        for axis in reversed(self.window.axes):
            at = f"{rest} % {axis.taps}"
            offset = f"({axis.taps} - 1 - {at}) * {axis.apart}" if axis.backwards else f"{at} * {axis.apart}"
            offsets.append(f"{offset} + {axis.later}" if axis.later else offset)
            of_filter.append(f"{axis.of_filter(f'({at})')}{f' * {below}' if below > 1 else ''}")
            rest, below = f"({rest} / {axis.taps})", below * axis.whole
        return offsets, " + ".join(of_filter) if self.contraction.phases else number

    def condition(self, pointers: dict[str, str]) -> str:
        assert self.window and self.left
        pixels = self.contraction.extents(self.contraction.columns)
        channels, taps, rows = self.left.sizes
        sizes = ", ".join(f"int64_t({text})" for text in (self.window.images, channels, taps, rows, pixels))
        return f"tma_counts({{{sizes}, {self.window.places}}}) && {channels} >= {FEWEST}"

    def map(self, matrix: Matrix, name: str, lanes: int, pointers: dict[str, str]) -> list[str]:
        assert self.window and self.left
        w, line = self.window, f", {self.line}" if self.line < LINE or self.rounded() else ""
        if name == "left":
            place = pointers[matrix.load.buffer] + (f" + {text_of(matrix.start)}" if matrix.start else "")
            row, tap, channel = (f"int64_t({text_of(step)})" for step in self.steps)
            channels, taps, rows = matrix.sizes
            given = f"{place}, {rows}, {taps}, int({channels}), {row}, {tap}, {channel}, stream"
            sizes = f"{{int64_t({channels}), {taps}, int64_t({rows})}}"
            return [
                f"const auto left_factor = tma_filters({given});",
                f"const CUtensorMap left_map = rk::tma_map<3>(left_factor.copy, {sizes}, left_factor.strides, "
                f"{{{self.block}, 1, {lanes}}}{line}{self.rounded()});",
            ]
        inner = w.axes[::-1]
        sizes = ", ".join(f"int64_t({t})" for t in (w.every, *(axis.size for axis in inner), w.images))
        lower = ", ".join(str(axis.first) for axis in inner)
        upper = ", ".join(f"int64_t({a.places} - 1) * {a.every} + {a.first} - int64_t({a.size} - 1)" for a in inner)
        every = ", ".join(str(axis.every) for axis in inner)
        return [
            f"const auto right_factor = tma_channels({pointers[w.load.buffer]}, {w.images}, int({w.every}), "
            f"int({w.places}), stream);",
            f"const CUtensorMap right_map = rk::tma_window_map<{len(inner) + 2}>(right_factor.copy, {{{sizes}}}, "
            f"{{{lower}}}, {{{upper}}}, {{{every}}}, {self.block}, {lanes}{self.rounded()});",
        ]


def line_for(channels: int, itemsize: int) -> int:
    """Return the bytes of a line: the longest with which steps have least to fill up."""
    return min((128, 64, 32), key=lambda line: (-(-channels * itemsize // line) * line, -line))


def window_kernel(kernel: TensorKernel, wanted: tuple[int, int, int], fewest: int = FEWEST) -> WindowKernel | None:
    """Return the kernel for a contraction in one pass whose right factor is read through a window, or None.

    There is none for fewer channels than `fewest`.
    """
    phases = [filled(phase) for phase in kernel.contraction.phases if any(phase.taps)]
    c, numbers = replace(kernel.contraction, phases=phases, together=True), kernel.numbers
    found = window_read(c, c.right) if numbers else None
    found = filters_read(c, c.left, found) if found else None
    if found is None or found.filters is None:
        return None
    window, itemsize = found.window, 2 if numbers in HALF else 4
    if ir.size_of(found.channels) < fewest:
        return None
    if {window.load.storage, found.filters.load.storage} != {numbers if numbers in HALF else "float32"}:
        return None
    channels, often = ir.size_of(found.channels), math.prod(phase.stride for phase in phases)
    line = line_for(channels, itemsize)
    if c.batches and channels * itemsize % line:
        return None  # a line would have channels of the next group
    depth = window.whole * -(-channels * itemsize // line) * line // (2 * often)  # as of sixteen bits, on the average
    product = Product(c.count(c.rows), c.count(c.columns), c.count(c.batches), depth)
    pixels = Matrix(window.load, {}, (), (), ("term", "lane"))
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
        shape_of(wanted, best_shape(product)),
        product=product,
        window=window,
        steps=found.steps,
        bytes_of_line=line,
        channels=channels,
    )
