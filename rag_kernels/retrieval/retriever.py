"""The choice of archived kernels to show a writer, or a person who searches, with the reasons of each.

Comes in: an archive, a functional problem (or words), a mode, and to optimise a bottleneck. Goes out: kernels, best
first, each with its reasons. The same graph comes first; the rest are ranked by the signals, fused, weighted by what
they achieved and how well they fit, made diverse, and cut to a token budget. Knows nothing of writers and prompts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
from numpy.typing import NDArray

from rag_kernels.archive.claims import claims_of
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import ArchivedKernel, Exemplar
from rag_kernels.choices import RetrievalMode
from rag_kernels.eval.records import Backend, FunctionalProblem
from rag_kernels.feedback.bottleneck import Bottleneck
from rag_kernels.ingest.description.embedder import Embedder
from rag_kernels.records import Shown
from rag_kernels.retrieval.corpus import Corpus, describe_row, make_corpus
from rag_kernels.retrieval.rank_fusion import diversify, fuse, jaccard
from rag_kernels.retrieval.reasons import Reasons, tell
from rag_kernels.retrieval.signals import Allowed, Query, Rows, candidates, make_query, names_of
from rag_kernels.retrieval.weights import LEAST_SPEEDUP, MOST, factors, worth_reading
from rag_kernels.text.called import called_only
from rag_kernels.text.likeness import NEAR_COPY, likeness
from rag_kernels.text.tokens import estimate_tokens

LEAST_RELEVANT = 0.7  # of a first place in one signal, with all weights: below it an exemplar has little to teach
KEPT = 24  # candidates that are weighed for diversity
BALANCE = 0.8  # relevance against diversity
AT_RANDOM = Reasons(("drawn at random, as a control",), (), ())


@dataclass(frozen=True, slots=True)
class RetrievalLimits:
    """Limit which kernels may be shown; empty means no limit."""

    backend: Backend | None = None
    exclude_problem_ids: tuple[str, ...] = ()
    exclude_kernel_ids: tuple[str, ...] = ()
    exclude_family: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """Hold a kernel that was found, with its score and how it came about: above 1 for the same graph, or for what was
    named.
    """

    kernel: ArchivedKernel
    score: float
    why: Reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.why.short


@dataclass(frozen=True, slots=True)
class _RankedRow:
    """Hold a row of the catalogue that may become a hit; reasons are worked out for few of them."""

    row: int
    score: float
    why: Callable[[], Reasons]


class Retriever:
    """Retrieve from one archive, seen from one device.

    What it reads is kept until the archive changes, or for good when it is `fixed`: then kernels that come later are
    not found. With `stale_s` they are found after so many seconds at the latest.
    """

    def __init__(
        self, archive: Archive, embedder: Embedder, *, device_key: str = "", fixed: bool = False, stale_s: float = 0.0
    ) -> None:
        self.archive = archive
        self.embedder = embedder
        self._device_key = device_key
        self._fixed, self._stale_s = fixed, stale_s
        self._read_at = 0.0
        self._read: tuple[str, Corpus] | None = None

    def exemplars(
        self,
        fp: FunctionalProblem,
        *,
        mode: RetrievalMode,
        count: int,
        limits: RetrievalLimits,
        bottleneck: Bottleneck | None = None,
        seed: int = 0,
        token_budget: int = 6000,
        for_reading: bool = True,
        ridge: float | None = None,
    ) -> list[Shown]:
        """Return exemplars for a writer, best first; at most half (rounded up) of one graph as long as there are
        others. What their sources call fits the token budget. `for_reading` leaves out near-copies of better ones,
        what has too little in common with the problem, and what is known to lose. `ridge` is from how many operations
        a byte on arithmetic bounds this problem on the device.

        `off` shows none; `random` draws from all that may be shown and is the control of every ablation.
        """
        if mode == "off" or count <= 0:
            return []
        query, corpus = make_query(fp, self.embedder, bottleneck, ridge), self.corpus()
        if mode == "random":
            found = self._drawn(corpus, query, limits, Random(f"{seed} {fp.problem.id}"), count)
        else:
            most = {"most": 20 * KEPT, "of_graph": max(count, KEPT)}
            ranked = self._ranked(corpus, query, limits, mode, **most, for_reading=for_reading)
            least = LEAST_RELEVANT / MOST / len(names_of(mode, query)) if for_reading else 0.0
            found = _spread(corpus, query, [row for row in ranked if row.score >= least], count)
        hits = self._affordable(corpus, found[: KEPT + 2 * count], count, token_budget, for_reading=for_reading)
        return [
            Shown(Exemplar(hit.kernel.id, rank, round(hit.score, 4), hit.reasons), hit.kernel)
            for rank, hit in enumerate(hits, 1)
        ]

    def search(
        self,
        asked: str | FunctionalProblem,
        *,
        mode: RetrievalMode = "hybrid",
        count: int = 10,
        limits: RetrievalLimits | None = None,
        bottleneck: Bottleneck | None = None,
    ) -> list[Hit]:
        """Return kernels like a problem, or like these words, best first. `off` and `random` rank as `hybrid` does."""
        corpus, query = self.corpus(), make_query(asked, self.embedder, bottleneck)
        ranking: RetrievalMode = mode if mode in ("bm25", "dense") else "hybrid"
        return self._hits(corpus, self._ranked(corpus, query, limits or RetrievalLimits(), ranking, most=count))

    def corpus(self) -> Corpus:
        """Return the archive as it is now, or was at the first query."""
        if self._read is not None and time.monotonic() - self._read_at < self._stale_s:
            return self._read[1]
        version = "" if self._fixed else self.archive.version()
        if self._read is None or self._read[0] != version:
            self._read = None  # two of them may be more than fits
            catalogue = self.archive.catalogue(self.embedder.name, self._device_key, describe_row)  # which is cached
            self._read = version, make_corpus(catalogue)
            self._read_at = time.monotonic()
        return self._read[1]

    def look_again(self) -> None:
        """Read the archive again at the next query."""
        self._read_at = -math.inf

    def _open(self, corpus: Corpus, query: Query, limits: RetrievalLimits) -> NDArray[np.bool_]:
        """Return which functional problems have kernels that may be shown."""
        open_ = np.ones(len(corpus.family), dtype=np.bool_)
        if limits.backend is not None:
            open_ &= corpus.backends[limits.backend == "cuda"]
        if limits.exclude_family and query.facts is not None:
            open_ &= (corpus.family != query.facts.family) & (corpus.graph_key != query.graph_key)
        return open_

    def _allowed(self, corpus: Corpus, limits: RetrievalLimits) -> Allowed:
        """Return a test for which kernels may be shown."""
        known = corpus.catalogue
        hidden = np.array(limits.exclude_kernel_ids, dtype=np.bytes_)
        if limits.exclude_problem_ids:
            hidden = np.concatenate((hidden, known.solvers(limits.exclude_problem_ids)))

        def allowed(rows: Rows) -> NDArray[np.bool_]:
            on = True if limits.backend is None else known.on_cuda[rows] == (limits.backend == "cuda")
            return on & ~np.isin(known.kernel_id[rows], hidden)

        return allowed

    def _drawn(
        self, corpus: Corpus, query: Query, limits: RetrievalLimits, rng: Random, count: int
    ) -> list[_RankedRow]:
        rows = np.flatnonzero(self._open(corpus, query, limits)[corpus.catalogue.functional])
        rows = rows[self._allowed(corpus, limits)(rows)]
        drawn = rng.sample(range(len(rows)), min(len(rows), KEPT + 2 * count))
        return [_RankedRow(int(rows[number]), 0.0, lambda: AT_RANDOM) for number in drawn]

    def _ranked(
        self,
        corpus: Corpus,
        query: Query,
        limits: RetrievalLimits,
        mode: RetrievalMode,
        *,
        most: int,
        of_graph: int | None = None,
        for_reading: bool = False,
    ) -> list[_RankedRow]:
        """Return the best kernels that any signal speaks for; with `of_graph`, at most so many of one graph."""
        open_, allowed = self._open(corpus, query, limits), self._allowed(corpus, limits)
        found = candidates(corpus, query, names_of(mode, query), open_, allowed)
        if not len(found.rows):
            return []
        weights = factors(corpus, query, found.rows)
        shares = dict(zip(found.places, fuse(list(found.places.values())), strict=True))
        score = np.sum(list(shares.values()), axis=0) * np.prod(list(weights.values()), axis=0) / MOST
        functional = corpus.catalogue.functional[found.rows]
        exact = corpus.graph_key[functional] == (query.graph_key or "")
        score = np.where(exact, 1 + score, score) + found.named
        order = np.argsort(-score, kind="stable")
        if of_graph is not None:
            order = order[_among(corpus.graph_key[functional][order]) < of_graph]
        worth = worth_reading(corpus, query, found) if for_reading else np.ones(len(score), dtype=np.bool_)
        order = order[(score[order] > 0) & worth[order]][:most]
        return [
            _RankedRow(
                int(found.rows[at]), float(score[at]), partial(tell, corpus, query, found, shares, weights, int(at))
            )
            for at in order
        ]

    def _affordable(
        self, corpus: Corpus, found: Sequence[_RankedRow], count: int, token_budget: int, *, for_reading: bool
    ) -> list[Hit]:
        """Return the first `count` that fit the token budget together; one too long is passed over for a shorter
        one, and `for_reading` a near-copy of one before it.
        """
        chosen: list[Hit] = []
        left = token_budget
        while found and len(chosen) < count:
            missing = count - len(chosen)  # each one read costs a look-up in six tables
            for hit in self._hits(corpus, found[:missing]):
                need = estimate_tokens(called_only(hit.kernel.source))
                if need <= left and not (for_reading and (_copies(hit, chosen) or self._claims_to_lose(hit))):
                    chosen.append(hit)
                    left -= need
            found = found[missing:]
        return chosen

    def _claims_to_lose(self, hit: Hit) -> bool:
        """Return whether the maker of a kernel that nobody judged here says that a baseline is faster."""
        if hit.kernel.trust != "claimed":
            return False
        told = [(c.speedup_eager, c.speedup_compile) for c in claims_of(self.archive, hit.kernel.id)]
        worst = [min(speed for speed in speeds if speed is not None) for speeds in told if any(speeds)]
        return bool(worst) and max(worst) < LEAST_SPEEDUP

    def _hits(self, corpus: Corpus, found: Sequence[_RankedRow]) -> list[Hit]:
        kernels = self.archive.chosen(corpus.catalogue, [place.row for place in found])
        return [Hit(kernel, place.score, place.why()) for kernel, place in zip(kernels, found, strict=True)]


def _copies(hit: Hit, chosen: Sequence[Hit]) -> bool:
    """Return whether a kernel says what one of those chosen says."""
    own = called_only(hit.kernel.source)
    others = (called_only(other.kernel.source) for other in chosen)
    return any(min(likeness(own, other), likeness(other, own)) >= NEAR_COPY for other in others)


def _among(keys: NDArray[np.str_]) -> NDArray[np.int64]:
    """Return for each key how many equal ones come before it."""
    order = np.argsort(keys, kind="stable")
    start = np.flatnonzero(np.concatenate(([True], keys[order][1:] != keys[order][:-1])))
    before = np.empty(len(keys), dtype=np.int64)
    before[order] = np.arange(len(keys)) - np.repeat(start, np.diff(np.concatenate((start, [len(keys)]))))
    return before


def _spread(corpus: Corpus, query: Query, ranked: Sequence[_RankedRow], count: int) -> list[_RankedRow]:
    """Return the same graph first, then the rest by relevance and difference; of one graph more than half come last."""
    functional = {place.row: int(corpus.catalogue.functional[place.row]) for place in ranked}
    key = {row: str(corpus.graph_key[number]) for row, number in functional.items()}
    of_graph: dict[str, int] = {}
    within: list[_RankedRow] = []
    for place in ranked:
        of_graph[key[place.row]] = of_graph.get(key[place.row], 0) + 1
        if of_graph[key[place.row]] <= math.ceil(count / 2):
            within.append(place)
    exact = [place for place in within if key[place.row] == query.graph_key]
    rest = [place for place in within if key[place.row] != query.graph_key][:KEPT]
    words = {place.row: frozenset(corpus.describe(functional[place.row]).split()) for place in rest}
    spread = diversify(rest, [place.score for place in rest], lambda a, b: jaccard(words[a.row], words[b.row]), BALANCE)
    first = [*exact, *spread]
    there = {place.row for place in first}
    return [*first, *(place for place in ranked if place.row not in there)]
