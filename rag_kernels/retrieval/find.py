"""Searching the archive for a person: `find_kernels`, apart from `rag_kernels.api` because it needs no torch.

Comes in: words, a functional problem, or the id of an archived kernel to optimise. Goes out: hits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from rag_kernels.archive.records import ArchiveError
from rag_kernels.archive.store import open_archive
from rag_kernels.choices import Precision, RetrievalMode
from rag_kernels.eval.records import FunctionalProblem, Passed
from rag_kernels.feedback.bottleneck import Bottleneck, Kind, bottleneck_of
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.options import Keywords, options_of
from rag_kernels.retrieval.retriever import Hit, RetrievalLimits, Retriever
from rag_kernels.retrieval.starter import stock


def find_kernels(
    query: str | FunctionalProblem,
    *,
    count: int = 10,
    bottleneck: Kind | None = None,
    archive: str | Path = "",
    **options: Unpack[Keywords],
) -> list[Hit]:
    """Return archived kernels like these words or like this problem, best first, with scores and reasons.

    What the words name comes first: a kernel, a problem, operators. With a `bottleneck`, those that know a remedy for
    it come first.
    """
    settings = options_of(options, str(archive))
    store, embedder = open_archive(settings.archive or None), load_embedder(settings.embedder)
    stock(store, embedder)
    held = None if bottleneck is None else Bottleneck(bottleneck, bottleneck)
    return Retriever(store, embedder).search(query, mode=settings.retrieval, count=count, bottleneck=held)


def find_remedies(
    kernel_id: str, *, count: int = 10, archive: str | Path = "", **options: Unpack[Keywords]
) -> list[Hit]:
    """Return kernels that may teach how to speed this one up, by what the judge found to hold it back.

    Raises ArchiveError when the archive has no such kernel, or it was never timed.
    """
    settings = options_of(options, str(archive))
    store, embedder = open_archive(settings.archive or None), load_embedder(settings.embedder)
    stock(store, embedder)
    return remedies(
        Retriever(store, embedder), kernel_id, count=count, mode=settings.retrieval, precision=settings.precision
    )


def remedies(
    retriever: Retriever,
    kernel_id: str,
    *,
    count: int,
    mode: RetrievalMode = "hybrid",
    precision: Precision = "strict",
) -> list[Hit]:
    """Return the same from an archive that is open."""
    archive = retriever.archive
    kernel = archive.kernel(kernel_id)
    if kernel is None:
        raise ArchiveError(f"There is no kernel {kernel_id!r} in this archive; look it up with `search`.")
    problem, judged = archive.evaluation(kernel.id)
    if not isinstance(judged.verdict, Passed):
        raise ArchiveError(f"{kernel.id} was never timed, so nothing is known of what holds it back: judge it first.")
    held = bottleneck_of(judged.verdict, problem.features, judged.device, precision)
    limits = RetrievalLimits(backend=kernel.backend, exclude_kernel_ids=(kernel.id,))
    return retriever.search(problem, mode=mode, count=count, limits=limits, bottleneck=held)
