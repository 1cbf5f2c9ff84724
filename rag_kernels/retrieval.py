"""Which archived kernels to show a writer, or a person who searches, and why each was chosen.

Comes in: an archive, a functional problem (or words) and a mode. Goes out: kernels, best first, each with reasons.
The same graph comes first; the rest are ranked by BM25 and by vectors, fused, weighted by what they achieved and how
well they fit, made diverse, and cut to a token budget. Knows nothing of writers and prompts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from archive.protocol import Archive
from archive.records import ArchivedKernel, Exemplar, KernelFilter
from eval.records import Backend, FunctionalProblem
from ingest.describe import description, keywords, main_family, query_text
from ingest.embedder import Embedder
from ingest.pipeline import describe_kernel
from rag_kernels.options import RetrievalMode
from rag_kernels.ranking import bm25, diversify, fuse, jaccard, positions
from rag_kernels.records import Shown

POOL = 200  # neighbours asked of the index: many kernels of one problem share a vector
KEPT = 24  # candidates that are weighed for diversity
LEAST_COSINE = 0.25  # below it two descriptions share nothing that matters
BALANCE = 0.8  # relevance against diversity
CHARS_PER_TOKEN = 3.0  # of code, on the safe side

TRUST_WEIGHT = {"confirmed": 1.0, "verified": 0.98, "claimed": 0.92}
MOST_VALUE = 1.27  # what `_value` stays below: scores other than those of the same graph stay below 1


@dataclass(frozen=True, slots=True)
class Hit:
    """A kernel that was found, with its score (above 1 for the same graph) and the reasons for it."""

    kernel: ArchivedKernel
    score: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Query:
    """What is looked for. `problem` is None for a search in words."""

    text: str
    tokens: tuple[str, ...]
    problem: FunctionalProblem | None


@dataclass(frozen=True, slots=True)
class _Signals:
    """Relevance by kernel id, and how it came about."""

    score: dict[str, float]
    reasons: dict[str, list[str]]


def retrieve(
    archive: Archive,
    fp: FunctionalProblem,
    *,
    embedder: Embedder,
    mode: RetrievalMode,
    count: int,
    backend: Backend,
    exclude_problem_ids: Sequence[str] = (),
    exclude_family: bool = False,
    seed: int = 0,
    token_budget: int = 6000,
) -> list[Shown]:
    """Exemplars for a writer, best first; at most half (rounded up) of one graph as long as there are others.

    `off` shows none; `random` draws from all that may be shown and is the control of every ablation.
    """
    if mode == "off" or count <= 0:
        return []
    query = _query(fp)
    where = _filter(backend, exclude_problem_ids)
    allowed = _allowed(archive, where, query, exclude_family)
    if mode == "random":
        drawn = Random(f"{seed} {fp.problem.id}").sample(sorted(allowed), len(allowed))
        hits = [Hit(allowed[kernel_id], 0.0, ("drawn at random, as a control",)) for kernel_id in drawn]
    else:
        hits = _spread(_ranked(archive, query, allowed, where, embedder, mode), count)
    return [
        Shown(Exemplar(hit.kernel.id, rank, round(hit.score, 4), hit.reasons), hit.kernel)
        for rank, hit in enumerate(_affordable(hits, count, token_budget), 1)
    ]


def search(
    archive: Archive,
    query: str | FunctionalProblem,
    *,
    embedder: Embedder,
    mode: RetrievalMode = "hybrid",
    count: int = 10,
    backend: Backend | None = None,
    exclude_problem_ids: Sequence[str] = (),
    exclude_family: bool = False,
) -> list[Hit]:
    """Kernels like a problem, or like what words say, best first. `off` and `random` rank as `hybrid` does."""
    ranking: RetrievalMode = mode if mode in ("bm25", "dense") else "hybrid"
    asked = _query(query)
    where = _filter(backend, exclude_problem_ids)
    allowed = _allowed(archive, where, asked, exclude_family)
    return _ranked(archive, asked, allowed, where, embedder, ranking)[:count]


def _query(query: str | FunctionalProblem) -> _Query:
    if isinstance(query, FunctionalProblem):
        text = description(query)
        return _Query(text, tuple(keywords(text, query.source)), query)
    text = query_text(query)
    return _Query(text, tuple(keywords(text, query)), None)


def _filter(backend: Backend | None, exclude_problem_ids: Sequence[str]) -> KernelFilter:
    return KernelFilter(backend=backend, min_trust="claimed", exclude_problem_ids=tuple(exclude_problem_ids))


def _allowed(
    archive: Archive, where: KernelFilter, query: _Query, exclude_family: bool
) -> dict[str, ArchivedKernel]:
    """Kernels by id after the hard filters. Claimed ones may be shown, ones that were only compiled may not:
    an import had a judge somewhere, a compiled kernel had none anywhere."""
    kernels = [kernel for kernel in archive.kernels(where) if kernel.trust != "compiled"]
    if exclude_family and query.problem is not None:
        own = main_family(query.problem.source, query.problem.features.operators)
        key = query.problem.graph_key
        kernels = [k for k in kernels if k.graph_key != key and main_family(k.functional_source, k.operators) != own]
    return {kernel.id: kernel for kernel in kernels}


def _ranked(
    archive: Archive,
    query: _Query,
    allowed: dict[str, ArchivedKernel],
    where: KernelFilter,
    embedder: Embedder,
    mode: RetrievalMode,
) -> list[Hit]:
    """Every kernel that any signal speaks for, best first."""
    rankings: list[dict[str, int]] = []
    reasons: dict[str, list[str]] = {kernel_id: [] for kernel_id in allowed}
    if mode in ("bm25", "hybrid"):
        rankings.append(_by_words(query, allowed, reasons))
    if mode in ("dense", "hybrid"):
        rankings.append(_by_vectors(archive, query, allowed, where, embedder, reasons))
    signals = _Signals(fuse(rankings), reasons)
    helped = _helped(archive, [allowed[k] for k in sorted(signals.score, key=signals.score.__getitem__)[-KEPT:]])
    same = [k for k in allowed.values() if query.problem is not None and k.graph_key == query.problem.graph_key]
    found = dict.fromkeys([*(kernel.id for kernel in same), *signals.score])
    hits = [_weighed(query, allowed[kernel_id], signals, helped.get(kernel_id, 0)) for kernel_id in found]
    return sorted(hits, key=lambda hit: (-hit.score, hit.kernel.id))


def _by_words(query: _Query, allowed: dict[str, ArchivedKernel], reasons: dict[str, list[str]]) -> dict[str, int]:
    named = query.problem is None  # people search by name and idea as well; problems are compared by what they do
    documents: dict[tuple[str, ...], list[str]] = {}
    for kernel in allowed.values():
        documents.setdefault(_document(kernel, named), []).append(kernel.id)
    scores = bm25(list(documents), query.tokens)
    of_kernel = {
        kernel_id: score
        for kernel_ids, score in zip(documents.values(), scores, strict=True)
        for kernel_id in kernel_ids
        if score > 0
    }
    places = positions(of_kernel)
    for kernel_id, place in places.items():
        reasons[kernel_id].append(f"bm25 rank {place}")
    return places


def _by_vectors(
    archive: Archive,
    query: _Query,
    allowed: dict[str, ArchivedKernel],
    where: KernelFilter,
    embedder: Embedder,
    reasons: dict[str, list[str]],
) -> dict[str, int]:
    vector = embedder.embed([query.text])[0]
    if not vector.any():
        return {}
    near = archive.nearest(vector.tolist(), POOL, where, embedder.name)
    cosines = {kernel_id: round(c, 4) for kernel_id, c in near if kernel_id in allowed and c >= LEAST_COSINE}
    for kernel_id, cosine in cosines.items():
        reasons[kernel_id].append(f"dense {cosine:.2f}")
    return positions(cosines)


@lru_cache(maxsize=65536)
def _document(kernel: ArchivedKernel, named: bool) -> tuple[str, ...]:
    """What BM25 indexes of a kernel."""
    tokens = keywords(describe_kernel(kernel), kernel.functional_source)
    names = keywords("", f"{kernel.problem_name.replace('_', ' ')} {kernel.idea} {kernel.label}") if named else []
    return (*tokens, *names)


def _helped(archive: Archive, kernels: Sequence[ArchivedKernel]) -> dict[str, int]:
    """Of these kernels' ancestors, how many faster kernels here each of them led to."""
    count: dict[str, int] = {}
    for kernel in kernels:
        if (kernel.speedup or 0) > 1:
            for ancestor in {edge.source for edge in archive.lineage(kernel.id)}:
                count[ancestor] = count.get(ancestor, 0) + 1
    return count


