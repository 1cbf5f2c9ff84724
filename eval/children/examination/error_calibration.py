"""How far honest rounding moves a problem's outputs, and how far a lower precision does; the limits lie between.

Comes in: runs of a module (a function that returns outputs) with what is right. Goes out: a `Calibration`. A dispatch
mode makes every operator round 16 times as badly, at random, which is an upper model of another order of operations;
or it rounds the operands of matmul-like operators, or the result of every operator, to a lower precision.
Runs in a child process, never beside a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from rag_kernels.eval.admission_records import MIN_GAP, Calibration, Cheat
from rag_kernels.eval.numerics.compare import LIMITS, ratios
from rag_kernels.eval.numerics.rounding_noise import Perturbed, RoundingNoise, through, to_tf32
from rag_kernels.eval.numerics.steps import stepped

NOISE_RUNS = 5
LEAST_NOISE = 1.0  # an exact problem (a copy, a maximum) has no noise of its own
MOST_CHEAT = 1e18
SHORT = (32.0, 128.0)  # limits where each element comes of a few operations: no sums, whose order moves them
AMPLE = 4.0  # times the amplified noise: room for every honest order of operations


@dataclass(frozen=True, slots=True)
class Case:
    """The module on one kind of inputs: `run(mode)` computes the outputs within a dispatch mode."""

    run: Callable[[Perturbed], list[torch.Tensor]]
    reference: list[torch.Tensor]
    oracle: list[torch.Tensor]


def cheats_for(dtype: torch.dtype) -> dict[str, Callable[[], Perturbed]]:
    """Return what a kernel for outputs of this dtype might cheat with, by name."""
    if dtype == torch.float64:
        single = through(torch.float32)
        return {"fp32 operands": lambda: Perturbed(operands=single), "fp32 results": lambda: Perturbed(results=single)}
    half, brain = through(torch.float16), through(torch.bfloat16)
    return {
        "TF32 operands": lambda: Perturbed(operands=to_tf32),
        "bf16 results": lambda: Perturbed(results=brain),
        "fp16 results": lambda: Perturbed(results=half),
        "fp16 operands": lambda: Perturbed(operands=half),
        "bf16 operands": lambda: Perturbed(operands=brain),
    }


def calibrate(
    cases: Sequence[Case],
    generator: torch.Generator,
    out_of_time: Callable[[], bool],
    *,
    elementwise: bool = False,
    steps: bool = False,
) -> Calibration | None:
    """Calibrate: noise is the worst over runs and cases. Where results move by `steps`, these are left out of it.

    A cheat counts where it shows best, since every case is checked.
    """
    cases = [c for c in cases if any(bool(t.any()) for t in c.oracle if t.is_floating_point())]  # zeros have no scale
    dtypes = {t.dtype for case in cases for t in case.reference if t.is_floating_point()}
    if not dtypes or not dtypes <= {torch.float32, torch.float64}:
        return None
    rms, largest, runs = LEAST_NOISE, LEAST_NOISE, 0
    for _ in range(NOISE_RUNS):
        if runs and out_of_time():
            break
        for case in cases if runs < 2 else cases[:1]:
            found = _ratios(case, RoundingNoise(generator), steps=steps)
            rms, largest = max(rms, found[0]), max(largest, found[1])
        runs += 1
    cheats: list[Cheat] = []
    for name, make in cheats_for(min(dtypes, key=lambda d: d.itemsize)).items():
        if cheats and out_of_time():
            break
        tried = [(_ratios(case, mode, steps=steps), mode.applied) for case in cases for mode in [make()]]
        if any(applied for _, applied in tried):
            cheats.append(Cheat(name, max(r[0] for r, _ in tried), max(r[1] for r, _ in tried)))
    if not cheats:
        return None
    gap = min(_smallest([c.rms for c in cheats]), MOST_CHEAT) / rms
    fixed, ample = (SHORT, 1.0) if elementwise else (LIMITS[min(d.itemsize for d in dtypes)], AMPLE)
    return Calibration(
        noise_rms=rms,
        noise_max=largest,
        noise_runs=runs,
        cheats=tuple(cheats),
        gap=gap,
        limit_rms=_between(rms, [c.rms for c in cheats], fixed[0], ample),
        limit_max=_between(largest, [c.max for c in cheats], fixed[1], ample),
    )


def _ratios(case: Case, mode: Perturbed, *, steps: bool) -> tuple[float, float]:
    triples = zip(case.run(mode), case.reference, case.oracle, strict=True)
    floats = [(got, reference, oracle) for got, reference, oracle in triples if got.is_floating_point()]
    found = [ratios(*(_without_steps(*three) if steps else three)) for three in floats]
    return max(r for r, _ in found), max(m for _, m in found)


def _without_steps(
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Set right what differs by steps, in either output: a cheat that is off nearly everywhere has none."""

    def unstepped(value: torch.Tensor) -> torch.Tensor:
        step = stepped(value, oracle, oracle)
        return value if step is None else torch.where(step, oracle.to(value.dtype), value)

    return unstepped(got), unstepped(reference), oracle


def _smallest(cheats: list[float]) -> float:
    """Return the smallest cheat that shows at all, or the largest where none does."""
    return min((c for c in cheats if c > 2), default=max(cheats, default=0.0))


def _between(honest: float, cheats: list[float], fixed: float, ample: float) -> float:
    """Return a limit between noise and cheat: their geometric mean, but no more than honest rounding needs.

    Where the two are too close to tell apart it is what honest rounding needs.
    """
    smallest = min(_smallest(cheats), MOST_CHEAT)
    if not math.isfinite(honest) or smallest / honest < MIN_GAP:
        return max(fixed, 2 * min(honest, MOST_CHEAT))
    return min(math.sqrt(honest * smallest), max(fixed, ample * honest))
