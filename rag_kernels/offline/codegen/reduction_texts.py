"""How each kind of reduction is written in C++ and in CUDA.

Comes in: a kind. Goes out: its `Text`. In a step, `{a}` stands for the accumulator and `{v}` for the next value. The
functors and `extreme` are pieces (`cuda/texts/joins.py`, `cuda/texts/teams.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.ir.dtypes import is_float
from rag_kernels.offline.ir.reductions import Kind


@dataclass(frozen=True, slots=True)
class Text:
    """A kind of reduction in C."""

    start: str  # the neutral element, of floats
    step: str
    functor: str  # by which threads join what they have
    openmp: str = ""  # by which g++ vectorises it, where it does
    step_of_floats: str = ""  # on a GPU, where that has an instruction for it
    step_in_blocks: str = ""  # in C++, where a NaN is noted apart
    calls: str = ""  # the function of `math_prelude` that a step calls, and the functor


C = {
    Kind.SUM: Text("0", "{a} += {v};", "Sum", "+"),
    Kind.PROD: Text("1", "{a} *= {v};", "Prod", "*"),
    Kind.MAX: Text(
        "-INFINITY",
        "{a} = {v} == {v} ? ({v} > {a} ? {v} : {a}) : {v};",
        "Max",
        "max",
        "{a} = extreme<true>({a}, {v});",
        "{a} = {v} > {a} ? {v} : {a};",
    ),
    Kind.MIN: Text(
        "INFINITY",
        "{a} = {v} == {v} ? ({v} < {a} ? {v} : {a}) : {v};",
        "Min",
        "min",
        "{a} = extreme<false>({a}, {v});",
        "{a} = {v} < {a} ? {v} : {a};",
    ),
    Kind.FASTMAX: Text("-INFINITY", "{a} = {v} > {a} ? {v} : {a};", "Max", "max", "{a} = fmaxf({a}, {v});"),
    Kind.ANY: Text("0", "{a} |= {v};", "Any", "|"),
    Kind.ALL: Text("1", "{a} &= {v};", "All", "&"),
    Kind.LOGSUM: Text("-INFINITY", "{a} = rk_logaddexp({a}, {v});", "LogSum", calls="rk_logaddexp"),
    Kind.MAXSUM: Text("MaxSum{-INFINITY, 0}", "{a} = merge({a}, {v});", "Merge"),
    Kind.MAXPLACE: Text("Place{-INFINITY, UINT32_MAX}", "take<true>({a}, {v});", "MaxPlace"),
    Kind.MINPLACE: Text("Place{INFINITY, UINT32_MAX}", "take<false>({a}, {v});", "MinPlace"),
}


def start_of(kind: Kind, dtype: str) -> str:
    """Return the neutral element of a reduction, as C."""
    if kind in {Kind.MAX, Kind.FASTMAX, Kind.MIN} and not is_float(dtype):
        least = "0" if dtype in {"bool", "uint8"} else f"{dtype.upper()}_MIN"
        most = "1" if dtype == "bool" else f"{dtype.upper()}_MAX"
        return most if kind is Kind.MIN else least
    return C[kind].start
