"""A kernel as a library for other machines: a common instruction set, and no place of this machine in it.

Comes in: a candidate. Goes out: the bytes of a library, and what a package does to load it. Knows nothing of packages.
"""

from __future__ import annotations

import platform
from dataclasses import replace

from rag_kernels.eval.build.compile import COMMON_HEADERS, BuildError, build, toolchain
from rag_kernels.eval.build.headers import CONTRACT, headers_of
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.records import Candidate, MachineError

ISA = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}  # x86-64-v3: AVX2 and FMA, which CPUs have had since 2013
NEEDS = {"x86_64": ("AVX2", "AVX512")}  # of what torch.backends.cpu.get_cpu_capability() tells


def machine() -> str:
    """Return the processor family as platform tags have it."""
    return platform.machine()


def portable_library(candidate: Candidate, cuda_arch: str = "sm_90") -> bytes:
    """Build a kernel of the tier `kernel` for other machines like this one; raises MachineError where it cannot be."""
    tools = replace(toolchain(cuda_arch), isa=ISA.get(machine(), "native"), avx512=False)
    [built] = build([(candidate.source, candidate.backend)], tools=tools, cache=default_cache())
    if isinstance(built, BuildError):
        raise MachineError(f"The kernel does not build for {tools.isa}: {built.reason}\n{built.log}")
    return built.library.read_bytes()


def headers(source: str) -> dict[str, str]:
    """Return the texts of our headers that a kernel includes, by name; the contract's with those that the judge's
    builds have beside it.
    """
    common = "".join(line for line in COMMON_HEADERS.splitlines(keepends=True) if "<" in line)
    found = headers_of(source)
    return {**found, CONTRACT: f"#pragma once\n{common}{found[CONTRACT]}"}
