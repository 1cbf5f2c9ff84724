"""Show what the verdicts on functional forms owe to `NOISE` of `ingest.verify`: a sweep over gradients.

    python tests/bench/gradient_noise.py path/to/KernelBench --levels 1 2 --out noise.jsonl
    python tests/bench/gradient_noise.py --table noise.jsonl

The folder is the one that holds level1 and level2. Each problem's gradients are functionalized as ever, in a process of
its own; of every output that is held to the module's own error against double, a row keeps how large that error is
beside the largest values about, and how near the functional form is. Problems that are in --out are left out. The table
counts how many problems agree for each NOISE of a sweep.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rag_kernels.eval.problem import find_problems, load_problem
from rag_kernels.eval.records import ProblemError
from rag_kernels.ingest.functional import verify
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.ingest.functional.gradients import backward_problem

SWEEP = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds for one problem")
    parser.add_argument("--out", type=Path, default=Path("gradient_noise.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files")
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(table([json.loads(line) for path in asked.table for line in path.read_text().splitlines()])))
        return
    if asked.folder is None:
        parser.error("name the folder that holds level1 and level2")
    known = {json.loads(line)["problem"] for line in asked.out.read_text().splitlines()} if asked.out.exists() else ()
    paths = [path for n in asked.levels for path in find_problems([asked.folder / f"level{n}"])]
    wanted = [path for path in paths if f"{path.parent.name}/{path.stem}" not in known]
    with multiprocessing.get_context("fork").Pool(asked.jobs, maxtasksperchild=1) as pool, asked.out.open("a") as out:
        for path, coming in [(path, pool.apply_async(looked_at, (path,))) for path in wanted]:
            try:
                row = coming.get(asked.deadline * asked.jobs)
            except multiprocessing.TimeoutError:
                row = {"problem": f"{path.parent.name}/{path.stem}", "seen": [], "reason": "it took too long"}
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(row["problem"], row["reason"][:150], len(row["seen"]), file=sys.stderr, flush=True)


def looked_at(path: Path) -> dict[str, Any]:
    """Functionalize the gradients of a problem without the bound, and return what it would have been asked about."""
    seen: list[dict[str, float]] = []
    judged = verify._as_near

    def watched(ours: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor, largest: float) -> bool:
        near = judged(ours, reference, exact, largest)
        own = verify._rms(reference.double() - exact)
        seen.append({"noise": own / largest if largest else 0.0, "near": near, "largest": largest})
        return near

    verify._as_near, verify.NOISE = watched, float("inf")
    problem = backward_problem(load_problem(path))
    try:
        reply = functionalize_here({"problem": problem, "threads": 1})
    except (ProblemError, verify.Disagrees) as error:  # pragma: no cover - told as data by the child
        reply = {"reason": str(error)}
    reason = str(reply["reason"]) if isinstance(reply, dict) else ""
    return {
        "problem": f"{path.parent.name}/{path.stem}",
        "seen": seen,
        "reason": reason.splitlines()[0] if reason else "",
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a table: for each bound, how many problems have a functional form that agrees."""
    lines = ["| NOISE | of so many problems | agree | refused by it |", "|--:|--:|--:|---|"]
    for bound in SWEEP:
        beyond = [row for row in rows if any(one["noise"] > bound for one in row["seen"])]
        failed = {row["problem"] for row in rows if row["reason"]} | {row["problem"] for row in beyond}
        told = ", ".join(sorted(row["problem"] for row in beyond if not row["reason"])) or "none"
        lines.append(f"| {bound:g} | {len(rows)} | {len(rows) - len(failed)} | {told} |")
    held = [row for row in rows if row["seen"]]
    ratios = sorted(one["noise"] for row in held for one in row["seen"])
    lines += ["", f"{len(held)} problems have outputs that are held to the module's own error, {len(ratios)} in all."]
    if ratios:
        lines.append("Their errors, in the largest values about: " + ", ".join(f"{r:.2g}" for r in ratios[-12:]))
    return lines


if __name__ == "__main__":
    main()
