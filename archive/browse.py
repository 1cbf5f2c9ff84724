"""Reads for a person who looks around an archive, beside `archive.queries`: one thing whole, and sums over attempts.

Comes in: an archive and what is asked. Goes out: records and small frozen rows. Reads only. Knows nothing of how they
are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_kernels.archive import rows
from rag_kernels.archive.protocol import Tables
from rag_kernels.archive.queries import AttemptRow, load
from rag_kernels.archive.records import Attempt, Run
from rag_kernels.eval import codec
from rag_kernels.eval.records import Device, FunctionalProblem


@dataclass(frozen=True, slots=True)
class Failure:
    """Count attempts that failed alike: their reasons differ in numbers only. `example` is one of them as it stands."""

    verdict: str
    example: str
    count: int
    problems: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Count how often a kernel was shown to a writer, and what became of those attempts."""

    kernel_id: str
    shown: int
    passed: int
    won: int
    median_speedup: float | None


@dataclass(frozen=True, slots=True)
class Paid:
    """Hold a kernel that some attempt's writer was shown, and what came of it over all attempts."""

    kernel_id: str
    problem_id: str
    problem_name: str
    idea: str
    source: str
    speedup: float | None
    shown: int
    passed: int
    won: int


@dataclass(frozen=True, slots=True)
class SignalRecord:
    """Count what became of the candidates whose writer was shown a kernel that this signal spoke for."""

    signal: str
    shown: int
    passed: int
    won: int
    median_speedup: float | None


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Hold problems that belong together: one growth job's, or one importer's."""

    name: str
    problem_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BestAttempt:
    """Hold an attempt's rank among those of a problem, for a curve of progress; the texts are left out."""

    run_id: str
    number: int
    kernel_id: str
    verdict: str
    speedup: float | None
    at_least: bool
    created_at: str


@dataclass(frozen=True, slots=True)
class Holdings:
    """Count kernels by what speaks for them; a retracted one counts as that alone."""

    here: int = 0  # verified or confirmed by a judgement of this archive's own runs
    elsewhere: int = 0  # the same by a bundle whose judge is trusted
    starter: int = 0  # come with the package, not judged here
    claimed: int = 0  # imported, not judged here
    compiled: int = 0  # built only: the device that they are for was not there
    retracted: int = 0

    @property
    def kernels(self) -> int:
        return self.here + self.elsewhere + self.starter + self.claimed + self.compiled


