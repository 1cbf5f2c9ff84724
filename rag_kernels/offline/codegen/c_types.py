"""The types that a source declares: of values in registers, and of elements in memory, in C++ and in CUDA.

Comes in: names of dtypes. Goes out: C. Registers never hold a float of sixteen or eight bits (see `ir/dtypes.py`), so
that only pointers and tensors have a type that depends on the language.
"""

from __future__ import annotations

from collections.abc import Iterable

from rag_kernels.eval.element_types import NUMBERS, element_type
from rag_kernels.eval.records import Backend

CTYPES = {**NUMBERS, "maxsum": "MaxSum", "place": "Place"}  # running pairs, between kernels of ours
"""Types of values in registers, by dtype."""

EIGHT_BITS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
"""What floats of eight bits are called in names of functions."""

_HEADERS = {"bfloat16": "#include <cuda_bf16.h>\n", "float16": "#include <cuda_fp16.h>\n"}
_HEADERS |= dict.fromkeys(EIGHT_BITS, "#include <cuda_fp8.h>\n")


def stored_type(dtype: str, backend: Backend) -> str:
    """Return the C type of an element in memory."""
    return element_type(dtype, backend) or CTYPES[dtype]


def headers(dtypes: Iterable[str]) -> str:
    """Return the lines by which a CUDA source includes what it needs for these dtypes."""
    return "".join(sorted({_HEADERS[dtype] for dtype in set(dtypes) & _HEADERS.keys()}))


def narrowed(text: str, dtype: str) -> str:
    """Return a value as what is stored in this dtype, where an assignment does not round it, or not as PyTorch does."""
    return f"rk::to_{EIGHT_BITS[dtype]}({text})" if dtype in EIGHT_BITS else text


def widened(text: str, dtype: str) -> str:
    """Return an element of this dtype in memory as a value, where it becomes one by no conversion of its own."""
    return f"float({text})" if dtype in EIGHT_BITS else text
