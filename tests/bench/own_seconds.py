"""First drafts in C++ beside their modules, by the CPU time of one thread: on a machine that others use too.

    python tests/bench/own_seconds.py PROBLEM.py... --out rows.jsonl [--rounds 5] [--eager-only]
    python tests/bench/own_seconds.py --table rows.jsonl [--before earlier.jsonl]

The draft is exported as a module; both, and the module compiled, are called in turn in one process, and compared
first. A problem whose docstring says that it is trained runs with its gradients. What is taken is the process' own CPU
time, so that a row says how much there is to do, not how long two threads take for it. Nothing is judged.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before a kernel's library is loaded

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from offline_tables import Row, read
from ordinary import kind_of
from random_shapes import attempt, form_of, loaded

from rag_kernels.eval.contract import contract
from rag_kernels.eval.problem import load_problem
from rag_kernels.export.packages import write_package
from rag_kernels.ingest.functional.training_step import training_step
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief
from rag_kernels.scripted import ScriptedJudge, device, passed

ROUND_S = 0.05
NEAR = 2e-2
Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager-only", action="store_true", help="leave torch.compile out")
    parser.add_argument("--out", type=Path, default=Path("own_seconds.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of these rows")
    parser.add_argument("--before", nargs="+", type=Path, default=[], help="earlier rows of the same problems")
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(table(read([asked.table]), read(asked.before))))
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for file in asked.files:
        try:
            row = {"level": "ordinary", "name": file.stem} | taken(file, asked.rounds, compiled=not asked.eager_only)
        except Exception as error:  # one that fails costs its row alone
            row = {"level": "ordinary", "name": file.stem, "error": f"{type(error).__name__}: {error}"[:300]}
        with asked.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(line(row, None), flush=True)


def taken(file: Path, rounds: int, *, compiled: bool) -> Row:
    """Return the medians of a call of the first draft, of the module and of the module compiled, in ms."""
    problem, trained = loaded(file), kind_of(file)[1]
    ours = exported(file, Path(tempfile.mkdtemp()), trained=trained)
    torch.manual_seed(0)
    given = [g.requires_grad_(trained and g.is_floating_point()) for g in problem.get_inputs()]
    modules = []
    for kind in (ours, problem.Model):
        torch.manual_seed(1)
        modules.append(kind(*problem.get_init_inputs()))
    calls = {"ours": call_of(modules[0], given), "eager": call_of(modules[1], given)}
    if compiled:
        calls["compile"] = call_of(torch.compile(modules[1]), given)
    with torch.set_grad_enabled(trained):
        torch.testing.assert_close(calls["ours"](), calls["eager"](), rtol=NEAR, atol=NEAR, equal_nan=True)
        assert modules[0].kernel_used, modules[0].kernel_reason
        times = [{name: timed(call) for name, call in calls.items()} for _ in range(rounds)]
    return {name: round(1e3 * statistics.median(t[name] for t in times), 3) for name in calls}


def call_of(module: Any, given: list[Any]) -> Call:
    """Return a call of the module, and of its gradients if an input wants one."""
    ends = [x for x in given if x.requires_grad]
    ends += list(module.parameters()) if ends else []

    def call() -> Any:
        out = module(*given)
        grads = torch.autograd.grad(out, ends, allow_unused=True) if ends else ()
        return (out, *(g for g in grads if g is not None)) if ends else out

    return call


def exported(file: Path, folder: Path, *, trained: bool) -> Any:
    """Return the class of the exported module that runs the first draft."""
    problem = training_step(load_problem(file)) if trained else load_problem(file)
    fp, place = form_of(problem.name, problem.source), device("cpu")
    draft = OfflineWriter().propose(Brief("bench", fp, place, (), (), "", 1, 1))[0]
    verdict = replace(passed(2.0), contract=contract(fp, [], any_alignment=False))
    made = attempt(fp, draft, ScriptedJudge(on=place).judged_as(verdict), 1, 1)
    return loaded(write_package(made, "module", folder / f"{file.stem}_kernel.py")).ModelNew


def timed(call: Call) -> float:
    """Return the CPU time of a call, of as many as take a while."""
    count, began = 0, time.process_time()
    while time.process_time() - began < ROUND_S:
        call()
        count += 1
    return (time.process_time() - began) / count


def over(row: Row | None) -> float:
    """Return how many times as long the better baseline takes; 0 where nothing was timed."""
    return min(row["eager"], row.get("compile", row["eager"])) / row["ours"] if row and "ours" in row else 0.0


def line(row: Row, earlier: Row | None) -> str:
    """Return a row of the table, with the ratio of an earlier one if there is one."""
    if "ours" not in row:
        return f"| {row['name']} | | | | {' '.join(row['error'].split())[:150].replace('|', '/')} |"
    told = (f"{over(earlier):.2f}; " if over(earlier) else "none; ") if earlier else ""
    compiled = f"{row['compile']:.2f}" if "compile" in row else ""
    return f"| {row['name']} | {row['ours']:.2f} | {row['eager']:.2f} | {compiled} | {told}{over(row):.2f} |"


def table(rows: list[Row], before: list[Row]) -> list[str]:
    """Return the rows, slowest beside its baseline last, and the counts."""
    earlier, rows = {r["name"]: r for r in before}, sorted(rows, key=lambda r: (-over(r), r["name"]))
    timed_rows = [r for r in rows if over(r)]
    both = [r for r in timed_rows if over(earlier.get(r["name"]))]
    lines = ["| problem | ours, ms | eager, ms | compile, ms | over better |", "|---|---:|---:|---:|---:|"]
    lines += [line(r, earlier.get(r["name"])) for r in rows]
    told = f"{len(rows)} problems, {sum(over(r) > 1 for r in timed_rows)} faster than the better of both"
    told += f", geometric mean {statistics.geometric_mean(map(over, timed_rows)):.2f}" if timed_rows else ""
    if both:
        means = [statistics.geometric_mean(map(over, every)) for every in ([earlier[r["name"]] for r in both], both)]
        told += f"; of {len(both)} timed both times {means[0]:.2f} before and {means[1]:.2f} now"
    return [*lines, "", f"CPU time of one thread, PyTorch {torch.__version__}: {told}."]


if __name__ == "__main__":
    sys.exit(main())
