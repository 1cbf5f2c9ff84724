"""What this machine can do at most: name, architecture, measured memory bandwidth and fp32 rate.

Comes in: `cpu` or `cuda`. Goes out: a Device, measured once in a child process and kept in the cache. The
physical floor of a problem follows from it: no implementation is faster than its unavoidable bytes or FLOPs.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_kernels.eval.ids import content_id
from rag_kernels.eval.machine.device_lock import DeviceLock, locks
from rag_kernels.eval.records import Backend, Device, Features, MachineError

if TYPE_CHECKING:
    from rag_kernels.eval.process.workers import Workers

MEASURE_LIMIT_S = 120.0
CEILINGS_VERSION = "2"  # of what `measure` measures


def threads() -> int:
    """CPU threads that both sides may use: the cores this process may run on."""
    return len(os.sched_getaffinity(0))


@functools.cache
def cache_bytes() -> int:
    """Return the size of the CPU's last-level cache; 32 MiB where the system does not say."""
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(s[:-1]) << {"K": 10, "M": 20}[s[-1]] for s in sizes if s[-1:] in {"K", "M"}), default=32 << 20)


def nvidia_smi(fields: str) -> str | None:
    """What the driver says of the first GPU that this process may use, without loading CUDA; None without a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # which nvidia-smi does not heed
    chosen = [] if visible is None or visible.startswith("MIG-") else ["-i", visible.split(",")[0]]
    return next(iter(_nvidia_smi(fields, *chosen)), None)


def gpu_count() -> int:
    """Return how many GPUs this process may use."""
    visible, found = os.environ.get("CUDA_VISIBLE_DEVICES"), len(_nvidia_smi("uuid"))
    return found if visible is None else min(found, len([name for name in visible.split(",") if name]))


def _nvidia_smi(fields: str, *more: str) -> list[str]:
    """Return a line for each GPU."""
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", *more]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def gpu_name() -> str | None:
    """Return the name and compute capability of the GPU that is used here."""
    return nvidia_smi("name,compute_cap")


def units(backend: Backend) -> list[str]:
    """Return what a timing takes for itself, by names that no two of them share: the GPU, or each core."""
    if backend == "cuda":
        return [nvidia_smi("uuid") or "gpu"]
    return [f"{platform.node()}-core{number}" for number in sorted(os.sched_getaffinity(0))]


def cpu_name() -> str:
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{model} ({threads()} threads)"


def open_device(backend: Backend, workers: Workers, cache: Path) -> Device:
    """Return the device with its ceilings, from the cache or measured now (a second or two)."""
    gpu = gpu_name() if backend == "cuda" else None
    if backend == "cuda" and gpu is None:
        raise MachineError("No NVIDIA GPU was found (nvidia-smi lists none); use --device cpu.")
    name = gpu.split(",")[0].strip() if gpu else cpu_name()
    arch = f"sm_{gpu.split(',')[1].strip().replace('.', '')}" if gpu else _cpu_arch()
    file = cache / "devices" / f"{content_id('d', backend, name, arch, CEILINGS_VERSION)}.json"
    if not file.is_file():
        with DeviceLock(units(backend), locks(backend, cache)).alone():
            if not file.is_file():  # another process may have measured it meanwhile
                asked = {"backend": backend, "threads": threads()}
                ceilings = workers.call("rag_kernels.eval.machine.device:measure", asked, deadline_s=MEASURE_LIMIT_S)
                device = Device(backend, name, arch, ceilings["bandwidth_gbs"], ceilings["fp32_gflops"])
                file.parent.mkdir(parents=True, exist_ok=True)
                staged = file.with_suffix(f".{os.getpid()}.tmp")
                staged.write_text(json.dumps(asdict(device)))
                staged.rename(file)
    return Device(**json.loads(file.read_text()))


def absent_gpu() -> Device:
    """Stands for the GPU on a machine that has only its compiler."""
    return Device("cuda", "no GPU here", "sm_90", 1.0, 1.0)


def _cpu_arch() -> str:
    with open("/proc/cpuinfo") as f:
        flags = next((line for line in f if line.startswith(("flags", "Features"))), "")
    level = "v4" if "avx512f" in flags else "v3" if "avx2" in flags else "v2"
    return f"{platform.machine().replace('_', '-')}-{level}" if sys.platform == "linux" else platform.machine()


def measure(payload: dict[str, Any]) -> dict[str, float]:
    """In a child: bandwidth of a copy (bytes read plus written) in GB/s, and GFLOP/s of a square product.

    The product is one of fp32's accuracy: of fp32 numbers, or of three TF32 products on a GPU's tensor cores (each
    number is the sum of two TF32 numbers), whichever is faster.
    """
    import time

    import torch

    device = torch.device(payload["backend"])
    torch.set_num_threads(payload["threads"])
    torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = device.type == "cuda"
    source = torch.ones((1 << 30 if on_gpu else 1 << 26), dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    n = 8192 if on_gpu else 1536
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)

    def best(run: Any, repeats: int) -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            if on_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return min(times)

    copy_s, matmul_s = best(lambda: target.copy_(source), 8), best(lambda: torch.mm(a, b), 8)
    if on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = True
        matmul_s = min(matmul_s, 3 * best(lambda: torch.mm(a, b), 8))
    return {"bandwidth_gbs": 2 * source.nbytes / copy_s / 1e9, "fp32_gflops": 2 * n**3 / matmul_s / 1e9}


def floor_us(features: Features, device: Device) -> float:
    """Return the physical floor of one call in microseconds: the larger of bytes over bandwidth and FLOPs over rate."""
    bytes_us = features.bytes_moved / (device.bandwidth_gbs * 1e3)
    flops_us = (features.flops + features.pointwise_flops) / (device.fp32_gflops * 1e3)
    return max(bytes_us, flops_us)
