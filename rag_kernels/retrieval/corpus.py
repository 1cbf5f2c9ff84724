"""An archive made ready for ranking: its functional problems described, their words indexed.

Comes in: a catalogue. Goes out: a `Corpus`, with one entry a functional problem, and the slice of kernels that solve
it. It is made once for each state of the archive. Knows nothing of queries and weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rag_kernels.archive.catalogue import Catalogue, FunctionalRow
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.ingest.description.describe import functional_text, graph_words, keywords, main_family, told_family
from rag_kernels.retrieval.bm25 import Postings


@dataclass(frozen=True, slots=True)
class Facts:
    """Hold the facts of a problem that decide how well its kernels fit another, beside its description."""

    family: str  # of the operator that it is built around
    rank: int  # the highest of its tensor inputs
    dtypes: tuple[str, ...]
    size: float  # log2 of the elements of its largest tensor
    intensity: float = 0.0  # floating-point operations of its products per byte that must move


@dataclass(frozen=True)
class Corpus:
    """Index the functional problems of an archive.

    Arrays have one entry a functional problem; `start[n]:start[n + 1]` are the kernels of number n.
    """

    catalogue: Catalogue
    words: Postings  # of descriptions and functional sources
    family: NDArray[np.str_]
    rank: NDArray[np.int32]
    dtypes: NDArray[np.str_]
    size: NDArray[np.float32]
    graph_key: NDArray[np.str_]
    intensity: NDArray[np.float64]  # floating-point operations of its products per byte that must move
    start: NDArray[np.int64]
    backends: dict[bool, NDArray[np.bool_]] = field(repr=False)  # has it a kernel for CUDA, for the CPU?

    @cached_property
    def graphs(self) -> Postings:
        """Return the index of operator graphs. Searches in words do without."""
        return Postings([graph_words(row.source, row.operators) for row in self.catalogue.functionals])

    @cached_property
    def texts(self) -> Postings:
        """Return the index of names, ideas and labels. Searches in words need it, and searches by bottleneck."""
        return Postings([keywords("", text) for text in self.catalogue.texts])

    def describe(self, number: int) -> str:
        return describe_row(self.catalogue.functionals[number])

    def kernels_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all kernels of these functional problems."""
        counts = self.start[numbers + 1] - self.start[numbers]
        first = np.repeat(self.start[numbers] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        return first + np.arange(counts.sum())


def make_corpus(catalogue: Catalogue) -> Corpus:
    rows = catalogue.functionals
    texts = [describe_row(row) for row in rows]
    on = {
        cuda: np.bincount(catalogue.functional[catalogue.on_cuda == cuda], minlength=len(rows)) > 0
        for cuda in (True, False)
    }
    return Corpus(
        catalogue=catalogue,
        words=Postings([keywords(text, row.source) for text, row in zip(texts, rows, strict=True)]),
        family=np.array([told_family(text) for text in texts], dtype=np.str_),
        rank=np.array([max(row.ranks, default=0) for row in rows], dtype=np.int32),
        dtypes=np.array([" ".join(row.dtypes) for row in rows], dtype=np.str_),
        size=np.array([size_class(row.shapes) for row in rows], dtype=np.float32),
        graph_key=np.array([row.graph_key for row in rows], dtype=np.str_),
        intensity=np.array([row.flops / max(row.bytes_moved, 1.0) for row in rows], dtype=np.float64),
        start=np.searchsorted(catalogue.functional, np.arange(len(rows) + 1)),
        backends=on,
    )


def describe_row(row: FunctionalRow) -> str:
    return functional_text(row.source, row.operators, row.ranks, row.dtypes)


def facts_of(problem: FunctionalProblem) -> Facts:
    features = problem.features
    return Facts(
        family=main_family(problem.source, features.operators),
        rank=max(features.ranks, default=0),
        dtypes=features.dtypes,
        size=size_class([tensor.spec.shape for tensor in problem.tensors]),
        intensity=features.flops / max(features.bytes_moved, 1.0),
    )


def size_class(shapes: Sequence[Sequence[int]]) -> float:
    """Return log2 of the elements of the largest tensor."""
    return math.log2(max((math.prod(shape) for shape in shapes), default=1) or 1)
