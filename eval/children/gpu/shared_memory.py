"""GPU memory that two processes share: made in one of them, opened in the other by a file descriptor.

Comes in: a size in bytes, or the descriptor that came over a channel. Goes out: a flat byte tensor. The memory goes
when no process has it any more. This is the CUDA driver's virtual memory management (`cuMemCreate` and what follows it
in cuda.h, since CUDA 10.2), which torch has no words for. Knows nothing of problems.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rag_kernels.eval.buffers.shared_arena import layout, tensor_bytes
from rag_kernels.eval.errors import Internal
from rag_kernels.eval.records import TensorSpec

PINNED, ON_DEVICE, FILE_DESCRIPTOR, READ_AND_WRITE = 1, 1, 1, 3  # of the driver's enumerations


class NotShared(Internal):
    """The GPU's driver does not share memory between processes."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Bytes:
    """Tells torch of memory that is none of its own."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def create(size: int) -> tuple[int, torch.Tensor]:
    """Create at least so many bytes on this process's GPU; return a descriptor, which is the caller's to close, and the
    tensor.
    """
    cuda = _driver()
    properties = _Properties(PINNED, FILE_DESCRIPTOR, _Location(ON_DEVICE, torch.cuda.current_device()))
    whole, handle, fd = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int()
    cuda("cuMemGetAllocationGranularity", ctypes.byref(whole), ctypes.byref(properties), 0)
    rounded = -(-max(size, 1) // whole.value) * whole.value
    cuda("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(rounded), ctypes.byref(properties), ctypes.c_uint64(0))
    cuda("cuMemExportToShareableHandle", ctypes.byref(fd), handle, FILE_DESCRIPTOR, ctypes.c_uint64(0))
    try:
        return fd.value, _mapped(cuda, handle, rounded)
    except Exception:
        os.close(fd.value)
        raise


def opened(fd: int, size: int) -> torch.Tensor:
    """Return the memory of another process; `size` is the length of its tensor. Closes the descriptor."""
    cuda, handle = _driver(), ctypes.c_uint64()
    try:
        cuda("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), FILE_DESCRIPTOR)
    finally:
        os.close(fd)
    return _mapped(cuda, handle, size)


def shared(size: int) -> int:
    """Give memory away and open it again within one process, and return how many bytes.

    NotShared where the driver refuses.
    """
    fd, memory = create(size)
    return len(opened(fd, len(memory)))


def views(raw: torch.Tensor, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """Return tensors that lie one after the other in flat bytes, where `eval.buffers.shared_arena.layout` has them."""
    offsets, _ = layout(specs)
    parts = [raw[start : start + tensor_bytes(spec)] for spec, start in zip(specs, offsets, strict=True)]
    return [p.view(getattr(torch, s.dtype)).reshape(s.shape) for p, s in zip(parts, specs, strict=True)]


def _mapped(cuda: Callable[..., None], handle: ctypes.c_uint64, size: int) -> torch.Tensor:
    """Map it for the life of the process."""
    address, none = ctypes.c_uint64(), ctypes.c_uint64(0)
    access = _Access(_Location(ON_DEVICE, torch.cuda.current_device()), READ_AND_WRITE)
    length = ctypes.c_size_t(size)
    cuda("cuMemAddressReserve", ctypes.byref(address), length, ctypes.c_size_t(0), none, none)
    cuda("cuMemMap", address, length, ctypes.c_size_t(0), handle, none)
    cuda("cuMemSetAccess", address, length, ctypes.byref(access), ctypes.c_size_t(1))
    cuda("cuMemRelease", handle)  # the mapping keeps it
    return torch.as_tensor(_Bytes(address.value, size), device="cuda")


def _driver() -> Callable[..., None]:
    """Call a function of the CUDA driver by name; torch's context, which it needs, is made if there is none."""
    torch.cuda.synchronize()
    library = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(library, name)(*arguments)
        if code == 2:
            raise torch.OutOfMemoryError(f"the GPU has no room for memory that two processes share ({name})")
        if code:
            raise NotShared(f"the GPU's driver does not share memory between processes ({name}: error {code})")

    return call
