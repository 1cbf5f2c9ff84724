"""The files in which a kernel can be taken along, from the one dictionary of formats.

Comes in: a kernel, what it rests on, its problem. Goes out: names, and contents that are made when they are asked for.
Knows nothing of pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rag_kernels.app import values
from rag_kernels.archive.records import ArchivedKernel, Attempt
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.eval.source_form import form_of
from rag_kernels.export.card import Licence
from rag_kernels.export.packages import PACKAGES, content, packages_of


@dataclass(frozen=True, slots=True)
class File:
    """Hold one file to take along; some are built, which takes a compiler a few seconds."""

    label: str
    told: str
    name: str
    content: Callable[[], bytes]


def of_kernel(
    kernel: ArchivedKernel, evidence: Attempt | None, known: FunctionalProblem | None, licence: Licence
) -> list[File]:
    """Return the kernel in every format that it can be written in; one that nothing speaks for has its source alone."""
    short = values.short(kernel.id)
    suffix = form_of(kernel.candidate).suffix
    files = [File("Kernel", "Its source as it was judged.", f"{short}{suffix}", kernel.source.encode)]
    if known is not None:
        files.append(File("Problem", "The module that it replaces.", "problem.py", known.problem.source.encode))
    if evidence is not None:
        files += [
            File(form, f"{PACKAGES[form].told[:1].upper()}{PACKAGES[form].told[1:]}.", _name(short, form),
                 partial(_content, evidence, form, licence))
            for form in packages_of(kernel.candidate)
        ]  # fmt: skip
    return files


def _name(short: str, form: str) -> str:
    suffix = PACKAGES[form].suffix
    return f"{short}_{form.replace('-', '_')}{suffix if suffix == '.py' else '.zip'}"


def _content(evidence: Attempt, form: str, licence: Licence) -> bytes:
    return content(evidence, form, licence)[1]


def snippet(file: str) -> str:
    """Return how a module file is used in a program."""
    module = file.removesuffix(".py")
    return (
        f"from {module} import ModelNew, get_init_inputs, get_inputs\n\n"
        "model = ModelNew(*get_init_inputs()).eval()  # takes the place of Model: the same arguments and parameters\n"
        "print(model(*get_inputs()))\n"
        "print(model.kernel_used, model.kernel_reason)  # whether this call took the kernel, and if not, why\n"
    )
