"""Markdown tables from the rows of `offline_kernelbench`, and from rows as they were printed.

    python tests/bench/offline_tables.py docs/measured/offline_tables.md
    ... [--put rows.jsonl ... --under "NVIDIA H200, ..."]

Prints how the verified problems under each heading of the file came out, by level and by family, and how near those
that memory bounds are to the floor. --put first writes newer rows in the places of older ones, or beside them. Printed
figures are rounded: a speed-up to two places.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rag_kernels.eval.records import bars

Row = dict[str, Any]
BEGUN = "begun"  # the outcome of a problem that a run was cut off at
OWN = ("custom kernel", "fused + library")
MEMORY = ("pointwise", "normalisation", "softmax", "reduction", "loss")  # families that memory bounds
HEAD = [
    "| problem | family | tier | ms | eager | compile | floor / time | speed-up | labels |",
    "|---|---|---|---:|---:|---:|---:|---:|---|",
]
COUNTS = [
    "| level | problems | verified with an own kernel | of these kernel tier | degenerate | fast_1 | "
    "fast_1 over eager | fast_1.5 | ties within 2 % | geomean | median | wrong or crashed |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--put", type=Path, nargs="+", default=[], metavar="ROWS")
    parser.add_argument("--under", default="", help="the heading that newer rows stand under")
    parser.add_argument("--check", action="store_true", help="whether the file is as this program writes it")
    asked = parser.parse_args()
    sections = read_printed(asked.file.read_text())
    if asked.check and as_text(sections) != asked.file.read_text().splitlines():
        raise SystemExit(f"{asked.file} is not as this program writes it.")
    if asked.put:
        put(sections, asked.under, read(asked.put))
        asked.file.write_text("\n".join(as_text(sections)) + "\n")
    for heading, _, rows in sections:
        if rows:
            print("\n".join([f"**{heading}**, verified problems alone", "", *counts(rows), "", *by_family(rows), ""]))
            print("\n".join([*by_times(rows), *by_memory(rows)]))


# Rows as they were printed

Section = tuple[str, list[str], list[Row]]


def read_printed(text: str) -> list[Section]:
    """For each heading its other lines and its rows."""
    sections: list[Section] = []
    for line in text.splitlines():
        if line.startswith("#") or not sections:
            sections.append((line.lstrip("# "), [line], []))
        elif re.match(r"\| \w+/", line):
            sections[-1][2].append(read_line(line))
        elif line not in HEAD:
            sections[-1][1].append(line)
    return sections


def read_line(line: str) -> Row:
    name, family, tier, ms, eager, compiled, floor, speedup, labels = (cell.strip() for cell in line.split("|")[1:-1])
    found = [label for label in labels.split(", ") if label]
    level, _, problem = name.partition("/")
    us = float(ms) * 1e3
    return {
        "level": level,
        "name": problem,
        "family": family,
        "outcome": "passed",
        "label": OWN[0],
        "tier": tier,
        "candidate_us": us,
        "eager_us": float(eager) * 1e3,
        "eager": float(eager) * 1e3 / us,
        "compile_us": None if compiled == "none" else float(compiled) * 1e3,
        "floor_us": int(floor[:-1]) / 100 * us,
        "speedup": float(speedup),
        "labels": [label for label in found if label != "degenerate"],
        "degenerate": "degenerate" if "degenerate" in found else "",
        "claims": not any(map(bars, found)),
    }


def put(sections: Sequence[Section], under: str, newer: Sequence[Row]) -> None:
    rows = next((rows for heading, _, rows in sections if heading == under), None)
    if rows is None:
        raise SystemExit(f"There is no heading {under!r} in the file; name one with --under.")
    older = {(r["level"], r["name"]): r for r in rows}
    for row in filter(verified, newer):
        key = row["level"], row["name"]
        known = older.get(key, {}).get("degenerate", "")
        older[key] = read_line(printed(row | {"degenerate": row["degenerate"] or known}))
    rows[:] = older.values()


def as_text(sections: Sequence[Section]) -> list[str]:
    """Under each heading first what is no row."""
    lines = []
    for _, others, rows in sections:
        lines += [*"\n".join(others).rstrip().splitlines(), ""]
        if rows:
            lines += [*HEAD, *map(printed, ordered(rows)), ""]
    return lines[:-1]


# Tables


def read(files: Iterable[Path]) -> list[Row]:
    """Rows of several files; of a problem that was run twice with the same parameter changed, or none, the later."""
    rows = [json.loads(line) for f in files if f.is_file() for line in lines_of(f)]
    return list({(r["level"], r["name"], r.get("tune")): r for r in rows}.values())


def lines_of(file: Path) -> list[str]:
    """The lines of a text file, or of one that is packed by gzip."""
    return (gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()).splitlines()


def tables(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["No rows."]
    lines = [f"{rows[0].get('gpu')}, torch {rows[0].get('torch')}.", "", *counts(rows), "", *by_family(rows), ""]
    lines += [*by_memory(rows), *over_each(rows)]
    causes = Counter((r["level"], r["outcome"], cause(r)) for r in rows if not verified(r))
    lines += ["", "| level | outcome | cause | problems |", "|---|---|---|---:|"]
    lines += [f"| {level} | {outcome} | {why} | {n} |" for (level, outcome, why), n in sorted(causes.items())]
    return [*lines, "", *HEAD, *map(printed, ordered(filter(verified, rows)))]


def counts(rows: Sequence[Row]) -> list[str]:
    levels = sorted({r["level"] for r in rows})
    return COUNTS + [level_line(level, [r for r in rows if r["level"] == level]) for level in levels]


def by_family(rows: Sequence[Row]) -> list[str]:
    lines = ["| level | family | verified | geomean | median | floor over time, median |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    for (level, family), found in sorted(families(rows).items()):
        speeds = [r["speedup"] for r in found]
        middle, near = statistics.median(speeds), statistics.median(map(floor_share, found))
        lines.append(f"| {level} | {family} | {len(found)} | {geomean(speeds):.2f} | {middle:.2f} | {near:.0%} |")
    return lines


def by_memory(rows: Sequence[Row]) -> list[str]:
    """What families that memory bounds come to together."""
    lines = []
    for level in sorted({r["level"] for r in rows}):
        found = [r for (its, family), part in families(rows).items() if its == level and family in MEMORY for r in part]
        if found:
            near = statistics.median(map(floor_share, found))
            lines.append(f"{level}: {len(found)} problems that memory bounds, median {100 * near:.0f} % of the floor.")
    return [*lines, ""]


def over_each(rows: Sequence[Row]) -> list[str]:
    """Speed-ups over each of both baselines, where the tables' own are over the better one."""
    lines = []
    for level in sorted({r["level"] for r in rows}):
        found = [r for r in rows if r["level"] == level and verified(r)]
        eager, compiled = ([r[side] for r in found if r.get(side)] for side in ("eager", "compile"))
        lines.append(f"{level}: geomean {geomean(eager):.2f} over eager, {geomean(compiled):.2f} over torch.compile.")
    return [*lines, ""]


