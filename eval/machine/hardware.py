"""What a writer of kernels wants to know of this machine besides its two ceilings: cores, vectors, caches, registers.

Comes in: a device and the workers. Goes out: a phrase for each fact, as the system or the driver states it; what it
does not state is left out. A GPU is asked once, in a child process, and the answer is kept in the cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rag_kernels.eval.machine.device import absent_gpu, threads
from rag_kernels.eval.records import Backend, Device

if TYPE_CHECKING:
    from rag_kernels.eval.process.workers import Workers

ASK = "rag_kernels.eval.machine.hardware:ask_gpu"
ASK_LIMIT_S = 60.0
_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_VECTORS = {  # the widest that a CPU has, by its flag
    "avx512f": "AVX-512: 32 vector registers of 16 floats",
    "avx2": "AVX2: 16 vector registers of 8 floats",
    "asimd": "NEON: 32 vector registers of 4 floats",
    "sse2": "SSE: 16 vector registers of 4 floats",
}
_EXTRAS = {"fma": "fused multiply-add", "avx512_bf16": "bf16 dot products", "avx512_fp16": "fp16 arithmetic"}


def hardware(device: Device, workers: Workers, cache: Path) -> tuple[str, ...]:
    """Return the facts of this device; nothing for a GPU that is not here."""
    if device.backend == "cpu":
        return cpu_facts()
    if device.name == absent_gpu().name:
        return ()
    file = _kept(device, cache / "devices")
    if not file.is_file():
        found = workers.call(ASK, {"backend": device.backend}, deadline_s=ASK_LIMIT_S)
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.with_suffix(f".{os.getpid()}.tmp")
        staged.write_text(json.dumps(found))
        staged.rename(file)
    return gpu_facts(json.loads(file.read_text()))


def told_hardware(device: Device, folder: Path) -> tuple[str, ...]:
    """Return the facts of a GPU that is elsewhere, if the file that its machine kept them in was brought here too."""
    file = _kept(device, folder)
    return gpu_facts(json.loads(file.read_text())) if file.is_file() else ()


def _kept(device: Device, folder: Path) -> Path:
    return folder / f"{device.key}.hardware.json"


def cpu_facts() -> tuple[str, ...]:
    """Return facts of the CPU from /proc and /sys."""
    with open("/proc/cpuinfo") as f:
        flags = next((line for line in f if line.startswith(("flags", "Features"))), "").split()
    vectors = next((said for flag, said in _VECTORS.items() if flag in flags), "")
    extras = [said for flag, said in _EXTRAS.items() if flag in flags]
    found = (f"{threads()} threads", ", ".join([vectors, *extras]) if vectors else "", _caches())
    return tuple(fact for fact in found if fact)


def _caches() -> str:
    said = []
    for folder in sorted(_CPU.glob("index*")):
        level, kind, size, shared = (
            (folder / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
        )
        if kind != "Instruction":
            whose = "shared" if "-" in shared or "," in shared else "a core"
            said.append(f"L{level} {size.replace('K', ' KiB').replace('M', ' MiB')} {whose}")
    return f"caches: {', '.join(said)}" if said else ""


def ask_gpu(payload: dict[str, Backend]) -> dict[str, int]:
    """Return what the driver says of the first GPU, in a child, and the version of CUDA as `CUDART_VERSION` has it."""
    import torch

    known = torch.cuda.get_device_properties(0)
    names = (
        "multi_processor_count",
        "shared_memory_per_multiprocessor",
        "shared_memory_per_block_optin",
        "shared_memory_per_block",
        "regs_per_multiprocessor",
        "max_threads_per_multi_processor",
        "L2_cache_size",
        "warp_size",
    )
    major, minor = map(int, (torch.version.cuda or "0.0").split(".")[:2])
    told = {name: int(getattr(known, name)) for name in names if hasattr(known, name)}
    return told | {"cuda": 1000 * major + 10 * minor}


def gpu_facts(known: dict[str, int]) -> tuple[str, ...]:
    """Return facts in the words of the CUDA programming guide; versions of torch differ in what they pass on."""
    told: dict[str, Callable[[int], str]] = {
        "multi_processor_count": lambda n: f"{n} SMs",
        "max_threads_per_multi_processor": lambda n: f"{n} threads an SM at most",
        "regs_per_multiprocessor": lambda n: f"{n} registers an SM, 255 a thread at most",
        "shared_memory_per_multiprocessor": lambda n: f"{n >> 10} KiB of shared memory an SM",
        "shared_memory_per_block": lambda n: f"{n >> 10} KiB of it a block",
        "shared_memory_per_block_optin": lambda n: f"{n >> 10} KiB a block with cudaFuncSetAttribute",
        "L2_cache_size": lambda n: f"{n / 2**20:.0f} MiB of L2",
        "warp_size": lambda n: f"warps of {n}",
        "cuda": lambda n: f"CUDA {n // 1000}.{n % 1000 // 10}",
    }
    return tuple(say(known[name]) for name, say in told.items() if known.get(name))
