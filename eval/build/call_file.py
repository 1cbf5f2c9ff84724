"""The file that a checked program (`rag_driver.cpp`) reads its calls from: names of functions, numbers, tensors.

Comes in: values. Goes out: bytes. Knows neither torch nor the judge, since a candidate's worker writes them too.
"""

from __future__ import annotations

import struct
from typing import Any

from rag_kernels.eval.records import TensorSpec

# kDLInt, kDLUInt, kDLFloat, kDLBfloat, kDLComplex; kDLBool, kDLFloat8_e4m3fn, kDLFloat8_e5m2 of DLPack, of eight bits
DTYPE_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
EIGHT_BITS = {"bool": 6, "float8_e4m3fn": 10, "float8_e5m2": 12}
# Of `children/candidate/module_program.py`: its exit code where the module refuses, and the start of a line.
REFUSED, CALL_LINE = 3, "rag-kernels: call"
INTEGER, REAL, TRUTH, READ, WRITTEN, REPEATED, CALL = range(7)  # tags: of numbers, of tensors, and of a call


def call(name: str) -> bytes:
    """Begin a call of this function."""
    return struct.pack("<qq", CALL, len(name)) + name.encode()


def number(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<qq", TRUTH, value)
    return struct.pack("<qd", REAL, value) if isinstance(value, float) else struct.pack("<qq", INTEGER, int(value))


def tensor(spec: TensorSpec, size: int, tag: int) -> bytes:
    """Return what comes before the content of a tensor of so many bytes."""
    kind = spec.dtype.rstrip("0123456789")
    known = EIGHT_BITS.get(spec.dtype)
    code, bits = (DTYPE_CODES[kind], int(spec.dtype.removeprefix(kind))) if known is None else (known, 8)
    rank = len(spec.shape)
    return struct.pack(f"<{5 + rank}q", tag, code, bits, rank, *spec.shape, size)
