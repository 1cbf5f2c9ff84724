"""Runs: every session that tried kernels, newest first. The table renews itself while one is under way."""

from __future__ import annotations

import streamlit as st

from rag_kernels.app import data, grid, page, picture, show, tables, trends
from rag_kernels.app.grid import Order


def table() -> None:
    runs = data.runs()
    text = str(st.session_state.get("q", "")).strip()
    if text:
        runs = tables.matching(runs, text, ("id", "command", "problem", "status"))
    live = int((runs["status"] == "running").sum())
    under_way = f", {live} under way" if live else ""
    st.caption(f"{len(runs):,} runs{under_way}.")
    place = st.container()
    order = grid.asked_order(tables.RUN_COLUMNS, Order("created_at", descending=True))
    shown, _ = tables.page_of(runs, order)
    with place:
        tables.runs(shown, key="runs", order=order)


def sums() -> None:
    shown = data.lists()
    counts = shown.outcomes()
    if counts.empty:
        return
    st.subheader("Attempts by outcome")
    picture.draw(trends.outcomes(counts), key="outcomes")
    st.subheader("Who wrote what won")
    st.dataframe(
        shown.credit(),
        hide_index=True,
        column_config=tables.CREDIT_COLUMNS,
        placeholder=show.DASH,
        column_order=list(tables.CREDIT_COLUMNS),
    )
    failed = data.failures()
    if len(failed):
        st.subheader("Why attempts failed")
        st.dataframe(
            failed, hide_index=True, column_config=tables.FAILURE_COLUMNS, column_order=list(tables.FAILURE_COLUMNS)
        )


page.head("Runs")
if data.runs().empty:
    st.info(
        "No run is recorded: the kernels here were imported. `rag-kernels generate problem.py` starts one.",
        icon=":material/hourglass_empty:",
    )
else:
    st.text_input("Search", placeholder="running", key="q", bind="query-params", help="in ids, names and states")
    st.fragment(table, run_every="5s")()
    sums()
