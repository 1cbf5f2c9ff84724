"""What a source declares the elements of its tensors as, in C++ and in CUDA: a part of the contract of kernels.

Comes in: a dtype's name and a backend. Goes out: C. The header of the contract, `include/rag_kernel.h`, has `rk::f16`,
`rk::bf16`, `rk::e4m3` and `rk::e5m2`. Prompts and generated sources both ask here.
"""

from __future__ import annotations

from rag_kernels.eval.records import Backend

NUMBERS = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
"""Types that are the same everywhere, by dtype."""

_NARROW: dict[Backend, dict[str, str]] = {
    "cpu": {
        "float16": "rk::f16",
        "bfloat16": "rk::bf16",
        "float8_e4m3fn": "rk::e4m3",
        "float8_e5m2": "rk::e5m2",
    },
    "cuda": {
        "float16": "__half",
        "bfloat16": "__nv_bfloat16",
        "float8_e4m3fn": "__nv_fp8_e4m3",
        "float8_e5m2": "__nv_fp8_e5m2",
    },
}


def element_type(dtype: str, backend: Backend) -> str | None:
    """Return the C type of an element; None for a dtype that no kernel of the tier `kernel` takes."""
    return _NARROW[backend].get(dtype) or NUMBERS.get(dtype)
