"""A kernel that keeps a whole GPU busy until a given moment, behind which calls are queued before they are timed.

A host that comes out of sleep needs 0.1 to 0.35 ms longer for its first launches (through torch.compile's wrapper more
than through eager's, through a native kernel hardly any), which a short burst of calls would be charged for. Behind the
delay all launches of a burst are made before the first one runs, so that the device's time alone is left.

The moment is one of the host's clock, so that it does not matter how long a request was on its way. The delay fills
every multiprocessor: work that a candidate sends to a stream of its own finds no room beside it.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

THREADS = 512  # of a block: the 2048 (or 1536) threads of a multiprocessor are a multiple
TRIES = 5
SOURCE = r"""
__device__ unsigned long long now() {
  unsigned long long nanoseconds;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}
extern "C" __global__ void rk_now(unsigned long long* out) { *out = now(); }
extern "C" __global__ void __launch_bounds__(512) rk_delay(unsigned high, unsigned low) {
  const unsigned long long until = (static_cast<unsigned long long>(high) << 32) | low;
  while (now() < until) __nanosleep(100);
}
"""


def set_clock() -> None:
    """Note how far the GPU's clock is ahead of the host's, for the delays that follow: they drift apart."""
    _clock().set()


def delay_until(moment_s: float) -> None:
    """Queue a delay that ends at this moment of `time.monotonic`; nothing where it is 0."""
    if moment_s > 0:
        _clock().wait_until(moment_s)


class _Clock:
    """The GPU's clock in nanoseconds, and how far it is ahead of the host's."""

    def __init__(self) -> None:
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._blocks = device.multi_processor_count * (device.max_threads_per_multi_processor // THREADS)
        self._now: Any = torch.cuda._compile_kernel(SOURCE, "rk_now")
        self._delay: Any = torch.cuda._compile_kernel(SOURCE, "rk_delay")
        self._read = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._ahead_ns = 0
        self.set()
        self.wait_until(time.monotonic())
        torch.cuda.synchronize()

    def set(self) -> None:
        """Set the delay by the try that took the host the least time."""
        torch.cuda.synchronize()
        tries = []
        for _ in range(TRIES):
            before = time.monotonic_ns()
            self._now(grid=(1, 1, 1), block=(1, 1, 1), args=[self._read])
            torch.cuda.synchronize()
            after = time.monotonic_ns()
            tries.append((after - before, int(self._read.item()) - (before + after) // 2))
        self._ahead_ns = min(tries)[1]

    def wait_until(self, moment_s: float) -> None:
        until = int(moment_s * 1e9) + self._ahead_ns
        self._delay(grid=(self._blocks, 1, 1), block=(THREADS, 1, 1), args=[until >> 32, until & 0xFFFFFFFF])


@functools.cache
def _clock() -> _Clock:
    return _Clock()
