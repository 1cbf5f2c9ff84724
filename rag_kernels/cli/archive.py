"""`rag-kernels archive ...`: look after what is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rag_kernels.cli.common import ArchivePlace, Json, emit, read_settings

if TYPE_CHECKING:
    from archive.duck import DuckArchive
    from archive.records import ArchivedKernel

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

KernelId = Annotated[str, typer.Argument(metavar="ID", help="A kernel's id, or enough of its beginning.")]


@app.callback()
def archive() -> None:
    """Statistics, kernels, export and import, and the health of the archive.

    Example: rag-kernels archive stats
    """


def opened(place: str | None) -> DuckArchive:
    from archive.store import open_archive

    return open_archive(read_settings(archive=place).archive or None)


def found(store: DuckArchive, kernel_id: str) -> ArchivedKernel:
    from archive.records import ArchiveError

    kernel = store.kernel(kernel_id)
    if kernel is None:
        raise ArchiveError(f"There is no kernel {kernel_id!r} in this archive; `rag-kernels search` finds some.")
    return kernel


def embed_missing(store: DuckArchive) -> int:
    from ingest.embedder import load_embedder
    from ingest.pipeline import reindex

    return reindex(store, load_embedder(read_settings().embedder))


@app.command()
def stats(archive: ArchivePlace = None, as_json: Json = False) -> None:
    """Count what the archive holds.

    Example: rag-kernels archive stats
    """
    counts = opened(archive).stats()
    if as_json:
        emit(counts)
    else:
        from rag_kernels.report import facts

        print(facts(counts.items()))


@app.command()
def show(kernel: KernelId, archive: ArchivePlace = None, as_json: Json = False) -> None:
    """Show a kernel: its timings, where it came from, and its source.

    Example: rag-kernels archive show k_1f0c
    """
    from rag_kernels.report import facts
    from rag_kernels.rows import kernel_row

    store = opened(archive)
    shown = found(store, kernel)
    edges = [{"child": e.child, "source": e.source, "relation": e.relation} for e in store.lineage(shown.id)]
    row = kernel_row(shown)
    if as_json:
        emit({**row, "lineage": edges, "source": shown.source, "functional_source": shown.functional_source,
              "licence": shown.licence, "attribution": shown.attribution})  # fmt: skip
        return
    print(facts((name, value) for name, value in row.items() if value not in ("", None, [])))
    for edge in edges:
        print(f"{edge['child']} <- {edge['relation']} {edge['source']}")
    print(f"\n{shown.functional_source.strip()}\n\n{shown.source}")


@app.command()
def retract(
    kernel: KernelId,
    reason: Annotated[
        str, typer.Argument(metavar="REASON", help="Why nobody should see it again; kept with the kernel.")
    ],
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Withdraw a kernel from retrieval and rankings; nothing is deleted.

    Example: rag-kernels archive retract k_1f0c "wrong on denormal inputs"
    """
    store = opened(archive)
    shown = found(store, kernel)
    store.retract(shown.id, reason)
    if as_json:
        emit({"kernel_id": shown.id, "retracted": reason})
    else:
        print(f"{shown.id} ({shown.problem_name}) is retracted: {reason}")


@app.command("reindex")
def reindex_all(archive: ArchivePlace = None, as_json: Json = False) -> None:
    """Embed what has no vector yet, and build the vector index anew from DuckDB.

    Example: rag-kernels archive reindex
    """
    store = opened(archive)
    embedded = embed_missing(store)
    count = store.reindex()
    if as_json:
        emit({"indexed": count, "embedded": embedded})
    else:
        print(f"{count} vectors indexed, {embedded} of them new.")


@app.command("export")
def export_bundle(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .zip file, or a new folder.")],
    trust: Annotated[
        Literal["claimed", "compiled", "verified", "confirmed"], typer.Option(help="Kernels of this tier or above.")
    ] = "verified",
    backend: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="Only kernels for this device.")] = None,
    licence: Annotated[str, typer.Option(help="For kernels that have none: an SPDX name.")] = "",
    attribution: Annotated[str, typer.Option(help="For kernels that have none: whom to thank.")] = "",
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Write kernels with their evaluations and lineage, to hand to someone else.

    Example: rag-kernels archive export kernels.zip --licence Apache-2.0
    """
    from archive.bundle import export
    from archive.records import KernelFilter

    where = KernelFilter(min_trust=trust, backend=backend)
    counts = export(opened(archive), out, where, licence=licence, attribution=attribution)
    show_counts(counts, f"written to {out}", as_json=as_json, out=str(out))


@app.command("import")
def import_kernels(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `archive export` wrote.")],
    trust_bundle: Annotated[
        bool, typer.Option("--trust-bundle", help="Take its measurements as they are, not as mere claims.")
    ] = False,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Take in a bundle; its kernels count as claimed until they are judged here.

    Example: rag-kernels archive import kernels.zip
    """
    from archive.bundle import import_bundle

    store = opened(archive)
    counts = import_bundle(store, bundle, trust_bundle=trust_bundle)
    embed_missing(store)
    show_counts(counts, f"taken from {bundle}", as_json=as_json)


@app.command()
def verify(archive: ArchivePlace = None, as_json: Json = False) -> None:
    """Check that every id is that of its content and every reference leads somewhere.

    Example: rag-kernels archive verify
    """
    from archive.audit import verify as audit

    wrong = audit(opened(archive))
    if as_json:
        emit({"ok": not wrong, "wrong": wrong})
    else:
        print("\n".join(wrong) or "Everything is what it says it is.")
    raise typer.Exit(1 if wrong else 0)


def show_counts(counts: dict[str, int], what: str, *, as_json: bool, **extra: str) -> None:
    if as_json:
        emit({**counts, **extra})
    else:
        print(f"{counts.get('kernels', 0)} kernels, {counts.get('evaluations', 0)} evaluations {what}.")
