"""The file that `generate --out` writes: a module or the kernel's own source, as its suffix asks and its form allows.

Comes in: an attempt and a path. Goes out: a file. The formats of `rag-kernels export` are another thing: `packages`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Backend, Candidate
from rag_kernels.eval.source_form import NATIVE, SUFFIXES, SourceForm, form_of
from rag_kernels.export.format_names import DEFAULT
from rag_kernels.export.forms.source_file import write_source
from rag_kernels.export.packages import write_package

log = logging.getLogger(__name__)
MODULE = SUFFIXES["python"]


def out_suffixes(backends: Iterable[Backend]) -> tuple[str, ...]:
    """Return the suffixes that a kernel for one of these backends may be asked for by."""
    return (MODULE, *dict.fromkeys(SourceForm("kernel", NATIVE[backend], backend).suffix for backend in backends))


def suffix_for(candidate: Candidate, asked: str) -> str:
    """Return the suffix that is asked for, else the nearest one: a module of the tier `module` is its own source."""
    source = form_of(candidate).suffix
    known = (source,) if candidate.tier == "module" else (MODULE, source)
    return asked if asked in known else known[-1]


def write_kernel(attempt: Attempt, out: Path) -> Path:
    """Write the kernel as the suffix asks for, else in the nearest way that its form allows, with a warning."""
    candidate = attempt.candidate
    suffix = suffix_for(candidate, out.suffix)
    if suffix != out.suffix:
        out = out.with_suffix(suffix)
        log.warning("A kernel of the %s tier is written as %s: %s.", candidate.tier, suffix, out)
    as_module = suffix == MODULE and candidate.tier != "module"
    if as_module and (buffers := attempt.problem.mutated):
        log.warning(
            "The module updates %s at each call, and a kernel does not: where it does so, `ModelNew` runs the module "
            "itself. For a kernel that is used there, let the module return what it updates, or make the problem of "
            "the module in eval mode if it updates nothing then.",
            ", ".join(buffers),
        )
    return write_package(attempt, DEFAULT, out) if as_module else write_source(attempt, out)
