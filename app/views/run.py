"""One run: progress, outcomes, why attempts failed, what it cost. It renews itself while the run is under way."""

from __future__ import annotations

import json

import pandas as pd
import streamlit as st

from app import charts, data, figures, show, tables
from archive.records import Run


def numbers(run: Run, attempts: pd.DataFrame) -> None:
    passed = int((attempts["outcome"] == "passed").sum())
    best = attempts["speedup"].max() if len(attempts) else None
    calls = data.calls(run.id)
    tokens = sum(c.prompt_tokens + c.completion_tokens for c in calls)
    known = [c.cost_usd for c in calls if c.cost_usd is not None]
    unknown = len(calls) - len(known)
    with st.container(horizontal=True):
        st.metric("Status", run.status, border=True, width=150)
        st.metric("Attempts", f"{len(attempts):,}", border=True, width=130)
        st.metric("Passed", f"{passed:,}", border=True, width=130)
        st.metric("Best speed-up", show.times(None if pd.isna(best) else best), border=True, width=160)
        if calls:
            cost = show.dollars(sum(known)) + (f" + {unknown} unpriced" if unknown else "")
            st.metric("Cost", cost if known else show.dollars(None), border=True, width=160)
            st.metric("Tokens", f"{tokens:,}", border=True, width=150)


def failures(attempts: pd.DataFrame) -> None:
    failed = attempts[attempts["outcome"] != "passed"]
    if failed.empty:
        return
    st.subheader("Why attempts failed")
    groups = failed.groupby(["outcome", "reason"]).size().reset_index(name="count")
    st.dataframe(groups.sort_values("count", ascending=False), hide_index=True, column_config=tables.FAILURE_COLUMNS)


def detail(run: Run, number: int) -> None:
    attempt = data.attempt(run.id, number)
    if attempt is None:
        return
    candidate = attempt.candidate
    st.subheader(f"Attempt {number}")
    if attempt.idea:
        st.text(attempt.idea)
    show.verdict(attempt.judged)
    language = show.language(candidate.source, candidate.tier)
    st.code(candidate.source, language=language, line_numbers=True, height=420)
    if data.kernel(candidate.id) is not None:
        st.page_link(
            "views/kernel.py",
            label="The kernel's page",
            query_params={"id": candidate.id},
            icon=":material/arrow_forward:",
        )


def live(run_id: str, under_way: bool) -> None:
    run = data.run(run_id)
    if run is None or (under_way and run.status != "running"):
        st.rerun()
    attempts = data.attempts_of(run_id)
    numbers(run, attempts)
    if attempts.empty:
        st.info("No attempt has been judged yet.", icon=":material/hourglass_empty:")
        return
    left, right = st.columns([3, 2], gap="large")
    left.altair_chart(charts.progress(figures.progress(attempts)))
    right.altair_chart(charts.outcomes(figures.outcome_counts(attempts)))
    st.subheader("Attempts")
    row = tables.attempts(attempts, key="attempts")
    if row is not None and row < len(attempts):
        detail(run, int(attempts.iloc[row]["number"]))
    failures(attempts)


def settings(run: Run) -> None:
    try:
        text = json.dumps(json.loads(run.settings), indent=2)
    except ValueError:
        text = run.settings
    with st.expander("Settings", icon=":material/tune:"):
        st.code(text, language="json")


def talk(run: Run) -> None:
    calls = data.calls(run.id)
    if calls:
        st.subheader("Calls to language models")
        for call in calls:
            show.llm_call(call)


wanted = st.query_params.get("id", "")
found = data.run(wanted) if wanted else None
if found is None:
    what = f"There is no run {show.plain(wanted)} in this archive." if wanted else "No run is chosen."
    st.warning(f"{what} Pick one from the table.", icon=":material/search_off:")
    st.page_link("views/runs.py", label="All runs", icon=":material/timeline:")
else:
    st.title(show.plain(f"{found.command} {found.problem_name}"))
    st.caption(show.plain(f"{found.id} · {show.when(found.started_at)} to {show.when(found.finished_at)}"))
    under_way = found.status == "running"
    st.fragment(live, run_every="3s" if under_way else None)(found.id, under_way)
    settings(found)
    talk(found)
