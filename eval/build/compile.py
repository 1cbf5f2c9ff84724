"""From kernel source to a loadable library, many at once.

Comes in: (source, backend) pairs. Goes out: `Built` or `BuildError` for each, in order. One ninja graph holds a
round's candidates, one edge each; results are cached by the hash of source, header, flags and compiler. The
sources include only `rag_kernel.h`, which needs nothing but tvm-ffi's C ABI, so that a build takes a fraction
of a second for C++ and about a second for CUDA. Knows nothing of problems.

Compilers read whatever a source names (`#include`, `.incbin`), so they run in a box where bubblewrap works: they see
the system, the toolchain and their own scratch folder; no home, no network, no environment beyond the allow-list.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rag_kernels.eval.build.headers import headers_of
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.machine.device import target_of
from rag_kernels.eval.places import INCLUDE
from rag_kernels.eval.process.sandbox import allowed_env, bwrap, outside_system, python_folders, system_folders
from rag_kernels.eval.records import MachineError

COMPILE_LIMIT_S, CHARS_A_SECOND = 90, 20_000
LOG_CHARS = 6000
COMPILER_ENV = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
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
# `-checked` builds are programs of their own, for sanitizers: the source and `rag_driver.cpp` around it; `cpu-raced` is
# one for ThreadSanitizer, on an OpenMP runtime of our own (`rag_openmp.cpp`).
# `cuda-host` is the host part of a split CUDA source (`eval.build.nvrtc`).
Flavour = Literal["cpu", "cuda", "cpu-checked", "cpu-raced", "cuda-checked", "cuda-host"]
SUFFIX: dict[Flavour, str] = {
    "cpu": ".cpp",
    "cuda": ".cu",
    "cpu-checked": ".cpp",
    "cpu-raced": ".cpp",
    "cuda-checked": ".cu",
    "cuda-host": ".cpp",
}
# ThreadSanitizer: the compiler proper is told of OpenMP, the linker is not (no libgomp); fences, which TSan does not
# see, are errors.
CPU_FLAGS: dict[Flavour, str] = {
    "cpu": "-fopenmp",
    # g++ defines shifts into the sign, as C++20 does: exponentials are made by them.
    "cpu-checked": "-fopenmp -fsanitize=address,undefined -fno-sanitize=shift-base -fno-sanitize-recover=all "
    "-fno-omit-frame-pointer -O1 -g1",
    "cpu-raced": "-Xpreprocessor -fopenmp -pthread -fsanitize=thread -Werror=tsan -fno-omit-frame-pointer -O1 -g1",
}
OWN = "-fvisibility=hidden"  # kernels of a process keep inline variables of one name apart, as exported ones do
OPENMP = "rag_openmp.cpp"
DRIVER = "rag_driver.cpp"
OBJECT = "kernel.o"  # of a C++ kernel, beside its library
USES: dict[Flavour, tuple[str, ...]] = {
    "cpu-checked": ("rag_driver.h", DRIVER),
    "cuda-checked": ("rag_driver.h", DRIVER),
    "cpu-raced": ("rag_driver.h", DRIVER, OPENMP),
}


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
    splits: bool = False  # whether nvcc optimises several kernels of a source at once
    isa: str = "native"  # of CPU kernels; another one makes a library that names no place of this machine
    optimizing: str = "-O3"  # of CPU kernels; what only computes right numbers takes less
    gold: bool = False  # whether this linker is there: it takes 0.03 CPU seconds a library, GNU's usual one 0.08

    def command(self, flavour: Flavour) -> str:
        """Return the shell command of one edge, with ninja's $in and $out."""
        ffi = tvm_ffi_root()
        linked = f"-std=c++17 -I{INCLUDE} -I{ffi}/include -L{ffi}/lib -ltvm_ffi"
        linker = " -fuse-ld=gold" if self.gold else ""
        if flavour == "cpu":  # in two steps: the object tells what the source itself takes from others
            found = f" -Wl,-rpath,{ffi}/lib" if self.isa == "native" else ""
            made = f"{self.cxx} {self.cpu_flags(flavour)} -std=c++17 -I{INCLUDE} -I{ffi}/include -c $in -o $out.o"
            return f"{made} && {self.cxx} {self.cpu_flags(flavour)} $out.o -shared {linked}{linker}{found} -o $out"
        if flavour == "cuda-host":
            defines = "-DRK_DEVICE=0 -DRK_HOST=1 -DRK_SPLIT"
            return f"{self.cxx} {defines} -fPIC -O1 $in -shared {linked}{linker} -Wl,-rpath,{ffi}/lib -o $out"
        if flavour in ("cpu-checked", "cpu-raced"):
            return f"{self.cxx} {self.cpu_flags(flavour)} $in {linked}{linker} -Wl,-rpath,{ffi}/lib -o $out"
        arch = target_of(self.cuda_arch).removeprefix("sm_")
        nvcc = f"{self.nvcc} -gencode=arch=compute_{arch},code=sm_{arch} -Xlinker -rpath={ffi}/lib"
        if flavour == "cuda-checked":
            return f"{nvcc} -lineinfo -O3 $in {linked} -o $out"
        at_once = "--split-compile=8 " if self.splits else ""  # 125 kernels on a busy host: 109 s instead of 277
        return f"{nvcc} {at_once}-Xcompiler -fPIC,{OWN} $in -shared -O3 {linked} -o $out"

    def cpu_flags(self, flavour: Flavour) -> str:
        """Return flags of a C++ kernel.

        None changes a value: no errno, no traps, vectors as wide as the CPU has them.
        """
        wide = " -mprefer-vector-width=512" if self.avx512 else ""
        level = f" {self.optimizing}" if flavour == "cpu" else ""
        return f"-march={self.isa}{wide} {CPU_FLAGS[flavour]}{level} -fPIC {OWN} -fno-math-errno -fno-trapping-math"