@dataclass(frozen=True, slots=True)
class Tried:
    """Hold the last attempt of a run, without its texts."""

    number: int
    verdict: str
    reason: str
    idea: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold the last request to a model of a run, without its texts."""

    purpose: str
    model: str
    error: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Pulse:
    """Hold what a run did last, and what its models have used."""

    attempt: Tried | None
    call: Asked | None
    tokens: int
    usd: float


def functional(archive: Tables, problem_id: str) -> FunctionalProblem | None:
    """Return a problem with its call: the form that an attempt used last, else the fullest one that is known."""
    with archive.database.read(stay=True) as con:
        found = con.execute(
            "SELECT record FROM functionals WHERE problem_id = ? ORDER BY (SELECT max(created_at) FROM attempts "
            "WHERE attempts.functional_id = functionals.id) DESC NULLS LAST, len(shapes) DESC, id LIMIT 1",
            [problem_id],
        ).fetchone()
    return codec.loads(found[0]) if found else None


def attempt(archive: Tables, run_id: str, number: int) -> Attempt | None:
    with archive.database.read(stay=True) as con:
        found = rows.query(con, f"{rows.ATTEMPTS} WHERE a.run_id = ? AND a.number = ?", [run_id, number])
    return rows.to_attempt(found[0]) if found else None


def origin(archive: Tables, kernel_id: str) -> Attempt | None:
    """Return the attempt that first brought a kernel; None for one that was imported."""
    with archive.database.read(stay=True) as con:
        found = rows.query(
            con, f"{rows.ATTEMPTS} WHERE a.candidate_id = ? ORDER BY a.created_at, a.id LIMIT 1", [kernel_id]
        )
    return rows.to_attempt(found[0]) if found else None


def run(archive: Tables, run_id: str) -> Run | None:
    found = load(archive, Run, "FROM runs WHERE id = ?", [run_id])
    return found[0] if found else None


def devices_of(archive: Tables, problem_id: str) -> list[Device]:
    """Return the devices on which kernels of a problem were judged."""
    with archive.database.read(stay=True) as con:
        found = con.execute(
            "SELECT any_value(judged) FROM evaluations WHERE problem_id = ? GROUP BY device_key ORDER BY device_key",
            [problem_id],
        ).fetchall()
    return [codec.loads(judged).device for (judged,) in found]


def attempts_on(archive: Tables, problem_id: str) -> list[BestAttempt]:
    """Return every attempt on a problem, oldest first; a pass that is barred has no speed-up."""
    sql = """
        FROM (
            SELECT * REPLACE (CASE WHEN barred = '' THEN speedup END AS speedup), candidate_id AS kernel_id
            FROM attempt_results WHERE problem_id = ?
        ) ORDER BY created_at, run_id, number
    """
    return load(archive, BestAttempt, sql, [problem_id])


def attempts_with_exemplars(archive: Tables, limit: int) -> list[AttemptRow]:
    """Return the newest attempts whose writer was shown something."""
    return load(
        archive,
        AttemptRow,
        "FROM attempt_results WHERE len(exemplars) > 0 ORDER BY created_at DESC, attempt_id LIMIT ?",
        [limit],
    )


def failures(archive: Tables, run_id: str | None = None, limit: int = 50) -> list[Failure]:
    """Return why attempts failed, the most frequent first: of one run, or of all."""
    sql = r"""
        FROM (
            SELECT
                verdict, count(*) AS count, arg_max(reason, number) AS example,
                count(DISTINCT functional_id) AS problems
            FROM attempts
            WHERE verdict NOT IN ('passed', 'compiled') AND coalesce(run_id = ?, true)
            GROUP BY verdict, regexp_replace(reason, '[0-9]+([.,][0-9]+)*(e[-+]?[0-9]+)?', '#', 'g')
        ) ORDER BY count DESC, verdict, example LIMIT ?
    """
    return load(archive, Failure, sql, [run_id, limit])


def credit(archive: Tables, limit: int = 100) -> list[Credit]:
    """Return the exemplars that helped most."""
    return load(archive, Credit, "FROM exemplar_credit ORDER BY won DESC, passed DESC, shown LIMIT ?", [limit])


def paid(archive: Tables, kernel_ids: Sequence[str]) -> list[Paid]:
    """Return these kernels with what came of showing them, also to other writers; one that left the archive is left
    out.
    """
    sql = """
        FROM (
            SELECT
                k.id AS kernel_id, p.id AS problem_id, p.name AS problem_name, i.text AS idea, c.source,
                max_by(e.speedup, {'trust': trust_rank(e.trust), 'speedup': e.speedup}) AS speedup,
                coalesce(any_value(x.shown), 0) AS shown,
                coalesce(any_value(x.passed), 0) AS passed, coalesce(any_value(x.won), 0) AS won
            FROM kernels AS k
            JOIN candidates AS c ON c.id = k.id
            JOIN functionals AS f ON f.id = k.functional_id
            JOIN problems AS p ON p.id = f.problem_id
            JOIN ideas AS i ON i.id = k.idea_id
            LEFT JOIN kernel_cards AS e ON e.id = k.id AND e.problem_id = p.id
            LEFT JOIN (
                SELECT kernel_id, count(*) AS shown, count(*) FILTER (verdict = 'passed') AS passed,
                    count(*) FILTER (won) AS won
                FROM exemplars_shown WHERE list_contains($1::VARCHAR[], kernel_id) GROUP BY kernel_id
            ) AS x ON x.kernel_id = k.id
            WHERE list_contains($1::VARCHAR[], k.id)
            GROUP BY ALL
        )
    """
    return load(archive, Paid, sql, [list(kernel_ids)])


def signal_records(archive: Tables) -> list[SignalRecord]:
    """Return, for each signal, how the candidates fared whose writers were shown what it spoke for."""
    sql = """
        FROM (
            SELECT
                signal, count(*) AS shown, count(*) FILTER (verdict = 'passed') AS passed,
                count(*) FILTER (won) AS won, median(speedup) FILTER (verdict = 'passed') AS median_speedup
            FROM (
                SELECT DISTINCT run_id, candidate_id, verdict, won, speedup, unnest(
                    CASE WHEN len(exemplars) = 0 THEN ['no exemplar'] ELSE list_transform(
                        flatten(list_transform(exemplars, lambda x: x.reasons)),
                        lambda reason: regexp_extract(reason, '^(same graph|bm25|dense|graph|remedy|drawn at random)')
                    ) END
                ) AS signal
                FROM candidate_results
                WHERE writer = 'llm' OR len(exemplars) > 0
            )
            WHERE signal <> ''
            GROUP BY signal
        ) ORDER BY won / shown DESC, signal
    """
    return load(archive, SignalRecord, sql, [])


def problem_sets(archive: Tables) -> list[ProblemSet]:
    """Return the problems of each growth job, newest first, and what came from each importer."""
    with archive.database.read(stay=True) as con:
        found = con.execute(
            """
            SELECT 'grown ' || left(min(started_at), 10), list_sort(list(DISTINCT problem_id)), min(started_at) AS began
            FROM (
                SELECT started_at, json_extract_string(settings, '$.growth') AS growth,
                    json_extract_string(settings, '$.problem_id') AS problem_id
                FROM runs WHERE command = 'grow' AND json_valid(settings)
            )
            WHERE growth IS NOT NULL AND problem_id IS NOT NULL
            GROUP BY growth
            UNION ALL
            SELECT 'imported from ' || importer, list_sort(list(DISTINCT problem_id)), '' FROM claims GROUP BY importer
            ORDER BY began DESC
            """
        ).fetchall()
    named: dict[str, ProblemSet] = {}
    for name, problem_ids, _ in found:
        title = f"{name} ({len(problem_ids)} problems)"
        named.setdefault(title, ProblemSet(title, tuple(problem_ids)))
    return list(named.values())


def problems_of_runs(archive: Tables) -> dict[str, str]:
    """Return the id of the problem that each run was about, by the run's id; runs about many are left out."""
    with archive.database.read(stay=True) as con:
        found = con.execute(
            "SELECT id, json_extract_string(settings, '$.problem_id') AS problem_id FROM runs "
            "WHERE json_valid(settings) AND problem_id IS NOT NULL"
        ).fetchall()
    return dict(found)


