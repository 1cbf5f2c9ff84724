"""Runs: every session that tried kernels, newest first. The table renews itself while one is under way."""

from __future__ import annotations

import streamlit as st

from app import charts, data, figures, tables


@st.fragment(run_every="5s")
def table() -> None:
    runs = data.runs()
    live = int((runs["status"] == "running").sum())
    under_way = f", {live} under way" if live else ""
    st.caption(f"{len(runs):,} runs{under_way}. Click a row to open it.")
    tables.runs(runs, key="runs")


st.title("Runs")
if data.runs().empty:
    st.info("No run is recorded: the kernels here were imported.", icon=":material/hourglass_empty:")
else:
    table()
    everything = data.attempts()
    if not everything.empty:
        left, right = st.columns(2, gap="large")
        with left:
            st.subheader("Attempts by outcome")
            st.altair_chart(charts.outcomes(figures.outcome_counts(everything)))
        with right:
            st.subheader("Who wrote what passed")
            st.dataframe(figures.credit(everything), hide_index=True, column_config=tables.CREDIT_COLUMNS)
