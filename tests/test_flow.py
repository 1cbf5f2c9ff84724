"""The pipeline from a writer that takes its time to the judge: what is asked when, and what a lost branch costs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from factories import candidate
from support.search_sessions import RELU, draft, run_all, session

from rag_kernels.budget import BudgetExhaustedError
from rag_kernels.eval.records import Candidate
from rag_kernels.records import Brief, Draft, Gained, Learnt, Past, WriterError
from rag_kernels.run.standings import winner
from rag_kernels.scripted import ScriptedJudge

Reply = Draft | Exception


class Streaming:
    """Streams replies by number; each waits until `ready` lets it go. Keeps the briefs."""

    name = "llm"
    learnt = Learnt()

    def __init__(self, reply: Callable[[int], Reply], *, ready: Callable[[int], object] = lambda number: None) -> None:
        self._reply, self._ready = reply, ready
        self._lock = threading.Lock()
        self.briefs: list[Brief] = []

    def gained(self, brief: Brief) -> Gained:
        return Gained()

    def go_on(self, past: Past) -> None:
        """It keeps nothing in mind."""

    def propose(self, brief: Brief) -> list[Draft]:
        return list(self.stream(brief))

    def stream(self, brief: Brief) -> Iterator[Draft]:
        with self._lock:
            self.briefs.append(brief)
        numbers = range(brief.asked, brief.asked + brief.width)
        came: queue.SimpleQueue[Reply] = queue.SimpleQueue()

        def answer(number: int) -> None:
            self._ready(number)
            came.put(self._reply(number))

        for number in numbers:
            threading.Thread(target=answer, args=(number,), daemon=True).start()
        errors = []
        for _ in numbers:
            reply = came.get()
            if isinstance(reply, Exception):
                errors.append(reply)
            else:
                yield reply
        if len(errors) == len(numbers):
            raise errors[0]


def test_requests_are_under_way_while_the_judge_works() -> None:
    """The fourth reply comes only when the first draft is being judged, and more was asked for by then."""
    judging = threading.Event()
    asked_while_judging: list[int] = []

    def before(c: Candidate) -> None:
        deadline = time.monotonic() + 20  # a request is noted in the archive before the writer hears of it
        while judging.is_set() and len(writer.briefs) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        asked_while_judging.append(len(writer.briefs))
        judging.set()

    writer = Streaming(draft, ready=lambda number: number != 3 or judging.wait(20))
    attempts = run_all(session(writer, ScriptedJudge(before=before), effort=2, rounds=3))
    assert len({a.candidate.id for a in attempts}) == 12
    assert asked_while_judging[0] == 1 < asked_while_judging[1]
    briefs = sorted(writer.briefs, key=lambda brief: brief.asked)  # each has a thread, and two may pass each other
    assert [b.width for b in briefs] == [4] + 8 * [1]
    assert [b.asked for b in briefs] == [0, *range(4, 12)]
    assert [b.round for b in briefs] == [1, *4 * [2], *4 * [3]]
    assert {a.round for a in attempts} == {1, 2, 3}


def test_each_request_knows_all_verdicts_so_far() -> None:
    writer = Streaming(draft)
    run_all(session(writer, effort=1, rounds=3))
    briefs = sorted(writer.briefs, key=lambda brief: brief.asked)  # each has a thread, and two may pass each other
    assert [len(b.attempts) for b in briefs] == [0, 1, 2, 3, 4]


def test_a_branch_that_fails_costs_that_branch_only() -> None:
    writer = Streaming(lambda n: WriterError("no code") if n in (5, 7) else draft(n))
    best = winner(attempts := run_all(session(writer, effort=2, rounds=3)))
    assert best is not None and len({a.candidate.id for a in attempts}) == 10


def test_a_rounds_worth_of_failures_in_a_row_ends_the_run_with_what_there_is() -> None:
    writer = Streaming(lambda n: draft(n) if n < 3 else WriterError("the key was refused"))
    made = session(writer, effort=1, rounds=9)
    attempts = run_all(made)
    assert len({a.candidate.id for a in attempts}) == 3 and winner(attempts) is not None
    assert len(writer.briefs) < 8 and made.archive.runs()[0].status == "finished"


def test_failures_from_the_start_are_an_error() -> None:
    with pytest.raises(WriterError, match="key was refused"):
        run_all(session(Streaming(lambda n: WriterError("the key was refused")), effort=2))


def test_a_fault_of_our_own_in_the_writers_thread_is_raised() -> None:
    with pytest.raises(OSError, match="disk full"):
        run_all(session(Streaming(lambda n: draft(n) if n < 4 else OSError("disk full")), effort=2, rounds=3))


def test_a_spent_budget_ends_the_run_when_what_is_under_way_is_judged() -> None:
    slow = threading.Event()
    judge = ScriptedJudge(before=lambda c: slow.set())
    writer = Streaming(
        lambda n: draft(n) if n < 4 else BudgetExhaustedError("no room"), ready=lambda n: n != 2 or slow.wait(20)
    )
    attempts = run_all(session(writer, judge, effort=2, rounds=5))
    assert len({a.candidate.id for a in attempts}) == 4


def test_when_the_time_is_up_nobody_waits_for_what_is_under_way() -> None:
    writer = Streaming(draft, ready=lambda n: n == 0 or time.sleep(20))
    judge = ScriptedJudge(before=lambda c: time.sleep(0.3))
    attempts = run_all(session(writer, judge, effort=2, rounds=5, budget_seconds=0.2))
    assert [a.candidate.id for a in attempts] == 2 * [candidate(RELU, variant=0).id]  # and its confirmation


def test_a_resumed_run_asks_for_what_is_left() -> None:
    made = session(Streaming(draft), effort=2, rounds=2)
    run = made.new_run("generate", RELU.problem)
    attempts = made.generate(RELU.problem, run)
    for _ in range(5):
        next(attempts)
    attempts.close()  # type: ignore[attr-defined]  # as Ctrl-C does
    resumed = session(Streaming(draft), effort=2, rounds=2, archive=made.archive)  # type: ignore[arg-type]
    list(resumed.generate(RELU.problem, run))
    judged = [a.candidate.id for a in made.archive.attempts(run.id) if not a.note.startswith("confirmation")]
    assert sorted(judged) == sorted(candidate(RELU, variant=n).id for n in range(8))
