"""Problems: what has been worked on, and how far it got."""

from __future__ import annotations

import streamlit as st

from rag_kernels.app import data, show, tables

SORTS = {
    "best speed-up": ("speedup", False),
    "most attempts": ("attempts", False),
    "name": ("problem", True),
}

st.title("Problems")
left, right = st.columns([5, 3])
text = left.text_input("Search", placeholder="softmax", key="q", bind="query-params", help="in names and operators")
order = right.selectbox("Sort by", list(SORTS), key="sort", bind="query-params")
table = data.lists().problems()
if text.strip():
    haystack = table["problem"] + " " + table["operators"] + " " + table["family"].fillna("")
    table = table[haystack.str.contains(text.strip(), case=False, regex=False)]
column, ascending = SORTS[order]
if table.empty:
    st.info("No problem matches these words.", icon=":material/search_off:")
else:
    st.caption(f"{len(table):,} problems. Click a row to open it.")
    place = st.container()
    first = show.pager(len(table))
    ordered = table.sort_values([column, "id"], ascending=[ascending, True], na_position="last")
    with place:
        tables.problems(ordered.iloc[first : first + show.PAGE], key="problems")
