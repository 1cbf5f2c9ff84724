"""`rag-kernels archive ...`: look after what is remembered."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rag_kernels.cli import serve
from rag_kernels.cli.shared.common import (
    ArchivePlace,
    DeviceChoice,
    Json,
    columns,
    emit,
    end_politely,
    read_options,
    read_settings,
)
from rag_kernels.cli.shared.grouped_help import PlainCommand
from rag_kernels.text.wording import broken

if TYPE_CHECKING:
    from rag_kernels.archive.protocol import Archive
    from rag_kernels.archive.records import ArchivedKernel
    from rag_kernels.ingest.importers.protocol import Importer
    from rag_kernels.ingest.importers.take import Report

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command(cls=PlainCommand, short_help="Share it with other processes.")(serve.serve)

FACT = 17  # where what is told of a kernel begins
SHOWN = 20  # rows that were left out, in words

KernelId = Annotated[str, typer.Argument(metavar="ID", help="A kernel's id, or enough of its beginning.")]


@app.callback()
def archive() -> None:
    """Show statistics and kernels, export and import, and the health of the archive.

    Example: rag-kernels archive stats
    """


def opened(place: str | None) -> Archive:
    from rag_kernels.archive.store import open_archive

    return open_archive(read_settings(archive=place).archive or None)


def found(store: Archive, kernel_id: str) -> ArchivedKernel:
    from rag_kernels.archive.records import ArchiveError

    kernel = store.kernel(kernel_id)
    if kernel is None:
        raise ArchiveError(f"There is no kernel {kernel_id!r} in this archive; `rag-kernels search` finds some.")
    return kernel


def embed_missing(store: Archive) -> int:
    from rag_kernels.ingest.description.embedder import load_embedder
    from rag_kernels.ingest.description.pipeline import reindex

    return reindex(store, load_embedder(read_settings().embedder))


@app.command(cls=PlainCommand, short_help="Count what it holds.")
def stats(archive: ArchivePlace = None, as_json: Json = False) -> None:
    """Count what the archive holds.

    Example: rag-kernels archive stats
    """
    counts = opened(archive).stats()
    if as_json:
        emit("stats", counts)
    else:
        from rag_kernels.report.console import facts

        print(facts(counts.items()))


@app.command(cls=PlainCommand, short_help="Show a kernel: times, lineage, source.")
def show(kernel: KernelId, archive: ArchivePlace = None, as_json: Json = False) -> None:
    """Show a kernel: its timings, where it came from, and its source.

    Example: rag-kernels archive show k_1f0c
    """
    from rag_kernels.archive.claims import claims_of
    from rag_kernels.report.console import facts
    from rag_kernels.report.json_rows import claim_row, kernel_row

    store = opened(archive)
    shown = found(store, kernel)
    edges = [{"child": e.child, "source": e.source, "relation": e.relation} for e in store.lineage(shown.id)]
    claims = [claim_row(claim) for claim in claims_of(store, shown.id)]
    row = kernel_row(shown)
    if as_json:
        emit(
            "kernel",
            {
                **row,
                "claims": claims,
                "lineage": edges,
                "source": shown.source,
                "functional_source": shown.functional_source,
                "licence": shown.licence,
                "attribution": shown.attribution,
            },
        )
        return
    known = facts((name, value) for name, value in row.items() if value not in ("", None, []))
    print(broken(known, columns(sys.stdout), hang=FACT))
    for claim in claims:
        print("\nclaimed, not measured here:")
        said = facts((name, value) for name, value in claim.items() if value not in ("", None, [], "{}"))
        print(broken(said, columns(sys.stdout), hang=FACT))
    for edge in edges:
        print(f"{edge['child']} <- {edge['relation']} {edge['source']}")
    print(f"\n{shown.functional_source.strip()}\n\n{shown.source}")


@app.command(cls=PlainCommand, short_help="Withdraw a kernel, with a reason.")
def retract(
    kernel: KernelId,
    why: Annotated[str, typer.Option("--why", help="Why nobody should see it again; kept with the kernel.")],
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Withdraw a kernel from retrieval and rankings; nothing is deleted.

    Example: rag-kernels archive retract k_1f0c --why "wrong on denormal inputs"
    """
    store = opened(archive)
    shown = found(store, kernel)
    store.retract(shown.id, why)
    if as_json:
        emit("retracted", {"kernel_id": shown.id, "retracted": why})
    else:
        print(f"{shown.id} ({shown.problem_name}) is retracted: {why}")


@app.command("reindex", cls=PlainCommand, short_help="Embed what lacks a vector; index anew.")
def reindex_all(archive: ArchivePlace = None, as_json: Json = False) -> None:
    """Embed what has no vector yet, and build the vector index anew from DuckDB.

    Example: rag-kernels archive reindex
    """
    store = opened(archive)
    embedded = embed_missing(store)
    count = store.reindex()
    if as_json:
        emit("reindexed", {"indexed": count, "embedded": embedded})
    else:
        print(f"{count} vectors indexed, {embedded} of them new.")


