"""The journal of a run: what its writer was told in each round, and what it drafted, on disk before it is used.

Comes in: briefs and drafts. Goes out: the same again, for a run that was killed, and for a replay. A round that was
cut short is told to the writer as it was the first time, so that its prompts are the same and its replies can be taken
from the archive. Knows nothing of how kernels are written and judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from archive.protocol import Archive
from archive.records import Attempt, LLMCall, Round
from eval import codec
from rag_kernels.budget import Spent
from rag_kernels.records import Brief, Draft


@dataclass(frozen=True, slots=True)
class Told:
    """A recorded round. `drafts` is None when the writer had not said all."""

    brief: Brief
    calls_seen: int
    drafts: tuple[Draft, ...] | None


class Journal:
    """The rounds of one run, as recorded so far."""

    def __init__(self, archive: Archive, run_id: str) -> None:
        self._archive = archive
        self._run_id = run_id
        self._told = {told.brief.round: told for told in read_rounds(archive, run_id)}

    def brief(self, number: int) -> Brief | None:
        """What the writer was told in this round, if it began before."""
        return self._told[number].brief if number in self._told else None

    def begin(self, brief: Brief) -> Brief:
        calls_seen = len(self._archive.calls(self._run_id))
        text = codec.dumps(replace(brief, attempts=()))
        self._archive.begin_round(Round(self._run_id, brief.round, text, len(brief.attempts), calls_seen))
        return brief

    def drafts(self, number: int) -> tuple[Draft, ...] | None:
        """What the writer drafted in this round, if it had said all."""
        return self._told[number].drafts if number in self._told else None

    def end(self, number: int, drafts: Sequence[Draft]) -> Sequence[Draft]:
        self._archive.end_round(self._run_id, number, codec.dumps(tuple(drafts)))
        return drafts


def read_rounds(archive: Archive, run_id: str) -> list[Told]:
    attempts = archive.attempts(run_id)
    return [_read(row, attempts) for row in archive.rounds(run_id)]


def _read(row: Round, attempts: Sequence[Attempt]) -> Told:
    brief: Brief = replace(codec.loads(row.brief), attempts=tuple(attempts[: row.attempts_seen]))
    return Told(brief, row.calls_seen, None if row.drafts is None else codec.loads(row.drafts))


def replies_at_hand(archive: Archive, run_id: str) -> list[LLMCall]:
    """The calls of a run that no finished round has used: those of the round in which it was cut short."""
    rounds = archive.rounds(run_id)
    open_since = [row.calls_seen for row in rounds if row.drafts is None]
    if not open_since:
        return []
    ended = [draft for row in rounds if row.drafts is not None for draft in codec.loads(row.drafts)]
    used = {call_id for draft in ended for call_id in draft.call_ids}
    return [call for call in archive.calls(run_id)[min(open_since) :] if call.id not in used]


def spent_before(archive: Archive, run_id: str) -> Spent:
    """What a run had used when it stopped; a round counts as not begun until all its drafts are judged."""
    attempts, calls = archive.attempts(run_id), archive.calls(run_id)
    judged = {attempt.candidate.id for attempt in attempts}
    rounds = read_rounds(archive, run_id)
    left = [
        told.brief.round
        for told in rounds
        if told.drafts is None or any(draft.candidate.id not in judged for draft in told.drafts)
    ]
    last = max((attempt.round for attempt in attempts), default=0)
    return Spent(
        rounds=min(left) - 1 if left else max(last, len(rounds)),
        seconds=sum(a.seconds for a in attempts),
        tokens=sum(c.prompt_tokens + c.completion_tokens for c in calls),
        usd=sum(c.cost_usd or 0.0 for c in calls),
        calls=len(calls),
        unpriced_calls=sum(c.cost_usd is None for c in calls),
    )
