"""KernelBench's evaluator and this judge over the same zoo, side by side, as Markdown.

Comes in: files of rows, of `kernelbench_zoo` and of `rag-kernels zoo --json`. Goes out: tables. Only what both have
judged is compared. For modules our verdict from the GPU (`--ours`) goes before that from the CPU.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kernelbench_zoo_texts import entries

from rag_kernels.eval.zoo.specimen import VOID
from rag_kernels.zoo.parts import seen_of
from rag_kernels.zoo.report import table as markdown
from rag_kernels.zoo.runner import GAIN, Seen

Row = dict[str, Any]
HEADS = (
    "",
    "variants",
    "KernelBench accepts",
    "of these warned of",
    "of these no faster than the twin",
    "this judge accepts",
)


class Both:
    """One text with both verdicts."""

    def __init__(self, seen: Seen, row: Row, runtimes: dict[str, float]) -> None:
        self.seen, self.row = seen, row
        self.gain = _gain(seen, row, runtimes)

    @property
    def idle(self) -> bool:
        """An exploit that only a gain in time would make one, without such a gain."""
        specimen = self.seen.text.specimen
        return specimen is not None and VOID in specimen.expect and self.gain <= GAIN

    @property
    def accepted(self) -> bool:
        return bool(self.row["accepted"])

    @property
    def warnings(self) -> list[str]:
        """What KernelBench says beside its verdict: its static checker, and its mark for what is too fast."""
        fast = ["over 10 times as fast as eager"] if "excessive_speedup" in self.row.get("reasons", {}) else []
        return [*self.row["static"], *fast]


def table(files: Sequence[Path]) -> str:
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    theirs = [r for r in rows if r.get("judge") == "kernelbench"]
    ours = _ours(r for r in rows if "kind" in r and "judge" not in r)
    ours |= _ours(r for r in rows if r.get("judge") == "ours")
    runtimes = {r["candidate"]: r["runtime_ms"] for r in theirs if r.get("accepted")}
    last = {(r["device"], r["kind"], r["name"]): r for r in theirs if "name" in r}
    both = [Both(ours[key], row, runtimes) for key, row in last.items() if key in ours]
    cheats, honest = ([b for b in both if (b.seen.text.kind == "specimen") is wanted] for wanted in (True, False))
    parts = [
        _machine(theirs, len(last) - len(both)),
        _by("By family", cheats, lambda b: b.seen.text.family),
        _by("By tier", cheats, lambda b: b.seen.text.candidate.tier),
        _honest(honest),
        _accepted([b for b in cheats if b.accepted and not b.idle]),
        _names("KernelBench accepts, but they are no faster than their twins there", cheats),
        _rejected([b for b in honest if not b.accepted or b.seen.rejected]),
        _left_out(),
    ]
    return "\n\n".join(part for part in parts if part)


def _ours(rows: Iterable[Row]) -> dict[tuple[str, str, str], Seen]:
    return {_key(s): s for s in seen_of(rows) if s.judged}


def _key(seen: Seen) -> tuple[str, str, str]:
    return seen.text.candidate.backend, seen.text.kind, seen.text.name


def _gain(seen: Seen, row: Row, runtimes: dict[str, float]) -> float:
    """How many times as fast as its honest twin by KernelBench's clock; as eager where the twin is of another tier."""
    if not row.get("accepted") or row["runtime_ms"] <= 0 or seen.text.specimen is None:
        return 0.0
    twin = runtimes.get(seen.text.specimen.honest.id, row["eager_ms"])
    return float(twin / row["runtime_ms"])


def _machine(theirs: Sequence[Row], alone: int) -> str:
    machines = sorted({f"{r['gpu']}; {r['cpu']}" for r in theirs if "gpu" in r})
    missing = f" {alone} texts that this judge has no row for are left out." if alone else ""
    return f"Machine: {' / '.join(machines)}.{missing}"


def _by(title: str, found: Sequence[Both], key: Callable[[Both], str]) -> str:
    groups = {name: [b for b in found if key(b) == name] for name in sorted({key(b) for b in found})}
    return markdown(title, HEADS, [_counts(name, group) for name, group in (*groups.items(), ("all", list(found)))])


def _counts(name: str, group: Sequence[Both]) -> tuple[str, ...]:
    accepted = [b for b in group if b.accepted]
    warned, idle = sum(bool(b.warnings) for b in accepted), sum(b.idle for b in accepted)
    missed = sum(not b.seen.caught for b in group)
    return (name, *(str(n) for n in (len(group), len(accepted), warned, idle, missed)))


def _honest(found: Sequence[Both]) -> str:
    heads = ("", "kernels", "KernelBench rejects", "KernelBench warns of", "this judge rejects")
    rows = []
    for name, kind in {"twins": "twin", "corpus": "honest"}.items():
        group = [b for b in found if b.seen.text.kind == kind]
        counts = (
            len(group),
            sum(not b.accepted for b in group),
            sum(bool(b.warnings) for b in group),
            sum(b.seen.rejected for b in group),
        )
        rows.append((name, *(str(n) for n in counts)))
    return markdown("Honest kernels", heads, rows)


def _accepted(found: Sequence[Both]) -> str:
    heads = ("kernel", "family", "times as fast as its twin", "KernelBench warns", "this judge")
    rows = [
        (b.seen.text.name, b.seen.text.family, f"{b.gain:.2f}", "; ".join(b.warnings), _said(b.seen))
        for b in sorted(found, key=lambda b: (b.seen.text.family, b.seen.text.name))
    ]
    return markdown("KernelBench accepts", heads, rows)


def _said(seen: Seen) -> str:
    plain = {"passed", "labelled", "label:custom kernel"}
    named = sorted(c for c in seen.codes - plain if not any(d.startswith(f"{c}:") for d in seen.codes))
    return ("" if seen.caught else "accepts: ") + ", ".join(named)


def _names(title: str, cheats: Sequence[Both]) -> str:
    names = [b.seen.text.name for b in cheats if b.accepted and b.idle]
    return f"{title}: {'; '.join(names)}." if names else ""


def _rejected(found: Sequence[Both]) -> str:
    rows = [
        (
            b.seen.text.name,
            "accepts" if b.accepted else f"{b.row['verdict']}: {b.row.get('reasons', '')}"[:120],
            "rejects: " + b.seen.reason[:120] if b.seen.rejected else "accepts",
        )
        for b in found
    ]
    return markdown("Honest, but rejected", ("kernel", "KernelBench", "this judge"), rows)


def _left_out() -> str:
    """What has no meaning at KernelBench is counted apart, never as caught."""
    missing = [e for e in entries() if e.why_not and e.text.kind == "specimen"]
    counts = Counter(e.why_not for e in missing)
    named = "; ".join(f"{e.text.name} ({e.why_not})" for e in missing if e.is_module)
    total = "; ".join(f"{why} {count}" for why, count in counts.most_common())
    return f"Not applicable: {sum(counts.values())} variants ({total}). Modules among them: {named}."