@app.command("export", cls=PlainCommand, short_help="Write kernels into a bundle.")
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
    from rag_kernels.archive.bundle import export
    from rag_kernels.archive.records import KernelFilter

    where = KernelFilter(min_trust=trust, backend=backend)
    counts = export(opened(archive), out, where, licence=licence, attribution=attribution)
    show_counts(counts, f"written to {out}", as_json=as_json, out=str(out))


@app.command("import", cls=PlainCommand, short_help="Take in a bundle or another archive.")
def import_kernels(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A bundle, or what --from says.")],
    source: Annotated[
        Literal["bundle", "folder", "sakana", "kernelbench", "robust-kbench", "gpu-mode"],
        typer.Option(
            "--from",
            help="What PATH is: a bundle that `archive export` wrote; a folder of your own, NAME.cu beside NAME.py; "
            "Parquet files of the AI CUDA Engineer archive; KernelBench runs; robust-kbench tasks; GPU MODE problems.",
        ),
    ] = "bundle",
    problems: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="kernelbench: the folder with level1/, level2/...")
    ] = None,
    filters: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="sakana: a checkout of robust-kbench, for its task filters.")
    ] = None,
    licence: Annotated[str, typer.Option(help="folder, kernelbench: the licence of the kernels, an SPDX name.")] = "",
    attribution: Annotated[str, typer.Option(help="folder, kernelbench: whom to name for them.")] = "",
    trust_bundle: Annotated[
        bool, typer.Option("--trust-bundle", help="Take a bundle's measurements as they are, not as mere claims.")
    ] = False,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Take in kernels of others; they count as claimed until they are judged here.

    Rows that cannot be used are listed with the reason, and cost nothing else. Importing again adds nothing twice.

    Example: rag-kernels archive import --from sakana level_1.parquet
    """
    store = opened(archive)
    if source == "bundle":
        from rag_kernels.archive.bundle import import_bundle

        counts = import_bundle(store, path, trust_bundle=trust_bundle)
        embed_missing(store)
        show_counts(counts, f"taken from {path}", as_json=as_json)
        return
    from rag_kernels.ingest.importers.take import import_from

    report = import_from(store, importer_for(source, problems, filters, licence, attribution), path)
    embed_missing(store)
    show_report(report, path, as_json=as_json)


def importer_for(source: str, problems: Path | None, filters: Path | None, licence: str, attribution: str) -> Importer:
    from rag_kernels.ingest.importers.gpu_mode import GpuMode
    from rag_kernels.ingest.importers.kernel_folder import KernelFolder
    from rag_kernels.ingest.importers.kernelbench_runs import KernelBenchRuns
    from rag_kernels.ingest.importers.robust_kbench import RobustKbench
    from rag_kernels.ingest.importers.sakana import Sakana

    if source == "folder":
        return KernelFolder(licence, attribution)
    if source == "sakana":
        return Sakana(filters)
    if source == "kernelbench":
        return KernelBenchRuns(problems, licence, attribution)
    return RobustKbench() if source == "robust-kbench" else GpuMode()


def show_report(report: Report, path: Path, *, as_json: bool) -> None:
    skipped = [{"where": row.where, "why": row.why} for row in report.skipped]
    if as_json:
        emit("imported", {"read": report.read, **report.new, "skipped": skipped})
        return
    for row in skipped[:SHOWN]:
        print(f"left out: {row['where']}: {row['why']}")
    if len(skipped) > SHOWN:
        print(f"left out: {len(skipped) - SHOWN} more; --json lists all.")
    print(
        f"{report.read} rows read from {path}, {len(skipped)} left out: {report.new['claims']} new claims, "
        f"{report.new['kernels']} new kernels, {report.new['problems']} new problems. `rag-kernels archive "
        "functionalize` works out what the new problems compute."
    )


@app.command(cls=PlainCommand, short_help="Trace imported problems.")
def functionalize(
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Problems at a time; by default one a CPU core.")
    ] = None,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Work out the functional form of imported problems, once for each, by running their code in child processes.

    Until then their kernels are found by the text of their source. A problem for which it fails keeps that text, with
    the reason beside it.

    Example: rag-kernels archive functionalize --jobs 2
    """
    import os

    from rag_kernels.ingest.description.embedder import load_embedder
    from rag_kernels.ingest.functional.functionalize import open_workers
    from rag_kernels.ingest.importers.take import functionalize_imported

    store, embedder = opened(archive), load_embedder(read_settings().embedder)
    done = failed = 0
    with open_workers() as workers:
        for row in functionalize_imported(store, embedder, workers=workers, jobs=jobs or len(os.sched_getaffinity(0))):
            done, failed = done + row.ok, failed + (not row.ok)
            if as_json:
                emit("form", {"problem": row.name, "ok": row.ok, "reason": row.reason, "seconds": row.seconds})
            else:
                print(f"{row.name}: {'ok' if row.ok else row.reason}", flush=True)
    if not as_json:
        print(f"{done} problems functionalized, {failed} not.")


