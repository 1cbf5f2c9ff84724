"""What this machine can do at most: name, architecture, measured memory bandwidth and rates of products by dtype.

Comes in: `cpu` or `cuda`. Goes out: a Device, measured in a child process, its maxima kept in the cache. The
physical floor of a problem follows from it: no implementation is faster than its unavoidable bytes or FLOPs.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from rag_kernels.eval.ids import content_id
from rag_kernels.eval.machine.ceilings import higher, product_gflops
from rag_kernels.eval.machine.device_lock import DeviceLock, locks
from rag_kernels.eval.process.sandbox import OwnGpu
from rag_kernels.eval.records import Backend, Device, Features, MachineError

if TYPE_CHECKING:
    from rag_kernels.eval.process.workers import Workers

MEASURE_LIMIT_S = 120.0
CEILINGS_VERSION = "3"  # of what is measured
KNOWN = Path(__file__).with_name("known_devices")  # measured by this judge, for writers that are elsewhere
MEASURED_TIMES = 3  # on as many openings: any of them may meet a busy machine
TIMES = "times_measured"  # in a device's file


def threads() -> int:
    """Return CPU threads that both sides may use: the cores this process may run on."""
    return len(os.sched_getaffinity(0))


@functools.cache
def cache_bytes() -> int:
    """Return the size of the CPU's last-level cache; 32 MiB where the system does not say."""
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(s[:-1]) << {"K": 10, "M": 20}[s[-1]] for s in sizes if s[-1:] in {"K", "M"}), default=32 << 20)


def nvidia_smi(fields: str) -> str | None:
    """Return what the driver says of the first GPU that this process may use, without loading CUDA.

    None without a GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # which nvidia-smi does not heed
    chosen = [] if visible is None or visible.startswith("MIG-") else ["-i", visible.split(",")[0]]
    return next(iter(_nvidia_smi(fields, *chosen)), None)


def gpu_count() -> int:
    """Return how many GPUs this process may use."""
    visible, found = os.environ.get("CUDA_VISIBLE_DEVICES"), len(_nvidia_smi("uuid"))
    return found if visible is None else min(found, len([name for name in visible.split(",") if name]))


def own_gpu(folder: Path = Path("/dev")) -> OwnGpu | None:
    """Return the GPU that this process uses, with the device files of the others, where there are any.

    None where the driver does not tell which file is whose, and for a part of a GPU (MIG), which has files of its own.
    """
    files = {file.name.removeprefix("nvidia"): str(file) for file in folder.glob("nvidia*")}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if sum(map(str.isdigit, files)) < 2 or visible.startswith("MIG-"):
        return None
    with suppress(ElementTree.ParseError):
        said = ElementTree.fromstring(_asked("-q", "-x", "-i", visible))
        uuid, minor = (said.findtext(f"gpu/{name}", "") for name in ("uuid", "minor_number"))
        if minor in files and said.findtext("gpu/mig_mode/current_mig") != "Enabled":
            return OwnGpu(uuid, tuple(sorted(files[one] for one in files if one.isdigit() and one != minor)))
    return None


def _nvidia_smi(fields: str, *more: str) -> list[str]:
    """Return a line for each GPU."""
    said = _asked(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *more)
    return [line.strip() for line in said.splitlines() if line.strip()]


def _asked(*arguments: str) -> str:
    """Return what nvidia-smi says; nothing where there is none, or where it fails."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


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
    """Return the device with its ceilings: the greatest of the first few times that it was opened (seconds each)."""
    gpu = gpu_name() if backend == "cuda" else None
    if backend == "cuda" and gpu is None:
        raise MachineError("No NVIDIA GPU was found (nvidia-smi lists none); use --device cpu.")
    name = gpu.split(",")[0].strip() if gpu else cpu_name()
    arch = f"sm_{gpu.split(',')[1].strip().replace('.', '')}" if gpu else _cpu_arch()
    asked = Device(backend, name, arch, 0.0, 0.0, machine=gpu_machine() if gpu else cpu_machine())
    file = device_file(asked, cache)
    if _times_measured(file) >= MEASURED_TIMES:
        return read_device(file)
    with DeviceLock(units(backend), locks(backend, cache)).alone():
        times = _times_measured(file)  # another process may have measured it meanwhile
        if times >= MEASURED_TIMES:
            return read_device(file)
        return keep_device(measured(asked, workers), cache, times=times + 1)


