"""Compare: two kernels or two runs side by side. `?a=&b=` name them, whole ids or their beginnings."""

from __future__ import annotations

import json

import pandas as pd
import streamlit as st

from rag_kernels.app import data, figures, page, picture, show, trends
from rag_kernels.archive.queries import Evaluation
from rag_kernels.archive.records import ArchivedKernel, Run
from rag_kernels.eval.records import Passed


def side_by_side(facts: dict[str, tuple[str, str]], names: tuple[str, str]) -> None:
    rows = [{"": what, f"A · {names[0]}": a, f"B · {names[1]}": b} for what, (a, b) in facts.items() if a or b]
    st.dataframe(rows, hide_index=True, height="content")


def kernels(a: ArchivedKernel, b: ArchivedKernel) -> None:
    st.subheader(show.plain(f"{a.problem_name} and {b.problem_name}"))
    if a.problem_id != b.problem_id:
        st.caption("They were written for different problems: compare their gains, not their times.")
    elif a.device_name != b.device_name:
        st.caption("They were timed on different devices: compare their gains, not their times.")

    def both(of: str) -> tuple[str, str]:
        return str(getattr(a, of)), str(getattr(b, of))

    def gains(of: str) -> tuple[str, str]:
        first, second = (show.times(getattr(kernel, of), at_least=kernel.at_least) for kernel in (a, b))
        return first, second

    side_by_side(
        {
            "speed-up": gains("speedup"),
            "over eager": gains("speedup_eager"),
            "over torch.compile": gains("speedup_compile"),
            "time per call": (show.duration(a.candidate_us), show.duration(b.candidate_us)),
            "of the floor": (show.percent(a.floor_fraction), show.percent(b.floor_fraction)),
            "idea": both("idea"),
            "device": both("device_name"),
            "trust": both("trust"),
            "label": both("label"),
            "remarks": (", ".join(a.labels), ", ".join(b.labels)),
            "precision": both("precision"),
            "retracted": both("retracted"),
            "tier": both("tier"),
            "backend": both("backend"),
            "writer": (a.model or a.writer, b.model or b.writer),
            "archived": (show.when(a.created_at), show.when(b.created_at)),
            "lines": (f"{a.source.count(chr(10)):,}", f"{b.source.count(chr(10)):,}"),
        },
        (show.short(a.id), show.short(b.id)),
    )
    timings(data.evaluations(a.id), data.evaluations(b.id))
    st.subheader("What changed from A to B")
    show.difference(a, b)
    left, right = st.columns(2, gap="medium")
    for side, column, kernel in (("a", left, a), ("b", right, b)):
        with column:
            st.page_link(
                "views/kernel.py",
                label=show.short(kernel.id),
                query_params={"id": kernel.id},
                icon=":material/arrow_forward:",
            )
            language = show.language(kernel.candidate)
            show.code(kernel.source, language, key=f"source-{side}", numbers=True, tall=show.TALL)


def timings(first: list[Evaluation], second: list[Evaluation]) -> None:
    """Draw times of both where both were timed on the same problem and device."""
    rows = []
    for e in first:
        other = next(
            (
                o
                for o in second
                if (o.problem_id, o.judged.device.key) == (e.problem_id, e.judged.device.key)
                and isinstance(o.judged.verdict, Passed)
            ),
            None,
        )
        mine = e.judged.verdict
        if other is None or not isinstance(mine, Passed) or not isinstance(other.judged.verdict, Passed):
            continue
        a, b = mine.measurement, other.judged.verdict.measurement
        rows.append(
            {
                "problem": e.problem_name,
                "device": e.judged.device.name,
                "A": show.duration(a.candidate_us),
                "B": show.duration(b.candidate_us),
                "B is faster by": show.times(a.candidate_us / b.candidate_us),
                "eager beside A": show.duration(a.eager_us),
                "eager beside B": show.duration(b.eager_us),
            }
        )
    if rows:
        st.subheader("On the same device")
        st.dataframe(pd.DataFrame(rows).drop_duplicates(["problem", "device"]), hide_index=True)
        st.caption("Where eager took another time beside A than beside B, the machine had changed in between.")


