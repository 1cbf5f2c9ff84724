"""Does the judge refuse what is right in the precision that is allowed, and fewer bits? By thousands of drawn contents.

    .venv/bin/python tests/bench/allowed_precision.py [--sessions 10] [--only tanh] [--out rows.jsonl]

Each chain is a module whose products may be TF32, or that computes in 16 bits. Its kernels are the module itself, run
within a mode that rounds as a kernel of that precision does: no text is built, no memory guarded, nothing timed, and of
a judgement what compares numbers is left, with the judge's own sessions, draws and limits. A session has seeds of its
own, and draws a content of each special kind, and of rows of several kinds several times. A table tells, by chain, on
how many contents kernels were called, and in how many sessions one was refused or labelled. `--table` makes it of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from rag_kernels.eval.buffers.call_content import Recipe
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot
from rag_kernels.eval.buffers.shared_arena import attach
from rag_kernels.eval.children.reference.bound_module import BoundModule
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.numerics.eight_bits import narrowed
from rag_kernels.eval.numerics.oracle import tensors
from rag_kernels.eval.numerics.rounding_noise import Chance, Perturbed, cut_to_tf32, through, to_tf32
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import ProblemError
from rag_kernels.eval.sessions.candidate_buffers import BoundBuffers
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.traits.input_kinds import MIXED, OF_ITS_SIDE
from rag_kernels.eval.trial.checks import Checks, Findings
from rag_kernels.eval.trial.precision_checks import probe
from rag_kernels.eval.trial.special_checks import special_values
from rag_kernels.ingest.functional.functionalize import functionalize

MIXED_TIMES = 8  # a session's rows of several kinds, drawn anew
WITHOUT = frozenset({"late-write check", "guard pages"})
FORM = """
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, {names}):
        return {result}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Chain:
    """A module of one line; `inputs` are the sizes of normal ones, by name."""

    name: str
    result: str
    inputs: dict[str, tuple[int, ...]]
    dtype: str = "float32"

    @property
    def source(self) -> str:
        inputs = ", ".join(
            f"(torch.randn({', '.join(map(str, size))}) / {max(1.0, size[0] ** 0.5):g}).to(torch.{self.dtype})"
            if name.startswith("w")
            else f"torch.randn({', '.join(map(str, size))}).to(torch.{self.dtype})"
            for name, size in self.inputs.items()
        )
        return FORM.format(names=", ".join(self.inputs), result=self.result, inputs=inputs)


TWO = {"x": (48, 96), "y": (96, 64)}
WEIGHTS = {"x": (48, 96), "w": (96, 64)}
THREE = {**TWO, "z": (64, 40)}
GATE = {**WEIGHTS, "w2": (96, 64)}
HEADS = {"q": (2, 32, 32), "k": (2, 40, 32), "v": (2, 40, 32)}
ATTENTION = "torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1) @ v"
PRODUCTS = (
    Chain("tanh", "torch.tanh(x @ y) @ z", {"x": (48, 512), "y": (512, 64), "z": (64, 40)}),
    Chain("exp", "torch.exp(-(x @ w).abs())", WEIGHTS),
    Chain("softmax", "torch.softmax(x @ w, -1)", WEIGHTS),
    Chain("attention", ATTENTION, HEADS),
    Chain("layer norm", "F.layer_norm(x @ w, (64,)) @ z", {**WEIGHTS, "z": (64, 40)}),
    Chain("root mean square", "(x @ w) * torch.rsqrt((x @ w).pow(2).mean(-1, keepdim=True) + 1e-6)", WEIGHTS),
    Chain("unit length", "F.normalize(x @ y, dim=-1) @ z", THREE),
    Chain("sigmoid gate", "torch.sigmoid(x @ w) * (x @ w2)", GATE),
    Chain("SiLU gate", "F.silu(x @ w) * (x @ w2)", GATE),
    Chain("GELU", "F.gelu(x @ w)", WEIGHTS),
    Chain("sums", "(x @ w).sum(-1)", {"x": (512, 96), "w": (96, 64)}),
    Chain("means of squares", "(x @ w).pow(2).mean(0)", {"x": (48, 96), "w": (96, 512)}),
    Chain("products of products", "(x @ y) @ z", THREE),
    Chain("ReLU", "torch.relu(x @ y) @ z", THREE),
    Chain("division", "(x @ w) / (1 + (x @ w2).abs())", GATE),
    Chain("division by either sign", "(x @ w) / (x @ w2)", GATE),
    Chain("logarithm of sums", "torch.logsumexp(x @ w, -1)", {"x": (512, 96), "w": (96, 64)}),
    Chain("sine", "torch.sin(x @ w)", WEIGHTS),
    Chain("convolution", "F.leaky_relu(F.conv2d(x, w, padding=1), 0.1)", {"x": (2, 8, 12, 12), "w": (16, 8, 3, 3)}),
    Chain("clamp", "(x @ y).clamp(-1, 1) @ z", THREE),
    Chain("positive factors", "torch.sigmoid(x) @ torch.sigmoid(y)", TWO),
    Chain("signs", "torch.where(x @ y > 0, 1.0, -1.0) @ z", THREE),
)
HALVES = tuple(
    Chain(f"{name} in {short}", result, inputs, dtype)
    for dtype, short in (("bfloat16", "bf16"), ("float16", "fp16"))
    for name, result, inputs in (
        ("tanh", "torch.tanh(x @ w) @ z", {**WEIGHTS, "z": (64, 40)}),
        ("attention", ATTENTION, HEADS),
        ("softmax", "torch.softmax(x @ w, -1)", WEIGHTS),
        ("layer norm", "F.layer_norm(x @ w, (64,))", WEIGHTS),
        ("SiLU gate", "F.silu(x @ w) * (x @ w2)", GATE),
        ("sums", "(x @ w).sum(-1)", {"x": (512, 96), "w": (96, 64)}),
        ("division", "(x @ w) / (1 + (x @ w2).abs())", GATE),
        ("residual", "x + torch.relu(x @ w) @ w2", {"x": (48, 96), "w": (96, 64), "w2": (64, 96)}),
    )
)


