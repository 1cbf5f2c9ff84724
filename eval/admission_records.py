"""What is known of a problem before any candidate: the examination's numbers, and the limits that follow from them.

Comes in: what a child process measured. Goes out: records, with the limits of errors for a precision class. Knows
nothing of how the numbers are measured (`children/examination/`) or where they are kept (`sessions/admission.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rag_kernels.eval import codec
from rag_kernels.eval.records import Role

MIN_GAP = 4.0
NEAR = 3.0  # an error within this factor of a cheat's is explained by it
TWICE = 2.0  # as bad as the class that is allowed: another order of the same operations
LARGEST = 3.0  # times the largest error, which differs more from draw to draw; bf16 has eight times that of TF32
ALLOWED_OPERANDS: dict[str, tuple[str, ...]] = {
    "strict": (),
    "tf32": ("TF32 operands",),
    "any": ("TF32 operands", "fp16 operands", "bf16 operands"),
}


@dataclass(frozen=True, slots=True)
class Output:
    """One output on the problem's own inputs.

    `spread`: for each axis, how far elements along it lie apart (RMS) in units of `rms`; 0 is uniform. `changed` and
    `changed_max`: how much other inputs move it, by RMS, and at most an element relative to itself.
    """

    shape: tuple[int, ...]
    dtype: str
    rms: float
    finite: bool
    spread: tuple[float, ...]
    changed: float
    changed_max: float


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Relative change (RMS) of the fp64 output when this argument alone is drawn anew; None with a `why`."""

    name: str
    role: Role
    change: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class NullKernel:
    """A kernel that computes nothing, or less, by the judge's own rule and by another one on the problem's inputs.

    `passes`: on every kind of draw; `ratio`: its error over PyTorch's own; `kernelbench`: by allclose with 1e-2.
    """

    name: str
    passes: bool
    passes_own: bool  # on the problem's own inputs alone
    ratio: float
    kernelbench: bool


@dataclass(frozen=True, slots=True)
class Cheat:
    """What a lower precision does to the output, as ratios of errors."""

    name: str
    rms: float
    max: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Honest noise (rounding 16 times as bad, the worst run) against cheats; limits lie between them."""

    noise_rms: float
    noise_max: float
    noise_runs: int
    cheats: tuple[Cheat, ...]
    gap: float  # the smallest cheat that shows, over the worst honest noise
    limit_rms: float
    limit_max: float


@dataclass(frozen=True, slots=True)
class Examination:
    """What the child process measured."""

    outputs: tuple[Output, ...] = ()
    kinds: tuple[str, ...] = ()
    oracle: str = ""
    sensitivities: tuple[Sensitivity, ...] = ()
    null_kernels: tuple[NullKernel, ...] = ()
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Admission:
    """`degenerate` is "" or a sentence why; `labels` go beside the class of a result; `notes` are worth reading."""

    examination: Examination
    degenerate: str
    labels: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def limit_rms(self) -> float | None:
        """The calibrated limit, or None where the fixed ones hold."""
        return self.examination.calibration.limit_rms if self.examination.calibration else None

    @property
    def limit_max(self) -> float | None:
        return self.examination.calibration.limit_max if self.examination.calibration else None

    def limits(self, precision: str) -> tuple[float, float] | None:
        """Return ratios of errors, RMS and largest, for candidates of this precision class.

        None where fixed ones hold.
        """
        calibration = self.examination.calibration
        if calibration is None:
            return None
        known = [c for c in calibration.cheats if math.isfinite(c.rms + c.max)]
        allowed = [c for c in known if c.name in ALLOWED_OPERANDS[precision]]
        worst = [calibration.limit_rms, *(TWICE * c.rms for c in allowed)]
        return max(worst), max(calibration.limit_max, *(LARGEST * c.max for c in allowed), 0.0)

    def explain(self, ratio: float) -> str:
        """Return what an error of this ratio looks like, for a wrong verdict; "" where nothing is near."""
        calibration = self.examination.calibration
        if calibration is None or not math.isfinite(ratio) or ratio <= 0:
            return ""
        known = [c for c in calibration.cheats if math.isfinite(c.rms) and c.rms > 2]
        nearest = min(known, key=lambda c: abs(math.log(c.rms / ratio)), default=None)
        if nearest is None or not 1 / NEAR <= nearest.rms / ratio <= NEAR:
            return ""
        return f"this is the size of error that {nearest.name} would make ({nearest.rms:.3g} times PyTorch's own)"


codec.register(Output, Sensitivity, NullKernel, Cheat, Calibration, Examination, Admission)
