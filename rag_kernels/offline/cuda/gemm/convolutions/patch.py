"""Convolutions on Hopper over pieces of images: what all places of the window read is loaded once.

Comes in: a convolution that `window.py` can compute, with steps of one along its last two axes. Goes out: another
kernel for it. A tile is a piece of 32 by 8 pixels and 64 filters. The piece comes with what the window reaches around
it, sixteen bytes of channels of a pixel after one another, without a swizzle: so each place of the window is an address
within it, where `window.py` loads all pixels anew for each place. A step of the depth is a block of channels, with the
filters of all places, which lie ready as shared memory has them. Of a transposed convolution whose last axis has two
phases a piece has both, 16 by 8 pixels of each, so that what is stored lies side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.contraction import Phase
from rag_kernels.offline.codegen.loop_nest import text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.gemm.convolutions import patch_text
from rag_kernels.offline.cuda.gemm.convolutions.window import Axis, WindowKernel
from rag_kernels.offline.cuda.gemm.hopper.shape import Shape
from rag_kernels.offline.cuda.gemm.hopper.tma_matrix import Matrix
from rag_kernels.offline.cuda.gemm.hopper.wgmma import STRIP
from rag_kernels.offline.cuda.kernel_text import Parameter
from rag_kernels.offline.cuda.needs import Needs

HIGH, WIDE = 8, 32  # of a piece
FILTERS = 64  # of a tile
CHUNK = 16  # bytes of a pixel's channels that lie side by side
BOX = 256  # elements of a dimension that the copy engine takes at most
WORDS = 4  # of a chunk, which it takes as numbers of four bytes whatever they are
FEW = 3  # channels: with fewer most of a chunk would be zeros
MOST_FILTERS = 128  # with more, larger tiles load less
FILLED = 0.6  # of all pieces that lies in images
SHORT, MANY_PLACES, LONG = 64, 15, 200  # channels of a line that is short; places, and terms, that are many
QUARTERS = Shape(256, 64, alternate=True)  # of sums: four times 64 pixels of 64 filters


@dataclass(slots=True)
class PatchKernel(WindowKernel):
    """A kernel for a convolution over pieces of images."""

    def note(self, needs: Needs) -> None:
        WindowKernel.note(self, needs)
        needs.patches = True

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return the axes of a window, outermost first; the last two are those of a piece."""
        assert self.window
        return self.window.axes

    @property
    def paired(self) -> bool:
        """Return whether a piece has both phases of the last axis."""
        phases = self.contraction.phases
        return bool(phases) and phases[-1].stride == 2 and self.axes[-1].begin == f"first{len(phases) - 1}"

    @property
    def broad(self) -> int:
        """Return the pixels of a piece along the last axis, of one phase."""
        return WIDE // 2 if self.paired else WIDE

    @property
    def high(self) -> int:
        """Return the rows of a piece."""
        return HIGH

    @property
    def before(self) -> int:
        """Return where a piece begins along the last axis, beside its first pixel."""
        return self.axes[-1].first

    @property
    def each(self) -> int:
        """Return the channels of a chunk."""
        return CHUNK // self.itemsize

    @property
    def filters(self) -> int:
        """Return the filters of a tile."""
        return FILTERS

    @property
    def tall(self) -> int:
        return self.filters

    @property
    def depth(self) -> int:
        return self.block

    def phases_apart(self) -> list[Phase]:
        phases = list(self.contraction.phases)
        return phases[:-1] if self.paired else phases

    @property
    def spans(self) -> list[int]:
        """Return how far a piece reaches with what the window reads around it, along each axis."""
        sides = [*[1] * (len(self.axes) - 2), HIGH, self.broad]
        return [axis.reach + side for axis, side in zip(self.axes, sides, strict=True)]

    @property
    def plane(self) -> int:
        """Return the bytes of a piece's chunks of the same channels."""
        return math.prod(self.spans) * CHUNK

    @property
    def slots(self) -> int:
        """Return the places of a window that filters are kept for: with phases, one of zeros more."""
        assert self.window
        return self.window.whole + bool(self.contraction.phases)

    @property
    def left_bytes(self) -> int:
        """Return the bytes of the filters of a step, in the phase that has most."""
        *others, last = self.axes
        along = sum(self.contraction.phases[-1].taps) if self.paired else last.most
        return math.prod(axis.most for axis in others) * along * self.filters * self.line

    @property
    def right_bytes(self) -> int:
        """Return the bytes of the pixels of a step."""
        return self.line // CHUNK * self.plane

    @property
    def stage(self) -> int:
        return -(-(self.left_bytes + self.right_bytes) // 1024) * 1024

    @property
    def part(self) -> int:
        """Return the columns of the result that a strip has, as parts of a depth see it: one block finishes a tile."""
        return self.shape.blocks * self.wide

    @property
    def finished_alone(self) -> str:
        """Return the constants by which the first of a tile's blocks adds up all parts of the depth."""
        return "PART = WIDE, STRIP = COLUMNS, SHARE = BLOCKS"

    def terms_of(self, taps: str) -> str:
        assert self.window
        return self.window.channels

    def constants(self) -> str:
        values = [
            f"ROWS = {self.filters}, COLUMNS = {self.shape.columns}, DEPTH = {self.depth}, STAGES = {self.stages}",
            f"CLUSTER = 1, BLOCKS = {self.shape.blocks}, BAND = {self.shape.band}, GROUPS = 1",
            f"LINE = {self.line}, FOLLOW = {self.line // 32}, LEFT_BYTES = {self.left_bytes}, STAGE = {self.stage}",
            f"PLANE = {self.plane}, PITCH_OF_PIECE = {self.spans[-1] * CHUNK}, SKEW = {STRIP + 8}",
            f"WIDE = {self.wide}, PHASES = {self.phases}, BROAD = {self.broad}, HIGH = 0",
            self.finished_alone,
        ]
        return f"constexpr int {', '.join(values)};"

    def right_lanes(self, lanes: str) -> str:
        return f"({self.tiles_along(lanes)}) * {self.wide}"

    def tiles_along(self, lanes: str) -> str:
        """Return how many pieces there are, as C."""
        assert self.window
        slices = [f"({self.window.images})", *(f"({axis.places})" for axis in self.axes[:-2])]
        return " * ".join([*slices, f"({self.down_image})", f"({self.across_image})"])

    @property
    def across_image(self) -> str:
        """Return how many pieces lie side by side in an image, as C."""
        return f"(({self.axes[-1].places}) + {self.broad - 1}) / {self.broad}"

    @property
    def down_image(self) -> str:
        """Return how many pieces lie above one another in an image, as C."""
        return f"(({self.axes[-2].places}) + {HIGH - 1}) / {HIGH}"

    @property
    def last(self) -> int:
        """Return the number of the last axis among those with phases."""
        return len(self.contraction.phases) - 1

    def each_phase(self, lines: list[str], unrolled: bool) -> list[str]:
        """Return the lines for both phases of the last axis, where a piece has both."""
        if not self.paired:
            return lines
        head = ["#pragma unroll"] if unrolled else []
        of_last = self.contraction.phase_tables("")[-2:]  # where its filters begin, and how many they are
        inside = [f"phase{self.last} = half;", *of_last, *lines]
        return [*head, "for (int half = 0; half < 2; ++half) {", *indent(inside), "}"]

    def step(self) -> str:
        assert self.window
        offsets, _ = self.places_of_tap("tap")
        offset = ""
        for span, at in zip(self.spans, reversed(offsets), strict=True):
            offset = f"({offset}) * {span} + {at}" if offset else at
        lines = patch_text.TAP.replace("TAPS", self.window.taps).replace("OFFSET", offset)
        lines = lines.replace("COLUMNS_OF_EIGHT", str(self.broad // 8))
        lines = lines.replace("SUMS", "h * 2 + half" if self.paired else "h")
        inside = "\n".join(indent(indent(self.each_phase(lines.splitlines(), unrolled=True))))
        return patch_text.STEP.replace("PHASES_OF_STEP", inside)

    def strips(self) -> str:
        height, width = self.axes[-2:]
        phase = f"    phase{self.last} = at % 2;" if self.paired else ""
        where = {"ACROSS_IMAGE": self.across_image, "DOWN_IMAGE": self.down_image}
        where |= {"WIDTH": width.places, "HEIGHT": height.places}
        where |= {"PHASE_OF_COLUMN\n": f"{phase}\n" if phase else "", "PLACE_IN_ROW": "at % 32"}
        place, pair = "h * 8 + lane % 4 * 2", "sums[h][4 * i + 2 * u], sums[h][4 * i + 2 * u + 1]"
        if self.paired:
            where["PLACE_IN_ROW"] = "at % 32 / 2"
            place, one = "h / 2 * 16 + lane % 4 * 4 + h % 2 * 2", "[4 * i + 2 * u + h % 2]"
            pair = f"sums[h / 2 * 2]{one}, sums[h / 2 * 2 + 1]{one}"
        columns = patch_text.COLUMNS
        for name, size in where.items():
            columns = columns.replace(name, size)
        return columns + patch_text.STRIPS.replace("PLACE_OF_PAIR", place).replace("PAIR", pair)

    def column_at(self, lane: str) -> str:
        return f"column_of(from + {lane})"

    def all_inside(self) -> str:
        return "whole"

    def wide_tail(self) -> bool:
        return self.axes[-1].count % 8 == 0 and WindowKernel.wide_tail(self)

    def widths(self, pointers: dict[str, str]) -> dict[str, str]:
        whole = f"({self.axes[-1].places}) % 8 == 0"
        return {name: f"{whole} && {condition}" for name, condition in WindowKernel.widths(self, pointers).items()}

    def before_loads(self) -> list[str]:
        """Return the statements that say where a tile's piece begins, with what lies around it."""
        height = self.axes[-2]
        last, rest = len(self.axes) - 1, "slice"
        lines = [
            "const int spot = column0 / WIDE;",
            f"const int slice = spot / ({self.across_image}) / ({self.down_image});",
            f"const int from_{last} = spot % ({self.across_image}) * BROAD + {self.before};",
            f"const int from_{last - 1} = spot / ({self.across_image}) % ({self.down_image}) * {self.high} "
            f"+ {height.first};",
        ]
        for n, axis in enumerate(self.axes[:-2]):
            lines.append(f"const int from_{n} = {rest} % ({axis.places}) * {axis.every} + {axis.first};")
            rest = f"{rest} / ({axis.places})"
        return [*lines, f"const int image = {rest};"]

    def loads(self) -> list[str]:
        assert self.window and self.left
        _, of_filter = self.places_of_tap("tap")
        one, places_of = f"ROWS * LINE / {self.itemsize}", self.window.whole
        steps = f"(({self.window.channels} + {self.block - 1}) / {self.block})"
        taps = [
            f"for (int tap = 0; tap < {self.window.taps}; ++tap, to += ROWS * LINE) {{",
            f"  const int place_of = {of_filter};",
            f"  const auto* const of_place = of_step + (place_of < {places_of} ? place_of : {places_of}) * ({one});",
            "  rk::bulk_load(to, of_place, ROWS * LINE, bar);",
            "}",
        ]
        return [
            f"const auto* const of_step = filters + (int64_t(row0 / ROWS) * {steps} + k) * {self.slots} * ({one});",
            "uint32_t to = left;",
            *self.each_phase(taps, unrolled=False),
            f"rk::tma_load(&right_map, right, bar, {', '.join(self.coordinates())});",
        ]

    def coordinates(self) -> list[str]:
        """Return where the copy engine finds a step's pixels, as C."""
        froms = [f"from_{n}" for n in reversed(range(len(self.axes)))]
        return [f"{froms[0]} * {WORDS}", *froms[1:], f"k * {self.line // CHUNK}", "image"]

    def bytes_brought(self) -> str:
        assert self.window
        *others, last = self.axes
        along = str(sum(self.contraction.phases[-1].taps)) if self.paired else last.taps
        return f"{' * '.join([*(axis.taps for axis in others), along])} * (ROWS * LINE) + {self.right_bytes}"

    def condition(self, pointers: dict[str, str]) -> str:
        assert self.window and self.left
        channels, taps, rows = self.left.sizes
        width = f"int64_t({self.axes[-1].size}) * {WORDS}"
        pixels = self.contraction.extents(self.contraction.columns)
        sizes = ", ".join(f"int64_t({size})" for size in (self.window.images, channels, taps, rows, pixels))
        return f"tma_counts({{{sizes}, {width}, {self.window.places}, int64_t({self.right_lanes('')})}})"

    def factors(self) -> list[tuple[Parameter, str]]:
        assert self.left
        ctype = stored_type(self.left.load.storage, "cuda")
        maps = WindowKernel.factors(self)[1:]
        return [*maps, (Parameter(f"const {ctype}* __restrict__", "filters"), "left_factor.copy")]

    def map(self, matrix: Matrix, name: str, lanes: int, pointers: dict[str, str]) -> list[str]:
        assert self.window and self.left
        w, each, inner = self.window, self.each, self.axes[::-1]
        if name == "left":
            place = pointers[matrix.load.buffer] + (f" + {text_of(matrix.start)}" if matrix.start else "")
            row, tap, channel = (f"int64_t({text_of(step)})" for step in self.steps)
            channels, taps, rows = matrix.sizes
            given = f"{place}, {self.filters}, int({rows}), {taps}, {self.slots}, int({channels}), {self.line // CHUNK}"
            return [f"const auto left_factor = tma_packed({given}, {row}, {tap}, {channel}, stream);"]
        chunks = f"(int64_t({w.channels}) + {each - 1}) / {each}"
        first = f"int64_t({inner[0].size}) * {WORDS}"
        sizes = [first, *(f"int64_t({axis.size})" for axis in inner[1:]), chunks, f"int64_t({w.images})"]
        steps, step = ["1"], first
        for axis in inner[1:]:
            steps.append(step)
            step += f" * int64_t({axis.size})"
        steps += [step, f"{step} * ({chunks})"]
        box = [self.spans[-1] * WORDS, *self.spans[-2::-1], self.line // CHUNK, 1]
        given = f"{pointers[w.load.buffer]}, {w.images}, int({w.channels}), {w.places}, stream"
        every = ", ".join(f"{{{', '.join(map(str, one))}}}" for one in (sizes, steps, box))
        factor = "(const float*)right_factor.copy"
        return [
            f"const auto right_factor = tma_chunks({given});",
            f"const CUtensorMap right_map = rk::tma_map<{len(sizes)}>({factor}, {every}, 0{self.rounded()});",
        ]


def fill(count: int, side: int) -> float:
    """Return how much of the pieces along an axis lies in an image."""
    return count / (-(-count // side) * side)


def is_faster(found: WindowKernel, rows: int) -> bool:
    """Return whether pieces of images should be faster than loading pixels for each place of the window.

    They are where the copy engine would bring short lines, or the same pixels for many places, and results are few
    beside what is loaded: rows of a piece are stored apart (docs/measured/sixteen_bit_products.md, on an H200).
    """
    assert found.window
    axes, whole = found.window.axes, found.window.whole
    if rows > MOST_FILTERS or fill(axes[-1].count, WIDE) * fill(axes[-2].count, HIGH) < FILLED:
        return False
    phased, few = bool(found.contraction.phases), rows <= FILTERS
    if found.itemsize == 2:
        return not phased and (found.channels < SHORT or (few and whole >= MANY_PLACES))
    return phased or (few and found.channels * whole >= LONG)


def patch_of(found: WindowKernel, turns: int) -> PatchKernel | None:
    """Return the kernel over pieces of images, if it serves: always with `turns` 3, else where it should be faster."""
    assert found.window
    axes, rows = found.window.axes, found.contraction.count(found.contraction.rows)
    if not 2 <= len(axes) <= 3 or any(axis.every > 1 for axis in axes[-2:]) or found.window.whole == 1:
        return None
    if turns != 3 and not is_faster(found, rows):
        return None
    channels = found.channels
    lines = sorted((128, 64, 32), key=lambda line: (-(-channels * found.itemsize // line) * line, -line))
    kept = {f.name: getattr(found, f.name) for f in fields(found) if f.init} | {"shape": QUARTERS}
    made = [PatchKernel(**(kept | {"bytes_of_line": line})) for line in lines]
    made = [one for one in made if one.spans[-1] * WORDS <= BOX and max(one.spans) <= BOX]
    return next((one for least in (3, 2) for one in made if one.stages >= least), None)
