"""`rag-kernels generate`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.common import Backward, Json, emit, end_politely, writable_out
from rag_kernels.cli.flags import with_search_flags

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from rag_kernels.archive.records import Attempt
    from rag_kernels.options import Options


@with_search_flags()
def generate(
    problem: Annotated[
        Path, typer.Argument(metavar="PROBLEM", help="A KernelBench file: Model, get_inputs, get_init_inputs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the winner: a .py module with ModelNew, or .cpp/.cu source."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with this run of the problem, or `latest`.")
    ] = None,
    backward: Backward = False,
    *,
    options: Options,
    as_json: Json = False,
) -> None:
    """Write a faster kernel for a PyTorch module, prove it right, time it and archive it.

    Example: rag-kernels generate examples/softmax_scale.py --device cpu --out best.py
    """
    from rag_kernels.eval.problem import load_problem
    from rag_kernels.export.formats import out_suffixes, write_kernel
    from rag_kernels.ingest.gradients import load_backward
    from rag_kernels.report.json_rows import result_row
    from rag_kernels.run.standings import winner
    from rag_kernels.wiring import open_session, possible_backends

    writable_out(out, out_suffixes(possible_backends(options)))
    loaded = load_backward(problem) if backward else load_problem(problem)
    end_politely()
    with open_session(options) as session:
        run = session.old_run(resume, loaded) if resume else session.new_run("generate", loaded)
        why: list[str] = []
        _, finished = watch(noting(session.generate(loaded, run), why), loaded.name, as_json=as_json)
        attempts = session.archive.attempts(run.id)
    best = winner(attempts)
    written = str(write_kernel(best, out)) if best and out else None
    ended = why[0] if why else "it was interrupted before the first one was there."
    row = result_row(attempts, run_id=run.id, problem=loaded.name, out=written, why=ended)
    show_result(row, as_json=as_json)
    if not finished:
        again = f"{problem}{' --backward' if backward else ''} --resume {run.id}"
        print(f"Interrupted; go on with: rag-kernels generate {again}", file=sys.stderr)
        raise typer.Exit(130)
    raise typer.Exit(0 if best else 1)


def noting(attempts: Generator[Attempt, None, str], why: list[str]) -> Iterator[Attempt]:
    """Yield attempts, and note why they ended."""
    why.append((yield from attempts))


def watch(attempts: Iterator[Attempt], title: str, *, as_json: bool, brief: bool = False) -> tuple[list[Attempt], bool]:
    """Show attempts as they are judged; False beside them when Ctrl-C or a kill ended them early.

    In brief only what is waited for is shown, and that on a terminal alone.
    """
    from rich.console import Console

    from rag_kernels.report.console import attempts_table, waiting_line
    from rag_kernels.report.json_rows import attempt_row

    console = Console(stderr=as_json)
    seen: list[Attempt] = []
    try:
        with waiting_line(console) if brief else attempts_table(console, title) as show:
            for attempt in attempts:
                seen.append(attempt)
                if as_json:
                    emit("attempt", attempt_row(attempt))
                if not as_json or console.is_terminal:
                    show(attempt)
    except KeyboardInterrupt:
        return seen, False
    return seen, True


def show_result(row: dict[str, Any], *, as_json: bool) -> None:
    from rag_kernels.report.console import summary

    if as_json:
        emit("result", row)
    else:
        print(summary(row))
