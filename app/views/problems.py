"""Problems: what has been worked on, and how far it got."""

from __future__ import annotations

import streamlit as st

from rag_kernels.app import data, grid, page, tables
from rag_kernels.app.grid import Order

page.head("Problems")
text = st.text_input("Search", placeholder="softmax", key="q", bind="query-params", help="in names and operators")
table = tables.matching(data.lists().problems(), text, ("problem", "operators", "family"))
if table.empty:
    st.info("No problem matches these words.", icon=":material/search_off:")
else:
    st.caption(f"{len(table):,} problems.")
    place = st.container()
    order = grid.asked_order(tables.PROBLEM_COLUMNS, Order("speedup", descending=True))
    shown, _ = tables.page_of(table, order)
    with place:
        tables.problems(shown, key="problems", order=order)
