"""The archive over any DuckDB database: the one implementation behind `FileArchive` and `MemoryArchive`.

Comes in: records. Goes out: records. Each method is one transaction. Similarity is computed exactly, by DuckDB;
`archive.store` puts an index in front of that. Knows nothing of files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rag_kernels.archive import rows
from rag_kernels.archive.catalogue import Catalogue, FunctionalRow, read_catalogue, read_evaluation, read_kernels
from rag_kernels.archive.database import Database
from rag_kernels.archive.filters import BEST_ROW, condition
from rag_kernels.archive.records import (
    ArchivedKernel,
    ArchiveError,
    Attempt,
    BriefRecord,
    Edge,
    KernelFilter,
    LLMCall,
    Run,
)
from rag_kernels.eval.records import FunctionalProblem, Judged

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Column names are interpolated below, values never are.
KERNELS = f"SELECT {', '.join(rows.KERNEL_COLUMNS)} FROM kernel_cards".replace("precision", '"precision"')
ALL = KernelFilter(include_retracted=True)

STATS = """
    SELECT
        (SELECT count(*) FROM problems) AS problems,
        (SELECT count(*) FROM kernels) AS kernels,
        (SELECT count(DISTINCT kernel_id) FROM evaluations WHERE trust IN ('verified', 'confirmed')) AS verified,
        (SELECT count(DISTINCT kernel_id) FROM evaluations WHERE trust = 'confirmed') AS confirmed,
        (SELECT count(DISTINCT kernel_id) FROM retractions) AS retracted,
        (SELECT count(*) FROM evaluations) AS evaluations,
        (SELECT count(*) FROM claims) AS claims,
        (SELECT count(*) FROM edges) AS edges,
        (SELECT count(*) FROM runs) AS runs,
        (SELECT count(*) FROM (SELECT DISTINCT run_id, functional_id, candidate_id FROM attempts)) AS attempts,
        (
            SELECT count(*) FROM (
                SELECT verdict FROM attempts QUALIFY row_number() OVER (
                    PARTITION BY run_id, functional_id, candidate_id ORDER BY number DESC
                ) = 1
            ) WHERE verdict = 'passed'
        ) AS passed_attempts,
        (SELECT count(*) FROM llm_calls) AS llm_calls,
        (SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::BIGINT FROM llm_calls) AS tokens,
        (SELECT coalesce(sum(cost_usd), 0) FROM llm_calls) AS cost_usd,
        (SELECT count(*) FROM llm_calls WHERE cost_usd IS NULL) AS calls_of_unknown_cost,
        (SELECT count(*) FROM embeddings) AS embeddings