@app.command(cls=PlainCommand, short_help="What helps against which bottleneck.")
def cards(
    card: Annotated[str | None, typer.Argument(metavar="[ID]", help="One card, whole, with its evidence.")] = None,
    distil: Annotated[
        bool, typer.Option("--distil", help="First look through the lineage for evidence and for new cards.")
    ] = False,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """List cards of technique: what helps against which bottleneck, and what it gained in this archive.

    `--retrieval hybrid+cards` shows writers those that fit. A card without evidence here weighs half, and one that does
    not help loses weight.

    Example: rag-kernels archive cards --distil
    """
    from rag_kernels.archive.records import ArchiveError
    from rag_kernels.archive.techniques import known_techniques
    from rag_kernels.report.technique_report import card_row, card_text, cards_text
    from rag_kernels.retrieval.distil import distil as look_through

    store = opened(archive)
    if distil or not known_techniques(store):
        new, proofs = look_through(store)
        if not as_json:
            print(f"{new} new cards, {proofs} new proofs.")
    known = [one for one in known_techniques(store) if one.technique.id.startswith(card or "")]
    if not known:
        raise ArchiveError(f"There is no card {card!r} in this archive; `rag-kernels archive cards` lists them.")
    if as_json:
        for one in known:
            emit("card", card_row(one))
    else:
        print(card_text(known[0]) if card and len(known) == 1 else cards_text(known))


@app.command(cls=PlainCommand, short_help="Check ids, links and the index.")
def verify(archive: ArchivePlace = None, as_json: Json = False) -> None:
    """Check that every id is that of its content, every reference leads somewhere, and the vector index agrees.

    An index that is behind is brought up to date first, as every search does.

    Example: rag-kernels archive verify
    """
    from rag_kernels.archive.audit import verify as audit

    store = opened(archive)
    store.catch_up()
    wrong = audit(store)
    if as_json:
        emit("audit", {"ok": not wrong, "wrong": wrong})
    else:
        print("\n".join(wrong) or "Everything is what it says it is.")
    raise typer.Exit(1 if wrong else 0)


@app.command(cls=PlainCommand, short_help="Judge kernels again on this machine.")
def reverify(
    kernels: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Only these kernels; enough of an id's beginning.")
    ] = None,
    device: DeviceChoice = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is up to date: after a new driver, compiler or PyTorch.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="No more than N kernels.")] = None,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Judge archived kernels again on this machine, and mark as stale what does not hold.

    Kernels that this version of the judge has judged on this device are left out; it may be killed and started again.
    Exit code: 0 when everything holds, 1 when something is stale, fails here or could not be judged.

    Example: rag-kernels archive reverify --device cuda
    """
    from rag_kernels.archive.recheck import due
    from rag_kernels.eval.judge import JUDGE_VERSION
    from rag_kernels.report.json_rows import reverified_row
    from rag_kernels.run import reverify as again
    from rag_kernels.wiring import open_session, target_backend

    store = opened(archive)
    chosen = [found(store, kernel_id).id for kernel_id in kernels] if kernels else None
    options = read_options(device=device, archive=archive)
    again.require_device(target_backend(options))
    end_politely()
    rows = []
    with open_session(options) as session:
        left = due(store, session.judge.device, JUDGE_VERSION, kernel_ids=chosen, everything=everything)[:limit]
        for result in again.reverify(left, archive=store, judge=session.judge, functionalize=session.functionalize):
            rows.append(reverified_row(result))
            show_reverified(rows[-1], as_json=as_json)
    counts = Counter(row["state"] for row in rows)
    if not as_json:
        print(f"{len(rows)} kernels: {', '.join(f'{n} {state}' for state, n in counts.items()) or 'all up to date'}.")
    raise typer.Exit(0 if set(counts) <= {"holds"} else 1)


def show_reverified(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit("reverified", row)
        return
    from rag_kernels.text.wording import times

    speed = "" if row["speedup"] is None else f", {times(row['speedup'], at_least=row['at_least'])}"
    reason = f" ({row['reason']})" if row["reason"] else ""
    print(f"{row['kernel_id']} {row['problem']}: {row['state']}{speed}{reason}", flush=True)


def show_counts(counts: dict[str, int], what: str, *, as_json: bool, **extra: str) -> None:
    if as_json:
        emit("bundle", {**counts, **extra})
    else:
        print(f"{counts.get('kernels', 0)} kernels, {counts.get('evaluations', 0)} evaluations {what}.")
