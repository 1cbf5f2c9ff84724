"""One run: progress, outcomes, why attempts failed, what it cost. It renews itself while the run is under way."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from rag_kernels.app import data, figures, grid, page, picture, show, tables, trends
from rag_kernels.app.grid import Order
from rag_kernels.archive.records import LLMCall, Run


def numbers(run: Run, attempts: pd.DataFrame, calls: list[LLMCall]) -> None:
    passed = int((attempts["outcome"] == "passed").sum())
    best, at_least = figures.best_told(attempts[attempts["won"].astype(bool)])
    with st.container(horizontal=True):
        st.metric("Status", run.status, border=True, width=150)
        st.metric("Attempts", f"{len(attempts):,}", border=True, width=130)
        st.metric("Passed", f"{passed:,}", border=True, width=130)
        st.metric("Won", f"{int(attempts['won'].sum()):,}", border=True, width=130, help="faster than both baselines")
        st.metric("Best speed-up", show.times(best, at_least=at_least), border=True, width=160)
        if calls:
            known = [c.cost_usd for c in calls if c.cost_usd is not None]
            unknown = len(calls) - len(known)
            cost = show.dollars(sum(known)) + (f" + {unknown} unpriced" if unknown else "")
            st.metric("Cost", cost if known else show.dollars(None), border=True, width=160)
            st.metric("Tokens", f"{_tokens(calls):,}", border=True, width=150)


def _tokens(calls: list[LLMCall]) -> int:
    return sum(c.prompt_tokens + c.completion_tokens for c in calls)


def budget(run: Run, attempts: pd.DataFrame, calls: list[LLMCall]) -> None:
    """Draw how much of each budget is used, and what was used without one."""
    start, end = show.moment(run.started_at), show.moment(run.finished_at or "")
    now = end or (datetime.now(UTC) if run.status == "running" else None)
    seconds = (now - start).total_seconds() if now and start else float(attempts["seconds"].sum())
    usd = sum(c.cost_usd or 0.0 for c in calls)
    burns = figures.burned(run, attempts, seconds=seconds, tokens=_tokens(calls), usd=usd)
    limited = [(b, b.limit) for b in burns if b.limit is not None]
    told = [(b, f"{show.amount(b.name, b.used)} of {show.amount(b.name, limit)}") for b, limit in limited]
    if told:
        st.subheader("Budget")
        picture.draw(trends.burn([(b.name, b.used / b.limit, text) for b, text in told if b.limit]), key="budget")
    free = [f"{b.name} {show.amount(b.name, b.used)}" for b in burns if b.limit is None]
    if free:
        st.caption(show.plain(f"Used without a limit: {', '.join(free)}."))


def failures(run_id: str) -> None:
    failed = data.failures(run_id)
    if failed.empty:
        return
    st.subheader("Why attempts failed")
    order = [name for name in tables.FAILURE_COLUMNS if name != "problems"]
    st.dataframe(failed, hide_index=True, column_config=tables.FAILURE_COLUMNS, column_order=order)


def detail(run: Run, number: int) -> None:
    attempt = data.attempt(run.id, number)
    if attempt is None:
        return
    candidate = attempt.candidate
    st.subheader(f"Attempt {number}")
    if attempt.idea:
        st.text(attempt.idea)
    show.verdict(attempt.judged, str(number))
    show.code(candidate.source, show.language(candidate), key="source", numbers=True, tall=show.TALL)
    with st.container(horizontal=True):
        if data.kernel(candidate.id) is not None:
            st.page_link(
                "views/kernel.py",
                label="The kernel's page",
                query_params={"id": candidate.id},
                icon=":material/arrow_forward:",
            )
        if attempt.exemplars:
            st.page_link(
                "views/retrieval.py",
                label="What its writer was shown",
                icon=":material/travel_explore:",
                query_params={"id": run.id, "attempt": str(number)},
            )


def live(run_id: str, under_way: bool) -> None:
    run = data.run(run_id)
    if run is None or (under_way and run.status != "running"):
        st.rerun()
    attempts, calls = data.attempts_of(run_id), data.calls(run_id)
    numbers(run, attempts, calls)
    budget(run, attempts, calls)
    if attempts.empty:
        st.info("No attempt has been judged yet.", icon=":material/hourglass_empty:")
        return
    left, right = st.columns([3, 2], gap="large")
    with left:
        picture.draw(trends.progress(figures.progress(attempts)), key="progress")
    with right:
        picture.draw(trends.outcomes(figures.outcome_counts(attempts)), key="outcomes")
    st.subheader("Attempts")
    place = st.container()
    order = grid.asked_order(tables.ATTEMPT_COLUMNS, Order("number", descending=False))
    shown, _ = tables.page_of(attempts, order)
    with place:
        tables.attempts(shown, key="attempts", page="run", order=order)
    chosen = st.query_params.get("attempt", "")
    if chosen.isdecimal():
        detail(run, int(chosen))
    failures(run_id)
    if attempts["model"].nunique() > 1 or attempts["writer"].nunique() > 1:
        st.subheader("Who wrote what won")
        st.dataframe(
            figures.credit(attempts),
            hide_index=True,
            column_config=tables.CREDIT_COLUMNS,
            column_order=list(tables.CREDIT_COLUMNS),
            placeholder=show.DASH,
        )


def settings(run: Run) -> None:
    try:
        text = json.dumps(json.loads(run.settings), indent=2)
    except ValueError:
        text = run.settings
    with st.expander("Settings", icon=":material/tune:"):
        show.code(text, "json", key="settings")


def talk(run: Run) -> None:
    calls = data.calls(run.id)
    if not calls:
        return
    st.subheader("Calls to language models")
    first = show.pager(len(calls), key="calls")
    for call in calls[first : first + show.PAGE]:
        show.llm_call(call)


wanted = st.query_params.get("id", "")
found = data.run(wanted) if wanted else None
if found is None:
    page.head("Run", page.RUNS)
    show.nothing_chosen("run", wanted, "views/runs.py", "All runs")
else:
    page.head(f"{found.command} {found.problem_name}", page.RUNS, here=found.id)
    st.caption(show.plain(f"{found.id} · {show.when(found.started_at)} to {show.when(found.finished_at)}"))
    with st.container(horizontal=True):
        st.page_link(
            "views/kernels.py", label="Its kernels", query_params={"run": found.id}, icon=":material/table_rows:"
        )
        st.page_link(
            "views/compare.py",
            label="Compare with another run",
            query_params={"a": found.id},
            icon=":material/compare_arrows:",
        )
    under_way = found.status == "running"
    st.fragment(live, run_every="3s" if under_way else None)(found.id, under_way)
    settings(found)
    talk(found)
