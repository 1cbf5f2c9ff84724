"""Check that everything in the archive is what it says it is.

Comes in: an archive, or a connection with its tables. Goes out: sentences, one for each thing that is wrong; none
means that every content id is that of its content, every column agrees with the record it was taken from, and every
reference leads somewhere. Reads only, repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rag_kernels.archive import rows
from rag_kernels.archive.claims import claim_id, to_claim
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.techniques import technique_of
from rag_kernels.eval import codec
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import Candidate, FunctionalProblem, Judged, Problem, verdict_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CLAIMED_OR_JUDGED = (
    "SELECT candidate_id FROM claims WHERE candidate_id IS NOT NULL UNION SELECT kernel_id FROM evaluations"
)

# (table, what it refers to, where that must be)
REFERENCES: tuple[tuple[str, str, str], ...] = (
    ("functionals", "SELECT problem_id FROM functionals", "SELECT id FROM problems"),
    ("ideas", "SELECT problem_id FROM ideas", "SELECT id FROM problems"),
    ("kernels", "SELECT id FROM kernels", "SELECT id FROM candidates"),
    ("kernels", "SELECT id FROM kernels", CLAIMED_OR_JUDGED),
    ("kernels", "SELECT functional_id FROM kernels", "SELECT id FROM functionals"),
    ("kernels", "SELECT idea_id FROM kernels", "SELECT id FROM ideas"),
    ("evaluations", "SELECT kernel_id FROM evaluations", "SELECT id FROM kernels"),
    ("evaluations", "SELECT functional_id FROM evaluations", "SELECT id FROM functionals"),
    ("claims", "SELECT problem_id FROM claims", "SELECT id FROM problems"),
    ("claims", "SELECT problem_id FROM claims", "SELECT problem_id FROM functionals"),
    ("claims", "SELECT candidate_id FROM claims", "SELECT id FROM candidates"),
    ("embeddings", "SELECT kernel_id FROM embeddings", "SELECT id FROM kernels"),
    ("retractions", "SELECT kernel_id FROM retractions", "SELECT id FROM kernels"),
    ("rechecks", "SELECT attempt_id FROM rechecks", "SELECT id FROM attempts"),
    ("rechecks", "SELECT evaluation_id FROM rechecks", "SELECT id FROM evaluations"),
    ("edges", "SELECT child FROM edges", "SELECT id FROM candidates"),
    ("edges", "SELECT source FROM edges WHERE relation <> 'imported'", "SELECT id FROM candidates"),
    ("attempts", "SELECT run_id FROM attempts", "SELECT id FROM runs"),
    ("attempts", "SELECT functional_id FROM attempts", "SELECT id FROM functionals"),
    ("attempts", "SELECT candidate_id FROM attempts", "SELECT id FROM candidates"),
    ("attempts", "SELECT idea_id FROM attempts", "SELECT id FROM ideas"),
    ("attempts", "SELECT evaluation_id FROM attempts", "SELECT id FROM evaluations"),
    ("attempts", "SELECT unnest(call_ids) FROM attempts", "SELECT id FROM llm_calls"),
    ("attempts", "SELECT x.kernel_id FROM (SELECT unnest(exemplars) AS x FROM attempts)", "SELECT id FROM kernels"),
    (
        "attempts",
        "SELECT (x.child, x.source, x.relation)::VARCHAR FROM (SELECT unnest(parents) AS x FROM attempts)",
        "SELECT (child, source, relation)::VARCHAR FROM edges",
    ),
    ("technique_evidence", "SELECT technique_id FROM technique_evidence", "SELECT id FROM techniques"),
    ("technique_evidence", "SELECT child FROM technique_evidence", "SELECT id FROM kernels"),
    ("technique_evidence", "SELECT parent FROM technique_evidence", "SELECT id FROM candidates"),
    ("llm_calls", "SELECT run_id FROM llm_calls", "SELECT id FROM runs"),
    ("briefs", "SELECT run_id FROM briefs", "SELECT id FROM runs"),
    ("proposals", "SELECT (run_id, brief)::VARCHAR FROM proposals", "SELECT (run_id, number)::VARCHAR FROM briefs"),
)
BATCH = 1000  # rows in memory at once: records are long


def verify(archive: Archive) -> list[str]:
    """Return a sentence for each thing that is wrong with an archive."""
    with archive.database.read() as con:
        wrong = [*wrong_contents(con), *(sentence for _, sentence in lost_references(con))]
    return [*wrong, *archive.index_faults()]


def wrong_contents(con: DuckDBPyConnection) -> list[str]:
    """Yield a sentence for each row whose id or columns are not those of its content, or whose key another row has."""
    checks = (
        _repeated_keys,
        _wrong_texts,
        _wrong_functionals,
        _wrong_evaluations,
        _wrong_attempts,
        _wrong_techniques,
        _wrong_vectors,
        _wrong_claims,
    )
    return [sentence for check in checks for sentence in check(con)]


def lost_references(con: DuckDBPyConnection) -> Iterator[tuple[str, str]]:
    """Yield a sentence for each reference that leads nowhere."""
    for table, references, targets in REFERENCES:
        sql = f"SELECT DISTINCT x FROM ({references}) AS t(x) WHERE x IS NOT NULL AND x NOT IN ({targets}) ORDER BY x"
        for (missing,) in con.execute(sql).fetchall():
            wanted = targets.split()[-1]
            yield table, f"{table} refers to {missing}, which is not in {wanted}."


def _repeated_keys(con: DuckDBPyConnection) -> Iterator[str]:
    for table, key in rows.KEYS.items():
        names = ", ".join(key)
        for *values, times in con.execute(
            f"SELECT {names}, count(*) FROM {table} GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL"
        ).fetchall():
            yield f"{table}: {', '.join(map(str, values))} is there {times} times."


def _wrong_texts(con: DuckDBPyConnection) -> Iterator[str]:
    for row in _each(con, "SELECT id, name, source FROM problems ORDER BY id"):
        if Problem(row["name"], row["source"]).id != row["id"]:
            yield f"problems: {row['id']} is not the id of its source."
    for row in _each(con, "SELECT id, tier, backend, source FROM candidates ORDER BY id"):
        if Candidate(row["source"], row["tier"], row["backend"]).id != row["id"]:
            yield f"candidates: {row['id']} is not the id of its source."
    for row in _each(con, "SELECT id, problem_id, text FROM ideas ORDER BY id"):
        if rows.idea_id(row["problem_id"], row["text"]) != row["id"]:
            yield f"ideas: {row['id']} is not the id of its text."


def _wrong_functionals(con: DuckDBPyConnection) -> Iterator[str]:
    for row in _each(con, "SELECT * FROM functionals ORDER BY id"):
        record = _decoded(row["record"])
        if not isinstance(record, FunctionalProblem):
            yield f"functionals: the record of {row['id']} cannot be read."
        elif rows.functional_row(record) != row:
            yield f"functionals: {row['id']} does not agree with its record."


def _wrong_evaluations(con: DuckDBPyConnection) -> Iterator[str]:
    known: dict[str, str] = dict(con.execute("SELECT id, problem_id FROM functionals").fetchall())
    for row in _each(con, "SELECT * FROM evaluations ORDER BY id"):
        judged = _decoded(row["judged"])
        if not isinstance(judged, Judged):
            yield f"evaluations: the record of {row['id']} cannot be read."
            continue
        functional = str(row["functional_id"])
        problem_id = known.get(functional, str(row["problem_id"]))  # a lost one is reported as such
        expected = rows.evaluation_columns(row["kernel_id"], functional, problem_id, judged, row["created_at"])
        if expected is None:
            yield f"evaluations: {row['id']} is a failure, which no kernel has."
        elif any(row[name] != value for name, value in expected.items() if name not in ("trust", "stated_trust")):
            yield f"evaluations: {row['id']} does not agree with its record."
        elif not {row["trust"], row["stated_trust"]} <= {"claimed", expected["trust"]}:
            yield f"evaluations: {row['id']} is given more trust than its verdict earns."


def _wrong_attempts(con: DuckDBPyConnection) -> Iterator[str]:
    sql = "SELECT id, run_id, number, functional_id, candidate_id, evaluation_id, verdict, reason, judged FROM attempts"
    for row in _each(con, f"{sql} ORDER BY id"):
        if content_id("a", row["run_id"], str(row["number"])) != row["id"]:
            yield f"attempts: {row['id']} is not the id of its run and number."
        judged = _decoded(row["judged"])
        if not isinstance(judged, Judged):
            yield f"attempts: the record of {row['id']} cannot be read."
            continue
        passed = rows.trust_of(judged.verdict) is not None
        evaluation = rows.evaluation_id(row["candidate_id"], row["functional_id"], row["judged"]) if passed else None
        told = (verdict_name(judged.verdict), rows.reason_of(judged.verdict), evaluation)
        if told != (row["verdict"], row["reason"], row["evaluation_id"]):
            yield f"attempts: {row['id']} does not agree with its record."


def _wrong_techniques(con: DuckDBPyConnection) -> Iterator[str]:
    for row in _each(con, "SELECT * FROM techniques ORDER BY id"):
        if technique_of(row).id != row["id"]:
            yield f"techniques: {row['id']} is not the id of its card."


def _wrong_vectors(con: DuckDBPyConnection) -> Iterator[str]:
    """Yield vectors of one model that differ in length, or hold something that is no number."""
    sql = """
        SELECT kernel_id, model FROM embeddings
        WHERE len(vector) <> (SELECT mode(len(e.vector)) FROM embeddings AS e WHERE e.model = embeddings.model)
            OR list_bool_or(list_transform(vector, lambda x: NOT isfinite(x)))
        ORDER BY kernel_id, model"""
    for kernel_id, model in con.execute(sql).fetchall():
        yield f"embeddings: the vector of {kernel_id} by {model!r} cannot be compared with the others of its model."


def _each(con: DuckDBPyConnection, sql: str) -> Iterator[rows.Row]:
    """Yield rows as dictionaries, a batch at a time, so that a large archive fits into memory."""
    cursor = con.execute(sql)
    names = [column[0] for column in cursor.description]
    while batch := cursor.fetchmany(BATCH):
        yield from (dict(zip(names, row, strict=True)) for row in batch)


def _wrong_claims(con: DuckDBPyConnection) -> Iterator[str]:
    for row in _each(con, "SELECT * FROM claims ORDER BY id"):
        if claim_id(row["candidate_id"], row["problem_id"], to_claim(row)) != row["id"]:
            yield f"claims: {row['id']} is not the id of what it says."


def _decoded(text: str) -> object:
    """Return the record in a text; None when the text holds none of ours."""
    try:
        return codec.loads(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
