"""Draw the top of a page: its title, also on the browser's tab, the way back as links, and a box that searches
everything.

Comes in: a title and the pages above this one. Goes out: a Streamlit component, `web/page.js`, which also makes links
and keys work on the whole page: `/` goes to the box, `j` and `k` from row to row, `Enter` opens, `c` compares.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import streamlit as st

from rag_kernels.app import show

HERE = Path(__file__).parent
WEB = HERE / "web"
HOME = ("Archive", ".")
KERNELS, PROBLEMS, RUNS, RETRIEVAL = (
    ("Kernels", "kernels"),
    ("Problems", "problems"),
    ("Runs", "runs"),
    ("Retrieval", "retrieval"),
)


def configure(title: str) -> None:
    """Set the title of the browser's tab."""
    told = " ".join(title.split())
    st.set_page_config(page_title=f"{told} · rag-kernels", page_icon=str(HERE / "icon.svg"), layout="wide")


def head(title: str, *above: tuple[str, str], here: str = "", query: str = "") -> None:
    """Draw the top. `above` are labels and addresses of the pages above this one; `here` is its own short name."""
    configure(f"{here} · {title}" if here else title)
    trail = [(label, address) for label, address in (HOME, *above)]
    if title == "Archive":
        trail = []
    st.components.v2.component(
        "rag_kernels_page",
        js=(WEB / "page.js").read_text(),
        css=(WEB / "page.css").read_text(),
        isolate_styles=False,
    )(key="page-head", data={"trail": [*trail, (here or title, "")], "query": query})
    st.title(show.plain(title))


def kernel(kernel_id: str) -> tuple[str, str]:
    return show.short(kernel_id), f"kernel?id={quote(kernel_id)}"


def problem(problem_id: str, name: str) -> tuple[str, str]:
    return name, f"problem?id={quote(problem_id)}"


def run(run_id: str) -> tuple[str, str]:
    return run_id, f"run?id={quote(run_id)}"
