"""Overview: what the archive holds, how good it is, and what came in lately."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import streamlit as st

from rag_kernels.app import data, figures, now, page, picture, pictures, show, tables, trends
from rag_kernels.app.now import UnderWay
from rag_kernels.archive.records import Run

BEST_HELP = "over the better of eager and torch.compile"
MEAN_HELP = f"of the best kernel for each problem and device, {BEST_HELP}"
CARDS = 6  # runs under way that are shown whole
TICK, REST = "3s", "20s"  # how often the top looks again, while something runs and while nothing does
SPANS = {"12 hours": 12, "24 hours": 24, "7 days": 168, "30 days": 720}


def state() -> None:
    """Draw what is so: what there is, what is running and what it just did, what came last."""
    held = data.holdings()
    st.markdown(f"**{show.plain(now.holdings(held))}.**")
    if now.to_prove(held):
        st.caption("Prove them on this machine: `rag-kernels archive reverify`")
    under_way = data.running()
    st.subheader("Running now" if under_way else "Nothing is running")
    if under_way:
        picture.draw(now.running([running(run) for run in under_way[:CARDS]]), key="running")
        if len(under_way) > CARDS:
            st.caption(f"And {len(under_way) - CARDS} more: see Runs.")
    else:
        last = data.runs().head(1)
        told = "".join(f"The last was {r.command} {r.problem}, {r.status}. " for r in last.itertuples())
        st.caption(f"{show.plain(told)} `rag-kernels grow problems/ --until 07:00` fills a night.")
    wins = data.lists().wins(count=5)
    if len(wins):
        st.subheader("Newest confirmed wins")
        tables.kernels(wins, key="wins", hide=("floor_percent", "trust", "writer", "idea"))


def running(run: Run) -> UnderWay:
    attempts, pulse = data.attempts_of(run.id), data.pulse(run.id)
    started = show.moment(run.started_at)
    seconds = (datetime.now(UTC) - started).total_seconds() if started else 0.0
    best, at_least = figures.best_told(attempts[attempts["won"].astype(bool)])
    return UnderWay(
        run,
        pulse,
        figures.burned(run, attempts, seconds=seconds, tokens=pulse.tokens, usd=pulse.usd),
        attempts=attempts["kernel_id"].nunique(),
        best=best,
        at_least=at_least,
        picture=pictures.progress(attempts),
    )


def headline() -> None:
    s = data.summary()
    with st.container(horizontal=True):
        st.metric(
            "Verified kernels", f"{s.kernels:,}", border=True, width=170, help="verified or better, not retracted"
        )
        st.metric("Problems", f"{s.problems:,}", border=True, width=150)
        st.metric("Attempts", f"{s.attempts:,}", border=True, width=150)
        st.metric("Geometric mean", show.times(s.mean_speedup), border=True, width=170, help=MEAN_HELP)
        st.metric(
            "Best speed-up",
            show.times(s.best_speedup, at_least=s.best_at_least),
            border=True,
            width=170,
            help=BEST_HELP,
        )
        st.metric("Spent on models", show.dollars(s.cost_usd), border=True, width=170, help="as far as known")


def lately() -> None:
    st.subheader("What came in lately")
    span = st.segmented_control(
        "In the last",
        list(SPANS),
        default="24 hours",
        required=True,
        key="since",
        bind="query-params",
        label_visibility="collapsed",
    )
    since = datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=SPANS[str(span)])
    shown = data.lists()
    found = shown.lately(since)
    if not found["attempts"] and not found["kernels"]:
        st.caption(f"Nothing in the last {span}. `rag-kernels grow problems/ --until 07:00` fills a night.")
    else:
        cost = show.dollars(found["cost_usd"]) + (f" + {found['unpriced']:.0f} unpriced" if found["unpriced"] else "")
        passed = show.percent(found["passed"] / found["attempts"] if found["attempts"] else None)
        st.markdown(
            f"**{found['kernels']:,.0f}** new kernels from **{found['attempts']:,.0f}** attempts on "
            f"**{found['problems']:,.0f}** problems · {passed} passed · **{found['wins']:,.0f}** faster than PyTorch · "
            f"{show.plain(cost)}"
        )
        better = shown.improved(since)
        if len(better):
            st.caption("Problems that got a new best kernel, the greatest step first.")
            tables.kernels(better, key="improved", hide=("device",))


def curves() -> None:
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("How many problems got faster")
        shown = data.lists()
        curve = figures.fast_p(shown.baselines(), len(shown.problems()))
        if curve.empty:
            st.caption("No kernel has been timed yet.")
        else:
            picture.draw(trends.fast_p(curve), key="fast-p")
            st.caption("Share of the problems in the archive whose best kernel is more than p times as fast.")
    with right:
        st.subheader("Kernels and wins")
        history = data.lists().history()
        if len(history) < 2:
            st.caption("Everything came in at once: there is no history to draw yet.")
        else:
            picture.draw(trends.over_time(history), key="history")
            st.caption("An attempt wins when it is right and faster than eager and torch.compile.")
            if history["cost_usd"].max() > 0:
                picture.draw(trends.spending(history), key="spending")


def breakdown() -> None:
    columns = st.columns(3, gap="large")
    parts = (("trust", "By trust"), ("device", "By device"), ("family", "By family"))
    for column, (key, title) in zip(columns, parts, strict=True):
        with column:
            st.subheader(title)
            picture.draw(trends.counts(data.lists().counts(key), key, "kernels"), key=f"by-{key}")


def latest() -> None:
    st.subheader("Latest kernels")
    tables.kernels(data.lists().kernels(data.STANDING, count=10), key="latest")
    st.page_link("views/kernels.py", label="All kernels", icon=":material/arrow_forward:")


page.head("Archive")
st.fragment(state, run_every=TICK if data.running() else REST)()
headline()
lately()
curves()
breakdown()
latest()
