"""The offline writer on ordinary problems that no benchmark has: right, and faster than the better baseline?

    python tests/bench/ordinary.py tests/bench/ordinary --device cuda --out rows.jsonl [--part 1/8]
    python tests/bench/ordinary.py --table rows.jsonl [more.jsonl ...] [--before earlier.jsonl ...]

The folder holds problems as people have them in 2026, each written by the operators' names alone, before it was known
what the writer makes of it. Each is drafted and judged as by `offline_kernelbench`, one candidate by default, in the
precision that its docstring names (TF32 allowed on both sides, else strict; products of 16 bits are as they are), and
with its gradients as a step of training where the docstring says that it is trained.
A row is printed and kept as soon as it is known. The table tells wins over the better of eager and `torch.compile`,
and what stayed the library's; with --before how it was in earlier rows, too.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from offline_kernelbench import one, read_ahead
from offline_tables import Row, read

from rag_kernels.eval.judge import open_judge
from rag_kernels.eval.limits import DEFENCES, Limits
from rag_kernels.eval.problem import find_problems
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.traits.aten import operator
from rag_kernels.ingest.functional.sizes import at_other_sizes

PRECISIONS = ("strict", "tf32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--width", type=int, default=1, help="candidates a round")
    parser.add_argument("--max-mib", type=int, default=0, help="scale problems down to this many MiB of tensors")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--only", nargs="*", default=[], help="names")
    parser.add_argument("--without", nargs="*", default=[], choices=DEFENCES, help="checks to leave out, to be quick")
    parser.add_argument("--pairs", type=int, default=TimingRule().pairs, help="timed pairs, interleaved")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no problem after this many")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("ordinary.jsonl"))
    parser.add_argument("--table", nargs="+", type=Path, help="print the table of these files")
    parser.add_argument("--before", nargs="+", type=Path, default=[], help="earlier rows of the same problems")
    parser.set_defaults(enough=1e9)
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(table(read(asked.table), read(asked.before))))
        return
    run(asked)
    print("\n".join(table(read([asked.out]), [])))


def run(asked: argparse.Namespace) -> None:
    """Judge the part's problems, those of one precision after another, that are not in the file of rows yet."""
    part, parts = (int(n) for n in asked.part.split("/"))
    done = {row["name"] for row in read([asked.out])}
    files = [f for f in find_problems([asked.folder]) if not asked.only or f.stem in asked.only][part - 1 :: parts]
    started = time.monotonic()
    with asked.out.open("a") as out:
        for kind in itertools.product(PRECISIONS, (False, True)):
            of_it = [f for f in files if f.stem not in done and kind == kind_of(f)]
            for row in judged(of_it, *kind, asked, started) if of_it else ():
                out.write(json.dumps(row) + "\n")
                out.flush()
                print(line(row), flush=True)


def judged(
    files: list[Path], precision: str, trained: bool, asked: argparse.Namespace, started: float
) -> Iterator[Row]:
    """Yield a row for each problem, in one judge."""
    asked.precision, asked.joint = precision, trained
    limits = Limits(
        precision=precision,
        without=frozenset(asked.without),
        timing=TimingRule(pairs=asked.pairs, max_pairs=2 * asked.pairs, few_pairs=min(7, asked.pairs)),
    )
    with (
        open_judge(asked.device, limits=limits, cache_dir=asked.cache, at_other_sizes=at_other_sizes) as judge,
        ThreadPoolExecutor(max_workers=1) as ahead,
    ):
        wanted = [(asked.folder.name, f) for f in files]
        for (_, file), prepared in read_ahead(wanted, judge, asked, ahead):
            if time.monotonic() - started > asked.seconds:
                break
            yield {"level": "ordinary", "name": file.stem} | one(judge, prepared, asked)


def left(row: Row) -> list[str]:
    """Return what the judged source leaves to the library, in order; views are free and are not counted."""
    if row.get("tier") != "composed":
        return []
    python = ast.parse(row["source"].rpartition("'''")[2])
    calls = [ast.unparse(node.func).split(".") for node in ast.walk(python) if isinstance(node, ast.Call)]
    names = [call[3] if call[1] == "ops" else call[-1] for call in calls if call[0] == "torch" and len(call) > 1]
    return [name for name in names if name != "empty" and not operator(name).view]


def kind_of(file: Path) -> tuple[str, bool]:
    """Return which precision a problem's docstring names, and whether it is trained."""
    told = re.findall(r"\w+", ast.get_docstring(ast.parse(file.read_text())) or "")
    return "tf32" if "TF32" in told else "strict", "trained" in told


HEAD = [
    "| problem | allowed | outcome | ours, ms | eager, ms | compile, ms | over better | class, labels | library's |",
    "|---|---|---|---:|---:|---:|---:|---|---|",
]


def line(row: Row, earlier: Row | None = None) -> str:
    """Return the row of the table, with how an earlier row came out if there is one."""
    over = told_of(row) if earlier is None else f"{told_of(earlier)}; {told_of(row)}"
    if row["outcome"] != "passed":
        told = str(row.get("why", "")).strip()
        if row["outcome"] == "fault":
            told = told.rpartition("\n")[2]  # of a traceback what was raised, without the machine's paths
        why = " ".join(told.split())[:300].replace("|", "/")
        return f"| {row['name']} | {row.get('allowed')} | {row['outcome']} | | | | {over} | {why} | |"
    ours, eager = row["candidate_us"] / 1e3, row["eager_us"] / 1e3
    compiled = f"{row['compile_us'] / 1e3:.3f}" if row["compile_us"] else "none"
    labels = ", ".join([row["label"], *row["labels"]])
    return (
        f"| {row['name']} | {row['allowed']} | passed | {ours:.3f} | {eager:.3f} | {compiled} | {over} | "
        f"{labels} | {', '.join(left(row))} |"
    )


def told_of(row: Row) -> str:
    """Return how a row came out, in one word."""
    return f"{row['speedup']:.2f}" if row["outcome"] == "passed" else str(row["outcome"])


def table(rows: list[Row], before: list[Row]) -> list[str]:
    """Return the rows, slowest beside its baseline last, and the counts."""
    earlier = {r["name"]: r for r in before}
    rows = sorted(rows, key=lambda r: (r["outcome"] != "passed", -(r.get("speedup") or 0.0), r["name"]))
    passed = [r for r in rows if r["outcome"] == "passed"]
    wins = sum(r["speedup"] > 1 for r in passed)
    whole = sum(not left(r) for r in passed)
    device = next((f"{r['gpu']}, PyTorch {r['torch']}" for r in rows), "")
    counts = (
        f"{device}: {len(rows)} problems, {len(passed)} verified, {whole} of these with nothing left to the library, "
        f"{wins} faster than the better of eager and compile, geometric mean {mean(passed):.2f}."
    )
    both = [r for r in passed if r["name"] in earlier and earlier[r["name"]]["outcome"] == "passed"]
    means = mean([earlier[r["name"]] for r in both]), mean(both)
    since = f" Of {len(both)} verified both times {means[0]:.2f} before and {means[1]:.2f} now."
    return [*HEAD, *(line(r, earlier.get(r["name"])) for r in rows), "", counts + (since if both else "")]


def mean(passed: list[Row]) -> float:
    return statistics.geometric_mean(r["speedup"] for r in passed) if passed else 0.0


if __name__ == "__main__":
    sys.exit(main())