def by_times(rows: Sequence[Row]) -> list[str]:
    """Speed-ups as the best baseline's time over ours, where the rows' own come from interleaved calls.

    Those reach torch.compile by way of an earlier race against eager: where compilers ran beside, eager's launches may
    have been slower in one of both.
    """
    lines = []
    for level in sorted({r["level"] for r in rows}):
        counted = [r for r in rows if r["level"] == level and not r["degenerate"]]
        timed = [r for r in counted if verified(r) and r["claims"]]
        speeds = [min(filter(None, (r["compile_us"], r["eager_us"]))) / r["candidate_us"] for r in timed]
        fast = sum(s > 1 for s in speeds) / max(1, len(counted))
        lines.append(f"{level}: by the times in the rows fast_1 {fast:.2f}, geomean {geomean(speeds):.2f}.")
    return [*lines, ""]


def floor_share(row: Row) -> float:
    return min(1.0, float(row["floor_us"] / row["candidate_us"]))


def printed(row: Row) -> str:
    times = [f"{us / 1e3:.3f}" if us else "none" for us in (row["candidate_us"], row["eager_us"], row["compile_us"])]
    near, labels = row["floor_us"] / row["candidate_us"], [*row["labels"], *["degenerate"] * bool(row["degenerate"])]
    cells = [f"{row['level']}/{row['name']}", family(row), row["tier"], *times, f"{near:.0%}", f"{row['speedup']:.2f}"]
    return f"| {' | '.join([*cells, ', '.join(labels)])} |"


def ordered(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: (r["level"], number_of(r["name"]), r["name"]))


def number_of(name: str) -> int:
    """KernelBench's number of a problem; others stand first."""
    head = name.partition("_")[0]
    return int(head) if head.isdigit() else 0


def verified(row: Row) -> bool:
    return row["outcome"] == "passed" and row["label"] in OWN


def level_line(level: str, rows: Sequence[Row]) -> str:
    good = [r for r in rows if verified(r)]
    timed = [r for r in good if r["claims"] and not r["degenerate"]]
    speeds = [r["speedup"] for r in timed]
    counted = sum(not r.get("degenerate") for r in rows)

    def share(count: int) -> str:
        return f"{count / max(1, counted):.2f}"

    bad = sum(r["outcome"] in ("wrong", "crashed", "timed_out", "build_failed", "fault") for r in rows)
    return (
        f"| {level} | {len(rows)} | {len(good)} | {sum(r['tier'] == 'kernel' for r in good)} | "
        f"{sum(bool(r.get('degenerate')) for r in rows)} | {share(sum(s > 1 for s in speeds))} | "
        f"{share(sum(r['eager'] > 1 for r in timed))} | {share(sum(s > 1.5 for s in speeds))} | "
        f"{share(sum(0.98 <= s <= 1.02 for s in speeds))} | {geomean(speeds):.2f} | "
        f"{statistics.median(speeds or [0]):.2f} | {bad} |"
    )


def families(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if verified(row) and row["claims"] and not row["degenerate"]:
            found.setdefault((row["level"], family(row)), []).append(row)
    return found


def family(row: Row) -> str:
    """By the operators of its graph, the heaviest first."""
    if "family" in row:
        return str(row["family"])
    names = " ".join(row["operators"])
    kinds = (
        ("convolution", ("conv",)),
        ("matrix product", ("mm", "linear", "matmul", "einsum", "mv")),
        ("attention", ("attention",)),
        ("pooling", ("pool",)),
        ("softmax", ("softmax", "logsumexp")),
        ("normalisation", ("norm",)),
        ("loss", ("loss", "cross_entropy", "kl_div")),
        ("scan", ("cumsum", "cumprod")),
        ("reduction", ("sum", "mean", "max.dim", "min.dim", "amax", "amin", "argm", "var", "std")),
    )
    return next((kind for kind, marks in kinds if any(m in names for m in marks)), "pointwise")


def cause(row: Row) -> str:
    if row["outcome"] == "nothing written":
        return ", ".join(n.split(".")[1] if "." in n else n for n in row.get("operators", [])[:4])
    if row["outcome"] == "passed":
        return f"label {row['label']}"
    return f"{row['name'][:30]}: {row.get('why', '')[:90]}".replace("|", "/").replace("\n", " ")


def geomean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else 0.0


if __name__ == "__main__":
    main()
