"""Convolutions of fp32 as TF32 on Hopper whose pixels go through registers, so that nothing is copied.

Comes in: a convolution that `window.py` can compute, with steps of one along its last two axes. Goes out: another
kernel for it. A tile is a piece of 64 by 4 pixels and up to 64 filters, or of 32 by 4 and 128; a piece comes as the
image has it, a channel after the other, with what the window reaches around it. Pixels are the rows of wgmma, which a
warp takes from shared memory wherever they lie: so each place of the window, and each row of a piece, may begin
anywhere. Where rows of the result are no multiples of sixteen bytes, those of a piece begin at such a multiple each.
Filters lie ready as in `patch.py`, of which this is a case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.gemm.convolutions import pixels_text
from rag_kernels.offline.cuda.gemm.convolutions.patch import BOX, FEW, FILLED, LONG, PatchKernel, fill, patch_of
from rag_kernels.offline.cuda.gemm.convolutions.window import FEWEST, WindowKernel, window_kernel
from rag_kernels.offline.cuda.gemm.hopper import text as wgmma_text
from rag_kernels.offline.cuda.gemm.hopper.shape import PROCESSORS, Shape
from rag_kernels.offline.cuda.gemm.hopper.tma_matrix import Matrix
from rag_kernels.offline.cuda.gemm.tensor_core import TensorKernel
from rag_kernels.offline.ir import values as ir

HIGH = 4  # rows of a piece, one for each warp
EVEN = 4  # floats of sixteen bytes
APART = {8, 24}  # of 32 banks: where the next channel begins, so that four channels of eight pixels are in 32
MOST_UNROLLED = 36  # products of a step that are written out
FEW_TERMS, MANY_FILTERS = 800, 64  # of two dimensions or with phases; and what are many
MANY_TILES = 30 * PROCESSORS  # of images that memory bounds


@dataclass(slots=True)
class PixelKernel(PatchKernel):
    """A kernel for a convolution whose pixels go through registers."""

    @property
    def filters(self) -> int:
        return self.shape.columns

    @property
    def broad(self) -> int:
        return self.across // (2 if self.paired else 1)

    @property
    def across(self) -> int:
        """Return the pixels of the result that a warp has, those of a row of a piece."""
        return 16 * self.shape.blocks

    @property
    def high(self) -> int:
        return HIGH

    @property
    def shifts(self) -> int:
        """Return the largest shift of a piece's row, by which it begins at a multiple of sixteen bytes."""
        return 0 if self.contraction.phases or self.axes[-1].count % EVEN == 0 else EVEN - 1

    @property
    def before(self) -> int:  # at a multiple of sixteen bytes
        return (self.axes[-1].first - self.shifts) // EVEN * EVEN

    @property
    def lead(self) -> int:
        """Return how far into a row of a piece the window of its first pixel lies."""
        return self.axes[-1].first - self.before

    @property
    def spans(self) -> list[int]:
        *others, last = self.axes
        heights = [*(axis.reach + 1 for axis in others[:-1]), others[-1].reach + HIGH]
        least = -(-(last.reach + self.broad + self.lead) // EVEN) * EVEN
        wide = range(least, least + 8 * EVEN, EVEN)
        apart = (n for n in wide if math.prod(heights) * n % 32 in APART)
        return [*heights, next(apart, least)]

    @property
    def plane(self) -> int:
        """Return the floats of a channel of a piece."""
        return math.prod(self.spans)

    @property
    def right_bytes(self) -> int:
        return self.line * self.plane

    def constants(self) -> str:
        values = [
            f"ROWS = {self.filters}, COLUMNS = {self.shape.columns}, DEPTH = {self.depth}, STAGES = {self.stages}",
            f"CLUSTER = 1, BLOCKS = {self.shape.blocks}, BAND = {self.shape.band}, GROUPS = 1",
            f"LINE = {self.line}, FOLLOW = {self.line // 32}, LEFT_BYTES = {self.left_bytes}, STAGE = {self.stage}",
            f"PLANE = {self.plane}, PITCH_OF_PIECE = {self.spans[-1]}, SKEW = 36, LEAD = {self.lead}",
            f"WIDE = {self.wide}, PHASES = {self.phases}, BROAD = {self.broad}, HIGH = 0, SHIFTS = {self.shifts}",
            f"OF_WARP = {self.across}, TOGETHER = {self.shape.blocks // (2 if self.paired else 1)}",
            self.finished_alone,
        ]
        return f"constexpr int {', '.join(values)};"

    @property
    def across_image(self) -> str:
        places = self.axes[-1].places
        shifted = f" + (({places}) % 2 ? 3 : ({places}) % 4 ? 2 : 0)" if self.shifts else ""
        return f"(({places}){shifted} + {self.broad - 1}) / {self.broad}"

    @property
    def down_image(self) -> str:
        return f"(({self.axes[-2].places}) + {HIGH - 1}) / {HIGH}"

    @property
    def unrolled(self) -> bool:
        """Return whether the products of a step are written out."""
        assert self.window
        return not self.contraction.phases and self.window.whole * self.line // 32 <= MOST_UNROLLED

    def walk(self) -> str:
        """Return how a group goes through a tile's steps, with where the tile lies before."""
        height, width = self.axes[-2:]
        phase = f"    phase{self.last} = at % 2;\n" if self.paired else ""
        where = {"ACROSS_IMAGE": self.across_image, "DOWN_IMAGE": self.down_image, "KIND": self.kind}
        where |= {"WIDTH": width.places, "HEIGHT": height.places, "PHASE_OF_COLUMN\n": phase}
        where |= {"PLACE_IN_ROW": "at % OF_WARP / 2" if self.paired else "at % OF_WARP"}
        places = pixels_text.PLACES
        for name, size in where.items():
            places = places.replace(name, size)
        return places + wgmma_text.WALK

    def step(self) -> str:
        assert self.window
        offsets, _ = self.places_of_tap("tap")
        offset = ""
        for span, at in zip(self.spans, reversed(offsets), strict=True):
            offset = f"({offset}) * {span} + {at}" if offset else at
        lines = pixels_text.TAPS.replace("OFFSET", offset).replace("TAPS", self.window.taps)
        lines = lines.replace("SUMS", "half * TOGETHER + h" if self.paired else "h")
        release = "if (k && !half) release(before);" if self.paired else "if (k) release(before);"
        lines = lines.replace("RELEASE", release).replace("UNROLL", f"#pragma unroll{'' if self.unrolled else ' 1'}")
        # where a loop stays one, ptxas would else let each product wait for the one before
        lines = lines.replace("SETTLED\n", "" if self.unrolled else "  rk::wgmma_wait<0>();\n")
        inside = "\n".join(indent(indent(self.each_phase(lines.splitlines(), unrolled=True))))
        return pixels_text.STEP.replace("PHASES_OF_STEP", inside)

    def strips(self) -> str:
        place, block = "h * 16 + u / 2 % 2 * 8 + lane / 4", "pixels_of(i) * 2 + h"
        if self.paired:
            place, block = "(u / 2 % 2 * 8 + lane / 4) * 2 + h", "h * TOGETHER + pixels_of(i)"
        strips = pixels_text.STRIPS.replace("PLACE_OF_SUM", place).replace("SUMS_OF_STRIP", block)
        for name, text in self.order.items():
            strips = strips.replace(name, text)
        return strips

    @property
    def order(self) -> dict[str, str]:
        """Return which filters and pixels strip `i` has, as C."""
        return pixels_text.BY_FILTERS

    @property
    def copied(self) -> list[str]:
        return ["left"]

    def condition(self, pointers: dict[str, str]) -> str:
        assert self.window
        sizes, steps = self.image_sizes()
        reads = (
            f"rk::tma_reads({pointers[self.window.load.buffer]}, {{{', '.join(sizes)}}}, {{{', '.join(steps[1:])}}})"
        )
        return f"{PatchKernel.condition(self, pointers)} && {reads}"

    def image_sizes(self) -> tuple[list[str], list[str]]:
        """Return sizes and steps of the images, innermost first, as C."""
        assert self.window
        w, inner = self.window, self.axes[::-1]
        sizes = [*(f"int64_t({axis.size})" for axis in inner), f"int64_t({w.channels})", f"int64_t({w.images})"]
        steps = ["1"]
        for size in sizes[:-1]:
            steps.append(size if steps[-1] == "1" else f"{steps[-1]} * {size}")
        return sizes, steps

    def coordinates(self) -> list[str]:
        return [*(f"from_{n}" for n in reversed(range(len(self.axes)))), f"k * {self.block}", "image"]

    def map(self, matrix: Matrix, name: str, lanes: int, pointers: dict[str, str]) -> list[str]:
        assert self.window
        if name == "left":
            return PatchKernel.map(self, matrix, name, lanes, pointers)
        sizes, steps = self.image_sizes()
        box = map(str, [*self.spans[::-1], self.block, 1])
        every = ", ".join(f"{{{', '.join(one)}}}" for one in (sizes, steps, box))
        factor = pointers[self.window.load.buffer]
        return [f"const CUtensorMap right_map = rk::tma_map<{len(sizes)}>({factor}, {every}, 0{self.rounded()});"]


def is_faster(made: PixelKernel) -> bool:
    """Return whether pixels through registers should be faster than copies of them (measured on an H200).

    They are where a step's products are written out or phases go through few; where there are tiles for all processors,
    which pieces of images fill; not with many terms of two dimensions, nor with many filters of few terms, whose
    results count. Windows of one place, which others read without a copy, too, take them where tiles are very many.
    """
    assert made.window
    c, axes, rows = made.contraction, made.axes, made.contraction.count(made.contraction.rows)
    filled = fill(axes[-1].count, made.broad) * fill(axes[-2].count, HIGH)
    tiles = c.count(c.columns) / (made.across * HIGH) * -(-rows // made.filters)
    terms = made.channels * made.window.whole
    long = (bool(c.phases) or len(axes) == 2) and terms > FEW_TERMS
    written = bool(c.phases) or made.unrolled
    one = made.window.whole == 1
    stored = rows > MANY_FILTERS and terms < LONG and not one
    return written and not long and not stored and filled >= FILLED and tiles >= (MANY_TILES if one else PROCESSORS)


def pixels_of(found: WindowKernel, turns: int) -> PixelKernel | None:
    """Return the kernel whose pixels go through registers, if it serves: always with `turns` 4, else where faster."""
    assert found.window
    axes, stored = found.window.axes, found.window.load.stored
    if found.numbers != "tf32" or not 2 <= len(axes) <= 3 or any(axis.every > 1 for axis in axes[-2:]):
        return None
    if turns not in {0, 4} or ir.size_of(stored[-1]) % EVEN:
        return None
    rows = found.contraction.count(found.contraction.rows)
    lines = sorted((128, 64, 32), key=lambda line: (-(-found.channels * 4 // line) * line, -line))
    kept = {f.name: getattr(found, f.name) for f in fields(found) if f.init}
    made = [PixelKernel(**(kept | {"shape": shape_for(rows), "bytes_of_line": line})) for line in lines]
    made = [one for one in made if max(one.spans) <= BOX]
    best = next((one for least in (3, 2) for one in made if one.stages >= least), None)
    return best if best and (turns or is_faster(best)) else None


def shape_for(rows: int) -> Shape:
    """Return the tile for so many filters: 256 pixels of 16, 32 or 64, or 128 of 128."""
    return next((Shape(256, n, alternate=True) for n in (16, 32, 64) if rows <= n), Shape(128, 128, alternate=True))


def convolution_kernel(kernel: TensorKernel, wanted: tuple[int, int, int]) -> WindowKernel | None:
    """Return the kernel for a convolution in one pass, or None: over pieces of images or place by place."""
    found = window_kernel(kernel, wanted, FEW)
    shape, _, turns = wanted
    if found is None:
        return None
    whole = not shape and turns in {0, 3, 4} and not found.contraction.batches
    pieces = (pixels_of(found, turns) or patch_of(found, turns)) if whole else None
    assert found.window
    copied = found.window.whole > 1 or found.itemsize == 2  # of one place in fp32 a copy costs more than it gives
    return pieces or (found if found.channels >= FEWEST and copied else None)