def taken_names(library: Path) -> list[str]:
    """Return the names of functions and data that a kernel takes from others.

    Of a C++ kernel those that its own source takes: a compiler may link a runtime of its own into the library, and what
    that takes is not the kernel's.
    """
    own = library.with_name(OBJECT)
    asked = ["--undefined-only", str(own)] if own.is_file() else ["-D", "--undefined-only", str(library)]
    done = subprocess.run(["nm", *asked], capture_output=True, text=True, check=False)
    return [line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line.split()]


def tvm_ffi_root() -> Path:
    """Return the installed tvm-ffi package, found without importing it."""
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
    isa = instruction_sets()
    # `-march=native` means another thing on another machine, so what it means is part of the cache key.
    parts = [_first_line([cxx, "--version"]), content_id("isa", isa)]
    version = " / ".join(parts + ([_last_line([nvcc, "--version"])] if nvcc else []))
    splits = nvcc is not None and "--split-compile " in "\n".join(_output([nvcc, "--help"]))
    avx512 = "avx512f" in isa.split()
    gold = _links_with_gold(cxx)
    return Toolchain(cxx=cxx, nvcc=nvcc, cuda_arch=cuda_arch, version=version, avx512=avx512, splits=splits, gold=gold)


def instruction_sets() -> str:
    """Return what this processor has, as the system tells it."""
    with open("/proc/cpuinfo") as f:
        return next((line for line in f if line.startswith(("flags", "Features"))), "")


def _links_with_gold(cxx: str) -> bool:
    """Return whether the compiler can use gold, and it stands beside it: the compilers' box shows no other folder."""
    beside = Path(shutil.which(cxx) or cxx).resolve().with_name("ld.gold").is_file()
    return beside and any("GNU gold" in line for line in _output([cxx, "-fuse-ld=gold", "-Wl,--version"]))


def _output(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in (done.stdout or done.stderr).splitlines() if line.strip()] or ["unknown"]


def _first_line(command: list[str]) -> str:
    return _output(command)[0]


def _last_line(command: list[str]) -> str:
    return _output(command)[-1]


def checked(source: str, names: Sequence[str] = ()) -> str:
    """Return the text of a `-checked` program around a kernel-tier source, or around these functions of a composed one.

    These are declared before: one may be defined in a namespace, or, though it is named, not at all. The contract's
    header comes with the source, which may include CUDA's half types ahead of it.
    """
    entries = ", ".join(f'{{"{name}", __tvm_ffi_{name}}}' for name in names or ("forward",))
    signature = "(void*, const TVMFFIAny*, int32_t, TVMFFIAny*)"
    declared = "".join(f'extern "C" __attribute__((weak)) int __tvm_ffi_{name}{signature};\n' for name in names)
    before = f"#include <tvm/ffi/c_api.h>\n{declared}#line 1\n" if names else ""
    return f'{before}{source}\n#define RAG_ENTRIES {entries}\n#include "rag_driver.h"\n'


