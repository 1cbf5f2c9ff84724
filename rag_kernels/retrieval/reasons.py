"""The reasons why a kernel was found: each signal with its place, each factor with its weight, and a short version.

Comes in: what the ranking worked out for one candidate. Goes out: `Reasons`. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_kernels.retrieval.corpus import Corpus
from rag_kernels.retrieval.signals import Candidates, Query

TRUST = ("", "claimed", "compiled", "verified", "confirmed")


@dataclass(frozen=True, slots=True)
class Signal:
    """Hold one ranking: the score, the place among all candidates, and what that adds to relevance."""

    name: str
    score: float
    place: int
    share: float


@dataclass(frozen=True, slots=True)
class Factor:
    """Hold a weight that multiplies relevance, and why."""

    name: str
    told: str
    weight: float


@dataclass(frozen=True, slots=True)
class Reasons:
    """Hold all reasons of one candidate; `short` goes into prompts and archives.

    Relevance is the sum of the shares; the score is relevance times all weights, scaled below 1, and 1 more for the
    same graph; a kernel that the words name has so much more that it comes before those that are only alike.
    """

    short: tuple[str, ...]
    signals: tuple[Signal, ...]
    factors: tuple[Factor, ...]
    named: float = 0.0  # how far the words of the query name it


def tell(
    corpus: Corpus,
    query: Query,
    found: Candidates,
    shares: Mapping[str, NDArray[Any]],
    weights: Mapping[str, NDArray[Any]],
    at: int,
) -> Reasons:
    """Return the reasons of one candidate."""
    row = int(found.rows[at])
    signals = [
        Signal(name, float(found.scores[name][at]), int(found.places[name][at]), float(share[at]))
        for name, share in shares.items()
    ]
    told = _told(corpus, query, row, {name: float(weight[at]) for name, weight in weights.items()})
    made = [Factor(name, told.get(name, ""), float(weight[at])) for name, weight in weights.items()]
    by_name = float(found.named[at])
    short = (*(["named"] if by_name else []), *_short(corpus, query, row, signals, told))
    return Reasons(short, tuple(signals), tuple(made), by_name)


def _short(corpus: Corpus, query: Query, row: int, signals: list[Signal], told: Mapping[str, str]) -> Iterator[str]:
    number = int(corpus.catalogue.functional[row])
    if query.graph_key is not None and corpus.graph_key[number] == query.graph_key:
        yield "same graph"
    for signal in signals:
        if signal.place:
            yield _signal(signal)
    for name in ("speed-up", "helped", "kind", "rank", "size", "ceiling", "bottleneck", "floor"):
        if told.get(name):
            yield told[name]


def _signal(signal: Signal) -> str:
    match signal.name:
        case "dense" | "graph":
            return f"{signal.name} {signal.score:.2f}"
        case "gain":
            return f"{signal.score:.1f}x as fast as its parent"
        case "remedy":
            return f"remedy rank {signal.place}"
        case _:
            return f"{signal.name} rank {signal.place}"


def _told(corpus: Corpus, query: Query, row: int, weights: Mapping[str, float]) -> dict[str, str]:
    """Return what each factor stands for, in a few words; empty where there is nothing to say."""
    known = corpus.catalogue
    speedup, helped = float(known.speedup[row]), int(known.helped[row])
    trust = TRUST[int(known.trust[row])]
    told = {"trust": trust if known.here[row] else f"{trust}, measured on another device"}
    if not np.isnan(speedup):
        how = "claims" if trust == "claimed" else "won" if speedup > 1 else "lost,"
        told["speed-up"] = f"{how} {speedup:.1f}x on {known.devices[known.device[row]]}"
    if helped:
        told["helped"] = f"led to {helped} faster kernel{'s' if helped > 1 else ''}"
    if query.facts is not None:
        same_rank, same_dtype = weights["rank"] == 1, weights["dtype"] == 1
        told["kind"] = f"also {query.facts.family}" if weights["kind"] == 1 else "another kind of operator"
        told["rank"] = ("same rank and dtype" if same_dtype else "same rank") if same_rank else "another rank"
        told["dtype"] = "same dtype" if same_dtype else "another dtype"
        told["size"] = "similar size" if weights["size"] == 1 else ""
        told["ceiling"] = "bound by the same ceiling" if weights.get("ceiling") == 1 else ""
    if query.bottleneck is not None:
        reached = float(known.floor_fraction[row])
        told["floor"] = "" if np.isnan(reached) else f"reached {reached:.0%} of its floor"
        if "bottleneck" in weights:
            told["bottleneck"] = f"also bound by {query.bottleneck.kind}" if weights["bottleneck"] == 1 else ""
    return told
