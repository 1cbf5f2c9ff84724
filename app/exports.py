"""The files in which a kernel can be taken along, from the dictionaries of formats: a new one shows by itself.

Comes in: an archive, a kernel, its problem. Goes out: names, and functions that make the contents. Knows nothing of
pages.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from rag_kernels.app import values
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.records import ArchivedKernel, ArchiveError, Attempt
from rag_kernels.eval.errors import MachineError, ProblemError
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.eval.source_form import form_of
from rag_kernels.export.evidence import evidence
from rag_kernels.export.format_names import formats
from rag_kernels.export.package import TextFile
from rag_kernels.export.packages import PACKAGES, content, licence_of, packages_of

ZIP = ".zip"


@dataclass(frozen=True, slots=True)
class File:
    """Hold one file to take along. `content` makes it, which may take a while (some formats build); it raises
    ProblemError where this very kernel cannot be written so.
    """

    label: str
    told: str
    name: str
    content: Callable[[], bytes]
    form: str = ""  # of `PACKAGES`

    def content_or_why(self) -> bytes:
        """Return the content, or a file that says why there is none, for whoever has clicked on it already."""
        try:
            return self.content()
        except (ProblemError, MachineError) as error:
            return f"# {error}\n".encode() if self.is_text else in_zip("WHY_NOT.txt", f"{error}\n".encode())

    @property
    def is_text(self) -> bool:
        """Return whether it is one file as it is, which is made at once; others are zips."""
        return Path(self.name).suffix != ZIP


def of_kernel(
    archive: DuckArchive,
    kernel: ArchivedKernel,
    known: FunctionalProblem | None,
    licence: Callable[[str], str] | None = None,
) -> list[File]:
    """Return the kernel in every format that it can be written in; `licence` tells that of a kernel that led to it.

    One that was withdrawn, or that nothing is measured of, has its source alone.
    """
    licence = licence or cache(partial(licence_of, archive))
    short = values.short(kernel.id)
    source = f"{short}{form_of(kernel.candidate).suffix}"
    files = [File("kernel", "Its source as it was judged.", source, kernel.source.encode)]
    if known is not None:
        files.append(
            File("problem", "The module that it replaces.", f"{short}_problem.py", known.problem.source.encode)
        )
    made = _evidence(archive, kernel.id)
    for form in packages_of(made.candidate) if made is not None else ():
        assert made is not None
        package = PACKAGES[form]
        name = f"{short}_{form.replace('-', '_')}{package.suffix if isinstance(package, TextFile) else ZIP}"
        write = partial(_content, made, form, licence)
        told = formats()[form].told
        files.append(File(form, f"{told[:1].upper()}{told[1:]}.", name, write, form))
    return files


def _evidence(archive: DuckArchive, kernel_id: str) -> Attempt | None:
    try:
        return evidence(archive, kernel_id)
    except (ArchiveError, ProblemError):
        return None


def _content(made: Attempt, form: str, licence: Callable[[str], str]) -> bytes:
    return content(made, form, licence)[1]


def in_zip(name: str, written: bytes) -> bytes:
    """Return a zip that holds one file."""
    made = io.BytesIO()
    with ZipFile(made, "w", ZIP_DEFLATED) as packed:
        packed.writestr(name, written)
    return made.getvalue()


def snippet(file: str) -> str:
    """Return how a module file is used in a program."""
    module = file.removesuffix(".py")
    return (
        f"from {module} import ModelNew, get_init_inputs, get_inputs\n\n"
        "model = ModelNew(*get_init_inputs()).eval()  # takes the place of Model: the same arguments and parameters\n"
        "print(model(*get_inputs()))\n"
        "print(model.kernel_used, model.kernel_reason)  # whether this call took the kernel, and if not, why\n"
    )
