"""Describe, embed, index: the steps that make an archived kernel findable.

Comes in: an archive, an embedder, and an attempt or nothing (all that the index lacks). Goes out: how many vectors
were written. During a run that happens in a thread of its own, so that the judge need not wait for embeddings. Knows
nothing of searching.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import ArchivedKernel, Attempt, KernelFilter
from rag_kernels.eval.records import Compiled, Passed
from rag_kernels.ingest.description.describe import description, functional_text
from rag_kernels.ingest.description.embedder import Embedder

BATCH = 4000


def describe_kernel(kernel: ArchivedKernel) -> str:
    """Return the description of what an archived kernel computes: the text of its functional problem's."""
    return functional_text(kernel.functional_source, kernel.operators, kernel.ranks, kernel.dtypes)


def index_attempt(archive: Archive, attempt: Attempt, embedder: Embedder) -> bool:
    """Index the kernel of a recorded attempt, and return whether there is one; a failed attempt has none."""
    if not isinstance(attempt.judged.verdict, Passed | Compiled):
        return False
    vector = embedder.embed([description(attempt.problem)])[0]
    archive.index_embedding(attempt.candidate.id, vector.tolist(), embedder.name)
    return True


class BackgroundIndex:
    """Index attempts in order in one background thread.

    What a kill cuts short is not lost: vectors can be made again at any time.
    """

    def __init__(self, index: Callable[[Attempt], object]) -> None:
        self._index = index
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index")
        self._begun: list[Future[object]] = []

    def add(self, attempt: Attempt) -> None:
        """Queue an attempt; attempts are indexed one at a time, in the order in which they were added."""
        self._begun.append(self._pool.submit(self._index, attempt))

    def finish(self) -> None:
        """Wait until all are indexed; raise the first error of the indexing function."""
        for future in self._begun:
            future.result()

    def close(self) -> None:
        """End the thread once it has indexed what was added."""
        self._pool.shutdown(wait=True)


def reindex(archive: Archive, embedder: Embedder) -> int:
    """Index every kernel that has no vector of this embedder, and return how many there were."""
    total = 0
    for batch in _batches(archive.missing_embeddings(embedder.name)):
        total += _embed(archive, batch, embedder)
    return total


def embed_problem(archive: Archive, problem_id: str, embedder: Embedder) -> int:
    """Index the kernels of a problem again, after its description has changed."""
    return _embed(archive, archive.kernels(KernelFilter(problem_id=problem_id)), embedder)


def _embed(archive: Archive, kernels: Sequence[ArchivedKernel], embedder: Embedder) -> int:
    """Embed each text once, since kernels of one problem have one description.

    A text that says nothing has no direction, and its kernels stay out of the index.
    """
    texts = [describe_kernel(kernel) for kernel in kernels]
    distinct = list(dict.fromkeys(texts))
    vectors = dict(zip(distinct, embedder.embed(distinct), strict=True)) if distinct else {}
    rows = [(k.id, vectors[text].tolist()) for k, text in zip(kernels, texts, strict=True) if vectors[text].any()]
    archive.index_embeddings(rows, embedder.name)
    return len(rows)


def _batches(kernels: Iterable[ArchivedKernel]) -> Iterable[list[ArchivedKernel]]:
    rest = iter(kernels)
    while batch := list(islice(rest, BATCH)):
        yield batch
