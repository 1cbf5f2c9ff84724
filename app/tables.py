"""Tables of kernels, problems and runs: a click on a row opens its page.

Comes in: tables made by `app.data`. Goes out: Streamlit tables. Knows nothing of queries.
"""

from __future__ import annotations

from typing import Any, Literal

import pandas as pd
import streamlit as st

Height = int | Literal["auto"]
NUMBER = st.column_config.NumberColumn
TEXT = st.column_config.TextColumn
WHEN = st.column_config.DatetimeColumn

KERNEL_COLUMNS: dict[str, Any] = {
    "place": NUMBER("place", width="small"),
    "link": st.column_config.LinkColumn("kernel", display_text=r"id=(.{10})", width=105, help="opens a new tab"),
    "problem": TEXT("problem", width="medium"),
    "speedup": NUMBER("speed-up", format="%.2f×", help="over the better of eager and torch.compile"),
    "speedup_eager": NUMBER("vs eager", format="%.2f×"),
    "speedup_compile": NUMBER("vs compile", format="%.2f×"),
    "ms": NUMBER("time", format="%.3f ms"),
    "before": NUMBER("best before", format="%.2f×", help="the best ranked kernel that there was before"),
    "floor_percent": NUMBER("of floor", format="%.0f %%", help="physical floor over measured time: 100 % is the limit"),
    "why": TEXT("why it was found", width="large"),
    "unranked": TEXT("not ranked because", width="large"),
    "trust": TEXT("trust"),
    "label": TEXT("label"),
    "labels": TEXT("remarks", help="what else the judge remarked"),
    "family": TEXT("family", help="of the operator that the problem is built around"),
    "backend": TEXT("backend"),
    "tier": TEXT("tier"),
    "dtype": TEXT("dtype"),
    "writer": TEXT("writer"),
    "device": TEXT("device", width="medium"),
    "idea": TEXT("idea", width="large"),
    "created_at": WHEN("archived (UTC)", format="YYYY-MM-DD HH:mm"),
}


def kernels(table: pd.DataFrame, *, key: str, height: Height = "auto", hide: tuple[str, ...] = ()) -> None:
    """Show kernels; a click on any cell opens the kernel."""
    shown = [c for c in KERNEL_COLUMNS if c in table.columns and c not in hide]
    columns = [c for c in shown if c not in ("unranked", "labels") or table[c].any()]
    _clickable(table, columns, KERNEL_COLUMNS, key=key, page="views/kernel.py", height=height)


PROBLEM_COLUMNS: dict[str, Any] = {
    "problem": TEXT("problem", width="medium"),
    "family": TEXT("family"),
    "operators": TEXT("operators", width="medium"),
    "kernels": NUMBER("kernels"),
    "attempts": NUMBER("attempts"),
    "passed_percent": NUMBER("pass rate", format="%.0f %%"),
    "speedup": NUMBER("best speed-up", format="%.2f×", help="over the better of eager and torch.compile"),
    "eager": NUMBER("best vs eager", format="%.2f×"),
    "over_compile": NUMBER("best vs compile", format="%.2f×"),
    "devices": TEXT("devices", width="medium"),
}


def problems(table: pd.DataFrame, *, key: str) -> None:
    _clickable(table, list(PROBLEM_COLUMNS), PROBLEM_COLUMNS, key=key, page="views/problem.py")


RUN_COLUMNS: dict[str, Any] = {
    "id": TEXT("run"),
    "command": TEXT("command"),
    "problem": TEXT("problem", width="medium"),
    "status": TEXT("status"),
    "attempts": NUMBER("attempts"),
    "passed": NUMBER("passed"),
    "verified_kernels": NUMBER("kernels", help="distinct ones that are right and not barred"),
    "best": NUMBER("best speed-up", format="%.2f×"),
    "seconds": NUMBER("work", format="%.0f s", help="of all attempts together"),
    "cost_usd": NUMBER("cost", format="$%.4f", help="empty where the price of a call is unknown"),
    "created_at": WHEN("started (UTC)", format="YYYY-MM-DD HH:mm"),
}


def runs(table: pd.DataFrame, *, key: str) -> None:
    _clickable(table, list(RUN_COLUMNS), RUN_COLUMNS, key=key, page="views/run.py")


ATTEMPT_COLUMNS: dict[str, Any] = {
    "number": NUMBER("#", width="small"),
    "round": NUMBER("round", width="small"),
    "problem": TEXT("problem"),
    "outcome": TEXT("outcome"),
    "speedup": NUMBER("speed-up", format="%.2f×"),
    "idea": TEXT("idea", width="large"),
    "reason": TEXT("reason", width="large"),
    "writer": TEXT("writer"),
    "model": TEXT("model"),
    "seconds": NUMBER("took", format="%.1f s"),
}


def attempts(table: pd.DataFrame, *, key: str, hide: tuple[str, ...] = ()) -> int | None:
    """Show attempts; return the position of the one that was clicked."""
    columns = [c for c in ATTEMPT_COLUMNS if c in table.columns and c not in hide]
    return _selected(_show(table, columns, ATTEMPT_COLUMNS, key=key, height="auto"))


