"""Convert between records and rows: what each table holds of an attempt, and an attempt back from its rows.

Comes in: records, and a DuckDB connection inside a transaction. Goes out: inserted rows (never replaced ones), or
records. Knows the tables of `schema/`; knows nothing of files, locks and vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from rag_kernels.archive.records import ArchivedKernel, Attempt, Edge, Exemplar, LLMCall, Trust
from rag_kernels.eval import codec
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import (
    BuildFailed,
    Candidate,
    Compiled,
    Crashed,
    FunctionalProblem,
    Judged,
    Measurement,
    Passed,
    Rejected,
    TimedOut,
    Verdict,
    Wrong,
    verdict_name,
)
from rag_kernels.eval.told import told

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row = dict[str, Any]

KERNEL_COLUMNS = tuple(ArchivedKernel.__dataclass_fields__)
CALL_COLUMNS = tuple(LLMCall.__dataclass_fields__)

TOLD_COLUMNS = ("told", "told_eager", "told_compile", "told_floor")  # of evaluations: what is shown of its medians

# What tells the rows of a table apart. DuckDB is not told: see archive/migrations.py.
KEYS: dict[str, tuple[str, ...]] = {
    "migrations": ("position",),
    "problems": ("id",),
    "functionals": ("id",),
    "candidates": ("id",),
    "ideas": ("id",),
    "kernels": ("id",),
    "evaluations": ("id",),
    "edges": ("child", "source", "relation"),
    "runs": ("id",),
    "attempts": ("id",),
    "llm_calls": ("id",),
    "embeddings": ("kernel_id", "model"),
    "retractions": ("kernel_id", "reason"),
    "rechecks": ("attempt_id", "evaluation_id"),
    "claims": ("id",),
    "briefs": ("run_id", "number"),
    "proposals": ("run_id", "brief"),
    "turn": ("id",),
    "techniques": ("id",),
    "technique_evidence": ("technique_id", "child", "parent", "device_key"),
}

ATTEMPTS = """
    SELECT a.*, f.record, c.tier, c.backend, c.source, i.text AS idea
    FROM attempts AS a
    JOIN functionals AS f ON f.id = a.functional_id
    JOIN candidates AS c ON c.id = a.candidate_id
    JOIN ideas AS i ON i.id = a.idea_id
"""


def query(con: DuckDBPyConnection, sql: str, parameters: Any = ()) -> list[Row]:
    """Run a query and return its rows as dictionaries."""
    cursor = con.execute(sql, parameters)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def insert(con: DuckDBPyConnection, table: str, row: Mapping[str, Any]) -> None:
    """Add a row unless its key is there already: content ids make that the same row."""
    there = " AND ".join(f"{name} = ?" for name in KEYS[table])
    if con.execute(f"SELECT 1 FROM {table} WHERE {there}", [row[name] for name in KEYS[table]]).fetchone() is None:
        add(con, table, row)


def insert_all(con: DuckDBPyConnection, new: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Add rows of several tables unless their keys are there already: one query looks for all of them."""
    wanted = {(table, *(row[name] for name in KEYS[table])): row for table, row in new}
    looks = [
        f"SELECT {number} FROM {key[0]} WHERE {' AND '.join(f'{name} = ?' for name in KEYS[key[0]])}"
        for number, key in enumerate(wanted)
    ]
    found = con.execute(" UNION ALL ".join(looks), [value for key in wanted for value in key[1:]]).fetchall()
    there = {number for (number,) in found}
    for number, (key, row) in enumerate(wanted.items()):
        if number not in there:
            add(con, key[0], row)


def add(con: DuckDBPyConnection, table: str, row: Mapping[str, Any]) -> None:
    """Add a row that is known to be new."""
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" for _ in row)
    con.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def insert_many(con: DuckDBPyConnection, table: str, new: Sequence[Mapping[str, Any]]) -> int:
    """Add many rows of the same columns at once, a hundred times as fast as one by one; return how many were added.

    A row whose key is there already is left as it is.
    """
    if not new:
        return 0
    names = list(new[0])
    columns = ", ".join(f'unnest(?) AS "{name}"' for name in names)
    values = [[row[name] for row in new] for name in names]
    return insert_select(con, table, f"SELECT {columns}", values)


