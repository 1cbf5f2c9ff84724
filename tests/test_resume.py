"""A run that is killed goes on where it stood: nothing is judged again, and no reply is paid for twice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from factories import candidate, device, llm_call
from killed_run import HERE, RELU, REPLIES, outcome, session

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import GIVEN_UP, LLMCall
from rag_kernels.llm.recorded import Recorded
from rag_kernels.llm.request import prompt_text
from rag_kernels.records import Brief, Draft, WriterError
from rag_kernels.run.journal import Journal, read_journal, replies_at_hand

SECONDS = "0.02"


def replies(folder: Path) -> int:
    file = folder / REPLIES
    return len(file.read_text().splitlines()) if file.is_file() else 0


def program(folder: Path, places: int, rounds: int) -> list[str]:
    return [sys.executable, str(HERE / "killed_run.py"), str(folder), SECONDS, str(places), str(rounds)]


def kill_after(folder: Path, count: int, places: int, rounds: int) -> None:
    """Start the run, and kill it once the model has answered so often in all."""
    process = subprocess.Popen(program(folder, places, rounds))
    while replies(folder) < count and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()


def test_a_run_killed_twice_judges_and_asks_the_same(tmp_path: Path) -> None:
    """Of one round by six at once; `test_killed_anywhere.py` has rounds one after the other too."""
    places, rounds = 6, 1
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    broken.mkdir(), whole.mkdir()
    unbroken = subprocess.Popen(program(whole, places, rounds))
    for count in (1, 3):  # with the ideas, and amid the drafts
        kill_after(broken, count, places, rounds)
    subprocess.run(program(broken, places, rounds), check=True, timeout=120)
    assert unbroken.wait(120) == 0
    judged, asked = outcome(whole)
    assert len(judged) == places * rounds and outcome(broken) == (judged, asked)


def test_a_resumed_round_is_told_the_same_and_takes_the_replies_that_are_there(tmp_path: Path) -> None:
    made = session(tmp_path, 0.0, drafts=4, rounds=1)
    run = made.new_run("generate", RELU.problem)
    attempts = made.generate(RELU.problem, run)
    next(attempts), next(attempts), next(attempts)
    attempts.close()  # type: ignore[attr-defined]
    while made.archive.briefs(run.id)[0].drafts is None:
        time.sleep(0.01)  # its thread is still there
    [told] = read_journal(made.archive, run.id)
    assert told.drafts is not None and len(told.drafts) == 4 and told.brief.attempts == ()
    before = replies(tmp_path)
    rest = made.generate(RELU.problem, run)
    next(rest)
    assert replies(tmp_path) == before  # the drafts of the round were on disk
    rest.close()  # type: ignore[attr-defined]


def recorded(prompt: str, reply: str, **changes: object) -> LLMCall:
    text = prompt_text([{"role": "user", "content": prompt}], "m")
    return llm_call("run1", f"c_{prompt}_{reply}", model="m", prompt=text, reply=reply, **changes)


def test_a_recorded_reply_is_used_once_with_the_tries_before_it() -> None:
    calls = [recorded("a", "", error="429", cost_usd=None), recorded("a", "one", cost_usd=0.5), recorded("a", "two")]
    kept = Recorded(calls)
    messages = [{"role": "user", "content": "a"}]
    first, second = kept.take("m", messages), kept.take("m", messages)
    assert first is not None and second is not None
    assert (first.text, first.cost_usd, first.call_ids) == ("one", None, (calls[0].id, calls[1].id))
    assert second.text == "two" and kept.take("m", messages) is None
    assert Recorded(calls).take("other", messages) is None


def test_a_request_that_was_given_up_fails_again_without_being_asked() -> None:
    calls = [recorded("a", "", error="429"), recorded("a", "", error=f"429{GIVEN_UP}"), recorded("a", "two")]
    kept, messages = Recorded(calls), [{"role": "user", "content": "a"}]
    assert kept.place("m", messages) == 1
    with pytest.raises(WriterError, match="429"):
        kept.take("m", messages)
    reply = kept.take("m", messages)
    assert reply is not None and reply.call_ids == (calls[2].id,) and kept.place("m", messages) is None
    under_way = Recorded(calls[:1])  # between two tries
    assert under_way.place("m", messages) is None and under_way.take("m", messages) is None


def brief_of(run_id: str, number: int) -> Brief:
    return Brief(run_id, RELU, device(), (), (), "a hint", number, 4)


def test_only_replies_of_the_open_round_are_at_hand(tmp_path: Path) -> None:
    run, archive = session(tmp_path, 0.0).new_run("generate", RELU.problem), MemoryArchive()
    archive.start_run(run)
    archive.record_call(llm_call(run.id, "c_early"))
    journal = Journal(archive, run.id)
    told = journal.number(brief_of(run.id, 1))
    journal.ask(told)
    archive.record_call(llm_call(run.id, "c_used"))
    archive.record_call(llm_call(run.id, "c_unused"))
    assert [c.id for c in replies_at_hand(archive, run.id)] == ["c_used", "c_unused"]
    assert Journal(archive, run.id).left() == [told]
    told = journal.answer(told, [Draft(candidate(RELU), "an idea", call_ids=("c_used",))])
    assert replies_at_hand(archive, run.id) == []
    assert Journal(archive, run.id).left() == [told]
