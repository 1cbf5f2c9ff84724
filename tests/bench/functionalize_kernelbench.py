"""Functionalize every KernelBench problem of levels 1 to 3 and print what came of it.

    python tests/bench/functionalize_kernelbench.py path/to/KernelBench [--jobs 2] [--only level2/1]
    python tests/bench/functionalize_kernelbench.py path/to/KernelBench --backward --levels 1 2 --out rows.jsonl
    python tests/bench/functionalize_kernelbench.py --table rows.jsonl

The folder is the one that holds level1, level2 and level3. Prints a line for each problem that failed or could not
be verified, and a summary. With --backward the problems are those of the gradients. Rows are appended to --out, and
problems that are in it are left out, so that a run that was cut off goes on; --table prints the tables of such files.
Exit code 1 when a problem failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rag_kernels.eval.problem import find_problems, load_problem
from rag_kernels.ingest.functional.functionalize import Row, functionalize_many, open_workers
from rag_kernels.ingest.functional.functionalize_child import ALONE
from rag_kernels.ingest.functional.gradients import backward_problem
from rag_kernels.ingest.graphs.emit import UNTOLD

NO_GRADIENT = "no output of the forward has a gradient"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="only problems whose path contains this")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--backward", action="store_true", help="the gradients of each problem")
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds for one problem")
    parser.add_argument("--out", type=Path, help="append rows to this file, and leave out what is in it")
    parser.add_argument("--table", type=Path, nargs="+", help="print the tables of these files")
    options = parser.parse_args()
    if options.table:
        print("\n".join(tables(read(options.table))))
        return 0
    if options.folder is None:
        parser.error("name the folder that holds level1, level2 and level3")
    rows = read([options.out] if options.out else [])
    known = {(row["level"], row["name"]) for row in rows}
    started = time.monotonic()
    with open_workers() as workers:
        for level in (f"level{n}" for n in options.levels):
            paths = [p for p in find_problems([options.folder / level]) if options.only in f"{level}/{p.name}"]
            problems = [load_problem(p) for p in paths if (level, p.stem) not in known]
            names = [p.name for p in problems]
            wanted = [backward_problem(p) for p in problems] if options.backward else problems
            done = functionalize_many(wanted, workers=workers, jobs=options.jobs, deadline_s=options.deadline)
            for name, row in zip(names, done, strict=True):
                rows.append(_kept(level, name, row))
                _report(rows[-1])
                if options.out:
                    with options.out.open("a") as out:
                        out.write(json.dumps(rows[-1]) + "\n")
    _summary(rows, time.monotonic() - started)
    return 0 if all(row["ok"] for row in rows) else 1


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read the rows of files that are there."""
    return [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]


def _kept(level: str, name: str, row: Row) -> dict[str, Any]:
    """Return what a file holds of a problem."""
    made = row.functional
    return {
        "level": level,
        "name": name,
        "ok": row.ok,
        "differentiable": NO_GRADIENT not in row.reason,
        "verified": made is not None and made.verified,
        "full_size": made is not None and made.verified and not made.notice,
        "sizes": "" if made is None else _sizes_in(made.source),
        "random": made is not None and made.uses_random,
        "outputs": 0 if made is None else len(made.outputs),
        "text": row.reason if made is None else made.notice,
        "seconds": round(row.seconds, 2),
    }


def _sizes_in(source: str) -> str:
    """Return how the text of a functional form has its sizes: by name, some or all as numbers, or not at all."""
    if ALONE in source:
        return "numbers"
    return "some by name" if UNTOLD in source else "by name" if ".shape[" in source else ""


def _report(row: dict[str, Any]) -> None:
    if not row["ok"]:
        print(f"{row['level']}/{row['name']}: FAILED in {row['seconds']:.1f} s: {row['text']}", flush=True)
    elif not row["verified"]:
        print(f"{row['level']}/{row['name']}: {row['text']}", flush=True)


def _summary(rows: list[dict[str, Any]], seconds: float) -> None:
    print("level    problems    ok  verified  at full size  random  median s  slowest")
    for level in [*dict.fromkeys(row["level"] for row in rows), "all"]:
        found = [row for row in rows if level in (row["level"], "all")]
        if not found:
            continue
        times = sorted(row["seconds"] for row in found)
        counts = [sum(row[key] for row in found) for key in ("ok", "verified", "full_size", "random")]
        print(
            f"{level:8} {len(found):8} {counts[0]:5} {counts[1]:9} {counts[2]:13} {counts[3]:7} "
            f"{times[len(times) // 2]:9.2f} {times[-1]:8.1f}"
        )
    print(f"{seconds:.0f} s in all")


def tables(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a page: counts for each level, then each problem that is not verified, with its cause."""
    lines = ["| level | problems | differentiable | functional | verified |", "|---|--:|--:|--:|--:|"]
    for level in dict.fromkeys(row["level"] for row in rows):
        found = [row for row in rows if row["level"] == level]
        counts = [sum(row[key] for row in found) for key in ("differentiable", "ok", "verified")]
        lines.append(f"| {level.removeprefix('level')} | {len(found)} | {' | '.join(map(str, counts))} |")
    for told, count in sorted(Counter(row.get("sizes", "") for row in rows).items()):
        lines += [f"\nSizes in the text {told}: {count}."] if told else []
    left = [row for row in rows if not row["verified"]]
    if left:
        lines += ["", "| the rest | cause |", "|---|---|"]
        lines += [f"| {row['level']}/{row['name']} | {row['text'].splitlines()[0]} |" for row in left]
    return lines


if __name__ == "__main__":
    sys.exit(main())
