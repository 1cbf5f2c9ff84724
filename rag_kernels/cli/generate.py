"""`rag-kernels generate`: the main job."""

from __future__ import annotations

import itertools
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.shared.busy import busy
from rag_kernels.cli.shared.common import (
    Backward,
    Init,
    Inputs,
    Json,
    Shapes,
    Training,
    columns,
    emit,
    end_politely,
    writable_out,
)
from rag_kernels.cli.shared.flags import with_search_flags
from rag_kernels.cli.shared.problems import problem_of
from rag_kernels.eval.errors import ProblemError
from rag_kernels.text.wording import broken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rag_kernels.archive.records import Attempt
    from rag_kernels.ingest.functional.passes import Pass
    from rag_kernels.options import Options
    from rag_kernels.run.workloads import Search, Served


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
    training: Training = False,
    inputs: Inputs = "",
    init: Init = "",
    shapes: Shapes = "",
    *,
    options: Options,
    as_json: Json = False,
) -> None:
    """Write a faster kernel for a PyTorch module, prove it right, time it and archive it.

    Example: rag-kernels generate examples/softmax_scale.py --device cpu --out best.py

    Example: rag-kernels generate mymodel.py:Block --init "512" --inputs "torch.randn(8, 128, 512)" --training
    """
    with ExitStack() as opened:
        with busy(f"reading {problem}"):
            from rag_kernels.eval.sizes.workloads import read_shapes, workloads_of
            from rag_kernels.export.out_file import out_suffixes, write_kernel
            from rag_kernels.ingest.functional.passes import pass_of
            from rag_kernels.report.json_rows import result_row
            from rag_kernels.run.standings import winner
            from rag_kernels.run.workloads import Search
            from rag_kernels.wiring import open_session, possible_backends

            writable_out(out, out_suffixes(possible_backends(options)))
            wanted = pass_of(backward=backward, training=training)
            loaded = problem_of(problem, wanted, inputs=inputs, init=init)
            workloads = read_shapes(shapes) if shapes else workloads_of(loaded)
            end_politely()
            session = opened.enter_context(open_session(options))
            search = Search.of(session, loaded, workloads, resume)
        finished, found = followed(search, loaded.name, as_json=as_json), search.found
        attempts = session.archive.attempts(search.run.id)
    best = found.best if found else winner(attempts)
    written, why_not = None, ""
    try:
        written = str(write_kernel(best, out)) if best and out else None
    except ProblemError as error:  # it was found and archived all the same: that is shown first
        why_not = str(error)
    ended = found.why if found else "it was interrupted before the first one was there."
    row = result_row(attempts, best=best, run_id=search.run.id, problem=loaded.name, out=written, why=ended)
    show_result(row, as_json=as_json)
    if why_not:
        raise ProblemError(why_not)
    if found is None or not finished:
        told = {"--init": init, "--inputs": inputs, "--shapes": shapes, "--resume": search.run.id}
        print(f"Interrupted; go on with: {command(problem, wanted, told)}", file=sys.stderr)
        raise typer.Exit(130)
    raise typer.Exit(0 if found.solved else 1)


def command(problem: Path, wanted: Pass, told: Mapping[str, str]) -> str:
    """Return the command for a pass of a problem with these options, those without a value left out."""
    texts = [f"{option} {shlex.quote(text)}" for option, text in told.items() if text]
    return " ".join(["rag-kernels generate", str(problem), *([] if wanted == "forward" else [f"--{wanted}"]), *texts])


def followed(search: Search, title: str, *, as_json: bool) -> bool:
    """Show a search: its attempts, then its best kernels at every workload; return False when Ctrl-C ended it early."""
    from rag_kernels.archive.records import Attempt
    from rag_kernels.eval.contract import contract_line
    from rag_kernels.export.forms.module_file import contract_of

    events = search.events()
    later: list[Served] = []

    def attempts() -> Iterator[Attempt]:
        for event in events:
            if not isinstance(event, Attempt):
                later.append(event)
                return
            yield event

    if not watch(attempts(), title, as_json=as_json)[1]:
        return False
    workloads, kernel_id = len(search.workloads), ""
    try:
        with busy("judging the best at other workloads"):
            for one in itertools.chain(later, events):
                assert not isinstance(one, Attempt)
                if not as_json and one.attempt.candidate.id != kernel_id:
                    kernel_id = one.attempt.candidate.id
                    print(f"{kernel_id} at {workloads} workloads:")
                show_served(one, as_json=as_json)
    except KeyboardInterrupt:
        return False
    if search.found is not None and (choice := search.found.choice) is not None:
        show_total(choice.served, workloads=workloads, as_json=as_json, kernel_id=choice.attempt.candidate.id)
        if not as_json and (held := contract_of(choice.attempt)) is not None:
            print(f"  serves {contract_line(held)}")
    return True


def show_served(one: Served, *, as_json: bool) -> None:
    from rag_kernels.report.console import served_line
    from rag_kernels.report.json_rows import served_row

    if as_json:
        emit("workload", served_row(one))
    else:
        print(served_line(served_row(one)), flush=True)


def show_total(served: Sequence[Served], *, workloads: int, as_json: bool, kernel_id: str = "") -> int:
    """Show what one kernel takes for all workloads; return at how many it passed."""
    from rag_kernels.report.console import total_line
    from rag_kernels.report.json_rows import total_row
    from rag_kernels.run.workloads import total

    row = total_row(total(served), workloads=workloads)
    if as_json:
        emit("total", row)
    else:
        print((f"{kernel_id}: " if kernel_id else "") + total_line(row))
    return int(row["passed"])


def watch(attempts: Iterator[Attempt], title: str, *, as_json: bool, brief: bool = False) -> tuple[list[Attempt], bool]:
    """Show attempts as they are judged; False beside them when Ctrl-C or a kill ended them early.

    In brief only what is waited for is shown, and that on a terminal alone.
    """
    from rag_kernels.report.console import attempts_table, waiting_line
    from rag_kernels.report.json_rows import attempt_row
    from rag_kernels.report.waiting import console_of

    console = console_of(as_json=as_json)
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
        print(broken(summary(row), columns(sys.stdout)))
