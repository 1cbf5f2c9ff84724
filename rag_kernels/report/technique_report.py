"""Cards of technique on a terminal and as JSON.

Comes in: known techniques. Goes out: text and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rag_kernels.archive.techniques import KnownTechnique
from rag_kernels.retrieval.card_sizes import told_extents, told_sizes
from rag_kernels.retrieval.cards import told_evidence, weight


def card_row(known: KnownTechnique) -> dict[str, Any]:
    """Return a card with its evidence as one JSON object."""
    card = known.technique
    proofs = [
        {
            "child": p.child,
            "parent": p.parent,
            "gain": p.gain,
            "problem": p.problem_name,
            "device": p.device_name,
            "shapes": p.shapes,
        }
        for p in known.evidence
    ]
    used = {"shown": known.shown, "won": known.won, "weight": round(weight(known), 3)}
    return {"id": card.id, **asdict(card), **used, "evidence": proofs, "created_at": known.created_at}


def cards_text(known: Sequence[KnownTechnique]) -> str:
    """Return a line or two for each card, the weightiest first."""
    ordered = sorted(known, key=lambda one: (-weight(one), one.technique.title))
    return "\n".join(
        f"{one.technique.id}  {weight(one):.2f}  {one.technique.title}\n    {told_evidence(one)}" for one in ordered
    )


def card_text(known: KnownTechnique) -> str:
    """Return one card, whole."""
    card = known.technique
    facts = {
        "against": card.bottlenecks,
        "backends": card.backends,
        "operators": card.operators,
        "dtypes": card.dtypes,
        "architectures": card.architectures,
        "sizes": (told_sizes(card),),
        "recognised by": card.signs,
        "origin": (card.origin,),
    }
    lines = [f"{card.id}  {card.title}", "", card.advice, ""]
    lines += [f"{name:14} {', '.join(values)}" for name, values in facts.items() if any(values)]
    lines += [f"{'weight':14} {weight(known):.2f}: {told_evidence(known)}", ""]
    for p in known.evidence:
        sizes = f" ({told})" if (told := told_extents([p])) else ""
        lines.append(f"{p.gain:6.2f}x  {p.child} from {p.parent}, {p.problem_name}{sizes} on {p.device_name}")
    return "\n".join(lines).rstrip()
