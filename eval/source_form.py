"""What form a source text has: its tier, its language, the suffix of its file, and the backend that it is for.

Comes in: a text, and whatever is known of it already: a candidate's fields, a file's suffix. Goes out: a `SourceForm`.
What is known decides; only the rest is read from the text. Every other module asks here and looks for no marks itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rag_kernels.eval.records import Backend, Candidate, Tier

Language = Literal["python", "cpp", "cuda"]

SUFFIXES: dict[Language, str] = {"python": ".py", "cpp": ".cpp", "cuda": ".cu"}
NATIVE: dict[Backend, Language] = {"cpu": "cpp", "cuda": "cuda"}
CPP_SUFFIXES = frozenset({".cpp", ".cc", ".cxx", ".c"})

_MODEL = re.compile(r"\bclass\s+ModelNew\b")
_FORWARD = re.compile(r"^def\s+forward\b", re.MULTILINE)
_KERNELS = re.compile(r"^KERNELS\b", re.MULTILINE)
_PYBIND = re.compile(r"\bPYBIND11_MODULE\b")
_EXPORT = re.compile(r"\bRK_EXPORT\s*\(")
_DEVICE_CODE = re.compile(r"\b__global__\b")


@dataclass(frozen=True, slots=True)
class SourceForm:
    """The form of one source. A `module` in C++ or CUDA is a pybind extension; one in Python defines `ModelNew`."""

    tier: Tier
    language: Language
    backend: Backend

    @property
    def suffix(self) -> str:
        """The suffix under which `rag-kernels eval` takes the source."""
        return SUFFIXES[self.language]


def source_form(
    source: str,
    *,
    tier: Tier | None = None,
    backend: Backend | None = None,
    suffix: str = "",
    default: Backend = "cpu",
) -> SourceForm:
    """Return the form of a source; `default` is the backend where neither the text nor its file names one."""
    python = _is_python(source, tier, suffix)
    if tier is None:
        tier = _python_tier(source) if python else _native_tier(source)
    backend = backend or _backend(source, suffix, default)
    return SourceForm(tier, "python" if python else NATIVE[backend], backend)


def form_of(candidate: Candidate) -> SourceForm:
    """Return the form of a candidate, whose fields decide."""
    return source_form(candidate.source, tier=candidate.tier, backend=candidate.backend)


def is_whole(source: str) -> bool:
    """Tell whether a text has what makes it a candidate of any tier, where others are a part of one."""
    return any(mark.search(source) for mark in (_EXPORT, _FORWARD, _MODEL, _PYBIND))


def _is_python(source: str, tier: Tier | None, suffix: str) -> bool:
    if tier is not None:
        return tier == "composed" or (tier == "module" and not _is_pybind(source))
    if suffix:
        return suffix == SUFFIXES["python"]
    return any(mark.search(source) for mark in (_MODEL, _FORWARD, _KERNELS))


def _is_pybind(source: str) -> bool:
    """Return whether a text is a pybind extension; a module in Python may hold one as a string of its own."""
    return bool(_PYBIND.search(source)) and not _MODEL.search(source)


def _python_tier(source: str) -> Tier:
    return "module" if _MODEL.search(source) else "composed"


def _native_tier(source: str) -> Tier:
    return "module" if _PYBIND.search(source) else "kernel"


def _backend(source: str, suffix: str, default: Backend) -> Backend:
    """Return CUDA for `.cu` files and texts with `__global__`, the CPU for other C++, for Python what is asked for."""
    if suffix == SUFFIXES["cuda"] or _DEVICE_CODE.search(source):
        return "cuda"
    return "cpu" if suffix in CPP_SUFFIXES else default
