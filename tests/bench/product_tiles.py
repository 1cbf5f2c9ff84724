"""All ways to cut products on Hopper into tiles beside each other: what the choice of a tile is fitted to.

    python tests/bench/product_tiles.py --out docs/measured/product_tiles.jsonl.gz [--rounds 5] [--seconds 200]
    python tests/bench/product_tiles.py --fit docs/measured/product_tiles.jsonl.gz [--check]

The race needs a GPU: each size by each tile, blocks of a cluster, groups that take turns or share tiles, and parts of a
depth (those that should take at most 1.4 times as long as the best by the model of now), timed in turns with
eager PyTorch as `sixteen_bit_products.py` does. A text serves all sizes of a kind; into how many parts it cuts a depth
it is told by the environment here. `--fit` needs no GPU: it prints the coefficients of `hopper/shape.py` that the rows
give, and how the choice by them stands beside the best way of each size and beside eager.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
import tvm_ffi
from sixteen_bit_products import STORED, arguments_of, inputs_of, planned, product_of, race

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.offline.cuda.gemm.hopper.shape import (
    COSTS,
    HALF_OF_WAVE,
    SHAPES,
    Costs,
    Shape,
    joins,
    parts_of,
    time_of,
    waves_of,
)
from rag_kernels.offline.cuda.gemm.hopper.wgmma import WgmmaKernel

W, Y, GELU = "x @ w.T", "x @ y", "bias, GELU"
# What a product is of -> its sizes. Rows are waves of every kind, few tiles, short and long depths.
RACE: dict[tuple[str, str], tuple[tuple[int, int, int], ...]] = {
    (W, "bfloat16"): (
        *((4096, 4096, 4096), (1024, 1024, 1024), (2048, 2048, 2048), (16384, 1024, 1024), (1024, 1024, 16384)),
        *((16, 8192, 8192), (64, 4096, 4096), (4104, 4088, 4080), (128, 28672, 8192), (256, 4096, 4096)),
        *((4096, 1152, 4608), (4096, 4608, 1152), (4096, 1152, 1152), (2048, 2816, 1024), (50176, 768, 192)),
        *((50176, 192, 768), (512, 14336, 4096), (8192, 768, 3072), (128, 4096, 14336), (512, 512, 8192)),
        *((8192, 8192, 512), (3072, 3072, 3072), (8192, 256, 4096), (1536, 6144, 1536), (256, 256, 524288)),
        *((768, 768, 768), (32768, 128, 512), (6000, 2000, 600)),
        *((2048, 8192, 2048), (1280, 1280, 1280), (512, 4096, 1024), (2048, 512, 4096), (8192, 1280, 1280)),
        *((32, 14336, 4096), (4096, 11008, 4096), (384, 3072, 768)),
        *((4096, 3456, 1152), (8192, 4096, 4096), (8192, 8192, 8192), (512, 2048, 2048), (256, 8192, 2048)),
        *((64, 8192, 8192),),
        *((384, 384, 4096), (1024, 4096, 4096), (128, 1024, 8192)),
    ),
    (W, "tf32"): (
        *((4096, 4096, 4096), (1024, 1024, 1024), (16384, 1024, 1024), (1024, 1024, 16384), (16, 8192, 8192)),
        *((64, 4096, 4096), (256, 4096, 4096), (4096, 1152, 4608), (4096, 4608, 1152), (50176, 768, 192)),
        *((50176, 192, 768), (512, 14336, 4096), (2048, 2816, 1024), (128, 26624, 8192)),
        *((2048, 2048, 2048), (768, 768, 768), (8192, 768, 3072), (512, 512, 8192), (256, 256, 524288)),
        *((4096, 3456, 1152), (4104, 4088, 4080), (128, 1024, 8192)),
    ),
    (Y, "bfloat16"): (
        *((4096, 4096, 4096), (16384, 512, 2048), (4096, 1152, 4608), (8192, 768, 3072)),
        *((256, 256, 524288), (64, 4096, 4096)),
    ),
    (GELU, "bfloat16"): ((8192, 4096, 4096), (4096, 4096, 1024), (4096, 4608, 1152)),
    (Y, "tf32"): (
        *((4096, 4096, 4096), (16384, 512, 2048), (4096, 1152, 4608), (8192, 768, 3072), (256, 256, 524288)),
    ),
}
SLOW, FEWEST = 1.4, 16  # times as long as the fastest, by the model of now; ways of a size
PARTS = (1, 2, 3, 4, 6, 8, 11, 16, 22, 33, 44, 66)


Adds = Literal["", "in memory", "in clusters"]


@dataclass(frozen=True, slots=True)
class Way:
    """How a product was computed: its tile, how its text adds parts of a depth up, and into how many it was cut."""

    shape: Shape
    adds: Adds
    parts: int


@dataclass(frozen=True, slots=True)
class Row:
    """One time, and eager's beside it, in microseconds."""

    product: tuple[str, str, int, int, int]  # form, dtype, m, n, k
    tile: tuple[int, int, int, bool]  # rows, columns, blocks of a cluster, whether groups take turns
    parts: int
    joined: bool  # in clusters
    us: float
    eager: float

    @property
    def shape(self) -> Shape:
        return Shape(*self.tile, 16 // self.tile[2])


def ways(form: str, dtype: str, size: tuple[int, int, int]) -> list[Way]:
    """All ways of a size that may be worth a look."""
    product, found = product_of(form, dtype, size), dict[Way, float]()
    for shape in filter(product.fits, SHAPES):
        few = waves_of(shape, product) <= HALF_OF_WAVE
        for joined in (False, True) if few and product.may_join(shape) else (False,):
            adds: Adds = "" if not few else "in clusters" if joined else "in memory"
            parts = [parts for parts in parts_of(shape, product, joined) if parts in PARTS and parts > joined]
            found |= {Way(shape, adds, each): time_of(shape, product, each, joined=joined) for each in parts}
    times = sorted(found.values())
    most = max(SLOW * times[0], times[min(FEWEST, len(times)) - 1])
    return [way for way, us in found.items() if us <= most]


def texts(form: str, dtype: str, wanted: set[tuple[Shape, Adds]]) -> dict[tuple[Shape, Adds], tuple[Any, str]]:
    """The problem and the text of each tile, that splits a depth as the environment says or not at all."""
    out = {}
    for shape, adds in sorted(wanted, key=str):
        with patch.object(WgmmaKernel, "way_to_add", lambda _, adds=adds: adds):
            fp, plan = planned(form, dtype, (64, 72, 80) if adds else (16384, 8192, 80), shape)
        source = plan.candidate.source
        told = 'const int parts = getenv("PARTS") ? atoi(getenv("PARTS")) : tma_parts('
        source = source.replace("const int parts = tma_parts(", told)
        assert ("getenv" in source) == bool(adds) and ("tma_sum<8><<<" in source) == (adds == "in memory")
        out[shape, adds] = fp, source
    return out


def raced(form: str, dtype: str, libraries: dict[tuple[Shape, Adds], Any], size: Any, rounds: int) -> Iterator[Row]:
    """The times of a size by all ways of it whose results are eager's."""
    kind = getattr(torch, STORED.get(dtype, dtype))
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    eager, made = arguments_of(form, kind, dict(zip(("m", "n", "k"), size, strict=True)))
    exact, calls = eager(**made).float(), {"eager": lambda: eager(**made)}
    out = torch.empty(size[0], size[1], device="cuda", dtype=kind)
    named = {str(way): way for way in ways(form, dtype, size) if (way.shape, way.adds) in libraries}
    for name, way in named.items():
        fp, library = libraries[way.shape, way.adds]

        def call(fp: Any = fp, library: Any = library, parts: int = way.parts) -> None:
            os.environ["PARTS"] = str(parts)
            library.forward(*inputs_of(fp, made), *(v for _, v in fp.abi_constants), out)

        out.fill_(float("nan"))
        call()
        if (out.float() - exact).abs().max() <= 0.02 * exact.abs().max():
            calls[name] = call
        else:
            print("wrong", form, dtype, size, way, flush=True)
    times = {name: round(statistics.median(t), 2) for name, t in race(calls, rounds).items()}
    for name in [name for name in calls if name in named]:
        s, parts, joined = named[name].shape, named[name].parts, named[name].adds == "in clusters"
        tile = (s.rows, s.columns, s.cluster, s.alternate)
        yield Row((form, dtype, *size), tile, parts, joined, times[name], times["eager"])


def run(out: Path, rounds: int, seconds: float) -> None:
    """Race all kinds and sizes, as far as time reaches, and write the rows."""
    started, rows = time.monotonic(), list[Row]()
    for (form, dtype), sizes in RACE.items():
        if time.monotonic() - started > seconds:
            break
        written = texts(form, dtype, {(w.shape, w.adds) for size in sizes for w in ways(form, dtype, size)})
        with tempfile.TemporaryDirectory() as cache:
            done = build([(s, "cuda") for _, s in written.values()], tools=toolchain(), cache=Path(cache))
            libraries = {}
            for (key, (fp, _)), made in zip(written.items(), done, strict=True):
                if isinstance(made, Built):
                    libraries[key] = fp, tvm_ffi.load_module(str(made.library))
                else:
                    print("not built", form, dtype, key, made.reason[-500:])
        print(f"{form}, {dtype}: {len(libraries)} texts at {time.monotonic() - started:.0f} s", flush=True)
        for size in sizes:
            if time.monotonic() - started > seconds:
                break
            rows += raced(form, dtype, libraries, size, rounds)
            torch.cuda.empty_cache()
            header = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rounds": rounds}
            lines = [json.dumps(header), *(json.dumps(asdict(row)) for row in rows)]
            out.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
        print(f"{form}, {dtype}: {len(rows)} rows at {time.monotonic() - started:.0f} s", flush=True)


def read(path: Path) -> list[Row]:
    """The rows of a race."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    rows = map(json.loads, lines[1:])
    return [Row(tuple(r["product"]), tuple(r["tile"]), r["parts"], r["joined"], r["us"], r["eager"]) for r in rows]


STEP, ENOUGH = 1e-4, 1e-4  # of a coefficient, for its derivative; of all of them, where Marquardt's method ends
NEAR, REST = 12.0, 0.1  # how much times near a size's best weigh, and what all of them do
ALIKE = 0.01  # ways whose times by the model differ by so much of them are as likely to be chosen
MOVES, LITTLE = (1.3, 1.15, 1.07, 1.03), 1e-4  # of one coefficient, and what is no gain


class Rows:
    """Times, and how well coefficients explain them and choose among them."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = [row for row in rows if row.shape in SHAPES]
        self.products = [product_of(row.product[0], row.product[1], row.product[2:]) for row in self.rows]
        least = best_of(rows)
        self.logarithms = np.log([row.us for row in self.rows])
        self.lost = self.logarithms - np.log([least[row.product] for row in self.rows])
        self.weights = REST + np.exp(NEAR * (1 - np.exp(self.lost)))
        self.sizes = [[i for i, row in enumerate(self.rows) if row.product == product] for product in least]

    def errors(self, costs: Costs) -> np.ndarray[Any, Any]:
        """How far off the model's logarithms are."""
        pairs = zip(self.rows, self.products, strict=True)
        times = [time_of(row.shape, product, row.parts, costs, joined=row.joined) for row, product in pairs]
        return np.asarray(np.log(times) - self.logarithms)

    def cost(self, costs: Costs) -> float:
        """What the choice loses on the average, and twice the mean square of the errors."""
        errors, lost = self.errors(costs), 0.0
        for size in self.sizes:
            times = errors[size] + self.logarithms[size]
            likely = np.exp((times.min() - times) / ALIKE)
            lost += float(likely @ self.lost[size] / likely.sum())
        return lost / len(self.sizes) + 2 * float(self.weights @ errors**2 / self.weights.sum())


def fit(rows: Rows, begin: Costs = COSTS) -> Costs:
    """The coefficients by which the model explains the times best, moved until the choice by them loses least."""
    costs = settled(rows, near_times(rows, begin), MOVES)
    return Costs(*(float(f"{cost:.3g}") for cost in astuple(costs)))


def near_times(rows: Rows, begin: Costs) -> Costs:
    """The coefficients by which the errors' weighted squares are least, by Marquardt's method.

    A time weighs the less the longer it is than the best one of its size: what counts is which way is best.
    """

    def errors(logarithms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return rows.weights**0.5 * rows.errors(Costs(*np.exp(logarithms).tolist()))

    at, damping, done = np.log(np.array(astuple(begin))), 1e-3, False
    now = errors(at)
    while not done:
        slopes = np.stack([(errors(at + step) - now) / STEP for step in STEP * np.eye(len(at))], 1)
        square, new = slopes.T @ slopes, now
        while damping < 1e6 and not new @ new < now @ now:
            move = -np.linalg.solve(square + damping * np.eye(len(at)), slopes.T @ now).clip(-0.5, 0.5)
            new, damping = errors(at + move), damping * 4
        done = 1 - (new @ new) / (now @ now) < ENOUGH
        at, now, damping = (at, now, damping) if damping >= 1e6 else (at + move, new, damping / 12)
    return Costs(*np.exp(at).tolist())


def settled(rows: Rows, costs: Costs, moves: tuple[float, ...]) -> Costs:
    """The coefficients, each moved by so much as long as that gains something."""
    now = rows.cost(costs)
    for move in moves:
        gained = True
        while gained:
            gained = False
            for one in fields(costs):
                for factor in (move, 1 / move):
                    other = replace(costs, **{one.name: getattr(costs, one.name) * factor})
                    if (new := rows.cost(other)) < now - LITTLE:
                        costs, now, gained = other, new, True
                        break
    return costs


def best_of(rows: list[Row]) -> dict[tuple[str, str, int, int, int], float]:
    """The best time of each product."""
    least: dict[tuple[str, str, int, int, int], float] = {}
    for row in rows:
        least[row.product] = min(row.us, least.get(row.product, math.inf))
    return least


def chosen(rows: list[Row], costs: Costs = COSTS) -> dict[tuple[str, str, int, int, int], Row]:
    """Of each product the way of least time by the model."""
    found: dict[tuple[str, str, int, int, int], tuple[float, Row]] = {}
    for row in [row for row in rows if row.shape in SHAPES]:
        product = product_of(row.product[0], row.product[1], row.product[2:])
        us = time_of(row.shape, product, row.parts, costs)
        as_written = row.parts == 1 or row.joined == joins(row.shape, product, costs)
        if as_written and (row.product not in found or us < found[row.product][0]):
            found[row.product] = us, row
    return {product: row for product, (_, row) in found.items()}


def report(rows: list[Row], costs: Costs) -> None:
    """Print the coefficients, and each choice beside the best way and eager."""
    for one in fields(costs):
        print(f"{one.name}: float = {getattr(costs, one.name)}")
    least, lost, ratios = best_of(rows), [], []
    print("| product | dtype | m | n | k | tile | parts | us | of the best way | eager over it | eager over the best |")
    print("|---|---|---:|---:|---:|---|---:|---:|---:|---:|---:|")
    for product, row in chosen(rows, costs).items():
        s, best = row.shape, least[product]
        lost.append(row.us / best)
        ratios.append(row.eager / row.us)
        tile = f"{s.rows} x {s.columns}" + ", pairs" * (s.cluster > 1) + ", in turns" * s.alternate
        cells = [*product, tile, row.parts, row.us, f"{lost[-1]:.3f}", f"{ratios[-1]:.3f}", f"{row.eager / best:.3f}"]
        print(f"| {' | '.join(map(str, cells))} |")
    print(f"of the best way: geometric mean {mean(lost):.4f}, most {max(lost):.3f}")
    print(f"eager over it: geometric mean {mean(ratios):.3f}, least {min(ratios):.3f}")


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no size later than that")
    parser.add_argument("--out", type=Path, help="race, and write the rows here")
    parser.add_argument("--fit", type=Path, help="fit the model to these rows")
    parser.add_argument(
        "--check", action="store_true", help="of the coefficients that there are; fail if a fit would change them"
    )
    asked = parser.parse_args()
    if asked.out:
        run(asked.out, asked.rounds, asked.seconds)
    if asked.fit:
        rows = read(asked.fit)
        if asked.check:
            report(rows, COSTS)
            if settled(Rows(rows), COSTS, MOVES[-1:]) != COSTS:
                raise SystemExit("The rows give other coefficients than hopper/shape.COSTS has: fit them.")
        else:
            report(rows, fit(Rows(rows)))


if __name__ == "__main__":
    main()
