"""Arithmetic of retrieval: BM25 over tokens, reciprocal rank fusion, and diversity.

Comes in: token lists, rankings and scores. Goes out: scores and orders. Knows nothing of kernels, archives or
embeddings.
"""

import logging
import os
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

RRF_K = 60
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


def bm25(documents: Sequence[Sequence[str]], query: Sequence[str]) -> list[float]:
    """The BM25 score of each document."""
    # bm25s uses JAX where that is installed, and JAX would reserve three quarters of a GPU's memory here.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from bm25s import BM25

    known = {token for tokens in documents for token in tokens}
    asked = [token for token in query if token in known]
    if not asked:
        return [0.0] * len(documents)
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it asks for DEBUG when it is imported
    index = BM25()
    index.index([list(tokens) for tokens in documents], show_progress=False)
    return [float(score) for score in index.get_scores(asked)]


def positions(scores: dict[Key, float]) -> dict[Key, int]:
    """Places by falling score, from 1; equal scores share a place, so that no order is made up."""
    ordered = sorted(set(scores.values()), reverse=True)
    place = {score: number for number, score in enumerate(ordered, 1)}
    return {key: place[score] for key, score in scores.items()}


def fuse(rankings: Sequence[dict[Key, int]]) -> dict[Key, float]:
    """Reciprocal rank fusion, scaled so that first place in every ranking gives 1."""
    best = len(rankings) / (RRF_K + 1)
    keys = dict.fromkeys(key for ranking in rankings for key in ranking)
    return {key: sum(1 / (RRF_K + r[key]) for r in rankings if key in r) / best for key in keys}


def diversify(
    items: Sequence[Item], relevance: Sequence[float], similarity: Callable[[Item, Item], float], balance: float
) -> list[Item]:
    """All items by maximal marginal relevance; `balance` 1 is relevance alone, 0 is difference alone."""
    top = max(relevance, default=1.0) or 1.0
    waiting = {number: balance * score / top for number, score in enumerate(relevance)}
    likest = dict.fromkeys(waiting, 0.0)
    chosen: list[Item] = []
    while waiting:
        best = max(waiting, key=lambda number: waiting[number] - (1 - balance) * likest[number])
        del waiting[best]
        chosen.append(items[best])
        for number in waiting:
            likest[number] = max(likest[number], similarity(items[best], items[number]))
    return chosen


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """Shared words over all words; two empty sets are the same."""
    return len(a & b) / len(a | b) if a | b else 1.0
