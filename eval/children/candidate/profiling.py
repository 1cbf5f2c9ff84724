"""Which kernels or operators ran in one call, and for how long; runs in a worker.

Comes in: a function of no arguments. Goes out: microseconds by name. On a GPU the names are those of device
kernels; on a CPU those of ATen operators (self time), with what is left under `OWN`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch.autograd import profiler

from rag_kernels.eval.kernel_names import OWN


def loaded_libraries() -> set[str]:
    """Return shared libraries in this process that come neither with Python and its packages nor with the system."""
    with open("/proc/self/maps") as f:
        paths = {line.split(None, 5)[5].strip() for line in f if ".so" in line}
    brought = (sys.prefix, sys.base_prefix, "/usr/", "/lib", *(p for p in sys.path if p.endswith("-packages")))
    return {path for path in paths if not path.startswith(brought)}


def profile(run: Callable[[], object], *, on_gpu: bool) -> dict[str, float]:
    """Run once and attribute its time.

    By the profiler beneath `torch.profiler`, which imports torch's compiler when it starts: seconds in each worker.
    """
    device = "cuda" if on_gpu else None
    with profiler.profile(use_kineto=True, use_cpu=not on_gpu, use_device=device) as seen:
        start = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        whole_us = (time.perf_counter() - start) * 1e6
    spent: dict[str, float] = {}
    for event in seen.key_averages():
        us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if us > 0 and not event.key.startswith(("cuda", "Memset", "Memcpy", "ProfilerStep")):
            spent[event.key] = spent.get(event.key, 0.0) + float(us)
    if not on_gpu:
        spent[OWN] = max(0.0, whole_us - sum(spent.values()))
    return spent