def _weighed(query: _Query, kernel: ArchivedKernel, signals: _Signals, helped: int) -> Hit:
    """Relevance times what the kernel achieved, times how well it fits; the same graph is put above all else."""
    reasons = list(signals.reasons[kernel.id])
    weight = TRUST_WEIGHT[kernel.trust] * _value(kernel, helped, reasons) / MOST_VALUE
    exact = query.problem is not None and kernel.graph_key == query.problem.graph_key
    if query.problem is not None:
        weight *= _fit(query.problem, kernel, reasons)
    if exact:
        reasons.insert(0, "same graph")
    return Hit(kernel, (1.0 if exact else 0.0) + signals.score.get(kernel.id, 0.0) * weight, tuple(reasons))


def _value(kernel: ArchivedKernel, helped: int, reasons: list[str]) -> float:
    """Did it win, and did it help before? Between 0.92 and MOST_VALUE."""
    weight = 1.0
    if kernel.speedup is not None:
        weight += 0.08 * max(-1.0, min(2.0, math.log2(max(kernel.speedup, 1e-3))))
        how = "claims" if kernel.trust == "claimed" else "won" if kernel.speedup > 1 else "lost,"
        reasons.append(f"{how} {kernel.speedup:.1f}x on {kernel.device_name}")
    if helped:
        weight *= 1 + 0.03 * min(helped, 3)
        reasons.append(f"led to {helped} faster kernel{'s' if helped > 1 else ''}")
    return weight


