"""The pages of the site: what stands on the first one, on lists, and on those of a problem and a kernel.

Comes in: records and small tables. Goes out: HTML text. Knows nothing of archives and files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from rag_kernels.app import figures, fragments, now, pictures, values
from rag_kernels.app.descent import Source
from rag_kernels.app.exports import File, snippet
from rag_kernels.app.lineage import nearby
from rag_kernels.app.site.markup import bounded, code, link, page, pager, section, table
from rag_kernels.archive.browse import Holdings
from rag_kernels.archive.queries import Evaluation, LineageGraph
from rag_kernels.archive.records import ArchivedKernel
from rag_kernels.eval.machine.device import floor_us
from rag_kernels.eval.records import Device, FunctionalProblem, Passed

NOTES = 12  # of a verdict
BOARD = 60  # kernels of a leaderboard, and marks of a chart
RELATED = 0.6  # of a block of code: the diff takes that much of the source's room


def kernel_page(up: str) -> Callable[[str], str]:
    """Return how the page of a kernel is reached from a page."""
    return lambda kernel_id: f"{up}kernel/{kernel_id}.html"


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Hold all that a kernel's page shows."""

    kernel: ArchivedKernel
    evaluations: Sequence[Evaluation]
    sources: Sequence[Source]
    family: LineageGraph
    files: Sequence[File]
    others: Sequence[str]  # formats of `rag-kernels export` that are no text


# --- lists


def first(
    held: Holdings, wins: pd.DataFrame, best: pd.DataFrame, summary: figures.Summary, kernels: int, about: str
) -> str:
    """Return the first page: what there is, what came last, what is fastest."""
    facts = [
        f"{summary.problems:,} problems, {summary.attempts:,} attempts",
        f"geometric mean of the best kernels {values.times(summary.mean_speedup)}",
        f"best {values.times(summary.best_speedup, at_least=summary.best_at_least)}",
    ]
    body = (
        f'<p class="lead">{escape(now.holdings(held))}.</p>'
        f"<p>{' · '.join(facts)}. Speed-ups are over the better of eager PyTorch and <code>torch.compile</code>; "
        "≥ marks one that nothing confirmed: the lower end of its interval.</p>"
        f'<p class="jump">{link("kernels-1.html", f"All {kernels:,} kernels")} '
        f"{link('problems-1.html', 'All problems')}</p>"
        + section("Newest confirmed wins", kernel_table(wins, "") if len(wins) else "")
        + section("Fastest, of each problem and device", kernel_table(best, "") if len(best) else "")
    )
    return page("Archive", body, up="", about=about)


def kernel_list(rows: pd.DataFrame, here: int, pages: int, total: int, about: str) -> str:
    body = (
        f"<p>{total:,} kernels, the fastest that are ranked first.</p>{pager('kernels', here, pages)}"
        f"{kernel_table(rows, '')}{pager('kernels', here, pages)}"
    )
    return page("Kernels", body, up="", about=about)


def problem_list(rows: pd.DataFrame, here: int, pages: int, total: int, about: str) -> str:
    heads = [("problem", False), ("family", False), ("operators", False), ("kernels", True), ("attempts", True)]
    heads += [("best speed-up", True), ("vs eager", True), ("vs compile", True), ("devices", False)]
    cells = [
        [
            link(f"problem/{row['id']}.html", row["problem"]),
            escape(row["family"] or values.DASH),
            escape(row["operators"]),
            f"{row['kernels']:,}",
            f"{row['attempts']:,}",
            *(values.times(_known(row[name])) for name in ("speedup", "eager", "over_compile")),
            escape(row["devices"] or values.DASH),
        ]
        for row in rows.to_dict("records")
    ]
    lines = f"<p>{total:,} problems, the greatest speed-up first.</p>"
    body = f"{lines}{pager('problems', here, pages)}{table(heads, cells)}{pager('problems', here, pages)}"
    return page("Problems", body, up="", about=about)


def kernel_table(rows: pd.DataFrame, up: str, *, problem: bool = True) -> str:
    heads = [("kernel", False), *([("problem", False)] if problem else []), ("speed-up", True), ("vs eager", True)]
    heads += [("vs compile", True), ("time", True), ("of floor", True), ("trust", False), ("device", False)]
    heads += [("idea", False)]
    cells = [
        [
            link(kernel_page(up)(row["id"]), values.short(row["id"])),
            *([link(f"{up}problem/{row['problem_id']}.html", row["problem"])] if problem else []),
            *(_gain(row, name) for name in ("speedup", "speedup_eager", "speedup_compile")),
            _ms(row["ms"]),
            values.DASH if _known(row["floor_percent"]) is None else f"{row['floor_percent']:.0f} %",
            escape(_standing(row)),
            escape(row["device"] or values.DASH),
            escape(row["idea"]),
        ]
        for row in rows.to_dict("records")
    ]
    return table(heads, cells)


