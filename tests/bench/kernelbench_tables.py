"""Markdown tables from the rows of `kernelbench_evaluator`: speed, stages, and who accepts what."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
TITLES = {
    "kernelbench": "KernelBench's evaluator",
    "own": "ours: kernel and composed tier",
    "split": "ours: the same, device code by NVRTC",
    "module": "ours: the same `ModelNew` files",
}


def tables(rows: Sequence[Row]) -> str:
    by_arm = {arm: [r for r in rows if r["kind"] == "candidate" and r["arm"] == arm] for arm in TITLES}
    by_arm = {arm: _one_each(found) for arm, found in by_arm.items() if found}
    parts = [_machine(rows), _speed(rows, by_arm), _stages(by_arm), _agreement(by_arm), _differences(by_arm)]
    return "\n\n".join(part for part in parts if part)


def _one_each(found: Sequence[Row]) -> list[Row]:
    """The first row of each name. Compile seconds are those of what was compiled alone, where some were: several
    compilers at a time slow each other.
    """
    alone = [r["stages"]["compile"] for r in found if "compile" in r["stages"] and "load compiled" not in r["stages"]]
    rows = []
    for row in {r["name"]: r for r in reversed(found)}.values():
        stages = row["stages"]
        if alone and "load compiled" in stages:
            compile_s = statistics.median(alone)
            seconds = row["seconds"] - stages["compile"] + compile_s
            row = row | {"seconds": seconds, "stages": stages | {"compile": compile_s}}
        rows.append(row)
    return rows[::-1]


def _machine(rows: Sequence[Row]) -> str:
    machines = {f"{r['gpu']}; {r['cpu']}" for r in rows if r["kind"] == "machine"}
    trials = {
        f"KernelBench with {r['correct_trials']} correctness and {r['perf_trials']} timing trials; our judge with"
        f"{'' if r['compile_baseline'] else 'out'} a torch.compile baseline"
        for r in rows
        if r["kind"] == "machine"
    }
    return f"Machine: {' / '.join(sorted(machines))}. {' / '.join(sorted(trials))}."


def _speed(rows: Sequence[Row], by_arm: dict[str, list[Row]]) -> str:
    """Verdicts an hour count everything: also what is done once a problem, and opening the judge."""
    lines: list[tuple[Any, ...]] = []
    first = 0.0
    for arm, found in by_arm.items():
        once = sum(r["seconds"] for r in rows if r["kind"] == "once" and r["arm"] == arm)
        together = [r for r in rows if r["kind"] == "together" and r["arm"] == arm]
        total_s = sum(r["seconds"] for r in together) or once + sum(r["seconds"] for r in found)
        an_hour = 3600 * len(found) / max(1e-9, total_s)
        first = first or an_hour
        own = [r["seconds"] - r["stages"].get("prepare", 0.0) for r in found]
        once += sum(r["stages"].get("prepare", 0.0) for r in found)
        title = TITLES[arm] + (f", {together[0]['judges']} judges side by side" if together else "")
        lines.append((title, len(found), an_hour, an_hour / first, statistics.median(own), _p95(own), once))
        walls = [r for r in rows if r["kind"] == "precompile"] if arm == "kernelbench" else []
        if walls:
            rest = sum(r["seconds"] - r["stages"].get("compile", 0.0) for r in found)
            share = len(found) / sum(r["count"] for r in walls)  # of what was compiled, this much was judged
            parallel = 3600 * len(found) / (rest + share * sum(r["seconds"] for r in walls))
            title = f"{TITLES[arm]}, compiled {walls[0]['jobs']} at a time before"
            lines.append((title, len(found), parallel, parallel / first, None, None, None))
    first_name = TITLES[next(iter(by_arm))] if by_arm else ""
    head = (
        f"| evaluator | candidates | verdicts an hour | times {first_name} | median s | p95 s | once for a problem, "
        "in all, s |\n|---|---:|---:|---:|---:|---:|---:|\n"
    )
    shown = ["| " + " | ".join(_cell(v) for v in line) + " |" for line in lines]
    notes = (
        "\n\nSeconds are of one candidate, everything included (start of a process, compilation, checks, times), one "
        "after the other; for our judge without what is done once for a problem, which verdicts an hour do include. "
        "Where KernelBench's candidates were compiled beforehand, the first row counts compile seconds as if they had "
        "been spent one after the other: the median of those that were compiled alone, else what was measured then."
    )
    return head + "\n".join(shown) + notes


def _stages(by_arm: dict[str, list[Row]]) -> str:
    lines = ["| evaluator | stage | candidates | median s | p95 s |", "|---|---|---:|---:|---:|"]
    for arm, found in by_arm.items():
        for stage in dict.fromkeys(stage for row in found for stage in row["stages"]):
            seconds = [row["stages"][stage] for row in found if stage in row["stages"]]
            cells = (TITLES[arm], stage, len(seconds), statistics.median(seconds), _p95(seconds))
            lines.append("| " + " | ".join(_cell(v) for v in cells) + " |")
    return "\n".join(lines)


def _agreement(by_arm: dict[str, list[Row]]) -> str:
    """How many candidates have each combination of verdicts; only those that every arm has judged."""
    names = set.intersection(*({r["name"] for r in found} for found in by_arm.values())) if by_arm else set()
    said = {arm: {r["name"]: r for r in found} for arm, found in by_arm.items()}
    counts = Counter(
        ("wrong" if said[next(iter(said))][name]["wrong"] else "right", *(_said(said[arm][name]) for arm in said))
        for name in names
    )
    lines = ["| candidates | " + " | ".join(TITLES[arm] for arm in said) + " | count |"]
    lines.append("|---" * (len(said) + 1) + "|---:|")
    lines += ["| " + " | ".join(key) + f" | {count} |" for key, count in sorted(counts.items())]
    return "\n".join(lines)


def _differences(by_arm: dict[str, list[Row]]) -> str:
    """Every candidate about which somebody is mistaken, and what each said."""
    said = {arm: {r["name"]: r for r in found} for arm, found in by_arm.items()}
    wrongs = {r["name"]: r["wrong"] for found in by_arm.values() for r in found}
    lines = ["| candidate | what it is | " + " | ".join(TITLES[arm] for arm in said) + " |"]
    lines.append("|---" * (len(said) + 2) + "|")
    for name, wrong in wrongs.items():
        answers = [said[arm].get(name) for arm in said]
        if wrong or any(row is not None and not row["accepted"] for row in answers):
            cells = ["not run" if row is None else row["verdict"] for row in answers]
            lines.append(f"| {name} | {wrong or 'right'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _said(row: Row) -> str:
    if not row["accepted"]:
        return "rejects"
    return "accepts with a label" if set(row.get("labels", [])) - {"burst-timed"} else "accepts"


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
