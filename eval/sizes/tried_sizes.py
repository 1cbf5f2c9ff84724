"""At which other sizes a problem is tried: records of them, and those that are drawn for one judgement.

Comes in: a generator of random numbers. Goes out: `Sizes`, in the order in which they are tried. How the problem is
written at them is for `ingest.functional.sizes`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, product
from typing import Literal, NamedTuple

from rag_kernels.eval.sizes.text_sizes import REACHES, Reach


class Rung(NamedTuple):
    """Sizes for kernels that refuse small ones: all within `reach` are halved as long as they stay at least `least`."""

    reach: Reach
    least: int


class Grown(NamedTuple):
    """One size, by its number, grown several times beyond the problem's own: the others stay, or shrink for room."""

    number: int


class Few(NamedTuple):
    """One size, by its number, at a value that is smaller than any other that is tried: a batch of one.

    The others may be so many times as large, and one more.
    """

    reach: Reach
    number: int
    value: int
    times: int = 1


class Rest(NamedTuple):
    """The least sizes, grown until they leave this rest of so many."""

    rest: int
    of: int
    sizes: Literal["tiny"] = "tiny"  # without which it would be equal to a `Between`


class Between(NamedTuple):
    """So many parts of the problem's own sizes, each of which is divided into so many."""

    times: int
    parts: int


class Square(NamedTuple):
    """Two sizes, by their numbers, that are as large as each other where the problem's differ; others make room."""

    first: int
    second: int
    sizes: Literal["square"] = "square"  # without which it could be equal to a `Between`


class Multiple(NamedTuple):
    """One size that is so many times another one, by their numbers from the last; others make room."""

    larger: int
    smaller: int
    times: int
    sizes: Literal["multiple"] = "multiple"  # without which it could be equal to a `Tiled`


class Packed(NamedTuple):
    """Two sizes next to each other, by the number of the latter from the last, that who packs both into one number may
    take for those of the `second`: a few of the former by as many more of the latter as a power of two; others make
    room.
    """

    number: int
    power: int  # of those beyond its own, the first is 0
    few: int  # even
    second: bool
    sizes: Literal["packed"] = "packed"  # without which it could be equal to a `Drawn`


class Tiled(NamedTuple):
    """One size, by its number from the last, which are the module's, that is so many tiles of a length; others make
    room.

    Where these are too many there are fewer, or they are `shorter`.
    """

    number: int
    times: int
    of: int
    shorter: bool = False


class Drawn(NamedTuple):
    """One size, by its number, at about so many times its own, as a whole multiple of so many; others make room."""

    number: int
    times: float
    of: int


class Exactly(NamedTuple):
    """All sizes, by their numbers: what each is to be, or (behind it, if it is not zero) of how many it is to leave so
    many as a rest; one of them alone, where all do not go together.
    """

    values: tuple[tuple[int, int], ...]
    first: int
    sizes: Literal["exactly"] = "exactly"


class Within(NamedTuple):
    """Sizes of the inputs, or of the batch, alone: for kernels that refuse what the module was not made with."""

    reach: Reach
    sizes: Literal["odd", "large"] | Between | Grown


MOST_GROWN, MOST_FEW = 4, 3
FEWEST = range(2, 16)  # of which one is drawn for each size, beside one
LONE, LONG = range(1, 4), 4  # of few rows that are so many times as long
VECTOR, UNROLLED, TILE = 16, 32, 128  # elements
# What sizes of models leave of a tile: vocabularies of 50257, 32001 and 30522, 577 and 197 patches, 1000 classes.
USUAL_RESTS = (81, 1, 58, 65, 69, 104)
MOST_SQUARES, MOST_TILED = 3, 3  # pairs of sizes, and sizes
UNITS = (32, 64, 128, 256, 512)  # lengths of tiles, of which the least is looked for that a kernel takes
FIRST_TIMES, OTHER_TIMES = 3, (1, 2, *range(4, 17))  # of these: no power of two at first
SOME_TIMES, SOME = range(3, 49), 2  # of the least tiles of UNITS but one, for kernels that take all sizes
# Tiles of hidden layers of models (2560 and 5120, 1536, 3584, 4608, 5632), and how many; then one number of others.
WIDE_TILES, WIDE_TIMES, OTHER_WIDE_TIMES = (512, 1024), 5, (3, 7, 9, 11)
FEED_FORWARD = 4  # times as wide are hidden layers of it, the first that is tried
OTHER_MULTIPLES = (2, 3, 8)
FEW_PACKED = (8, 32)  # twice as many of the former size
MOST_DRAWN, DRAWN_TIMES = 3, 8.0  # sizes, and by how much they are less or more at most
MOST_NAMED, MOST_NAMED_SIZES = 1 << 16, 12
USUAL = 4096  # of which hidden layers and contexts are multiples
RUNGS = (*(Rung(reach, least) for reach in reversed(REACHES) for least in (64, 128, 256)), Rung("batch", 2))
NARROWER: tuple[Reach, ...] = ("inputs", "batch")
OF_THESE: tuple[Literal["odd", "large"] | Between | Grown, ...] = ("odd", Between(3, 2), "large", Grown(0), Grown(1))
Sizes = (
    Literal["small", "odd", "large", "tiny"]
    | Rung
    | Grown
    | Few
    | Rest
    | Between
    | Square
    | Multiple
    | Packed
    | Tiled
    | Drawn
    | Exactly
    | Within
)


