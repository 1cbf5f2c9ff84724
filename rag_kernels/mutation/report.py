"""The report of a mutation run: a line for each row while it runs, tables and one summary object at the end.

Comes in: `Row`s. Goes out: text (Markdown) and plain numbers. A mutant counts as killed when it is refused, in a
judgement or in its confirmation, or carries a label that its original does not have.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rag_kernels.experiments.wilson import wilson
from rag_kernels.mutation.operators import OPERATORS
from rag_kernels.mutation.precision_operators import PRECISION_OPERATORS
from rag_kernels.mutation.records import KILLED, ORIGINAL, UNUSUAL, WITNESSED, Row

PEERS = ("KernelBench v0.1", "KernelBench", "robust-kbench", "KernelBench-Verified")
STAGES = ("build", "witness", "judge", "confirm")


def mutants_of(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.operator != ORIGINAL]


def originals_of(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.operator == ORIGINAL]


def witnessed(rows: Iterable[Row]) -> list[Row]:
    return [row for row in mutants_of(rows) if row.state in WITNESSED]


def is_finite(row: Row) -> bool:
    """Return whether an input without NaN and infinity shows the fault."""
    return row.witness not in UNUSUAL


def is_precise(row: Row) -> bool:
    """Return whether the operator is one of accuracy."""
    return row.operator in PRECISION_OPERATORS


def rejected(row: Row) -> bool:
    """Return whether an original was refused."""
    return "passed" not in row.codes


def missed_by(rows: Sequence[Row], peer: str) -> list[Row]:
    return [row for row in rows if peer not in row.refused_by]


def line(row: Row) -> str:
    """Return one line for the terminal; the change follows where nothing killed a mutant."""
    if row.operator == ORIGINAL:
        return f"{'rejected' if rejected(row) else 'accepted':<22} {'the original':<28} {row.original}"
    text = f"{row.state:<22} {row.operator:<28} {row.original}"
    if row.state in ("survived", "judge fault"):
        text += f"\n    shown by {row.witness} at {row.sizes} sizes: {row.how}\n" + _indented(row.change)
    return text


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers of a run."""
    made, shown, own = mutants_of(rows), witnessed(rows), originals_of(rows)
    finite = [row for row in shown if is_finite(row)]
    states = Counter(row.state for row in made)
    return {
        "mutants": len(made),
        **{state.replace(" ", "_"): states[state] for state in ("not built", "same code", "no witness")},
        "witnessed": len(shown),
        "killed": _killed(shown),
        "witnessed_finite": len(finite),
        "killed_finite": _killed(finite),
        "witnessed_precision": sum(is_precise(r) for r in finite),
        "killed_precision": _killed([r for r in finite if is_precise(r)]),
        "survived": states["survived"],
        "judge_faults": states["judge fault"],
        "missed_by": {peer: len(missed_by(finite, peer)) for peer in PEERS},
        "originals": len(own),
        "originals_rejected": sum(rejected(r) for r in own),
        "originals_refused_by": {peer: len(own) - len(missed_by(own, peer)) for peer in PEERS},
        "seconds": {stage: round(_mean(made, stage), 3) for stage in STAGES},
    }


def _killed(rows: Iterable[Row]) -> int:
    return sum(row.state in KILLED for row in rows)


def _mean(rows: Sequence[Row], stage: str) -> float:
    taken = [row.seconds[stage] for row in rows if stage in row.seconds]
    return statistics.fmean(taken) if taken else 0.0


def share(hits: int, of: int) -> str:
    """Return a share with Wilson's 95 % interval, in per cent."""
    if of == 0:
        return ""
    low, high = wilson(hits, of)
    return f"{hits / of:.1%} ({low:.1%} to {high:.1%})"


