"""Kernels: filter, sort, search. Every choice is in the URL, so a view can be sent to a colleague."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from rag_kernels.app import data, figures, grid, page, picture, show, tables, trends
from rag_kernels.app.columns import Where
from rag_kernels.app.grid import Order
from rag_kernels.app.snapshot import Snapshot
from rag_kernels.app.spreadsheet import kernels_csv

FILTERS = {  # the column, which is also the key in the URL -> label
    "trust": "Trust",
    "backend": "Backend",
    "device": "Device",
    "family": "Family",
    "dtype": "Dtype",
    "label": "Label",
    "tier": "Tier",
    "writer": "Writer",
    "model": "Model",
}
HOW_HELP = "By meaning: kernels that compute something like it. By words: the text as it stands in names and sources."
DROP_HELP = "A KernelBench file. It is read as text and not run; what it computes is looked for."


def search_row() -> tuple[str, str]:
    left, right = st.columns([5, 2], vertical_alignment="bottom")
    text = left.text_input("Search", placeholder="fused layernorm gelu", key="q", bind="query-params")
    how = right.segmented_control(
        "How", ["meaning", "words"], default="meaning", required=True, key="by", bind="query-params", help=HOW_HELP
    )
    return text.strip(), str(how)


def filters() -> Where:
    """Draw one box a filter."""
    asked = any(key in st.query_params for key in (*FILTERS, "run", "retracted"))
    with st.expander("Filters", icon=":material/filter_list:", expanded=asked):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            chosen = {}
            for key, label in FILTERS.items():
                options = data.lists().options(key)
                if len(options) > 1 or key in st.query_params:
                    chosen[key] = st.multiselect(
                        label, options, key=key, bind="query-params", width=210, placeholder="any", select_all=False
                    )
            run = st.text_input("Run", key="run", bind="query-params", width=210, placeholder="any")
        hidden = st.toggle("Show retracted and stale kernels", key="retracted", bind="query-params")
    return Where(chosen=chosen, hidden=hidden, ids=data.of_run(run.strip()) if run.strip() else None)


def dropped() -> str:
    """Return the source of a problem file that was dropped here, or nothing."""
    with st.expander("Search by a problem file", icon=":material/upload_file:"):
        file = st.file_uploader("Drop a problem.py here", type=["py"], key="file", help=DROP_HELP, max_upload_size=1)
        if file is None:
            return ""
        source: str = file.getvalue().decode(errors="replace")
        known = data.problem_of_source(source)
        if known is not None:
            st.page_link(
                "views/problem.py",
                label=f"This very problem is in the archive: {show.plain(known.problem.name)}",
                query_params={"id": known.problem.id},
                icon=":material/function:",
            )
        st.caption("Traced and ranked with its graph: `rag-kernels search --problem problem.py`")
        return source


def found(text: str, where: Where) -> pd.DataFrame:
    """Return kernels like what the text says, in order of likeness."""
    likest = data.similar(text)
    if where.ids is not None:
        likest = likest[likest["id"].isin(where.ids)]
    ids = tuple(likest["id"])
    kept = data.lists().kernels(Where(where.chosen, ids, hidden=where.hidden), count=len(ids))
    return likest.merge(kept, on="id")


def results(where: Where, text: str, how: str) -> None:
    shown, total = data.lists(), data.lists().count(data.STANDING)
    order: Order | None = grid.asked_order(tables.KERNEL_ORDERS, tables.FASTEST)
    if text and how == "meaning":
        table = found(text, where)
        count, where, order = len(table), Where(ids=tuple(table["id"]), hidden=True), None  # in order of likeness
    else:
        if text:
            ids = set(data.containing(text))
            kept = ids if where.ids is None else ids & set(where.ids)
            where = Where(where.chosen, tuple(kept), hidden=where.hidden)
        count, table = shown.count(where), None
    if not count:
        st.info("No kernel matches. Clear a filter, or search for other words.", icon=":material/search_off:")
        return
    st.caption(f"{count:,} of {total:,} kernels.")
    place = st.container()
    first = show.pager(count)
    if table is None and order is not None:
        table = shown.kernels(where, order=order.column, descending=order.descending, first=first, count=show.PAGE)
    elif table is not None:
        table = table.iloc[first : first + show.PAGE]
    with place:
        tables.kernels(table, key="table", order=order)
    st.download_button(
        f"CSV of all {count:,}",
        lambda: kernels_csv(everything(shown, where, order, count)).encode(),
        "kernels.csv",
        "text/csv",
        on_click="ignore",
        icon=":material/download:",
        help="every kernel of this list, not this page alone",
    )
    charts(where)


def everything(shown: Snapshot, where: Where, order: Order | None, count: int) -> pd.DataFrame:
    """Return every row of the list in its order; what was found by meaning is in order of speed-up then."""
    chosen = order or tables.FASTEST
    return shown.kernels(where, order=chosen.column, descending=chosen.descending, count=count)


def charts(where: Where) -> None:
    spread = figures.family_rows(data.lists().speedups(where, families=6))
    if spread:
        st.subheader("Speed-ups by family")
        with st.container(horizontal=True, gap="large"):
            for family, bins in spread.items():
                with st.container(width=260):
                    st.markdown(f"**{show.plain(family)}** · {bins['kernels'].sum():,}")
                    picture.draw(trends.spread(bins), key=f"spread-{family}")
    best = data.lists().best(where, count=25)
    if not best.empty:
        st.subheader("Best speed-ups among these")
        picture.draw(trends.wins(best.drop_duplicates("problem")), key="best")


page.head("Kernels")
query, mode = search_row()
file = dropped()
chosen = filters()
try:
    results(chosen, file or query, "meaning" if file else mode)
except data.SearchError as error:
    st.warning(show.plain(str(error)), icon=":material/search_off:")
