"""How long a large archive takes to open, to answer, and to take in an attempt.

    python tests/bench/archive_scale.py --kernels 30000

Fills an archive with synthetic kernels, the archive's own rows in one transaction, then asks each question in fresh
processes, and records attempts in a copy, with a look at it from outside after each. Prints Markdown. `--keep FOLDER`
leaves the archive there and uses it again.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import factories as f

from rag_kernels.archive import rows
from rag_kernels.archive.audit import verify
from rag_kernels.archive.records import Attempt
from rag_kernels.archive.store import FileArchive

QUESTIONS = {  # name -> (code that asks it of `archive`, what is asked)
    "open": ("archive.kernel(KERNEL)", "open the file and read one kernel"),
    "stats": ("archive.stats()", "`archive stats`"),
    "leaderboard": ("queries.leaderboard(archive, PROBLEM)", "leaderboard of one problem"),
    "leaderboards": ("queries.leaderboard(archive)", "leaderboards of all problems"),
    "best": ("archive.kernels(KernelFilter(graph_key=GRAPH, limit=5))", "newest kernels of one graph key"),
    "lineage": ("archive.lineage(KERNEL)", "lineage of one kernel"),
    "lineage graph": ("queries.lineage_graph(archive, KERNEL)", "the same with descendants, names and timings"),
    "credit": ("browse.credit(archive)", "the exemplars that helped most"),
    "runs": ("queries.run_table(archive)", "the newest 50 runs"),
}
ASK = """
import statistics, sys, time
from pathlib import Path
KERNEL, PROBLEM, GRAPH = sys.argv[2:5]
def timed(ask):
    started, used = time.perf_counter(), time.process_time()
    ask()
    return time.perf_counter() - started, time.process_time() - used
def first():
    global archive, browse, queries, KernelFilter
    from archive import browse, queries
    from rag_kernels.archive.records import KernelFilter
    from rag_kernels.archive.store import FileArchive
    archive = FileArchive(Path(sys.argv[1]))
    again()
again = lambda: ({code})
print(*timed(first), *min(timed(again) for _ in range(5)))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes for each question")
    parser.add_argument("--keep", type=Path, help="a folder for the archive, used again when it is there")
    parser.add_argument("--writes", type=int, default=100, help="attempts to record")
    parser.add_argument("--verify", action="store_true", help="also run the whole audit")
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
        print(
            f"{stats['kernels']} kernels of {stats['problems']} problems, {stats['attempts']} attempts, "
            f"{stats['edges']} edges, {size:.0f} MB; {os.cpu_count()} cores, {platform.machine()}.\n"
        )
        print("| question | fresh process | of it CPU | again | of it CPU |\n|---|---|---|---|---|")
        for code, what in QUESTIONS.values():
            cells = [f"{seconds * 1e3:.0f} ms" for seconds in ask(root, code, options.repeats)]
            print(f"| {what} | {' | '.join(cells)} |", flush=True)
        print(f"\n| {options.writes} times, after another | median | 95th percentile | of it CPU |\n|---|---|---|---|")
        for what, times in write(root, Path(scratch) / "copy", options.writes).items():
            wall, cpu = zip(*times, strict=True)
            middle, most = statistics.median(wall), statistics.quantiles(wall, n=20)[-1]
            print(f"| {what} | {middle * 1e3:.0f} ms | {most * 1e3:.0f} ms | {statistics.median(cpu) * 1e3:.0f} ms |")
        if options.verify:
            started, used = time.perf_counter(), time.process_time()
            faults = verify(archive)
            wall, cpu = time.perf_counter() - started, time.process_time() - used
            print(f"\n`archive verify`: {len(faults)} faults, {wall:.0f} s, of it {cpu:.0f} s CPU.")


def fill(archive: FileArchive, kernels: int) -> None:
    """Insert the rows of many attempts, table by table, in one transaction."""
    import pyarrow as pa

    tables: dict[str, dict[Any, rows.Row]] = {}
    for attempt in attempts(kernels):
        for table, key, row in rows_of(attempt):
            tables.setdefault(table, {}).setdefault(key, row)
    with archive.database.write() as con:
        for table, found in tables.items():
            con.register("fresh", pa.Table.from_pylist(list(found.values())))
            con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM fresh")
            con.unregister("fresh")


