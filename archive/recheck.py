"""Rejudging of kernels: which are due, and what a new judgement says of the earlier ones.

Comes in: an archive, the device and version of the judge that is at hand, and new attempts. Goes out: what is due, and
a `Recheck` for each earlier evaluation: it holds, or it is stale. Knows nothing of how kernels are judged.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from rag_kernels.archive import rows
from rag_kernels.archive.protocol import Tables
from rag_kernels.archive.records import Attempt, Trust
from rag_kernels.eval import codec
from rag_kernels.eval.records import Candidate, Compiled, Device, Measurement, Passed, Problem, Ratio, verdict_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Outcome = Literal["holds", "slower", "fails", "fails elsewhere"]
SLOWER = 0.9  # a run on another day differs by a few per cent: intervals must be this far apart


@dataclass(frozen=True, slots=True)
class Due:
    """Hold a kernel to judge again on a problem, with the evaluation that speaks for it so far."""

    candidate: Candidate
    problem: Problem
    evaluation_id: str | None  # None for a kernel that is only claimed
    trust: Trust
    speedup: float | None
    writer: str
    model: str
    idea: str


@dataclass(frozen=True, slots=True)
class Recheck:
    """Hold what a new judgement says of an earlier evaluation; `slower` and `fails` make it stale."""

    evaluation_id: str
    outcome: Outcome
    reason: str


# A kernel is up to date when this version of the judge judged it on this device as thoroughly as it ever was, or
# judged it again and marked what does not hold. One that is only claimed is due until it was judged here at all, also
# when something is known against it.
DUE = """
    SELECT c.id, c.source, c.tier, c.backend, c.problem_id, c.problem_name, p.source AS problem_source,
        c.evaluation_id, c.trust, c.speedup, c.writer, c.model, c.idea
    FROM kernel_cards AS c
    JOIN problems AS p ON p.id = c.problem_id
    LEFT JOIN evaluations AS s ON s.id = c.evaluation_id
    WHERE c.backend = $backend AND c.id NOT IN (SELECT kernel_id FROM retractions)
        AND ($ids::VARCHAR[] IS NULL OR list_contains($ids, c.id))
        AND ($everything OR NOT EXISTS (
            SELECT 1 FROM evaluations AS e
            WHERE e.kernel_id = c.id AND e.problem_id = c.problem_id AND e.device_key = $device
                AND e.judge_version = $version AND trust_rank(e.trust) >= trust_rank(s.stated_trust)
        ) AND NOT EXISTS (
            SELECT 1
            FROM attempts AS a
            JOIN functionals AS f ON f.id = a.functional_id
            LEFT JOIN rechecks AS r ON r.attempt_id = a.id
            WHERE a.candidate_id = c.id AND f.problem_id = c.problem_id
                AND (r.attempt_id IS NOT NULL OR s.id IS NULL)
                AND json_extract_string(a.judged::JSON, '$.environment.judge_version') = $version
                AND json_extract_string(a.judged::JSON, '$.device.name') = $name
                AND json_extract_string(a.judged::JSON, '$.device.arch') = $arch
        ))
    QUALIFY row_number() OVER (
        PARTITION BY c.id, c.problem_id ORDER BY c.stale <> '', trust_rank(c.trust) DESC, c.judged_at DESC
    ) = 1
    ORDER BY c.problem_name, c.problem_id, c.created_at, c.id
"""


def due(
    archive: Tables,
    device: Device,
    judge_version: str,
    *,
    kernel_ids: list[str] | None = None,
    everything: bool = False,
) -> list[Due]:
    """Return the device's backend's kernels that are not up to date, or all of them; those of one problem together."""
    parameters = {
        "backend": device.backend,
        "ids": kernel_ids,
        "everything": everything,
        "device": device.key,
        "version": judge_version,
        "name": device.name,
        "arch": device.arch,
    }
    with archive.database.read() as con:
        found = rows.query(con, DUE, parameters)
    return [
        Due(
            Candidate(row["source"], row["tier"], row["backend"]),
            Problem(row["problem_name"], row["problem_source"]),
            row["evaluation_id"],
            row["trust"],
            row["speedup"],
            row["writer"],
            row["model"],
            row["idea"],
        )
        for row in found
    ]


def record(archive: Tables, attempt: Attempt) -> list[Recheck]:
    """Store a new judgement and what it says of the earlier evaluations of this kernel on this problem; return
    those.
    """
    with archive.database.write() as con:
        marks = _marks(con, attempt)
        rows.insert_attempt(con, attempt)
        for mark in marks:
            row = {"attempt_id": attempt.id, **asdict(mark), "created_at": attempt.created_at}
            rows.insert(con, "rechecks", row)
    return marks


def _marks(con: DuckDBPyConnection, attempt: Attempt) -> list[Recheck]:
    earlier = rows.query(
        con,
        "SELECT id, trust, device_key, judged, id IN (SELECT evaluation_id FROM attempts WHERE run_id = ?) AS same_run "
        "FROM evaluations WHERE kernel_id = ? AND problem_id = ? ORDER BY id",
        [attempt.run_id, attempt.candidate.id, attempt.problem.problem.id],
    )
    if isinstance(attempt.judged.verdict, Compiled):  # it was not run, which says nothing
        return []
    return [_mark(attempt, row) for row in earlier]


def _mark(attempt: Attempt, earlier: rows.Row) -> Recheck:
    """Return what a new judgement says of an earlier one.

    A failure refutes what was found here and what was merely claimed, not what was verified on another device.
    """
    verdict = attempt.judged.verdict
    here = earlier["device_key"] == attempt.judged.device.key
    if not isinstance(verdict, Passed):
        refuted = here or earlier["trust"] == "claimed"
        reason = f"judged again: {verdict_name(verdict).replace('_', ' ')}, {verdict.reason}"
        return Recheck(earlier["id"], "fails" if refuted else "fails elsewhere", reason)
    old = codec.loads(earlier["judged"]).verdict
    if here and not earlier["same_run"] and isinstance(old, Passed):
        now, before = _ratio(verdict.measurement), _ratio(old.measurement)
        if now.high < SLOWER * before.low:
            reason = f"judged again: {now.median:.2f}x where it was {before.median:.2f}x"
            return Recheck(earlier["id"], "slower", reason)
    return Recheck(earlier["id"], "holds", "")


def _ratio(measured: Measurement) -> Ratio:
    """Return the speed-up over the better baseline."""
    known = [r for r in (measured.speedup_eager, measured.speedup_compile) if r is not None]
    return min(known, key=lambda ratio: ratio.median)
