"""Shared memory laid out for a list of tensors: the judge and a worker see the same bytes.

Comes in: tensor specs. Goes out: one memfd with each tensor in pages of its own, as numpy views here and as
torch views in a worker. Once sealed, whoever maps it later can only read. A worker may map every tensor between
guard pages: a tensor begins right after one, or (in a `tight` arena) ends right before one; or neither (`begins`). It
may map them at addresses as other programs have them, and one tensor in the place of several (`same`).
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
LOW_HEAP, HEAP = (1 << 28, 1 << 32), (0x5500_0000_0000, 0x5700_0000_0000)  # on Linux, with 47 bits of addresses
BEHIND_HEADER, MAPPED_BYTES = 64, 128 << 10  # of the C library's `posix_memalign` to 64 bytes, as PyTorch calls it
MAP_FIXED = 0x10
F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 0x2, 0x4, 0x10

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
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
    """What a worker needs beside the descriptor to make its views; `tight`, `begins` and `same` as for `layout`.

    `address` is where the first tensor is to be mapped, if there is room; 0 where that is left to the system, as it is
    for every other one where they are to lie `apart`: small ones in a heap, large ones in mappings far from it.
    """

    specs: tuple[TensorSpec, ...]
    tight: bool = False
    begins: tuple[int, ...] = ()
    same: tuple[int, ...] = ()
    address: int = 0
    apart: bool = False


def tensor_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * ITEM_BYTES[spec.dtype]


def layout(
    specs: Sequence[TensorSpec], *, tight: bool = False, begins: Sequence[int] = (), same: Sequence[int] = ()
) -> tuple[list[int], int]:
    """Return offsets of each tensor and the total size in bytes.

    `tight` puts each at the end of its pages; `begins` says how many bytes of its pages come before it; `same` is for
    each the number of the first tensor that it is one with: its own, or that of an earlier one of its form.
    """
    offsets: list[int] = []
    end = 0
    for number, (spec, before) in enumerate(zip(specs, begins or [0] * len(specs), strict=True)):
        if same and same[number] < number:
            offsets.append(offsets[same[number]])
            continue
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


def as_allocated(specs: Sequence[TensorSpec], rng: Random) -> tuple[int, ...]:
    """Return where tensors begin in their pages as PyTorch allocates them: a large one right behind the header of a
    mapping of its own, at the same place each, others anywhere.
    """
    drawn = anywhere(specs, BEHIND_HEADER, rng)
    large = [tensor_bytes(spec) >= MAPPED_BYTES for spec in specs]
    return tuple(BEHIND_HEADER if one else at for one, at in zip(large, drawn, strict=True))


def usual_address(size: int, rng: Random, *, low: bool) -> int:
    """Return an address that a program's heap may have: right after a program that is linked to where it lies, which is
    within 4 GiB (`low`), or after one that may lie anywhere. 0 where there is no room of this size.
    """
    least, most = LOW_HEAP if low else HEAP
    pages = (most - least - 2 * size) // ALIGN
    return least + rng.randrange(pages) * ALIGN if pages > 0 else 0


class Arena:
    """The judge's side: writable numpy byte views over a memfd."""

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        *,
        readers_only: bool = False,
        tight: bool = False,
        begins: Sequence[int] = (),
        same: Sequence[int] = (),
        address: int = 0,
        apart: bool = False,
    ) -> None:
        self.specs = tuple(specs)
        self.form = ArenaLayout(self.specs, tight, tuple(begins), tuple(same), address, apart)
        self.offsets, self.size = layout(specs, tight=tight, begins=begins, same=same)
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
        return self.form

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

    offsets, size = layout(form.specs, tight=form.tight, begins=form.begins, same=form.same)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    how = mmap.MAP_SHARED | (0 if lazily else mmap.MAP_POPULATE)
    mapped = None if guarded else mmap.mmap(fd, size, how, protection)
    views: list[torch.Tensor] = []
    address = form.address
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a read-only buffer is not writable: that is the point
        for number, (spec, offset) in enumerate(zip(form.specs, offsets, strict=True)):
            dtype, count = getattr(torch, spec.dtype), math.prod(spec.shape)
            if form.same and form.same[number] < number:
                flat = views[form.same[number]].reshape(-1)
            elif not count:
                flat = torch.empty(0, dtype=dtype)  # frombuffer refuses empty tensors
            elif mapped is not None:
                flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset)
            else:
                length = _paged(spec, offset % ALIGN)
                wanted = 0 if form.apart and number % 2 else address
                pages = _guarded(fd, offset // ALIGN * ALIGN, length, protection, wanted)
                address += address and length + 2 * ALIGN
                flat = torch.frombuffer(pages, dtype=dtype, count=count, offset=offset % ALIGN)
            views.append(flat.reshape(spec.shape))
    os.close(fd)
    return views


def _guarded(fd: int, offset: int, length: int, protection: int, wanted: int) -> Any:
    """Map part of a file between two inaccessible pages, at the `wanted` address if there is room; stays mapped for the
    life of the process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    around = libc.mmap(wanted or None, length + 2 * ALIGN, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    shared = mmap.MAP_SHARED | mmap.MAP_POPULATE | MAP_FIXED
    address = libc.mmap(around + ALIGN, length, protection, shared, fd, offset)
    if address != around + ALIGN:
        raise OSError(ctypes.get_errno(), "the shared memory could not be mapped between guard pages")
    return (ctypes.c_char * length).from_address(address)
