"""Dtypes: as what a tensor's elements are stored, and in what arithmetic on them runs.

Comes in: names of PyTorch's dtypes. Goes out: names of dtypes. Floats of sixteen and eight bits are stored only: a load
widens an element to float32, all operators run in float32, and a store rounds once. PyTorch rounds after each operator,
so a kernel rounds less often than the module that it replaces: in stores, and where the module casts by its own words.
Texts of types stand in `codegen/c_types.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element, of every dtype that kernels can store."""

HALF = frozenset({"bfloat16", "float16"})
FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
STORED_ONLY = HALF | FLOAT8
"""Floats that are stored only."""
INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")  # narrow to wide; truth values count as integers
RANGE = {"int64": 63, "int32": 31, "int16": 15, "int8": 7}  # bits of the largest number; uint8 has eight and no sign
LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895313892515355e38,
    "float16": 65504.0,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}
"""The greatest finite number, by dtype."""


def arithmetic(storage: str) -> str:
    """Return the dtype in which operators on elements of a stored dtype run."""
    return "float32" if storage in STORED_ONLY else storage


def is_float(dtype: str) -> bool:
    """Return whether a dtype has fractions."""
    return dtype in {"float64", "float32"} or dtype in STORED_ONLY


def promoted(dtypes: Iterable[str]) -> str:
    """Return the dtype in which values of these dtypes meet, as in PyTorch."""
    found = set(dtypes)
    if len(found) == 1:
        return found.pop()
    floats = found - set(INTEGERS)
    if floats:
        return "float64" if "float64" in floats else "float32"
    if found == {"uint8", "int8"}:
        return "int16"
    return max(found, key=INTEGERS.index)
