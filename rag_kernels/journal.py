"""The journal of a run: what its writer was told each time it was asked, and what it drafted, on disk before use.

Comes in: briefs and drafts. Goes out: the same again, for a run that was killed, and for a replay. What was cut short
is asked as it was the first time, so that its prompts are the same and its replies can be taken from the archive.
Knows nothing of how kernels are written and judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from archive.protocol import Archive
from archive.records import Attempt, BriefRecord, LLMCall
from eval import codec
from rag_kernels.budget import Spent
from rag_kernels.records import Brief, Draft


@dataclass(frozen=True, slots=True)
class Told:
    """A brief by its number in the run. `drafts` is None while the writer has not said all."""

    number: int
    brief: Brief
    drafts: tuple[Draft, ...] | None = None


class Journal:
    """Writes down what one run asks and hears. Numbers are given in one thread; all else may be in others."""

    def __init__(self, archive: Archive, run_id: str) -> None:
        self._archive = archive
        self._run_id = run_id
        self.told = read_journal(archive, run_id)
        self._last = max((told.number for told in self.told), default=0)

    @property
    def asked(self) -> int:
        """How many drafts were asked for before."""
        return sum(told.brief.width for told in self.told)

    def left(self) -> list[Told]:
        """What was asked and not answered whole, or not judged whole, when the run was cut short."""
        judged = {attempt.candidate.id for attempt in self._archive.attempts(self._run_id)}
        return [t for t in self.told if t.drafts is None or any(d.candidate.id not in judged for d in t.drafts)]

    def number(self, brief: Brief) -> Told:
        self._last += 1
        return Told(self._last, brief)

    def ask(self, told: Told) -> None:
        """Note a brief before the writer is told."""
        text = codec.dumps(replace(told.brief, attempts=()))
        self._archive.record_brief(BriefRecord(self._run_id, told.number, text, len(told.brief.attempts)))

    def answer(self, told: Told, drafts: Sequence[Draft]) -> Told:
        """Note all that the writer drafted."""
        self._archive.record_drafts(self._run_id, told.number, codec.dumps(tuple(drafts)))
        return replace(told, drafts=tuple(drafts))


def read_journal(archive: Archive, run_id: str) -> list[Told]:
    """All that a run asked and heard, in order."""
    attempts = archive.attempts(run_id)
    return [_read(row, attempts) for row in archive.briefs(run_id)]


def _read(row: BriefRecord, attempts: Sequence[Attempt]) -> Told:
    brief: Brief = replace(codec.loads(row.brief), attempts=tuple(attempts[: row.attempts_seen]))
    return Told(row.number, brief, None if row.drafts is None else codec.loads(row.drafts))


def replies_at_hand(archive: Archive, run_id: str) -> list[LLMCall]:
    """The calls of a run that came for what it asked last, and that nothing was made of when it was cut short."""
    told = archive.briefs(run_id)
    open_since = [row.calls_seen for row in told if row.drafts is None]
    if not open_since:
        return []
    answered = [draft for row in told if row.drafts is not None for draft in codec.loads(row.drafts)]
    used = {call_id for draft in answered for call_id in draft.call_ids}
    return [call for call in archive.calls(run_id)[min(open_since) :] if call.id not in used]


def spent_before(archive: Archive, run_id: str) -> Spent:
    """What a run had used when it stopped, the rounds that it had begun among it."""
    attempts, calls = archive.attempts(run_id), archive.calls(run_id)
    rounds = [attempt.round for attempt in attempts] + [told.brief.round for told in read_journal(archive, run_id)]
    return Spent(
        rounds=max(rounds, default=0),
        seconds=sum(a.seconds for a in attempts),
        tokens=sum(c.prompt_tokens + c.completion_tokens for c in calls),
        usd=sum(c.cost_usd or 0.0 for c in calls),
        calls=len(calls),
        unpriced_calls=sum(c.cost_usd is None for c in calls),
    )
