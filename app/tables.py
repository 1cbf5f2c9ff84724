"""Tables of kernels, problems, runs and attempts: what each column is, and where its links lead.

Comes in: tables made by `app.data`. Goes out: tables drawn. Knows nothing of queries.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from rag_kernels.app import grid, show
from rag_kernels.app.grid import Column, Order

NUMBER = st.column_config.NumberColumn
TEXT = st.column_config.TextColumn

KERNEL_PAGE, PROBLEM_PAGE, RUN_PAGE = "kernel?id={id}", "problem?id={problem_id}", "run?id={id}"
OVER_BOTH = "over the better of eager and torch.compile; ≥ where nothing confirmed it: the lower end of its interval"


def gain(label: str, help: str = "") -> Column:
    return Column(label, "number", help, digits=2, unit="×", bound=True)


def count(label: str, help: str = "") -> Column:
    return Column(label, "number", help)


def share(label: str, help: str = "") -> Column:
    return Column(label, "number", help, unit=" %")


KERNEL = Column("kernel", "id", link=KERNEL_PAGE)
PROBLEM = Column("problem", link=PROBLEM_PAGE)
IDEA = Column("idea", wide=True)
KERNEL_COLUMNS = {
    "place": count("place"),
    "id": KERNEL,
    "problem": PROBLEM,
    "relation": Column("relation", help="what it is to this kernel"),
    "speedup": gain("speed-up", OVER_BOTH),
    "speedup_eager": gain("vs eager"),
    "speedup_compile": gain("vs compile"),
    "ms": Column("time", "number", digits=3, unit=" ms"),
    "before": gain("best before", "the best ranked kernel that there was before"),
    "floor_percent": share("of floor", "physical floor over measured time: 100 % is the limit"),
    "why": Column("why it was found", wide=True),
    "unranked": Column("not ranked because", wide=True),
    "trust": Column("trust"),
    "label": Column("label", extra=True),
    "labels": Column("remarks", help="what else the judge remarked", extra=True),
    "family": Column("family", help="of the operator that the problem is built around", extra=True),
    "backend": Column("backend", extra=True),
    "tier": Column("tier", extra=True),
    "dtype": Column("dtype", extra=True),
    "writer": Column("writer"),
    "model": Column("model", extra=True),
    "device": Column("device"),
    "idea": IDEA,
    "created_at": Column("archived (UTC)", "when"),
}
LISTED = ("unranked", "place", "before", "why", "relation")  # no order of the whole list
KERNEL_ORDERS = {name: column for name, column in KERNEL_COLUMNS.items() if name not in LISTED}
FASTEST = Order("speedup", descending=True)


def kernels(table: pd.DataFrame, *, key: str, hide: tuple[str, ...] = (), order: Order | None = None) -> None:
    """Draw kernels; with `order`, as a page of a longer list."""
    shown = {
        name: column
        for name, column in KERNEL_COLUMNS.items()
        if name in table.columns and name not in hide and (name not in ("unranked", "labels") or table[name].any())
    }
    grid.draw(table, shown, key=key, name="kernels", open_at=KERNEL_PAGE, tick="kernel", order=order)


def matching(table: pd.DataFrame, text: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows that have the text in one of the columns, whatever the case."""
    texts = table[list(columns)].fillna("").agg(" ".join, axis=1)
    return table[texts.str.contains(text.strip(), case=False, regex=False)] if len(table) else table


def page_of(table: pd.DataFrame, order: Order) -> tuple[pd.DataFrame, int]:
    """Return the page of an ordered list that the URL asks for, and how many rows come before it; draws the pager."""
    first = show.pager(len(table))
    ties = [c for c in ("id", "number") if c in table and c != order.column]
    ordered = table.sort_values(
        [order.column, *ties], ascending=[not order.descending, *(True for _ in ties)], na_position="last"
    )
    return ordered.iloc[first : first + show.PAGE], first


