"""How a product is cut into tiles on Hopper, and what that takes.

Comes in: rows, columns, batches and depth of a product. Goes out: the shape of a tile, blocks of a cluster, and whether
two groups take tiles in turn, by a model of time that was fitted to an H200. `wgmma.py` prints the kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Shape:
    """How a product is cut: rows and columns of a tile, blocks of a cluster, whether two groups take tiles in turn."""

    rows: int
    columns: int
    cluster: int = 1
    alternate: bool = False
    band: int = 16  # rows of tiles that blocks run through together

    @property
    def blocks(self) -> int:
        """Return how many times 64 rows a group has."""
        return self.rows // (64 if self.alternate else 64 * self.groups)

    @property
    def groups(self) -> int:
        """Return how many warpgroups multiply."""
        return 3 if self.rows == 192 else 2


PLAIN = Shape(128, 128)
WIDTHS = {128: (224, 192, 160, 96), 256: (192, 160, 128, 96)}  # rows of a tile, and columns by which it fills a wave
FULL, SHORTEST = 0.7, 128  # how much of a wave is full at least, and terms
HALF_OF_WAVE = 0.5
FEWER_PARTS = 0.8  # of the time that clusters need, pairs of blocks should need less
PROCESSORS = 132
MARGIN = 0.95  # a tile of such a width is taken where it should need so much less: as far as the model errs
SHAPES = (
    *(Shape(128, 256, 2, band=8), Shape(128, 256), Shape(128, 128, 2, alternate=True, band=8)),
    *(Shape(128, 128, alternate=True), Shape(64, 256, alternate=True), Shape(128, 64, alternate=True)),
    *(Shape(64, 128, alternate=True), Shape(64, 64, alternate=True)),
)


# With a left factor from registers two groups hide each other's loads; where they take turns nothing does.
BY_REGISTERS = (
    *(Shape(128, 256, 2, band=8), Shape(128, 256), Shape(256, 128), Shape(128, 128, 2, band=8)),
    *(Shape(128, 64, alternate=True), Shape(64, 128, alternate=True), Shape(64, 64, alternate=True)),
)
FILLING_BY_REGISTERS = (Shape(128, 192), Shape(128, 160))


def best_shape(
    rows: int,
    columns: int,
    batches: int,
    depth: int,
    *,
    registers: bool = False,
    slab: int = 0,
    tail: bool = False,
    leaves: bool = False,
    group: int = 1,
) -> Shape:
    """Return the shape that should take least time on an H200's processors, for terms of sixteen bits.

    Widths that fill a wave are looked at where a block can load `slab` lanes of the right factor at a time; 0: nowhere.
    `tail`: whether much is computed or loaded behind the sums; `leaves`: whether results leave by the copy engine.
    Tiles are as wide as whole groups of columns.
    """
    sizes = (rows, columns, batches, depth)
    if leaves or (group > 1 and not registers and waves_of(PLAIN, *sizes[:3]) >= 1):
        leaving = leaving_shape(*sizes, slab=slab, tail=tail, group=group)
        return leaving if group > 1 else or_pairs(leaving, sizes)
    if registers:
        filling = [s for s in FILLING_BY_REGISTERS if waves_of(s, *sizes[:3]) >= FULL]
        fit = [s for s in (*BY_REGISTERS, *filling) if s.columns % group == 0]
        return min(fit, key=lambda shape: time_of(shape, *sizes, registers=True))
    best = min((s for s in SHAPES if s.columns % group == 0), key=lambda shape: time_of(shape, *sizes))
    if slab and group == 1 and waves_of(best, *sizes[:3]) <= HALF_OF_WAVE:
        # Blocks of a cluster may have parts of the depth each.
        return or_pairs(leaving_shape(*sizes, slab=slab, tail=tail), sizes)
    widths = [Shape(tall, wide, c, band=16 // c) for tall, every in WIDTHS.items() for wide in every for c in (2, 1)]
    fit = [s for s in widths if slab and s.columns // s.cluster % slab == 0 and waves_of(s, *sizes[:3]) >= FULL]
    fit = [s for s in fit if s.columns % group == 0 and (s.cluster == 1 or rows > s.rows)]
    if not fit or depth < SHORTEST:
        return best
    other = min(fit, key=lambda shape: filled_time(shape, *sizes, tail=tail))
    sooner = filled_time(other, *sizes, tail=tail) < MARGIN * filled_time(best, *sizes, tail=tail)
    return other if sooner else best


def or_pairs(joining: Shape, sizes: tuple[int, int, int, int]) -> Shape:
    """Return a shape whose clusters add up few parts of the depth, or for few tiles of a long one pairs of blocks,
    which add up to 32 in memory."""
    best = min(SHAPES, key=lambda shape: time_of(shape, *sizes))
    few = best.cluster > 1 and waves_of(best, *sizes[:3]) <= HALF_OF_WAVE
    return best if few and time_of(best, *sizes) < FEWER_PARTS * time_of(joining, *sizes) else joining


WIDE = {128: (256, 224, 192, 160, 128, 96), 192: (192,), 256: (192, 160, 128)}
LEAVING = (
    *(Shape(tall, wide, c, band=16 // c) for tall, every in WIDE.items() for wide in every for c in (2, 1)),
    *(Shape(128, wide, c, alternate=True, band=16 // c) for wide in (192, 128) for c in (2, 1)),
    *(Shape(tall, wide, alternate=True) for tall, wide in ((64, 128), (128, 64), (64, 256), (64, 64))),
)
MOST_WITH_TAIL = 320  # columns of 64 rows of which a group has the sums, and registers left for what is made of them
JOINING = 3.4  # microseconds by which two parts of a depth meet in a cluster


def leaving_shape(rows: int, columns: int, batches: int, depth: int, *, slab: int, tail: bool, group: int = 1) -> Shape:
    """Return the shape that should take least time where results of sixteen bits leave by the copy engine.

    A tile of which what groups come to is stored ends as soon.
    """
    whole = [s for s in LEAVING if s.columns // s.cluster % max(1, slab) == 0 and s.columns % group == 0]
    fit = [s for s in whole if s.cluster == 1 or rows > s.rows]
    fit = [s for s in fit if not tail or group > 1 or s.blocks * s.columns <= MOST_WITH_TAIL]
    return min(fit, key=lambda shape: leaving_time(shape, rows, columns, batches, depth, tail=tail))


def step_time(shape: Shape) -> float:
    """Return about how many microseconds a step of 64 terms takes: its products, with what these read, or its loads."""
    part, lines = shape.rows * shape.columns / 32768, (shape.rows + shape.columns / shape.cluster) / 384
    shared = (shape.rows / 64 * (64 + shape.columns) + shape.rows + shape.columns) / 1024
    step = max(0.472 * part + 0.095 * shared + 0.023, 0.555 * lines) + 0.075 * lines
    return step * 1.06 if shape.rows + shape.columns > 400 else step  # three stages


def leaving_time(shape: Shape, rows: int, columns: int, batches: int, depth: int, *, tail: bool) -> float:
    """Return about how many microseconds a product takes whose results leave by the copy engine.

    Fitted to 98 times of 25 shapes at 29 sizes on an H200, of which it is off by 3 % on the average. Blocks of a
    cluster of two that has a factor in common add parts of a depth up in memory.
    """
    waves, steps = waves_of(shape, rows, columns, batches), -(-depth // 64)
    part, step = shape.rows * shape.columns / 32768, step_time(shape)
    stored = 0.2 + 1.44 * part + (0.2 if shape.groups == 3 else 0.0)
    best = float("inf")
    for parts in (1, 2):
        turns, chunk = math.ceil(waves * parts), -(-steps // parts)
        if parts > 1 and (turns > 1 or steps < 8):
            break
        each = chunk * step
        body = max(each, (each + 5.5 * part + 0.3) / 2) * turns + stored if shape.alternate else (each + stored) * turns
        body += (6.4 if shape.alternate else 4.7) * part * turns if tail else 0.0
        added = 0.0 if parts == 1 else JOINING if shape.cluster == 1 else (14 if shape.alternate else 16) * part
        best = min(best, 6.5 + body + 0.4 * part + added + (1.5 if shape.cluster > 1 else 0.0))
    return best


def waves_of(shape: Shape, rows: int, columns: int, batches: int) -> float:
    """Return how often a product's tiles fill the device."""
    tiles = batches * -(-rows // (shape.rows * shape.cluster)) * -(-columns // shape.columns)
    return tiles * shape.cluster / PROCESSORS


def filled_time(shape: Shape, rows: int, columns: int, batches: int, depth: int, *, tail: bool = False) -> float:
    """Return about how many microseconds a product takes whose tiles fill the device.

    A step takes as long as its products and what these read of shared memory, or as what is brought; tiles end with
    what is stored, which a group that takes turns hides. Fitted to 25 shapes at 39 sizes on an H200, whose least times
    it finds to 2 %, but for what parts of a depth cost: that was raised until few rows of long weights took no parts
    (docs/measured/sixteen_bit_products.md#widths-that-fill-a-wave).
    """
    waves, steps = waves_of(shape, rows, columns, batches), -(-depth // 64)
    part, lines = shape.rows * shape.columns / 32768, (shape.rows + shape.columns / shape.cluster) / 384
    shared = (shape.rows / 64 * (64 + shape.columns) + shape.rows + shape.columns) / 1024
    step = max(0.464 * part + 0.066 * shared + 0.047, 0.493 * lines) + 0.086 * lines
    step *= 1.08 if shape.rows + shape.columns > 400 else 1.0  # three stages
    stored = 0.32 + 2.23 * part
    best = float("inf")
    for parts in range(1, min(32, max(1, steps // 4)) + 1):
        turns, chunk = math.ceil(waves * parts), -(-steps // parts)
        exposed = stored + max(0.0, 1.66 * stored - chunk * step) * turns if shape.alternate else stored * turns
        exposed += 5.2 * part * turns if tail and not shape.alternate else 0.0
        added = 20 + 20 * parts * part if parts > 1 else 0.0
        together = 0.97 + 0.56 * turns if shape.cluster > 1 else 0.0
        best = min(best, 4.8 + turns * chunk * step + exposed + added + together)
        if waves >= 1:
            break
    return best


def time_of(shape: Shape, rows: int, columns: int, batches: int, depth: int, *, registers: bool = False) -> float:
    """Return about how long a product takes, in steps of a tile of 128 x 256 (1024 cycles at the full rate).

    A step takes as long as its products or its loads; a wave of tiles ends with what is stored, which hides behind the
    other group's products where groups take turns, if these take as long; parts of a depth have to be added up. Fitted
    to an H200.
    """
    places, steps = PROCESSORS // shape.cluster, -(-depth // 64)
    tiles = batches * -(-rows // (shape.rows * shape.cluster)) * -(-columns // shape.columns)
    products, lines = shape.rows * shape.columns / 32768, shape.rows + shape.columns / shape.cluster
    step = max(products * (1.0 if shape.columns == 256 else 1.08), lines / 450) + lines / 6400 + 0.03
    if registers:  # what a group loads for a step does not depend on how wide it is
        step = 1.45 * step if shape.alternate else 0.7 * (products + 0.5)
    stored = 4 * shape.rows * shape.columns / 32768
    best = float("inf")
    for parts in range(1, min(32, max(1, steps // 4)) + 1):
        waves, chunk = -(-tiles * parts // places), -(-steps // parts)
        unhidden = max(0.0, 0.8 + 1.2 * stored - chunk * step)
        exposed = stored + unhidden * waves if shape.alternate else stored * waves
        added = (11 + parts * shape.rows * shape.columns / 8192) if parts > 1 else 0
        best = min(best, waves * chunk * step + exposed + added)
        if tiles >= places:
            break
    return best


def shape_of(wanted: tuple[int, int, int], found: Shape) -> Shape:
    """Return how to cut a product: what was found, as far as tuning parameters do not say it."""
    size, cluster, turns = wanted
    if size:
        rows, columns = divmod(size, 1000)
        found = Shape(rows, columns, alternate=rows * columns <= 128 * 128)
    cluster, alternate = cluster or found.cluster, turns == 2 if turns in {1, 2} else found.alternate
    alternate = alternate or found.rows == 64
    return replace(found, cluster=cluster, alternate=alternate, band=16 // cluster)
