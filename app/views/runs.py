"""Runs: every session that tried kernels, newest first. The table renews itself while one is under way."""

from __future__ import annotations

import streamlit as st

from rag_kernels.app import data, show, tables, trends


def table() -> None:
    runs = data.runs()
    text = str(st.session_state.get("q", "")).strip()
    if text:
        haystack = runs["id"] + " " + runs["command"] + " " + runs["problem"] + " " + runs["status"]
        runs = runs[haystack.str.contains(text, case=False, regex=False)]
    live = int((runs["status"] == "running").sum())
    under_way = f", {live} under way" if live else ""
    st.caption(f"{len(runs):,} runs{under_way}. Click a row to open it.")
    place = st.container()
    first = show.pager(len(runs))
    with place:
        tables.runs(runs.iloc[first : first + show.PAGE], key="runs")


def sums() -> None:
    shown = data.lists()
    counts = shown.outcomes()
    if counts.empty:
        return
    st.subheader("Attempts by outcome")
    st.altair_chart(trends.outcomes(counts))
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


st.title("Runs")
if data.runs().empty:
    st.info(
        "No run is recorded: the kernels here were imported. `rag-kernels generate problem.py` starts one.",
        icon=":material/hourglass_empty:",
    )
else:
    st.text_input("Search", placeholder="running", key="q", bind="query-params", help="in ids, names and states")
    st.fragment(table, run_every="5s")()
    sums()