"""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


class DuckArchive:
    """Keep an archive in a DuckDB database. `version()` changes whenever anything was written."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def __str__(self) -> str:
        """Return where the archive is."""
        return str(self.database)

    def version(self) -> str:
        return self.database.version()

    def start_run(self, run: Run) -> None:
        """Record a run; one that was there before is running again."""
        names = tuple(Run.__dataclass_fields__)
        with self.database.write() as con:
            again = [run.status, run.finished_at, run.id]
            con.execute("UPDATE runs SET status = ?, finished_at = ? WHERE id = ?", again)
            rows.insert(con, "runs", {name: getattr(run, name) for name in names})

    def finish_run(self, run_id: str, status: str) -> None:
        """Record how a run ended; raises ArchiveError when there is no such run."""
        with self.database.write() as con:
            known = con.execute(
                "UPDATE runs SET status = ?, finished_at = ? WHERE id = ? RETURNING id", [status, now(), run_id]
            ).fetchall()
            if not known:
                raise ArchiveError(f"There is no run {run_id!r} in this archive: start it first.")

    def record_call(self, call: LLMCall) -> None:
        with self.database.write() as con:
            row = con.execute("SELECT coalesce(max(position), 0) + 1 FROM llm_calls").fetchall()[0]
            values = {name: getattr(call, name) for name in rows.CALL_COLUMNS}
            rows.insert(con, "llm_calls", {"position": row[0], **values})

    def record_brief(self, told: BriefRecord) -> None:
        names = ("run_id", "number", "brief", "attempts_seen")
        row = {name: getattr(told, name) for name in names} | {"created_at": now()}
        with self.database.write() as con:
            calls = con.execute("SELECT count(*) FROM llm_calls WHERE run_id = ?", [told.run_id]).fetchall()
            row["calls_seen"] = calls[0][0]
            rows.insert(con, "briefs", row)

    def record_drafts(self, run_id: str, brief: int, drafts: str) -> None:
        row = {"run_id": run_id, "brief": brief, "drafts": drafts, "created_at": now()}
        with self.database.write() as con:
            rows.insert(con, "proposals", row)

    def record_attempt(self, attempt: Attempt, *, retract: str = "") -> None:
        with self.database.write() as con:
            rows.insert_attempt(con, attempt)
            if retract:
                _retract(con, attempt.candidate.id, retract)

    def index_embedding(self, kernel_id: str, vector: Sequence[float], model: str) -> None:
        self.index_embeddings([(kernel_id, vector)], model)

    def index_embeddings(self, vectors: Sequence[tuple[str, Sequence[float]]], model: str) -> None:
        """Add or replace many vectors in one transaction."""
        with self.database.write() as con:
            put_vectors(con, vectors, model)

    def nearest(
        self, vector: Sequence[float], count: int, where: KernelFilter, model: str | None = None
    ) -> list[tuple[str, float]]:
        with self.database.read() as con:
            known = resolve_model(con, vector, model)
            return [] if known is None else nearest(con, vector, count, where, known)

    def kernels(self, where: KernelFilter) -> list[ArchivedKernel]:
        """Return kernels that pass the filter, newest first, each with the evaluation that speaks best for it."""
        sql, parameters = condition(where)
        limit = "" if where.limit is None else f"LIMIT {int(where.limit)}"
        with self.database.read() as con:
            found = rows.query(
                con,
                f"{KERNELS} WHERE {sql} QUALIFY {BEST_ROW} ORDER BY created_at DESC, id {limit}",
                parameters,
            )
        return [rows.to_kernel(row) for row in found]

    def kernel(self, kernel_id: str) -> ArchivedKernel | None:
        """Return a kernel by id or prefix of one, with or without the leading `k_`; retracted ones too.

        Raises ArchiveError when a prefix fits several kernels.
        """
        prefix = kernel_id if kernel_id.startswith("k_") else f"k_{kernel_id}"
        with self.database.read(stay=True) as con:
            found = con.execute(
                "SELECT id FROM kernels WHERE starts_with(id, ?) ORDER BY id LIMIT 5", [prefix]
            ).fetchall()
            if len(found) > 1:
                names = ", ".join(name for (name,) in found)
                raise ArchiveError(f"{kernel_id!r} fits several kernels ({names}...): give more of the id.")
            kernel = rows.query(con, f"{KERNELS} WHERE id = ? QUALIFY {BEST_ROW}", found[0]) if found else []
        return rows.to_kernel(kernel[0]) if kernel else None

    def attempts(self, run_id: str) -> list[Attempt]:
        with self.database.read() as con:
            found = rows.query(con, f"{rows.ATTEMPTS} WHERE a.run_id = ? ORDER BY a.number", [run_id])
        return [rows.to_attempt(row) for row in found]

    def calls(self, run_id: str) -> list[LLMCall]:
        """Return the calls of a run in order of arrival."""
        names = ", ".join(rows.CALL_COLUMNS)
        with self.database.read() as con:
            found = rows.query(con, f"SELECT {names} FROM llm_calls WHERE run_id = ? ORDER BY position", [run_id])
        return [LLMCall(**row) for row in found]

    def briefs(self, run_id: str) -> list[BriefRecord]:
        with self.database.read() as con:
            found = rows.query(
                con,
                "SELECT b.run_id, b.number, b.brief, b.attempts_seen, b.calls_seen, p.drafts FROM briefs AS b "
                "LEFT JOIN proposals AS p ON p.run_id = b.run_id AND p.brief = b.number "
                "WHERE b.run_id = ? ORDER BY b.number",
                [run_id],
            )
        return [BriefRecord(**row) for row in found]

    def runs(self, limit: int = 50) -> list[Run]:
        names = ", ".join(Run.__dataclass_fields__)
        with self.database.read() as con:
            found = rows.query(con, f"SELECT {names} FROM runs ORDER BY started_at DESC, id DESC LIMIT ?", [limit])
        return [Run(**row) for row in found]

    def run_status(self, run_id: str) -> str:
        """Return how a run stands; empty when there is none."""
        with self.database.read() as con:
            found = con.execute("SELECT status FROM runs WHERE id = ?", [run_id]).fetchone()
        return str(found[0]) if found else ""

    def lineage(self, kernel_id: str) -> list[Edge]:
        """Return all edges above a kernel, nearest first, each once."""
        with self.database.read(stay=True) as con:
            found = rows.query(con, "SELECT child, source, relation FROM lineage_of(?)", [kernel_id])
        return [Edge(**row) for row in found]

    def catalogue(
        self, model: str, device_key: str = "", meanwhile: Callable[[FunctionalRow], object] | None = None
    ) -> Catalogue:
        """Return what ranking reads of every kernel that may be shown, with the vectors of this embedding model."""
        with self.database.read(stay=True) as con:
            return read_catalogue(con, model, device_key, meanwhile)

    def chosen(self, known: Catalogue, chosen: Sequence[int]) -> list[ArchivedKernel]:
        """Return whole kernels for rows of a catalogue, in this order."""
        with self.database.read(stay=True) as con:
            return read_kernels(con, known, chosen)

    def evaluation(self, kernel_id: str) -> tuple[FunctionalProblem, Judged]:
        """Return the problem and the judgement that speak best for a kernel; raises ArchiveError without one."""
        with self.database.read(stay=True) as con:
            return read_evaluation(con, kernel_id)

    def retract(self, kernel_id: str, reason: str) -> None:
        """Withdraw a kernel from retrieval and rankings; raises ArchiveError without a reason."""
        if not reason.strip():
            raise ArchiveError("Say why the kernel is retracted: the reason is kept with it.")
        with self.database.write() as con:
            _retract(con, kernel_id, reason)

    def is_empty(self) -> bool:
        """Return whether it has no problem and no run."""
        with self.database.read(stay=True) as con:
            some = "SELECT 1 FROM (FROM problems LIMIT 1) UNION ALL SELECT 1 FROM (FROM runs LIMIT 1)"
            return not con.execute(some).fetchall()

    def stats(self) -> dict[str, int | float]:
        with self.database.read() as con:
            return rows.query(con, STATS)[0]

    def missing_embeddings(self, model: str) -> Iterable[ArchivedKernel]:
        """Return kernels without a vector of this model, retracted ones excepted."""
        with self.database.read() as con:
            found = rows.query(
                con,
                f"{KERNELS} WHERE retracted = '' AND id NOT IN (SELECT kernel_id FROM embeddings WHERE model = ?) "
                f"QUALIFY {BEST_ROW} ORDER BY created_at, id",
                [model],
            )
        return [rows.to_kernel(row) for row in found]

    def index_faults(self) -> list[str]:
        """Return a sentence for each fault of the index; here the table of vectors is the index."""
        return []

    def catch_up(self) -> None:
        """Do nothing: here the table of vectors is the index."""

    def reindex(self) -> int:
        """Rebuild the index from the table of vectors and return their number; here the table is the index."""
        with self.database.read() as con:
            return int(con.execute("SELECT count(*) FROM embeddings").fetchall()[0][0])


