"""Small pieces of Streamlit that several pages share, and the values of `app.values` under one name with them.

Comes in: values and records. Goes out: Streamlit elements. Knows nothing of queries.

Archived text is anybody's: an idea or a problem's name may hold markdown, HTML or a link to a picture. `plain` makes
such a text harmless where Streamlit takes markdown; whole sources and prompts go through `code`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import assert_never

import streamlit as st

from rag_kernels.app import fragments, picture
from rag_kernels.app.fragments import checklist
from rag_kernels.app.listing import listing
from rag_kernels.app.values import DASH as DASH
from rag_kernels.app.values import amount as amount
from rag_kernels.app.values import brief as brief
from rag_kernels.app.values import dollars as dollars
from rag_kernels.app.values import duration as duration
from rag_kernels.app.values import moment as moment
from rag_kernels.app.values import percent as percent
from rag_kernels.app.values import quantity as quantity
from rag_kernels.app.values import shape as shape
from rag_kernels.app.values import short as short
from rag_kernels.app.values import significant as significant
from rag_kernels.app.values import span as span
from rag_kernels.app.values import times as times
from rag_kernels.app.values import when as when
from rag_kernels.app.values import words as words
from rag_kernels.archive import quack
from rag_kernels.archive.records import ArchivedKernel, LLMCall, Trust
from rag_kernels.eval.records import (
    BuildFailed,
    Candidate,
    Compiled,
    Crashed,
    Judged,
    Passed,
    Rejected,
    TimedOut,
    Wrong,
    bars,
    verdict_name,
)
from rag_kernels.eval.source_form import form_of
from rag_kernels.text.likeness import likeness

TRUST_LOOK: dict[Trust, tuple[str, str]] = {
    "confirmed": ("green", ":material/verified:"),
    "verified": ("blue", ":material/check:"),
    "compiled": ("gray", ":material/build:"),
    "claimed": ("orange", ":material/help:"),
}
PAGE = 50  # rows
DIFFERENCE_CHARS = 200_000
LOG_LINES = 12  # more of them scroll
TALL = 24  # lines of a source that are shown without scrolling


def plain(text: str) -> str:
    """Escape all that markdown could take as an instruction, on one line.

    Addresses are made into links after escapes are undone, so an invisible word joiner takes them apart.
    """
    line = re.sub(r"(https?(?=:)|www(?=\.)|@)", "\\1\u2060", " ".join(text.split()), flags=re.IGNORECASE)
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", line)


def language(candidate: Candidate) -> str:
    """Return the name by which Streamlit highlights a source; it has none for CUDA."""
    return "python" if form_of(candidate).language == "python" else "cpp"


def code(text: str, language: str = "", *, key: str, numbers: bool = False, tall: int = 0, wraps: bool = False) -> None:
    """Draw a text as code, whose colours are worked out here and not by scripts in the browser."""
    picture.draw(listing(text, language, numbers=numbers, tall=tall, wraps=wraps), key=f"code-{key}")


def badges(kernel: ArchivedKernel) -> None:
    colour, icon = TRUST_LOOK[kernel.trust]
    with st.container(horizontal=True, gap="small"):
        if kernel.retracted:
            st.badge("retracted", color="red", icon=":material/block:")
        if kernel.stale:
            st.badge("stale", color="red", icon=":material/history:")
        st.badge(kernel.trust, color=colour, icon=icon)  # type: ignore[arg-type]
        for text in (kernel.backend, f"{kernel.tier} tier", kernel.label):
            if text.strip():
                st.badge(plain(text), color="gray")
        if kernel.precision:
            st.badge(plain(f"{kernel.precision} precision"), color="gray")
        for text in kernel.labels:
            st.badge(plain(brief(text)), color="red" if bars(text) else "violet", icon=":material/label:")


def pager(total: int, key: str = "page") -> int:
    """Draw buttons to turn pages where there is more than one; return how many rows come before this page."""
    pages = max(1, -(-total // PAGE))
    if pages == 1:
        return 0
    if int(st.session_state.get(key, 1)) > pages:
        st.session_state[key] = pages
    return PAGE * (int(st.pagination(pages, key=key, bind="query-params")) - 1)


def nothing_chosen(what: str, wanted: str, page: str, label: str) -> None:
    """Draw what a page of one thing says when it has none."""
    told = f"There is no {what} {plain(wanted)} in this archive." if wanted else f"No {what} is chosen."
    st.warning(f"{told} Pick one from the table.", icon=":material/search_off:")
    st.page_link(page, label=label, icon=":material/arrow_forward:")


def empty_archive(place: str) -> None:
    path = Path(place)
    where = "is empty" if quack.is_address(place) or path.exists() else "does not exist yet"
    st.title("Nothing archived yet")
    st.markdown(f"The archive `{path.name.replace('`', '')}` {where}. Every kernel that you generate is kept there:")
    code(EMPTY_COMMANDS, "bash", key="commands")
    st.markdown("This page looks again by itself.")
    st.caption(plain(f"It is at {place}"))


EMPTY_COMMANDS = """\
# write, verify and archive a kernel for one PyTorch module (needs no GPU and no key)
rag-kernels generate problem.py