def fewest(rng: random.Random, reach: Reach, *, on_gpu: bool) -> list[Few]:
    """Return at what few elements each size is tried: one, and on a CPU, where opening a session takes less, more."""
    drawn = [Few(reach, number, rng.choice(FEWEST)) for number in range(MOST_FEW) if not on_gpu]
    lone = [Few(reach, number, rng.choice(LONE), LONG) for number in range(MOST_FEW) if not on_gpu]
    return [*(Few(reach, number, 1) for number in range(MOST_FEW)), *lone, *drawn]


def pairs(rng: random.Random) -> list[Square]:
    """Return which sizes are tried as large as each other, in drawn order."""
    pairs = [Square(*pair) for pair in combinations(range(MOST_GROWN), 2)]
    return rng.sample(pairs, len(pairs))


def multiples(rng: random.Random) -> list[Multiple]:
    """Return how many times as large as the other one each of the last two sizes is tried."""
    both = rng.sample(((0, 1), (1, 0)), 2)
    return [*(Multiple(*two, FEED_FORWARD) for two in both), Multiple(*both[0], rng.choice(OTHER_MULTIPLES))]


def packed(rng: random.Random) -> list[Packed]:
    """Return sizes two by two, the second of which come right behind the first, in drawn order."""
    few = 2 * rng.randrange(*FEW_PACKED)
    both = rng.sample(list(product(range(2), range(3))), 6)
    return [Packed(number, power, few, second) for number, power in both for second in (False, True)]


def tiles(rng: random.Random) -> list[Tiled]:
    """Return of how many tiles each size is tried: of long ones first, as the hidden layers of models have."""
    wide = [(times, rng.choice(WIDE_TILES), True) for times in (WIDE_TIMES, rng.choice(OTHER_WIDE_TIMES))]
    some = [*wide, *((times, UNITS[1], False) for times in rng.sample(SOME_TIMES, SOME))]
    return [Tiled(number, *tiles) for tiles in some for number in range(MOST_TILED)]


def drawn(rng: random.Random) -> list[Drawn]:
    """Return about how many times its own each size is tried at: multiples of thousands first."""
    usual = [Drawn(number, DRAWN_TIMES ** rng.random(), USUAL) for number in range(MOST_DRAWN)]
    drawn = [Drawn(number, DRAWN_TIMES ** rng.uniform(-1, 1), 1) for number in range(MOST_DRAWN)]
    return [*rng.sample(usual, len(usual)), *rng.sample(drawn, len(drawn))]


def exactly(rng: random.Random, wholes: Sequence[int]) -> list[Exactly]:
    """Return at which sizes a kernel is tried that names such numbers: each of these for each size, then one beside
    them, and rests.

    No powers of two, which tiles are and the problem's own sizes, nor few elements.
    """
    some = [w for w in wholes if FEWEST.stop <= w <= MOST_NAMED and w & (w - 1)][:MOST_NAMED_SIZES]
    if not some:
        return []
    some = rng.sample(some, len(some))
    lines = [tuple((some[(at + 2 * i) % len(some)], 0) for i in range(MOST_GROWN)) for at in range(len(some))]

    def aside() -> tuple[int, int]:
        value, of = rng.choice(some), rng.choice(some)
        return (value, of) if value < of else (value + rng.choice((1, -1)), 0)

    lines += [tuple(aside() for _ in range(MOST_GROWN)) for _ in range(MOST_NAMED_SIZES)]
    return [Exactly(values, rng.randrange(MOST_DRAWN)) for values in lines]


def rests(rng: random.Random) -> list[int]:
    """Return rests of a tile: the usual ones, then one for each rest of two vectors that these do not leave."""
    others = [rest for rest in range(1, UNROLLED) if rest not in {usual % UNROLLED for usual in USUAL_RESTS}]
    drawn = [rest + UNROLLED * rng.randrange(TILE // UNROLLED) for rest in others]
    return [*rng.sample(USUAL_RESTS, len(USUAL_RESTS)), *rng.sample(drawn, len(drawn))]


def opened_sizes(*, thorough: bool) -> tuple[Sizes, ...]:
    return ("small", "odd", "large", "tiny", *map(Grown, range(MOST_GROWN))) if thorough else ("small",)
