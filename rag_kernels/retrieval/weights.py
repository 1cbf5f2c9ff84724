"""The worth of a kernel beside being relevant: trust, what it achieved, and how well its problem fits.

Comes in: a corpus, a query, and rows of the catalogue. Goes out: named factors, one array each, of at most `MOST`
together. Knows nothing of signals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rag_kernels.retrieval.corpus import Corpus
from rag_kernels.retrieval.signals import Query, Rows

TRUST = np.array([1.0, 0.92, 0.0, 0.98, 1.0])  # by trust_rank: claimed 1, verified 3, confirmed 4
VERIFIED = 3  # what is only claimed is worth nothing here until it was measured
MOST = 1.27  # what the factors of a kernel stay below: only the same graph scores above 1

Factors = dict[str, NDArray[np.float64]]


def factors(corpus: Corpus, query: Query, rows: Rows) -> Factors:
    """Return every factor by its name, one array each; their product multiplies relevance."""
    catalogue = corpus.catalogue
    speedup = catalogue.speedup[rows]
    won = np.clip(np.log2(np.maximum(speedup, 1e-3)), -1, 2)
    found: Factors = {
        "trust": TRUST[catalogue.trust[rows]],
        "speed-up": np.where(np.isnan(speedup) | (catalogue.trust[rows] < VERIFIED), 1.0, 1 + 0.08 * won),
        "helped": 1 + 0.03 * np.minimum(catalogue.helped[rows], 3),
    }
    return found | fit(corpus, query, rows) | headroom(corpus, query, rows)


def fit(corpus: Corpus, query: Query, rows: Rows) -> Factors:
    """Return factors of fit in kind, rank, dtype and size class: an exemplar of another operator or rank misleads."""
    if query.facts is None:
        return {}
    facts, functional = query.facts, corpus.catalogue.functional[rows]
    fits = {
        "kind": (corpus.family[functional] == facts.family, 0.85),
        "rank": (corpus.rank[functional] == facts.rank, 0.92),
        "dtype": (corpus.dtypes[functional] == " ".join(facts.dtypes), 0.85),
        "size": (np.abs(corpus.size[functional] - facts.size) <= 2, 0.97),
    }
    return {name: np.where(fitting, 1.0, otherwise) for name, (fitting, otherwise) in fits.items()}


def headroom(corpus: Corpus, query: Query, rows: Rows) -> Factors:
    """Return factors for optimising: is its problem bound by the same ceiling, and how near is it to its floor?"""
    if query.bottleneck is None:
        return {}
    reached = np.nan_to_num(np.clip(corpus.catalogue.floor_fraction[rows], 0, 1), nan=0.5)
    found: Factors = {"floor": 0.9 + 0.1 * reached.astype(np.float64)}
    if query.bottleneck.kind in ("memory", "arithmetic"):
        bound = corpus.intensity[corpus.catalogue.functional[rows]] > query.bottleneck.ridge
        same = bound == (query.bottleneck.kind == "arithmetic")
        found["bottleneck"] = np.where(same, 1.0, 0.85)
    return found