def _retract(con: DuckDBPyConnection, kernel_id: str, reason: str) -> None:
    if con.execute("SELECT 1 FROM kernels WHERE id = ?", [kernel_id]).fetchone() is None:
        raise ArchiveError(f"There is no kernel {kernel_id!r} in this archive; look it up with `archive show`.")
    retraction = {"kernel_id": kernel_id, "reason": reason, "created_at": now()}
    rows.insert(con, "retractions", retraction)


def put_vectors(con: DuckDBPyConnection, vectors: Sequence[tuple[str, Sequence[float]]], model: str) -> None:
    if not vectors:
        return
    _check_vectors(con, vectors, model)
    created_at = now()
    new = [
        {"kernel_id": kernel_id, "model": model, "vector": [float(x) for x in vector], "created_at": created_at}
        for kernel_id, vector in dict(vectors).items()
    ]
    con.execute(
        "DELETE FROM embeddings WHERE model = ? AND list_contains(?::VARCHAR[], kernel_id)",
        [model, [row["kernel_id"] for row in new]],
    )
    rows.insert_many(con, "embeddings", new)


def _check_vectors(con: DuckDBPyConnection, vectors: Sequence[tuple[str, Sequence[float]]], model: str) -> None:
    unknown = con.execute(
        "SELECT min(id) FROM (SELECT unnest(?::VARCHAR[]) AS id) WHERE id NOT IN (SELECT id FROM kernels)",
        [[kernel_id for kernel_id, _ in vectors]],
    ).fetchall()[0][0]
    if unknown is not None:
        raise ArchiveError(f"There is no kernel {unknown!r} in this archive: record its attempt before its vector.")
    known = con.execute("SELECT len(vector) FROM embeddings WHERE model = ? LIMIT 1", [model]).fetchone()
    size = len(vectors[0][1]) if known is None else known[0]
    for kernel_id, vector in vectors:
        if not has_direction(vector):
            raise ArchiveError(
                f"The vector for {kernel_id} is all zeros or not finite: check the embedding model {model!r}."
            )
        if len(vector) != size:
            raise ArchiveError(
                f"The model {model!r} gave {len(vector)} numbers where it gave {size} before: "
                "give the changed model another name."
            )


