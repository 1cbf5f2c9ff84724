"""How long the sources are that the offline writer drafts first, in lines, for each problem of a folder.

    python tests/bench/source_lines.py examples

Prints a line a problem with both backends, and the medians. Runs no kernel and no judge.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from rag_kernels.eval.problem import find_problems, load_problem
from rag_kernels.eval.records import Backend
from rag_kernels.ingest.functional.functionalize import functionalize_many, open_workers
from rag_kernels.offline.compose import first_plans
from rag_kernels.offline.tuning import starting_parameters

BACKENDS: tuple[Backend, ...] = ("cpu", "cuda")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    paths = find_problems([parser.parse_args().folder])
    lines: dict[Backend, list[int]] = {backend: [] for backend in BACKENDS}
    with open_workers() as workers:
        rows = functionalize_many((load_problem(p) for p in paths), workers=workers, deadline_s=300.0)
        for path, row in zip(paths, rows, strict=True):
            counts = []
            for backend in BACKENDS:
                plan = next(first_plans(row.functional, starting_parameters(backend)), None) if row.functional else None
                counts.append(plan.candidate.source.count("\n") if plan else 0)
                lines[backend] += counts[-1:] if plan else []
            print(f"{path.stem}: {counts[0]} lines of C++, {counts[1]} of CUDA")
    print("medians:", ", ".join(f"{backend} {statistics.median(found)}" for backend, found in lines.items() if found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
