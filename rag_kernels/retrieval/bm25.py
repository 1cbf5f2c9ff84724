"""An inverted index over token lists: BM25, and how much of two token sets is shared.

Comes in: documents as lists of tokens. Goes out: a score for each document. bm25s was used before; it takes half a
second to import, and sums with `np.add.at`, which is many times slower over a long list. Knows nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

K1, B = 1.5, 0.75

Scores = NDArray[np.float32]


class Postings:
    """Index token lists: for each token the documents that have it, with their BM25 weight. Documents do not change."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        self.count = len(documents)
        self.tokens: dict[str, int] = {}
        number = self.tokens
        flat = [number.setdefault(token, len(number)) for tokens in documents for token in tokens]
        lengths = np.fromiter((len(tokens) for tokens in documents), dtype=np.int64, count=self.count)
        pairs = np.asarray(flat, dtype=np.int64) * max(self.count, 1) + np.repeat(np.arange(self.count), lengths)
        pairs, often = np.unique(pairs, return_counts=True)
        token, document = np.divmod(pairs, max(self.count, 1))
        self._document = document.astype(np.int32)
        self._start = np.searchsorted(token, np.arange(len(number) + 1))
        holders = np.diff(self._start)
        self._rarity = np.log1p((self.count - holders + 0.5) / (holders + 0.5)).astype(np.float32)
        rarity = self._rarity[token]
        length = lengths / max(float(lengths.mean()) if self.count else 0.0, 1.0)
        self._weight = (rarity * often / (often + K1 * (1 - B + B * length[document]))).astype(np.float32)
        self._size = np.bincount(document, rarity, self.count).astype(np.float32)  # of each document's token set

    def bm25(self, query: Iterable[str]) -> Scores:
        """Return the BM25 score of each document; a token that is asked for twice counts twice."""
        scores = np.zeros(self.count, dtype=np.float32)
        for token in query:
            if token in self.tokens:
                here = self._range(token)
                scores[self._document[here]] += self._weight[here]
        return scores

    def shared(self, query: Iterable[str]) -> Scores:
        """Return shared tokens over all tokens of document and query (Jaccard), each weighted by how rare it is."""
        shared, asked = np.zeros(self.count, dtype=np.float32), 0.0
        for token in set(query):
            if token not in self.tokens:
                asked += float(np.log1p(2 * self.count + 1))
                continue
            rarity = self._rarity[self.tokens[token]]
            asked += float(rarity)
            shared[self._document[self._range(token)]] += rarity
        either = self._size + np.float32(asked) - shared
        return np.where(either > 0, shared / np.where(either > 0, either, 1), 0).astype(np.float32)

    def holders(self, token: str) -> NDArray[np.int32]:
        """Return the numbers of the documents that have a token."""
        return self._document[self._range(token)] if token in self.tokens else self._document[:0]

    def _range(self, token: str) -> slice:
        number = self.tokens[token]
        return slice(self._start[number], self._start[number + 1])