def insert_select(con: DuckDBPyConnection, table: str, select: str, parameters: Sequence[Any] = ()) -> int:
    """Add those rows of a SELECT, each of another key, whose key is not there yet; return how many they were."""
    same = " AND ".join(f"old.{name} = new.{name}" for name in KEYS[table])
    added = con.execute(
        f"INSERT INTO {table} BY NAME SELECT new.* FROM ({select}) AS new ANTI JOIN {table} AS old ON {same}",
        parameters,
    ).fetchall()
    return int(added[0][0])


def trust_of(verdict: Verdict) -> Trust | None:
    """Return the trust that a verdict of our own judge earns; None when the candidate does not become a kernel."""
    match verdict:
        case Passed():
            return "confirmed" if verdict.trust == "confirmed" else "verified"  # not where a check could not be run
        case Compiled():
            return "compiled"
        case BuildFailed() | Wrong() | Crashed() | TimedOut() | Rejected():
            return None
    assert_never(verdict)


def reason_of(verdict: Verdict) -> str:
    """Return why it failed; empty when it passed."""
    return "" if isinstance(verdict, Passed) else verdict.reason


def functional_id(functional: FunctionalProblem) -> str:
    return content_id("f", codec.dumps(functional))


def idea_id(problem_id: str, text: str) -> str:
    return content_id("i", problem_id, text)


def evaluation_id(kernel_id: str, functional: str, judged: str) -> str:
    """Return an evaluation's id. `functional` is a functionals.id, `judged` the text of the Judged record."""
    return content_id("e", kernel_id, functional, judged)


def problem_row(functional: FunctionalProblem, created_at: str) -> Row:
    problem = functional.problem
    return {"id": problem.id, "name": problem.name, "source": problem.source, "created_at": created_at}


def functional_row(functional: FunctionalProblem) -> Row:
    features, record = functional.features, codec.dumps(functional)
    return {
        "id": content_id("f", record),
        "problem_id": functional.problem.id,
        "graph_key": functional.graph_key,
        "source": functional.source,
        "operators": list(features.operators),
        "ranks": list(features.ranks),
        "dtypes": list(features.dtypes),
        "shapes": [list(tensor.spec.shape) for tensor in functional.tensors],
        "record": record,
    }


def candidate_row(candidate: Candidate) -> Row:
    return {
        "id": candidate.id,
        "tier": candidate.tier,
        "backend": candidate.backend,
        "source": candidate.source,
    }


def evaluation_columns(kernel_id: str, functional: str, problem_id: str, judged: Judged, created_at: str) -> Row | None:
    """Return what an evaluation says of a kernel, `functional` by its id; None when the verdict is a failure."""
    trust = trust_of(judged.verdict)
    if trust is None:
        return None
    text = codec.dumps(judged)
    return {
        "id": evaluation_id(kernel_id, functional, text),
        "kernel_id": kernel_id,
        "problem_id": problem_id,
        "functional_id": functional,
        "trust": trust,
        "stated_trust": trust,
        "device_key": judged.device.key,
        "device_name": judged.device.name,
        "device_arch": judged.device.arch,
        "torch": judged.environment.torch,
        "compiler": judged.environment.compiler,
        "judge_version": judged.environment.judge_version,
        **_passed_columns(judged.verdict),
        **_told_columns(judged),
        "judged": text,
        "created_at": created_at,
    }


def _passed_columns(verdict: Verdict) -> Row:
    if not isinstance(verdict, Passed):
        return {"label": "", "labels": [], "precision": ""}
    return {
        "label": verdict.label,
        "labels": list(verdict.labels),
        "precision": verdict.precision,
        "error_ratio": verdict.error_ratio,
        **_measurement_columns(verdict.measurement),
    }


def _measurement_columns(measured: Measurement) -> Row:
    over_compile = measured.speedup_compile
    return {
        "candidate_us": measured.candidate_us,
        "eager_us": measured.eager_us,
        "compile_us": measured.compile_us,
        "speedup_eager": measured.speedup_eager.median,
        "speedup_compile": None if over_compile is None else over_compile.median,
        "speedup": measured.speedup,
        "floor_us": measured.floor_us,
        "floor_fraction": measured.floor_fraction,
    }


def _told_columns(judged: Judged) -> Row:
    said = told(judged)
    if said is None:
        return dict.fromkeys(TOLD_COLUMNS)
    return dict(zip(TOLD_COLUMNS, (said.speedup, said.over_eager, said.over_compile, said.of_floor), strict=True))


