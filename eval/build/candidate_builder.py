"""Candidates as libraries: what is built of each, by which compiler, and the programs that sanitizers run.

Comes in: candidates that have passed the checks of their form. Goes out: a `Library` or a `BuildError` for each. What
was built before comes from the cache. Knows nothing of problems.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rag_kernels.eval.build.candidate_form import called_kernels, kernels_text
from rag_kernels.eval.build.compile import BuildError, Built, Flavour, Toolchain, build, checked, instruction_sets
from rag_kernels.eval.build.nvrtc import build_device, host_text, is_split
from rag_kernels.eval.build.products import Library, Programs, can_show_races
from rag_kernels.eval.process.sandbox import Sandbox
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Candidate

# What a C++ source asks of the processor that it is compiled for; older ones, with what shows that this one runs their
# code.
_ASKS = re.compile(r"\b__(?:AVX|SSE|FMA|BMI|F16C|AMX|GFNI|VAES|SHA|POPCNT|LZCNT|ADX|PCLMUL)\w*__\b")
OLDER = {"x86-64-v3": "avx2", "x86-64-v2": "sse4_2"}


class Builder:
    """One judge's. `workers` run candidates, and NVRTC; `thorough` builds for the sanitizers ahead."""

    def __init__(
        self, tools: Toolchain, workers: Workers, cache: Path, *, on_gpu: bool, thorough: bool, can_run: bool
    ) -> None:
        self._tools, self._workers, self._cache = tools, workers, cache
        self._on_gpu, self._thorough, self._can_run = on_gpu, thorough, can_run
        self._tool_workers: Workers | None = None

    def build(self, candidates: Sequence[Candidate]) -> dict[Candidate, Library | BuildError]:
        """Build everything in one ninja graph, and the device parts of split CUDA sources by NVRTC meanwhile."""
        split = {c for c in candidates if c.backend == "cuda" and is_split(kernels_of(c)) and not self._thorough}
        cubins = {c: self._device_part(c) for c in split} if self._can_run else {}
        split = {c for c, cubin in cubins.items() if cubin is not None}
        sources: list[tuple[str, Flavour]] = [
            (host_text(kernels_of(c)), "cuda-host") if c in split else (kernels_of(c), c.backend) for c in candidates
        ]
        if self._thorough and self._can_run:
            sources += [edge for c in candidates if kernels_of(c) for edge in _checked_sources(c)]
        built = build(sources, tools=self._tools, cache=self._cache)[: len(candidates)]
        results: dict[Candidate, Library | BuildError] = {}
        for candidate, host in zip(candidates, built, strict=True):
            cubin = cubins.get(candidate)
            if isinstance(host, BuildError) or isinstance(cubin, BuildError):
                results[candidate] = cubin if isinstance(cubin, BuildError) else host  # type: ignore[assignment]
            else:
                results[candidate] = Library(host.library, cubin)
        return results

    def _device_part(self, candidate: Candidate) -> Path | BuildError | None:
        arch, workers = self._tools.cuda_arch, self._workers
        return build_device(kernels_of(candidate), arch=arch, workers=workers, cache=self._cache)

    def whole(self, candidate: Candidate) -> Library | None:
        """Build by one compiler, as a published result is; None where nothing is to be built."""
        source = kernels_of(candidate)
        built = build([(source, candidate.backend)], tools=self._tools, cache=self._cache)[0] if source else None
        return Library(built.library) if isinstance(built, Built) else None

    def older(self, candidate: Candidate) -> dict[str, Library]:
        """Build for older processors what asks for which one it is compiled: exports are compiled where they run."""
        source, has = kernels_of(candidate), instruction_sets().split()
        if candidate.backend != "cpu" or not _ASKS.search(source):
            return {}
        found: dict[str, Library] = {}
        for isa in (isa for isa, flag in OLDER.items() if flag in has):
            tools = replace(self._tools, isa=isa, avx512=False)
            built = build([(source, "cpu")], tools=tools, cache=self._cache)[0]
            if isinstance(built, Built):
                found[isa] = Library(built.library)
        return found

    def checked(self, candidate: Candidate) -> tuple[Programs, Workers]:
        """Return the programs for sanitizers, built when they are first asked for, and the workers to run them in.

        A module is not built here: its program builds it.
        """
        sources = _checked_sources(candidate) if candidate.tier != "module" else []
        built = build(sources, tools=self._tools, cache=self._cache) if sources else []
        paths = [one.library if isinstance(one, Built) else None for one in built]
        if self._tool_workers is None:
            self._tool_workers = self._workers
            if self._on_gpu:  # compute-sanitizer attaches to what it runs
                builds, own = (self._cache / "builds",), self._workers.own_gpu
                self._tool_workers = Workers(sandbox=Sandbox(builds, gpu=True, own_gpu=own, filtered=False))
        if self._on_gpu or not paths:
            return Programs(paths[0] if paths else None), self._tool_workers
        if len(paths) < 2:
            why = "its threads are ordered by fences, flushes or assembly, which that does not see"
            return Programs(paths[0], None, why), self._tool_workers
        why = f"it does not build with it ({built[1].reason[:160]})" if isinstance(built[1], BuildError) else ""
        return Programs(paths[0], paths[1], why), self._tool_workers

    def close(self) -> None:
        if self._tool_workers is not None and self._tool_workers is not self._workers:
            self._tool_workers.close()


def kernels_of(candidate: Candidate) -> str:
    """Return the text that the compiler gets: the whole source, the KERNELS of a composed one, nothing for a module."""
    if candidate.tier == "kernel":
        return candidate.source
    return kernels_text(candidate.source) if candidate.tier == "composed" else ""


def _checked_sources(candidate: Candidate) -> list[tuple[str, Flavour]]:
    """Return the programs for sanitizers: one, and on a CPU a second one that shows races."""
    source, names = kernels_of(candidate), called_kernels(candidate.source) if candidate.tier == "composed" else []
    text = checked(source, names)
    if candidate.backend == "cuda":
        return [(text, "cuda-checked")]
    return [(text, "cpu-checked"), *([(text, "cpu-raced")] if can_show_races(source) else [])]  # type: ignore[list-item]
