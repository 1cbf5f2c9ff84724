"""Kernels: filter, sort, search. Every choice is in the URL, so a view can be sent to a colleague."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app import charts, data, figures, show, tables

SORTS = {
    "speed-up": ("speedup", False),
    "speed-up over eager": ("speedup_eager", False),
    "speed-up over torch.compile": ("speedup_compile", False),
    "nearest to the floor": ("floor_percent", False),
    "shortest time": ("ms", True),
    "newest": ("created_at", False),
    "problem": ("problem", True),
}
FILTERS = {  # the key in the URL -> column, label
    "trust": ("trust", "Trust"),
    "backend": ("backend", "Backend"),
    "device": ("device", "Device"),
    "tier": ("tier", "Tier"),
    "label": ("label", "Label"),
    "family": ("operator", "Operators"),
    "dtype": ("dtype", "Dtype"),
    "writer": ("writer", "Writer"),
}


def search_row() -> tuple[str, str, str]:
    left, middle, right = st.columns([5, 2, 3], vertical_alignment="bottom")
    text = left.text_input("Search", placeholder="fused layernorm gelu", key="q", bind="query-params")
    how = middle.segmented_control(
        "How", ["meaning", "words"], default="meaning", required=True, key="by", bind="query-params", help=HOW_HELP
    )
    sort = right.selectbox("Sort by", list(SORTS), key="sort", bind="query-params", help=SORT_HELP)
    return text.strip(), str(how), sort


HOW_HELP = "meaning: kernels that compute something like it, best first. words: the text as it is, also in sources."
SORT_HELP = "A search by meaning is shown best match first. A click on a column's head sorts too."


def filters(table: pd.DataFrame) -> pd.DataFrame:
    """Draw one box a filter and apply them."""
    keep = pd.Series(True, index=table.index)
    with st.expander("Filters", icon=":material/filter_list:", expanded=any(k in st.query_params for k in FILTERS)):
        with st.container(horizontal=True):
            for key, (column, label) in FILTERS.items():
                options = sorted(table[column].dropna().unique())
                chosen = st.multiselect(
                    label, options, key=key, bind="query-params", width=210, placeholder="any", select_all=False
                )
                if chosen:
                    keep &= table[column].isin(chosen)
        retracted = st.toggle("Show retracted kernels", key="retracted", bind="query-params")
    return table[keep if retracted else keep & (table["retracted"] == "")]


def found(table: pd.DataFrame, text: str, how: str, sort: str) -> pd.DataFrame:
    if text and how == "meaning":
        return data.similar(text).merge(table, on="id")
    if text:
        table = table[table["id"].isin(data.containing(text))]
    column, ascending = SORTS[sort]
    return table.sort_values(column, ascending=ascending, na_position="last")


def results(table: pd.DataFrame, total: int) -> None:
    if table.empty:
        st.info("No kernel matches. Clear a filter, or search for other words.", icon=":material/search_off:")
        return
    st.caption(f"{len(table):,} of {total:,} kernels. Click a row to open it.")
    tables.kernels(table, key="table", height=min(560, 37 + 35 * len(table)))
    places = data.places()
    best = figures.best_by_problem(places[places["id"].isin(table["id"])])
    if not best.empty:
        st.subheader("Best speed-ups among these")
        st.altair_chart(charts.wins(best.head(25)))
        if len(best) > 25:
            st.caption(f"The first 25 of {len(best):,} problems.")


st.title("Kernels")
everything = data.kernels()
query, mode, order = search_row()
chosen = filters(everything)
try:
    results(found(chosen, query, mode, order), len(everything))
except data.SearchError as error:
    st.warning(show.plain(str(error)), icon=":material/search_off:")
