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
    "floor_percent": NUMBER("of floor", format="%.0f %%", help="physical floor over measured time: 100 % is the limit"),
    "why": TEXT("why it was found", width="large"),
    "trust": TEXT("trust"),
    "retracted": TEXT("retracted because"),
    "label": TEXT("label"),
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
    columns = [c for c in shown if c != "retracted" or table[c].any()]
    _clickable(table, columns, KERNEL_COLUMNS, key=key, page="views/kernel.py", height=height)


PROBLEM_COLUMNS: dict[str, Any] = {
    "problem": TEXT("problem", width="medium"),
    "operators": TEXT("operators", width="medium"),
    "kernels": NUMBER("kernels"),
    "attempts": NUMBER("attempts"),
    "passed_percent": NUMBER("pass rate", format="%.0f %%"),
    "eager": NUMBER("best vs eager", format="%.2f×"),
    "torch.compile": NUMBER("best vs compile", format="%.2f×"),
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
    "best": NUMBER("best speed-up", format="%.2f×"),
    "cost_usd": NUMBER("cost", format="$%.4f"),
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


def attempts(table: pd.DataFrame, *, key: str) -> int | None:
    """Show attempts; return the position of the one that was clicked."""
    columns = [c for c in ATTEMPT_COLUMNS if c in table.columns]
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
    "passed": NUMBER("passed"),
    "passed_percent": NUMBER("pass rate", format="%.0f %%"),
    "best": NUMBER("best speed-up", format="%.2f×"),
}

FAILURE_COLUMNS: dict[str, Any] = {
    "outcome": TEXT("outcome"),
    "reason": TEXT("reason", width="large"),
    "count": NUMBER("attempts"),
}

EXEMPLAR_COLUMNS: dict[str, Any] = {
    "rank": NUMBER("rank", width="small"),
    "problem": TEXT("problem"),
    "speedup": NUMBER("speed-up", format="%.2f×"),
    "score": NUMBER("score", format="%.3f"),
    "reasons": TEXT("why it was shown", width="large"),
}


def exemplars(table: pd.DataFrame, *, key: str) -> None:
    _clickable(table, list(EXEMPLAR_COLUMNS), EXEMPLAR_COLUMNS, key=key, page="views/kernel.py")
