"""How much memory calls take: what a child can do for the count, and on a GPU the count itself.

Comes in: a device. Goes out: bytes that were taken at most since the last `settle`. On a CPU the judge reads the
process's memory in /proc; on a GPU there is only the driver to ask, in the process that makes the calls.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch

USED, MOST_USED = 7, 8  # of `cudaMemPoolAttr`: bytes that calls hold now, and at most


class _Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena free fast maps mapped most few used left top".split()]


def heap_bytes() -> int:
    """Return how many bytes this process has taken from the C library and not given back; 0 where that does not say."""
    try:
        tell = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return 0
    tell.restype = _Heap
    found = tell()
    return int(found.used + found.mapped)


class MemoryCount:
    """Counts what is taken from a moment on."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._since: tuple[int, int] | None = None  # bytes of torch's and of the driver's pool that were held then

    def settle(self) -> None:
        """Give free memory back to the system, and count from now on."""
        if not self._on_gpu:
            with suppress(OSError, AttributeError):
                ctypes.CDLL("libc.so.6").malloc_trim(0)
            return
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        _forget_most_used()
        self._since = torch.cuda.memory_allocated(), _pool(USED)

    def peak_bytes(self) -> int:
        """Return what was taken at most by torch and from the driver's pool.

        What `cudaMalloc` takes is not among it: free memory is told for all processes of the device together.
        """
        if self._since is None:
            return 0
        torch.cuda.synchronize()
        allocated, used = self._since
        return torch.cuda.max_memory_allocated() - allocated + max(0, _pool(MOST_USED) - used)


def _pool(attribute: int) -> int:
    """Return a number of the driver's pool for `cudaMallocAsync`; 0 where the driver does not say."""
    found = ctypes.c_uint64()
    with suppress(OSError, AttributeError):
        driver, pool = _default_pool()
        if driver.cuMemPoolGetAttribute(pool, attribute, ctypes.byref(found)) == 0:
            return found.value
    return 0


def _forget_most_used() -> None:
    with suppress(OSError, AttributeError):
        driver, pool = _default_pool()
        driver.cuMemPoolSetAttribute(pool, MOST_USED, ctypes.byref(ctypes.c_uint64(0)))


def _default_pool() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    driver, pool = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), torch.cuda.current_device())
    return driver, pool
