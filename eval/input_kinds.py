"""Names of the kinds of inputs and of precision, for the judge, which does not import torch."""

from __future__ import annotations

# Kinds that go beyond what the problem's own inputs look like (`eval.numerics.input_draws` makes them).
SPECIAL = ("spread", "shifted", "far", "spikes", "rare spikes", "constant rows", "ties", "large", "tiny")
# Relative errors of an exactness probe: fp32 in any order of summation stays below the first; TF32, fp16 and bf16 are
# above the second, bf16 above the third.
STRICT, SPLIT, SEVEN_BITS = 2.0**-18, 2.0**-15, 2.0**-10
NOT_SHARED = "the GPU's driver does not share memory between processes"  # what a worker says that cannot


def precision_class(error: float) -> str:
    """Name the precision that a probe's relative error shows."""
    if error < STRICT:
        return "strict"
    if error < SPLIT:
        return "split-precision"
    return "tf32" if error < SEVEN_BITS else "bf16"
