"""One kernel: its source, verdict, timings, descent, and the prompt that made it. `?id=` names it."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import streamlit as st

from app import charts, data, show, tables
from app.lineage import graph
from archive.queries import Evaluation
from archive.records import ArchivedKernel, Attempt
from eval.records import Passed


def heading(kernel: ArchivedKernel) -> None:
    st.title(show.plain(kernel.problem_name))
    if kernel.idea:
        st.text(kernel.idea)
    show.badges(kernel)
    if kernel.retracted:
        st.error(f"Retracted: {show.plain(kernel.retracted)}", icon=":material/block:")
    made = f"{kernel.writer} · {kernel.model}" if kernel.model else kernel.writer
    device = f" · {kernel.device_name}" if kernel.device_name else ""
    st.caption(show.plain(f"{kernel.id} · by {made} · {show.when(kernel.created_at)}{device}"))


def numbers(kernel: ArchivedKernel) -> None:
    if kernel.candidate_us is None:
        st.info("This kernel has not been timed on any device.", icon=":material/timer_off:")
        return
    with st.container(horizontal=True):
        st.metric("Speed-up", show.times(kernel.speedup), border=True, width=170, help="over the better baseline")
        st.metric("Over eager", show.times(kernel.speedup_eager), border=True, width=150)
        st.metric("Over torch.compile", show.times(kernel.speedup_compile), border=True, width=180)
        st.metric("Time per call", show.duration(kernel.candidate_us), border=True, width=170)
        st.metric("Of the floor", show.percent(kernel.floor_fraction), border=True, width=150, help=FLOOR_HELP)


FLOOR_HELP = "Physical floor over measured time: 100 % is as fast as this device can move the bytes or do the sums."


def source(kernel: ArchivedKernel, made: Attempt | None) -> None:
    name = f"{show.short(kernel.id)}{show.suffix(kernel.source, kernel.backend, kernel.tier)}"
    with st.container(horizontal=True):
        st.download_button("Kernel", kernel.source, name, "text/plain", on_click="ignore", icon=":material/download:")
        if made is not None:
            problem = made.problem.problem.source
            st.download_button(
                "Problem", problem, "problem.py", "text/plain", on_click="ignore", icon=":material/download:"
            )
    st.code(kernel.source, language=show.language(kernel.source, kernel.tier), line_numbers=True)
    st.markdown("Judge it again on this machine, with both files downloaded:")
    st.code(f"rag-kernels eval problem.py {name}", language="bash")
    if kernel.licence or kernel.attribution:
        st.caption(show.plain(f"Licence: {kernel.licence or 'unknown'} {kernel.attribution}"))


def timings(evaluations: list[Evaluation]) -> None:
    passed = [(e, e.judged.verdict) for e in evaluations if isinstance(e.judged.verdict, Passed)]
    if not passed:
        st.info("No timing is archived for this kernel.", icon=":material/timer_off:")
    for evaluation, verdict in passed:
        device, m = evaluation.judged.device, verdict.measurement
        st.subheader(show.plain(device.name))
        kind = "confirmed by a second run in a fresh process" if m.confirmed else "not confirmed by a second run"
        st.caption(f"{m.pairs} interleaved pairs, {kind}. Judged {show.when(evaluation.created_at)}.")
        left, right = st.columns(2, gap="large")
        left.altair_chart(charts.timing_bars(m))
        right.altair_chart(charts.speedup_intervals(m))
        if m.compile_note:
            st.caption(f"torch.compile: {show.plain(m.compile_note)}")
        problem = data.problem(evaluation.problem_id)
        if problem is not None and charts.has_roofline(device, problem.features):
            st.markdown("**Roofline**")
            st.altair_chart(charts.roofline(device, problem.features, m))
            st.caption("Work and unavoidable bytes are the problem's; the ceilings were measured on the device.")


def verdicts(kernel: ArchivedKernel, evaluations: list[Evaluation], made: Attempt | None) -> None:
    for claim in data.claims(kernel.id):
        with st.container(border=True):
            st.caption(show.plain(f"Claimed by {claim.importer}, not measured here · {claim.origin}"))
            st.text(f"{show.times(claim.speedup_eager)} over eager · {show.times(claim.speedup_compile)} over compile")
            for note in filter(None, (claim.warning, *claim.notes)):
                st.text(note)
    for evaluation in evaluations:
        with st.container(border=True):
            st.caption(show.plain(f"{evaluation.problem_name} · {show.when(evaluation.created_at)}"))
            show.verdict(evaluation.judged)
    if made is not None:
        st.page_link(
            "views/run.py",
            label="The run that brought it",
            query_params={"id": made.run_id},
            icon=":material/timeline:",
        )


def lineage(kernel: ArchivedKernel) -> None:
    family = data.family(kernel.id)
    if not family.edges:
        st.info("Nothing is recorded above or below this kernel: it was written from the problem alone.")
        return
    st.graphviz_chart(graph(family, kernel.id), alt="Where this kernel comes from and what came of it")
    st.caption("An arrow points from a source to what was made of it. Click a box or a row to open that kernel.")
    table = data.kernels()
    names = {node.id for node in family.nodes} - {kernel.id}
    relatives = table[table["id"].isin(names)]
    if len(relatives):
        tables.kernels(relatives, key="relatives")
        difference(kernel, dict(zip(relatives["id"], relatives["problem"], strict=True)))


def difference(kernel: ArchivedKernel, others: dict[str, str]) -> None:
    against = st.selectbox(
        "Compare the source with",
        list(others),
        format_func=lambda name: f"{show.short(name)} · {others[name]}",
        key="against",
        bind="query-params",
    )
    other = data.kernel(against)
    if other is None:
        return
    lines = difflib.unified_diff(
        other.source.splitlines(), kernel.source.splitlines(), other.id, kernel.id, lineterm="", n=3
    )
    text = "\n".join(lines)
    st.code(text or "The sources are the same.", language="diff")


def making(kernel: ArchivedKernel, made: Attempt | None) -> None:
    if made is None:
        st.info("No attempt is archived for this kernel: it was imported.", icon=":material/input:")
        return
    if made.note:
        st.text(made.note)
    st.subheader("Examples that the writer saw")
    shown = data.exemplars(made)
    if shown.empty:
        st.caption("None.")
    else:
        tables.exemplars(shown, key="shown")
    st.subheader("Prompt and reply")
    calls = data.calls_of(made)
    if not calls:
        st.caption(f"No language model was asked: the {show.plain(kernel.writer)} writer made it.")
    for call in calls:
        show.llm_call(call)


def problem(kernel: ArchivedKernel) -> None:
    st.page_link(
        "views/problem.py",
        label=f"All kernels for {show.plain(kernel.problem_name)}",
        query_params={"id": kernel.problem_id},
        icon=":material/function:",
    )
    st.markdown("What it computes, as a call:")
    st.code(kernel.functional_source, language="python")


def page(kernel: ArchivedKernel) -> None:
    heading(kernel)
    numbers(kernel)
    evaluations, made = data.evaluations(kernel.id), data.origin(kernel.id)
    drawn: dict[str, Callable[[], None]] = {
        "Source": lambda: source(kernel, made),
        "Timings": lambda: timings(evaluations),
        "Verdict": lambda: verdicts(kernel, evaluations, made),
        "Lineage": lambda: lineage(kernel),
        "How it was made": lambda: making(kernel, made),
        "Problem": lambda: problem(kernel),
    }
    for tab, draw in zip(
        st.tabs(list(drawn), key="tab", on_change="rerun", bind="query-params"), drawn.values(), strict=True
    ):
        if tab.open:
            with tab:
                draw()


wanted = st.query_params.get("id", "")
found = data.kernel(wanted) if wanted else None
if found is None:
    what = f"There is no kernel {show.plain(wanted)} in this archive." if wanted else "No kernel is chosen."
    st.warning(f"{what} Pick one from the table.", icon=":material/search_off:")
    st.page_link("views/kernels.py", label="All kernels", icon=":material/table_rows:")
else:
    page(found)