def tables(rows: Sequence[Row], *, survivors: bool = True) -> str:
    """Return the whole report."""
    shown = witnessed(rows)
    finite = [row for row in shown if is_finite(row)]
    parts = [
        _headline(rows),
        _table("operator", shown, lambda row: row.operator, [*OPERATORS, *PRECISION_OPERATORS]),
        _table("family", shown, lambda row: row.family, sorted({row.family for row in shown})),
        _table("shown by", shown, _shown_by, ["own sizes", "other sizes alone", "NaN or infinity alone"]),
        _peers(finite, originals_of(rows)),
    ]
    if survivors:
        parts.append(survivor_list(rows))
    return "\n\n".join(part for part in parts if part)


def _shown_by(row: Row) -> str:
    if not is_finite(row):
        return "NaN or infinity alone"
    return "own sizes" if row.sizes == "own" else "other sizes alone"


def _headline(rows: Sequence[Row]) -> str:
    told, own = summary(rows), originals_of(rows)
    precise = told["witnessed_precision"]
    return "\n".join(
        [
            "| | |",
            "|---|---:|",
            f"| mutants | {told['mutants']} |",
            f"| ... that do not build | {told['not_built']} |",
            f"| ... with the original's machine code | {told['same_code']} |",
            f"| ... that no input shows to be wrong | {told['no_witness']} |",
            f"| witnessed | {told['witnessed']} |",
            f"| killed | {share(told['killed'], told['witnessed'])} |",
            f"| killed of those that finite inputs show | {share(told['killed_finite'], told['witnessed_finite'])} |",
            f"| killed of faults of accuracy ({precise}) | {share(told['killed_precision'], precise)} |",
            f"| originals rejected | {told['originals_rejected']} of {len(own)} |",
            f"| seconds a mutant: build, witness, judgement, confirmation of the {_confirmed(rows)} that need one | "
            + ", ".join(f"{told['seconds'][stage]:.2f}" for stage in STAGES)
            + " |",
        ]
    )


def _confirmed(rows: Sequence[Row]) -> int:
    return sum("confirm" in row.seconds for row in rows)


def _table(title: str, rows: Sequence[Row], key: Callable[[Row], str], order: Sequence[str]) -> str:
    lines = [
        f"| {title} | witnessed | refused | refused when confirmed | labelled | survived | killed |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in order:
        group = [row for row in rows if key(row) == name]
        states = Counter(row.state for row in group)
        if group:
            counts = [states[s] for s in ("killed", "killed when confirmed", "labelled")]
            left = states["survived"] + states["judge fault"]
            told = " | ".join(str(n) for n in (len(group), *counts, left))
            lines.append(f"| {name} | {told} | {share(_killed(group), len(group))} |")
    return "\n".join(lines)


def _peers(finite: Sequence[Row], own: Sequence[Row]) -> str:
    precise = [row for row in finite if is_precise(row)]
    lines = [
        "| rule | missed | missed faults of accuracy | originals refused |",
        "|---|---:|---:|---:|",
        f"| this judge | {share(len(finite) - _killed(finite), len(finite))} "
        f"| {share(len(precise) - _killed(precise), len(precise))} | {sum(rejected(r) for r in own)} of {len(own)} |",
    ]
    for peer in PEERS:
        missed, less = len(missed_by(finite, peer)), len(missed_by(precise, peer))
        refused = len(own) - len(missed_by(own, peer))
        told = f"{share(missed, len(finite))} | {share(less, len(precise))} | {refused} of {len(own)}"
        lines.append(f"| {peer} | {told} |")
    return "\n".join(lines)


def survivor_list(rows: Sequence[Row]) -> str:
    """Return every mutant that nothing killed, with its change."""
    left = [row for row in witnessed(rows) if row.state not in KILLED]
    parts = []
    for row in sorted(left, key=lambda r: (not is_finite(r), r.operator, r.original)):
        head = f"- {row.operator}, {row.original}: {row.state}; shown by {row.witness} at {row.sizes} sizes, {row.how}"
        parts.append(f"{head}\n\n  ```diff\n" + "\n".join("  " + text for text in row.change.splitlines()) + "\n  ```")
    return "\n\n".join(parts)
