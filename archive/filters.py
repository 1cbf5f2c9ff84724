"""Turn a `KernelFilter` into a condition on the view `kernel_cards`.

Comes in: a filter. Goes out: an SQL condition with its parameters. Knows nothing else.
"""

from __future__ import annotations

from typing import Any

from rag_kernels.archive.records import KernelFilter

# Of the rows of kernel_cards that pass the filter, the one that speaks for its kernel.
BEST_ROW = """row_number() OVER (
    PARTITION BY id ORDER BY stale <> '', trust_rank(trust) DESC, speedup DESC NULLS LAST, problem_id, device_key
) = 1"""


def condition(where: KernelFilter) -> tuple[str, list[Any]]:
    """Return a condition and its parameters.

    An excluded problem excludes every kernel that was ever evaluated or claimed on it: it may give the answer away.
    """
    parts: list[tuple[str, Any]] = []
    for column in ("backend", "tier", "graph_key", "problem_id"):
        value = getattr(where, column)
        if value is not None:
            parts.append((f"{column} = ?", value))
    if where.min_trust is not None:
        parts.append(("trust_rank(trust) >= trust_rank(?)", where.min_trust))
    if where.exclude_problem_ids:
        for table, kernel_id in (("evaluations", "kernel_id"), ("claims", "coalesce(candidate_id, '')")):
            there = f"SELECT {kernel_id} FROM {table} WHERE list_contains(?::VARCHAR[], problem_id)"
            parts.append((f"id NOT IN ({there})", list(where.exclude_problem_ids)))
    if where.text:
        anywhere = "contains(lower(concat_ws(chr(10), problem_name, idea, source)), lower(?))"
        parts.append((anywhere, where.text))
    if not where.include_retracted:
        parts.append(("retracted = ? AND stale = ''", ""))
    return " AND ".join(sql for sql, _ in parts) or "true", [value for _, value in parts]
