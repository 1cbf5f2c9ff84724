"""The types that a source declares: of values in registers, and of elements in memory, in C++ and in CUDA.

Comes in: names of dtypes. Goes out: C. Registers never hold a sixteen-bit float (see `ir/dtypes.py`), so that only
pointers and tensors have a type that depends on the language.
"""

from __future__ import annotations

from collections.abc import Iterable

from rag_kernels.eval.records import Backend

CTYPES = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "bool",
    "maxsum": "MaxSum",
    "place": "Place",  # running pairs, between kernels of ours
}
"""Types of values in registers, by dtype."""

_STORED: dict[Backend, dict[str, str]] = {
    "cpu": {"bfloat16": "rk::bf16", "float16": "rk::f16"},
    "cuda": {"bfloat16": "__nv_bfloat16", "float16": "__half"},
}
_HEADERS = {"bfloat16": "#include <cuda_bf16.h>\n", "float16": "#include <cuda_fp16.h>\n"}


def stored_type(dtype: str, backend: Backend) -> str:
    """Return the C type of an element in memory."""
    return _STORED[backend].get(dtype) or CTYPES[dtype]


def headers(dtypes: Iterable[str]) -> str:
    """Return the lines by which a CUDA source includes what it needs for these dtypes."""
    return "".join(_HEADERS[dtype] for dtype in sorted(set(dtypes) & _HEADERS.keys()))
