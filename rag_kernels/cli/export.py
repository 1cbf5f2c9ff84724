"""`rag-kernels export`: an archived kernel in the form that others load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rag_kernels.cli.shared.busy import busy
from rag_kernels.cli.shared.common import ArchivePlace, Json, emit, read_settings
from rag_kernels.export.format_names import DEFAULT, SOURCE, formats

TOLD = {name: named.told for name, named in formats().items()} | {SOURCE: "the kernel as it was judged"}
if TYPE_CHECKING:
    Form = str
else:
    Form = Literal[tuple(TOLD)]


def export(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="The kernel's id, or the beginning of it.")],
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help=f"{'; '.join(f'{name}: {told}' for name, told in TOLD.items())}.",
        ),
    ] = DEFAULT,
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
    if standalone and form not in (DEFAULT, "standalone"):
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
