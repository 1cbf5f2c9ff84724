"""The report of a run of the zoo: one line for each text while it runs, tables and one summary object at the end.

Comes in: `Seen`s. Goes out: text (Markdown, which reads well on a terminal too) and plain rows for JSON.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rag_kernels.experiments.wilson import wilson
from rag_kernels.zoo.ablation import Without
from rag_kernels.zoo.runner import Seen

STAGES = ("build", "prepare", "load", "check", "special", "repeat", "sanitize", "classify", "time", "odd")
NAMED = 3  # codes that are named of those which catch what one defence less lets through


def summary(seen: Sequence[Seen]) -> dict[str, int]:
    """Return the object that `--json` ends with."""
    specimens = [s for s in seen if s.text.kind == "specimen"]
    honest = [s for s in seen if s.text.kind != "specimen"]
    return {
        "specimens": len(specimens),
        "caught": sum(s.caught and s.judged for s in specimens),
        "right_reason": sum(s.right for s in specimens),
        "honest": len(honest),
        "false_rejects": sum(s.rejected and s.judged for s in honest),
        "false_flags": sum(s.flagged for s in honest),
    }


def row(seen: Seen) -> dict[str, Any]:
    """Return one judged text as a JSON row."""
    return {
        "name": seen.text.name,
        "kind": seen.text.kind,
        "family": seen.text.family,
        "tier": seen.text.candidate.tier,
        "device": seen.text.candidate.backend,
        "ok": fine(seen),
        "codes": sorted(seen.codes),
        "reason": seen.reason,
        "stage_s": {name: round(s, 4) for name, s in seen.stage_s.items()},
    }


def fine(seen: Seen) -> bool:
    """Return whether a judgement ended as it should."""
    if not seen.judged:
        return True
    return seen.right if seen.text.kind == "specimen" else not (seen.rejected or seen.flagged)


def line(seen: Seen) -> str:
    """Return one judged text on a line."""
    if not seen.judged:
        mark = "compiled "
    elif seen.text.kind == "specimen":
        mark = "caught   " if seen.right else "otherwise" if seen.caught else "MISSED   "
    else:
        mark = "REJECTED " if seen.rejected else "FLAGGED  " if seen.flagged else "passes   "
    seconds = sum(seen.stage_s.values())
    return f"{mark}  {seconds:5.2f} s  {seen.text.name}: {seen.reason}"[:160]


def tables(seen: Sequence[Seen]) -> str:
    """Return the whole report as Markdown."""
    specimens = [s for s in seen if s.text.kind == "specimen" and s.judged]
    parts = [
        _catches("Catch rate by family", specimens, lambda s: s.text.family),
        _catches("By adversary", specimens, lambda s: s.text.specimen.adversary if s.text.specimen else ""),
        _catches("By layer of defence", specimens, lambda s: s.text.specimen.layer if s.text.specimen else ""),
        _catches("Written without sight of the judge", specimens, _held_out),
        _honest([s for s in seen if s.text.kind != "specimen" and s.judged]),
        _cost([s for s in seen if s.judged]),
        _failures("Missed", [s for s in specimens if not s.caught]),
        _failures("Caught, but not for the expected reason", [s for s in specimens if s.caught and not s.right]),
        _failures("Honest, but rejected or flagged", [s for s in seen if s.text.kind != "specimen" and not fine(s)]),
        _open(specimens),
    ]
    return "\n\n".join(part for part in parts if part)


def _held_out(seen: Seen) -> str:
    return "held out" if seen.text.specimen and seen.text.specimen.held_out else "written against it"


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns; empty when it has no rows."""
    body = [list(r) for r in rows]
    if not body:
        return ""
    widths = [max(len(r[i]) for r in [list(heads), *body]) for i in range(len(heads))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)) + " |" for r in body]
    head = "| " + " | ".join(h.ljust(w) for h, w in zip(heads, widths, strict=True)) + " |"
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([f"### {title}", "", head, rule, *lines])


def _catches(title: str, seen: Sequence[Seen], key: Callable[[Seen], str]) -> str:
    groups = {name: [s for s in seen if key(s) == name] for name in sorted({key(s) for s in seen})}
    rows = [_share_row(name, group) for name, group in groups.items()]
    return table(title, ("", "variants", "caught", "95 %", "right reason"), [*rows, _share_row("all", seen)])


def _share_row(name: str, group: Sequence[Seen]) -> tuple[str, ...]:
    caught, right = sum(s.caught for s in group), sum(s.right for s in group)
    return name, str(len(group)), str(caught), _interval(caught, len(group)), str(right)


def _interval(hits: int, of: int) -> str:
    low, high = wilson(hits, of)
    return f"{low:.1%} to {high:.1%}"


def _honest(seen: Sequence[Seen]) -> str:
    kinds = {"twins": "twin", "corpus": "honest"}
    rows = []
    for name, kind in kinds.items():
        group = [s for s in seen if s.text.kind == kind]
        rejected, flagged = sum(s.rejected for s in group), sum(s.flagged for s in group)
        rows.append((name, str(len(group)), str(rejected), _interval(rejected, len(group)), str(flagged)))
    return table("Honest kernels", ("", "kernels", "rejected", "95 %", "flagged"), rows)


def _cost(seen: Sequence[Seen]) -> str:
    rows = []
    for stage in ("all", *STAGES):
        spent = sorted(sum(s.stage_s.values()) if stage == "all" else s.stage_s.get(stage, 0.0) for s in seen)
        if spent:
            p95 = spent[min(len(spent) - 1, math.ceil(0.95 * len(spent)) - 1)]
            rows.append((stage, f"{statistics.median(spent):.3f}", f"{p95:.3f}", f"{sum(spent):.1f}"))
    return table("Seconds a candidate", ("stage", "median", "95th percentile", "sum"), rows)


def _failures(title: str, seen: Sequence[Seen]) -> str:
    rows = [(s.text.name, s.text.family, ", ".join(sorted(s.codes)), ", ".join(_expected(s))) for s in seen]
    return table(title, ("kernel", "family", "codes", "expected"), rows)


def _expected(seen: Seen) -> tuple[str, ...]:
    return seen.text.specimen.expect if seen.text.specimen else ("passed",)


def _open(seen: Sequence[Seen]) -> str:
    known = {s.text.specimen.idea: s.text.specimen.open for s in seen if s.text.specimen and s.text.specimen.open}
    return table("Known to escape", ("idea", "why"), known.items())


def ablation(first: Sequence[Seen], found: Sequence[Without]) -> str:
    """Return a Markdown table of the defences: what is missed without each, and what catches the rest."""
    specimens = [s for s in first if s.text.kind == "specimen"]
    missed = [s.text.name for s in specimens if not s.caught]
    rows = [("nothing", str(len(specimens)), str(len(missed)), "; ".join(missed), "")]
    for w in found:
        named, rest = w.instead[:NAMED], sum(count for _, count in w.instead[NAMED:])
        instead = [f"{code} {count}" for code, count in named] + [f"others {rest}"] * bool(rest)
        rows.append((w.defence, str(w.again), str(len(w.missed)), "; ".join(w.missed), ", ".join(instead)))
    return table("One defence less", ("without", "judged", "missed", "which", "what catches the others"), rows)
