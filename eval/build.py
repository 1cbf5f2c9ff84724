"""From kernel source to a loadable library, many at once.

Comes in: (source, backend) pairs. Goes out: `Built` or `BuildError` for each, in order. One ninja graph holds a
round's candidates, one edge each; results are cached by the hash of source, header, flags and compiler. The
sources include only `rag_kernel.h`, which needs nothing but tvm-ffi's C ABI, so that a build takes a fraction
of a second for C++ and about a second for CUDA. Knows nothing of problems.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.ids import content_id
from eval.records import Backend, MachineError

INCLUDE = Path(__file__).resolve().parent / "include"
COMPILE_LIMIT_S = 90
LOG_CHARS = 6000
COMMON_HEADERS = """\
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>
#include "rag_kernel.h"
"""
SUFFIX: dict[Backend, str] = {"cpu": ".cpp", "cuda": ".cu"}


@dataclass(frozen=True, slots=True)
class Built:
    """A library on disk with what the compiler said (warnings)."""

    library: Path
    log: str
    seconds: float
    cached: bool


@dataclass(frozen=True, slots=True)
class BuildError:
    reason: str
    log: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The compilers of this machine. `cuda_arch` is `sm_90` and the like; `version` goes into the cache key."""

    cxx: str
    nvcc: str | None
    cuda_arch: str
    version: str
    avx512: bool

    def command(self, backend: Backend) -> str:
        """The shell command of one edge, with ninja's $in and $out."""
        ffi = tvm_ffi_root()
        shared = f"-shared -std=c++17 -O3 -I{INCLUDE} -I{ffi}/include -L{ffi}/lib -ltvm_ffi"
        if backend == "cpu":
            return f"{self.cxx} {self.cpu_flags()} $in {shared} -Wl,-rpath,{ffi}/lib -o $out"
        arch = self.cuda_arch.removeprefix("sm_")
        arch = "90a" if arch == "90" else arch  # Hopper's own instructions need the `a` target
        gencode = f"-gencode=arch=compute_{arch},code=sm_{arch}"
        return f"{self.nvcc} {gencode} -Xcompiler -fPIC $in {shared} -Xlinker -rpath={ffi}/lib -o $out"


    def cpu_flags(self) -> str:
        """Flags of a C++ kernel. None changes a value: no errno, no traps, vectors as wide as the CPU has them."""
        wide = " -mprefer-vector-width=512" if self.avx512 else ""
        return f"-march=native{wide} -fopenmp -fPIC -fno-math-errno -fno-trapping-math"


def tvm_ffi_root() -> Path:
    """The installed tvm-ffi package, found without importing it."""
    for base in dict.fromkeys([*sys.path, sysconfig.get_path("platlib")]):
        root = Path(base) / "tvm_ffi"
        if (root / "include" / "tvm" / "ffi" / "c_api.h").is_file():
            return root
    raise MachineError("The package apache-tvm-ffi is not installed; run `pip install apache-tvm-ffi`.")


@functools.cache
def toolchain(cuda_arch: str = "sm_90") -> Toolchain:
    """Find the compilers; raises MachineError with the install command when there is no C++ compiler."""
    cxx = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if cxx is None:
        raise MachineError("No C++ compiler was found; install one (Debian and Ubuntu: `apt-get install g++`).")
    if shutil.which(cxx) is None:
        raise MachineError(f"The compiler {cxx}, which CXX names, is not there; unset CXX or correct it.")
    nvcc = shutil.which("nvcc")
    if nvcc is None and Path("/usr/local/cuda/bin/nvcc").is_file():
        nvcc = "/usr/local/cuda/bin/nvcc"
    isa = _instruction_sets()
    # `-march=native` means another thing on another machine, so what it means is part of the cache key.
    parts = [_first_line([cxx, "--version"]), content_id("isa", isa)]
    version = " / ".join(parts + ([_last_line([nvcc, "--version"])] if nvcc else []))
    return Toolchain(cxx=cxx, nvcc=nvcc, cuda_arch=cuda_arch, version=version, avx512="avx512f" in isa.split())


def _instruction_sets() -> str:
    with open("/proc/cpuinfo") as f:
        return next((line for line in f if line.startswith(("flags", "Features"))), "")


def _output(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in (done.stdout or done.stderr).splitlines() if line.strip()] or ["unknown"]


def _first_line(command: list[str]) -> str:
    return _output(command)[0]


def _last_line(command: list[str]) -> str:
    return _output(command)[-1]


def default_cache() -> Path:
    """Where builds, baselines and device figures are kept."""
    base = os.environ.get("RAG_KERNELS_CACHE") or Path.home() / ".cache" / "rag-kernels"
    return Path(base)


def build(sources: Sequence[tuple[str, Backend]], *, tools: Toolchain, cache: Path) -> list[Built | BuildError]:
    """Compile every source; failures are values. Raises MachineError when CUDA is asked for without nvcc."""
    if tools.nvcc is None and any(backend == "cuda" for _, backend in sources):
        raise MachineError("No nvcc was found; install the CUDA toolkit, or use --device cpu.")
    folders = [_folder(source, backend, tools, cache) for source, backend in sources]
    missing = {f: (source, backend) for f, (source, backend) in zip(folders, sources, strict=True) if not _done(f)}
    started = time.perf_counter()
    if missing:
        _run_ninja(missing, tools, cache)
    seconds = time.perf_counter() - started
    return [_result(folder, seconds if folder in missing else 0.0) for folder in folders]


