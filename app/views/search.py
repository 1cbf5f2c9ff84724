"""Search everything: kernels, problems and runs that the words name or mean. `?find=` are the words.

`?q=` would not do: it belongs to the boxes of lists, and leaving such a page takes it from the address.
"""

from __future__ import annotations

import streamlit as st

from rag_kernels.app import data, page, show, tables
from rag_kernels.app.columns import Where

MOST = 20


def kernels(text: str) -> int:
    """Draw the kernel with this id, then the nearest; return how many there are."""
    named = data.kernel(text) if text.startswith("k_") else None
    if named is not None:
        found = data.rows_of([named.id])
    else:
        try:
            likest = data.similar(text).head(MOST)
        except data.SearchError as error:
            st.warning(show.plain(str(error)), icon=":material/search_off:")
            return 0
        ids = tuple(likest["id"])
        found = likest.merge(data.lists().kernels(Where(ids=ids, hidden=True), count=len(ids)), on="id")
    if len(found):
        st.subheader("Kernels")
        tables.kernels(found, key="kernels")
        st.page_link("views/kernels.py", label="Search all kernels, with filters", query_params={"q": text}, icon=ARROW)
    return len(found)


def problems(text: str) -> int:
    found = tables.matching(data.lists().problems(), text, ("id", "problem", "operators", "family"))
    if len(found):
        st.subheader("Problems")
        st.caption(f"{len(found):,} with these words in name, operators or family.")
        tables.problems(found.head(MOST), key="problems")
    return len(found)


def runs(text: str) -> int:
    found = tables.matching(data.runs(), text, ("id", "command", "problem", "status"))
    if len(found):
        st.subheader("Runs")
        tables.runs(found.head(MOST), key="runs")
    return len(found)


ARROW = ":material/arrow_forward:"
asked = st.query_params.get("find", "").strip()
page.head(f"Search: {asked}" if asked else "Search", query=asked)
if not asked:
    st.info("Type into the box above: an id, a name, an operator, or what a kernel does.", icon=":material/search:")
elif not [draw for draw in (problems, kernels, runs) if draw(asked)]:
    st.info("Nothing here has these words, or means them.", icon=":material/search_off:")
