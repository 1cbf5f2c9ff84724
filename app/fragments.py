"""Small pieces of HTML that the explorer and pages without scripts share: a kernel's head, its checks, its family.

Comes in: records. Goes out: markup in which every value is escaped. Knows nothing of archives or of Streamlit's pages.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from rag_kernels.app import values
from rag_kernels.app.descent import Source
from rag_kernels.archive.queries import Evaluation, LineageGraph, LineageNode
from rag_kernels.archive.records import ArchivedKernel
from rag_kernels.eval.records import MORE_MEMORY, Judged, Measurement, Passed, Ratio
from rag_kernels.eval.told import told_ratio
from rag_kernels.eval.trial.check_words import meaning

DIFF_LINE = 32  # characters of markup around a line
Address = Callable[[str], str]  # of a kernel, by its id; empty where there is no page of it


def kernel_address(kernel_id: str) -> str:
    """Return the explorer's page of a kernel."""
    return f"kernel?id={quote(kernel_id)}"


def best_measured(evaluations: Sequence[Evaluation]) -> tuple[Judged, Passed] | None:
    """Return the judgement that speaks for a kernel: the first that passed; the most trusted come first."""
    return next(((e.judged, e.judged.verdict) for e in evaluations if isinstance(e.judged.verdict, Passed)), None)


def told_over(m: Measurement) -> tuple[str, Ratio]:
    """Return the baseline that the one number of a measurement is over, and its ratio."""
    both = [("eager", m.speedup_eager)]
    both += [("torch.compile", m.speedup_compile)] if m.speedup_compile is not None else []
    return min(both, key=lambda named: told_ratio(m, named[1]))


def kernel_head(kernel: ArchivedKernel, evaluations: Sequence[Evaluation]) -> str:
    """Return the line that stays at the top: the one number, its interval, against what, and on which device."""
    measured = best_measured(evaluations)
    if measured is None:
        return f'<div class="rk-head"><b class="rk-big">{values.DASH}</b><span>Not timed on any device.</span></div>'
    judged, passed = measured
    m = passed.measurement
    over, ratio = told_over(m)
    if kernel.trust == "claimed":
        word = "claimed, not judged here"
    else:
        word = f"{passed.trust} in fresh processes" if m.confirmed else "verified, not confirmed"
        if m.candidate_extra_bytes is not None and MORE_MEMORY in passed.labels:
            word += f", {m.candidate_extra_bytes / 2**20:,.0f} MiB beside its tensors"
    parts = [
        f'<b class="rk-big">{values.times(told_ratio(m, ratio), at_least=not m.confirmed)}</b>',
        f"<span>as fast as {over}<br><small>{ratio.low:.2f} to {ratio.high:.2f} in 95 %</small></span>",
        f"<span>{word}<br><small>{escape(judged.device.name)}</small></span>",
        f"<span>{values.duration(m.candidate_us)} a call<br><small>{_others(m)}</small></span>",
    ]
    return f'<div class="rk-head">{"".join(parts)}</div>'


def elsewhere(evaluations: Sequence[Evaluation]) -> str:
    """Return a line for each other device that a kernel was timed on, with its one number there; empty without any."""
    best: dict[str, tuple[Evaluation, Measurement]] = {}
    for one in evaluations:
        if isinstance(one.judged.verdict, Passed) and one.trust != "claimed":
            best.setdefault(one.judged.device.key, (one, one.judged.verdict.measurement))
    first = best_measured(evaluations)
    rows = []
    for key, (one, m) in best.items():
        if first is not None and key == first[0].device.key:
            continue
        over, ratio = told_over(m)
        told = values.times(told_ratio(m, ratio), at_least=not m.confirmed)
        rows.append(
            f"<li><strong>{told}</strong> over {over}, {one.trust} <small>{escape(one.judged.device.name)}</small></li>"
        )
    return f'<ul class="rk-elsewhere" aria-label="On other devices">{"".join(rows)}</ul>' if rows else ""


def _others(m: Measurement) -> str:
    told = [f"eager {values.duration(m.eager_us)}"]
    told += [f"compile {values.duration(m.compile_us)}"] if m.compile_us is not None else []
    return ", ".join(told)