def kernel_row(attempt: Attempt, functional: str) -> Row:
    """Return the row of a kernel. `functional` is a functionals.id, here and below."""
    return {
        "id": attempt.candidate.id,
        "functional_id": functional,
        "idea_id": idea_id(attempt.problem.problem.id, attempt.idea),
        "writer": attempt.writer,
        "model": attempt.model,
        "licence": "",
        "attribution": "",
        "created_at": attempt.created_at,
    }


def attempt_row(attempt: Attempt, functional: str, evaluation: str | None) -> Row:
    verdict = attempt.judged.verdict
    return {
        "id": attempt.id,
        "run_id": attempt.run_id,
        "number": attempt.number,
        "round": attempt.round,
        "functional_id": functional,
        "candidate_id": attempt.candidate.id,
        "idea_id": idea_id(attempt.problem.problem.id, attempt.idea),
        "evaluation_id": evaluation,
        "verdict": verdict_name(verdict),
        "reason": reason_of(verdict),
        "judged": codec.dumps(attempt.judged),
        "writer": attempt.writer,
        "model": attempt.model,
        "exemplars": [_struct(exemplar) for exemplar in attempt.exemplars],
        "parents": [_struct(edge) for edge in attempt.parents],
        "call_ids": list(attempt.call_ids),
        "techniques": list(attempt.techniques),
        "cost_usd": attempt.cost_usd,
        "seconds": attempt.seconds,
        "note": attempt.note,
        "created_at": attempt.created_at,
    }


def _struct(record: Exemplar | Edge) -> Row:
    return {name: value for name, value in codec.encode(record).items() if name != "_"}


def insert_attempt(con: DuckDBPyConnection, attempt: Attempt) -> None:
    """Add an attempt with everything that it refers to; does nothing when it is there already."""
    if con.execute("SELECT 1 FROM attempts WHERE id = ?", [attempt.id]).fetchone():
        return
    problem = attempt.problem
    idea = {
        "id": idea_id(problem.problem.id, attempt.idea),
        "problem_id": problem.problem.id,
        "text": attempt.idea,
        "created_at": attempt.created_at,
    }
    functional = functional_row(problem)
    evaluation = evaluation_columns(
        attempt.candidate.id, functional["id"], problem.problem.id, attempt.judged, attempt.created_at
    )
    new = [
        ("problems", problem_row(problem, attempt.created_at)),
        ("functionals", functional),
        ("candidates", candidate_row(attempt.candidate)),
        ("ideas", idea),
        *(("edges", _struct(edge)) for edge in attempt.parents),
    ]
    if evaluation is not None:
        new += [("kernels", kernel_row(attempt, functional["id"])), ("evaluations", evaluation)]
    insert_all(con, new)
    evaluated = None if evaluation is None else evaluation["id"]
    add(con, "attempts", attempt_row(attempt, functional["id"], evaluated))


def to_attempt(row: Row) -> Attempt:
    """Return an attempt exactly as recorded; `row` is one of `ATTEMPTS`."""
    return Attempt(
        run_id=row["run_id"],
        number=row["number"],
        round=row["round"],
        problem=codec.loads(row["record"]),
        candidate=Candidate(row["source"], row["tier"], row["backend"]),
        judged=codec.loads(row["judged"]),
        writer=row["writer"],
        model=row["model"],
        idea=row["idea"],
        exemplars=tuple(Exemplar(**{**x, "reasons": tuple(x["reasons"])}) for x in row["exemplars"]),
        parents=tuple(Edge(**x) for x in row["parents"]),
        call_ids=tuple(row["call_ids"]),
        cost_usd=row["cost_usd"],
        seconds=row["seconds"],
        created_at=row["created_at"],
        note=row["note"],
        techniques=tuple(row["techniques"] or ()),
    )


def to_kernel(row: Row) -> ArchivedKernel:
    """Return a kernel from a row of `kernel_cards`."""
    values = {name: row[name] for name in KERNEL_COLUMNS}
    for name in ("operators", "ranks", "dtypes", "labels"):
        values[name] = tuple(values[name])
    values["shapes"] = tuple(tuple(shape) for shape in values["shapes"])
    return ArchivedKernel(**values)