def build(sources: Sequence[tuple[str, Flavour]], *, tools: Toolchain, cache: Path) -> list[Built | BuildError]:
    """Compile every source; failures are values. Raises MachineError when CUDA is asked for without nvcc."""
    if tools.nvcc is None and any(flavour.startswith("cuda") for _, flavour in sources):
        raise MachineError("No nvcc was found; install the CUDA toolkit, or use --device cpu.")
    folders = [_folder(source, backend, tools, cache) for source, backend in sources]
    missing = {f: (source, backend) for f, (source, backend) in zip(folders, sources, strict=True) if not _done(f)}
    started = time.perf_counter()
    if missing:
        _run_ninja(missing, tools, cache)
    seconds = time.perf_counter() - started
    return [_result(folder, seconds if folder in missing else 0.0) for folder in folders]


def _folder(source: str, backend: Flavour, tools: Toolchain, cache: Path) -> Path:
    texts = [*headers_of(source).values(), *((INCLUDE / name).read_text() for name in USES.get(backend, ()))]
    return cache / "builds" / content_id("b", source, *texts, tools.command(backend), tools.version)


def _done(folder: Path) -> bool:
    return (folder / "kernel.so").is_file() or (folder / "failed").is_file()


def header_options(flavour: Flavour, tools: Toolchain, cache: Path) -> str:
    """Return what every C++ edge of a flavour takes, compiled once per compiler.

    Common headers (with g++ only) halve a build, and so does the driver of programs for sanitizers, as an object; under
    ThreadSanitizer these have an OpenMP runtime of our own.
    """
    if flavour not in CPU_FLAGS:
        return ""
    parts = []
    flags = f"-std=c++17 {tools.cpu_flags(flavour)} -I{INCLUDE} -I{tvm_ffi_root()}/include"
    if "clang" not in tools.version:
        contract = (INCLUDE / "rag_kernel.h").read_text()
        made = made_once("common.h", COMMON_HEADERS, "common.h.gch", f"{flags} -x c++-header", tools, cache, contract)
        parts.append(f"-include {made / 'common.h'}")
    if DRIVER in USES.get(flavour, ()):
        driver, table = ((INCLUDE / name).read_text() for name in (DRIVER, "rag_driver.h"))
        parts.append(str(made_once(DRIVER, driver, "driver.o", f"{flags} -c", tools, cache, table) / "driver.o"))
    if flavour == "cpu-raced":
        made = made_once(OPENMP, (INCLUDE / OPENMP).read_text(), "openmp.o", "-std=c++17 -O2 -fPIC -c", tools, cache)
        parts.append(str(made / "openmp.o"))
    return " ".join(parts)


def header_folder(cache: Path) -> Path:
    """Return it resolved: a link would hang in the compilers' box, where its target is not."""
    return (cache / "headers").resolve()


def made_once(name: str, text: str, result: str, flags: str, tools: Toolchain, cache: Path, *more: str) -> Path:
    """Return the folder with `result`, which is compiled from our own `text`; found in the cache the next time."""
    folder = header_folder(cache) / content_id("h", text, *more, flags, tools.version)
    if (folder / result).is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)  # several judges begin at once, and each would take seconds for the same
        if not (folder / result).is_file():
            (folder / name).write_text(text)
            staged = folder / f"{result}.tmp"
            command = [tools.cxx, *flags.split(), str(folder / name), "-o", str(staged)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S)
            if done.returncode != 0:
                raise MachineError(f"{tools.cxx} cannot compile {name}: {done.stderr.strip()[:300]}")
            staged.rename(folder / result)
    return folder


