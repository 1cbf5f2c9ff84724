"""`rag-kernels sample`: write candidates where a model is reachable, to be judged elsewhere."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.shared.common import Json, emit, end_politely, problem_files
from rag_kernels.cli.shared.flags import with_search_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rag_kernels.budget import Ledger
    from rag_kernels.long_runs.sampling import Sampled, Sampler
    from rag_kernels.options import Options

    Ask = Callable[[Sampler, Ledger], Sampled]


@with_search_flags("effort", "rounds", "drafts", "precision", "max_autotune", "cluster", "judge_cpus")
def sample(
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="A line of JSON a problem is added; what it has is skipped.")
    ],
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PROBLEM", help="KernelBench files, or folders of them.")
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            "--after", metavar="FILE", help="Go on with the runs that `eval --batch --verdicts FILE` wrote, instead."
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Candidates a problem.")] = 8,
    target: Annotated[
        Path | None,
        typer.Option(
            "--target",
            metavar="NAME|FILE",
            help="The device that they are for: h200, h100, or devices/d_*.json of its cache.",
        ),
    ] = None,
    baselines: Annotated[
        Path | None,
        typer.Option(
            "--baselines", metavar="FILE", help="What is to be beaten: rows of `check --baselines --json` there."
        ),
    ] = None,
    *,
    options: Options,
    as_json: Json = False,
) -> None:
    """Write candidates without judging them: no GPU and no compiler are needed. Budgets are for all problems together.

    `rag-kernels eval --batch FILE` judges them on another machine, and takes prompts, replies and exemplars into the
    archive there. The same command goes on with a file that is not complete. With --after the next candidates follow
    from what the judge said of the earlier ones: they repair, improve and recombine them.

    Example: rag-kernels sample problems/ --model openai/gpt-5 --target h200 --out c.jsonl

    Example: rag-kernels sample --after verdicts.jsonl --model openai/gpt-5 --out c2.jsonl
    """
    if bool(paths) == bool(after):
        raise typer.BadParameter("Name problem files, or with --after a file of verdicts, which brings its own.")
    rows = sampled_after(after, out, samples, options, target, baselines) if after else None
    rows = rows or sampled_rows(problem_files(paths or []), out, samples, options, target, baselines)
    end_politely()
    written = failed = 0
    try:
        for row in rows:
            written, failed = written + row["candidates"], failed + bool(row["reason"])
            show_sampled(row, as_json=as_json)
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on.", file=sys.stderr)
        raise typer.Exit(130) from None
    if not as_json:
        following = (
            f"; judge them with: rag-kernels eval --batch {out}" if written else ": there is nothing to judge yet"
        )
        print(f"{written} candidates in {out}{following}")
    raise typer.Exit(0 if written and not failed else 1)


def show_sampled(row: dict[str, Any], *, as_json: bool) -> None:
    """Show what came of one problem."""
    if as_json:
        emit("sampled", row)
        return
    notice = f" ({row['notice']})" if row["notice"] else ""
    print(f"{row['problem']}: {row['state']}, {row['candidates']} candidates{notice}", flush=True)
    if row["reason"]:
        print(f"  {row['reason']}", flush=True)


def sampled_rows(
    files: list[Path],
    out: Path,
    samples: int,
    options: Options,
    target: Path | None,
    baselines: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Sample problem after problem, and tell of each."""
    from rag_kernels.eval.problem import load_problem
    from rag_kernels.long_runs.sampling import batch_id, mend

    batch = batch_id(mend(out))

    def begin(file: Path) -> tuple[str, Ask]:
        problem = load_problem(file)
        return problem.id, lambda sampler, ledger: sampler.sample(problem, samples, ledger, batch=batch)

    yield from _rows([(file.stem, partial(begin, file)) for file in files], out, options, target, baselines)


def sampled_after(
    after: Path, out: Path, samples: int, options: Options, target: Path | None, baselines: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Go on with run after run by their verdicts, the last line of each, and tell of each."""
    from rag_kernels.long_runs.sampling import Verdicts, read_verdicts

    def begin(one: Verdicts) -> tuple[str, Ask]:
        return one.sampled.problem_id, lambda sampler, ledger: sampler.go_on(one, samples, ledger)

    runs = {one.sampled.run.id: one for one in read_verdicts(after)}
    asked = [(one.sampled.problem.name, partial(begin, one)) for one in runs.values()]
    yield from _rows(asked, out, options, target, baselines)


def _rows(
    waiting: Sequence[tuple[str, Callable[[], tuple[str, Ask]]]],
    out: Path,
    options: Options,
    target: Path | None,
    baselines: Path | None,
) -> Iterator[dict[str, Any]]:
    """Write a line of the file for each that it lacks; each is a name, and what gives the problem's id and its work."""
    from rag_kernels.budget import BudgetExhaustedError, Ledger
    from rag_kernels.eval.records import ProblemError
    from rag_kernels.long_runs.sampling import mend, read_baselines, write_line
    from rag_kernels.records import Budget, WriterError
    from rag_kernels.wiring import open_sampler

    known = {done.problem_id: len(done.told[-1].drafts or ()) for done in mend(out)}
    ledger = Ledger(Budget(1, options.budget_seconds, options.budget_tokens, options.budget_usd))
    times = read_baselines(baselines) if baselines else {}
    with open_sampler(options, target, times) as sampler:
        for name, begin in waiting:
            row: dict[str, Any] = {"problem": name, "state": "sampled", "candidates": 0, "reason": "", "notice": ""}
            try:
                problem_id, ask = begin()
                if problem_id in known:
                    yield row | {"state": "there already", "candidates": known[problem_id]}
                    continue
                found = ask(sampler, ledger)
                write_line(out, found)
                row |= {"candidates": len(found.told[-1].drafts or ()), "notice": found.notice}
            except BudgetExhaustedError as error:
                yield row | {"state": "stopped", "reason": str(error)}
                return
            except (ProblemError, WriterError) as error:
                row |= {"state": "failed", "reason": str(error)}
            yield row
