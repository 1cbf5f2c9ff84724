"""One problem: the module, its functional form, the leaderboard per device, and how the best came about."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from rag_kernels.app import data, figures, fragments, page, picture, pictures, show, tables, trends
from rag_kernels.app.columns import Where
from rag_kernels.eval.machine.device import floor_us
from rag_kernels.eval.records import FunctionalProblem, ScalarArgument

BOARD = 100
DEVICES = 4  # whose best kernels stand side by side


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
    floors = [f"{show.duration(floor_us(f, d))} on {d.name}" for d in data.devices_of(p.problem.id)]
    if floors:
        st.caption(show.plain(f"Physical floor of a call: {'; '.join(floors)}."))
    if p.uses_random:
        st.warning("The forward draws random numbers, so no kernel can be verified.", icon=":material/casino:")
    if not p.verified:
        st.warning("The functional form has not been checked against the module.", icon=":material/warning:")
    if p.notice:
        st.caption(show.plain(p.notice))


BYTES_HELP = "Arguments read once plus outputs written once: no implementation can move less."


def best(ranked: pd.DataFrame) -> None:
    """Draw the best kernel of each device, side by side."""
    firsts = ranked.drop_duplicates("device").head(DEVICES)
    if firsts.empty:
        return
    for column, row in zip(st.columns(max(2, len(firsts)), gap="medium"), firsts.to_dict("records"), strict=False):
        with column, st.container(border=True):
            picture.draw(fragments.best_on(row), key=f"best-{row['device']}")


def roofs(p: FunctionalProblem, ranked: pd.DataFrame) -> None:
    """Draw all kernels of the problem under the roof of each device."""
    devices = {d.name: d for d in data.devices_of(p.problem.id)}
    drawn = {
        name: text
        for name, board in ranked.groupby("device", sort=True)
        if name in devices
        and (text := pictures.roofline(devices[str(name)], p.features, board.head(BOARD), fragments.kernel_address))
    }
    if drawn:
        st.subheader("Roofline")
        for column, (name, text) in zip(st.columns(max(2, len(drawn)), gap="large"), drawn.items(), strict=False):
            with column:
                st.markdown(f"**{show.plain(str(name))}**")
                picture.draw(text, key=f"roof-{name}")
        st.caption(
            "The filled diamond is the best kernel, rings are the others; eager is a circle, torch.compile a square. "
            "Work and unavoidable bytes are the problem's; the ceilings were measured on the device."
        )


def leaderboard(problem_id: str, ranked: pd.DataFrame) -> None:
    shown, mine = data.lists(), (problem_id,)
    for device, board in ranked.groupby("device", sort=True):
        st.markdown(f"**{show.plain(str(device))}**")
        tables.board(figures.board(board).head(BOARD), key=f"board-{device}")
        if len(board) > BOARD:
            st.caption(f"The first {BOARD} of {len(board):,} kernels.")
    rest = shown.unranked(Where(problem_ids=mine, hidden=True))
    if len(rest):
        st.markdown("**Not ranked**")
        tables.kernels(rest, key="unranked", hide=("problem",))
    if ranked.empty and rest.empty:
        st.info(
            "No kernel is archived for this problem yet. `rag-kernels generate problem.py` writes one.",
            icon=":material/hourglass_empty:",
        )


def admission(found: FunctionalProblem) -> None:
    reports = data.admissions(found)
    if not reports:
        st.info(
            "No admission report is kept on this machine. `rag-kernels check problem.py` makes one.",
            icon=":material/fact_check:",
        )
    for device, report in reports:
        st.caption(show.plain(device.name))
        if report.degenerate:
            st.error(f"Degenerate: {show.plain(report.degenerate)}. No speed is claimed.", icon=":material/block:")
        else:
            st.success(
                "Admitted: the output depends on what it should, and no empty kernel passes.",
                icon=":material/fact_check:",
            )
        for text in (*report.labels, *report.notes):
            st.text(text)
        left, right = st.columns(2, gap="large")
        with left:
            st.markdown("**What moves the output**")
            st.dataframe(figures.sensitivities(report), hide_index=True, column_config=tables.SENSITIVITY_COLUMNS)
        with right:
            st.markdown("**Kernels that compute nothing**")
            st.dataframe(figures.null_kernels(report), hide_index=True, column_config=tables.NULL_COLUMNS)
        calibration = report.examination.calibration
        if calibration is not None:
            st.caption(
                f"Errors are told as multiples of PyTorch's own. Honest rounding reaches {calibration.noise_rms:.3g}, "
                f"the limit is {calibration.limit_rms:.3g}, and a lower precision is {calibration.gap:.3g} times as "
                "far off as honest rounding."
            )


def progress(problem_id: str) -> None:
    attempts = data.attempts_on(problem_id)
    history = figures.progress(attempts)
    if history.empty:
        st.info("No attempt is archived: the kernels were imported.", icon=":material/hourglass_empty:")
        return
    left, right = st.columns([3, 2], gap="large")
    with left:
        text = pictures.progress(attempts, fragments.kernel_address)
        if text:
            picture.draw(text, key="progress")
            st.caption(
                "A point is a confirmed attempt, a ring one that nothing confirmed, the line the best confirmed so far."
            )
        else:
            st.caption("No attempt has passed yet.")
    with right:
        picture.draw(trends.outcomes(figures.outcome_counts(history)), key="outcomes")


def form(p: FunctionalProblem) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**The module as given**")
        show.code(p.problem.source, "python", key="module", tall=show.TALL)
    with right:
        st.markdown("**The same as one call**")
        show.code(p.source, "python", key="function")
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
    page.head("Problem", page.PROBLEMS)
    show.nothing_chosen("problem", wanted, "views/problems.py", "All problems")
else:
    page.head(found.problem.name, page.PROBLEMS)
    ranked = data.lists().ranked(found.problem.id)
    best(ranked)
    facts(found)
    st.subheader("Leaderboard")
    leaderboard(found.problem.id, ranked)
    roofs(found, ranked)
    st.subheader("Progress")
    progress(found.problem.id)
    st.subheader("Admission")
    admission(found)
    st.subheader("What it computes")
    form(found)
