"""`rag-kernels functionalize`: problems as parameterized calls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.shared.busy import each_while_busy
from rag_kernels.cli.shared.common import Backward, Init, Inputs, Json, Training, emit
from rag_kernels.cli.shared.problems import problem_of

if TYPE_CHECKING:
    from rag_kernels.ingest.functional.passes import Pass


def functionalize(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="KernelBench files, folders of them, or modules of your own: mymodel.py:Block."
        ),
    ],
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Problems at a time; by default one a CPU core.")
    ] = None,
    backward: Backward = False,
    training: Training = False,
    inputs: Inputs = "",
    init: Init = "",
    as_json: Json = False,
) -> None:
    """Turn problems into parameterized calls, check them against the modules, and show their features.

    Exit code: 0 when all went well, 1 when some of several failed, 2 when none worked.

    Example: rag-kernels functionalize examples/ --json

    Example: rag-kernels functionalize mymodel.py:Block --init "512" --inputs "torch.randn(8, 128, 512)"
    """
    from rag_kernels.eval.problem import find_problems
    from rag_kernels.eval.records import ProblemError
    from rag_kernels.ingest.functional.passes import pass_of
    from rag_kernels.ingest.live.named_module import named_module

    files = [f for path in paths for f in ([path] if named_module(str(path)) else find_problems([path]))]
    if not files:
        raise ProblemError(f"There are no .py files in {', '.join(map(str, paths))}.")
    failed, wanted = 0, pass_of(backward=backward, training=training)
    rows = functional_rows(files, jobs=jobs or len(os.sched_getaffinity(0)), wanted=wanted, inputs=inputs, init=init)
    for row in each_while_busy(rows, "reading the problems"):
        failed += not row["ok"]
        if as_json:
            emit("functional", row)
        else:
            print(functional_text(row, brief=len(files) > 1), flush=True)
    if not as_json and len(files) > 1:
        print(f"{len(files) - failed} of {len(files)} functionalized.")
    raise typer.Exit(0 if not failed else 1 if failed < len(files) else 2)


def functional_rows(
    files: list[Path], *, jobs: int, wanted: Pass = "forward", inputs: str = "", init: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield a row for each problem, in the order of the files, several at a time."""
    from rag_kernels.eval.records import Problem, ProblemError
    from rag_kernels.ingest.functional.functionalize import functionalize_many, open_workers
    from rag_kernels.report.json_rows import functional_row

    loaded: list[Problem | ProblemError] = []
    for path in files:
        try:
            loaded.append(problem_of(path, wanted, inputs=inputs, init=init))
        except ProblemError as error:
            loaded.append(error)
    problems = [p for p in loaded if isinstance(p, Problem)]
    with ExitStack() as stack:
        workers = stack.enter_context(open_workers()) if problems else None
        done = functionalize_many(problems, workers=workers, jobs=jobs) if workers else iter(())
        for path, problem in zip(files, loaded, strict=True):
            if isinstance(problem, ProblemError):
                row = {"ok": False, "reason": str(problem), "graph_key": None, "seconds": 0.0}
            else:
                result = next(done)
                row = {"ok": result.ok, "reason": result.reason, "graph_key": None, "seconds": result.seconds}
                row |= functional_row(result.functional) if result.functional else {}
            name = problem.name if isinstance(problem, Problem) else path.stem
            yield {"problem": name, "path": str(path), **row}


def functional_text(row: dict[str, Any], *, brief: bool) -> str:
    from rag_kernels.report.console import facts

    if not row["ok"]:
        return f"{row['problem']}: failed. {row['reason']}"
    notice = f" ({row['notice']})" if row["notice"] else ""
    if brief:
        return f"{row['problem']}: ok, {row['seconds']:.1f} s, {row['graph_key']}{notice}"
    names = (
        "graph_key",
        "operators",
        "ranks",
        "dtypes",
        "parameter_count",
        "flops",
        "pointwise_flops",
        "bytes_moved",
        "mutated",
        "uses_random",
        "seconds",
    )
    step = f"{row['step']}\n\n" if row["step"] else ""
    return f"{row['source']}\n{step}{facts((name, row[name]) for name in names)}{notice}"
