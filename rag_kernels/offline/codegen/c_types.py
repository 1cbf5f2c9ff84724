"""The types that a source declares: of values in registers, and of elements in memory, in C++ and in CUDA.

Comes in: names of dtypes. Goes out: C. Registers never hold a sixteen-bit float (see `ir/dtypes.py`), so that only
pointers and tensors have a type that depends on the language.
"""

from __future__ import annotations

from collections.abc import Iterable

from rag_kernels.eval.element_types import NUMBERS, element_type
from rag_kernels.eval.records import Backend

CTYPES = {**NUMBERS, "maxsum": "MaxSum", "place": "Place"}  # running pairs, between kernels of ours
"""Types of values in registers, by dtype."""

_HEADERS = {"bfloat16": "#include <cuda_bf16.h>\n", "float16": "#include <cuda_fp16.h>\n"}


def stored_type(dtype: str, backend: Backend) -> str:
    """Return the C type of an element in memory."""
    return element_type(dtype, backend) or CTYPES[dtype]


def headers(dtypes: Iterable[str]) -> str:
    """Return the lines by which a CUDA source includes what it needs for these dtypes."""
    return "".join(_HEADERS[dtype] for dtype in sorted(set(dtypes) & _HEADERS.keys()))
