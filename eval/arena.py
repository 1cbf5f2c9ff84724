"""Shared memory laid out for a list of tensors: the judge and a worker see the same bytes.

Comes in: tensor specs. Goes out: one memfd with each tensor at an aligned offset, as numpy views here and as
torch views in a worker. Once sealed, whoever maps it later can only read.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eval.records import TensorSpec

if TYPE_CHECKING:
    import torch

ALIGN = 4096
F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 0x2, 0x4, 0x10

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip


def tensor_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * ITEM_BYTES[spec.dtype]


def layout(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """Offsets of each tensor and the total size in bytes."""
    offsets, end = [], 0
    for spec in specs:
        offsets.append(end)
        end += (tensor_bytes(spec) + ALIGN - 1) // ALIGN * ALIGN
    return offsets, max(end, ALIGN)


class Arena:
    """The judge's side: writable numpy byte views over a memfd."""

    def __init__(self, specs: Sequence[TensorSpec], *, readers_only: bool = False) -> None:
        self.specs = tuple(specs)
        self.offsets, self.size = layout(specs)
        self.fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        self._map = mmap.mmap(self.fd, self.size)
        seals = F_SEAL_SHRINK | F_SEAL_GROW | (F_SEAL_FUTURE_WRITE if readers_only else 0)
        fcntl.fcntl(self.fd, F_ADD_SEALS, seals)

    def bytes(self, index: int) -> NDArray[np.uint8]:
        """The raw bytes of one tensor, writable in place."""
        return np.frombuffer(self._map, np.uint8, tensor_bytes(self.specs[index]), self.offsets[index])

    def whole(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._map, np.uint8, self.size)

    def describe(self) -> dict[str, Any]:
        """What a worker needs beside the descriptor to make its views."""
        return {"shapes": [list(s.shape) for s in self.specs], "dtypes": [s.dtype for s in self.specs]}

    def close(self) -> None:
        os.close(self.fd)  # the mapping goes when the last numpy view of it is gone


def attach(fd: int, description: dict[str, Any], *, writable: bool) -> list[torch.Tensor]:
    """In a worker: torch views over the arena, in order. Writing to a read-only one is a segmentation fault."""
    import warnings

    import torch

    pairs = zip(description["shapes"], description["dtypes"], strict=True)
    specs = [TensorSpec(tuple(shape), dtype) for shape, dtype in pairs]
    offsets, size = layout(specs)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapped = mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, protection)
    os.close(fd)
    views = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a read-only buffer is not writable: that is the point
        for spec, offset in zip(specs, offsets, strict=True):
            dtype, count = getattr(torch, spec.dtype), math.prod(spec.shape)
            if count:
                flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset)
            else:
                flat = torch.empty(0, dtype=dtype)  # frombuffer refuses empty tensors
            views.append(flat.reshape(spec.shape))
    return views