def measured(device: Device, workers: Workers) -> Device:
    """Return the device with the greater of its ceilings and those measured now; the caller must have it for itself."""
    asked = {"backend": device.backend, "threads": threads()}
    found = workers.call("rag_kernels.eval.machine.ceilings:measure", asked, deadline_s=MEASURE_LIMIT_S)
    return higher(device, replace(device, **found))


def device_file(device: Device, cache: Path) -> Path:
    """Return where the ceilings of this device are kept."""
    return cache / "devices" / f"{content_id('d', device.key, CEILINGS_VERSION)}.json"


def keep_device(device: Device, cache: Path, *, times: int = 0) -> Device:
    """Keep the device with the greatest ceilings of this and earlier measurements, and return it so."""
    file = device_file(device, cache)
    file.parent.mkdir(parents=True, exist_ok=True)
    times = max(times, _times_measured(file))
    kept = higher(device, read_device(file)) if times and file.is_file() else device
    staged = file.with_suffix(f".{os.getpid()}.tmp")
    staged.write_text(json.dumps(asdict(kept) | {TIMES: times}))
    staged.rename(file)
    return kept


def read_device(file: Path) -> Device:
    """Read a device from its file, also one of before there were ceilings by dtype."""
    known = {field.name for field in fields(Device)}
    return Device(**{name: value for name, value in dict(json.loads(file.read_text())).items() if name in known})


def known_devices() -> dict[str, Path]:
    """Return the files of devices that came with the package, by the names that they go by."""
    return {file.name.removesuffix(".device.json"): file for file in sorted(KNOWN.glob("*.device.json"))}


def _times_measured(file: Path) -> int:
    return int(json.loads(file.read_text()).get(TIMES, 1)) if file.is_file() else 0


def cpu_machine() -> str:
    """Return what tells this machine from others of its CPU's name: cloud machines say no more than "AMD EPYC"."""
    with open("/proc/cpuinfo") as f:
        first = dict(line.strip().partition(":")[::2] for line in f.read().split("\n\n")[0].splitlines())
    known = {key.strip(): value.strip() for key, value in first.items()}
    wanted = ("cpu family", "model", "stepping")
    model = "-".join(known[name] for name in wanted if name in known)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cache = f"{cache_bytes() / 2**20:.0f} MiB of cache"
    return f"model {model}, {os.cpu_count()} cores, {cache}, {memory / 2**30:.0f} GiB"


def gpu_machine() -> str:
    """Return what tells this GPU from others of its name: its memory, power limit and clock.

    Equal ones of a cluster agree.
    """
    return nvidia_smi("memory.total,power.limit,clocks.max.sm") or ""


def target_of(arch: str) -> str:
    """Return what a compiler is told for a GPU: instructions of one generation (wgmma, tcgen05) need the `a` target."""
    return f"{arch}a" if arch in ("sm_90", "sm_100") else arch


def absent_gpu() -> Device:
    """Return what stands for the GPU on a machine that has only its compiler."""
    return Device("cuda", "no GPU here", "sm_90", 1.0, 1.0)


def _cpu_arch() -> str:
    with open("/proc/cpuinfo") as f:
        flags = next((line for line in f if line.startswith(("flags", "Features"))), "")
    level = "v4" if "avx512f" in flags else "v3" if "avx2" in flags else "v2"
    return f"{platform.machine().replace('_', '-')}-{level}" if sys.platform == "linux" else platform.machine()


def bytes_us(features: Features, device: Device) -> float:
    """Return the microseconds that the unavoidable bytes of one call take."""
    return features.bytes_moved / (device.bandwidth_gbs * 1e3)


def floor_us(features: Features, device: Device, precision: str = "strict") -> float:
    """Return the physical floor of one call in microseconds: the larger of bytes over bandwidth and FLOPs over rate.

    The rate is that of the dtype that products run in, or of the lowest precision that is allowed.
    """
    flops_us = (features.flops + features.pointwise_flops) / (product_gflops(features, device, precision) * 1e3)
    return max(bytes_us(features, device), flops_us)
