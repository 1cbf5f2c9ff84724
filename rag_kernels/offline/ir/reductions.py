"""Kinds of reductions and scans: what each takes and gives.

Comes in: nothing. Goes out: the enum `Kind`. How a kind is written in both languages stands in one dictionary
(`codegen/reduction_texts.py`). A kind's value is the name by which rules ask for it.
"""

from __future__ import annotations

from enum import StrEnum

from rag_kernels.offline.ir.operators import PAIR, PLACE


class Kind(StrEnum):
    """A way in which many values become one; each is associative."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"  # a NaN wins
    MIN = "min"
    FASTMAX = "fastmax"  # where a NaN may be passed over
    ANY = "any"
    ALL = "all"
    LOGSUM = "logsum"  # the logarithm of the sum of exponentials
    MAXSUM = PAIR  # the maximum, and the sum of exponentials below it
    MAXPLACE = "maxplace"  # an extreme with the first index at which it stands
    MINPLACE = "minplace"

    @property
    def dtype(self) -> str:
        """Return the only dtype that the kind gives, or the empty string where that is what it takes."""
        return _GIVES.get(self, "")

    def takes(self, dtype: str) -> bool:
        """Return whether a value of this dtype may be reduced."""
        return dtype == (self.dtype or dtype) or (self is Kind.MAXSUM and dtype == "float32")


_GIVES = {Kind.ANY: "bool", Kind.ALL: "bool", Kind.MAXSUM: PAIR, Kind.MAXPLACE: PLACE, Kind.MINPLACE: PLACE}
