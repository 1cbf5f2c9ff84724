"""Overview: what the archive holds, how good it is, and what came in lately."""

from __future__ import annotations

import streamlit as st

from app import charts, data, figures, show, tables

BEST_HELP = "over the better of eager and torch.compile"
MEAN_HELP = f"of the best kernel for each problem, {BEST_HELP}"


def headline() -> None:
    s = data.summary()
    with st.container(horizontal=True):
        st.metric("Kernels", f"{s.kernels:,}", border=True, width=150, help="verified or better, not retracted")
        st.metric("Problems", f"{s.problems:,}", border=True, width=150)
        st.metric("Attempts", f"{s.attempts:,}", border=True, width=150)
        st.metric("Geometric mean", show.times(s.mean_speedup), border=True, width=170, help=MEAN_HELP)
        st.metric("Best speed-up", show.times(s.best_speedup), border=True, width=170, help=BEST_HELP)
        st.metric("Spent on models", show.dollars(s.cost_usd), border=True, width=170, help="as far as known")


def curves() -> None:
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("How many problems got faster")
        curve = figures.fast_p(data.places(), len(data.problems()))
        if curve.empty:
            st.caption("No kernel has been timed yet.")
        else:
            st.altair_chart(charts.fast_p(curve))
            st.caption("Share of the problems in the archive whose best kernel is more than p times as fast.")
    with right:
        st.subheader("Growth")
        st.altair_chart(charts.over_time(figures.growth(data.kernels())))


def breakdown() -> None:
    columns = st.columns(3, gap="large")
    parts = (("trust", "By trust"), ("device", "By device"), ("operator", "By main operators"))
    for column, (key, title) in zip(columns, parts, strict=True):
        with column:
            st.subheader(title)
            st.altair_chart(charts.counts(figures.counts(data.kernels(), key), key, "kernels"))


def lately() -> None:
    st.subheader("Latest kernels")
    tables.kernels(data.kernels().sort_values("created_at", ascending=False).head(10), key="latest")
    st.page_link("views/kernels.py", label="All kernels", icon=":material/arrow_forward:")


st.title("Archive overview")
headline()
curves()
breakdown()
lately()
