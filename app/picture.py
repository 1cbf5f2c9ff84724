"""Draw SVG and small pieces of HTML of our own on a page of the explorer.

Comes in: markup in which every archived text is escaped, as `app.svg` and `app.fragments` make it. Goes out: a
Streamlit component, `web/picture.js`.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

WEB = Path(__file__).with_name("web")


def draw(markup: str, key: str) -> None:
    st.components.v2.component(
        "rag_kernels_picture",
        js=(WEB / "picture.js").read_text(),
        css=(WEB / "picture.css").read_text(),
        isolate_styles=False,
    )(key=key, data={"markup": markup})
