"""Functionalize every KernelBench problem of levels 1 to 3 and print what came of it.

    python tests/bench/functionalize_kernelbench.py path/to/KernelBench [--jobs 2] [--only level2/1]

The folder is the one that holds level1, level2 and level3. Prints a line for each problem that failed or could not
be verified, and a summary. Exit code 1 when a problem failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rag_kernels.eval.problem import find_problems, load_problem
from rag_kernels.eval.process.workers import Workers
from rag_kernels.ingest.functionalize import PRELOAD, Row, functionalize_many

LEVELS = ("level1", "level2", "level3")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="only problems whose path contains this")
    options = parser.parse_args()
    rows: dict[str, list[Row]] = {}
    started = time.monotonic()
    with Workers(preload=PRELOAD) as workers:
        for level in LEVELS:
            paths = [p for p in find_problems([options.folder / level]) if options.only in f"{level}/{p.name}"]
            problems = (load_problem(p) for p in paths)
            rows[level] = []
            for row in functionalize_many(problems, workers=workers, jobs=options.jobs, deadline_s=300.0):
                rows[level].append(row)
                _report(level, row)
    _summary(rows, time.monotonic() - started)
    return 0 if all(row.ok for level in rows.values() for row in level) else 1


def _report(level: str, row: Row) -> None:
    if row.functional is None:
        print(f"{level}/{row.name}: FAILED in {row.seconds:.1f} s: {row.reason}", flush=True)
    elif not row.functional.verified:
        print(f"{level}/{row.name}: {row.functional.notice}", flush=True)


def _summary(rows: dict[str, list[Row]], seconds: float) -> None:
    print("level    problems    ok  verified  at full size  random  median s  slowest")
    everything = [row for found in rows.values() for row in found]
    for level, found in [*rows.items(), ("all", everything)]:
        if not found:
            continue
        good = [row.functional for row in found if row.functional is not None]
        times = sorted(row.seconds for row in found)
        print(
            f"{level:8} {len(found):8} {len(good):5} {sum(f.verified for f in good):9} "
            f"{sum(f.verified and not f.notice for f in good):13} {sum(f.uses_random for f in good):7} "
            f"{times[len(times) // 2]:9.2f} {times[-1]:8.1f}"
        )
    print(f"{seconds:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())
