"""`rag-kernels replay`: repeat a recorded run without a model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rag_kernels.cli.shared.common import ArchivePlace, Json, emit, end_politely, read_settings


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or `latest`.")],
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Repeat a recorded run without a model and without a network; say where it comes out another way.

    The writer is told what it was told and hears what it heard; what it drafts is judged again, on this machine.

    Exit code: 0 when candidates and verdicts are the same, 1 when some are not.

    Example: rag-kernels replay latest
    """
    from dataclasses import replace

    from rag_kernels.archive.store import open_archive
    from rag_kernels.budget import Ledger
    from rag_kernels.long_runs.replay import Differs, RecordedModel, find_run, recorded_options
    from rag_kernels.long_runs.replay import replay as repeat
    from rag_kernels.records import Budget
    from rag_kernels.report.console import replayed_line
    from rag_kernels.report.json_rows import replayed_row
    from rag_kernels.wiring import open_session

    settings = read_settings(archive=archive)
    store = open_archive(settings.archive or None)
    known = find_run(store.runs(limit=100_000), run)
    model = RecordedModel(store.calls(known.id))
    options = replace(recorded_options(known), archive=settings.archive, cache=settings.cache)
    rows, judged = [], 0
    end_politely()
    try:
        with open_session(options, model=model) as session:
            writer = session.make_writer(Ledger(Budget()))
            for event in repeat(known, session, writer=writer, model=model):
                if isinstance(event, Differs):
                    kind, row = "differs", {"difference": event.what}
                else:
                    kind, row = "replayed", replayed_row(event)
                rows.append(row)
                judged += kind == "replayed"
                if as_json:
                    emit(kind, row)
                else:
                    print(replayed_line(row), flush=True)
    except KeyboardInterrupt:
        print("Interrupted: what was replayed so far is above.", file=sys.stderr)
        raise typer.Exit(130) from None
    different = sum(1 for row in rows if row["difference"])
    if as_json:
        emit("replay_summary", {"run_id": known.id, "judgements": judged, "differences": different})
    else:
        print(f"Run {known.id}: {judged} judgements repeated, {different or 'no'} differences.")
    raise typer.Exit(1 if different else 0)
