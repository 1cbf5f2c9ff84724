"""A recorded run, repeated without its model: the same candidates and verdicts, or a word on where they differ."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from factories import llm_call, wrong
from killed_run import RELU, DecidingJudge, session

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Run
from rag_kernels.budget import Ledger
from rag_kernels.eval.judge import nothing_more
from rag_kernels.eval.records import ProblemError
from rag_kernels.long_runs.replay import Differs, RecordedModel, Replayed, find_run, recorded_options, replay
from rag_kernels.options import Options
from rag_kernels.records import Budget
from rag_kernels.run.session import Session
from rag_kernels.wiring import open_session, open_writer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A run of two rounds with the LLM writer; its model is then gone."""
    folder = tmp_path_factory.mktemp("recorded")
    made = session(folder, 0.0)
    list(made.generate(RELU.problem, made.new_run("generate", RELU.problem)))
    return made


def again(made: Session, run: Run, judge: DecidingJudge | None = None) -> list[Replayed | Differs]:
    archive = made.archive
    options, model = recorded_options(run), RecordedModel(archive.calls(run.id))
    assert options == made.options
    writer = open_writer(options, archive, Ledger(Budget()), model=model)
    return list(replay(run, replace(made, judge=judge or made.judge), writer=writer, model=model))


def test_a_replay_reaches_the_same_candidates_and_verdicts_without_the_model(made: Session, tmp_path: Path) -> None:
    run = find_run(made.archive.runs(), "latest")
    calls = len(made.archive.calls(run.id))
    found = again(made, run)
    recorded = made.archive.attempts(run.id)
    assert len({a.candidate.id for a in recorded}) == 8 < len(recorded)  # two rounds of four, and confirmations
    assert {(r.recorded.number, r.difference) for r in found if isinstance(r, Replayed)} == {
        (a.number, "") for a in recorded
    }
    assert len(found) == len(recorded) and len(made.archive.calls(run.id)) == calls
    assert made.archive.runs()[0].command == "replay" and made.archive.runs()[0].status == "finished"


def test_a_replay_says_where_a_verdict_differs(made: Session) -> None:
    run = find_run(made.archive.runs(), "latest")
    first = next(a for a in made.archive.attempts(run.id) if a.judged.verdict != wrong())

    class Strict(DecidingJudge):
        def judge(self, problem, candidates, more=nothing_more):  # type: ignore[no-untyped-def]
            for candidate, judged in super().judge(problem, candidates, more):
                yield candidate, replace(judged, verdict=wrong()) if candidate == first.candidate else judged

    different = [d for d in again(made, run, Strict(0.0)) if not isinstance(d, Replayed) or d.difference]
    [one] = different
    assert isinstance(one, Replayed) and one.recorded.candidate == first.candidate
    assert one.difference.startswith("passed then, wrong now: ")


def test_another_prompt_hears_the_next_reply_of_its_kind_and_is_noted() -> None:
    model = RecordedModel([llm_call(model="m", purpose="ideas", prompt="something else", reply="1. An idea")])
    said = model.complete(
        "m", [{"role": "user", "content": "x"}], run_id="r", purpose="ideas", temperature=None, timeout_s=1
    )
    assert said.text == "1. An idea" and model.noted == ["the prompt for 'ideas' is not the one that m was asked then"]


def test_what_cannot_be_replayed_is_said(made: Session) -> None:
    empty = made.new_run("eval", RELU.problem)
    with pytest.raises(ProblemError, match="cannot be replayed"):
        again(made, empty)
    with pytest.raises(ProblemError, match="no run 'r_none'"):
        find_run(made.archive.runs(), "r_none")


@pytest.mark.parametrize("model", [None, RecordedModel([])], ids=["a run", "a replay"])
def test_only_a_new_run_is_told_that_no_model_is_configured(
    model: RecordedModel | None, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO),
        open_session(Options(), judge=DecidingJudge(0.0), archive=MemoryArchive(), model=model) as opened,
    ):
        opened.make_writer(Ledger(Budget()))
    assert ("No model is configured" in caplog.text) == (model is None)