def has_direction(vector: Sequence[float]) -> bool:
    """Return whether a vector can be compared by its angle at all."""
    return all(math.isfinite(x) for x in vector) and any(x != 0 for x in vector)


def resolve_model(con: DuckDBPyConnection, vector: Sequence[float], model: str | None) -> str | None:
    """Return the model to compare a vector with: the one named, or of its size the one that embedded a kernel last.

    None when there is nothing to compare with; raises ArchiveError when the vector has another size than its vectors.
    """
    if not has_direction(vector):
        return None
    row = con.execute(
        "SELECT model, len(vector) FROM embeddings WHERE coalesce(model = ?, len(vector) = ?) "
        "ORDER BY created_at DESC, model LIMIT 1",
        [model, len(vector)],
    ).fetchone()
    if row is not None and row[1] != len(vector):
        raise ArchiveError(
            f"The query has {len(vector)} numbers, but the vectors of {row[0]!r} have {row[1]}: "
            "embed the query with the model that embedded the kernels."
        )
    return None if row is None else str(row[0])


def nearest(
    con: DuckDBPyConnection,
    vector: Sequence[float],
    count: int,
    where: KernelFilter,
    model: str,
    among: Sequence[str] | None = None,
) -> list[tuple[str, float]]:
    """Return (kernel id, cosine similarity) for kernels that pass the filter, or for those of `among` that do."""
    sql, parameters = condition(where)
    chosen = "" if among is None else "AND list_contains(?::VARCHAR[], kernel_id)"
    found = con.execute(
        f"""
        SELECT kernel_id, list_cosine_similarity(vector, ?::FLOAT[]) AS similarity
        FROM embeddings
        WHERE model = ? AND len(vector) = ? {chosen} AND kernel_id IN (SELECT id FROM kernel_cards WHERE {sql})
        ORDER BY similarity DESC, kernel_id
        LIMIT ?
        """,
        [
            [float(x) for x in vector],
            model,
            len(vector),
            *([] if among is None else [list(among)]),
            *parameters,
            count,
        ],
    ).fetchall()
    return [(str(kernel_id), float(similarity)) for kernel_id, similarity in found]