PROBLEM_COLUMNS = {
    "problem": Column("problem", link="problem?id={id}"),
    "family": Column("family"),
    "operators": Column("operators"),
    "kernels": count("kernels"),
    "attempts": count("attempts"),
    "passed_percent": share("pass rate"),
    "speedup": gain("best speed-up", OVER_BOTH),
    "eager": gain("best vs eager"),
    "over_compile": gain("best vs compile"),
    "devices": Column("devices"),
}


def problems(table: pd.DataFrame, *, key: str, order: Order | None = None) -> None:
    grid.draw(table, PROBLEM_COLUMNS, key=key, name="problems", open_at="problem?id={id}", order=order)


RUN_COLUMNS = {
    "id": Column("run", link=RUN_PAGE),
    "command": Column("command"),
    "problem": Column("problem", link=PROBLEM_PAGE),
    "status": Column("status"),
    "attempts": count("attempts"),
    "passed": count("passed"),
    "verified_kernels": count("kernels", "distinct ones that are right and not barred"),
    "best": gain("best speed-up", OVER_BOTH),
    "seconds": Column("work", "number", "of all attempts together", unit=" s"),
    "cost_usd": Column("cost", "number", "empty where the price of a call is unknown", digits=4, before="$"),
    "created_at": Column("started (UTC)", "when"),
}


def runs(table: pd.DataFrame, *, key: str, order: Order | None = None) -> None:
    grid.draw(table, RUN_COLUMNS, key=key, name="runs", open_at=RUN_PAGE, tick="run", order=order)


ATTEMPT_COLUMNS = {
    "number": count("#"),
    "round": count("round"),
    "problem": PROBLEM,
    "kernel_id": Column("candidate", "id", extra=True),
    "outcome": Column("outcome"),
    "speedup": gain("speed-up", OVER_BOTH),
    "idea": IDEA,
    "reason": Column("reason", wide=True),
    "writer": Column("writer"),
    "model": Column("model"),
    "seconds": Column("took", "number", digits=1, unit=" s"),
}


def attempts(
    table: pd.DataFrame, *, key: str, page: str, hide: tuple[str, ...] = (), order: Order | None = None
) -> None:
    """Draw attempts; a row opens itself on a page, `run` or `retrieval`."""
    shown = {name: c for name, c in ATTEMPT_COLUMNS.items() if name in table.columns and name not in hide}
    opened = f"{page}?id={{run_id}}&attempt={{number}}"
    grid.draw(table, shown, key=key, name="attempts", open_at=opened, order=order)


CREDIT_COLUMNS: dict[str, Any] = {
    "writer": TEXT("writer"),
    "model": TEXT("model"),
    "attempts": NUMBER("attempts"),
    "passed_percent": NUMBER("pass rate", format="%.0f %%"),
    "won": NUMBER("won", help="faster than eager and torch.compile, and not barred"),
    "best": NUMBER("best confirmed", format="%.2f×"),
    "cost_usd": NUMBER("cost", format="$%.4f", help="of its calls, as far as prices are known"),
    "cost_per_win": NUMBER("cost a win", format="$%.4f"),
}

FAILURE_COLUMNS: dict[str, Any] = {
    "count": NUMBER("attempts", width="small"),
    "problems": NUMBER("problems", width="small"),
    "outcome": TEXT("outcome"),
    "reason": TEXT("reason (the latest of its kind)", width="large"),
}

EXEMPLAR_COLUMNS = {
    "rank": count("rank"),
    "id": KERNEL,
    "problem": Column("problem"),
    "speedup": gain("speed-up"),
    "score": Column("score", "number", "above 1 for the same graph", digits=3),
    "same_graph": Column("same graph", "check"),
    "bm25": Column("words", "number", "bm25: its rank by words", before="rank "),
    "dense": Column("vectors", "number", "dense: cosine of the descriptions", digits=2),
    "graph": Column("graph", "number", "share of the operator graph in common", digits=2),
    "likeness": share("copied", "share of the kernel's runs of eight tokens that it has too"),
    "won": count("won", "candidates of all writers that saw it and won"),
    "shown": count("shown", "candidates of all writers that saw it"),
    "others": Column("what else spoke for it", wide=True),
    "reasons": Column("why it was shown", wide=True),
    "idea": IDEA,
}


