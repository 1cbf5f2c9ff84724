"""An archived kernel in the form that others load: one function for all formats, for the command line and for Python.

Comes in: an archive, a kernel's id and a format. Goes out: a file or a folder. `PACKAGES` has every file of `forms`
whose first line names a format.
"""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt
from rag_kernels.eval.build.step_form import is_step
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Candidate
from rag_kernels.eval.source_form import form_of
from rag_kernels.export import forms
from rag_kernels.export.backward import pulled_of
from rag_kernels.export.card import Licence
from rag_kernels.export.evidence import Pulled, evidence
from rag_kernels.export.format_names import DEFAULT, SOURCE, formats
from rag_kernels.export.forms.source_file import write_source
from rag_kernels.export.forms.torch_op_package import name_of
from rag_kernels.export.package import Package

PACKAGES: dict[str, Package] = {
    name: import_module(f"{forms.__name__}.{named.file}").PACKAGE for name, named in formats().items()
}


def packages_of(candidate: Candidate) -> list[str]:
    """Return the names of the packages that a candidate can be written as, by its tier and backend.

    A step of training goes where a kernel for gradients goes.
    """
    found = [name for name, p in PACKAGES.items() if candidate.tier in p.tiers and candidate.backend in p.backends]
    return [name for name in found if PACKAGES[name].pulled] if is_step(candidate) else found


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
        _require_pulled(form)
    if form == SOURCE:
        return write_source(attempt, out or Path(f"{name_of(attempt)}{form_of(candidate).suffix}"))
    if form not in packages_of(candidate):
        told = ", ".join([SOURCE, *packages_of(candidate)])
        kind = f"{candidate.tier} for {candidate.backend}"
        raise ProblemError(f"A kernel of the tier {kind} cannot be written as {form}; choose of {told}.")
    pulled = pulled_of(attempt, evidence(archive, backward)) if backward else None
    return write_package(attempt, form, out, lambda kernel: licence_of(archive, kernel), pulled)


def write_package(
    attempt: Attempt, form: str, out: Path | None, licence: Licence | None = None, backward: Pulled | None = None
) -> Path:
    """Write an attempt as one of `PACKAGES`; raises ProblemError where a folder of that name is there already."""
    package = PACKAGES[form]
    known = packages_of(attempt.candidate)
    if attempt.problem.step is not None and form not in known:
        raise ProblemError(f"A step of training goes as {' or '.join(known)}, and not as {form}.")
    if backward is not None:
        _require_pulled(form)
    if out is None:
        out = Path() if package.names_itself else Path(_file_name(attempt, form))
    if not package.suffix and out.exists() and not (package.joins and package.joins(attempt, out)):
        raise ProblemError(f"{out} is there already: name another folder with --out, or remove it.")
    if backward is not None and package.pulled is not None:
        return package.pulled(attempt, out, licence, backward)
    return package.write(attempt, out, licence)


def _file_name(attempt: Attempt, form: str) -> str:
    """Return what a package is called where nobody says so: a Python file's name can be imported."""
    if form == DEFAULT:
        return f"{name_of(attempt)}{PACKAGES[form].suffix}"
    suffix = PACKAGES[form].suffix
    return f"{name_of(attempt)}_{form.replace('-', '_')}{suffix}" if suffix else f"{name_of(attempt)}-{form}"


def _require_pulled(form: str) -> None:
    """Raise ProblemError for a form that takes no kernel for gradients."""
    known = [name for name, package in PACKAGES.items() if package.pulled]
    if form not in known:
        told = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ProblemError(f"A kernel for gradients goes with the form {told}, and not with {form}.")


def content(attempt: Attempt, form: str, licence: Licence | None = None) -> tuple[str, bytes]:
    """Return the name and the bytes of a package as one file, which is a zip unless it goes `as_it_is`."""
    with TemporaryDirectory(prefix="rag-kernels-") as folder:
        package, stem = PACKAGES[form], f"{name_of(attempt)}_{form.replace('-', '_')}"
        place = Path(folder) / ("" if package.names_itself else f"{stem}{package.suffix}")
        written = write_package(attempt, form, place, licence)
        if package.as_it_is:
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
