"""The ledger: what a run has spent, what is under way, and whether there is room for more.

Comes in: a `Budget` and every charge. Goes out: `Spent`, and a sentence when a limit is reached. Calls in flight
count with their estimate until they are settled, so parallel branches cannot overdraw together. Thread-safe.
Knows nothing of models, prices or the search.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rag_kernels.records import Budget, WriterError


@dataclass(frozen=True, slots=True)
class Spent:
    """Hold what has been used so far. `unpriced_calls` are calls whose cost nobody knows; `usd` leaves them out."""

    rounds: int = 0
    seconds: float = 0.0
    tokens: int = 0
    usd: float = 0.0
    calls: int = 0
    unpriced_calls: int = 0


class BudgetExhaustedError(WriterError):
    """Report that there is no room for another call; the message is the reason. A clean end, not a fault."""


class Hold:
    """Reserve room for one call in flight. `charge` replaces the estimate by what the call really used."""

    def __init__(self, tokens: int, usd: float) -> None:
        self.tokens = tokens
        self.usd = usd
        self.charged: tuple[int, float | None] | None = None

    def charge(self, tokens: int, usd: float | None) -> None:
        self.charged = (tokens, usd)


class Ledger:
    """Count rounds, seconds, tokens and dollars against a budget.

    `spent` is what an interrupted run had used before it was resumed; the clock goes on from its seconds.
    """

    def __init__(
        self, budget: Budget, *, spent: Spent | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.budget = budget
        self._before = spent or Spent()
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._rounds = self._before.rounds
        self._tokens = self._before.tokens
        self._usd = self._before.usd
        self._calls = self._before.calls
        self._unpriced = self._before.unpriced_calls
        self._holds: list[Hold] = []
        self._refused: Hold | None = None

    def start_round(self) -> None:
        with self._lock:
            self._rounds += 1

    def spent(self) -> Spent:
        with self._lock:
            return Spent(self._rounds, self._elapsed(), self._tokens, self._usd, self._calls, self._unpriced)

    @property
    def refused(self) -> bool:
        """Return whether a call was refused because the budget had no room for it."""
        with self._lock:
            return self._refused is not None

    def seconds_left(self) -> float | None:
        """Return the wall time that the budget still has; `None` is no limit."""
        return None if self.budget.seconds is None else max(0.0, self.budget.seconds - self._elapsed())

    def exhausted(self, *, within_round: bool = False) -> str | None:
        """Return why no further round may start (or no more be asked for within this one), or `None`."""
        with self._lock:
            if self._rounds >= self.budget.rounds and not within_round:
                return f"The budget of {self.budget.rounds} round{'' if self.budget.rounds == 1 else 's'} is used up."
            return self._reason(self._refused or Hold(0, 0.0))

    @contextmanager
    def hold(self, tokens: int, usd: float | None) -> Iterator[Hold]:
        """Reserve room for one call; raises `BudgetExhaustedError` when the estimate no longer fits."""
        hold = Hold(tokens, usd or 0.0)
        with self._lock:
            reason = self._reason(hold)
            if reason is not None:
                self._refused = hold
                raise BudgetExhaustedError(reason)
            self._holds.append(hold)
        try:
            yield hold
        finally:
            with self._lock:
                self._holds.remove(hold)
                if hold.charged is not None:
                    self._settle(*hold.charged)

    def _settle(self, tokens: int, usd: float | None) -> None:
        self._tokens += tokens
        self._calls += 1
        self._usd += usd or 0.0
        self._unpriced += usd is None

    def _elapsed(self) -> float:
        return self._before.seconds + self._clock() - self._started

    def _reason(self, hold: Hold) -> str | None:
        """Return why a call of this size does not fit beside what is spent and in flight, or `None`."""
        budget = self.budget
        tokens = self._tokens + sum(h.tokens for h in self._holds)
        usd = self._usd + sum(h.usd for h in self._holds)
        if budget.seconds is not None and self._elapsed() >= budget.seconds:
            return f"The budget of {budget.seconds:g} s is used up."
        if budget.tokens is not None and tokens + max(hold.tokens, 1) > budget.tokens:
            return (
                f"The budget of {budget.tokens} tokens has no room for another call: {tokens} are spent or in flight"
                + (f", and the next call needs about {hold.tokens}." if hold.tokens else ".")
            )
        if budget.usd is not None and (usd >= budget.usd or usd + hold.usd > budget.usd):
            return f"The budget of ${budget.usd:g} has no room for another call: ${usd:.4f} are spent or in flight" + (
                f", and the next call costs about ${hold.usd:.4f}." if hold.usd else "."
            )
        return None
