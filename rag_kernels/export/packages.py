"""An archived kernel in the form that others load: one function for all formats, for the command line and for Python.

Comes in: an archive, a kernel's id and a format. Goes out: a file or a folder. `PACKAGES` has every file of `forms`
whose first line names a format.
"""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import assert_never
from zipfile import ZIP_DEFLATED, ZipFile

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt
from rag_kernels.eval.build.step_form import is_step
from rag_kernels.eval.errors import Internal, ProblemError
from rag_kernels.eval.records import Backend, Candidate, Passed
from rag_kernels.eval.source_form import form_of
from rag_kernels.export import forms
from rag_kernels.export.backward import pulled_of
from rag_kernels.export.card import Licence, stamp
from rag_kernels.export.evidence import CARD, Pulled, evidence, holds
from rag_kernels.export.format_names import DEFAULT, SOURCE, formats
from rag_kernels.export.forms.source_file import write_source
from rag_kernels.export.forms.torch_op_package import name_of
from rag_kernels.export.package import Folder, Format, TextFile

PACKAGES: dict[str, Format] = {
    name: import_module(f"{forms.__name__}.{named.file}").PACKAGE for name, named in formats().items()
}


DEVICES: dict[Backend, str] = {"cpu": "the CPU", "cuda": "a GPU"}


def packages_of(candidate: Candidate) -> list[str]:
    """Return the names of the packages that a candidate can be written as, by its tier and backend.

    A step of training goes where a kernel for gradients goes.
    """
    found = [name for name, p in PACKAGES.items() if candidate.tier in p.tiers and candidate.backend in p.backends]
    return [name for name in found if PACKAGES[name].with_gradients] if is_step(candidate) else found


def export_kernel(
    archive: Archive, kernel_id: str, form: str, out: Path | None = None, backward: str | None = None
) -> Path:
    """Write an archived kernel as `form`, "source" or one of `PACKAGES`; return the file or folder.

    Without `out` it is named after the problem, in the working folder. `backward` is a kernel of the problem's
    backward, by which gradients are computed. Raises ProblemError where there is no such kernel, where it cannot be
    written so, and where a folder of that name is there already.
    """
    attempt = evidence(archive, kernel_id)
    candidate = attempt.candidate
    if backward:
        _require_gradients(form)
    if form == SOURCE:
        return write_source(attempt, out or Path(f"{name_of(attempt)}{form_of(candidate).suffix}"))
    _require_taken(attempt, form)
    pulled = pulled_of(attempt, evidence(archive, backward)) if backward else None
    return write_package(attempt, form, out, lambda kernel: licence_of(archive, kernel), pulled)


def write_package(
    attempt: Attempt, form: str, out: Path | None, licence: Licence | None = None, backward: Pulled | None = None
) -> Path:
    """Write an attempt as one of `PACKAGES`, with its evidence, and return the file or folder.

    Raises ProblemError for a kernel that did not pass, or that cannot be written so, and where a folder of that name is
    there already.
    """
    package = PACKAGES[form]
    _require_taken(attempt, form)
    if backward is not None:
        _require_gradients(form)
        _require_taken(backward.attempt, form)
    out = out or package.place(Path(), _stem(attempt, form))
    match package:
        case TextFile():
            out.write_text(_text(package, attempt, form, licence, backward))
            return out
        case Folder():
            if not package.names_itself and out.exists() and not (package.joins and package.joins(attempt, out)):
                raise ProblemError(f"{out} is there already: name another folder with --out, or remove it.")
            if backward is not None and package.with_gradients is not None:
                written = package.with_gradients(attempt, out, licence, backward)
            else:
                written = package.write(attempt, out, licence)
            if not holds(written, form, attempt):
                raise Internal(f"The format {form} wrote {written} without {CARD}: `card_json(card(...))` makes it.")
            return written
        case _:
            assert_never(package)


def _text(package: TextFile, attempt: Attempt, form: str, licence: Licence | None, backward: Pulled | None) -> str:
    """Return the whole of a file: its text and its evidence."""
    gradients = package.with_gradients
    text = package.text(attempt) if backward is None or gradients is None else gradients(attempt, backward)
    whole = f"{text.rstrip()}\n\n\n{stamp(form, attempt, licence, backward, package.comment)}\n"
    if package.refuse is not None:
        package.refuse(whole)
    return whole


def _stem(attempt: Attempt, form: str) -> str:
    """Return what a package is called where nobody says so, without its suffix: a module's name can be imported."""
    if form == DEFAULT:
        return name_of(attempt)
    is_file = isinstance(PACKAGES[form], TextFile)
    return f"{name_of(attempt)}_{form.replace('-', '_')}" if is_file else f"{name_of(attempt)}-{form}"


def _require_taken(attempt: Attempt, form: str) -> None:
    """Raise ProblemError for a kernel that did not pass, or that a format does not take."""
    candidate, problem = attempt.candidate, attempt.problem
    known = packages_of(candidate)
    if not isinstance(attempt.judged.verdict, Passed):
        raise ProblemError(f"Kernel {candidate.id} was not found right: export one that passed.")
    if form not in known:
        if problem.step is not None:
            raise ProblemError(f"A step of training goes as {' or '.join(known)}, and not as {form}.")
        kind, told = f"{candidate.tier} for {DEVICES[candidate.backend]}", ", ".join([SOURCE, *known])
        raise ProblemError(f"A kernel of the tier {kind} cannot be written as {form}; choose of {told}.")
    if (writes := (*problem.mutated, *problem.written)) and not PACKAGES[form].in_place:
        told = f"{problem.problem.name} writes to {', '.join(writes)}"
        raise ProblemError(f"{told}, and what is written as {form} does not: export it as module.")


def _require_gradients(form: str) -> None:
    """Raise ProblemError for a form that takes no kernel for gradients."""
    known = [name for name, package in PACKAGES.items() if package.with_gradients]
    if form not in known:
        told = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ProblemError(f"A kernel for gradients goes with the form {told}, and not with {form}.")


def content(attempt: Attempt, form: str, licence: Licence | None = None) -> tuple[str, bytes]:
    """Return the name and the bytes of a package as one file, which is a zip unless it is a `TextFile`."""
    with TemporaryDirectory(prefix="rag-kernels-") as folder:
        package, stem = PACKAGES[form], f"{name_of(attempt)}_{form.replace('-', '_')}"
        written = write_package(attempt, form, package.place(Path(folder), stem), licence)
        if isinstance(package, TextFile):
            return written.name, written.read_bytes()
        files = [written] if written.is_file() else sorted(p for p in written.rglob("*") if p.is_file())
        made = io.BytesIO()
        with ZipFile(made, "w", ZIP_DEFLATED) as zipped:
            for file in files:
                zipped.write(file, file.relative_to(written.parent))
        return f"{written.name}.zip", made.getvalue()


def licence_of(archive: Archive, kernel_id: str) -> str:
    """Return the licence of a kernel and whom to name; "" where it is not known."""
    found = archive.kernel(kernel_id)
    return ", ".join(filter(None, (found.licence, found.attribution))) if found else ""
