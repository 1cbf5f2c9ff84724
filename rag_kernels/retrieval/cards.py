"""The choice of technique cards for a prompt: those that fit the bottleneck, the operators and the device, by weight.

Comes in: the known techniques, a problem, a device and what holds the best kernel back (before there is one, the
ceiling that makes the floor). Goes out: `Card`s, best first. A card's weight follows from evidence: what it gained in
lineage, and how attempts fared that were shown it. Knows nothing of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rag_kernels.archive.techniques import Evidence, KnownTechnique
from rag_kernels.eval.machine.device import target_of
from rag_kernels.eval.records import Device, FunctionalProblem
from rag_kernels.feedback.bottleneck import Bottleneck
from rag_kernels.ingest.description.describe import description
from rag_kernels.records import TUNE, Card
from rag_kernels.retrieval.card_sizes import Extent, extent_of, nearness, operators_of, told_extents, told_sizes, within

MOST = 3  # cards in a prompt
LEAST = 0.2  # of a card that fits in every way and has held wherever it was tried
UNPROVEN = 0.5  # the weight of a card without evidence in this archive
OUTSIDE = 0.35  # at sizes that a card is not meant for: it is not shown, unless it held at such sizes
PRIOR = 4  # uses that a card is believed to have had, half of them won


def weight(known: KnownTechnique, extent: Extent | None = None) -> float:
    """Return from 0 to about 1.5: how often it held in lineage, by how much, times how attempts fared that saw it.

    For a problem of some extent what held or did not at near sizes counts more; without proofs it is `UNPROVEN`.
    """
    proofs = [(nearness(proof, extent), proof.gain) for proof in known.evidence]
    count = sum(near for near, _ in proofs)
    held = (sum(near for near, gain in proofs if gain > 1) + UNPROVEN) / (count + 1)
    typical = math.exp(sum(near * math.log(gain) for near, gain in proofs) / max(count, 1.0))
    used = 2 * (known.won + PRIOR / 2) / (known.shown + PRIOR)
    return held * min(1.5, max(0.5, typical)) * min(1.25, used)


def cards_for(
    known: Sequence[KnownTechnique],
    fp: FunctionalProblem,
    device: Device,
    bottleneck: Bottleneck,
    *,
    most: int = MOST,
) -> list[Card]:
    """Return the cards for a problem, best first."""
    families = set(description(fp).split())
    extent = extent_of(tensor.spec.shape for tensor in fp.tensors)
    found = []
    for one in known:
        if one.technique.title.startswith(TUNE):  # of archives from before such ideas were left out
            continue
        fit, why = _fit(one, families, _read(fp), device, bottleneck.kind)
        if not within(one.technique, extent):
            fit *= OUTSIDE
        score = fit * weight(one, extent)
        if score >= LEAST:
            found.append((score, _card(one, score, why)))
    found.sort(key=lambda pair: (-pair[0], pair[1].title))
    return [card for _, card in found[:most]]


def _read(fp: FunctionalProblem) -> set[str]:
    """Return the dtypes of what a kernel for this reads or multiplies: not of what it writes."""
    return {*fp.features.product_dtypes, *(tensor.spec.dtype for tensor in fp.tensors)}


def _fit(known: KnownTechnique, families: set[str], dtypes: set[str], device: Device, kind: str) -> tuple[float, str]:
    """Return how well a card fits, 0 for not at all, and why."""
    card, target = known.technique, target_of(device.arch)
    if device.backend not in card.backends:
        return 0.0, ""
    if card.architectures and not any(target.startswith(arch) for arch in card.architectures):
        return 0.0, ""
    if card.dtypes and not set(card.dtypes) & dtypes:
        return 0.0, ""
    fit, why = 1.0, []
    shared = operators_of(card, families)
    if card.operators:
        if not shared:
            return 0.0, ""
        why.append(f"for {', '.join(shared).replace('+', ' with ')}")
    else:
        fit *= 0.8
    if card.bottlenecks:
        if kind in card.bottlenecks:
            why.append(f"against {kind} as the bottleneck")
        else:
            fit *= 0.5
    if card.architectures:
        why.append(f"on {target}")
    return fit, ", ".join(why) or "for any operator"


def _card(known: KnownTechnique, score: float, why: str) -> Card:
    card = known.technique
    return Card(card.id, card.title, card.advice, told_sizes(card), told_evidence(known), round(score, 3), why)


def told_evidence(known: KnownTechnique) -> str:
    """Return what is known of a card, in a sentence: where and at which sizes it held, where not, who tried it."""
    if not known.evidence:
        told = "not measured here"
    else:
        held = [proof for proof in known.evidence if proof.gain > 1]
        lost = [proof for proof in known.evidence if proof.gain <= 1]
        parts = []
        if held:
            best = held[0]
            gains = dict.fromkeys(f"{proof.gain:.2f}" for proof in (held[-1], best))
            by = f"{best.problem_name} by {best.child} on {best.device_name}"
            parts.append(
                f"made {len(held)} of {len(known.evidence)} kernels faster than the same without it, "
                f"{' to '.join(gains)} times ({by}){_at(held)}"
            )
        if lost:
            worst = lost[-1]
            parts.append(f"did not pay on {worst.problem_name} ({worst.gain:.2f} times, {worst.child}){_at(lost)}")
        told = "; ".join(parts)
    if known.shown == 1:
        told += f"; the attempt that was shown it {'beat' if known.won else 'did not beat'} PyTorch"
    elif known.shown:
        told += f"; of {known.shown} attempts that were shown it {known.won} beat PyTorch"
    return told


def _at(proofs: Sequence[Evidence]) -> str:
    sizes = told_extents(proofs)
    return f", at {sizes}" if sizes else ""
