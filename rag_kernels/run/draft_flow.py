"""The flow of drafts to the judge: asks the writer for drafts as places become free, and hands them out.

Comes in: a writer, the ledger, the run's briefing. Goes out: drafts by candidate id, all that came since the last
look. A streaming writer is asked for more whenever one of `width` places is free, so that replies are under way while
others are judged; any other writer is asked once for each round, when the last one is judged. Drafts are only ever
handed out in the thread that iterates. Knows nothing of models and judges.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rag_kernels.budget import BudgetExhaustedError, Ledger
from rag_kernels.eval.progress import doing
from rag_kernels.eval.records import Candidate
from rag_kernels.records import Brief, Draft, Gained, StreamingWriter, Writer, WriterError
from rag_kernels.run.briefing import Briefing
from rag_kernels.run.history import History, new_drafts
from rag_kernels.run.journal import Journal, Told
from rag_kernels.text.wording import count

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArrivedDraft:
    """Hold a draft with the round that it was asked in."""

    draft: Draft
    round: int


@dataclass(frozen=True, slots=True)
class RequestDone:
    """Report the end of one request: `lost` drafts did not come, `barren` of them because the writer had none."""

    told: Told
    drafts: tuple[Draft, ...]
    lost: int
    barren: int
    error: BaseException | None


class DraftFlow:
    """Yield dicts of drafts, by candidate id, to whoever iterates over it and calls `judged` after each verdict.

    `prepare` is called with each candidate in the writer's thread; the briefing looks for other exemplars in the thread
    that iterates, between what it hands out.

    `stopped` says afterwards why nothing more came.
    """

    def __init__(
        self,
        writer: Writer,
        ledger: Ledger,
        history: History,
        journal: Journal,
        *,
        width: int,
        briefing: Briefing,
        prepare: Callable[[Candidate], None],
    ) -> None:
        self._writer, self._ledger, self._history, self._journal = writer, ledger, history, journal
        self._width, self._briefing, self._prepare = width, briefing, prepare
        self._stale_at = 0  # attempts after which what the writer is shown is looked for again
        self._streams = isinstance(writer, StreamingWriter)
        self._came: queue.SimpleQueue[ArrivedDraft | RequestDone] = queue.SimpleQueue()
        self._asked = journal.asked or ledger.spent().rounds * width
        while ledger.spent().rounds * width < self._asked:  # the round that was under way goes on
            ledger.start_round()
        self._open = 0  # asked for, and neither judged nor lost
        self._requests = 0
        self._barren = self._lost_before() if journal.cut_short else 0  # drafts lost in a row
        self._handed: dict[str, ArrivedDraft] = {}
        self.stopped = ""
        if self._barren >= width:
            self._give_up(None)
        for told in journal.left():
            self._resume(told)

    def __iter__(self) -> Iterator[dict[str, ArrivedDraft]]:
        while True:
            self._refresh_and_ask()
            if not self._requests and self._came.empty():
                return
            self._handed = self._collect()
            if self._handed:
                log.info("%s to build and judge.", count(len(self._handed), "candidate"))
                doing("building", wanted=len(self._history.attempts) + len(self._handed))
                yield self._handed

    def more(self) -> list[Candidate]:
        """Return the candidates that arrived since, without waiting, and add them to the drafts that were handed out
        last.
        """
        if self._streams or not self._open:
            self._refresh_and_ask()
        if self._came.empty():
            return []
        new = self._collect()
        self._handed |= new
        return [came.draft.candidate for came in new.values()]

    def _refresh_and_ask(self) -> None:
        """Look for other exemplars when it is time, and ask for drafts."""
        doing("looking for exemplars, and asking the writer")
        if len(self._history.attempts) >= self._stale_at and not self.stopped:
            self._briefing.refresh()
            self._stale_at = len(self._history.attempts) + (self._width if self._streams else 0)
        self._ask()

    def judged(self) -> None:
        """Note a verdict: its place is free for another draft."""
        self._open -= 1
        if self._streams:
            self._ask()

    def stop(self, why: str) -> None:
        """Ask for no more. Requests under way are not waited for."""
        self.stopped = self.stopped or why
        self._requests = 0
        self._came = queue.SimpleQueue()

    def _resume(self, told: Told) -> None:
        """Take up a brief that was cut short: its drafts go to the judge, and what did not come is asked for again."""
        if told.drafts is None:
            self._open += told.brief.width
            self._send(told, again=True)
            return
        judged = self._history.judged()
        for draft in told.drafts:
            if draft.candidate.id not in judged:
                self._open += 1
                self._came.put(ArrivedDraft(draft, told.brief.round))

    def _ask(self) -> None:
        """Ask for as many drafts as there are free places, one round at a time."""
        while not self.stopped and (free := self._free()):
            within_round = self._asked % self._width != 0
            reason = self._ledger.exhausted(within_round=within_round)
            if reason is not None:
                if not self._open:  # what is under way may turn out cheaper than it was held for
                    self.stopped = reason
                return
            if not within_round:
                self._ledger.start_round()
            count = min(free, self._width - self._asked % self._width)
            number = 1 + self._asked // self._width
            told = self._journal.number(self._briefing.brief(number, count, self._asked))
            self._asked += count
            self._open += count
            self._send(told, again=False)

    def _send(self, told: Told, *, again: bool) -> None:
        self._requests += 1
        known = self._history.judged() if again else set()
        if self._streams:
            threading.Thread(target=self._run, args=(told, known), daemon=True, name="writer").start()
        else:
            self._run(told, known)

    def _free(self) -> int:
        return max(0, self._width - self._open) if self._streams or not self._open else 0

    def _run(self, told: Told, known: set[str]) -> None:
        """Run one request and put all that comes of it into the queue, without drafts that are `known` (judged
        already).
        """
        inbox, came, repeated = self._came, 0, 0
        error, drafts = None, list[Draft]()
        try:
            self._journal.ask(told)  # does nothing to one that is there
            for draft in self._drafts(told.brief):
                drafts.append(draft)
                if draft.candidate.id in known:
                    repeated += 1
                    continue
                self._prepare(draft.candidate)
                came += 1
                inbox.put(ArrivedDraft(draft, told.brief.round))
            self._answer(told, drafts)
        except BaseException as caught:  # raised again by the thread that iterates
            error = caught
        lost = told.brief.width - came
        inbox.put(RequestDone(told, tuple(drafts), lost, lost - repeated if self._streams or not drafts else 0, error))

    def _answer(self, told: Told, drafts: Sequence[Draft]) -> None:
        gained = self._writer.gained(told.brief) if isinstance(self._writer, StreamingWriter) else Gained()
        self._journal.answer(told, drafts, gained)

    def _drafts(self, brief: Brief) -> Iterator[Draft]:
        """Yield the writer's drafts for a brief, without those that the brief's run has."""
        if isinstance(self._writer, StreamingWriter):
            yield from self._writer.stream(brief)
        else:
            yield from new_drafts(self._writer.propose(brief), brief)

    def _collect(self) -> dict[str, ArrivedDraft]:
        """Wait for something to come, then take all that is there and new to this run."""
        came: list[ArrivedDraft | RequestDone] = [self._came.get()]
        while not self._came.empty():
            came.append(self._came.get())
        known = {a.candidate.id for a in self._history.attempts} | self._handed.keys()
        new: dict[str, ArrivedDraft] = {}
        for item in came:
            if isinstance(item, RequestDone):
                self._end_request(item)
            elif item.draft.candidate.id in known or item.draft.candidate.id in new:
                self._count_lost(1, barren=1)
            else:
                new[item.draft.candidate.id] = item
                self._barren = 0
        return new

    def _end_request(self, done: RequestDone) -> None:
        self._requests -= 1
        self._count_lost(done.lost, barren=done.barren)
        if done.error is not None and not isinstance(done.error, WriterError):
            raise done.error
        if isinstance(done.error, BudgetExhaustedError):
            self.stopped = self.stopped or ("" if self._open else str(done.error))
        elif self._barren >= self._width:
            self._give_up(done.error)
        elif done.error is not None:  # the run goes on without it, also when it is resumed
            log.warning("%s", done.error)
            self._answer(done.told, done.drafts)

    def _lost_before(self) -> int:
        """Return how many drafts in a row had not come when the run was cut short."""
        lost = 0
        for told in reversed([told for told in self._journal.told if told.drafts is not None]):
            drafts = told.drafts or ()
            lost += told.brief.width - len(drafts) if self._streams or not drafts else 0
            if drafts:
                break
        return lost

    def _count_lost(self, count: int, *, barren: int) -> None:
        self._open -= count
        self._barren += barren

    def _give_up(self, error: WriterError | None) -> None:
        """End the run with what there is; raise the error when there is nothing."""
        if error is not None and not self._history.attempts and not self._open:
            raise error
        self.stopped = self.stopped or str(error or f"The {self._writer.name} writer has nothing more to try.")
