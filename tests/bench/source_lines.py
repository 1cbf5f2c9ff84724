"""How long sources are, in lines: those of an archive's bundle, or first drafts of the offline writer for a folder.

    python tests/bench/source_lines.py [BUNDLE.zip]
    python tests/bench/source_lines.py examples

Of a bundle, the starter archive unless another is named, prints a row for each language: kernels, the median, the
shares under 120 and under 200 lines. Of a folder of problems, a line a problem with both backends, and the medians.
Runs no kernel and no judge.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from zipfile import ZipFile

from rag_kernels.eval.problem import find_problems, load_problem
from rag_kernels.eval.records import Backend
from rag_kernels.ingest.functional.functionalize import functionalize_many, open_workers
from rag_kernels.offline.compose import first_plans
from rag_kernels.offline.tuning import starting_parameters
from rag_kernels.retrieval.starter import BUNDLE

BACKENDS: tuple[Backend, ...] = ("cpu", "cuda")
LANGUAGES = {".cpp": "C++", ".cu": "CUDA", ".py": "composed"}
GOAL, LONG = 120, 200  # lines that the median is to stay under, and that a kernel is to have at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", default=BUNDLE)
    source = parser.parse_args().source
    if source.suffix == ".zip":
        print_bundle(source)
    else:
        print_drafts(find_problems([source]))


def print_bundle(bundle: Path) -> None:
    with ZipFile(bundle) as packed:
        found = [
            (Path(name).suffix, packed.read(name).count(b"\n")) for name in packed.namelist() if "sources/" in name
        ]
    lines = {language: [n for suffix, n in found if suffix == kind] for kind, language in LANGUAGES.items()}
    print(
        f"| language | kernels | median, lines | under {GOAL} | under {LONG} |", "|---|---:|---:|---:|---:|", sep="\n"
    )
    for language, counts in (*lines.items(), ("all", [n for _, n in found])):
        if counts:
            under = " | ".join(f"{sum(n < most for n in counts) / len(counts):.0%}" for most in (GOAL, LONG))
            print(f"| {language} | {len(counts)} | {statistics.median(counts):.0f} | {under} |")


def print_drafts(paths: list[Path]) -> None:
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


if __name__ == "__main__":
    main()
