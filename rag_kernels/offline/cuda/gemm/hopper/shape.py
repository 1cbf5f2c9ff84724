"""How a product is cut into tiles on Hopper: the shape that should take least time by a model of an H200.

Comes in: a Product: its lanes, depth and what its results go through. Goes out: the shape of a tile, blocks of a
cluster, and whether two groups take tiles in turn. The model's coefficients are fitted to times of all shapes at many
sizes (`tests/bench/product_tiles.py`). `wgmma.py` prints the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

PROCESSORS = 132
LINE = 128  # bytes of a swizzled line: one step of the depth, or 64 lanes of sixteen bits
SHARED = 227 * 1024  # bytes of a block at most
STAGED = 2560  # bytes of shared memory through which a warp stores
NEIGHBOURS = 16  # processors that lie side by side, of tiles below each other as far as there are
HALF_OF_WAVE = 0.5  # as much of the device tiles may fill whose depth is split
MOST_WITH_TAIL = 320  # columns of 64 rows of which a group has the sums, and registers left for what is made of them
MOST_BY_REGISTERS = 192  # registers for sums, and for a left factor that goes through them
PLACES = (PROCESSORS, 66, 39, 30, 24, 16, 16, 14)  # clusters of so many blocks that an H200 has room for at once


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

    @property
    def stage(self) -> int:
        """Return the bytes of a stage of the ring."""
        return LINE * (self.rows + self.columns)

    @property
    def stages(self) -> int:
        """Return how many stages the ring has."""
        return min(8, (SHARED - 2048 - 4 * self.groups * STAGED) // self.stage)

    @property
    def shows(self) -> bool:
        """Return whether blocks of a cluster have room to show each other their sums."""
        return self.cluster == 1 and self.rows * self.columns * 4 <= self.stages * self.stage


PLAIN = Shape(128, 128)
SHAPES = (
    *(Shape(128, wide, c, band=16 // c) for wide in (256, 224, 192, 128, 96) for c in (1, 2)),
    *(Shape(128, wide, c, alternate=True, band=16 // c) for wide in (192, 128) for c in (1, 2)),
    *(Shape(192, 192), Shape(192, 192, 2, band=8), Shape(128, 64)),
    *(Shape(64, wide, alternate=True) for wide in (64, 128, 256)),
)


@dataclass(frozen=True, slots=True)
class Product:
    """What is cut: lanes of wgmma's factors, batches, and terms as of sixteen bits; `slab` lanes of the right factor
    come at a time (0: tiles are powers of two), and tiles are as wide as whole groups of columns."""

    rows: int
    columns: int
    batches: int
    depth: int
    slab: int = 0
    registers: bool = False  # the left factor goes through registers
    astride: bool = False  # lines of a factor begin where they like
    tail: bool = False  # much is computed or loaded behind the sums
    leaves: bool = False  # results leave by the copy engine
    group: int = 1

    @property
    def steps(self) -> int:
        """Return how many lines deep it is."""
        return -(-self.depth // 64)

    def may_join(self, shape: Shape) -> bool:
        """Return whether parts of a depth can be added up in clusters."""
        return self.group == 1 and shape.shows

    def fits(self, shape: Shape) -> bool:
        """Return whether a shape's blocks bring whole lines, and have registers for what they do."""
        wide = shape.columns // shape.cluster % self.slab == 0 if self.slab else _is_plain(shape)
        many = shape.blocks * shape.columns
        tail = not self.tail or self.group > 1 or many <= MOST_WITH_TAIL
        registers = not self.registers or many // 2 + 32 * shape.blocks <= MOST_BY_REGISTERS
        shared = shape.cluster == 1 or self.rows > shape.rows
        return wide and tail and registers and shared and shape.columns % self.group == 0


SMALL = Product(128, 128, 1, 64)


def _is_plain(shape: Shape) -> bool:
    return shape.rows <= 128 and shape.columns in (64, 128, 256)


@dataclass(frozen=True, slots=True)
class Costs:
    """The coefficients of the model, in microseconds: of a tile of 128 x 256, of its 384 lines, of a megabyte."""

    launch: float = 5.96
    products: float = 0.336  # a step's, by the tensor cores
    shared: float = 0.281  # what they read of shared memory
    lines: float = 0.0495  # a step's, of the L2 cache
    apart: float = 0.14  # those that neighbours do not load as well, while a stage is waited for
    astride: float = 3.01  # of such lines, times as much more
    registers: float = 0.0441  # a step, 64 rows of a left factor that goes through them
    wait: float = 1.47  # until a stage's lines are there, while those of the other stages are multiplied
    leaves: float = 1.25  # a tile's results, by the copy engine; as long takes what groups come to
    strips: float = 1.01  # by their warps, as much more
    tail: float = 5.26  # what is computed behind the sums
    swap: float = 0.562  # a group takes the other's turn
    pair: float = 1.11  # blocks that share a factor wait for each other
    joined: float = 9.86  # a tile's parts meet in a cluster
    launched: float = 3.0  # parts are added up by another launch
    stored: float = 3.0  # ... what all blocks have stored of them
    ramp: float = 3.28  # memory's first bytes
    megabyte: float = 0.244  # and all that a product has to read and write


