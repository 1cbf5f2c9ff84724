"""What a run has tried so far, and what of its budget that took.

Comes in: the archive's attempts and calls of a run. Goes out: which drafts are new, the round to go on with, and
the `Spent` from which a resumed run's ledger starts. Knows nothing of how kernels are written or judged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from archive.protocol import Archive
from archive.records import Attempt
from rag_kernels.budget import Spent
from rag_kernels.records import Draft


class History:
    """The attempts of one run, oldest first. Its clock gives every second of the run to one attempt."""

    def __init__(self, attempts: Sequence[Attempt] = ()) -> None:
        self.attempts: list[Attempt] = list(attempts)
        self._lap_started = time.monotonic()

    def fresh(self, drafts: Sequence[Draft], width: int) -> dict[str, Draft]:
        """The first `width` drafts that this run has not judged yet, by candidate id."""
        seen = {a.candidate.id for a in self.attempts}
        unseen: dict[str, Draft] = {}
        for draft in drafts:
            if draft.candidate.id not in seen and len(unseen) < width:
                unseen.setdefault(draft.candidate.id, draft)
        return unseen

    def add(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        lap, self._lap_started = now - self._lap_started, now
        return lap


def spent_before(archive: Archive, run_id: str, width: int) -> Spent:
    """What a run had used when it stopped; a round that has judged fewer than `width` counts as not begun."""
    attempts = archive.attempts(run_id)
    calls = archive.calls(run_id)
    last = max((a.round for a in attempts), default=0)
    judged = {a.candidate.id for a in attempts if a.round == last}
    return Spent(
        rounds=last if len(judged) >= width else max(0, last - 1),
        seconds=sum(a.seconds for a in attempts),
        tokens=sum(c.prompt_tokens + c.completion_tokens for c in calls),
        usd=sum(c.cost_usd or 0.0 for c in calls),
        calls=len(calls),
        unpriced_calls=sum(c.cost_usd is None for c in calls),
    )
