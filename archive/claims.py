"""Imported rows: what others say of their kernels, kept apart from what was measured here.

Comes in: an archive and `Imported` records, many at a time. Goes out: rows of the tables, inserted in bulk in one
transaction; what is there already stays as it is, so an import can be repeated. A candidate whose source says that
it is wrong is kept, and becomes no kernel. Knows nothing of files and formats: see `ingest/importers/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rag_kernels.archive import rows
from rag_kernels.archive.duck import now
from rag_kernels.archive.protocol import Tables
from rag_kernels.archive.records import Claim, Imported
from rag_kernels.eval import codec
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import FunctionalProblem, Problem

NewRows = dict[str, dict[tuple[Any, ...], rows.Row]]
TABLES = ("problems", "functionals", "candidates", "ideas", "kernels", "edges", "claims")
CLAIM_COLUMNS = tuple(Claim.__dataclass_fields__)


def claim_id(candidate_id: str | None, problem_id: str, claim: Claim) -> str:
    return content_id("c", candidate_id or "", problem_id, codec.dumps(claim))


def take(archive: Tables, imported: Sequence[Imported]) -> dict[str, int]:
    """Store imported rows and return the number of new rows of each table."""
    created_at = now()
    tables: NewRows = {table: {} for table in TABLES}
    functionals: dict[int, rows.Row] = {}  # rows of one problem share the record, which is long: written once
    for one in imported:
        known = functionals.setdefault(id(one.functional), {}) or rows.functional_row(one.functional)
        functionals[id(one.functional)] = known
        for table, row in _rows_of(one, known, created_at):
            tables[table].setdefault(tuple(row[name] for name in rows.KEYS[table]), row)
    with archive.database.write() as con:
        return {table: rows.insert_many(con, table, list(new.values())) for table, new in tables.items()}


def add_functionals(archive: Tables, functionals: Sequence[FunctionalProblem]) -> int:
    """Store functional forms of problems that were imported without one; return how many are new."""
    found = [rows.functional_row(functional) for functional in functionals]
    with archive.database.write() as con:
        return rows.insert_many(con, "functionals", found)


def without_functional(archive: Tables) -> list[Problem]:
    """Return imported problems that nobody has functionalized yet: their functional form holds no arguments."""
    with archive.database.read() as con:
        found = con.execute(
            "SELECT p.name, p.source FROM problems AS p WHERE p.id IN (SELECT problem_id FROM claims) "
            "AND p.id NOT IN (SELECT problem_id FROM functionals WHERE len(shapes) > 0) ORDER BY p.name, p.id"
        ).fetchall()
    return [Problem(name, source) for name, source in found]


def written_for(archive: Tables, kernel_id: str) -> FunctionalProblem:
    """Return the functional problem that a kernel was first written for; of an imported one, which is a text at first,
    the form that was worked out later.
    """
    with archive.database.read(stay=True) as con:
        found = con.execute(
            "SELECT other.record FROM kernels AS k JOIN functionals AS f ON f.id = k.functional_id "
            "JOIN functionals AS other ON other.problem_id = f.problem_id WHERE k.id = ? "
            "ORDER BY CASE WHEN len(f.shapes) = 0 THEN len(other.shapes) = 0 ELSE other.id <> f.id END, other.id "
            "LIMIT 1",
            [kernel_id],
        ).fetchall()
    functional: FunctionalProblem = codec.loads(found[0][0])
    return functional


def claims_of(archive: Tables, kernel_id: str) -> list[Claim]:
    """Return everything that was claimed of a kernel, in the order of its origins."""
    names = ", ".join(CLAIM_COLUMNS)
    with archive.database.read() as con:
        found = rows.query(con, f"SELECT {names} FROM claims WHERE candidate_id = ? ORDER BY origin, id", [kernel_id])
    return [to_claim(row) for row in found]


def to_claim(row: Mapping[str, Any]) -> Claim:
    values = {name: row[name] for name in CLAIM_COLUMNS}
    return Claim(**{**values, "notes": tuple(values["notes"])})


def _rows_of(one: Imported, functional: rows.Row, created_at: str) -> list[tuple[str, rows.Row]]:
    """Return the rows of each table that one imported row becomes."""
    problem = one.functional.problem
    candidate_id = None if one.candidate is None else one.candidate.id
    claim = {
        "id": claim_id(candidate_id, problem.id, one.claim),
        "candidate_id": candidate_id,
        "problem_id": problem.id,
        **asdict(one.claim),
        "notes": list(one.claim.notes),
        "created_at": created_at,
    }
    found = [
        ("problems", rows.problem_row(one.functional, created_at)),
        ("functionals", functional),
        ("claims", claim),
    ]
    if one.candidate is None:
        return found
    edge = {"child": one.candidate.id, "source": f"{one.claim.importer}: {one.claim.origin}", "relation": "imported"}
    found += [("candidates", rows.candidate_row(one.candidate)), ("edges", edge)]
    if one.claim.correct is False:
        return found
    idea = {
        "id": rows.idea_id(problem.id, one.idea),
        "problem_id": problem.id,
        "text": one.idea,
        "created_at": created_at,
    }
    kernel = {
        "id": one.candidate.id,
        "functional_id": functional["id"],
        "idea_id": idea["id"],
        "writer": "import",
        "model": one.model,
        "licence": one.claim.licence,
        "attribution": one.claim.attribution,
        "created_at": created_at,
    }
    return [*found, ("ideas", idea), ("kernels", kernel)]