COSTS = Costs()


def joins(shape: Shape, product: Product, costs: Costs = COSTS) -> bool:
    """Return whether parts of a depth are added up in clusters, and not in memory."""
    return product.may_join(shape)


def best_shape(product: Product) -> Shape:
    """Return the shape that should take least time."""
    return min(filter(product.fits, SHAPES), key=lambda shape: least_time(shape, product))


def least_time(shape: Shape, product: Product) -> float:
    """Return about how many microseconds a product takes by a shape, with as many parts as are best."""
    return min(time_of(shape, product, parts) for parts in parts_of(shape, product))


def parts_of(shape: Shape, product: Product, joined: bool | None = None) -> Iterator[int]:
    """Return into how many parts a depth may be cut: of at least four steps, and so that all tiles run at once.

    They are added up in clusters if `joined`, or as is best.
    """
    yield 1
    tiles, few = tiles_of(shape, product), waves_of(shape, product) <= HALF_OF_WAVE
    joined = joins(shape, product) if joined is None else joined
    for parts in range(2, min(8 if joined else PROCESSORS, product.steps // 4) + 1) if few else ():
        places = PLACES[parts - 1] if joined else PROCESSORS // shape.cluster // parts
        if tiles <= places and -(-product.steps // -(-product.steps // parts)) == parts:
            yield parts


def tiles_of(shape: Shape, product: Product) -> int:
    """Return how many tiles there are, or clusters of them."""
    across = -(-product.rows // (shape.rows * shape.cluster))
    return product.batches * across * -(-product.columns // shape.columns)


def waves_of(shape: Shape, product: Product) -> float:
    """Return how often a product's tiles fill the device."""
    return tiles_of(shape, product) * shape.cluster / PROCESSORS


def step_time(shape: Shape, product: Product, costs: Costs = COSTS) -> float:
    """Return about how many microseconds a step takes: its products, or the wait for a stage; and what is loaded."""
    across = -(-product.rows // (shape.rows * shape.cluster)) * shape.cluster
    along = -(-product.columns // shape.columns) * shape.cluster
    tall, wide = product.rows / across, product.columns / along
    lines, near = (tall + wide) / 384, min(NEIGHBOURS, across)
    apart = (tall * near + wide * shape.cluster * max(1.0, NEIGHBOURS / near)) / (384 * NEIGHBOURS)
    shared = (shape.rows / 64 * (64 + shape.columns) + shape.rows + shape.columns) / 1024
    busy = costs.products * _size(shape) + costs.shared * shared
    busy += costs.registers * shape.blocks if product.registers else 0.0
    wait = costs.wait / (shape.stages - 1) + costs.apart * apart
    return max(busy, wait) + costs.lines * lines * (1 + costs.astride if product.astride else 1)


def adding(shape: Shape, joined: bool, costs: Costs = COSTS) -> float:
    """Return about how many microseconds it takes to add parts up, in clusters or not."""
    return costs.joined * _size(shape) if joined else costs.launched + costs.stored * _size(shape)


def time_of(shape: Shape, product: Product, parts: int, costs: Costs = COSTS, *, joined: bool | None = None) -> float:
    """Return about how many microseconds a product takes, with its depth in so many parts, as `parts_of` has them.

    Tiles come in turns, all of whose steps and ends add up; where groups take turns, the other one's end is hidden.
    """
    joined = parts > 1 and (joins(shape, product, costs) if joined is None else joined)
    places = PLACES[parts - 1] if joined else PROCESSORS // shape.cluster
    turns = math.ceil(tiles_of(shape, product) * (1 if joined else parts) / places)
    body = -(-product.steps // parts) * step_time(shape, product, costs)
    end = _size(shape) * (costs.leaves + (0 if product.leaves or product.group > 1 else costs.strips))
    tail = _size(shape) * costs.tail if product.tail else 0.0
    if shape.alternate:
        total = turns * (max(body + costs.swap, (body + end) / 2) + tail) + end
    else:
        total = turns * (body + end + tail)
    read = (product.rows + product.columns) * product.depth * 2
    written = product.rows * product.columns * (2 if product.leaves else 4) if product.group == 1 else 0
    memory = costs.ramp + costs.megabyte * product.batches * (read + written) / 1e6
    total = math.sqrt(math.hypot(total**2, memory**2))  # the longer one, and a little of the other
    total += costs.launch + (costs.pair if shape.cluster > 1 else 0.0)
    return total + adding(shape, joined, costs) if parts > 1 else total


def _size(shape: Shape) -> float:
    return shape.rows * shape.columns / 32768


def shape_of(wanted: tuple[int, int, int], found: Shape) -> Shape:
    """Return how to cut a product: what was found, as far as tuning parameters do not say it."""
    size, cluster, turns = wanted
    if size:
        rows, columns = divmod(size, 1000)
        found = Shape(rows, columns, alternate=rows * columns <= 128 * 128)
    cluster, alternate = cluster or found.cluster, turns == 2 if turns in {1, 2} else found.alternate
    alternate = alternate or found.rows == 64
    return replace(found, cluster=cluster, alternate=alternate, band=16 // cluster)
