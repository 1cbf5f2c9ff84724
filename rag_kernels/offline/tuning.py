"""Tuning parameters: how a generated source states them, and which neighbours of a set of parameters are tried.

Comes in: a generated source, or parameters. Goes out: parameters, or neighbours of them. Knows the line
`constexpr ... BLOCK = 1024, TILE = 4096;  // tuning parameters` that generated kernels carry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from rag_kernels.eval.records import Backend
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters

Parameters = CpuParameters | CudaParameters
END = "// tuning parameters"
HOPPER = "sm_90"
ROOMY = ("sm_90", "sm_100", "sm_103")  # 227 KiB of shared memory a block, for rows that blocks share

# What to try for each parameter, best guess first, and the schedules that feel it ("" is any).
CPU_CHOICES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("saving", "step", (0, 2)),
    ("lanes", "column", (256, 4096, 64)),
    ("keep", "row", (False,)),
    ("tile", "point", (16384, 1024)),
    ("schedule", "", ("dynamic", "guided")),
    ("block", "row", (256, 2048)),
    ("columns", "product", (128, 512)),
    ("rows", "product", (128,)),
    ("depth", "product", (128, 512)),
    ("attention", "attention", (0,)),
)
CUDA_CHOICES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("saving", "step", (0, 2)),
    ("attention", "attention", (1, 2, 0)),
    ("in_turn", "attention", (0,)),
    ("sharing", "row", (0, 512)),
    ("threads", "", (512, 128, 1024)),
    ("long_threads", "row", (512, 256)),
    ("team", "column", (8, 32, 4)),
    ("vector", "point", (1,)),
    ("few", "product", (64, 0)),
    ("shape", "product", (128256, 192192, 128128, 64128, 128064, 64064)),
    ("clusters", "product", (1, 2)),
    ("turns", "product", (1, 2, 3, 4)),
    ("tile", "product", (64, 128)),
    ("tensor", "product", (0, 1)),
)


def starting_parameters(backend: Backend, arch: str = "", precision: str = "strict") -> Parameters:
    """Return the parameters to begin with, for a device of this architecture where it is known.

    `precision` is the lowest that products may be computed in: below `strict` those of fp32 take one pass of TF32.
    """
    if backend == "cpu":
        return CpuParameters()
    start = CudaParameters() if not arch or arch in ROOMY else CudaParameters(sharing=0)
    start = start if precision == "strict" else replace(start, tensor=2)
    return start if not arch or arch == HOPPER else replace(start, attention=1)


def parameters_in(source: str, backend: Backend) -> Parameters | None:
    """Return the parameters that a generated source was written with, or None for a foreign source."""
    line = next((x for x in source.splitlines() if x.endswith(END)), None)
    if line is None:
        return None
    start = starting_parameters(backend)
    found = {k.lower(): int(v) for k, v in re.findall(r"(\w+) = (\d+)", line)}
    changes: dict[str, Any] = {f.name: found[f.name] for f in fields(start) if f.name in found}
    if isinstance(start, CpuParameters):
        changes["keep"] = bool(changes.get("keep", start.keep))
        scheduled = re.search(r"schedule\((\w+)", source)
        changes["schedule"] = scheduled.group(1) if scheduled else start.schedule
    return replace(start, **changes)


def neighbours(base: Parameters, schedules: tuple[str, ...]) -> Iterator[Parameters]:
    """Yield the parameters with one changed at a time, those first that affect the schedules in use."""
    for name, schedule, values in CPU_CHOICES if isinstance(base, CpuParameters) else CUDA_CHOICES:
        if not schedule or schedule in schedules:
            for value in values:
                if getattr(base, name) != value:
                    yield replace(base, **{name: value})


def has_effect(changed: str, base: str) -> bool:
    """Return whether two sources differ in more than the value of a parameter that no other line names."""
    texts = [source.splitlines() for source in (base, changed)]
    (before, *rest), (after, *other) = (sorted(text, key=lambda x: not x.endswith(END)) for text in texts)
    values = [dict(re.findall(r"(\w+) = (\d+)", line)) for line in (before, after)]
    differing = [name for name in values[0] if values[0][name] != values[1].get(name)]
    return rest != other or any(re.search(rf"\b{name}\b", line) for name in differing for line in rest)


def describe(base: Parameters, changed: Parameters) -> str:
    """Return the changed parameters in words, such as `lanes 256 -> 1024`."""
    pairs = [(f.name, getattr(base, f.name), getattr(changed, f.name)) for f in fields(base)]
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)
