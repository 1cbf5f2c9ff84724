"""Leaderboard: per problem set and device who is ahead, problem by problem, and what is not ranked, with the reason."""

from __future__ import annotations

import streamlit as st

from rag_kernels.app import data, page, show, tables
from rag_kernels.app.columns import Where

EVERY = "all problems"
LISTED = 200


def choice() -> Where | None:
    """Ask which problems, on which device; return None when nothing is ranked at all."""
    devices = data.lists().devices()
    sets = {found.name: found.problem_ids for found in data.problem_sets()}
    families = {f"family {name}": name for name in data.lists().options("family")}
    left, right = st.columns(2)
    problems = left.selectbox("Problems", [EVERY, *sets, *families], key="set", bind="query-params")
    if not devices:
        st.info(
            "Nothing is ranked yet: only kernels that were verified on a device are. `rag-kernels archive reverify` "
            "judges what was imported.",
            icon=":material/leaderboard:",
        )
        return None
    device = right.selectbox("Device", devices, key="device", bind="query-params")
    chosen = {"family": [families[problems]]} if problems in families else {}
    return Where(chosen, problem_ids=sets.get(problems), device=device, hidden=True)


def standings(where: Where) -> None:
    st.subheader("Who is ahead")
    table = data.lists().standings(where)
    if table.empty:
        st.info("Nothing is ranked on this device for these problems.", icon=":material/leaderboard:")
        return
    places = (~table["baseline"]).cumsum().where(~table["baseline"])
    st.dataframe(
        table.assign(place=places),
        column_order=list(tables.STANDING_COLUMNS),
        column_config=tables.STANDING_COLUMNS,
        hide_index=True,
        placeholder=show.DASH,
    )
    st.caption(
        f"Over {int(table['problems'].iloc[0]):,} problems. The gain on a problem is that of the fastest ranked kernel "
        "over eager PyTorch, and 1 where there is none that is faster. Baselines have no place."
    )


def boards(where: Where) -> None:
    best = data.lists().best(where, count=LISTED)
    if best.empty:
        return
    st.subheader("Problem by problem")
    tables.kernels(best, key="best", hide=("device", "family", "unranked"))
    st.caption("The fastest kernel of each problem. A problem's own page ranks all its kernels beside the baselines.")


def rest(where: Where) -> None:
    """Draw kernels without a rank; those that were never judged belong to no device."""
    anywhere = Where(where.chosen, problem_ids=where.problem_ids, hidden=True)
    why = data.lists().why_unranked(anywhere)
    st.subheader("Not ranked")
    if why.empty:
        st.caption("Every kernel of these problems has its place.")
        return
    counts = ", ".join(f"{row.kernels:,} {row.why}" for row in why.itertuples())
    st.caption(show.plain(f"On any device: {counts}."))
    table = data.lists().unranked(anywhere, LISTED)
    tables.kernels(table, key="unranked", hide=("speedup_compile", "speedup_eager", "ms", "floor_percent"))
    if len(table) == LISTED:
        st.caption(f"The first {LISTED}.")


page.head("Leaderboard")
asked = choice()
if asked is not None:
    standings(asked)
    boards(asked)
    rest(asked)
else:
    rest(Where(hidden=True))
