"""The journal of a run: each brief and its drafts, on disk before use.

Comes in: briefs and drafts. Goes out: the same again, for a run that was killed, and for a replay. What was cut short
is asked as it was the first time, so that its prompts are the same and its replies can be taken from the archive.
Knows nothing of how kernels are written and judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt, BriefRecord, LLMCall
from rag_kernels.budget import Spent
from rag_kernels.eval import codec
from rag_kernels.eval.records import LATER
from rag_kernels.records import Brief, Draft, Gained, Past


@dataclass(frozen=True, slots=True)
class Told:
    """Hold a brief by its number in the run. `drafts` is None until the writer has delivered all of them."""

    number: int
    brief: Brief
    drafts: tuple[Draft, ...] | None = None
    gained: Gained = field(default=Gained(), metadata=LATER)

    @property
    def failed(self) -> bool:
        """Return whether a model gave no answer, which says nothing about what could be written."""
        return any(not trial.answered for trial in self.gained.learnt.lost)


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold all that came of a brief."""

    drafts: tuple[Draft, ...]
    gained: Gained


class Journal:
    """Write down what one run asks and hears. Numbers are given in one thread; all else may be in others.

    `cut_short`: the run did not end by itself. Then what had failed by then has failed; else it is asked for again,
    since whoever goes on with a run that ended may have mended what it ended for.
    """

    def __init__(self, archive: Archive, run_id: str, *, cut_short: bool = False) -> None:
        self._archive = archive
        self._run_id = run_id
        self.cut_short = cut_short
        self.told = read_journal(archive, run_id)
        self._last = max((told.number for told in self.told), default=0)

    @property
    def asked(self) -> int:
        """Return how many drafts were asked for so far in the briefs on record."""
        return sum(told.brief.width for told in self.told)

    def left(self) -> list[Told]:
        """Return the briefs that were not answered whole, or not judged whole, when the run was cut short."""
        judged = {attempt.candidate.id for attempt in self._archive.attempts(self._run_id)}
        return [t for t in self.told if t.drafts is None or any(d.candidate.id not in judged for d in t.drafts)]

    def past(self) -> Past:
        """Return what a writer needs to resume the run as if nothing had happened."""
        gained, drafts = Gained(), list[Draft]()
        for told in self.told:
            gained = gained.plus(told.gained)
            drafts += told.drafts or ()
        known = {draft.candidate.id for draft in drafts}
        judged = [a for a in self._archive.attempts(self._run_id) if a.candidate.id not in known]
        calls = replies_at_hand(self._archive, self._run_id)
        left = [call for call in calls if self.cut_short or not call.given_up]
        return Past(gained, tuple(drafts), tuple(judged), tuple(left))

    def number(self, brief: Brief) -> Told:
        """Return a brief with the next number of the run."""
        self._last += 1
        return Told(self._last, brief)

    def ask(self, told: Told) -> None:
        """Store a brief before the writer gets it."""
        text = codec.dumps(replace(told.brief, attempts=()))
        self._archive.record_brief(BriefRecord(self._run_id, told.number, text, len(told.brief.attempts)))

    def answer(self, told: Told, drafts: Sequence[Draft], gained: Gained = Gained()) -> Told:  # noqa: B008
        """Store the drafts of a brief, and what else came of it; return the brief with them."""
        self._archive.record_drafts(self._run_id, told.number, codec.dumps(Answer(tuple(drafts), gained)))
        return replace(told, drafts=tuple(drafts), gained=gained)


def read_journal(archive: Archive, run_id: str) -> list[Told]:
    """Return all briefs of a run with their drafts, in order."""
    attempts = archive.attempts(run_id)
    return [_read(row, attempts) for row in archive.briefs(run_id)]


def _read(row: BriefRecord, attempts: Sequence[Attempt]) -> Told:
    brief: Brief = replace(codec.loads(row.brief), attempts=tuple(attempts[: row.attempts_seen]))
    if row.drafts is None:
        return Told(row.number, brief)
    answer = read_answer(row.drafts)
    return Told(row.number, brief, answer.drafts, answer.gained)


def read_answer(text: str) -> Answer:
    """Decode the answer to a brief; older archives hold the drafts alone."""
    found = codec.loads(text)
    return found if isinstance(found, Answer) else Answer(found, Gained())


def replies_at_hand(archive: Archive, run_id: str) -> list[LLMCall]:
    """Return the calls of a run that were made for its open briefs, and that no draft was made of yet."""
    told = archive.briefs(run_id)
    open_since = [row.calls_seen for row in told if row.drafts is None]
    if not open_since:
        return []
    answers = [read_answer(row.drafts) for row in told if row.drafts is not None]
    used = {call_id for answer in answers for draft in answer.drafts for call_id in draft.call_ids}
    used |= {call_id for answer in answers for call_id in answer.gained.calls}
    return [call for call in archive.calls(run_id)[min(open_since) :] if call.id not in used]


def spent_before(archive: Archive, run_id: str) -> Spent:
    """Return what a run had used when it stopped, the rounds that it had begun included."""
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


codec.register(Answer)
