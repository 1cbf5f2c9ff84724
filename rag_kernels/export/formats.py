"""The formats in which a kernel leaves the archive: one function each, and one dictionary that names them.

Comes in: an attempt and a path. Goes out: a file. `generate --out` and the explorer's downloads read `FORMATS`. Those
of `rag-kernels export`, folders among them, are `packages.PACKAGES`. For a new one here add a file to `forms` with a
function `write_...(attempt, out)`, an entry below, and its suffix to the help of `--out` in `rag_kernels.cli.generate`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Backend, Candidate
from rag_kernels.eval.source_form import NATIVE, SUFFIXES, SourceForm, form_of
from rag_kernels.export.forms.module_file import write_module
from rag_kernels.export.forms.source_file import write_source

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Format:
    """One format. `suffix` is that of its file for a source of this form, or None where the form cannot be written."""

    label: str
    told: str
    suffix: Callable[[SourceForm], str | None]
    write: Callable[[Attempt, Path], Path]


FORMATS: dict[str, Format] = {
    "module": Format(
        "Module",
        "An importable Python file: the problem, the kernel, and a ModelNew that runs it.",
        lambda form: None if form.tier == "module" else SUFFIXES["python"],
        write_module,
    ),
    "source": Format("Kernel", "The kernel's source as it was judged.", lambda form: form.suffix, write_source),
}


def out_suffixes(backends: Iterable[Backend]) -> tuple[str, ...]:
    """Return the suffixes that a kernel for one of these backends may be asked for by."""
    forms = [SourceForm("kernel", NATIVE[backend], backend) for backend in backends]
    known = [each.suffix(form) for each in FORMATS.values() for form in forms]
    return tuple(dict.fromkeys(suffix for suffix in known if suffix))


def formats_of(candidate: Candidate) -> dict[str, str]:
    """Return the formats in which a candidate can be written, with the suffix of each."""
    form = form_of(candidate)
    found = {name: each.suffix(form) for name, each in FORMATS.items()}
    return {name: suffix for name, suffix in found.items() if suffix}


def write_kernel(attempt: Attempt, out: Path) -> Path:
    """Write the kernel in the format that the suffix asks for, else in the nearest one that its form allows."""
    known = formats_of(attempt.candidate)
    asked = [name for name, suffix in known.items() if suffix == out.suffix]
    native = [name for name, suffix in known.items() if SUFFIXES["python"] not in (suffix, out.suffix)]
    name = (asked or native or list(known))[0]
    if known[name] != out.suffix:
        out = out.with_suffix(known[name])
        log.warning("A kernel of the %s tier is written as %s: %s.", attempt.candidate.tier, out.suffix, out)
    return FORMATS[name].write(attempt, out)


def content(name: str, attempt: Attempt) -> bytes:
    """Return what the file of this format would hold."""
    with TemporaryDirectory(prefix="rag-kernels-") as folder:
        return FORMATS[name].write(attempt, Path(folder) / "kernel").read_bytes()
