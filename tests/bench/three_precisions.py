"""Tables of KernelBench in three precisions side by side, from rows of `offline_kernelbench`.

    python tests/bench/three_precisions.py rows_1.jsonl rows_2.jsonl ...
    python tests/bench/three_precisions.py docs/measured/three_precisions.jsonl.gz
    python tests/bench/three_precisions.py rows_1.jsonl rows_2.jsonl ... --keep docs/measured/three_precisions.jsonl.gz

A row's class is what its own fields say: strict fp32, fp32 with TF32 allowed on both sides, or bf16. Counted is every
problem that a verdict came of, but for degenerate ones: fast_1 is the share of these with a verified kernel that is
faster, the geometric mean is of the verified. `over eager` is KernelBench-Verified's column. Not judged is what a run
was cut off at, what ran out of GPU memory beside others, and what has no result to compare with (random numbers,
operators without bf16): told and not counted. --keep writes what the tables need of the rows, one of each problem.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from offline_kernelbench import ran_out
from offline_tables import BEGUN, Row, by_family, family, geomean, lines_of, number_of, verified

from rag_kernels.eval.records import bars
from rag_kernels.ingest.functional.functionalize import SCALED

CLASSES = {"strict": "strict fp32", "tf32": "TF32 allowed", "bfloat16": "bf16"}
HEAD = [
    "| class | level | problems | full size | verified | kernel tier | fast_1 | geomean | median | fast_1 over eager | "
    "geomean over eager | degenerate | not judged |",
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
]


KEPT = (
    "level name dtype allowed outcome why label labels tier degenerate notice operators eager compile speedup eager_us "
    "compile_us candidate_us floor_us gpu torch compile_note"
).split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    rows = read(asked.rows)
    if asked.keep:
        lines = [json.dumps({key: row[key] for key in KEPT if key in row}) for row in rows]
        asked.keep.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    print("\n".join(tables(rows)))


def read(files: Iterable[Path]) -> list[Row]:
    """Rows of several files; of one problem in one class the last that says how it came out."""
    found: dict[tuple[str, str, str], Row] = {}
    for file in files:
        for line in lines_of(file):
            row = json.loads(line)
            if row.get("confirm"):  # of `many_kernels`, for an archive
                continue
            key = (class_of(row), row["level"], row["name"])
            if row["outcome"] != BEGUN or key not in found:
                found[key] = row
    return list(found.values())


def class_of(row: Row) -> str:
    return str(row.get("dtype") or row["allowed"])


def tables(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["No rows."]
    machines = sorted({f"{r['gpu']}, PyTorch {r['torch']}" for r in rows if "gpu" in r})
    classes = [c for c in CLASSES if any(class_of(r) == c for r in rows)]
    lines = ["; ".join(machines) + ".", "", *HEAD]
    for name in classes:
        mine = [r for r in rows if class_of(r) == name]
        levels = sorted({r["level"] for r in mine})
        lines += [line(name, level, [r for r in mine if r["level"] == level]) for level in levels]
        lines.append(line(name, "all", mine))
    for name in classes:
        lines += ["", f"{CLASSES[name]}, by family, over the better of both:", ""]
        lines += by_family([r | {"claims": not suspect(r)} for r in rows if class_of(r) == name and verified(r)])
    return [*lines, "", *side_by_side(rows, classes), "", *others(rows)]


def line(name: str, level: str, rows: Sequence[Row]) -> str:
    ended = [r for r in rows if judged(r)]
    counted = [r for r in ended if not r.get("degenerate")]
    good = [r for r in counted if verified(r)]
    timed = [r for r in good if not suspect(r)]
    better, eager = [r["speedup"] for r in timed], [r["eager"] for r in timed]
    cells = [
        CLASSES[name],
        level,
        len(counted),
        sum(SCALED not in r.get("notice", "") for r in counted),
        len(good),
        sum(r["tier"] == "kernel" for r in good),
        share(better, counted),
        f"{geomean(better):.2f}",
        f"{statistics.median(better or [0]):.2f}",
        share(eager, counted),
        f"{geomean(eager):.2f}",
        len(ended) - len(counted),
        len(rows) - len(ended),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def judged(row: Row) -> bool:
    """Return whether a verdict on a kernel, or none written, came of it."""
    return row["outcome"] not in (BEGUN, "problem") and not ran_out(row)


def suspect(row: Row) -> bool:
    """Return whether a label bars its speed-up; a row's own `claims` is of strict precision alone."""
    return any(map(bars, row["labels"]))


def share(speeds: Sequence[float], counted: Sequence[Row]) -> str:
    return f"{sum(s > 1 for s in speeds) / max(1, len(counted)):.2f}"


def side_by_side(rows: Sequence[Row], classes: Sequence[str]) -> list[str]:
    """A line a problem: speed-up over the better of both, over eager, and milliseconds, in each class."""
    lines = [f"| problem | family | {' | '.join(CLASSES[c] for c in classes)} |", "|---|---|" + "---|" * len(classes)]
    problems: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in rows:
        problems.setdefault((row["level"], number_of(row["name"]), row["name"]), {})[class_of(row)] = row
    for (level, _, name), of_it in sorted(problems.items()):
        kind = next((family(r) for r in of_it.values() if "operators" in r), "")
        cells = [told(of_it[c]) if c in of_it else "" for c in classes]
        lines.append(f"| {level}/{name} | {kind} | {' | '.join(cells)} |")
    return ["Over the better of both / over eager, and our milliseconds:", "", *lines]


def told(row: Row) -> str:
    if not judged(row):
        return "not judged"
    if not verified(row):
        return str(row["outcome"]) if row["outcome"] != "passed" else str(row["label"])
    marks = ", degenerate" * bool(row.get("degenerate")) + ", suspect" * suspect(row)
    marks += ", scaled down" * (SCALED in row.get("notice", ""))
    return f"{row['speedup']:.2f} / {row['eager']:.2f}, {row['candidate_us'] / 1e3:.3f} ms{marks}"


def others(rows: Sequence[Row]) -> list[str]:
    """What did not end in a verified kernel, with the reason."""
    lines = ["| problem | class | outcome | why |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda r: (r["level"], number_of(r["name"]))):
        if row["outcome"] != BEGUN and not verified(row):
            why = "GPU memory" if ran_out(row) else " ".join(str(row.get("why", "")).split())[-200:].replace("|", "/")
            lines.append(f"| {row['level']}/{row['name']} | {CLASSES[class_of(row)]} | {row['outcome']} | {why} |")
    return lines


if __name__ == "__main__":
    main()