def exemplars(table: pd.DataFrame, *, key: str, hide: tuple[str, ...] = ("reasons", "idea")) -> None:
    shown = {
        name: column
        for name, column in EXEMPLAR_COLUMNS.items()
        if name not in hide and (name in ("id", "same_graph") or table[name].notna().any())
    }
    grid.draw(table, shown, key=key, name="exemplars", open_at=KERNEL_PAGE, tick="kernel")


SIGNAL_COLUMNS: dict[str, Any] = {
    "signal": TEXT("signal", width="medium"),
    "shown": NUMBER("candidates"),
    "passed_percent": NUMBER("pass rate", format="%.0f %%"),
    "won_percent": NUMBER("won", format="%.0f %%", help="faster than eager and torch.compile"),
    "median_speedup": NUMBER("median speed-up", format="%.2f×", help="of those that passed"),
}

HELPED_COLUMNS = {
    "id": KERNEL,
    "problem": Column("problem"),
    "shown": count("shown"),
    "passed": count("passed"),
    "won": count("won"),
    "median_speedup": gain("median speed-up", "of the candidates that passed"),
    "idea": IDEA,
}


def helped(table: pd.DataFrame, *, key: str) -> None:
    grid.draw(table, HELPED_COLUMNS, key=key, name="helped", open_at=KERNEL_PAGE, tick="kernel")


ARM_COLUMNS: dict[str, Any] = {
    "arm": TEXT("retrieval"),
    "problems": NUMBER("problems"),
    "solved": NUMBER("solved", format="%.0f %%"),
    "speedup": NUMBER("speed-up", format="%.2f×", help="geometric mean over problems; 1 where PyTorch stays faster"),
    "low": NUMBER("from", format="%.2f×", help="interval of about 95 %"),
    "high": NUMBER("to", format="%.2f×"),
    "over_off": NUMBER("over off", format="%.2f×"),
    "over_random": NUMBER("over random", format="%.2f×"),
}

STANDING_COLUMNS: dict[str, Any] = {
    "place": NUMBER("place", width="small"),
    "entrant": TEXT("writer or model", width="medium"),
    "mean": NUMBER("mean over eager", format="%.2f×", help="geometric mean over the problems; 1 where PyTorch stays"),
    "solved": NUMBER("solved", help="problems with a ranked kernel"),
    "faster": NUMBER("faster than eager", help="problems"),
    "won": NUMBER("faster than both", help="problems where it beats eager and torch.compile"),
    "twice": NUMBER("twice as fast as eager", help="problems"),
}

BOARD_COLUMNS = {
    "place": count("place"),
    "id": KERNEL,
    "entrant": Column("kernel or baseline"),
    "ms": Column("time", "number", digits=4, unit=" ms"),
    **grid.only(KERNEL_COLUMNS, ("speedup", "speedup_eager", "speedup_compile", "floor_percent", "trust", "label")),
    "idea": IDEA,
}


def board(table: pd.DataFrame, *, key: str) -> None:
    """Draw a leaderboard; its baselines are rows without a kernel, and a click on them does nothing."""
    grid.draw(table, BOARD_COLUMNS, key=key, name="board", open_at=KERNEL_PAGE, tick="kernel")


SENSITIVITY_COLUMNS: dict[str, Any] = {
    "argument": TEXT("argument"),
    "is": TEXT("is"),
    "change": NUMBER("moves the output by", format="%.3g", help="relative change (RMS) when it alone is drawn anew"),
    "remark": TEXT("remark"),
}

NULL_COLUMNS: dict[str, Any] = {
    "kernel": TEXT("a kernel that returns", width="medium"),
    "error": TEXT("error", help="over PyTorch's own"),
    "judge": TEXT("this judge"),
    "kernelbench": TEXT("KernelBench's 1e-2"),
}