def attempts(kernels: int) -> Iterator[Attempt]:
    """Runs of 30 on 250 problems, each attempt with a parent and three exemplars; one in six fails."""
    operators = ("relu", "abs", "tanh", "sigmoid", "exp", "neg")
    made = [f.problem(operators[n % 6], float(n), (8, 8 + n), name=f"problem_{n}") for n in range(250)]
    for number in range(kernels * 6 // 5):
        run, place = divmod(number, 30)
        problem = made[run % len(made)]
        before = [f.candidate(problem, variant=v).id for v in range(30 * run, number) if v % 6 != 5][-3:]
        yield f.attempt(
            f"r{run}",
            place + 1,
            problem,
            variant=number,
            verdict=f.wrong() if number % 6 == 5 else f.passed(1 + number % 97 / 20),
            parents=tuple(before[-1:]),
            exemplars=tuple(f.exemplar(kernel_id, rank) for rank, kernel_id in enumerate(before, 1)),
        )


def rows_of(attempt: Attempt) -> Iterator[tuple[str, Any, rows.Row]]:
    """Each row that an attempt adds, with its table and key."""
    problem, candidate = attempt.problem, attempt.candidate
    idea_id = rows.idea_id(problem.problem.id, attempt.idea)
    idea = {"id": idea_id, "problem_id": problem.problem.id, "text": attempt.idea, "created_at": attempt.created_at}
    evaluation = rows.evaluation_columns(
        candidate.id, rows.functional_id(problem), problem.problem.id, attempt.judged, attempt.created_at
    )
    yield "runs", attempt.run_id, asdict(f.run(attempt.run_id))
    yield "problems", problem.problem.id, rows.problem_row(problem, attempt.created_at)
    yield "functionals", problem.problem.id, rows.functional_row(problem)
    yield "candidates", candidate.id, rows.candidate_row(candidate)
    yield "ideas", idea_id, idea
    if evaluation is not None:
        yield "kernels", candidate.id, rows.kernel_row(attempt, rows.functional_id(problem))
        yield "evaluations", evaluation["id"], evaluation
    for edge in attempt.parents:
        yield "edges", edge, {"child": edge.child, "source": edge.source, "relation": edge.relation}
    evaluated = None if evaluation is None else evaluation["id"]
    yield "attempts", attempt.id, rows.attempt_row(attempt, rows.functional_id(problem), evaluated)


def ask(root: Path, code: str, repeats: int) -> tuple[float, ...]:
    """Seconds of the first answer in a fresh process, imports included, and of later ones in the same; the best of
    some processes, wall and CPU, because the machine may have other work."""
    made = f.problem("relu", 0.0, (8, 8), name="problem_0")
    kernel = f.candidate(made, variant=28).id
    script = root / "ask.py"
    script.write_text(ASK.format(code=code))
    command = [sys.executable, str(script), str(root), kernel, made.problem.id, made.graph_key]
    found = [
        [float(x) for x in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]
        for _ in range(repeats)
    ]
    return tuple(map(min, zip(*found, strict=True)))


def write(root: Path, copy: Path, count: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each recorded attempt and of each look, wall and CPU, in a copy of the archive."""
    shutil.copytree(root, copy)
    archive, reader = FileArchive(copy), FileArchive(copy)
    problem = f.problem("relu", 0.0, (8, 8), name="problem_0")
    archive.start_run(f.run("written"))
    reader.run_status("written")
    found: dict[str, list[tuple[float, float]]] = {"record an attempt": [], "look up a run": []}
    for number in range(1, count + 1):
        attempt = f.attempt("written", number, problem, variant=10_000_000 + number)
        found["record an attempt"].append(timed(partial(archive.record_attempt, attempt)))
        found["look up a run"].append(timed(partial(reader.run_status, "written")))
    return found


def timed(act: Callable[[], object]) -> tuple[float, float]:
    started, used = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - started, time.process_time() - used


if __name__ == "__main__":
    main()