@dataclass(frozen=True)
class Kernel:
    """What a kernel makes of a module's content: the module within a mode that is made for each call.

    `wide`: in fp32, and rounded to 16 bits in the end.
    """

    name: str
    honest: bool
    mode: Callable[[torch.Generator], AbstractContextManager[Any]]
    wide: bool = False

    def run(self, module: BoundModule, generator: torch.Generator) -> list[torch.Tensor]:
        if not self.wide:
            module.restore()
            with self.mode(generator):
                return module.call()
        values = [v.float() if v.is_floating_point() else v for v in module.values]
        with self.mode(generator):
            return module.call_on(values, wide=False)


def few_bits(value: torch.Tensor) -> torch.Tensor:
    """Round to four bits after the point, of any dtype."""
    mantissa, exponent = torch.frexp(value.float())
    return torch.ldexp((mantissa * 2**5).round() * 2**-5, exponent).to(value.dtype)


def in_other_orders(generator: torch.Generator) -> Perturbed:
    """Round factors to TF32, and every result by a rounding or two more."""
    chance = Chance(generator)
    return Perturbed(operands=to_tf32, results=lambda value: chance.move(value, 2.0**-23))


def by_chance(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Generator], Perturbed]:
    """Return a mode that changes some factors of products, each or none by chance."""

    def mode(generator: torch.Generator) -> Perturbed:
        return Perturbed(operands=lambda v: change(v) if bool(torch.randint(0, 2, (), generator=generator)) else v)

    return mode


def rounded_here_and_there(dtype: torch.dtype) -> Callable[[torch.Generator], Perturbed]:
    """Return a mode that rounds whole results to 16 bits, each or none by chance."""

    def mode(generator: torch.Generator) -> Perturbed:
        def some(value: torch.Tensor) -> torch.Tensor:
            rounds = bool(torch.randint(0, 2, (), generator=generator))
            return through(dtype)(value) if rounds and value.dtype == torch.float32 else value

        return Perturbed(results=some)

    return mode


def kernels_for(chain: Chain) -> tuple[Kernel, ...]:
    """Return kernels that are as exact as is allowed, and some of fewer bits."""
    if chain.dtype == "float32":
        return (
            Kernel("TF32", True, lambda _: Perturbed(operands=to_tf32)),
            Kernel("TF32, cut", True, lambda _: Perturbed(operands=cut_to_tf32)),
            Kernel("TF32, in other orders", True, in_other_orders),
            Kernel("TF32 here and there", True, by_chance(to_tf32)),
            Kernel("bf16", False, lambda _: Perturbed(operands=through(torch.bfloat16))),
        )
    dtype = getattr(torch, chain.dtype)
    return (
        Kernel("in fp32, rounded once", True, lambda _: nullcontext(), wide=True),
        Kernel("rounded here and there", True, rounded_here_and_there(dtype), wide=True),
        Kernel("five bits", False, lambda _: Perturbed(results=few_bits)),
    )