def runs(a: Run, b: Run) -> None:
    st.subheader(show.plain(f"{a.command} {a.problem_name} and {b.command} {b.problem_name}"))
    first, second = data.attempts_of(a.id), data.attempts_of(b.id)
    rows = [data.run_row(run.id) for run in (a, b)]

    def both(column: str, form: str = "{:,.0f}") -> tuple[str, str]:
        values = [None if row.empty or pd.isna(row[column].iloc[0]) else row[column].iloc[0] for row in rows]
        told = [show.DASH if value is None else form.format(value) for value in values]
        return told[0], told[1]

    def gain(row: pd.DataFrame) -> str:
        known = row.dropna(subset=["best"])
        if known.empty:
            return show.DASH
        return show.times(float(known["best"].iloc[0]), at_least=bool(known["at_least"].iloc[0]))

    settings = _settings(a), _settings(b)
    differing = [n for n in sorted({*settings[0], *settings[1]}) if settings[0].get(n) != settings[1].get(n)]
    side_by_side(
        {
            "status": (a.status, b.status),
            "started": (show.when(a.started_at), show.when(b.started_at)),
            "attempts": both("attempts"),
            "passed": both("passed"),
            "verified kernels": both("verified_kernels"),
            "best speed-up": (gain(rows[0]), gain(rows[1])),
            "work": both("seconds", "{:,.0f} s"),
            "cost": both("cost_usd", "${:,.4f}"),
            **{f"setting {n}": (str(settings[0].get(n, "")), str(settings[1].get(n, ""))) for n in differing},
        },
        (a.id, b.id),
    )
    if len(first) and len(second):
        both_curves = pd.concat(
            [figures.progress(first, f"A · {a.id}"), figures.progress(second, f"B · {b.id}")], ignore_index=True
        )
        picture.draw(trends.progress(both_curves), key="progress")
        st.caption("A point is a passed attempt, a line the best confirmed so far, over the better of both baselines.")
    left, right = st.columns(2, gap="large")
    for column, run, attempts in ((left, a, first), (right, b, second)):
        with column:
            st.page_link(
                "views/run.py", label=show.plain(run.id), query_params={"id": run.id}, icon=":material/timeline:"
            )
            if len(attempts):
                picture.draw(trends.outcomes(figures.outcome_counts(attempts)), key=f"outcomes-{run.id}")


def _settings(run: Run) -> dict[str, object]:
    try:
        found = json.loads(run.settings)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def ask() -> tuple[str, str]:
    left, right = st.columns(2)
    told = "A kernel or a run: its id, or enough of a kernel's to know it by"
    a = left.text_input("A", key="a", bind="query-params", placeholder="k_1f0c…", help=told)
    b = right.text_input("B", key="b", bind="query-params", placeholder="k_77ab…", help=told)
    return a.strip(), b.strip()


def choose_second(kernel: ArchivedKernel) -> None:
    """List the other kernels of the same problem, to be clicked."""
    st.caption("Choose what to compare it with: the kernels of the same problem.")
    others = data.lists().ranked(kernel.problem_id)
    for other in others[others["id"] != kernel.id].head(10).itertuples():
        st.page_link(
            "views/compare.py",
            label=show.plain(f"{show.short(other.id)} · {show.times(other.speedup)} · {other.idea}"),
            query_params={"a": kernel.id, "b": other.id},
        )


page.head("Compare")
names = ask()
found_kernels = [data.kernel(name) if name else None for name in names]
found_runs = [data.run(name) if name else None for name in names]
match (*found_kernels, *found_runs):
    case (ArchivedKernel() as one, ArchivedKernel() as two, _, _):
        kernels(one, two)
    case (_, _, Run() as one_run, Run() as two_run):
        runs(one_run, two_run)
    case _:
        for name, kernel, run in zip(names, found_kernels, found_runs, strict=True):
            if name and kernel is None and run is None:
                st.warning(
                    f"There is no kernel or run {show.plain(name)} here, or several kernels begin so.",
                    icon=":material/search_off:",
                )
        if isinstance(found_kernels[0], ArchivedKernel) and not names[1]:
            choose_second(found_kernels[0])
        else:
            st.info(
                "Give two kernels or two runs by their ids. Pages of kernels and runs link to here.",
                icon=":material/compare_arrows:",
            )
