"""Say what an archive holds and what its runs are doing, in words and small pictures.

Comes in: counts and runs. Goes out: sentences, and markup in which every value is escaped. Knows nothing of archives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from rag_kernels.app import values
from rag_kernels.app.figures import Burn
from rag_kernels.archive.browse import Holdings, Pulse
from rag_kernels.archive.records import Run
from rag_kernels.text.wording import count

QUIET_S = 1200.0  # a run without an event for so long may have been killed


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Hold a run as a reader wants to see it: what it did last, what it has used, and how far it got."""

    run: Run
    pulse: Pulse
    burns: Sequence[Burn]
    attempts: int
    best: float | None
    at_least: bool
    picture: str


def holdings(found: Holdings) -> str:
    """Return what there is as a sentence: "167 kernels: 3 proven here, 164 from the starter archive"."""
    parts = (
        (found.here, "proven here"),
        (found.elsewhere, "proven by others whose judge you trust"),
        (found.starter, "from the starter archive"),
        (found.claimed, "imported and not judged here"),
        (found.compiled, "only compiled, for a device that was not there"),
    )
    told = ", ".join(f"{number:,} {what}" for number, what in parts if number)
    rest = f"; {found.retracted:,} more retracted" if found.retracted else ""
    return f"{found.kernels:,} kernel{'' if found.kernels == 1 else 's'}{f': {told}' if told else ''}{rest}"


def to_prove(found: Holdings) -> bool:
    """Return whether there are kernels that nobody has judged here."""
    return bool(found.starter or found.claimed or found.elsewhere or found.compiled)


def ago(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "at an unknown time"
    seconds = max(0.0, (now - moment).total_seconds())
    return f"{seconds:.0f} s ago" if seconds < 100 else f"{values.span(seconds)} ago"


def last_event(pulse: Pulse) -> tuple[str, datetime | None]:
    """Return what a run did last, and when."""
    attempt, call = pulse.attempt, pulse.call
    if call is not None and (attempt is None or call.created_at > attempt.created_at):
        what = f"{call.model} failed at `{call.purpose}`: {call.error}" if call.error else f"{call.model} answered"
        return f"{what} ({call.purpose})" if not call.error else what, values.moment(call.created_at)
    if attempt is None:
        return "nothing yet", None
    why = f": {attempt.reason}" if attempt.reason else ""
    return f"attempt {attempt.number} {values.words(attempt.verdict)}{why}", values.moment(attempt.created_at)


def running(runs: Sequence[UnderWay], now: datetime | None = None) -> str:
    """Return a card for each run: what it is, what it did last, what it has used, and its speed-ups against time."""
    now = now or datetime.now(UTC)
    return f'<div class="rk-now">{"".join(_card(one, now) for one in runs)}</div>'


def _card(one: UnderWay, now: datetime) -> str:
    event, at = last_event(one.pulse)
    since = at or values.moment(one.run.started_at)
    quiet = since is not None and (now - since).total_seconds() > QUIET_S
    idea = one.pulse.attempt.idea if one.pulse.attempt else ""
    tried = f"<p><small>Last idea</small> {escape(idea)}</p>" if idea else ""
    warning = (
        f"<p><strong>Nothing for {values.span((now - since).total_seconds())}.</strong> If it was killed, the same "
        "command with <code>--resume</code> goes on.</p>"
        if quiet and since is not None
        else ""
    )
    told = values.times(one.best, at_least=one.at_least)
    best = f"best {'so far' if one.at_least else 'confirmed'} <strong>{told}</strong>"
    reached = best if one.best is not None else "no kernel yet"
    head = (
        f'<h3><a href="run?id={escape(one.run.id)}">{escape(one.run.command)} {escape(one.run.problem_name)}</a></h3>'
        f"<p>{count(one.attempts, 'attempt')}, {reached}</p>"
        f"<p><small>{ago(since, now)}</small> {escape(event)}</p>{tried}{warning}"
    )
    budgets = "".join(f"<p><small>{escape(b.name)}</small> {_used(b)}</p>" for b in one.burns)
    return f"<article><div>{head}{budgets}</div><div>{one.picture}</div></article>"


def _used(burn: Burn) -> str:
    used = values.amount(burn.name, burn.used)
    if not burn.limit:
        return escape(used)
    share = min(1.0, burn.used / burn.limit)
    meter = f'<meter min="0" max="1" value="{share:.3f}"></meter> '
    return f"{meter}{escape(used)} of {escape(values.amount(burn.name, burn.limit))}"