def kernels_with(archive: Tables, text: str) -> tuple[str, ...]:
    """Return ids of kernels whose problem's name, idea or source holds a text, in whatever case."""
    with archive.database.read(stay=True) as con:
        found = con.execute(
            """
            WITH wanted AS (SELECT lower(?) AS text)
            SELECT k.id FROM kernels AS k JOIN candidates AS c ON c.id = k.id, wanted
            WHERE contains(lower(c.source), wanted.text)
            UNION
            SELECT k.id FROM kernels AS k JOIN ideas AS i ON i.id = k.idea_id, wanted
            WHERE contains(lower(i.text), wanted.text)
            UNION
            SELECT e.kernel_id FROM problems AS p JOIN evaluations AS e ON e.problem_id = p.id, wanted
            WHERE contains(lower(p.name), wanted.text)
            UNION
            SELECT e.candidate_id FROM problems AS p JOIN claims AS e ON e.problem_id = p.id, wanted
            WHERE contains(lower(p.name), wanted.text) AND e.candidate_id IS NOT NULL
            """,
            [text],
        ).fetchall()
    return tuple(str(kernel_id) for (kernel_id,) in found)


def holdings(archive: Tables, starter: Sequence[str]) -> Holdings:
    """Return how many kernels there are by what speaks for them. `starter` are ids of the starter archive's kernels."""
    with archive.database.read(stay=True) as con:
        found = con.execute(
            """
            WITH proven AS (
                SELECT e.kernel_id, bool_or(a.evaluation_id IS NOT NULL) AS here
                FROM evaluations AS e
                LEFT JOIN (SELECT DISTINCT evaluation_id FROM attempts) AS a ON a.evaluation_id = e.id
                ANTI JOIN stale AS s ON s.evaluation_id = e.id
                WHERE e.trust IN ('verified', 'confirmed') GROUP BY e.kernel_id
            ),
            built AS (SELECT DISTINCT kernel_id FROM evaluations WHERE trust = 'compiled')
            SELECT CASE
                WHEN r.kernel_id IS NOT NULL THEN 'retracted'
                WHEN p.here THEN 'here'
                WHEN p.kernel_id IS NOT NULL THEN 'elsewhere'
                WHEN list_contains(?::VARCHAR[], k.id) THEN 'starter'
                WHEN b.kernel_id IS NOT NULL THEN 'compiled'
                ELSE 'claimed' END AS place, count(*)
            FROM kernels AS k
            LEFT JOIN proven AS p ON p.kernel_id = k.id
            LEFT JOIN built AS b ON b.kernel_id = k.id
            LEFT JOIN retracted AS r ON r.kernel_id = k.id
            GROUP BY place
            """,
            [list(starter)],
        ).fetchall()
    return Holdings(**{str(place): int(count) for place, count in found})


