"""Shared memory laid out for a list of tensors: the judge and a worker see the same bytes.

Comes in: tensor specs. Goes out: one memfd with each tensor in pages of its own, as numpy views here and as
torch views in a worker. Once sealed, whoever maps it later can only read. A worker may map every tensor between
guard pages: a tensor begins right after one, or (in a `tight` arena) ends right before one; or neither (`begins`).
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rag_kernels.eval.records import TensorSpec

if TYPE_CHECKING:
    import torch

ALIGN = 4096
MAP_FIXED = 0x10
F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 0x2, 0x4, 0x10

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """What a worker needs beside the descriptor to make its views; `tight` and `begins` as for `layout`."""

    specs: tuple[TensorSpec, ...]
    tight: bool = False
    begins: tuple[int, ...] = ()


def tensor_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * ITEM_BYTES[spec.dtype]


def layout(specs: Sequence[TensorSpec], *, tight: bool = False, begins: Sequence[int] = ()) -> tuple[list[int], int]:
    """Return offsets of each tensor and the total size in bytes.

    `tight` puts each at the end of its pages; `begins` says how many bytes of its pages come before it.
    """
    offsets, end = [], 0
    for spec, before in zip(specs, begins or [0] * len(specs), strict=True):
        pages = _paged(spec, before)
        offsets.append(end + (pages - tensor_bytes(spec) if tight else before))
        end += pages
    return offsets, max(end, ALIGN)


def _paged(spec: TensorSpec, before: int = 0) -> int:
    return (before + tensor_bytes(spec) + ALIGN - 1) // ALIGN * ALIGN


def anywhere(specs: Sequence[TensorSpec], step: int, rng: Random) -> tuple[int, ...]:
    """Return where tensors may begin in their pages, at multiples of `step` bytes, or (0) at any odd element."""
    places = []
    for spec in specs:
        unit = step or ITEM_BYTES[spec.dtype]
        within = range(unit, ALIGN, unit if step else 2 * unit)
        places.append(rng.choice([at for at in within if (at + tensor_bytes(spec)) % ALIGN]))
    return tuple(places)


class Arena:
    """The judge's side: writable numpy byte views over a memfd."""

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        *,
        readers_only: bool = False,
        tight: bool = False,
        begins: Sequence[int] = (),
    ) -> None:
        self.specs, self.tight, self.begins = tuple(specs), tight, tuple(begins)
        self.offsets, self.size = layout(specs, tight=tight, begins=begins)
        self.fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        self._map = mmap.mmap(self.fd, self.size)
        seals = F_SEAL_SHRINK | F_SEAL_GROW | (F_SEAL_FUTURE_WRITE if readers_only else 0)
        fcntl.fcntl(self.fd, F_ADD_SEALS, seals)

    def bytes(self, index: int) -> NDArray[np.uint8]:
        """Return the raw bytes of one tensor, writable in place."""
        return np.frombuffer(self._map, np.uint8, tensor_bytes(self.specs[index]), self.offsets[index])

    def whole(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._map, np.uint8, self.size)

    def slack(self, index: int) -> NDArray[np.uint8]:
        """Return the bytes of a tensor's pages that are not the tensor: nobody should write there."""
        start, count = self.offsets[index], tensor_bytes(self.specs[index])
        before = np.frombuffer(self._map, np.uint8, start % ALIGN, start // ALIGN * ALIGN)
        after = np.frombuffer(self._map, np.uint8, -(start + count) % ALIGN, start + count)
        return np.concatenate([before, after]) if len(before) and len(after) else before if len(before) else after

    def describe(self) -> ArenaLayout:
        return ArenaLayout(self.specs, self.tight, self.begins)

    def close(self) -> None:
        """Give the memory back: at once, or when the last numpy view of it is gone.

        The mapping holds a descriptor of its own, and whoever holds the arena may be in a circle of references.
        """
        os.close(self.fd)
        with suppress(BufferError):  # a view is in use
            self._map.close()


def attach(
    fd: int, form: ArenaLayout, *, writable: bool, guarded: bool = False, lazily: bool = False
) -> list[torch.Tensor]:
    """Return torch views over the arena, in order, in a worker. Writing to a read-only one is a segmentation fault.

    `guarded` maps each tensor between two pages that nobody may touch; `lazily` takes no memory until it is used.
    """
    import warnings

    import torch

    offsets, size = layout(form.specs, tight=form.tight, begins=form.begins)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    how = mmap.MAP_SHARED | (0 if lazily else mmap.MAP_POPULATE)
    mapped = None if guarded else mmap.mmap(fd, size, how, protection)
    views = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a read-only buffer is not writable: that is the point
        for spec, offset in zip(form.specs, offsets, strict=True):
            dtype, count = getattr(torch, spec.dtype), math.prod(spec.shape)
            if not count:
                flat = torch.empty(0, dtype=dtype)  # frombuffer refuses empty tensors
            elif mapped is not None:
                flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset)
            else:
                pages = _guarded(fd, offset // ALIGN * ALIGN, _paged(spec, offset % ALIGN), protection)
                flat = torch.frombuffer(pages, dtype=dtype, count=count, offset=offset % ALIGN)
            views.append(flat.reshape(spec.shape))
    os.close(fd)
    return views


def _guarded(fd: int, offset: int, length: int, protection: int) -> Any:
    """Map part of a file between two inaccessible pages; stays mapped for the life of the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    around = libc.mmap(None, length + 2 * ALIGN, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    shared = mmap.MAP_SHARED | mmap.MAP_POPULATE | MAP_FIXED
    address = libc.mmap(around + ALIGN, length, protection, shared, fd, offset)
    if address != around + ALIGN:
        raise OSError(ctypes.get_errno(), "the shared memory could not be mapped between guard pages")
    return (ctypes.c_char * length).from_address(address)
