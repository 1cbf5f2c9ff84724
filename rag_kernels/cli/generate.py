"""`rag-kernels generate`: the main job."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.common import Backward, Json, emit, end_politely, writable_out
from rag_kernels.cli.flags import with_search_flags

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from rag_kernels.archive.records import Attempt
    from rag_kernels.eval.records import Problem
    from rag_kernels.options import Options


@with_search_flags()
def generate(
    problem: Annotated[
        Path,
        typer.Argument(
            metavar="PROBLEM",
            help="A KernelBench file (Model, get_inputs, get_init_inputs), a FlashInfer-Bench Definition (.json), or a "
            "module of your own: mymodel.py:Block.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the winner: a .py module with ModelNew, or .cpp/.cu source."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with this run of the problem, or `latest`.")
    ] = None,
    backward: Backward = False,
    inputs: Annotated[
        str,
        typer.Option("--inputs", metavar="ARGS", help='What mymodel.py:Block is called with: "torch.randn(8, 512)".'),
    ] = "",
    init: Annotated[
        str, typer.Option("--init", metavar="ARGS", help='What mymodel.py:Block is made with: "512, heads=8".')
    ] = "",
    *,
    options: Options,
    as_json: Json = False,
) -> None:
    """Write a faster kernel for a PyTorch module, prove it right, time it and archive it.

    Example: rag-kernels generate examples/softmax_scale.py --device cpu --out best.py

    Example: rag-kernels generate mymodel.py:Block --init "512" --inputs "torch.randn(8, 128, 512)"
    """
    from rag_kernels.export.formats import out_suffixes, write_kernel
    from rag_kernels.report.json_rows import result_row
    from rag_kernels.run.standings import winner
    from rag_kernels.wiring import open_session, possible_backends

    writable_out(out, out_suffixes(possible_backends(options)))
    loaded = problem_of(problem, backward=backward, inputs=inputs, init=init)
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
        made = [f"{option} {shlex.quote(text)}" for option, text in (("--init", init), ("--inputs", inputs)) if text]
        again = " ".join([str(problem), *(["--backward"] if backward else []), *made, f"--resume {run.id}"])
        print(f"Interrupted; go on with: rag-kernels generate {again}", file=sys.stderr)
        raise typer.Exit(130)
    raise typer.Exit(0 if best else 1)


def problem_of(written: Path, *, backward: bool, inputs: str = "", init: str = "") -> Problem:
    """Return the problem that a command names: a file, or a module in a file with what it is called with."""
    from rag_kernels.eval.problem import load_problem
    from rag_kernels.ingest.gradients import backward_problem, load_backward
    from rag_kernels.ingest.named_module import named_module, problem_of_named

    named = named_module(str(written))
    if named is None:
        if inputs or init:
            raise typer.BadParameter("--inputs and --init go with a module of your own: mymodel.py:Block.")
        return load_backward(written) if backward else load_problem(written)
    found = problem_of_named(*named, inputs=inputs, init=init)
    return backward_problem(found) if backward else found


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