def _folder(source: str, backend: Backend, tools: Toolchain, cache: Path) -> Path:
    header = (INCLUDE / "rag_kernel.h").read_text()
    return cache / "builds" / content_id("b", source, header, tools.command(backend), tools.version)


def _done(folder: Path) -> bool:
    return (folder / "kernel.so").is_file() or (folder / "failed").is_file()


def _precompiled(tools: Toolchain, cache: Path) -> Path | None:
    """The common headers, parsed once per compiler: it halves a build. None where the compiler is not g++."""
    if "clang" in tools.version:
        return None
    flags = f"-std=c++17 -O3 {tools.cpu_flags()} -I{INCLUDE} -I{tvm_ffi_root()}/include"
    key = content_id("h", COMMON_HEADERS, (INCLUDE / "rag_kernel.h").read_text(), flags, tools.version)
    header = cache / "headers" / key / "common.h"
    if not header.with_name("common.h.gch").is_file():
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(COMMON_HEADERS)
        staged = header.with_name(f"{os.getpid()}.tmp")
        command = [tools.cxx, *flags.split(), "-x", "c++-header", str(header), "-o", str(staged)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S)
        if done.returncode != 0:
            raise MachineError(f"{tools.cxx} cannot compile the common headers: {done.stderr.strip()[:300]}")
        staged.rename(header.with_name("common.h.gch"))
    return header


def _run_ninja(missing: dict[Path, tuple[str, Backend]], tools: Toolchain, cache: Path) -> None:
    """One graph for all; each edge writes its own log and renames its result into place."""
    backends = {backend for _, backend in missing.values()}
    header = _precompiled(tools, cache) if "cpu" in backends else None
    with tempfile.TemporaryDirectory(prefix="rag-kernels-build-") as scratch:
        rules = [_rule(backend, tools, header) for backend in sorted(backends)]
        edges, work = [], {}
        for number, (folder, (source, backend)) in enumerate(missing.items()):
            text = Path(scratch) / f"kernel{number}{SUFFIX[backend]}"
            text.write_text(source)
            work[folder] = text.with_suffix(".so")
            edges.append(f"build {work[folder]}: {backend} {text}\n")
        ninja_file = Path(scratch) / "build.ninja"
        ninja_file.write_text("\n".join(rules + edges))
        subprocess.run(
            [_ninja(), "-C", scratch, "-k", "0", "--quiet"],
            capture_output=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        for folder, library in work.items():
            _keep(folder, library)


def _rule(backend: Backend, tools: Toolchain, header: Path | None) -> str:
    command = tools.command(backend)
    if backend == "cpu" and header is not None:
        command = command.replace(" $in ", f" -include {header} $in ")
    limited = f"timeout -k 2 {COMPILE_LIMIT_S} {command}"
    return f"rule {backend}\n  command = {limited} > $out.log 2>&1 || echo $$? > $out.code\n"


def _ninja() -> str:
    beside = Path(sys.executable).parent / "ninja"
    found = str(beside) if beside.is_file() else shutil.which("ninja")
    if found is None:
        raise MachineError("No ninja was found; run `pip install ninja`.")
    return found


def _keep(folder: Path, library: Path) -> None:
    """Move one edge's outcome into the cache; a folder is complete once `kernel.so` or `failed` is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    log, code = Path(f"{library}.log"), Path(f"{library}.code")
    text = log.read_text(errors="replace") if log.is_file() else "ninja did not run this edge"
    (folder / "log.txt").write_text(_clean(text))
    if library.is_file() and not code.is_file():
        staged = folder / f"kernel.{os.getpid()}.tmp"
        shutil.copyfile(library, staged)
        staged.rename(folder / "kernel.so")
    else:
        (folder / "failed").write_text(code.read_text().strip() if code.is_file() else "?")


def _clean(log: str) -> str:
    """Scratch paths say nothing to a reader, and would make equal logs differ."""
    return re.sub(r"\S*/rag-kernels-build-[^/\s]*/", "", log)


def _result(folder: Path, seconds: float) -> Built | BuildError:
    log = (folder / "log.txt").read_text()[:LOG_CHARS]
    if (folder / "kernel.so").is_file():
        return Built(folder / "kernel.so", log, seconds, cached=seconds == 0.0)
    code = (folder / "failed").read_text()
    if code in {"124", "137"}:
        shutil.rmtree(folder, ignore_errors=True)  # a slow moment is no property of the source
        return BuildError(f"the compiler was not done after {COMPILE_LIMIT_S} s", log, seconds)
    errors = [line for line in log.splitlines() if "error" in line or "undefined" in line]
    return BuildError(errors[0].strip() if errors else f"the compiler ended with code {code}", log, seconds)
