"""The worth of a kernel beside being relevant: trust, what it achieved, and how well its problem fits.

Comes in: a corpus, a query, and rows of the catalogue. Goes out: named factors, one array each, of at most `MOST`
together. Knows nothing of signals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rag_kernels.retrieval.corpus import Corpus
from rag_kernels.retrieval.signals import Candidates, Query, Rows

TRUST = np.array([1.0, 0.92, 0.0, 0.98, 1.0])  # by trust_rank: claimed 1, verified 3, confirmed 4
VERIFIED = 3  # what is only claimed is worth nothing here until it was measured
MOST = 1.27  # what the factors of a kernel stay below: only the same graph scores above 1

LEAST_SPEEDUP = 0.9  # over the better baseline: a kernel that is known to lose teaches little
LEAST_ELSEWHERE = 1.05  # of another kind of operator: what PyTorch does as well there is no lesson for here
LIKE_COSINE, LIKE_GRAPH = 0.4, 0.1  # from which on two problems have something in common

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
    fits: dict[str, tuple[NDArray[np.bool_], float]] = {
        "kind": (corpus.family[functional] == facts.family, 0.85),
        "rank": (corpus.rank[functional] == facts.rank, 0.92),
        "dtype": (corpus.dtypes[functional] == " ".join(facts.dtypes), 0.85),
        "size": (np.abs(corpus.size[functional] - facts.size) <= 2, 0.97),
    }
    if query.ridge is not None and query.bottleneck is None:
        fits["ceiling"] = (same_ceiling(corpus, query, rows), 0.85)
    return {name: np.where(fitting, 1.0, otherwise) for name, (fitting, otherwise) in fits.items()}


def same_ceiling(corpus: Corpus, query: Query, rows: Rows) -> NDArray[np.bool_]:
    """Return which kernels are for problems that the same ceiling bounds: memory, or arithmetic of products."""
    assert query.facts is not None and query.ridge is not None
    bound = corpus.intensity[corpus.catalogue.functional[rows]] > query.ridge
    same: NDArray[np.bool_] = bound == (query.facts.intensity > query.ridge)
    return same


def worth_reading(corpus: Corpus, query: Query, found: Candidates) -> NDArray[np.bool_]:
    """Return which kernels a writer may learn from: those of problems that are like the one asked for or built around
    an operator of its family, or for which products of the same kind of numbers are the ceiling as they are here; of
    another kind of operator those alone that gain by more than a few percent, have the same ceiling or much of the
    graph, and are no farther from their floor than what the writer has; and none that is known to lose, unless all on
    the same graph do.
    """
    rows = found.rows
    functional, speedup = corpus.catalogue.functional[rows], corpus.catalogue.speedup[rows]
    same_graph = corpus.graph_key[functional] == (query.graph_key or "")
    wins = np.isnan(speedup) | (speedup >= LEAST_SPEEDUP)
    if not (same_graph & wins).any():
        wins |= same_graph
    if not {"dense", "graph"} <= found.scores.keys():
        return np.asarray(wins, dtype=np.bool_)
    graph = found.scores["graph"]
    like = (graph >= LIKE_GRAPH) | ((found.scores["dense"] >= LIKE_COSINE) & (graph > 0))  # not by rank and dtype alone
    if query.facts is None:
        return np.asarray((like | same_graph) & wins, dtype=np.bool_)
    same_kind = same_graph | (corpus.family[functional] == query.facts.family)
    elsewhere = np.isnan(speedup) | (speedup >= LEAST_ELSEWHERE)
    if query.ridge is not None:
        ceiling = same_ceiling(corpus, query, rows)
        if query.facts.intensity > query.ridge:
            short = np.array([_is_short(dtypes) for dtypes in corpus.dtypes])[functional]
            like |= short == _is_short(" ".join(query.facts.dtypes))
        elsewhere &= ceiling | (graph >= LIKE_GRAPH)  # what has a part of the graph serves for that part
    if query.bottleneck is not None:
        reached = corpus.catalogue.floor_fraction[rows]
        elsewhere &= np.isnan(reached) | (reached >= query.bottleneck.reached)
    return np.asarray((same_kind | (like & elsewhere)) & wins, dtype=np.bool_)


def _is_short(dtypes: str) -> bool:
    """Return whether numbers of sixteen bits are among these dtypes."""
    return "float16" in dtypes


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
