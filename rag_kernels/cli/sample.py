"""`rag-kernels sample`: write candidates where a model is reachable, to be judged elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.common import Json, emit, end_politely, problem_files
from rag_kernels.cli.flags import with_search_flags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rag_kernels.options import Options


@with_search_flags("effort", "rounds", "drafts", "precision", "max_autotune", "cluster", "judge_cpus")
def sample(
    paths: Annotated[list[Path], typer.Argument(metavar="PROBLEM", help="KernelBench files, or folders of them.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="A line of JSON a problem is added; what it has is skipped.")
    ],
    samples: Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Candidates a problem.")] = 8,
    target: Annotated[
        Path | None,
        typer.Option("--target", metavar="FILE", help="The device that they are for: devices/d_*.json of its cache."),
    ] = None,
    *,
    options: Options,
    as_json: Json = False,
) -> None:
    """Write candidates without judging them: no GPU and no compiler are needed. Budgets are for all problems together.

    `rag-kernels eval --batch FILE` judges them on another machine, and takes prompts, replies and exemplars into the
    archive there. The same command goes on with a file that is not complete.

    Example: rag-kernels sample problems/ --model openai/gpt-5 --device cuda --target devices/d_7c1e.json --out c.jsonl
    """

    files = problem_files(paths)
    end_politely()
    written = failed = 0
    try:
        for row in sampled_rows(files, out, samples, options, target):
            written, failed = written + row["candidates"], failed + bool(row["reason"])
            if as_json:
                emit("sampled", row)
            else:
                notice = f" ({row['notice']})" if row["notice"] else ""
                said = f"{row['reason'] or row['state']}, {row['candidates']} candidates{notice}"
                print(f"{row['problem']}: {said}", flush=True)
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on.", file=sys.stderr)
        raise typer.Exit(130) from None
    if not as_json:
        print(f"{written} candidates in {out}; judge them with: rag-kernels eval --batch {out}")
    raise typer.Exit(0 if written and not failed else 1)


def sampled_rows(
    files: list[Path], out: Path, samples: int, options: Options, target: Path | None
) -> Iterator[dict[str, Any]]:
    """Sample problem after problem, and tell of each."""
    from rag_kernels.budget import BudgetExhaustedError, Ledger
    from rag_kernels.eval.problem import load_problem
    from rag_kernels.eval.records import ProblemError
    from rag_kernels.long_runs.sampling import batch_id, mend, write_line
    from rag_kernels.records import Budget, WriterError
    from rag_kernels.wiring import open_sampler

    there = mend(out)
    known, batch = {done.problem_id: len(done.drafts) for done in there}, batch_id(there)
    ledger = Ledger(Budget(1, options.budget_seconds, options.budget_tokens, options.budget_usd))
    with open_sampler(options, target) as sampler:
        for file in files:
            row: dict[str, Any] = {
                "problem": file.stem,
                "state": "sampled",
                "candidates": 0,
                "reason": "",
                "notice": "",
            }
            try:
                problem = load_problem(file)
                if problem.id in known:
                    yield row | {"state": "there already", "candidates": known[problem.id]}
                    continue
                found = sampler.sample(problem, samples, ledger, batch=batch)
                write_line(out, found)
                row |= {"candidates": len(found.drafts), "notice": found.notice}
            except BudgetExhaustedError as error:
                yield row | {"state": "stopped", "reason": str(error)}
                return
            except (ProblemError, WriterError) as error:
                row |= {"state": "failed", "reason": str(error)}
            yield row
