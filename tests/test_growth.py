"""A night over many problems: order, fairness, budgets, kills, failures, and the report in the morning."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from factories import candidate, llm_call, wrong
from rich.console import Console
from support.search_sessions import RELU, Rounds, draft, session

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Attempt
from rag_kernels.budget import Ledger
from rag_kernels.eval.records import Problem
from rag_kernels.long_runs.growth import Grown, GrowthRun, TurnEnded, grow, next_time, open_growth_run
from rag_kernels.long_runs.problem_queue import QueueEntry, next_entry
from rag_kernels.records import Brief, Draft, WriterError
from rag_kernels.report.growth_report import html, markdown, report, write_report
from rag_kernels.report.growth_view import growth_table
from rag_kernels.run.session import Session
from rag_kernels.run.standings import winner
from rag_kernels.scripted import ScriptedJudge

Event = Attempt | TurnEnded | Grown


def write_problems(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / f"{name}.py").write_text(RELU.problem.source + f"# {name}\n")
    return [folder / f"{name}.py" for name in names]


class Each(Rounds):
    """The same rounds for every problem: two drafts, then nothing."""

    def propose(self, brief: Brief) -> Sequence[Draft]:
        self.briefs.append(brief)
        return [draft(1), draft(2)] if brief.round == 1 else []


def night(paths: list[Path], made: Session, *, resume: bool = False) -> tuple[GrowthRun, list[Event]]:
    opened = open_growth_run(paths, made, resume=resume)
    return opened, list(grow(paths, made, opened))


def grown(events: list[Event]) -> list[Grown]:
    return [event for event in events if isinstance(event, Grown)]


# The queue


def entry(name: str, **changes: object) -> QueueEntry:
    return replace(QueueEntry(Path(name), Problem(name, name)), **changes)  # type: ignore[arg-type]


def first(*entries: QueueEntry, turns: int = 9) -> str:
    chosen = next_entry(entries, turns)
    return chosen.path.name if chosen else ""


def test_what_is_far_from_the_floor_comes_first() -> None:
    assert first(entry("near", floor_fraction=0.8), entry("far", floor_fraction=0.1)) == "far"
    assert first(entry("near", floor_fraction=0.9), entry("new"), entry("also near", floor_fraction=0.7)) != "near"


def test_what_is_cheap_comes_before_what_is_dear_and_what_gains_before_what_does_not() -> None:
    same = {"floor_fraction": 0.2, "turns": 2}
    assert first(entry("dear", usd=4.0, **same), entry("cheap", usd=1.0, **same)) == "cheap"
    assert first(entry("stuck", usd=1.0, **same), entry("gains", usd=1.0, gains=2, **same)) == "gains"


def test_nobody_gets_far_ahead_of_another_that_waits() -> None:
    entries = {"good": entry("good", floor_fraction=0.01), "bad": entry("bad", floor_fraction=0.9)}
    order = []
    for _ in range(8):
        name = first(*entries.values())
        order.append(name)
        entries[name] = replace(entries[name], turns=entries[name].turns + 1, seconds=1.0)
    assert order[0] == "good" and all(abs(order[:n].count("good") - order[:n].count("bad")) <= 2 for n in range(9))


def test_what_is_at_the_floor_or_out_of_ideas_or_turns_is_done() -> None:
    assert first(entry("floor", floor_fraction=0.99, turns=1), entry("dry", barren=True), turns=2) == ""
    assert first(entry("used up", turns=2), turns=2) == ""
    assert first(entry("known, not tried", floor_fraction=0.99), turns=2) == "known, not tried"


# The night


def test_every_problem_gets_its_first_turn_before_any_gets_a_third(tmp_path: Path) -> None:
    writer = Rounds(*[[draft(n)] for n in range(5)])
    paths = write_problems(tmp_path, "a", "b", "c")
    _, events = night(paths, session(writer, ScriptedJudge(), effort=4))
    turns = [event.entry.path.stem for event in events if isinstance(event, TurnEnded)]
    assert sorted(turns) == sorted("abc" * 4) and len(grown(events)) == 3
    for end in range(len(turns)):
        had = [turns[: end + 1].count(name) for name in "abc"]
        assert max(had) - min(had) <= 2


def test_a_killed_night_goes_on_and_nothing_is_judged_twice(tmp_path: Path) -> None:
    paths, archive = write_problems(tmp_path, "a", "b", "c"), MemoryArchive()
    made = session(Each(), archive=archive)
    opened = open_growth_run(paths, made, resume=False)
    events = grow(paths, made, opened)
    for event in events:
        if isinstance(event, Attempt) and event.problem.problem.name == "b":
            break
    events.close()  # type: ignore[attr-defined]
    assert archive.run_status(opened.run.id) == "interrupted"

    judge = ScriptedJudge()
    again, later = night(paths, session(Each(), judge, archive=archive), resume=True)
    assert again.run.id == opened.run.id and again.growth == opened.growth
    assert {g.name for g in grown(later)} == {"a", "b", "c"} and all(winner(g.attempts) for g in grown(later))
    assert len(judge.asked) == 1 + 2  # one left of b, both of c
    assert archive.run_status(opened.run.id) == "finished"


def test_with_resume_what_is_done_is_skipped_and_without_it_all_begins_anew(tmp_path: Path) -> None:
    paths, archive = write_problems(tmp_path, "a"), MemoryArchive()
    made = session(Each(), archive=archive)
    one, _ = night(paths, made)
    two, events = night(paths, made, resume=True)
    assert [g.skipped for g in grown(events)] == [True] and two.growth == one.growth and two.run.id != one.run.id
    three, events = night(paths, made)
    assert [g.skipped for g in grown(events)] == [False] and three.growth != one.growth


def test_a_problem_that_cannot_be_used_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    paths = write_problems(tmp_path, "a", "b")
    paths[0].write_text("class Model(:\n")
    _, events = night(paths, session(Each()))
    bad, good = grown(events)
    assert "syntax error on line 1" in bad.failure and winner(good.attempts) is not None


def test_a_turn_that_fails_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    class Flaky(Each):
        def propose(self, brief: Brief) -> Sequence[Draft]:
            super().propose(brief)
            if brief.problem.problem.name == "bad" or len(self.briefs) < 3:
                raise WriterError("No answer.")
            return [draft(1)]

    paths, writer = write_problems(tmp_path, "bad", "good"), Flaky()
    _, events = night(paths, session(writer, effort=1))
    ends = {g.name: g for g in grown(events)}
    assert ends["bad"].failure == "No answer." and not ends["good"].failure
    assert sum(b.problem.problem.name == "bad" for b in writer.briefs) == 3


def test_the_night_ends_in_time_with_what_there_is(tmp_path: Path) -> None:
    paths, archive = write_problems(tmp_path, "a", "b"), MemoryArchive()
    judge = ScriptedJudge(before=lambda c: time.sleep(0.6))
    made = session(Each(), judge, archive=archive)
    opened = open_growth_run(paths, made, resume=False)
    events = list(grow(paths, made, opened, until=datetime.now() + timedelta(seconds=0.5)))
    assert len(judge.asked) <= 1 and judge.confirmed == judge.asked and not grown(events)
    assert archive.run_status(opened.run.id) == "finished"


def test_money_is_for_the_whole_night_and_stays_spent_after_a_kill(tmp_path: Path) -> None:
    paths, archive = write_problems(tmp_path, "a", "b"), MemoryArchive()

    class Paid(Each):
        def propose(self, brief: Brief) -> Sequence[Draft]:
            later = datetime.now().astimezone().isoformat()
            archive.record_call(llm_call(brief.run_id, f"c_{len(self.briefs)}", cost_usd=0.6, created_at=later))
            return super().propose(brief)

    writer = Paid()
    made = session(writer, archive=archive, budget_usd=1.0, effort=3)
    opened = open_growth_run(paths, made, resume=False)
    events = grow(paths, made, opened)
    next(iter(events))
    events.close()  # type: ignore[attr-defined]
    night(paths, made, resume=True)
    assert len(writer.briefs) == 2  # 0.6, then 1.2: no third
    night(paths, made, resume=True)
    assert len(writer.briefs) == 4  # another night has its own money


def test_a_night_that_has_no_room_for_a_call_ends(tmp_path: Path) -> None:
    class Refused(Each):
        ledger: Ledger

        def propose(self, brief: Brief) -> Sequence[Draft]:
            self.briefs.append(brief)
            with self.ledger.hold(1000, None):
                raise AssertionError("there was room")

    writer = Refused()

    def make(ledger: Ledger) -> Refused:
        writer.ledger = ledger
        return writer

    made = replace(session(writer, budget_tokens=10), make_writer=make)
    _, events = night(write_problems(tmp_path, "a", "b"), made)
    assert len(writer.briefs) == 1 and not grown(events)


# Several at once


def test_with_several_judges_as_many_problems_are_worked_on_side_by_side(tmp_path: Path) -> None:
    together = threading.Barrier(3)  # the first candidates of three problems are under the judge at the same time
    judge = ScriptedJudge(before=lambda c: len(judge.asked) < 3 and together.wait(60))
    made = replace(session(Each(), judge), at_once=3)
    opened, events = night(write_problems(tmp_path, "a", "b", "c"), made)
    assert {g.name for g in grown(events) if winner(g.attempts)} == {"a", "b", "c"}
    assert made.archive.run_status(opened.run.id) == "finished" and len(judge.asked) == 6


def test_a_night_of_several_at_once_that_is_cut_short_goes_on(tmp_path: Path) -> None:
    paths, archive = write_problems(tmp_path, "a", "b", "c"), MemoryArchive()
    made = replace(session(Each(), archive=archive), at_once=2)
    opened = open_growth_run(paths, made, resume=False)
    events = grow(paths, made, opened)
    next(iter(events))
    events.close()  # type: ignore[attr-defined]
    assert archive.run_status(opened.run.id) == "interrupted"
    assert not [t for t in threading.enumerate() if t.name == "problem"]
    _, later = night(paths, made, resume=True)
    assert {g.name for g in grown(later) if winner(g.attempts)} == {"a", "b", "c"}


def test_turns_that_run_at_once_share_what_is_left_and_the_last_ones_get_all_of_it(tmp_path: Path) -> None:
    given: list[float | None] = []

    class Refused(Each):
        def __init__(self, ledger: Ledger) -> None:
            super().__init__()
            self.ledger = ledger
            given.append(ledger.budget.usd)

        def propose(self, brief: Brief) -> Sequence[Draft]:
            with self.ledger.hold(1, 0.3):
                return super().propose(brief)

    made = replace(session(Each(), budget_usd=0.5), make_writer=Refused, at_once=2)
    night(write_problems(tmp_path, "a", "b", "c"), made)
    assert given[:2] == [0.25, 0.25] and given[2] == 0.5


# What is shown


@pytest.fixture
def told(tmp_path: Path) -> tuple[GrowthRun, Session, list[Event]]:
    paths = write_problems(tmp_path, "a", "b", "<c>")
    paths[2].write_text("class Model(:\n")
    judge = ScriptedJudge({candidate(RELU, variant=2).id: wrong()})
    made = session(Each(), judge)
    opened, events = night(paths, made)
    return opened, made, events


def test_the_morning_report_says_what_was_won_spent_and_lost(
    told: tuple[GrowthRun, Session, list[Event]], tmp_path: Path
) -> None:
    opened, made, events = told
    won, spent, failed = report(opened, made, grown(events))
    assert won.text.startswith("2 problems of 2 got a better kernel; 2 of them beat PyTorch")
    assert {row[0] for row in won.rows} == {"a", "b"} and "2.00x" in won.rows[0]
    assert [row[:3] for row in failed.rows] == [("<c>", "problem", "1"), ("all", "wrong", "2")]
    assert "syntax error" in failed.rows[0][3] and "0 calls" in spent.text
    paths = write_report(opened, made, grown(events), tmp_path / "reports")
    texts = [path.read_text() for path in paths]
    assert [path.suffix for path in paths] == [".md", ".html"] and "## Where the money went" in texts[0]
    assert "&lt;c&gt;" in texts[1] and "<c>" not in texts[1] and "<script" not in texts[1]


def test_a_report_of_nothing_is_a_report() -> None:
    made = session(Rounds())
    sections = report(open_growth_run([], made, resume=False), made, [])
    assert "Nothing failed." in markdown("t", sections) and "<table" not in html("t", sections)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_view_of_a_growth(told: tuple[GrowthRun, Session, list[Event]], terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=300)
    with growth_table(console, "3 problems", {}) as show:
        for event in told[2]:
            show(event)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert ("3 problems" in text) is terminal and ("1.60x" if terminal else "2.00x") in text and "syntax error" in text


def test_next_time() -> None:
    evening = datetime(2026, 1, 2, 22, 0)
    assert next_time("07:00", now=evening) == datetime(2026, 1, 3, 7, 0)
    assert next_time("23:30", now=evening) == datetime(2026, 1, 2, 23, 30)
    with pytest.raises(ValueError):
        next_time("25:00")
