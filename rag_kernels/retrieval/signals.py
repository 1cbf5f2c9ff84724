"""The signals that rank kernels for a query over a corpus.

Comes in: a corpus and a `Query`. Goes out: `Candidates`, rows of the catalogue with the score and the place that each
signal gives them. Knows nothing of what kernels achieved, and of how hits are shown.

A draft is asked for by function: words (BM25), vectors (cosine) and operator graphs (shared parts). To optimise, by
bottleneck: vectors and graphs again, ideas that speak of the remedy, and how far a kernel improved on its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rag_kernels.choices import RetrievalMode
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.feedback.bottleneck import Bottleneck
from rag_kernels.ingest.description.describe import description, graph_words, keywords, query_graph, query_text
from rag_kernels.ingest.description.embedder import Embedder, Matrix
from rag_kernels.retrieval.corpus import Corpus, Facts, facts_of
from rag_kernels.retrieval.named import named
from rag_kernels.retrieval.rank_fusion import foremost, places

POOL = 200  # functional problems that each signal puts forward
LEAST_COSINE = 0.25  # below it two descriptions share nothing that matters
LEAST_GAIN = 1.05  # faster than its parent by less is noise

Rows = NDArray[np.int64]
Allowed = Callable[[Rows], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Query:
    """Hold what is looked for. `facts` and `graph_key` are None for a search in words."""

    text: str
    tokens: tuple[str, ...]
    graph: tuple[str, ...]
    vector: Matrix
    facts: Facts | None
    graph_key: str | None
    bottleneck: Bottleneck | None
    words: str = ""  # as they were asked; empty for a problem
    ridge: float | None = None  # operations a byte from which on arithmetic bounds this problem on the device


@dataclass(frozen=True, slots=True)
class Candidates:
    """Hold rows of the catalogue, in order, with what each signal gives each of them; a place of 0 is none."""

    rows: Rows
    named: NDArray[np.float32]  # how far the words of the query name each: above zero it comes first
    scores: dict[str, NDArray[np.float32]]
    places: dict[str, NDArray[np.int64]]


def make_query(
    asked: str | FunctionalProblem,
    embedder: Embedder,
    bottleneck: Bottleneck | None = None,
    ridge: float | None = None,
) -> Query:
    if isinstance(asked, FunctionalProblem):
        text, source = description(asked), asked.source
        graph = graph_words(source, asked.features.operators)
        facts, key = facts_of(asked), asked.graph_key
    else:
        text, source, graph, facts, key = query_text(asked), asked, query_graph(asked), None, None
    vector = embedder.embed([text])[0]
    words = asked if isinstance(asked, str) else ""
    return Query(text, tuple(keywords(text, source)), tuple(graph), vector, facts, key, bottleneck, words, ridge)


def names_of(mode: RetrievalMode, query: Query) -> Sequence[str]:
    """Return the signals of a mode; each single one can be tried alone."""
    if mode == "bm25":
        return ("bm25",)
    if mode == "dense":
        return ("dense",)
    return ("bm25", "dense", "graph") if query.bottleneck is None else ("dense", "graph", "remedy", "gain")


def candidates(
    corpus: Corpus, query: Query, names: Sequence[str], open_: NDArray[np.bool_], allowed: Allowed
) -> Candidates:
    """Return kernels of the problems that any signal puts forward, or of the same graph.

    `open_` says which functional problems may be looked at, `allowed` which of their kernels.
    """
    by_problem = {name: np.where(open_, _of_problem(corpus, query, name), 0) for name in names if name in _OF_PROBLEM}
    by_text = _of_texts(corpus, query, names)
    chosen = [foremost(scores, POOL) for scores in by_problem.values()]
    if query.graph_key is not None:
        chosen.append(np.flatnonzero((corpus.graph_key == query.graph_key) & open_))
    rows = corpus.kernels_of(np.unique(np.concatenate(chosen or [np.zeros(0, dtype=np.int64)])))
    if by_text is not None:
        further = foremost(np.where(open_[corpus.catalogue.functional], by_text[corpus.catalogue.text], 0), POOL)
        rows = np.union1d(rows, further)
    alone = len(names) == 1  # a signal that is tried by itself decides by itself
    by_name = np.zeros(len(corpus.catalogue.functional), dtype=np.float32)
    if query.words and not alone:
        by_name = named(corpus, query.words)
    rows = np.union1d(rows, foremost(np.where(open_[corpus.catalogue.functional], by_name, 0), POOL))
    rows = rows[allowed(rows)]
    functional, text = corpus.catalogue.functional[rows], corpus.catalogue.text[rows]
    scores: dict[str, NDArray[np.float32]] = {}
    for name in names:
        if name == "gain":
            gain = corpus.catalogue.gain[rows]
            scores[name] = np.where(gain >= LEAST_GAIN, gain, 0).astype(np.float32)
        elif name == "remedy":
            scores[name] = _known(by_text)[text]
        else:
            extra = by_text[text] if name == "bm25" and by_text is not None else 0
            scores[name] = (by_problem[name][functional] + extra).astype(np.float32)
    return Candidates(rows, by_name[rows], scores, {name: places(score) for name, score in scores.items()})


_OF_PROBLEM = ("bm25", "dense", "graph")


def _of_problem(corpus: Corpus, query: Query, name: str) -> NDArray[np.float32]:
    if name == "bm25":
        return corpus.words.bm25(query.tokens)
    if name == "graph":
        return corpus.graphs.shared(query.graph).round(4)
    vectors = corpus.catalogue.vectors
    if vectors.shape[1] != len(query.vector):  # nothing is embedded by this model yet
        return np.zeros(len(vectors), dtype=np.float32)
    cosine = (vectors @ query.vector).round(4)
    return np.where(cosine >= LEAST_COSINE, cosine, 0).astype(np.float32)


def _of_texts(corpus: Corpus, query: Query, names: Sequence[str]) -> NDArray[np.float32] | None:
    """Match texts: people search by name and idea as well, a bottleneck by its remedies.

    Problems are compared by what they do.
    """
    if "remedy" in names and query.bottleneck is not None:
        return corpus.texts.bm25(query.bottleneck.words)
    return corpus.texts.bm25(query.tokens) if query.facts is None and "bm25" in names else None


def _known(scores: NDArray[np.float32] | None) -> NDArray[np.float32]:
    assert scores is not None
    return scores