class Computed:
    """Stands in for a loaded candidate: its calls are a kernel's here, on what the session's content holds."""

    def __init__(self, session: ProblemSession, kernel: Kernel) -> None:
        self.session, self.kernel, self.calls = session, kernel, 0
        content = attach(os.dup(session.content.fd), session.content.describe(), writable=False)
        self.module = BoundModule(session.fp, torch.device("cpu"), content, session.rng.getrandbits(40))
        self.generator = torch.Generator().manual_seed(session.rng.getrandbits(40))
        self.made: list[torch.Tensor] = []

    def prepare(self, place: BoundBuffers, recipe: Recipe, *, former: bool = False) -> None:
        self.session.write(recipe)

    def call(self, place: BoundBuffers) -> None:
        self.calls += 1
        with torch.no_grad():
            made = tensors(self.kernel.run(self.module, self.generator))
            forms = zip(made, self.session.fp.outputs, strict=True)
            self.made = [narrowed(t, getattr(torch, spec.dtype)).contiguous() for t, spec in forms]

    def outputs(self, place: BoundBuffers) -> OutputSnapshot:
        return OutputSnapshot(tuple(t.reshape(-1).view(torch.uint8).numpy().copy() for t in self.made))

    def fingerprint(self, place: BoundBuffers) -> bytes:
        return b""

    def input_hash(self, place: BoundBuffers) -> bytes:
        return b""


@dataclass(frozen=True)
class Row:
    """What came of a kernel in one session."""

    chain: str
    kernel: str
    honest: bool
    calls: int
    refused: str
    labels: tuple[str, ...]
    notes: tuple[str, ...]


def tried(session: ProblemSession, chain: Chain, kernel: Kernel) -> Row:
    """Return what the judge's comparisons say of a kernel on the session's contents."""
    computed, found = Computed(session, kernel), Findings()
    place = BoundBuffers(session, 0, session.content, None)
    checks = Checks(cast(LoadedCandidate, computed), place, found, WITHOUT)
    refused = ""
    try:
        checks.draws()
        for _ in range(MIXED_TIMES):
            checks.elsewhere(place)
            for kind in (MIXED, f"{MIXED}{OF_ITS_SIDE}"):
                session.specials.kinds.pop(kind, None)  # the next one is another
        special_values(checks, place)
        probe(checks, place)
        checks.rounding()
    except Stopped as stopped:
        told = stopped.verdict
        refused = " ".join(str(getattr(told, name, "")) for name in ("reason", "input_class", "where"))
    return Row(chain.name, kernel.name, kernel.honest, computed.calls, refused, tuple(found.labels), tuple(found.notes))


def rows_of(judge: LocalJudge, chain: Chain, sessions: int, kernels: Sequence[Kernel] = ()) -> Iterator[Row]:
    """Try the kernels of a chain in so many sessions, each with seeds of its own."""
    fp = functionalize(problem_from_source("chain", chain.source), workers=judge.workers)
    for _ in range(sessions):
        with judge.sessions.new(fp) as session:
            judge.sessions.compare_as_admitted(session)
            for kernel in kernels or kernels_for(chain):
                yield tried(session, chain, kernel)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Return the lines of a table: a row for each chain, in sessions of a kernel each."""
    yield "| chain | contents | as exact as allowed: sessions | refused | labelled | fewer bits: sessions | refused |"
    yield "|---|---:|---:|---:|---|---:|---:|"
    for chain in dict.fromkeys(row.chain for row in rows):
        honest, others = ([r for r in rows if r.chain == chain and r.honest == is_one] for is_one in (True, False))
        labels = Counter(label for row in honest for label in row.labels)
        told = ", ".join(f"{label} ({n})" for label, n in labels.most_common()) or "none"
        calls = sum(row.calls for row in honest)
        refused, caught = (sum(bool(row.refused) for row in some) for some in (honest, others))
        yield f"| {chain} | {calls} | {len(honest)} | {refused} | {told} | {len(others)} | {caught} |"


def _kept(row: Row, out: Path | None) -> Row:
    """Write a row to a file, and say at once where what is right was refused."""
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
    if row.honest and row.refused:
        print(f"{row.chain}, {row.kernel}: {row.refused}", file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10, help="of each chain")
    parser.add_argument("--only", default="", help="chains whose names hold this")
    parser.add_argument("--honest", action="store_true", help="leave kernels of fewer bits out")
    parser.add_argument("--out", type=Path, help="every row, as JSON lines")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files")
    asked = parser.parse_args()
    if asked.table:
        lines = (json.loads(line) for path in asked.table for line in path.read_text().splitlines())
        print("\n".join(table([Row(**line) for line in lines])))
        return
    torch.set_num_threads(1)
    rows: list[Row] = []
    with open_judge("cpu", limits=Limits(measure_compile=False)) as judge:
        for chains, precision in ((PRODUCTS, "tf32"), (HALVES, "strict")):
            limits = replace(judge.limits, precision=precision, without=WITHOUT)
            other = judge.by_other_limits(limits)
            for chain in (chain for chain in chains if asked.only in chain.name):
                kernels = [kernel for kernel in kernels_for(chain) if kernel.honest or not asked.honest]
                try:
                    rows += (_kept(row, asked.out) for row in rows_of(other, chain, asked.sessions, kernels))
                except ProblemError as error:
                    print(f"{chain.name}: {error}", file=sys.stderr)
            other.close()
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
