"""How long a large archive takes to open and to answer.

    python tests/bench/archive_scale.py --kernels 30000

Fills an archive with synthetic kernels through the archive's own rows, in one transaction, then times a fresh process
for each question. Prints Markdown. `--keep FOLDER` leaves the archive there and uses it again.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import factories as f

from archive import rows
from archive.store import FileArchive

QUESTIONS = {  # name -> (code that asks it of `archive`, what is asked)
    "open": ("archive.kernel(KERNEL)", "open the file and read one kernel"),
    "stats": ("archive.stats()", "`archive stats`"),
    "leaderboard": ("queries.leaderboard(archive, PROBLEM)", "leaderboard of one problem"),
    "leaderboards": ("queries.leaderboard(archive)", "leaderboards of all problems"),
    "best": ("queries.best_per_graph_key(archive, GRAPH)", "best kernels of one graph key"),
    "lineage": ("archive.lineage(KERNEL)", "lineage of one kernel"),
    "lineage graph": ("queries.lineage_graph(archive, KERNEL)", "the same with descendants, names and timings"),
    "credit": ("queries.exemplar_credit(archive)", "credit of all exemplars"),
    "runs": ("queries.run_table(archive)", "the newest 50 runs"),
}
ASK = """
import statistics, sys, time
from pathlib import Path
KERNEL, PROBLEM, GRAPH = sys.argv[2:5]
started = time.perf_counter()
from archive import queries
from archive.store import FileArchive
archive = FileArchive(Path(sys.argv[1]))
ask = lambda: ({code})
ask()
first = time.perf_counter() - started
again = []
for _ in range(5):
    started = time.perf_counter()
    ask()
    again.append(time.perf_counter() - started)
print(first, statistics.median(again))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes for each question")
    parser.add_argument("--keep", type=Path, help="a folder for the archive, used again when it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch) / "archive"
        new, archive = not root.exists(), FileArchive(root)
        started = time.perf_counter()
        if new:
            fill(archive, options.kernels)
            print(f"Filled in {time.perf_counter() - started:.0f} s.", file=sys.stderr)
        stats = archive.stats()
        size = (root / "archive.duckdb").stat().st_size / 1e6
        print(f"{stats['kernels']} kernels of {stats['problems']} problems, {stats['attempts']} attempts, "
              f"{stats['edges']} edges, {size:.0f} MB; {os.cpu_count()} cores, {platform.machine()}.\n")  # fmt: skip
        print("| question | fresh process, imports included | again |\n|---|---|---|")
        for code, what in QUESTIONS.values():
            first, again = ask(root, code, options.repeats)
            print(f"| {what} | {first * 1e3:.0f} ms | {again * 1e3:.0f} ms |", flush=True)


def fill(archive: FileArchive, kernels: int) -> None:
    """Runs of 30 attempts on 250 problems, each attempt with a parent and three exemplars; one in six fails."""
    operators = ("relu", "abs", "tanh", "sigmoid", "exp", "neg")
    made = [f.problem(operators[n % 6], float(n), (8, 8 + n), name=f"problem_{n}") for n in range(250)]
    with archive.database.write() as con:
        number = done = 0
        while done < kernels:
            run, place = divmod(number, 30)
            if place == 0:
                rows.insert(con, "runs", asdict(f.run(f"r{run}")))
            passed = number % 6 != 5
            problem = made[run % len(made)]
            before = [f.candidate(problem, variant=v).id for v in range(30 * run, number) if v % 6 != 5][-3:]
            attempt = f.attempt(
                f"r{run}",
                place + 1,
                problem,
                variant=number,
                verdict=f.passed(1 + number % 97 / 20) if passed else f.wrong(),
                parents=tuple(before[-1:]),
                exemplars=tuple(f.exemplar(kernel_id, rank) for rank, kernel_id in enumerate(before, 1)),
            )
            rows.insert_attempt(con, attempt)
            number, done = number + 1, done + passed


def ask(root: Path, code: str, repeats: int) -> tuple[float, float]:
    """Seconds of the first answer in a fresh process, and of later ones in the same; medians."""
    made = f.problem("relu", 0.0, (8, 8), name="problem_0")
    kernel = f.candidate(made, variant=28).id
    command = [sys.executable, "-c", ASK.format(code=code), str(root), kernel, made.problem.id, made.graph_key]
    found = [
        tuple(map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))
        for _ in range(repeats)
    ]
    return statistics.median(a for a, _ in found), statistics.median(b for _, b in found)


if __name__ == "__main__":
    main()
