"""Is everything in the archive what it says it is?

Comes in: an archive, or a connection with its tables. Goes out: sentences, one for each thing that is wrong; none
means that every content id is that of its content, every column agrees with the record it was taken from, and every
reference leads somewhere. Reads only, repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from archive import rows
from archive.claims import claim_id, to_claim
from archive.duck import DuckArchive
from eval import codec
from eval.ids import content_id
from eval.records import Candidate, FunctionalProblem, Judged, Problem

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
    ("edges", "SELECT child FROM edges", "SELECT id FROM candidates"),
    ("edges", "SELECT source FROM edges WHERE relation <> 'imported'", "SELECT id FROM candidates"),
    ("attempts", "SELECT run_id FROM attempts", "SELECT id FROM runs"),
    ("attempts", "SELECT functional_id FROM attempts", "SELECT id FROM functionals"),
    ("attempts", "SELECT candidate_id FROM attempts", "SELECT id FROM candidates"),
    ("attempts", "SELECT idea_id FROM attempts", "SELECT id FROM ideas"),
    ("attempts", "SELECT evaluation_id FROM attempts", "SELECT id FROM evaluations"),
    ("attempts", "SELECT unnest(call_ids) FROM attempts", "SELECT id FROM llm_calls"),
    ("attempts", "SELECT x.kernel_id FROM (SELECT unnest(exemplars) AS x FROM attempts)", "SELECT id FROM kernels"),
    ("llm_calls", "SELECT run_id FROM llm_calls", "SELECT id FROM runs"),
)


def verify(archive: DuckArchive) -> list[str]:
    """Everything that is wrong with an archive, a sentence each."""
    with archive.database.read() as con:
        return [*wrong_contents(con), *(sentence for _, sentence in lost_references(con))]


def wrong_contents(con: DuckDBPyConnection) -> list[str]:
    """Rows whose id or columns are not those of their content."""
    checks = (_wrong_texts, _wrong_functionals, _wrong_evaluations, _wrong_attempts, _wrong_claims)
    return [sentence for check in checks for sentence in check(con)]


def lost_references(con: DuckDBPyConnection) -> Iterator[tuple[str, str]]:
    """References that lead nowhere, each with its table."""
    for table, references, targets in REFERENCES:
        sql = f"SELECT DISTINCT x FROM ({references}) AS t(x) WHERE x NOT IN ({targets}) ORDER BY x"
        for (missing,) in con.execute(sql).fetchall():
            wanted = targets.split()[-1]
            yield table, f"{table} refers to {missing}, which is not in {wanted}."


def _wrong_texts(con: DuckDBPyConnection) -> Iterator[str]:
    for row in rows.query(con, "SELECT id, name, source FROM problems ORDER BY id"):
        if Problem(row["name"], row["source"]).id != row["id"]:
            yield f"problems: {row['id']} is not the id of its source."
    for row in rows.query(con, "SELECT id, tier, backend, source FROM candidates ORDER BY id"):
        if Candidate(row["source"], row["tier"], row["backend"]).id != row["id"]:
            yield f"candidates: {row['id']} is not the id of its source."
    for row in rows.query(con, "SELECT id, problem_id, text FROM ideas ORDER BY id"):
        if rows.idea_id(row["problem_id"], row["text"]) != row["id"]:
            yield f"ideas: {row['id']} is not the id of its text."


def _wrong_functionals(con: DuckDBPyConnection) -> Iterator[str]:
    for row in rows.query(con, "SELECT * FROM functionals ORDER BY id"):
        record = _decoded(row["record"])
        if not isinstance(record, FunctionalProblem):
            yield f"functionals: the record of {row['id']} cannot be read."
        elif rows.functional_row(record) != row:
            yield f"functionals: {row['id']} does not agree with its record."


def _wrong_evaluations(con: DuckDBPyConnection) -> Iterator[str]:
    sql = "SELECT e.*, f.record FROM evaluations AS e JOIN functionals AS f ON f.id = e.functional_id ORDER BY e.id"
    for row in rows.query(con, sql):
        judged, problem = _decoded(row["judged"]), _decoded(row.pop("record"))
        if not isinstance(judged, Judged) or not isinstance(problem, FunctionalProblem):
            yield f"evaluations: the record of {row['id']} cannot be read."
            continue
        expected = rows.evaluation_row(row["kernel_id"], problem, judged, row["created_at"])
        if expected is None:
            yield f"evaluations: {row['id']} is a failure, which no kernel has."
        elif any(row[name] != value for name, value in expected.items() if name not in ("trust", "stated_trust")):
            yield f"evaluations: {row['id']} does not agree with its record."
        elif not {row["trust"], row["stated_trust"]} <= {"claimed", expected["trust"]}:
            yield f"evaluations: {row['id']} is given more trust than its verdict earns."


def _wrong_attempts(con: DuckDBPyConnection) -> Iterator[str]:
    for row in rows.query(con, "SELECT id, run_id, number, judged FROM attempts ORDER BY id"):
        if content_id("a", row["run_id"], str(row["number"])) != row["id"]:
            yield f"attempts: {row['id']} is not the id of its run and number."
        if not isinstance(_decoded(row["judged"]), Judged):
            yield f"attempts: the record of {row['id']} cannot be read."


def _wrong_claims(con: DuckDBPyConnection) -> Iterator[str]:
    for row in rows.query(con, "SELECT * FROM claims ORDER BY id"):
        if claim_id(row["candidate_id"], row["problem_id"], to_claim(row)) != row["id"]:
            yield f"claims: {row['id']} is not the id of what it says."


def _decoded(text: str) -> object:
    """The record in a text; None when the text holds none of ours."""
    try:
        return codec.loads(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