# or for a whole folder, overnight
rag-kernels grow problems/ --until 07:00

# is the compiler there, the GPU, a language model?
rag-kernels doctor"""


def verdict(judged: Judged, key: str) -> None:
    """Draw a verdict with every field that it has, and where it was reached."""
    v = judged.verdict
    colour = "green" if isinstance(v, Passed) else "gray" if isinstance(v, Compiled) else "orange"
    st.badge(words(verdict_name(v)), color=colour)  # type: ignore[arg-type]
    match v:
        case Passed():
            st.text(f"Error ratio {v.error_ratio:.3g}: 1 is as exact as PyTorch itself. Precision: {v.precision}.")
            if v.labels:
                st.text(f"Labels: {', '.join(v.labels)}.")
            st.markdown("**Checks that held**" if v.checks else "**No check is recorded**")
            st.html(checklist(v))
            for note in v.notes:
                st.text(note)
        case Compiled():
            st.text(v.reason)
        case BuildFailed() | Crashed():
            st.text(v.reason)
            if v.log:
                code(v.log, key=f"log-{key}", tall=LOG_LINES)
        case Wrong():
            st.text(f"{v.reason}\nInputs: {v.input_class}. Where: {v.where}. Error ratio {v.error_ratio:.3g}.")
        case TimedOut():
            st.text(f"{v.reason}\nStage: {v.stage}, limit {v.limit_s:g} s.")
        case Rejected():
            st.text(f"{v.reason}\nRule: {v.code}.")
        case _:
            assert_never(v)
    _where(judged)


def _where(judged: Judged) -> None:
    d, e = judged.device, judged.environment
    stages = ", ".join(f"{words(name)} {seconds:.2f} s" for name, seconds in judged.stage_s.items())
    sandbox = ", ".join(e.sandbox) or "none"
    st.caption(plain(f"On {d.name} ({d.arch}), measured {d.bandwidth_gbs:,.0f} GB/s and {d.fp32_gflops:,.0f} GFLOP/s."))
    software = f"torch {e.torch}, {e.compiler}, Python {e.python}, {e.threads} threads, judge {e.judge_version}"
    st.caption(plain(f"{software}. Sandbox: {sandbox}. Stages: {stages or 'not recorded'}."))


def difference(old: ArchivedKernel, new: ArchivedKernel) -> None:
    """Draw what changed from one source to another, and how alike they are."""
    st.caption(
        f"{percent(likeness(new.source, old.source))} of {short(new.id)} stands in {short(old.id)} too, "
        "whatever the names."
    )
    picture.draw(fragments.difference(old, new, DIFFERENCE_CHARS), key="difference")


def llm_call(call: LLMCall) -> None:
    """Draw prompt and reply exactly as sent."""
    tokens = f"{call.prompt_tokens:,} + {call.completion_tokens:,} tokens"
    title = plain(f"{call.purpose} · {call.model} · {tokens} · {dollars(call.cost_usd)} · {call.seconds:.1f} s")
    with st.expander(title, icon=":material/error:" if call.error else ":material/chat:"):
        if call.error:
            st.error(plain(call.error))
        st.markdown("**Prompt**")
        code(call.prompt, key=f"prompt-{call.id}", wraps=True)
        st.markdown("**Reply**")
        code(call.reply, key=f"reply-{call.id}", wraps=True)
