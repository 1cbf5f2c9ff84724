"""The files in which a kernel can be taken along, from the one dictionary of formats.

Comes in: a kernel, the attempt that brought it, its problem. Goes out: names and contents. Knows nothing of pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.app import values
from rag_kernels.archive.records import ArchivedKernel, Attempt
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.eval.source_form import form_of
from rag_kernels.export.formats import FORMATS, content, formats_of


@dataclass(frozen=True, slots=True)
class File:
    """Hold one file to take along."""

    label: str
    told: str
    name: str
    content: bytes


def of_kernel(kernel: ArchivedKernel, made: Attempt | None, known: FunctionalProblem | None) -> list[File]:
    """Return the kernel in every format that it can be written in; one that was imported has its source alone."""
    short = values.short(kernel.id)
    own = File("Kernel", "Its source as it was judged.", f"{short}{form_of(kernel.candidate).suffix}", b"")
    files = [File(own.label, own.told, own.name, kernel.source.encode())]
    if known is not None:
        files.append(File("Problem", "The module that it replaces.", "problem.py", known.problem.source.encode()))
    if made is not None:
        files += [
            File(FORMATS[name].label, FORMATS[name].told, f"{short}_{name}{suffix}", content(name, made))
            for name, suffix in formats_of(kernel.candidate).items()
            if name != "source"  # which needs no attempt, and stands first
        ]
    return files


def snippet(file: str) -> str:
    """Return how a module file is used in a program."""
    module = file.removesuffix(".py")
    return (
        f"from {module} import ModelNew, get_init_inputs, get_inputs\n\n"
        "model = ModelNew(*get_init_inputs()).eval()  # takes the place of Model: the same arguments and parameters\n"
        "print(model(*get_inputs()))\n"
        "print(model.kernel_used, model.kernel_reason)  # whether this call took the kernel, and if not, why\n"
    )
