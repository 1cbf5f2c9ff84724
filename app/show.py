"""Format values: numbers with units, archived text as text, small pieces that several pages share.

Comes in: values and records. Goes out: strings and Streamlit elements. Knows nothing of queries.

Archived text is anybody's: an idea or a problem's name may hold markdown, HTML or a link to a picture. `plain` makes
such a text harmless where Streamlit takes markdown; whole sources and prompts go through `st.code`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

import streamlit as st

from rag_kernels.archive import quack
from rag_kernels.archive.records import ArchivedKernel, LLMCall, Trust
from rag_kernels.eval.records import (
    BARRED_LABELS,
    BuildFailed,
    Candidate,
    Compiled,
    Crashed,
    Judged,
    Passed,
    Rejected,
    TimedOut,
    Wrong,
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
DASH = "–"
PAGE = 50  # rows


def plain(text: str) -> str:
    """Escape every character that markdown could take as an instruction, on one line.

    Addresses are made into links after escapes are undone, so an invisible word joiner takes them apart.
    """
    line = re.sub(r"(https?(?=:)|www(?=\.)|@)", "\\1\u2060", " ".join(text.split()), flags=re.IGNORECASE)
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", line)


def duration(microseconds: float | None) -> str:
    """Return seconds to three significant digits with the unit that fits: `812 µs`, `4.31 ms`, `1.20 s`."""
    if microseconds is None:
        return DASH
    for limit, unit, scale in ((1e3, "µs", 1.0), (1e6, "ms", 1e3)):
        if microseconds < limit:
            return f"{significant(microseconds / scale)} {unit}"
    return f"{significant(microseconds / 1e6)} s"


def span(seconds: float) -> str:
    """Return seconds as `4.20 s`, `12 min`, `3 h 05 min`, `2 days 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return duration(1e6 * seconds)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def significant(value: float) -> str:
    """Return three significant digits, never in scientific form for the sizes that occur here."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(speedup: float | None) -> str:
    return DASH if speedup is None else f"{significant(speedup)}×"


def percent(fraction: float | None) -> str:
    return DASH if fraction is None else f"{100 * fraction:.0f} %"


def dollars(amount: float | None) -> str:
    """Return a price; `None` is an unknown one, not a free one."""
    return "unknown" if amount is None else f"${amount:,.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"


def quantity(value: float, unit: str) -> str:
    """Return `1.5 GFLOP`, `268 MB`: powers of a thousand."""
    for prefix in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.0f} {unit}" if not prefix else f"{significant(value)} {prefix}{unit}"
        value /= 1000
    return f"{significant(value)} T{unit}"


def moment(iso: str) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(iso)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def when(iso: str | None) -> str:
    parsed = moment(iso) if iso else None
    return parsed.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if parsed else DASH


def short(content_id: str) -> str:
    """Return enough of an id to name it: the archive takes unambiguous prefixes."""
    return content_id[:10]


def brief(text: str) -> str:
    """Return a remark with its kernels' ids shortened."""
    return re.sub(r"(k_[0-9a-f]{8})[0-9a-f]+", r"\1", text)


def words(name: str) -> str:
    """Return `build_failed` as a reader says it."""
    return name.replace("_", " ")


def shape(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes)) or "scalar"


def language(candidate: Candidate) -> str:
    """The name by which Streamlit highlights a source; it has none for CUDA."""
    return "python" if form_of(candidate).language == "python" else "cpp"


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
            barred = text.startswith(BARRED_LABELS)
            st.badge(plain(brief(text)), color="red" if barred else "violet", icon=":material/label:")


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
    st.code(EMPTY_COMMANDS, language="bash")
    st.markdown("Then reload this page.")
    st.caption(plain(f"It is at {place}"))


EMPTY_COMMANDS = """\
# write, verify and archive a kernel for one PyTorch module (needs no GPU and no key)
rag-kernels generate problem.py

# or for a whole folder, overnight
rag-kernels grow problems/ --until 07:00

# is the compiler there, the GPU, a language model?
rag-kernels doctor"""


def verdict(judged: Judged) -> None:
    """Draw a verdict with every field that it has, and where it was reached."""
    v = judged.verdict
    colour = "green" if isinstance(v, Passed) else "gray" if isinstance(v, Compiled) else "orange"
    st.badge(words(verdict_name(v)), color=colour)  # type: ignore[arg-type]
    match v:
        case Passed():
            st.text(f"Error ratio {v.error_ratio:.3g}: 1 is as exact as PyTorch itself. Precision: {v.precision}.")
            if v.labels:
                st.text(f"Labels: {', '.join(v.labels)}.")
            st.markdown("**Checks that held**")
            st.text("\n".join(f"✓ {check}" for check in v.checks) or "none recorded")
            for note in v.notes:
                st.text(note)
        case Compiled():
            st.text(v.reason)
        case BuildFailed() | Crashed():
            st.text(v.reason)
            if v.log:
                st.code(v.log, language=None, height=240)
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
    lines = difflib.unified_diff(old.source.splitlines(), new.source.splitlines(), old.id, new.id, lineterm="", n=3)
    st.caption(
        f"{percent(likeness(new.source, old.source))} of {short(new.id)} stands in {short(old.id)} too, "
        "whatever the names."
    )
    st.code("\n".join(lines) or "The sources are the same.", language="diff")


def llm_call(call: LLMCall) -> None:
    """Draw prompt and reply exactly as sent."""
    tokens = f"{call.prompt_tokens:,} + {call.completion_tokens:,} tokens"
    title = plain(f"{call.purpose} · {call.model} · {tokens} · {dollars(call.cost_usd)} · {call.seconds:.1f} s")
    with st.expander(title, icon=":material/error:" if call.error else ":material/chat:"):
        if call.error:
            st.error(plain(call.error))
        st.markdown("**Prompt**")
        st.code(call.prompt, language=None, wrap_lines=True)
        st.markdown("**Reply**")
        st.code(call.reply, language=None, wrap_lines=True)