def running(archive: Tables) -> list[Run]:
    """Return the runs under way, newest first; that of a growth as a whole stands for none of them."""
    sql = "FROM runs WHERE status = 'running' AND command <> 'growth' ORDER BY started_at DESC, id"
    return load(archive, Run, sql, [])


def relatives(archive: Tables, kernel_id: str, shown: Sequence[str], limit: int) -> list[tuple[str, str]]:
    """Return kernels that this one may have been made from, and what each is to it: a source, one of those that were
    shown to its writer, or an older one of the same graph.
    """
    with archive.database.read(stay=True) as con:
        found = con.execute(
            """
            WITH mine AS (
                SELECT f.graph_key, k.created_at FROM kernels AS k
                JOIN functionals AS f ON f.id = k.functional_id WHERE k.id = $id
            ),
            named AS (
                SELECT source AS id, relation, 0 AS rank FROM edges WHERE child = $id
                UNION ALL
                SELECT unnest($shown::VARCHAR[]), 'exemplar', 1
                UNION ALL
                SELECT k.id, 'of the same graph', 2 FROM kernels AS k
                JOIN functionals AS f ON f.id = k.functional_id, mine
                WHERE f.graph_key = mine.graph_key AND k.created_at <= mine.created_at
            )
            SELECT id, arg_min(relation, rank) FROM named
            WHERE id <> $id AND id IN (SELECT id FROM kernels)
            GROUP BY id ORDER BY min(rank), id LIMIT $limit
            """,
            {"id": kernel_id, "shown": list(shown), "limit": limit},
        ).fetchall()
    return [(str(name), str(relation)) for name, relation in found]


def sources(archive: Tables, kernel_ids: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return id, name of the problem that it was first written for, and source of each of these kernels."""
    with archive.database.read(stay=True) as con:
        found = con.execute(
            "SELECT k.id, p.name, c.source FROM kernels AS k JOIN candidates AS c ON c.id = k.id "
            "JOIN functionals AS f ON f.id = k.functional_id JOIN problems AS p ON p.id = f.problem_id "
            "WHERE list_contains(?::VARCHAR[], k.id) ORDER BY k.id",
            [list(kernel_ids)],
        ).fetchall()
    return [(str(name), str(problem), str(source)) for name, problem, source in found]


def pulse(archive: Tables, run_id: str) -> Pulse:
    """Return what a run did last and what it has used, without texts of prompts and sources."""
    with archive.database.read(stay=True) as con:
        tried = con.execute(
            "SELECT number, verdict, reason, idea, created_at FROM attempt_results WHERE run_id = ? "
            "ORDER BY number DESC LIMIT 1",
            [run_id],
        ).fetchone()
        asked = con.execute(
            "SELECT purpose, model, error, created_at FROM llm_calls WHERE run_id = ? ORDER BY created_at DESC LIMIT 1",
            [run_id],
        ).fetchone()
        used = con.execute(
            "SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::BIGINT, coalesce(sum(cost_usd), 0)::DOUBLE "
            "FROM llm_calls WHERE run_id = ?",
            [run_id],
        ).fetchone()
    tokens, usd = used or (0, 0.0)
    return Pulse(
        attempt=Tried(*tried) if tried else None, call=Asked(*asked) if asked else None, tokens=tokens, usd=usd
    )
