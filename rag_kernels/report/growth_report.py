"""The report of a growth: what was won, where the money went, what failed and why.

Comes in: a `GrowthRun` and its archive. Goes out: Markdown and HTML of the same tables. Everything in it is read from
the archive, so that a report can be made of a growth that was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path

from rag_kernels.archive.records import Attempt, LLMCall
from rag_kernels.eval.records import Passed, verdict_name
from rag_kernels.eval.told import told
from rag_kernels.long_runs.growth import Grown, GrowthRun, calls_of
from rag_kernels.report.console import speeds
from rag_kernels.report.json_rows import judged_row
from rag_kernels.run.session import Session
from rag_kernels.run.standings import standing, winner
from rag_kernels.text.wording import count, money, percent, shorten, times

EXAMPLE_CHARS = 100
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{text-align:left;padding:.25em .8em;border-bottom:1px solid #ccc}"
)


@dataclass(frozen=True, slots=True)
class Section:
    """Hold a heading, a sentence, and a table (none when there are no rows)."""

    title: str
    text: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Worked:
    """Hold what the growth made of one problem."""

    name: str
    before: Attempt | None  # the best of earlier nights of the growth
    best: Attempt | None
    of_this_run: tuple[Attempt, ...]
    calls: tuple[LLMCall, ...]


def write_report(growth_run: GrowthRun, session: Session, done: Sequence[Grown], folder: Path) -> list[Path]:
    """Write `<growth run>.md` and `<growth run>.html` into the folder, over those of an earlier moment."""
    folder.mkdir(parents=True, exist_ok=True)
    title, sections = (
        f"Growth of {growth_run.run.started_at[:16].replace('T', ' ')} UTC",
        report(growth_run, session, done),
    )
    texts = {".md": markdown(title, sections), ".html": html(title, sections)}
    paths = [folder / f"{growth_run.run.id}{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        staged = path.with_name(f".{path.name}.tmp")
        staged.write_text(text)
        staged.replace(path)
    return paths


def report(growth_run: GrowthRun, session: Session, done: Sequence[Grown]) -> list[Section]:
    """Return the sections of a report: what was won, what was spent, what failed."""
    worked = [_worked(run_id, growth_run, session) for run_id in (run.id for run in growth_run.runs.values())]
    worked = [one for one in worked if one.of_this_run or one.calls]
    return [_won(worked), _spent(worked, calls_of(growth_run, session)), _failed(worked, done)]


def _worked(run_id: str, growth_run: GrowthRun, session: Session) -> Worked:
    attempts = session.archive.attempts(run_id)
    of_this_run = tuple(a for a in attempts if growth_run.is_of(a.created_at))
    before = winner([a for a in attempts if not growth_run.is_of(a.created_at)])
    calls = tuple(c for c in session.archive.calls(run_id) if growth_run.is_of(c.created_at))
    name = next((run.problem_name for run in growth_run.runs.values() if run.id == run_id), run_id)
    return Worked(name, before, winner(attempts), of_this_run, calls)


def _won(worked: Sequence[Worked]) -> Section:
    """Return the section of problems whose best kernel was found in this growth run."""
    ids = {one.name: {a.id for a in one.of_this_run} for one in worked}
    won = [one for one in worked if one.best is not None and one.best.id in ids[one.name]]
    won.sort(key=lambda one: -_speedup(one.best))
    columns = ("problem", "kernel", "before", "vs eager", "vs compile", "of floor", "kind", "confirmed", "cost")
    faster = sum(_speedup(one.best) > 1 for one in won)
    text = f"{count(len(won), 'problem')} of {len(worked)} got a better kernel; {faster} of them beat PyTorch."
    return Section("What was won", text, columns, tuple(_won_row(one) for one in won))


def _won_row(one: Worked) -> tuple[str, ...]:
    assert one.best is not None
    row = judged_row(one.best.judged)
    return (
        one.name,
        one.best.candidate.id,
        _said(one.before),
        *speeds(row),
        percent(row["floor_fraction"]),
        row["label"] or "",
        "yes" if row["confirmed"] else "no",
        money(_usd(one.calls)),
    )


def _spent(worked: Sequence[Worked], calls: Sequence[LLMCall]) -> Section:
    """Return the section of costs, by problem and by model."""
    seconds = sum(a.seconds for one in worked for a in one.of_this_run)
    tokens = sum(c.prompt_tokens + c.completion_tokens for c in calls)
    text = f"{count(len(calls), 'call')}, {tokens} tokens, {money(_usd(calls))}; {seconds / 3600:.1f} h of work."
    rows = [
        _cost_row(one.name, one.calls, one.of_this_run) for one in sorted(worked, key=lambda one: -_known(one.calls))
    ]
    for model in sorted({call.model for call in calls}):
        attempts = [a for one in worked for a in one.of_this_run if a.model == model]
        rows.append(_cost_row(f"all by {shorten(model, 60)}", [c for c in calls if c.model == model], attempts))
    columns = ("what", "calls", "failed calls", "tokens", "cost", "candidates", "passed", "hours")
    return Section("Where the money went", text, columns, tuple(rows))


def _cost_row(name: str, calls: Sequence[LLMCall], attempts: Sequence[Attempt]) -> tuple[str, ...]:
    passed = standing(attempts)
    return (
        name,
        str(len(calls)),
        str(sum(1 for call in calls if call.error)),
        str(sum(c.prompt_tokens + c.completion_tokens for c in calls)),
        money(_usd(calls)),
        str(len({a.candidate.id for a in attempts})),
        str(len(passed)),
        f"{sum(a.seconds for a in attempts) / 3600:.2f}",
    )


def _failed(worked: Sequence[Worked], done: Sequence[Grown]) -> Section:
    """Return the section of problems that could not be worked on, and of causes, the most frequent first."""
    rows = [(grown.name, "problem", "1", shorten(grown.failure, EXAMPLE_CHARS)) for grown in done if grown.failure]
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for one in worked:
        for attempt in one.of_this_run:
            verdict = attempt.judged.verdict
            if not isinstance(verdict, Passed):
                kinds[verdict_name(verdict)] += 1
                examples.setdefault(verdict_name(verdict), f"{one.name}: {verdict.reason}")
        for call in one.calls:
            if call.error:
                kinds["call failed"] += 1
                examples.setdefault("call failed", call.error)
    rows += [("all", kind, str(n), shorten(examples[kind], EXAMPLE_CHARS)) for kind, n in kinds.most_common()]
    text = "Nothing failed." if not rows else "Candidates that fail are part of the search; problems need a look."
    return Section("What failed and why", text, ("where", "what", "times", "for example"), tuple(rows))


def _usd(calls: Sequence[LLMCall]) -> float | None:
    costs = [call.cost_usd for call in calls]
    return None if any(cost is None for cost in costs) else _known(calls)


def _known(calls: Sequence[LLMCall]) -> float:
    return sum(call.cost_usd or 0.0 for call in calls)


def _speedup(attempt: Attempt | None) -> float:
    said = told(attempt.judged) if attempt else None
    return said.speedup if said else 0.0


def _said(attempt: Attempt | None) -> str:
    said = told(attempt.judged) if attempt else None
    return times(said.speedup, at_least=not said.confirmed) if said else "-"


def markdown(title: str, sections: Sequence[Section]) -> str:
    """Return a report as Markdown."""
    lines = [f"# {title}", ""]
    for section in sections:
        lines += [f"## {section.title}", "", section.text, ""]
        if section.rows:
            lines += [f"| {' | '.join(section.columns)} |", "|---" * len(section.columns) + "|"]
            lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in section.rows]
            lines.append("")
    return "\n".join([*lines, f"Written {datetime.now():%Y-%m-%d %H:%M}.", ""])


def html(title: str, sections: Sequence[Section]) -> str:
    """Return a report as one HTML file without scripts or links, to be mailed or opened anywhere."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{escape(title)}</h1>")
    for section in sections:
        parts.append(f"<h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>")
        if section.rows:
            head = "".join(f"<th>{escape(name)}" for name in section.columns)
            body = "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) for row in section.rows)
            parts.append(f"<table><thead><tr>{head}</thead><tbody>{body}</tbody></table>")
    parts.append(f"<p>Written {datetime.now():%Y-%m-%d %H:%M}.")
    return "\n".join(parts) + "\n"
