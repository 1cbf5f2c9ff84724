"""An archived kernel in the form that others load: one function for all formats, for the command line and for Python.

Comes in: an archive, a kernel's id and a format. Goes out: a file or a folder. `PACKAGES` are all formats
that know their evidence; `formats` has those that `generate --out` chooses among.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt
from rag_kernels.eval.build.step_form import is_step
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Candidate
from rag_kernels.export.backward import pulled_of
from rag_kernels.export.card import Licence
from rag_kernels.export.evidence import Pulled, evidence
from rag_kernels.export.formats import FORMATS, formats_of
from rag_kernels.export.forms.bench_sets import write_flashinfer_bench, write_sol_execbench
from rag_kernels.export.forms.gpu_mode import write_gpu_mode
from rag_kernels.export.forms.hf_kernels import joins, write_hf_kernels
from rag_kernels.export.forms.kernelbench import write_kernelbench
from rag_kernels.export.forms.module_file import write_module
from rag_kernels.export.forms.standalone import write_standalone
from rag_kernels.export.forms.torch_op_package import name_of, write_torch_op
from rag_kernels.export.forms.wheel import write_wheel


@dataclass(frozen=True, slots=True)
class Package:
    """One format. `suffix` is that of its file, "" for a folder; `tiers` and `backends` are those that it takes.

    `pulled` writes it with a kernel for the gradients, where it can be.
    """

    told: str
    write: Callable[[Attempt, Path, Licence | None], Path]
    suffix: str = ""
    tiers: tuple[str, ...] = ("kernel",)
    backends: tuple[str, ...] = ("cpu", "cuda")
    pulled: Callable[[Attempt, Path, Licence | None, Pulled], Path] | None = None
    joins: Callable[[Attempt, Path], bool] = lambda attempt, out: False  # goes into a folder that is there


BOTH = ("kernel", "composed")
PACKAGES: dict[str, Package] = {
    "module": Package("a Python file that imports rag-kernels", write_module, ".py", BOTH, pulled=write_module),
    "standalone": Package("the same without an import of ours", write_standalone, ".py", BOTH, pulled=write_standalone),
    "torch-op": Package("a package with a torch operator", write_torch_op, pulled=write_torch_op),
    "wheel": Package("the same for pip, for machines without a compiler", write_wheel, ".whl", pulled=write_wheel),
    "hf-kernels": Package(
        "a folder for Hugging Face's kernels", write_hf_kernels, pulled=write_hf_kernels, joins=joins
    ),
    "flashinfer-bench": Package("a data set for flashinfer-bench", write_flashinfer_bench, tiers=BOTH),
    "sol-execbench": Package("a problem's folder for SOL-ExecBench", write_sol_execbench, backends=("cuda",)),
    "gpu-mode": Package("a submission to GPU MODE", write_gpu_mode, ".py", BOTH),
    "kernelbench": Package("a ModelNew for KernelBench's evaluator", write_kernelbench, ".py", BOTH),
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
    if form == "source":
        return FORMATS[form].write(attempt, out or Path(f"{name_of(attempt)}{formats_of(candidate)[form]}"))
    if form not in packages_of(candidate):
        told = ", ".join(["source", *packages_of(candidate)])
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
        middle = "" if form == "module" else f"-{form}" if not package.suffix else f"_{form}"
        out = Path() if form == "wheel" else Path(f"{name_of(attempt)}{middle.replace('gpu-', 'gpu_')}{package.suffix}")
    if not package.suffix and out.exists() and not package.joins(attempt, out):
        raise ProblemError(f"{out} is there already: name another folder with --out, or remove it.")
    if backward is not None and package.pulled is not None:
        return package.pulled(attempt, out, licence, backward)
    return package.write(attempt, out, licence)


def _require_pulled(form: str) -> None:
    """Raise ProblemError for a form that takes no kernel for gradients."""
    known = [name for name, package in PACKAGES.items() if package.pulled]
    if form not in known:
        told = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ProblemError(f"A kernel for gradients goes with the form {told}, and not with {form}.")


def content(attempt: Attempt, form: str, licence: Licence | None = None) -> tuple[str, bytes]:
    """Return the name and the bytes of a package as one file: folders are zipped, and wheels, whose names count."""
    with TemporaryDirectory(prefix="rag-kernels-") as folder:
        suffix = PACKAGES[form].suffix
        place = (
            Path(folder) if form == "wheel" else Path(folder) / f"{name_of(attempt)}_{form.replace('-', '_')}{suffix}"
        )
        written = write_package(attempt, form, place, licence)
        if written.suffix == ".py":
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