def _run_ninja(missing: dict[Path, tuple[str, Flavour]], tools: Toolchain, cache: Path) -> None:
    """Run one graph for all; each edge writes its own log and renames its result into place."""
    backends = {backend for _, backend in missing.values()}
    prepared = {backend: header_options(backend, tools, cache) for backend in backends}
    with tempfile.TemporaryDirectory(prefix="rag-kernels-build-") as scratch:
        rules = [_rule(backend, tools, prepared[backend]) for backend in sorted(backends)]
        edges, work = [], {}
        for number, (folder, (source, backend)) in enumerate(missing.items()):
            text = Path(scratch) / f"kernel{number}{SUFFIX[backend]}"
            text.write_text(source)
            work[folder] = text.with_suffix(".so")
            edges.append(f"build {work[folder]}: {backend} {text}\n  limit = {limit_s(source)}\n")
        ninja_file = Path(scratch) / "build.ninja"
        ninja_file.write_text("\n".join(rules + edges))
        readable = [header_folder(cache)] if any(prepared.values()) else []
        box = _box(tools, scratch, readable) if builds_boxed(tools) else []
        subprocess.run(
            [*box, _ninja(), "-C", scratch, "-k", "0", "--quiet"],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_environment() | {"TMPDIR": scratch},
        )
        for folder, library in work.items():
            _keep(folder, library)


def _environment() -> dict[str, str]:
    """Return what a compiler may know of our environment: no keys."""
    return allowed_env() | {name: os.environ[name] for name in COMPILER_ENV if name in os.environ}


def _box(tools: Toolchain, scratch: str, readable: Sequence[Path] = ()) -> list[str]:
    programs = [Path(found) for name in (tools.cxx, tools.nvcc) if name and (found := shutil.which(name))]
    homes = [str(p.resolve().parent.parent) for p in programs]  # .../bin/g++ needs .../lib beside it
    folders = [*system_folders(), *python_folders(), *outside_system(homes), str(INCLUDE), str(tvm_ffi_root())]
    return bwrap([*folders, *map(str, readable)], (scratch, scratch))


@functools.cache
def builds_boxed(tools: Toolchain) -> bool:
    """Return whether bubblewrap works here, and the compilers work in it (one in an unusual place might not)."""
    commands = [[tools.cxx, "-fsyntax-only", "-x", "c++", "/dev/null"]] + [[tools.nvcc, "--version"]] * bool(tools.nvcc)
    with tempfile.TemporaryDirectory(prefix="rag-kernels-build-") as scratch:
        box = _box(tools, scratch)
        return bool(box) and all(
            subprocess.run([*box, *command], capture_output=True, check=False).returncode == 0 for command in commands
        )


def _rule(backend: Flavour, tools: Toolchain, prepared: str) -> str:
    command = tools.command(backend).replace(" $in ", f" {prepared} $in ")
    limited = " && ".join(f"timeout -k 2 $limit {step}" for step in command.split(" && "))
    return f"rule {backend}\n  command = {{ {limited}; }} > $out.log 2>&1 || echo $$? > $out.code\n"


def limit_s(source: str) -> int:
    """Return seconds that its compiler may take: a deep network is one source of up to two megabytes."""
    return COMPILE_LIMIT_S + len(source) // CHARS_A_SECOND


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
        staged = folder / f"kernel.{os.getpid()}.{threading.get_ident()}.tmp"  # others may build the same
        for made, name in ((Path(f"{library}.o"), OBJECT), (library, "kernel.so")):
            if made.is_file():
                shutil.copy(made, staged)
                staged.rename(folder / name)
    else:
        (folder / "failed").write_text(code.read_text().strip() if code.is_file() else "?")


def _clean(log: str) -> str:
    """Remove scratch paths, which say nothing to a reader and would make equal logs differ."""
    return re.sub(r"\S*/rag-kernels-build-[^/\s]*/", "", log)


def _result(folder: Path, seconds: float) -> Built | BuildError:
    log = (folder / "log.txt").read_text()[:LOG_CHARS]
    if (folder / "kernel.so").is_file():
        return Built(folder / "kernel.so", log, seconds, cached=seconds == 0.0)
    code = (folder / "failed").read_text()
    if code in {"124", "137"}:
        shutil.rmtree(folder, ignore_errors=True)  # a slow moment is no property of the source
        why = f"the compiler was not done in time ({COMPILE_LIMIT_S} s, and more for a long source)"
        return BuildError(why, log, seconds)
    errors = [line for line in log.splitlines() if "error" in line or "undefined" in line]
    return BuildError(errors[0].strip() if errors else f"the compiler ended with code {code}", log, seconds)
