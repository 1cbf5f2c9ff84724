"""Names of the kinds of inputs and of precision, for the judge, which does not import torch."""

from __future__ import annotations

# Kinds that go beyond what the problem's own inputs look like (`eval.numerics.input_draws` makes them).
CONSTANT_ROWS = "constant rows"
SPECIAL = (
    "spread",
    "shifted",
    "far",
    "spikes",
    "rare spikes",
    CONSTANT_ROWS,
    "ties",
    "large",
    "tiny",
    "small",
    "negative",
    "positive",
    "one spike",
    "sparse",
)
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
WIDE = "wide integers"  # of either sign, or all that what reads them as indices allows
NON_FINITE = "non-finite"  # NaN and infinity here and there, where the module says something of them
# Relative errors of an exactness probe: fp32 in any order of summation stays below the first; TF32, fp16 and bf16 are
# above the second, bf16 above the third.
STRICT, SPLIT, SEVEN_BITS = 2.0**-18, 2.0**-15, 2.0**-10


def precision_class(error: float, products: int = 1) -> str:
    """Name the precision that a probe's relative error shows, where so many products may have followed one another."""
    if error < STRICT:
        return "strict"
    if error < SPLIT:
        return "split-precision"
    return "tf32" if error < SEVEN_BITS * max(1, products) else "bf16"
