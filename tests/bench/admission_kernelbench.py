"""Examine KernelBench problems as `rag-kernels check` does, and print what came of it as Markdown.

    python tests/bench/admission_kernelbench.py path/to/KernelBench [--levels level1 level2] [--max-mib 8] [--only 23_]

The folder is the one that holds level1, level2 and level3. Sizes are scaled down so that a problem's tensors take at
most --max-mib (8, 64 or 256 times that where they cannot be smaller), on the CPU. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rag_kernels.eval.admission_records import Admission
from rag_kernels.eval.machine.device import open_device
from rag_kernels.eval.problem import find_problems, load_problem
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Device, FunctionalProblem, Problem, ProblemError
from rag_kernels.eval.sessions.admission import UNVERIFIABLE, admission_file, open_admission
from rag_kernels.ingest.functional.functionalize import functionalize_to_fit, open_workers


@dataclass(frozen=True)
class Row:
    level: str
    name: str
    admission: Admission | None
    reason: str
    seconds: float

    def accepted_by_kernelbench(self, null: str) -> bool:
        return self.admission is not None and any(
            row.kernelbench and row.name == null for row in self.admission.examination.null_kernels
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--levels", nargs="+", default=["level1", "level2", "level3"])
    parser.add_argument("--max-mib", type=int, default=8)
    parser.add_argument("--budget-s", type=float, default=10.0)
    parser.add_argument("--only", default="", help="only problems whose name starts with this")
    options = parser.parse_args()
    rows: list[Row] = []
    with open_workers() as workers, tempfile.TemporaryDirectory() as folder:
        device = open_device("cpu", workers, Path(folder))
        paths = [(level, path) for level in options.levels for path in find_problems([options.folder / level])]
        with contextlib.suppress(KeyboardInterrupt):  # what is known by then is printed
            for level, path in paths:
                if path.name.startswith(options.only):
                    rows.append(examined(level, path, workers, device, Path(folder), options))
                    print(progress(rows[-1]), file=sys.stderr, flush=True)
    print("\n".join(report(rows, options.levels)))


def examined(level: str, path: Path, workers: Workers, device: Device, cache: Path, options: argparse.Namespace) -> Row:
    started = time.monotonic()
    admission, reason = None, ""
    try:
        fp = smallest(load_problem(path), workers, options.max_mib << 20)
        file = admission_file(fp, device, cache=cache)
        admission = open_admission(file, fp, device, workers, budget_s=options.budget_s)
    except ProblemError as error:
        reason = str(error)
    return Row(level, path.stem, admission, reason, time.monotonic() - started)


def smallest(problem: Problem, workers: Workers, max_bytes: int) -> FunctionalProblem:
    """The problem at this size, or where its constants do not allow it at 8, 64 or 256 times as much."""
    for factor in (1, 8, 64):
        try:
            return functionalize_to_fit(problem, workers=workers, max_bytes=factor * max_bytes)
        except ProblemError as error:
            if "could not be shrunk" not in str(error):
                raise
    return functionalize_to_fit(problem, workers=workers, max_bytes=256 * max_bytes)


def progress(row: Row) -> str:
    if row.admission is None:
        return f"{row.level}/{row.name}: {row.reason} ({row.seconds:.1f} s)"
    found = row.admission.examination.calibration
    gap = f"gap {found.gap:.3g}" if found else "no calibration"
    why = row.admission.degenerate or "; ".join(row.admission.notes)
    return f"{row.level}/{row.name}: {' '.join(row.admission.labels) or 'admitted'}, {gap}, {row.seconds:.1f} s. {why}"


def report(rows: list[Row], levels: list[str]) -> list[str]:
    lines = [
        "| level | problems | admitted | degenerate | precision-unverifiable | not calibrated | median gap "
        "| KernelBench's 1e-2 accepts zeros / the mean / the previous output | cannot be judged | median s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for level in levels:
        lines.append(summary(level, [row for row in rows if row.level == level]))
    lines += ["", "| problem | why it is degenerate |", "|---|---|"]
    known = [(r, r.admission) for r in rows if r.admission]
    lines += [f"| {r.level}/{r.name} | {a.degenerate} |" for r, a in known if a.degenerate]
    for title, null in (("zeros", "zeros"), ("the mean", "global mean"), ("the previous output", "previous output")):
        names = [short(r) for r in rows if r.accepted_by_kernelbench(null)]
        lines += ["", f"KernelBench's own tolerance (1e-2) would accept {title}: {', '.join(names) or 'none'}."]
    names = [short(r) for r, a in known if UNVERIFIABLE in a.labels and not a.degenerate]
    lines += ["", f"Precision-unverifiable without being degenerate: {', '.join(names) or 'none'}."]
    lines += ["", *(f"{short(r)} cannot be judged: {r.reason}" for r in rows if r.admission is None)]
    return lines


def summary(level: str, rows: list[Row]) -> str:
    found = [r.admission for r in rows if r.admission]
    gaps = [a.examination.calibration.gap for a in found if a.examination.calibration and not a.degenerate]
    degenerate = sum(bool(a.degenerate) for a in found)
    accepted = [sum(r.accepted_by_kernelbench(n) for r in rows) for n in ("zeros", "global mean", "previous output")]
    unverifiable = sum(UNVERIFIABLE in a.labels and not a.degenerate for a in found)
    uncalibrated = sum(not a.examination.calibration and not a.degenerate for a in found)
    return (
        f"| {level} | {len(rows)} | {len(found) - degenerate} | {degenerate} | {unverifiable} | {uncalibrated} "
        f"| {statistics.median(gaps or [0]):.0f} | {accepted[0]} / {accepted[1]} / {accepted[2]} "
        f"| {len(rows) - len(found)} | {statistics.median([r.seconds for r in rows] or [0]):.1f} |"
    )


def short(row: Row) -> str:
    return f"{row.level[-1]}/{row.name.split('_')[0]}"


if __name__ == "__main__":
    main()
