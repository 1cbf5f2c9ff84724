"""An archived kernel in the form that others load: one function for all formats, for the command line and for Python.

Comes in: an archive, a kernel's id and a format. Goes out: a file or a folder. `PACKAGES` are the formats that are
folders; those that are files are in `formats`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rag_kernels.archive import browse
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt
from rag_kernels.eval.errors import ProblemError
from rag_kernels.export.card import Licence
from rag_kernels.export.formats import FORMATS, formats_of
from rag_kernels.export.hf_kernels import write_hf_kernels
from rag_kernels.export.torch_op_package import name_of, write_torch_op

PACKAGES: dict[str, Callable[[Attempt, Path, Licence], Path]] = {
    "torch-op": write_torch_op,
    "hf-kernels": write_hf_kernels,
}


def export_kernel(archive: Archive, kernel_id: str, form: str, out: Path | None = None) -> Path:
    """Write an archived kernel as `form`, one of `FORMATS` and `PACKAGES`; return the file or folder.

    Without `out` it is named after the problem, in the working folder. Raises ProblemError where there is no such
    kernel, where it cannot be written so, and where a folder of that name is there already.
    """
    known = archive.kernel(kernel_id)
    attempt = browse.origin(archive, known.id) if known else None
    if known is None or attempt is None:
        raise ProblemError(f"The archive has no judged kernel {kernel_id}; `rag-kernels search` finds ids.")
    if known.retracted:
        raise ProblemError(f"Kernel {known.id} was withdrawn: {known.retracted}")
    if form in FORMATS:
        suffix = formats_of(attempt.candidate).get(form)
        if suffix is None:
            told = ", ".join((*formats_of(attempt.candidate), *PACKAGES))
            raise ProblemError(f"A kernel of the tier {known.tier} cannot be written as {form}; choose of {told}.")
        return FORMATS[form].write(attempt, out or Path(f"{name_of(attempt)}{suffix}"))
    out = out or Path(f"{name_of(attempt)}-{form}")
    if out.exists():
        raise ProblemError(f"{out} is there already: name another folder with --out, or remove it.")
    return PACKAGES[form](attempt, out, lambda kernel: _licence(archive, kernel))


def _licence(archive: Archive, kernel_id: str) -> str:
    found = archive.kernel(kernel_id)
    return ", ".join(filter(None, (found.licence, found.attribution))) if found else ""
