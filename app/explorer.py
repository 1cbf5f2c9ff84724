"""The Streamlit entry point: which archive, which pages, and what a reader sees when the archive cannot be read.

Comes in: `--archive PLACE` behind Streamlit's `--`, see `app.launch`. Goes out: the page that the URL names. The
explorer only reads: it writes nothing, runs no kernel and holds no key but the token of a served archive.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import streamlit as st

from rag_kernels.app import data, page, show
from rag_kernels.archive.records import ArchiveError

HERE = Path(__file__).parent
VIEWS = HERE / "views"
LEADERS = ":material/leaderboard:"


def archive_place() -> str:
    parser = argparse.ArgumentParser(prog="explorer")
    parser.add_argument("--archive", required=True)
    return str(parser.parse_args().archive)


def look_again() -> None:
    """Draw the page that was asked for as soon as there is something to show."""
    if not data.is_empty():
        st.rerun()


def main() -> None:
    page.configure("Archive")  # before the navigation, which would take its icon for the tab from another host
    here = st.navigation(
        [
            st.Page(VIEWS / "overview.py", title="Overview", icon=":material/dashboard:", default=True),
            st.Page(VIEWS / "kernels.py", title="Kernels", icon=":material/table_rows:", url_path="kernels"),
            st.Page(VIEWS / "problems.py", title="Problems", icon=":material/function:", url_path="problems"),
            st.Page(VIEWS / "runs.py", title="Runs", icon=":material/timeline:", url_path="runs"),
            st.Page(VIEWS / "leaderboard.py", title="Leaderboard", icon=LEADERS, url_path="leaderboard"),
            st.Page(VIEWS / "retrieval.py", title="Retrieval", icon=":material/travel_explore:", url_path="retrieval"),
            st.Page(VIEWS / "compare.py", title="Compare", icon=":material/compare_arrows:", url_path="compare"),
            st.Page(VIEWS / "search.py", title="Search", url_path="search", visibility="hidden"),
            st.Page(VIEWS / "kernel.py", title="Kernel", url_path="kernel", visibility="hidden"),
            st.Page(VIEWS / "problem.py", title="Problem", url_path="problem", visibility="hidden"),
            st.Page(VIEWS / "run.py", title="Run", url_path="run", visibility="hidden"),
        ],
        position="top",
    )
    place = archive_place()
    try:
        data.choose(place)
        if data.is_empty():
            page.configure("Nothing archived yet")
            show.empty_archive(place)
            st.fragment(look_again, run_every="3s")()
        else:
            here.run()
    except ArchiveError as error:
        page.configure("The archive cannot be read")
        st.error(f"The archive cannot be read: {show.plain(str(error))}", icon=":material/error:")


main()
