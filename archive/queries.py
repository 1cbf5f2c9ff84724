"""Reads for the explorer and the command line: small typed rows, never a connection.

Comes in: an archive and what is asked. Goes out: frozen rows, ready to show. Reads only. `version(archive)` changes
with every write of any process, so that callers can cache by it. Knows the views of `schema/`, nothing of how rows
are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from rag_kernels.archive import rows
from rag_kernels.archive.filters import BEST_ROW
from rag_kernels.archive.protocol import Archive, Tables
from rag_kernels.archive.records import Edge, Trust
from rag_kernels.eval import codec
from rag_kernels.eval.records import Backend, Judged, Tier

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Place:
    """Hold a verified kernel's rank for a problem on a device."""

    place: int
    problem_id: str
    problem_name: str
    device_key: str
    device_name: str
    device_arch: str
    kernel_id: str
    backend: Backend
    tier: Tier
    trust: Trust
    label: str
    writer: str
    model: str
    candidate_us: float | None
    eager_us: float | None
    compile_us: float | None
    speedup_eager: float | None
    speedup_compile: float | None
    speedup: float | None
    floor_fraction: float | None
    at_least: bool  # the speed-ups are lower ends of intervals: nothing confirmed them


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Hold one judgement of a kernel, whole."""

    id: str
    problem_id: str
    problem_name: str
    trust: Trust
    judged: Judged
    created_at: str


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """Hold a line of a run's table; `won` is a pass that beats the better baseline."""

    attempt_id: str
    run_id: str
    number: int
    round: int
    problem_id: str
    problem_name: str
    candidate_id: str
    tier: Tier
    backend: Backend
    verdict: str
    reason: str
    speedup: float | None
    at_least: bool
    trust: Trust | None
    label: str | None
    won: bool
    writer: str
    model: str
    idea: str
    cost_usd: float | None
    seconds: float
    created_at: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Hold the last verdict on a candidate in a run; `right` is a pass that nothing bars."""

    run_id: str
    problem_id: str
    problem_name: str
    candidate_id: str
    number: int
    first_round: int
    right: bool
    speedup: float | None
    at_least: bool
    cost_usd: float | None
    verdict: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RunRow:
    """Hold what a run tried, won and cost; a cost is None when no price is known."""

    run_id: str
    command: str
    problem_name: str
    started_at: str
    status: str
    attempts: int
    passed: int
    verified_kernels: int
    best_speedup: float | None
    best_at_least: bool
    seconds: float
    cost_usd: float | None
    cost_per_verified_kernel: float | None


@dataclass(frozen=True, slots=True)
class LineageNode:
    """Hold a kernel, a failed candidate (no trust), or the name of an origin outside the archive (no backend)."""

    id: str
    problem_name: str
    backend: Backend | None
    tier: Tier | None
    trust: Trust | None
    speedup: float | None
    writer: str
    idea: str


@dataclass(frozen=True, slots=True)
class LineageGraph:
    """Hold ancestors and descendants of one kernel, itself included."""

    nodes: tuple[LineageNode, ...]
    edges: tuple[Edge, ...]


def version(archive: Archive) -> str:
    """Return a text that changes whenever anything was written, by any process; cheap enough for every page view."""
    return archive.version()


def leaderboard(archive: Tables, problem_id: str | None = None, device_key: str | None = None) -> list[Place]:
    """Return verified kernels by problem, device and rank; for all problems and devices, or one of them."""
    return load(
        archive,
        Place,
        "FROM leaderboard WHERE coalesce(problem_id = ?, true) AND coalesce(device_key = ?, true) "
        "ORDER BY problem_name, problem_id, device_name, device_key, place",
        [problem_id, device_key],
    )


def evaluations(archive: Tables, kernel_id: str) -> list[Evaluation]:
    """Return every judgement of a kernel, newest first."""
    with archive.database.read(stay=True) as con:
        found = rows.query(
            con,
            "SELECT e.id, e.problem_id, p.name AS problem_name, e.trust, e.judged, e.created_at FROM evaluations AS e "
            "JOIN problems AS p ON p.id = e.problem_id WHERE e.kernel_id = ? ORDER BY e.created_at DESC, e.id",
            [kernel_id],
        )
    return [Evaluation(**{**row, "judged": codec.loads(row["judged"])}) for row in found]


def attempts_of_run(archive: Tables, run_id: str) -> list[AttemptRow]:
    """Return the attempts of a run in order, failures included."""
    return load(archive, AttemptRow, "FROM attempt_results WHERE run_id = ? ORDER BY number", [run_id])


def last_judgements(archive: Tables, run_ids: Sequence[str]) -> list[Judgement]:
    """Return, for each candidate of these runs, its last judgement and the round in which it first came up."""
    with archive.database.read(stay=True) as con:
        found = rows.query(
            con,
            "SELECT run_id, problem_id, problem_name, candidate_id, min(number) OVER each AS number, "
            "min(round) OVER each AS first_round, verdict = 'passed' AND barred = '' AS \"right\", speedup, at_least, "
            "sum(cost_usd) OVER each AS cost_usd, verdict, reason, seconds FROM attempt_results "
            "WHERE list_contains(?::VARCHAR[], run_id) "
            "WINDOW each AS (PARTITION BY run_id, problem_id, candidate_id) "
            "QUALIFY row_number() OVER (PARTITION BY run_id, problem_id, candidate_id ORDER BY attempt_results.number "
            "DESC) = 1 ORDER BY run_id, number",
            [list(run_ids)],
        )
    return [Judgement(**row) for row in found]


def run_table(archive: Tables, limit: int = 50) -> list[RunRow]:
    """Return the runs, newest first."""
    return load(archive, RunRow, "FROM run_summary ORDER BY started_at DESC, run_id DESC LIMIT ?", [limit])


def lineage_graph(archive: Tables, kernel_id: str) -> LineageGraph:
    """Return all ancestors and all descendants, with the edges among them."""
    with archive.database.read(stay=True) as con:
        found = con.execute(
            "SELECT source FROM lineage_of($id) UNION SELECT child FROM descendants_of($id)",
            {"id": kernel_id},
        ).fetchall()
        names = sorted({kernel_id, *(name for (name,) in found)})
        edges = rows.query(
            con,
            "SELECT child, source, relation FROM edges WHERE list_contains($1::VARCHAR[], child) "
            "AND list_contains($1::VARCHAR[], source) ORDER BY child, relation, source",
            [names],
        )
        nodes = rows.query(con, LINEAGE_NODES, [names])
    return LineageGraph(tuple(LineageNode(**row) for row in nodes), tuple(Edge(**row) for row in edges))


LINEAGE_NODES = f"""
    SELECT
        n.id, coalesce(k.problem_name, t.problem_name, '') AS problem_name, c.backend, c.tier, k.trust, k.speedup,
        coalesce(k.writer, t.writer, '') AS writer, coalesce(k.idea, t.idea, '') AS idea
    FROM (SELECT unnest(?::VARCHAR[]) AS id) AS n
    LEFT JOIN candidates AS c ON c.id = n.id
    LEFT JOIN (SELECT * FROM kernel_cards QUALIFY {BEST_ROW}) AS k ON k.id = n.id
    LEFT JOIN (
        SELECT * FROM attempt_results
        QUALIFY row_number() OVER (PARTITION BY candidate_id ORDER BY created_at, attempt_id) = 1
    ) AS t ON t.candidate_id = n.id
    ORDER BY n.id
"""


def load(archive: Tables, kind: type[Row], sql: str, parameters: Sequence[Any]) -> list[Row]:
    """Fill records of a kind from the columns of the same names."""
    names = ", ".join(f'"{field.name}"' for field in fields(kind))  # type: ignore[arg-type]
    with archive.database.read(stay=True) as con:
        return [kind(**row) for row in rows.query(con, f"SELECT {names} {sql}", parameters)]
