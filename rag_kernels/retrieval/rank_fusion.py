"""Arithmetic of retrieval: places, reciprocal rank fusion, and diversity.

Comes in: arrays of scores, and rankings. Goes out: scores and orders. Knows nothing of kernels and archives.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

RRF_K = 60
Item = TypeVar("Item")


def places(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Return places by falling score, from 1; equal scores share a place. A score of zero or less has place 0, none."""
    _, inverse = np.unique(-scores[scores > 0], return_inverse=True)
    found = np.zeros(len(scores), dtype=np.int64)
    found[scores > 0] = inverse + 1
    return found


def fuse(rankings: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float64]]:
    """Return reciprocal rank fusion: what each ranking adds to each score. First place in all of them makes 1."""
    best = len(rankings) / (RRF_K + 1)
    return [np.where(ranking > 0, 1 / (RRF_K + ranking), 0.0) / best for ranking in rankings]


def foremost(scores: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the indices of the highest `count` scores above zero, in no order; of equal ones at the edge, the
    first.
    """
    above = np.flatnonzero(scores > 0)
    if len(above) <= count:
        return above
    edge = np.partition(scores[above], len(above) - count)[len(above) - count]
    over = np.flatnonzero(scores > edge)
    return np.concatenate((over, np.flatnonzero(scores == edge)[: count - len(over)]))


def diversify(
    items: Sequence[Item], relevance: Sequence[float], similarity: Callable[[Item, Item], float], balance: float
) -> list[Item]:
    """Return all items by maximal marginal relevance; `balance` 1 is relevance alone, 0 is difference alone."""
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
    """Return shared words over all words; 1 for two empty sets."""
    return len(a & b) / len(a | b) if a | b else 1.0
