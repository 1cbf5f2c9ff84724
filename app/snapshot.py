"""The lists of an archive as columns in a DuckDB in memory: what pages filter, sort, page through and add up.

Comes in: an archive. Goes out: tables of at most a page, and sums. It is read at
one moment and never changes; sources and prompts stay in the archive. Knows nothing of looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import duckdb
import pandas as pd

from rag_kernels.app.columns import CARDS, EVERYTHING, FILTERS, FORMS, LISTED, MEASURED, SPENDING, TRIES, Where
from rag_kernels.archive.protocol import Tables
from rag_kernels.ingest.description.describe import main_family

ANSWERS = 100  # that are kept


class Snapshot:
    """Hold the lists as they were at one moment; safe to share between sessions."""

    def __init__(self, archive: Tables) -> None:
        with archive.database.read() as con:
            read = {
                name: con.execute(sql).to_arrow_table()
                for name, sql in (("narrow", CARDS), ("tries", TRIES), ("spending", SPENDING))
            }
            forms = con.execute(FORMS).fetchall()
        named = [(key, main_family(source, tuple(operators))) for key, source, operators in forms]
        self._con = duckdb.connect(":memory:", config={"threads": 2})
        self._answers: dict[str, pd.DataFrame] = {}
        self._take("families", pd.DataFrame(named, columns=["graph_key", "family"], dtype="object"))
        for name, table in read.items():
            self._take(name, table)
        self._con.execute(
            "CREATE TABLE cards AS SELECT narrow.*, coalesce(family, '') AS family "
            "FROM narrow LEFT JOIN families USING (graph_key)"
        )
        self._con.execute("DROP TABLE narrow")

    def _take(self, name: str, table: Any) -> None:
        self._con.register("fresh", table)
        self._con.execute(f"CREATE TABLE {name} AS FROM fresh")
        self._con.unregister("fresh")

    def _ask(self, sql: str, parameters: Sequence[Any] = ()) -> pd.DataFrame:
        """Run a query. An answer stays right as long as the snapshot lives, so the latest ones are kept."""
        question = f"{sql} {parameters!r}"
        answer = self._answers.get(question)
        if answer is None:
            answer = self._con.cursor().execute(sql, list(parameters)).df()
            if len(self._answers) >= ANSWERS:
                self._answers.pop(next(iter(list(self._answers))), None)
            self._answers[question] = answer
        return answer

    # --- kernels

    def kernels(
        self, where: Where, *, order: str = "created_at", descending: bool = True, first: int = 0, count: int = 50
    ) -> pd.DataFrame:
        """Return a page of the list: a row for each kernel, with the evaluation that speaks best for it.

        In order of a measurement those come first that are ranked: nothing that is only claimed leads a list.
        """
        sql, values = where.sql()
        direction = "DESC" if descending else "ASC"
        measured = "unranked <> ''," if order in MEASURED else ""
        return self._ask(
            f"SELECT {LISTED} FROM cards WHERE {sql} {where.one_each} "
            f"ORDER BY {measured} {order} {direction} NULLS LAST, id LIMIT {int(count)} OFFSET {int(first)}",
            values,
        )

    def count(self, where: Where) -> int:
        sql, values = where.sql()
        return int(self._ask(f"SELECT count(DISTINCT id) AS n FROM cards WHERE {sql}", values)["n"].iloc[0])

    def options(self, column: str) -> list[str]:
        """Return what can be chosen in a filter, the most frequent first."""
        assert column in FILTERS
        found = self._ask(f"SELECT {column} FROM cards GROUP BY 1 ORDER BY count(DISTINCT id) DESC, 1")
        return [value for value in found[column] if value]

    def counts(self, column: str, most: int = 10) -> pd.DataFrame:
        """Return how many standing kernels there are of each value."""
        assert column in FILTERS
        return self._ask(
            f"SELECT coalesce(nullif({column}, ''), 'none') AS {column}, count(*) AS count FROM cards "
            f"WHERE choice = 1 AND retracted = '' AND stale = '' GROUP BY 1 ORDER BY count DESC, 1 LIMIT {int(most)}"
        )

    def speedups(self, where: Where, families: int = 9) -> pd.DataFrame:
        """Return histograms of speed-ups for each of the largest families: family, low and high of a bin, kernels."""
        sql, values = where.sql()
        return self._ask(
            f"""
            WITH timed AS (SELECT family, least(greatest(log2(speedup), -3), 6) AS place FROM cards
                           WHERE unranked = '' AND speedup > 0 AND {sql} {where.one_each}),
            largest AS (SELECT family FROM timed GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT {int(families)})
            SELECT family, 2.0 ** (floor(2 * place) / 2) AS low, 2.0 ** (floor(2 * place) / 2 + 0.5) AS high,
                count(*) AS kernels
            FROM timed SEMI JOIN largest USING (family) GROUP BY ALL ORDER BY family, low
            """,
            values,
        )

    # --- problems

    def problems(self) -> pd.DataFrame:
        """Return a row for each problem: what it is made of, what was tried, and how far it got."""
        return self._ask(
            """
            WITH named AS (SELECT problem_id, problem FROM cards UNION ALL SELECT problem_id, problem FROM tries)
            SELECT n.problem_id AS id, any_value(n.problem) AS problem, any_value(c.family) AS family,
                coalesce(any_value(c.operators), '') AS operators, coalesce(any_value(c.kernels), 0) AS kernels,
                coalesce(any_value(t.attempts), 0)::BIGINT AS attempts, any_value(t.passed_percent) AS passed_percent,
                any_value(c.speedup) AS speedup, any_value(c.eager) AS eager,
                any_value(c.over_compile) AS over_compile, coalesce(any_value(c.devices), '') AS devices
            FROM named AS n
            LEFT JOIN (
                SELECT problem_id, any_value(family) AS family, any_value(operators) AS operators,
                    count(DISTINCT id) FILTER (unranked = '') AS kernels,
                    max(speedup) FILTER (unranked = '') AS speedup,
                    max(speedup_eager) FILTER (unranked = '') AS eager,
                    max(speedup_compile) FILTER (unranked = '') AS over_compile,
                    array_to_string(list_sort(list(DISTINCT device) FILTER (unranked = '')), ', ') AS devices
                FROM cards GROUP BY problem_id
            ) AS c USING (problem_id)
            LEFT JOIN (
                SELECT problem_id, sum(attempts) AS attempts,
                    100 * coalesce(sum(attempts) FILTER (verdict = 'passed'), 0) / sum(attempts) AS passed_percent
                FROM tries GROUP BY problem_id
            ) AS t USING (problem_id)
            GROUP BY n.problem_id
            """
        )

    def best(self, where: Where = EVERYTHING, count: int | None = None) -> pd.DataFrame:
        """Return the fastest ranked kernel of each problem and device, the greatest gain first."""
        sql, values = where.sql()
        limit = "" if count is None else f"LIMIT {int(count)}"
        first = "{'speedup': speedup, 'sooner': -ms, 'id': id}"
        return self._ask(
            f"SELECT {LISTED} FROM cards WHERE rowid IN (SELECT arg_max(rowid, {first}) FROM cards WHERE unranked = '' "
            f"AND speedup IS NOT NULL AND {sql} GROUP BY problem_id, device_key) "
            f"ORDER BY speedup DESC, problem, id {limit}",
            values,
        )

    def wins(self, count: int) -> pd.DataFrame:
        """Return the newest ranked kernels that were confirmed to be faster than PyTorch, a row for each."""
        return self._ask(
            f"SELECT {LISTED} FROM cards WHERE unranked = '' AND trust = 'confirmed' AND speedup > 1 "
            f"{EVERYTHING.one_each} ORDER BY created_at DESC, id LIMIT {int(count)}"
        )

    def baselines(self) -> pd.DataFrame:
        """Return per problem the best gain over each baseline on any device."""
        return self._ask(
            "SELECT problem_id, max(speedup_eager) AS eager, max(speedup_compile) AS over_compile "
            "FROM cards WHERE unranked = '' GROUP BY 1"
        )

    # --- leaderboards

    def standing(self) -> int:
        """Return how many kernels are ranked anywhere."""
        return int(self._ask("SELECT count(DISTINCT id) AS n FROM cards WHERE unranked = ''")["n"].iloc[0])

    def devices(self) -> list[str]:
        """Return devices that something is ranked on, the busiest first."""
        found = self._ask("SELECT device FROM cards WHERE unranked = '' GROUP BY 1 ORDER BY count(*) DESC, 1")
        return list(found["device"])

    def ranked(self, problem_id: str) -> pd.DataFrame:
        """Return the ranks on one problem, device by device."""
        return self._ask(
            f"SELECT {LISTED} FROM cards WHERE unranked = '' AND problem_id = ? ORDER BY device, speedup DESC, ms, id",
            [problem_id],
        )

    def standings(self, where: Where) -> pd.DataFrame:
        """Return who is ahead on a set of problems: writers and models, with eager and torch.compile as rows.

        The gain on a problem is that of the entrant's fastest ranked kernel over eager; 1 where it has none that is
        faster, because a user keeps PyTorch there.
        """
        sql, values = where.sql()
        return self._ask(
            f"""
            WITH ranked AS (
                SELECT *, coalesce(nullif(model, ''), writer) AS entrant FROM cards
                WHERE unranked = '' AND speedup IS NOT NULL AND {sql}
            ),
            timed AS (
                SELECT problem_id, arg_max(eager_ms / compile_ms, speedup) AS over_eager FROM ranked GROUP BY 1
            ),
            gains AS (
                SELECT entrant, problem_id, max(speedup_eager) AS gain, max(speedup) AS over_both
                FROM ranked GROUP BY 1, 2
                UNION ALL SELECT 'torch.compile', problem_id, over_eager, NULL FROM timed WHERE over_eager IS NOT NULL
                UNION ALL SELECT 'eager PyTorch', problem_id, 1.0, NULL FROM timed
            )
            SELECT entrant, count(*) AS solved, (SELECT count(*) FROM timed) AS problems,
                count(*) FILTER (gain > 1) AS faster, count(*) FILTER (over_both > 1) AS won,
                count(*) FILTER (gain > 2) AS twice,
                exp(sum(ln(greatest(gain, 1))) / any_value((SELECT count(*) FROM timed))) AS mean,
                entrant IN ('torch.compile', 'eager PyTorch') AS baseline
            FROM gains GROUP BY entrant ORDER BY mean DESC, solved DESC, entrant
            """,
            values,
        )

    def unranked(self, where: Where, count: int = 200) -> pd.DataFrame:
        """Return kernels without a rank, each with the reason."""
        sql, values = where.sql()
        return self._ask(
            f"SELECT {LISTED} FROM cards WHERE unranked <> '' AND {sql} "
            f"ORDER BY unranked, problem, id LIMIT {int(count)}",
            values,
        )

    def why_unranked(self, where: Where) -> pd.DataFrame:
        """Return how many kernels have no rank for each kind of reason."""
        sql, values = where.sql()
        return self._ask(
            f"SELECT regexp_extract(unranked, '^[^:]*') AS why, count(DISTINCT id) AS kernels FROM cards "
            f"WHERE unranked <> '' AND {sql} GROUP BY 1 ORDER BY kernels DESC, why",
            values,
        )

    # --- attempts

    def outcomes(self, since: datetime | None = None) -> pd.DataFrame:
        return self._ask(
            "SELECT replace(verdict, '_', ' ') AS outcome, sum(attempts)::BIGINT AS count FROM tries "
            "WHERE coalesce(time >= ?, true) GROUP BY 1 ORDER BY count DESC",
            [since],
        )

    def credit(self) -> pd.DataFrame:
        """Return per writer and model: attempts, passes, wins, the best speed-up, and what it cost."""
        return self._ask(
            """
            SELECT t.*, s.cost_usd, s.unpriced, s.cost_usd / nullif(t.won, 0) AS cost_per_win
            FROM (
                SELECT writer, model, sum(attempts)::BIGINT AS attempts,
                    coalesce(sum(attempts) FILTER (verdict = 'passed'), 0)::BIGINT AS passed,
                    100 * passed / sum(attempts) AS passed_percent, sum(won)::BIGINT AS won, max(best) AS best
                FROM tries GROUP BY writer, model
            ) AS t
            LEFT JOIN (
                SELECT model, sum(cost_usd) AS cost_usd, sum(unpriced)::BIGINT AS unpriced
                FROM spending GROUP BY model
            ) AS s ON s.model = t.model AND t.model <> ''
            ORDER BY t.won DESC, t.passed DESC, t.writer, t.model
            """
        )

    def history(self, points: int = 300) -> pd.DataFrame:
        """Return running totals: kernels in the archive, attempts that won, and dollars spent."""
        return self._ask(
            f"""
            WITH steps AS (
                SELECT time_bucket(INTERVAL '5 minutes', created_at) AS time, count(*) AS kernels, 0 AS wins,
                    0.0 AS cost_usd
                FROM cards WHERE choice = 1 GROUP BY 1
                UNION ALL SELECT time, 0, sum(won), 0.0 FROM tries GROUP BY 1
                UNION ALL SELECT time, 0, 0, coalesce(sum(cost_usd), 0) FROM spending GROUP BY 1
            ),
            sums AS (
                SELECT time, sum(sum(kernels)) OVER so_far AS kernels, sum(sum(wins)) OVER so_far AS wins,
                    sum(sum(cost_usd)) OVER so_far AS cost_usd,
                    ntile({int(points)}) OVER so_far AS part
                FROM steps WHERE time IS NOT NULL GROUP BY time WINDOW so_far AS (ORDER BY time)
            )
            SELECT max(time) AS time, max(kernels) AS kernels, max(wins) AS wins, max(cost_usd) AS cost_usd
            FROM sums GROUP BY part ORDER BY 1
            """
        )

    def lately(self, since: datetime) -> dict[str, Any]:
        """Return what came in since a moment: attempts, passes, wins, problems tried, kernels, dollars."""
        found = self._ask(
            """
            SELECT coalesce(sum(attempts), 0)::BIGINT AS attempts, coalesce(sum(won), 0)::BIGINT AS wins,
                coalesce(sum(attempts) FILTER (verdict = 'passed'), 0)::BIGINT AS passed,
                count(DISTINCT problem_id) AS problems,
                (SELECT count(*) FROM cards WHERE choice = 1 AND created_at >= $1) AS kernels,
                (SELECT coalesce(sum(cost_usd), 0) FROM spending WHERE time >= $1) AS cost_usd,
                (SELECT coalesce(sum(unpriced), 0)::BIGINT FROM spending WHERE time >= $1) AS unpriced
            FROM tries WHERE time >= $1
            """,
            [since],
        )
        row: dict[str, Any] = found.iloc[0].to_dict()
        return row

    def improved(self, since: datetime, count: int = 10) -> pd.DataFrame:
        """Return problems whose fastest ranked kernel came in since a moment, with the best that there was before."""
        return self._ask(
            f"""
            SELECT id, problem_id, problem, device, at_least, speedup, before, idea, created_at
            FROM (
                SELECT *, max(speedup) FILTER (created_at < $1) OVER board AS before,
                    row_number() OVER (PARTITION BY problem_id, device_key ORDER BY speedup DESC, ms, id) AS place
                FROM cards WHERE unranked = '' AND speedup IS NOT NULL
                WINDOW board AS (PARTITION BY problem_id, device_key)
            )
            WHERE place = 1 AND created_at >= $1 ORDER BY speedup / coalesce(before, 1) DESC, id LIMIT {int(count)}
            """,
            [since],
        )
