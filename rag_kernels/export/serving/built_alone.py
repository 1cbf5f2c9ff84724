"""A kernel's library for this machine, built with g++ or nvcc and kept in a cache: what files that stand alone carry.

Comes in: a source, and the header that it includes. Goes out: what tvm-ffi loaded. Imports nothing of ours.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADERS: dict[str, str] = {}  # texts of headers by name; files that carry this module set it
LIMIT_S = 600
CPU_FLAGS = "-march=native -fopenmp -O3 -fPIC -fvisibility=hidden -fno-math-errno -fno-trapping-math"
OWN = "-fPIC,-fvisibility=hidden"


class MachineError(Exception):
    """This machine lacks something."""


def forward_of(source: str, tier: str, backend: str, arch: str) -> Callable[..., Any]:
    """Return the loaded forward of a source; raises MachineError where it cannot be built or loaded here."""
    if tier == "composed":
        return _composed(source, _library(_kernels_text(source), backend, arch))
    function: Callable[..., Any] = _library(source, backend, arch).get_function("forward")
    return function


def _kernels_text(source: str) -> str:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["KERNELS"]:
            text: str = ast.literal_eval(node.value)
            return text
    raise MachineError("The source has no KERNELS.")


def _composed(source: str, library: Any) -> Callable[..., Any]:
    import torch

    class Kernels:
        def __getattr__(self, name: str) -> Any:
            return library.get_function(name)

    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "kernels": Kernels()}
    exec(compile(source.replace(_kernels_text(source), ""), "<kernel>", "exec"), names)
    forward: Callable[..., Any] = names["forward"]
    return forward


def _library(text: str, backend: str, arch: str) -> Any:
    try:
        import tvm_ffi
    except ImportError as error:
        raise MachineError("The package apache-tvm-ffi is not installed; run `pip install apache-tvm-ffi`.") from error
    command = _command(backend, arch, Path(tvm_ffi.__file__).parent)
    told = "\0".join([text, *HEADERS.values(), *command, platform.machine(), _cpu(), _version(command[0])])
    cache = Path(os.environ.get("RAG_KERNELS_CACHE") or Path.home() / ".cache" / "rag-kernels") / "alone"
    library = cache / hashlib.sha256(told.encode()).hexdigest()[:24] / "kernel.so"
    if not library.is_file():
        _build(text, ".cpp" if backend == "cpu" else ".cu", command, library)
    try:
        return tvm_ffi.load_module(str(library))
    except (OSError, RuntimeError) as error:
        raise MachineError(f"The kernel was built and cannot be loaded on this machine: {error}") from error


def _command(backend: str, arch: str, ffi: Path) -> list[str]:
    linked = ["-shared", "-std=c++17", f"-I{ffi}/include", f"-L{ffi}/lib", "-ltvm_ffi"]
    if backend == "cpu":
        compiler = os.environ.get("CXX") or "g++"
        command = [compiler, *CPU_FLAGS.split(), *linked, f"-Wl,-rpath,{ffi}/lib"]
    else:
        compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        number = "90a" if arch == "sm_90" else arch.removeprefix("sm_")
        target = f"-gencode=arch=compute_{number},code=sm_{number}"
        command = [compiler, target, "-O3", "-Xcompiler", OWN, *linked, "-Xlinker", f"-rpath={ffi}/lib"]
    if shutil.which(compiler) is None:
        raise MachineError(f"No compiler was found ({compiler}); install one, or name it with CXX.")
    return command


def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _cpu() -> str:
    with open("/proc/cpuinfo") as file:
        return next((line for line in file if line.startswith(("flags", "Features"))), "")


def _build(text: str, suffix: str, command: list[str], library: Path) -> None:
    """Build beside the place and move it there: other processes may build the same."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        source, made = Path(scratch) / f"kernel{suffix}", Path(scratch) / "kernel.so"
        source.write_text(text)
        for name, header in HEADERS.items():
            (Path(scratch) / name).write_text(header)
        done = subprocess.run(
            [command[0], *command[1:], f"-I{scratch}", str(source), "-o", str(made)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if done.returncode != 0:
            raise MachineError(f"The kernel does not build on this machine: {done.stderr.strip()[:2000]}")
        made.rename(library)
