"""The seam: what the rest of the house asks of an archive, as two protocols.

`Tables` is a database with the tables of `schema/`: audits, bundles, claims, queries and rechecks read it by SQL.
`Archive` adds what a run records and retrieval asks. `archive.store.FileArchive` keeps it in DuckDB and Chroma;
`archive.memory.MemoryArchive` keeps it in memory, for tests and for `--archive :memory:`. Another one is most easily a
subclass of `MemoryArchive`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rag_kernels.archive.catalogue import Catalogue, FunctionalRow
from rag_kernels.archive.database import Database
from rag_kernels.archive.records import ArchivedKernel, Attempt, BriefRecord, Edge, KernelFilter, LLMCall, Run
from rag_kernels.eval.records import FunctionalProblem, Judged


class Tables(Protocol):
    """An archive as the functions see it that ask in SQL."""

    @property
    def database(self) -> Database: ...


class Archive(Tables, Protocol):
    """An archive as a run sees it."""

    def is_empty(self) -> bool:
        """Return whether it has no problem and no run."""
        ...

    def start_run(self, run: Run) -> None: ...

    def finish_run(self, run_id: str, status: str) -> None: ...

    def record_call(self, call: LLMCall) -> None:
        """Store one LLM call, failed ones too, before its reply is used."""
        ...

    def record_attempt(self, attempt: Attempt, *, retract: str = "") -> None:
        """Store the attempt with its problem, evaluation and edges in one transaction.

        `retract` is why its kernel must be withdrawn in the same transaction: a kill must not part the two.

        The candidate becomes a kernel at trust `compiled`, `verified` or (a confirmed measurement) `confirmed`;
        failed candidates are kept as attempts only. Idempotent by attempt id.
        """
        ...

    def index_embedding(self, kernel_id: str, vector: Sequence[float], model: str) -> None:
        """Add or replace a kernel's vector in the index. Called after `record_attempt`."""
        ...

    def index_embeddings(self, vectors: Sequence[tuple[str, Sequence[float]]], model: str) -> None:
        """Index the embeddings of many kernels at once."""
        ...

    def nearest(
        self, vector: Sequence[float], count: int, where: KernelFilter, model: str | None = None
    ) -> list[tuple[str, float]]:
        """Return kernel ids with cosine similarity, best first, among kernels that `model` embedded.

        Without a model: the one of the vector's size that embedded a kernel last.
        """
        ...

    def kernels(self, where: KernelFilter) -> list[ArchivedKernel]: ...

    def kernel(self, kernel_id: str) -> ArchivedKernel | None:
        """Return one kernel by id or unambiguous id prefix."""
        ...

    def attempts(self, run_id: str) -> list[Attempt]:
        """Return all attempts of a run in order, as recorded."""
        ...

    def calls(self, run_id: str) -> list[LLMCall]: ...

    def record_brief(self, told: BriefRecord) -> None:
        """Store what a writer is told, before it is told, and how many calls of the run there are by now."""
        ...

    def record_drafts(self, run_id: str, brief: int, drafts: str) -> None:
        """Store all that it drafted for the brief of this number."""
        ...

    def briefs(self, run_id: str) -> list[BriefRecord]:
        """Return all that the writer of a run was told, in order."""
        ...

    def runs(self, limit: int = 50) -> list[Run]:
        """Return runs, newest first."""
        ...

    def version(self) -> str:
        """Return a text that changes with every write of any process."""
        ...

    def catalogue(
        self, model: str, device_key: str = "", meanwhile: Callable[[FunctionalRow], object] | None = None
    ) -> Catalogue:
        """Return what ranking reads of every kernel that may be shown.

        Columns, and the vectors of this embedding model.

        A kernel stands with its evaluation on the device of that key, where it has one. `meanwhile` sees each
        functional problem in another thread, while the kernels are read.
        """
        ...

    def chosen(self, known: Catalogue, chosen: Sequence[int]) -> list[ArchivedKernel]:
        """Return whole kernels for rows of a catalogue, in this order."""
        ...

    def evaluation(self, kernel_id: str) -> tuple[FunctionalProblem, Judged]:
        """Return the problem and the judgement that speak best for a kernel."""
        ...

    def run_status(self, run_id: str) -> str:
        """Return how a run stands; empty when there is none."""
        ...

    def lineage(self, kernel_id: str) -> list[Edge]:
        """Return all edges above a kernel, nearest first, without cycles."""
        ...

    def retract(self, kernel_id: str, reason: str) -> None: ...

    def stats(self) -> dict[str, int | float]: ...

    def missing_embeddings(self, model: str) -> Iterable[ArchivedKernel]:
        """Return kernels that the index lacks, or that were embedded by another model."""
        ...

    def index_faults(self) -> list[str]:
        """Return what is wrong with the index, a sentence each."""
        ...

    def catch_up(self) -> None:
        """Bring the index up to the table of vectors: a process that was killed may have left it behind."""
        ...

    def reindex(self) -> int:
        """Rebuild the index from the table of vectors and return their number."""
        ...