def _standing(row: dict[Any, Any]) -> str:
    return "retracted" if row["retracted"] else "stale" if row["stale"] else str(row["trust"])


def _gain(row: dict[Any, Any], name: str) -> str:
    known = _known(row[name])
    return values.DASH if known is None else f"{'≥ ' if row['at_least'] else ''}{values.times(known)}"


def _known(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _ms(value: Any) -> str:
    known = _known(value)
    return values.DASH if known is None else values.duration(1e3 * known)


# --- one problem


def problem(
    found: FunctionalProblem, ranked: pd.DataFrame, attempts: pd.DataFrame, devices: Sequence[Device], about: str
) -> str:
    """Return a problem's page: the best kernel of each device side by side, boards, charts, what it computes."""
    up, name = "../", found.problem.name
    address = kernel_page(up)
    firsts = ranked.drop_duplicates("device").to_dict("records")
    cards = "".join(f'<div class="card">{fragments.best_on(row, address)}</div>' for row in firsts)
    boards, roofs = [], []
    for device, board in ranked.groupby("device", sort=True):
        boards.append(f"<h3>{escape(str(device))}</h3>{_board(figures.board(board).head(BOARD), up)}")
        known = next((d for d in devices if d.name == device), None)
        roof = pictures.roofline(known, found.features, board.head(BOARD), address) if known is not None else ""
        roofs += [f"<div><h3>{escape(str(device))}</h3>{roof}</div>"] if roof else []
    tried = pictures.progress(attempts, None)
    features = found.features
    work = features.flops + features.pointwise_flops
    facts = [
        f"{values.quantity(work, 'FLOP')} and {values.quantity(features.bytes_moved, 'B')} that must be moved a call",
        *(f"physical floor {values.duration(floor_us(features, d))} on {escape(d.name)}" for d in devices),
    ]
    words = " · ".join(facts)

    def make(chars: int) -> str:
        body = (
            f"<p>{words}</p>"
            + (f'<div class="grid">{cards}</div>' if cards else "<p>No kernel is ranked on it yet.</p>")
            + section("Leaderboard", "".join(boards))
            + section("Roofline", f'<div class="grid">{"".join(roofs)}</div>{ROOF_WORDS}' if roofs else "")
            + section("Speed-up against time", f"{tried}{PROGRESS_WORDS}" if tried else "")
            + section("The module as given", code(found.problem.source, chars))
            + section("The same as one call", code(found.source, chars))
        )
        return page(name, body, up=up, trail=[("Problems", f"{up}problems-1.html")], about=about)

    return bounded(make)


ROOF_WORDS = (
    "<p><small>The filled diamond is the best kernel, rings are the others; eager is a circle, torch.compile a square."
    "</small></p>"
)
PROGRESS_WORDS = (
    "<p><small>A point is a passed attempt, a ring one that nothing confirmed, the line the best so far.</small></p>"
)


def _board(rows: pd.DataFrame, up: str) -> str:
    heads = [("place", True), ("kernel or baseline", False), ("written by", False), ("time", True), ("speed-up", True)]
    heads += [("vs eager", True), ("vs compile", True), ("trust", False), ("idea", False)]
    cells = [
        [
            values.DASH if _known(row["place"]) is None else f"{row['place']:.0f}",
            link(kernel_page(up)(row["id"]), values.short(row["id"])) if row["id"] else escape(row["entrant"]),
            escape(row["entrant"]) if row["id"] else values.DASH,
            _ms(row["ms"]),
            *(_gain(row, name) for name in ("speedup", "speedup_eager", "speedup_compile")),
            escape(row["trust"] or values.DASH),
            escape(row["idea"]),
        ]
        for row in rows.to_dict("records")
    ]
    return table(heads, cells)


# --- one kernel


def kernel(facts: KernelFacts, about: str) -> str:
    """Return a kernel's page: the head that stays, what is known of it, and how to use it."""
    k, up = facts.kernel, "../"
    tags = [k.trust, k.backend, f"{k.tier} tier", k.label, f"{k.precision} precision" if k.precision else ""]
    tags += ["retracted" if k.retracted else "", "stale" if k.stale else "", *map(values.brief, k.labels)]
    shown = "".join(f"<span>{escape(tag)}</span>" for tag in tags if tag.strip())
    against = [k.retracted and f"Retracted: {k.retracted}", k.stale and f"It no longer holds: {k.stale}"]
    warnings = "".join(f"<p><strong>{escape(text)}</strong></p>" for text in against if text)
    made = f"{k.writer} · {k.model}" if k.model else k.writer
    about_it = f"{k.id} · by {made} · {values.when(k.created_at)}"
    own = next((file for file in facts.files if file.label == "kernel"), None)
    whole = f"{up}files/{own.name}" if own is not None else ""

    def make(chars: int) -> str:
        body = (
            fragments.kernel_head(k, facts.evaluations)
            + fragments.elsewhere(facts.evaluations)
            + (f"<p>{escape(k.idea)}</p>" if k.idea else "")
            + f'<p class="tags">{shown}</p>{warnings}<p><small>{escape(about_it)}</small></p>'
            + section("Use it", _use(facts, up), "use")
            + section("Source", code(k.source, chars, whole), "source")
            + section("What changed", _changes(facts, up, int(RELATED * chars)), "changes")
            + section("Timings", _timings(facts), "timings")
            + section("Verdict", _verdict(facts), "verdict")
            + section("Where it comes from", _family(facts, up), "lineage")
            + section("What it computes", code(k.functional_source, chars // 2), "computes")
        )
        trail = [("Problems", f"{up}problems-1.html"), (k.problem_name, f"{up}problem/{k.problem_id}.html")]
        title = f"{k.problem_name} · {values.short(k.id)}"
        return page(title, body, up=up, trail=trail, about=about)

    return bounded(make)


def _use(facts: KernelFacts, up: str) -> str:
    rows = "".join(
        f'<li><a href="{up}files/{escape(file.name)}" download>{escape(file.label)}</a> '
        f"<small>{escape(file.told)}</small></li>"
        for file in facts.files
    )
    module = next((file for file in facts.files if file.form == "module"), None)
    told = code(snippet(module.name), 4000) if module is not None else ""
    command = f"rag-kernels export {values.short(facts.kernel.id)} --as {facts.others[0] if facts.others else ''}"
    rest = f", {', '.join(facts.others[1:])}" if facts.others[1:] else ""
    more = f"<p><small>Also <code>{escape(command)}</code>{escape(rest)}.</small></p>" if facts.others else ""
    return f"<ul>{rows}</ul>{told}{more}"


def _changes(facts: KernelFacts, up: str, chars: int) -> str:
    if not facts.sources:
        return ""
    one = facts.sources[0]
    address = link(kernel_page(up)(one.id), f"{one.problem_name} {values.short(one.id)}")
    told = (
        f"<p>From {address} ({escape(one.relation)}): {one.share:.0%} of it stands there too, whatever the names.</p>"
    )
    return told + fragments.difference(one, facts.kernel, chars)


def _timings(facts: KernelFacts) -> str:
    parts, seen = [], set()
    for one in facts.evaluations:
        verdict = one.judged.verdict
        if not isinstance(verdict, Passed) or one.judged.device.key in seen:
            continue
        seen.add(one.judged.device.key)
        m = verdict.measurement
        kind = "confirmed by a second run in fresh processes" if m.confirmed else "not confirmed by a second run"
        drawn = pictures.pairs(m)
        parts.append(
            f"<h3>{escape(one.judged.device.name)}</h3>"
            f'<div class="grid"><div>{pictures.times(m)}</div><div>{pictures.gains(m)}</div></div>{drawn}'
            f"<p><small>{m.pairs} interleaved pairs, {kind}. Judged {values.when(one.created_at)}.</small></p>"
        )
    return "".join(parts)


def _verdict(facts: KernelFacts) -> str:
    measured = fragments.best_measured(facts.evaluations)
    if measured is None:
        return ""
    judged, passed = measured
    e = judged.environment
    notes = "".join(f"<li>{escape(note)}</li>" for note in passed.notes[:NOTES])
    where = f"{judged.device.name}; torch {e.torch}, {e.compiler}, judge {e.judge_version}"
    return (
        f"<p>Error ratio {passed.error_ratio:.3g}: 1 is as exact as PyTorch itself.</p>{fragments.checklist(passed)}"
        f"{f'<ul>{notes}</ul>' if notes else ''}<p><small>{escape(where)}</small></p>"
    )


def _family(facts: KernelFacts, up: str) -> str:
    near = nearby(facts.family, facts.kernel.id)
    if not near.edges:
        return ""
    left_out = len(facts.family.nodes) - len(near.nodes)
    more = f"<p><small>{left_out:,} more distant relatives are left out.</small></p>" if left_out else ""
    return fragments.tree(near, facts.kernel.id, kernel_page(up)) + more
