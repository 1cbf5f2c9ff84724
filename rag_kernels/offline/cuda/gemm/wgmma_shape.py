"""How a product is cut into tiles on Hopper, and what that takes.

Comes in: rows, columns, batches and depth of a product. Goes out: the shape of a tile, blocks of a cluster, and whether
two groups take tiles in turn, by a model of time that was fitted to an H200. `wgmma.py` prints the kernel.
"""

from __future__ import annotations

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
        return self.rows // (64 if self.alternate else 128)


PLAIN = Shape(128, 128)
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


def best_shape(rows: int, columns: int, batches: int, depth: int, *, registers: bool = False) -> Shape:
    """Return the shape that should take least time on an H100's processors, for terms of sixteen bits."""
    known = BY_REGISTERS if registers else SHAPES
    return min(known, key=lambda shape: time_of(shape, rows, columns, batches, depth, registers=registers))


def time_of(
    shape: Shape, rows: int, columns: int, batches: int, depth: int, *, registers: bool = False, processors: int = 132
) -> float:
    """Return about how long a product takes, in steps of a tile of 128 x 256 (1024 cycles at the full rate).

    A step takes as long as its products or its loads; a wave of tiles ends with what is stored, which hides behind the
    other group's products where groups take turns, if these take as long; parts of a depth have to be added up. Fitted
    to an H200.
    """
    places, steps = processors // shape.cluster, -(-depth // 64)
    tiles = batches * -(-rows // (shape.rows * shape.cluster)) * -(-columns // shape.columns)
    products, lines = shape.rows * shape.columns / 32768, shape.rows + shape.columns / shape.cluster
    step = max(products * (1.0 if shape.columns == 256 else 1.08), lines / 450) + lines / 6400 + 0.03
    step *= (1.45 if shape.alternate else 1.07) if registers else 1.0
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
