"""The attempts of a run so far.

Comes in: the archive's attempts of a run. Goes out: which drafts are new, and which of them are still to be judged.
Knows nothing of how kernels are written or judged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rag_kernels.archive.records import Attempt
from rag_kernels.records import Brief, Draft


class History:
    """Hold the attempts of one run, oldest first. Its clock gives every second of the run to one attempt."""

    def __init__(self, attempts: Sequence[Attempt] = ()) -> None:
        self.attempts: list[Attempt] = list(attempts)
        self._lap_started = time.monotonic()

    def judged(self) -> set[str]:
        """Return the ids of the candidates that this run has judged."""
        return {attempt.candidate.id for attempt in self.attempts}

    def add(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def lap(self) -> float:
        """Return the seconds since the last lap, and begin a new one."""
        now = time.monotonic()
        lap, self._lap_started = now - self._lap_started, now
        return lap


def new_drafts(drafts: Sequence[Draft], brief: Brief) -> tuple[Draft, ...]:
    """Return the first `brief.width` drafts whose candidates the run did not have when their round began, each once."""
    known = {a.candidate.id for a in brief.attempts}
    new: dict[str, Draft] = {}
    for draft in drafts:
        if draft.candidate.id not in known and len(new) < brief.width:
            new.setdefault(draft.candidate.id, draft)
    return tuple(new.values())
