"""One problem: the module, its functional form, the leaderboard per device, and how the best came about."""

from __future__ import annotations

import streamlit as st

from app import charts, data, figures, show, tables
from eval.records import FunctionalProblem, ScalarArgument

LINES = 24  # of a source that is shown without scrolling


def facts(p: FunctionalProblem) -> None:
    f = p.features
    work = f.flops + f.pointwise_flops
    with st.container(horizontal=True):
        st.metric("Parameters", show.quantity(f.parameter_count, ""), border=True, width=150)
        st.metric("Work per call", show.quantity(work, "FLOP"), border=True, width=170)
        st.metric("Unavoidable traffic", show.quantity(f.bytes_moved, "B"), border=True, width=190, help=BYTES_HELP)
        intensity = f"{show.significant(work / f.bytes_moved)} FLOP/B" if f.bytes_moved else show.DASH
        st.metric("Intensity", intensity, border=True, width=170)
    st.caption(show.plain(f"Operators: {', '.join(f.operators)}. Dtypes: {', '.join(f.dtypes)}. Key: {p.graph_key}."))
    if p.uses_random:
        st.warning("The forward draws random numbers, so no kernel can be verified.", icon=":material/casino:")
    if not p.verified:
        st.warning("The functional form has not been checked against the module.", icon=":material/warning:")
    if p.notice:
        st.caption(show.plain(p.notice))


BYTES_HELP = "Arguments read once plus outputs written once: no implementation can move less."


def leaderboard(problem_id: str) -> None:
    places, kernels = data.places(), data.kernels()
    ranked = places[places["problem_id"] == problem_id]
    for device, board in ranked.groupby("device", sort=True):
        st.markdown(f"**{show.plain(str(device))}**")
        tables.kernels(board.sort_values("place"), key=f"board-{device}", hide=("problem", "device"))
    rest = kernels[(kernels["problem_id"] == problem_id) & ~kernels["id"].isin(ranked["id"])]
    if len(rest):
        st.markdown("**Not ranked**")
        st.caption("Retracted, or never verified on a device.")
        tables.kernels(rest, key="unranked", hide=("problem",))
    if ranked.empty and rest.empty:
        st.info("No kernel is archived for this problem yet.", icon=":material/hourglass_empty:")


def progress(problem_id: str) -> None:
    history = figures.progress(data.attempts().query("problem_id == @problem_id"))
    if history.empty:
        st.info("No attempt is archived: the kernels were imported.", icon=":material/hourglass_empty:")
        return
    left, right = st.columns([3, 2], gap="large")
    left.altair_chart(charts.progress(history))
    left.caption("A point is a passed attempt, the line the best so far, over the better of eager and torch.compile.")
    right.altair_chart(charts.outcomes(figures.outcome_counts(history)))


def form(p: FunctionalProblem) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**The module as given**")
        tall = p.problem.source.count("\n") > LINES
        st.code(p.problem.source, language="python", height=520 if tall else "content")
    with right:
        st.markdown("**The same as one call**")
        st.code(p.source, language="python")
        rows = [
            {"argument": a.name, "is": "number", "shape": str(a.value), "dtype": type(a.value).__name__}
            if isinstance(a, ScalarArgument)
            else {"argument": a.name, "is": a.role, "shape": show.shape(a.spec.shape), "dtype": a.spec.dtype}
            for a in p.arguments
        ]
        st.dataframe(rows, hide_index=True)


wanted = st.query_params.get("id", "")
found = data.problem(wanted) if wanted else None
if found is None:
    what = f"There is no problem {show.plain(wanted)} in this archive." if wanted else "No problem is chosen."
    st.warning(f"{what} Pick one from the table.", icon=":material/search_off:")
    st.page_link("views/problems.py", label="All problems", icon=":material/function:")
else:
    st.title(show.plain(found.problem.name))
    facts(found)
    st.subheader("Leaderboard")
    leaderboard(found.problem.id)
    st.subheader("Progress")
    progress(found.problem.id)
    st.subheader("What it computes")
    form(found)