def _clickable(
    table: pd.DataFrame, columns: list[str], config: dict[str, Any], *, key: str, page: str, height: Height = "auto"
) -> None:
    row = _selected(_show(table, columns, config, key=key, height=height))
    if row is not None and row < len(table):
        st.switch_page(page, query_params={"id": str(table.iloc[row]["id"])})


def _show(table: pd.DataFrame, columns: list[str], config: dict[str, Any], *, key: str, height: Height) -> Any:
    return st.dataframe(
        table,
        column_order=columns,
        column_config=config,
        hide_index=True,
        height=height,
        key=key,
        placeholder="–",
        on_select="rerun",
        selection_mode="single-cell",
    )


def _selected(event: Any) -> int | None:
    cells = event.selection.cells
    return int(cells[0][0]) if cells else None


CREDIT_COLUMNS: dict[str, Any] = {
    "writer": TEXT("writer"),
    "model": TEXT("model"),
    "attempts": NUMBER("attempts"),
    "passed_percent": NUMBER("pass rate", format="%.0f %%"),
    "won": NUMBER("won", help="faster than eager and torch.compile, and not barred"),
    "best": NUMBER("best speed-up", format="%.2f×"),
    "cost_usd": NUMBER("cost", format="$%.4f", help="of its calls, as far as prices are known"),
    "cost_per_win": NUMBER("cost a win", format="$%.4f"),
}

FAILURE_COLUMNS: dict[str, Any] = {
    "count": NUMBER("attempts", width="small"),
    "problems": NUMBER("problems", width="small"),
    "outcome": TEXT("outcome"),
    "reason": TEXT("reason (the latest of its kind)", width="large"),
}

EXEMPLAR_COLUMNS: dict[str, Any] = {
    "rank": NUMBER("rank", width="small"),
    "link": KERNEL_COLUMNS["link"],
    "problem": TEXT("problem"),
    "speedup": NUMBER("speed-up", format="%.2f×"),
    "score": NUMBER("score", format="%.3f", help="above 1 for the same graph"),
    "same_graph": st.column_config.CheckboxColumn("same graph"),
    "bm25": NUMBER("words", format="rank %d", help="bm25: its rank by words"),
    "dense": NUMBER("vectors", format="%.2f", help="dense: cosine of the descriptions"),
    "graph": NUMBER("graph", format="%.2f", help="share of the operator graph in common"),
    "likeness": NUMBER("copied", format="%.0f %%", help="share of the kernel's runs of eight tokens that it has too"),
    "won": NUMBER("won", help="candidates of all writers that saw it and won"),
    "shown": NUMBER("shown", help="candidates of all writers that saw it"),
    "others": TEXT("what else spoke for it", width="large"),
    "reasons": TEXT("why it was shown", width="large"),
    "idea": TEXT("idea", width="large"),
}


def exemplars(table: pd.DataFrame, *, key: str, hide: tuple[str, ...] = ("reasons", "idea")) -> None:
    columns = [c for c in EXEMPLAR_COLUMNS if c not in hide and (c in ("link", "same_graph") or table[c].notna().any())]
    _clickable(table, columns, EXEMPLAR_COLUMNS, key=key, page="views/kernel.py")


SIGNAL_COLUMNS: dict[str, Any] = {
    "signal": TEXT("signal", width="medium"),
    "shown": NUMBER("candidates"),
    "passed_percent": NUMBER("pass rate", format="%.0f %%"),
    "won_percent": NUMBER("won", format="%.0f %%", help="faster than eager and torch.compile"),
    "median_speedup": NUMBER("median speed-up", format="%.2f×", help="of those that passed"),
}

HELPED_COLUMNS: dict[str, Any] = {
    "link": KERNEL_COLUMNS["link"],
    "problem": TEXT("problem", width="medium"),
    "shown": NUMBER("shown"),
    "passed": NUMBER("passed"),
    "won": NUMBER("won"),
    "median_speedup": NUMBER("median speed-up", format="%.2f×", help="of the candidates that passed"),
    "idea": TEXT("idea", width="large"),
}


def helped(table: pd.DataFrame, *, key: str) -> None:
    _clickable(table, list(HELPED_COLUMNS), HELPED_COLUMNS, key=key, page="views/kernel.py")


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

BOARD_COLUMNS: dict[str, Any] = {
    "place": NUMBER("place", width="small"),
    "link": KERNEL_COLUMNS["link"],
    "entrant": TEXT("kernel or baseline", width="medium"),
    "ms": NUMBER("time", format="%.4f ms"),
    "speedup": KERNEL_COLUMNS["speedup"],
    "speedup_eager": KERNEL_COLUMNS["speedup_eager"],
    "speedup_compile": KERNEL_COLUMNS["speedup_compile"],
    "floor_percent": KERNEL_COLUMNS["floor_percent"],
    "label": TEXT("label"),
    "trust": TEXT("trust"),
    "idea": TEXT("idea", width="large"),
}


def board(table: pd.DataFrame, *, key: str) -> None:
    """Draw a leaderboard; its baselines are rows without a kernel, and a click on them does nothing."""
    row = _selected(_show(table, list(BOARD_COLUMNS), BOARD_COLUMNS, key=key, height="auto"))
    if row is not None and row < len(table) and table.iloc[row]["id"]:
        st.switch_page("views/kernel.py", query_params={"id": str(table.iloc[row]["id"])})


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
