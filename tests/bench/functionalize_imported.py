"""Functionalize every problem of somebody else's benchmark and print a table, with the cause where one fails.

    python tests/bench/functionalize_imported.py gpu-mode path/to/reference-kernels [--jobs 2] [--only v2]
    python tests/bench/functionalize_imported.py robust-kbench path/to/robust-kbench/tasks

Reads the checkout with the importer of that name and keeps nothing of it: no archive is written. Exit code 1 when a
problem failed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from rag_kernels.eval.records import Problem
from rag_kernels.ingest.functional.functionalize import Row, functionalize_many, open_workers
from rag_kernels.ingest.importers.gpu_mode import GpuMode
from rag_kernels.ingest.importers.protocol import Importer, Skipped
from rag_kernels.ingest.importers.robust_kbench import RobustKbench

IMPORTERS: dict[str, type[Importer]] = {"gpu-mode": GpuMode, "robust-kbench": RobustKbench}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("importer", choices=IMPORTERS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="only problems whose name contains this")
    asked = parser.parse_args()
    problems: dict[str, Problem] = {}
    for one in IMPORTERS[asked.importer]().read(asked.path):
        if isinstance(one, Skipped):
            print(f"| {one.where} | left out | {one.why} |")
        elif asked.only in one.functional.problem.name:
            problems[one.functional.problem.id] = one.functional.problem
    counted: Counter[str] = Counter()
    with open_workers() as workers:
        for row in functionalize_many(problems.values(), workers=workers, jobs=asked.jobs, deadline_s=200.0):
            outcome, said = told(row)
            counted[outcome] += 1
            print(f"| {row.name} | {outcome} | {said} |", flush=True)
    print(f"\n{sum(counted.values())} problems: " + ", ".join(f"{n} {outcome}" for outcome, n in counted.most_common()))
    return 1 if counted["failed"] else 0


def told(row: Row) -> tuple[str, str]:
    """Return what came of a problem, and the words beside it."""
    if row.functional is None:
        return "failed", row.reason
    return "verified" if row.functional.verified else "not verified", row.functional.notice


if __name__ == "__main__":
    sys.exit(main())
