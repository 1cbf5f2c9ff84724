"""One kernel: its source, verdict, timings, descent, and the prompt that made it. `?id=` names it."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable

import streamlit as st

from rag_kernels.app import data, exports, fragments, page, picture, pictures, show, tables
from rag_kernels.app.lineage import nearby
from rag_kernels.archive.queries import Evaluation
from rag_kernels.archive.records import ArchivedKernel, Attempt
from rag_kernels.eval.instruments.assembly import assembly, hot_loop
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.records import Backend, MachineError, Measurement, Passed, Ratio
from rag_kernels.eval.source_form import form_of
from rag_kernels.eval.told import told_ratio

RELATIVES = 200
ASSEMBLY = 60_000  # characters that are shown


def heading(kernel: ArchivedKernel, evaluations: list[Evaluation]) -> None:
    above = page.problem(kernel.problem_id, kernel.problem_name)
    page.head(kernel.problem_name, page.PROBLEMS, above, here=show.short(kernel.id))
    with st.container(key="kernel-head"):
        picture.draw(fragments.kernel_head(kernel, evaluations), key="head")
    others = fragments.elsewhere(evaluations)
    if others:
        picture.draw(others, key="elsewhere")
    if kernel.idea:
        st.text(kernel.idea)
    show.badges(kernel)
    if kernel.retracted:
        st.error(f"Retracted: {show.plain(kernel.retracted)}", icon=":material/block:")
    if kernel.stale:
        st.warning(f"It no longer holds: {show.plain(kernel.stale)}", icon=":material/history:")
    made = f"{kernel.writer} · {kernel.model}" if kernel.model else kernel.writer
    device = f" · {kernel.device_name}" if kernel.device_name else ""
    st.caption(show.plain(f"{kernel.id} · by {made} · {show.when(kernel.created_at)}{device}"))


def numbers(kernel: ArchivedKernel) -> None:
    if kernel.candidate_us is None:
        st.info("This kernel has not been timed on any device.", icon=":material/timer_off:")
        return
    unsure = kernel.at_least
    with st.container(horizontal=True):
        st.metric(
            "Speed-up",
            show.times(kernel.speedup, at_least=unsure),
            border=True,
            width=170,
            help="over the better baseline",
        )
        st.metric("Over eager", show.times(kernel.speedup_eager, at_least=unsure), border=True, width=150)
        st.metric("Over torch.compile", show.times(kernel.speedup_compile, at_least=unsure), border=True, width=180)
        st.metric("Time per call", show.duration(kernel.candidate_us), border=True, width=170)
        st.metric("Of the floor", show.percent(kernel.floor_fraction), border=True, width=150, help=FLOOR_HELP)


FLOOR_HELP = "Physical floor over measured time: 100 % is as fast as this device can move the bytes or do the sums."


def source(kernel: ArchivedKernel) -> None:
    show.code(kernel.source, show.language(kernel.candidate), key="source", numbers=True)
    short = show.short(kernel.id)
    name = f"{short}{form_of(kernel.candidate).suffix}"
    st.markdown("Judge it again on this machine, from the archive or with both files downloaded:")
    again = f"rag-kernels archive reverify {short} --all\nrag-kernels eval {short}_problem.py {name}"
    show.code(again, "bash", key="again")
    if kernel.licence or kernel.attribution:
        st.caption(show.plain(f"Licence: {kernel.licence or 'unknown'} {kernel.attribution}"))


def use_it(kernel: ArchivedKernel) -> None:
    files = data.files_of(kernel)
    module = next((file for file in files if file.form == "module"), None)
    if module is not None:
        st.markdown(f"Save **{module.label}** beside your program, then:")
        show.code(exports.snippet(module.name), "python", key="snippet")
    else:
        st.caption("Only its source can be saved: it is not measured here, was withdrawn, or is a module of its own.")
    for file in files:
        with st.container(horizontal=True, vertical_alignment="center"):
            _download(file.label, file.content_or_why, file.name)
            st.caption(show.plain(file.told))
    st.markdown("The same from a terminal, in the format that you name:")
    form = module.form if module else "source"
    show.code(f"rag-kernels export {show.short(kernel.id)} --as {form}", "bash", key="export")


def changes(kernel: ArchivedKernel, made: Attempt | None) -> None:
    found = data.sources_of(kernel, made)
    if not found:
        st.info("Nothing in this archive is like it: there is no source to compare it with.", icon=":material/search:")
        return
    told = {one.id: f"{one.relation} · {one.problem_name} · {one.share:.0%} alike" for one in found}
    difference(kernel, told)


@st.cache_data(show_spinner="Compiling…", max_entries=32)
def compiled(source: str, backend: Backend) -> tuple[str, str]:
    """Return the assembly of a kernel and its hot loop, or an empty text and why there is none."""
    try:
        listing = assembly(source, backend, default_cache())
    except MachineError as error:
        return "", str(error)
    return listing, hot_loop(listing)


def machine_code(kernel: ArchivedKernel) -> None:
    if kernel.tier != "kernel":
        st.info("Assembly is shown of kernels in C++ and CUDA; this one is a Python file.", icon=":material/memory:")
        return
    st.caption("It is compiled here, as the judge does it, and not run.")
    if not st.toggle("Compile it and show what comes out", key="asm", bind="query-params"):
        return
    listing, loop = compiled(kernel.source, kernel.backend)
    if not listing:
        st.warning(show.plain(loop), icon=":material/memory:")
        return
    if loop:
        st.markdown("**The hot loop**: the innermost one that does the most arithmetic and the most loads")
        show.code(loop, "asm", key="loop")
    st.markdown("**All of its functions**")
    show.code(listing[:ASSEMBLY], "asm", key="assembly", tall=show.TALL)
    if len(listing) > ASSEMBLY:
        st.caption("The rest is shown by `rag-kernels eval problem.py kernel.cpp --asm`.")


def _download(label: str, content: Callable[[], bytes], name: str) -> None:
    kind = mimetypes.guess_type(name)[0] or "text/plain"
    st.download_button(label, content, name, kind, on_click="ignore", icon=":material/download:")


def timings(kernel: ArchivedKernel, evaluations: list[Evaluation]) -> None:
    passed = [(e, e.judged.verdict) for e in evaluations if isinstance(e.judged.verdict, Passed)]
    if not passed:
        st.info("No timing is archived for this kernel.", icon=":material/timer_off:")
    drawn: set[tuple[str, str]] = set()
    for evaluation, verdict in passed:
        device, m = evaluation.judged.device, verdict.measurement
        problem = data.problem(evaluation.problem_id)
        st.subheader(show.plain(device.name))
        shapes = ", ".join(f"{a.name} {show.shape(a.spec.shape)}" for a in problem.tensors) if problem else ""
        kind = "confirmed by a second run in a fresh process" if m.confirmed else "not confirmed by a second run"
        caches = ", caches emptied before each call" if m.cold else ""
        st.caption(show.plain(f"{evaluation.problem_name}: {shapes}"))
        st.caption(f"{m.pairs} interleaved pairs{caches}, {kind}. Judged {show.when(evaluation.created_at)}.")
        left, right = st.columns(2, gap="large")
        with left:
            picture.draw(pictures.times(m), key=f"times-{evaluation.id}")
        with right:
            picture.draw(pictures.gains(m), key=f"gains-{evaluation.id}")
        drawn_pairs = pictures.pairs(m)
        if drawn_pairs:
            st.markdown("**Every pair**")
            picture.draw(drawn_pairs, key=f"pairs-{evaluation.id}")
        _figures(m)
        if m.compile_note:
            st.caption(f"torch.compile: {show.plain(m.compile_note)}")
        place = (evaluation.problem_id, device.key)
        roof = (
            pictures.roof_of(device, problem.features, m, kernel.id)
            if problem is not None and place not in drawn
            else ""
        )
        if roof:
            drawn.add(place)
            st.markdown("**Roofline**")
            picture.draw(roof, key=f"roof-{evaluation.id}")
            st.caption(
                "The diamond is this kernel, the circle eager, the square torch.compile. Work and unavoidable bytes "
                "are the problem's; the ceilings were measured on the device."
            )


def _figures(m: Measurement) -> None:
    """Show the same as numbers."""

    def row(name: str, us: float, over: Ratio | None) -> dict[str, str]:
        between = f"{show.significant(over.low)} to {show.significant(over.high)}" if over else show.DASH
        sign = "" if m.confirmed else "≥ "
        gain = f"{sign}{show.times(told_ratio(m, over))}" if over else show.DASH
        return {"": name, "time per call": show.duration(us), "kernel is faster by": gain, "95 % interval (×)": between}

    rows = [row("this kernel", m.candidate_us, None), row("eager", m.eager_us, m.speedup_eager)]
    rows += [row("torch.compile", m.compile_us, m.speedup_compile)] if m.compile_us is not None else []
    rows += [row("physical floor", m.floor_us, None)]
    if m.speedup_warm is not None:
        rows += [row("eager, inputs in the cache", m.eager_us, m.speedup_warm) | {"time per call": show.DASH}]
    st.dataframe(rows, hide_index=True)


def verdicts(kernel: ArchivedKernel, evaluations: list[Evaluation], made: Attempt | None) -> None:
    for claim in data.claims(kernel.id):
        with st.container(border=True):
            st.caption(show.plain(f"Claimed by {claim.importer}, not measured here · {claim.origin}"))
            st.text(f"{show.times(claim.speedup_eager)} over eager · {show.times(claim.speedup_compile)} over compile")
            for note in filter(None, (claim.warning, *claim.notes)):
                st.text(note)
    for evaluation in evaluations:
        with st.container(border=True):
            where = f"{evaluation.problem_name} on {evaluation.judged.device.name}"
            st.caption(show.plain(f"{where} · {evaluation.trust} · {show.when(evaluation.created_at)}"))
            show.verdict(evaluation.judged, evaluation.id)
    if made is not None:
        st.page_link(
            "views/run.py",
            label=f"Attempt {made.number} of the run that brought it",
            query_params={"id": made.run_id},
            icon=":material/timeline:",
        )


def lineage(kernel: ArchivedKernel, made: Attempt | None) -> None:
    family = data.family(kernel.id)
    shown = {e.kernel_id for e in made.exemplars} if made is not None else set()
    if not family.edges and not shown:
        st.info("Nothing is recorded above or below this kernel: it was written from the problem alone.")
        return
    near = nearby(family, kernel.id)
    if near.edges:
        picture.draw(fragments.tree(near, kernel.id, fragments.kernel_address), key="family")
        rest = len(family.nodes) - len(near.nodes)
        more = f" {rest:,} more distant relatives are left out." if rest else ""
        st.caption(f"What was made of a kernel stands beneath it.{more}")
    direct = {e.source for e in family.edges if e.child == kernel.id} | {
        e.child for e in family.edges if e.source == kernel.id
    }
    relatives = data.rows_of(sorted((direct | shown) - {kernel.id})[:RELATIVES])
    if len(relatives):
        tables.kernels(relatives, key="relatives")


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
    show.difference(other, kernel)
    st.page_link(
        "views/compare.py",
        label="Side by side",
        query_params={"a": other.id, "b": kernel.id},
        icon=":material/compare_arrows:",
    )


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
        tables.exemplars(shown, key="shown", hide=("same_graph", "bm25", "dense", "graph", "others", "idea"))
        st.page_link(
            "views/retrieval.py",
            label="What each signal said",
            icon=":material/travel_explore:",
            query_params={"id": made.run_id, "attempt": str(made.number)},
        )
        for number, row in enumerate(shown.itertuples(), 1):
            exemplar = data.kernel(row.id)
            if exemplar is not None:
                with st.expander(show.plain(f"{number} · {show.short(row.id)} · {row.problem}")):
                    language = show.language(exemplar.candidate)
                    show.code(exemplar.source, language, key=f"exemplar-{number}", tall=show.TALL)
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
    show.code(kernel.functional_source, "python", key="function")


def draw(kernel: ArchivedKernel) -> None:
    evaluations, made = data.evaluations(kernel.id), data.origin(kernel.id)
    heading(kernel, evaluations)
    numbers(kernel)
    drawn: dict[str, Callable[[], None]] = {
        "Source": lambda: source(kernel),
        "Changes": lambda: changes(kernel, made),
        "Use it": lambda: use_it(kernel),
        "Timings": lambda: timings(kernel, evaluations),
        "Verdict": lambda: verdicts(kernel, evaluations, made),
        "Assembly": lambda: machine_code(kernel),
        "Lineage": lambda: lineage(kernel, made),
        "How it was made": lambda: making(kernel, made),
        "Problem": lambda: problem(kernel),
    }
    for tab, part in zip(
        st.tabs(list(drawn), key="tab", on_change="rerun", bind="query-params"), drawn.values(), strict=True
    ):
        if tab.open:
            with tab:
                part()


wanted = st.query_params.get("id", "")
found = data.kernel(wanted) if wanted else None
if found is None:
    page.head("Kernel", page.KERNELS)
    show.nothing_chosen("kernel", wanted, "views/kernels.py", "All kernels")
else:
    draw(found)
