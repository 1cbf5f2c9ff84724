"""The order in which a growth works on problems: most expected gain for the money, nobody far ahead of the others.

Comes in: what each problem has had and won so far. Goes out: an order. Pure functions; knows nothing of archives.

The gain that is left is how far the best kernel is from the physical floor, in factors of two. The chance to find
some of it falls with each turn that found nothing. What a turn costs is what the turns of the problem cost so far, in
dollars where models are paid for, else in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_kernels.archive.records import Attempt, LLMCall
from rag_kernels.eval.records import Passed, Problem
from rag_kernels.run.standings import winner

LEAD = 2  # turns that a problem may be ahead of another that still waits
NEAR_FLOOR = 0.95  # nothing is left to gain from here on
UNKNOWN_GAIN = 2.0  # factors of two, where no problem has been measured yet


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """Hold one problem of the queue. `floor_fraction` is that of the best kernel known for it, on this device."""

    path: Path
    problem: Problem
    floor_fraction: float | None = None
    turns: int = 0
    gains: int = 0  # turns that brought a better kernel
    usd: float = 0.0
    seconds: float = 0.0
    failures: int = 0  # turns in a row that ended in an error
    barren: bool = False  # its writer has nothing more to try

    def is_open(self, turns: int) -> bool:
        """Return whether there is something left to do, with so many turns per problem."""
        near = self.floor_fraction is not None and self.floor_fraction >= NEAR_FLOOR
        return self.turns < turns and not self.barren and not (near and self.turns)


def queue_entry(
    path: Path,
    problem: Problem,
    known: float | None,
    attempts: Sequence[Attempt],
    calls: Sequence[LLMCall],
    *,
    turns: int,
    barren: bool,
    failures: int = 0,
) -> QueueEntry:
    """Return the entry of a problem from what its run left on disk. `known`: its floor fraction before."""
    best = winner(attempts)
    verdict = best.judged.verdict if best else None
    reached = verdict.measurement.floor_fraction if isinstance(verdict, Passed) else None
    fractions = [fraction for fraction in (known, reached) if fraction is not None]
    return QueueEntry(
        path,
        problem,
        floor_fraction=max(fractions, default=None),
        turns=turns,
        gains=gains(attempts),
        usd=sum(call.cost_usd or 0.0 for call in calls),
        seconds=sum(attempt.seconds for attempt in attempts),
        failures=failures,
        barren=barren,
    )


def gains(attempts: Sequence[Attempt]) -> int:
    """Return in how many rounds the best speed-up rose."""
    found, best = set(), 0.0
    for attempt in attempts:
        verdict = attempt.judged.verdict
        if isinstance(verdict, Passed) and verdict.claims_speed and verdict.measurement.speedup > max(best, 1.0):
            best = verdict.measurement.speedup
            found.add(attempt.round)
    return len(found)


def next_entry(entries: Sequence[QueueEntry], turns: int) -> QueueEntry | None:
    """Return the most promising entry of those that wait and are not too far ahead; None without one."""
    waiting = [entry for entry in entries if entry.is_open(turns)]
    if not waiting:
        return None
    least = min(entry.turns + entry.failures for entry in waiting)
    fair = [entry for entry in waiting if entry.turns + entry.failures < least + LEAD]
    return max(fair, key=lambda entry: (promise(entry, entries), -entry.turns))


def promise(entry: QueueEntry, among: Sequence[QueueEntry]) -> float:
    """Return the expected gain per cost of the next turn; what is not known of an entry is taken from the others."""
    known = [_gain(other.floor_fraction) for other in among if other.floor_fraction is not None]
    typical = sum(known) / len(known) if known else UNKNOWN_GAIN
    gain = typical if entry.floor_fraction is None else _gain(entry.floor_fraction)
    chance = (entry.gains + 1) / (entry.turns + 1) / 2**entry.failures
    promised: float = gain * chance / _cost(entry, among)
    return promised


def _gain(floor_fraction: float) -> float:
    return max(0.0, -math.log2(max(floor_fraction, 1e-6)))


def _cost(entry: QueueEntry, among: Sequence[QueueEntry]) -> float:
    """Return the mean cost of one turn: dollars if any were spent, else seconds."""
    paid = any(other.usd for other in among)
    spent = [(other.usd if paid else other.seconds, other.turns) for other in (entry, *among) if other.turns]
    if not spent:
        return 1.0
    own, typical = spent[0] if entry.turns else (0.0, 0), (sum(s for s, _ in spent), sum(t for _, t in spent))
    cost = own[0] / own[1] if own[1] else typical[0] / typical[1]
    return max(cost, 1e-3 * typical[0] / typical[1], 1e-9)
