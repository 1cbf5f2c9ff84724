"""Was the device slowed down while a pair was timed? By its own counters, which no candidate can write.

On a GPU NVML says why the clock is held down, and what it is; on a CPU the kernel counts how often the cgroup ran out
of its quota and how often cores throttled for heat. Goes out: per reading whether the pair before it is worth keeping,
and the range of the SM clock. Without the counters (a virtual machine, no NVML) every pair counts.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

# NVML's clock event reasons that say the hardware was hot or out of power. Running into the power cap is how a GPU
# works under load: the clock shows it, and no pair is left out for it.
SLOWED = 0x08 | 0x20 | 0x40 | 0x80  # hardware slowdown, software thermal, hardware thermal, power brake
SM_CLOCK = 1
HEAT = "/sys/devices/system/cpu"


class Clocks:
    """Readings between pairs, a few microseconds each."""

    def __init__(self, *, on_gpu: bool) -> None:
        self._gpu = _nvml() if on_gpu else None
        self._files = () if on_gpu else _counters()
        self._count = _total(self._files)
        self.mhz: list[int] = []

    def slowed(self) -> bool:
        """Return whether the device was slowed down since the last reading."""
        if self._gpu is not None:
            reasons, mhz = self._gpu()
            self.mhz.append(mhz)
            return bool(reasons & SLOWED)
        before, self._count = self._count, _total(self._files)
        return self._count > before


@functools.cache
def _counters() -> tuple[Path, ...]:
    """Return files that count throttling: of this process's cgroup and those above it, and of the cores."""
    files = [*Path(HEAT).glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    text = Path("/proc/self/cgroup").read_text() if Path("/proc/self/cgroup").is_file() else ""
    own = next((line[3:].strip() for line in text.splitlines() if line.startswith("0::")), "/")
    folder = Path("/sys/fs/cgroup") / own.lstrip("/")
    files += [place / "cpu.stat" for place in (folder, *folder.parents) if "cgroup" in place.parts]
    return tuple(file for file in files if os.access(file, os.R_OK))


def _total(files: Iterable[Path]) -> int:
    return sum(_count(file.read_text()) for file in files)


def _count(text: str) -> int:
    """Return `nr_throttled` of a cgroup's cpu.stat, or the number that a file of one number holds."""
    words = text.split()
    if "nr_throttled" in words:
        return int(words[words.index("nr_throttled") + 1])
    return int(words[0]) if len(words) == 1 else 0


@functools.cache
def _nvml() -> Callable[[], tuple[int, int]] | None:
    """Return a reader of (clock event reasons, SM clock in MHz) of the first visible GPU.

    None where there is no NVML.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device, reasons, mhz = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_uint()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    if nvml.nvmlInit_v2() or (
        nvml.nvmlDeviceGetHandleByIndex_v2(int(visible), ctypes.byref(device))
        if visible.isdigit()
        else nvml.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(device))
    ):
        return None

    def read() -> tuple[int, int]:
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device, ctypes.byref(reasons))
        nvml.nvmlDeviceGetClockInfo(device, SM_CLOCK, ctypes.byref(mhz))
        return reasons.value, mhz.value

    return read