def _fit(problem: FunctionalProblem, kernel: ArchivedKernel, reasons: list[str]) -> float:
    """Kind, rank, dtype and size class: an exemplar built around another operator, or of another rank, misleads."""
    features = problem.features
    own = main_family(problem.source, features.operators)
    same_rank = max(kernel.ranks, default=0) == max(features.ranks, default=0)
    same_dtype = kernel.dtypes == features.dtypes
    same_kind = main_family(kernel.functional_source, kernel.operators) == own
    reasons.append(f"also {own}" if same_kind else "another kind of operator")
    reasons.append("same rank and dtype" if same_rank and same_dtype else "same rank" if same_rank else "another rank")
    similar = abs(_size_class([a.spec.shape for a in problem.tensors]) - _size_class(kernel.shapes)) <= 2
    if similar:
        reasons.append("similar size")
    weights = ((same_kind, 0.85), (same_rank, 0.92), (same_dtype, 0.95), (similar, 0.97))
    return math.prod(1.0 if fits else otherwise for fits, otherwise in weights)


def _size_class(shapes: Sequence[Sequence[int]]) -> float:
    """Log2 of the elements of the largest tensor."""
    return math.log2(max((math.prod(shape) for shape in shapes), default=1) or 1)


def _spread(hits: Sequence[Hit], count: int) -> list[Hit]:
    """The same graph first, then the rest by relevance and difference; of one graph more than half come last."""
    of_graph: dict[str, int] = {}
    within: list[Hit] = []
    for hit in hits:
        of_graph[hit.kernel.graph_key] = of_graph.get(hit.kernel.graph_key, 0) + 1
        if of_graph[hit.kernel.graph_key] <= math.ceil(count / 2):
            within.append(hit)
    exact = [hit for hit in within if "same graph" in hit.reasons]
    rest = [hit for hit in within if "same graph" not in hit.reasons][:KEPT]
    words = {hit.kernel.id: frozenset(describe_kernel(hit.kernel).split()) for hit in rest}
    spread = diversify(
        rest,
        [hit.score for hit in rest],
        lambda a, b: jaccard(words[a.kernel.id], words[b.kernel.id]),
        BALANCE,
    )
    first = [*exact, *spread]
    return [*first, *(hit for hit in hits if hit not in first)]


def _affordable(hits: Sequence[Hit], count: int, token_budget: int) -> list[Hit]:
    """The first `count` that fit the budget together; one too long is passed over for a shorter one."""
    chosen: list[Hit] = []
    left = token_budget * CHARS_PER_TOKEN
    for hit in hits:
        length = len(hit.kernel.source) + len(hit.kernel.functional_source)
        if len(chosen) < count and length <= left:
            chosen.append(hit)
            left -= length
    return chosen
