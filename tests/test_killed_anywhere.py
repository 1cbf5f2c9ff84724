"""A run that dies after any of its writes, and goes on: it judges, asks, tells and counts as one that did not die.

The model fails, repeats itself and forgets the code, by what its prompt says alone, so that an unbroken run has one
outcome. A dead run is one whose archive takes and gives nothing any more.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from killed_run import RELU, DecidingJudge
from prompted_model import SOURCE

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.eval import codec
from rag_kernels.llm.request import Message, ModelAnswer, RequestError
from rag_kernels.options import Options
from rag_kernels.run.journal import read_journal
from rag_kernels.run.session import Session
from rag_kernels.wiring import open_writer

WRITES = ("start_run", "finish_run", "record_call", "record_brief", "record_drafts", "record_attempt")
Ask = Callable[[str, str], str]  # of the model and the prompt


class Killed(BaseException):
    """Nothing of the run may catch it."""


class Mortal:
    """An archive that dies after so many writes."""

    def __init__(self, archive: MemoryArchive, life: int) -> None:
        self._archive, self.left, self._lock = archive, life, threading.RLock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._archive, name)
        return partial(self._do, name, found) if callable(found) else found

    def _do(self, name: str, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        with self._lock:
            if self.left <= 0:
                raise Killed
            done = work(*args, **named)
            self.left -= name in WRITES
            return done


def embed(texts: Sequence[str]) -> Any:
    """The same for the same text, and nothing alike otherwise."""
    rows = np.zeros((len(texts), 4096), np.float32)
    for row, text in zip(rows, texts, strict=True):
        row[zlib.crc32(text.encode()) % 4096] = 1
    return rows


def drafted(number: int) -> str:
    return f"Idea: the way {number}\n```cpp\n{SOURCE.format(number=number)}```"


def one_after_the_other(salt: int, model: str, prompt: str) -> str:
    """With one place the first draft that is lost ends the run; ideas are asked for again, and of the other model."""
    number = zlib.crc32(f"{salt} {prompt}".encode())
    if "numbered list" not in prompt:
        return "I would rather not." if number % 16 == 0 else drafted(number)
    if model == "cmd:first" and number % 2:
        raise RequestError("no luck", "Try again.", retry=False, billed=True)
    return f"Lessons: all is well, {number % 97}.\n\n1. Way {number % 3}."


class AllAtOnce:
    """Three ideas twice over, answered in order: each when all before it are on record."""

    def __init__(self, archive: MemoryArchive) -> None:
        self._archive = archive

    def __call__(self, model: str, prompt: str) -> str:
        if "numbered list" in prompt:
            return "\n".join(f"{n}. Way {n}." for n in (1, 2, 3))
        turn = self._turn(prompt)
        while not set(range(1, turn)) <= self._answered():
            time.sleep(0.002)
        time.sleep(0.01)
        if turn == 3:
            raise RequestError("no luck", "Try again.", retry=False, billed=True)
        if turn == 5:
            return "I would rather not."
        return drafted(1).replace("scaled", "other") if turn == 4 else drafted(turn)  # the first one again

    def _turn(self, prompt: str) -> int:
        way = next(n for n in (1, 2, 3) if f"Way {n}." in prompt)
        return way + 3 * ("you are number 2" in prompt)

    def _answered(self) -> set[int]:
        [run] = self._archive.runs()
        return {self._turn(call.prompt) for call in self._archive.calls(run.id) if call.purpose == "implement"}


def run_or_resume(archive: MemoryArchive, places: int, rounds: int, life: int = 10**6) -> int:
    """Returns how many writes are left of its life."""
    mortal = Mortal(archive, life)
    options = Options(models=("cmd:first", "cmd:second"), drafts=places, rounds=rounds)
    made = Session(
        options=options,
        archive=mortal,  # type: ignore[arg-type]
        judge=DecidingJudge(0.0),
        functionalize=lambda given: replace(RELU, problem=given),
        retrieve=lambda functional, attempts: (),
        index=lambda attempt: None,
        make_writer=partial(open_writer, options, mortal, embed=embed),  # type: ignore[arg-type]
    )
    known = archive.runs()
    run = known[0] if known else made.new_run("generate", RELU.problem)
    with suppress(Killed):
        for _ in made.generate(RELU.problem, run):
            pass
    return mortal.left


def outcome(archive: MemoryArchive) -> dict[str, Any]:
    """All that must be the same: without times, ids of calls, and the order of what came at once."""
    [run] = archive.runs()
    calls, told = archive.calls(run.id), read_journal(archive, run.id)
    purposes = {call.id: (call.prompt, call.reply) for call in calls}
    return {
        "status": run.status,
        "judged": sorted((a.candidate.id, a.note, a.idea) for a in archive.attempts(run.id)),
        "asked": Counter((call.model, call.prompt, call.error) for call in calls),
        "told": [codec.dumps(replace(t.brief, attempts=(), run_id="")) for t in told],
        "drafted": [sorted(d.candidate.id for d in t.drafts or ()) for t in told],
        "learnt": [t.gained.learnt for t in told],
        "used": sorted(purposes[call] for t in told for call in t.gained.calls),
    }


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Ask]]:
    """The function that answers prompts, to be put in."""
    script: list[Ask] = []

    def ask(model: str, messages: Sequence[Message], **_: Any) -> ModelAnswer:
        return ModelAnswer(script[-1](model, str(messages[-1]["content"])), 10, 10, 0.01, False, False)

    monkeypatch.setattr("rag_kernels.llm.client.ask_once", ask)
    yield script


@pytest.mark.parametrize(("places", "rounds"), [(1, 6), (6, 1)])
def test_a_run_that_dies_after_any_write_goes_on_as_if_it_had_not(answers: list[Ask], places: int, rounds: int) -> None:
    def begin(salt: int) -> MemoryArchive:
        archive = MemoryArchive()
        answers.append(partial(one_after_the_other, salt) if places == 1 else AllAtOnce(archive))
        return archive

    for salt in range(100):  # until a sequential run loses something and repeats something
        whole = begin(salt)
        writes = 10**6 - run_or_resume(whole, places, rounds)
        unbroken = outcome(whole)
        told = [one for one in unbroken["learnt"] if one.repeats], [one for one in unbroken["learnt"] if one.lost]
        if unbroken["status"] == "finished" and all(told) and len(unbroken["judged"]) > 2:
            break
    else:
        raise AssertionError("no run loses something and repeats something")
    for life in range(1, writes):
        archive = begin(salt)
        run_or_resume(archive, places, rounds, life)
        run_or_resume(archive, places, rounds)
        again = outcome(archive)
        assert {name: value for name, value in again.items() if value != unbroken[name]} == {}, f"after {life} writes"


def test_what_a_run_ended_for_is_asked_again(answers: list[Ask]) -> None:
    """Whoever goes on with a run that ended may have mended why."""

    def refuse(model: str, prompt: str) -> str:
        raise RequestError("the key was refused (401)", "Set the key.", retry=False, billed=False)

    archive = MemoryArchive()
    answers.append(refuse)
    with pytest.raises(Exception, match="key was refused"):
        run_or_resume(archive, 2, 1)
    [run] = archive.runs()
    assert run.status == "failed" and all(call.given_up for call in archive.calls(run.id))
    answers.append(lambda model, prompt: "1. One\n2. Two" if "numbered list" in prompt else drafted("One" in prompt))
    run_or_resume(archive, 2, 1)
    assert archive.runs()[0].status == "finished" and archive.attempts(run.id)
