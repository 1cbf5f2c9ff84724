"""SQL over the archive's views: the columns of a snapshot, and how a list of kernels is narrowed down.

Comes in: what a reader chose. Goes out: queries and conditions. Knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_kernels.archive.filters import BEST_ROW

# A row for each kernel, problem and device; `choice` is 1 for the one that speaks for its kernel.
CARDS = f"""
    SELECT
        id, problem_id, problem_name AS problem, trust, retracted, stale, unranked, label, labels, tier, backend,
        "precision", writer, model, array_to_string(dtypes, ', ') AS dtype, graph_key, device_name AS device,
        device_key, array_to_string(list_sort(list_distinct(operators)), ', ') AS operators, idea, at_least, speedup,
        speedup_eager, speedup_compile, candidate_us / 1e3 AS ms, eager_us / 1e3 AS eager_ms,
        compile_us / 1e3 AS compile_ms, 100 * floor_fraction AS floor_percent,
        TRY_CAST(created_at AS TIMESTAMP) AS created_at, {BEST_ROW.removesuffix(" = 1")} AS choice
    FROM kernel_cards
"""
# Candidates by their last judgement (a confirmation is no further attempt), by steps of five minutes.
TRIES = """
    SELECT
        problem_id, problem_name AS problem, writer, model, verdict, count(*) AS attempts,
        count(*) FILTER (won) AS won, max(speedup) FILTER (barred = '') AS best,
        time_bucket(INTERVAL '5 minutes', TRY_CAST(created_at AS TIMESTAMP)) AS time
    FROM candidate_results GROUP BY ALL
"""
SPENDING = """
    SELECT time_bucket(INTERVAL '5 minutes', TRY_CAST(created_at AS TIMESTAMP)) AS time, model,
        sum(cost_usd) AS cost_usd, count(*) AS calls, count(*) FILTER (cost_usd IS NULL) AS unpriced,
        sum(prompt_tokens + completion_tokens)::BIGINT AS tokens
    FROM llm_calls GROUP BY ALL
"""
FORMS = """
    SELECT graph_key, arg_min(source, id) AS source, arg_min(operators, id) AS operators
    FROM functionals GROUP BY graph_key
"""
LISTED = """id, problem_id, problem, idea, trust, retracted, stale, unranked, label, tier,
    regexp_replace(array_to_string(labels, ', '), '(k_[0-9a-f]{8})[0-9a-f]+', '\\1', 'g') AS labels, backend, writer,
    model, family, dtype, device, at_least, speedup, speedup_eager, speedup_compile, ms, eager_ms, compile_ms,
    floor_percent, created_at"""
FILTERS = ("trust", "backend", "device", "family", "dtype", "label", "tier", "writer", "model")
MEASURED = ("speedup", "speedup_eager", "speedup_compile", "floor_percent", "ms")


@dataclass(frozen=True, slots=True)
class Where:
    """Select what to keep. `ids` are of kernels; with `hidden`, retracted and stale ones too."""

    chosen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ids: tuple[str, ...] | None = None
    problem_ids: tuple[str, ...] | None = None
    device: str | None = None
    hidden: bool = False

    def sql(self) -> tuple[str, list[Any]]:
        """Return a condition on `cards`; column names come from `FILTERS` alone."""
        parts: list[tuple[str, Any]] = [
            (f"list_contains(?::VARCHAR[], {column})", list(self.chosen[column]))
            for column in FILTERS
            if self.chosen.get(column)
        ]
        if self.ids is not None:
            parts.append(("id IN (SELECT unnest(?::VARCHAR[]))", list(self.ids)))
        if self.problem_ids is not None:
            parts.append(("problem_id IN (SELECT unnest(?::VARCHAR[]))", list(self.problem_ids)))
        if self.device is not None:
            parts.append(("device = ?", self.device))
        if not self.hidden:
            parts.append(("retracted = ? AND stale = ''", ""))
        return " AND ".join(sql for sql, _ in parts) or "true", [value for _, value in parts]

    @property
    def one_each(self) -> str:
        """Return a query for the row of each kernel that speaks for it, among those that are kept."""
        return "QUALIFY row_number() OVER (PARTITION BY id ORDER BY choice) = 1"


EVERYTHING = Where(hidden=True)
