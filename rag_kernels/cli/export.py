"""`rag-kernels export`: an archived kernel in the form that others load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rag_kernels.cli.shared.busy import busy
from rag_kernels.cli.shared.common import ArchivePlace, Json, emit, read_settings

Form = Literal[
    "module",
    "source",
    "torch-op",
    "wheel",
    "hf-kernels",
    "flashinfer-bench",
    "sol-execbench",
    "gpu-mode",
    "kernelbench",
]


def export(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="The kernel's id, or the beginning of it.")],
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="module: a Python file; source: the kernel as it was judged; torch-op, wheel: a package that imports "
            "nothing of rag-kernels; hf-kernels: for Hugging Face's kernels; flashinfer-bench and sol-execbench: data "
            "sets; "
            "gpu-mode: a submission; kernelbench: a ModelNew that imports torch alone.",
        ),
    ] = "module",
    standalone: Annotated[
        bool, typer.Option("--standalone", help="With --as module: let the file hold the runtime that it imports.")
    ] = False,
    backward: Annotated[
        str | None,
        typer.Option(
            "--backward",
            metavar="KERNEL",
            help="With module, torch-op, wheel or hf-kernels: compute gradients by this kernel, one of "
            "`generate --backward` for the same problem; without it a module's calls that want gradients run the "
            "module, and a package computes again what it needs of them.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PATH", help="A file, or a new folder. [named after the problem]")
    ] = None,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Write an archived kernel in the form in which others load it, with its evidence.

    Example: rag-kernels export k_3f0a --as torch-op
    """
    if standalone and form != "module":
        raise typer.BadParameter("--standalone goes with --as module: the other formats import nothing of rag-kernels.")
    with busy(f"writing {form}"):
        from rag_kernels.archive.store import open_archive
        from rag_kernels.export.packages import export_kernel

        store = open_archive(read_settings(archive=archive).archive or None)
        written = export_kernel(store, kernel, "standalone" if standalone else form, out, backward)
    if as_json:
        emit("exported", {"kernel_id": kernel, "form": form, "out": str(written)})
    else:
        print(f"Written to {written}.")
