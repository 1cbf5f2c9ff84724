"""The quick way for CUDA sources that keep device and host code apart: NVRTC for one, g++ (cached) for the other.

Comes in: a split source (see `rag_kernel.h`). Goes out: a host library, the same for all variants that differ in device
code only, and a cubin. NVRTC runs in a worker, since it reads what it is told to include. The ordinary library that
nvcc makes of the same source is what a confirmation runs.
"""

from __future__ import annotations

import base64
import ctypes
import re
import sys
from pathlib import Path
from typing import Any

from rag_kernels.eval.build.compile import BuildError
from rag_kernels.eval.build.headers import headers_of
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.machine.device import target_of
from rag_kernels.eval.places import INCLUDE
from rag_kernels.eval.process.workers import WorkerFailed, Workers

COMPILE_LIMIT_S = 60.0
_SECTION = re.compile(r"^#if RK_DEVICE\b.*?^#endif.*?$", re.MULTILINE | re.DOTALL)
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+(?:void\s+|__launch_bounds__\s*\([^)]*\)\s*)+(\w+)\s*\(')


def is_split(source: str) -> bool:
    """Return whether the text keeps device and host code apart."""
    return bool(_SECTION.search(source)) and re.search(r"^#if RK_HOST\b", source, re.MULTILINE) is not None


def host_text(source: str) -> str:
    """Return the source without its device sections (which hold no `#if` of their own): what g++ compiles."""
    return _SECTION.sub("", source)


def kernel_names(source: str) -> list[str]:
    return _KERNEL.findall(source)


def build_device(source: str, *, arch: str, workers: Workers, cache: Path) -> Path | BuildError | None:
    """Return the cubin of the device part, from the cache or compiled now; None where there is no NVRTC."""
    file = cache / "builds" / content_id("n", source, *headers_of(source).values(), arch) / "device.cubin"
    if file.is_file():
        return file
    try:
        payload = {"source": source, "arch": arch}
        reply = workers.call("rag_kernels.eval.build.nvrtc:compile_device", payload, deadline_s=COMPILE_LIMIT_S)
    except WorkerFailed as failure:
        return BuildError(f"NVRTC did not finish: {failure.message}", failure.log, COMPILE_LIMIT_S)
    if not reply["found"]:
        return None
    if reply["log"] and not reply["cubin"]:
        errors = [line for line in reply["log"].splitlines() if "error" in line]
        return BuildError(errors[0].strip() if errors else "NVRTC failed", reply["log"][:6000], 0.0)
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_suffix(".tmp")
    staged.write_bytes(base64.b64decode(reply["cubin"]))
    staged.rename(file)
    return file


def compile_device(payload: dict[str, Any]) -> dict[str, Any]:
    """Run NVRTC on the device part for one architecture, in a worker."""
    library = _library()
    if library is None:
        return {"found": False, "cubin": "", "log": ""}
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), payload["source"].encode(), b"kernel.cu", 0, None, None)
    arch = target_of(payload["arch"])
    options = [f"--gpu-architecture={arch}", "-std=c++17", "-DRK_DEVICE=1", "-DRK_HOST=0", f"-I{INCLUDE}"]
    array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    failed = library.nvrtcCompileProgram(program, len(options), array)
    log = _text(library, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program).decode(errors="replace").rstrip("\0")
    cubin = b"" if failed else _text(library, "nvrtcGetCUBINSize", "nvrtcGetCUBIN", program)
    return {"found": True, "cubin": base64.b64encode(cubin).decode(), "log": log if failed else ""}


def _text(library: Any, size_of: str, get: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, size_of)(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, get)(program, buffer)
    return buffer.raw


def _library() -> Any:
    """Return NVRTC as the system, the CUDA toolkit or a Python package has it."""
    folders = [Path(p) / "nvidia" for p in sys.path] + [Path("/usr/local/cuda/lib64")]
    found = [str(f) for folder in folders if folder.is_dir() for f in sorted(folder.rglob("libnvrtc.so.*"))]
    for name in [*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        if ".alt." in name:
            continue
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


class SplitKernels:
    """In a candidate's worker: the cubin's functions, handed to the host library."""

    def __init__(self, library: str, cubin: str, names: list[str]) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        module = ctypes.c_void_p()
        if driver.cuModuleLoadData(ctypes.byref(module), Path(cubin).read_bytes()) != 0:
            raise RuntimeError("the device code could not be loaded")
        functions = [ctypes.c_void_p() for _ in names]
        for name, function in zip(names, functions, strict=True):
            if driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()) != 0:
                raise RuntimeError(f"the device code has no kernel {name}")
            driver.cuFuncSetAttribute(function, 8, _dynamic_shared(driver, function))
        self._names = (ctypes.c_char_p * len(names))(*(n.encode() for n in names))
        self._functions = (ctypes.c_void_p * len(names))(*(f.value for f in functions))
        launch = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p)
        ctypes.CDLL(library).rk_set_kernels(launch, len(names), self._names, self._functions)


def _dynamic_shared(driver: Any, function: ctypes.c_void_p) -> int:
    """Return bytes of dynamic shared memory that a block of this function may have."""
    used, most = ctypes.c_int(), ctypes.c_int()
    driver.cuFuncGetAttribute(ctypes.byref(used), 1, function)
    driver.cuDeviceGetAttribute(ctypes.byref(most), 97, 0)  # opt-in limit of a block
    return max(0, most.value - used.value)
