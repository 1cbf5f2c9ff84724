"""Retrieval: what a writer was shown and why, what each signal said, whether it paid. `?id=&attempt=` names one."""

from __future__ import annotations

import streamlit as st

from rag_kernels.app import data, grid, page, show, tables
from rag_kernels.app.grid import Order
from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Passed, verdict_name


def one(made: Attempt) -> None:
    """Draw what the writer of one attempt was shown."""
    page.head(
        f"What the writer of {made.problem.problem.name} saw",
        page.RETRIEVAL,
        page.run(made.run_id),
        here=f"Attempt {made.number}",
    )
    st.caption(show.plain(f"Attempt {made.number} of run {made.run_id} · by {made.model or made.writer}"))
    verdict = made.judged.verdict
    gain = verdict.measurement.speedup if isinstance(verdict, Passed) else None
    shown = data.exemplars(made)
    with st.container(horizontal=True):
        st.metric("Shown", f"{len(shown):,}", border=True, width=130)
        st.metric("Outcome", show.words(verdict_name(verdict)), border=True, width=170)
        st.metric("Speed-up", show.times(gain), border=True, width=150, help="over the better baseline")
        likest = shown["likeness"].max() if len(shown) else None
        st.metric(
            "Most copied",
            show.DASH if likest is None or likest != likest else f"{likest:.0f} %",
            border=True,
            width=150,
            help="share of the kernel that stands in the exemplar most like it",
        )
    if shown.empty:
        st.info(
            "This writer was shown nothing: the archive had nothing like it, or retrieval was off.",
            icon=":material/visibility_off:",
        )
    else:
        tables.exemplars(shown, key="shown", hide=("reasons", "idea"))
        st.caption("Places and scores as retrieval gave them. *Won* of *shown*: of all candidates that saw the kernel.")
    with st.container(horizontal=True):
        st.page_link("views/run.py", label="The run", query_params={"id": made.run_id}, icon=":material/timeline:")
        if isinstance(verdict, Passed):
            st.page_link(
                "views/kernel.py",
                label="The kernel",
                query_params={"id": made.candidate.id},
                icon=":material/arrow_forward:",
            )
        st.page_link("views/retrieval.py", label="Retrieval as a whole", icon=":material/travel_explore:")


def paid() -> None:
    """Draw whether exemplars paid, over all attempts."""
    records = data.signal_records()
    st.subheader("Did it pay?")
    if records.empty:
        st.info(
            "No writer was shown anything yet. `rag-kernels generate problem.py --model NAME` shows exemplars to a "
            "model as soon as the archive holds something alike.",
            icon=":material/travel_explore:",
        )
        return
    st.dataframe(
        records,
        hide_index=True,
        column_config=tables.SIGNAL_COLUMNS,
        placeholder=show.DASH,
        column_order=list(tables.SIGNAL_COLUMNS),
    )
    st.caption(
        "What became of candidates whose writer saw a kernel that the signal spoke for. Problems differ, so this is no "
        "proof that the signal is the cause: `rag-kernels ablate` compares with chance and with nothing."
    )
    st.subheader("Kernels that helped most")
    tables.helped(data.credit(), key="helped")


def ablation() -> None:
    arms = data.ablation()
    if arms.empty:
        return
    st.subheader("Ablation")
    st.dataframe(
        arms,
        hide_index=True,
        column_config=tables.ARM_COLUMNS,
        placeholder=show.DASH,
        column_order=list(tables.ARM_COLUMNS),
    )
    st.caption("The same writer on the same problems; intervals by bootstrap over problems.")


def newest() -> None:
    table = data.attempts_with_exemplars()
    if table.empty:
        return
    st.subheader("Attempts whose writer was shown something")
    order = grid.asked_order(tables.ATTEMPT_COLUMNS, Order("created_at", descending=True))
    shown, _ = tables.page_of(table, order)
    tables.attempts(shown, key="attempts", page="retrieval", hide=("round", "seconds"), order=order)


run_id, number = st.query_params.get("id", ""), st.query_params.get("attempt", "")
chosen = data.attempt(run_id, int(number)) if run_id and number.isdecimal() else None
if chosen is not None:
    one(chosen)
else:
    page.head("Retrieval")
    if run_id or number:
        st.warning(
            f"There is no attempt {show.plain(number)} of run {show.plain(run_id)} in this archive.",
            icon=":material/search_off:",
        )
    ablation()
    paid()
    newest()