def best_on(row: Mapping[str, Any], address: Address = kernel_address) -> str:
    """Return the best kernel of a problem on one device, as a list shows it: a row of `app.columns.LISTED`."""
    sign = "≥ " if row["at_least"] else ""
    rows = (
        ("over eager", f"{sign}{values.times(_known(row['speedup_eager']))}"),
        ("over torch.compile", f"{sign}{values.times(_known(row['speedup_compile']))}"),
        ("time of a call", _time(row["ms"])),
        ("eager", _time(row["eager_ms"])),
        ("torch.compile", _time(row["compile_ms"])),
        ("of the floor", values.DASH if _known(row["floor_percent"]) is None else f"{row['floor_percent']:.0f} %"),
    )
    cells = "".join(f"<dt>{name}</dt><dd>{told}</dd>" for name, told in rows)
    link = f'<a href="{escape(address(row["id"]))}">{escape(values.short(row["id"]))}</a>'
    return (
        f'<section class="rk-best"><small>{escape(row["device"])}</small>'
        f'<p><b class="rk-big">{sign}{values.times(_known(row["speedup"]))}</b> {link} '
        f"<small>{'not confirmed' if row['at_least'] else 'confirmed'}</small></p><dl>{cells}</dl></section>"
    )


def _known(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _time(ms: Any) -> str:
    known = _known(ms)
    return values.duration(None if known is None else 1e3 * known)


def checklist(passed: Passed) -> str:
    """Return what was checked and what was remarked, each with a word of explanation."""
    rows = [("✓", check, "rk-held") for check in passed.checks]
    rows += [("!", values.brief(label), "rk-remark") for label in passed.labels]
    items = [
        f'<li class="{kind}"><b aria-hidden="true">{sign}</b><span><strong>{escape(name)}</strong> '
        f"<small>{escape(meaning(name))}</small></span></li>"
        for sign, name, kind in rows
    ]
    return f'<ul class="rk-checks">{"".join(items)}</ul>'


def tree(family: LineageGraph, focus: str, address: Address) -> str:
    """Return the family of a kernel as nested lists, sources above what was made of them."""
    nodes = {node.id: node for node in family.nodes}
    below: dict[str, list[tuple[str, str]]] = {}
    for edge in family.edges:
        below.setdefault(edge.source, []).append((edge.child, edge.relation))
    children = {edge.child for edge in family.edges}
    shown: set[str] = set()

    def item(name: str, relation: str) -> str:
        node = nodes.get(name)
        again = name in shown
        shown.add(name)
        label = _node(node, name, address, here=name == focus, relation=relation)
        if again:
            return f"<li>{label} <small>(as above)</small></li>"
        rest = "".join(item(child, how) for child, how in sorted(below.get(name, ())))
        return f"<li>{label}{f'<ul>{rest}</ul>' if rest else ''}</li>"

    roots = [name for name in nodes if name not in children] or [focus]
    told = "Where this kernel comes from and what came of it"
    return f'<ul class="rk-tree" aria-label="{told}">{"".join(item(name, "") for name in roots)}</ul>'


def _node(node: LineageNode | None, name: str, address: Address, *, here: bool, relation: str) -> str:
    how = f"<small>{escape(relation)}</small> " if relation else ""
    if node is None or node.backend is None:
        return f"{how}{escape(name)}"
    gain = values.times(node.speedup) if node.speedup is not None else "" if node.trust else "failed"
    told = f"{escape(node.problem_name)} {escape(values.short(node.id))}"
    link = address(node.id) if node.trust and not here else ""
    named = f"<strong>{told}</strong>" if here else f'<a href="{escape(link)}">{told}</a>' if link else told
    idea = f" <small>{escape(node.idea[:120])}</small>" if node.idea else ""
    return f"{how}{named} {gain}{idea}"


def difference(old: Source | ArchivedKernel, new: ArchivedKernel, chars: int) -> str:
    """Return what changed from one source to another, with a colour and a sign for each line, cut after so many."""
    lines = list(
        difflib.unified_diff(
            old.source.splitlines(),
            new.source.splitlines(),
            values.short(old.id),
            values.short(new.id),
            lineterm="",
            n=3,
        )
    )
    kinds: Mapping[str, str] = {"+": "rk-added", "-": "rk-removed", "@": "rk-where"}
    drawn, room = [], chars
    for number, line in enumerate(lines):
        room -= len(line) + DIFF_LINE
        if room < 0:
            drawn.append(f'<span class="rk-where">{len(lines) - number:,} more lines</span>')
            break
        drawn.append(f'<span class="{kinds.get(line[:1], "rk-same")}">{escape(line) or " "}</span>')
    return f'<pre class="rk-diff" tabindex="0">{"".join(drawn) or "The sources are the same."}</pre>'
