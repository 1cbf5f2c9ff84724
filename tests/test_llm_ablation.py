"""Prompts of an ablation dealt to writers: to each every problem once, and replies back at their arms."""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent / "bench" / "llm_ablation"


@pytest.fixture
def ablation(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("llm_ablation")


def test_a_session_has_each_problem_once_and_its_arms_evenly(ablation: Any) -> None:
    hands = ablation.dealt(range(1, 12), ["off", "bm25", "hybrid"], 3)
    assert len({one for hand in hands for one in hand}) == 33
    for hand in hands:
        assert sorted(number for _, number in hand) == list(range(1, 12))
        assert sorted(Counter(arm for arm, _ in hand).values()) == [3, 4, 4]
    assert hands == ablation.dealt(range(1, 12), ["off", "bm25", "hybrid"], 3)
    assert hands != ablation.dealt(range(1, 12), ["off", "bm25", "hybrid"], 4)


def test_arms_that_share_a_place_have_half_of_the_problems_each(ablation: Any) -> None:
    hands = ablation.dealt(range(1, 9), ["off", "bm25|hybrid"], 1)
    assert [sorted(Counter(arm for arm, _ in hand).values()) for hand in hands] == [[2, 2, 4]] * 2
    told = {number: {arm for hand in hands for arm, other in hand if other == number} for number in range(1, 9)}
    assert sorted(Counter(tuple(sorted(arms)) for arms in told.values()).items()) == [
        (("bm25", "off"), 4),
        (("hybrid", "off"), 4),
    ]


def test_what_was_dealt_goes_back_to_its_arm(ablation: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = ["off", "hybrid+cards"]
    for arm in arms:
        (tmp_path / arm).mkdir()
        for number in (1, 2, 3):
            (tmp_path / arm / f"{number:02d}_prompt.md").write_text(f"{arm} {number}")
    ablation.deal(Namespace(root=tmp_path, arms=arms, seed=1))
    for prompt in list((tmp_path / "dealt").glob("*/*_prompt.md"))[:-1]:
        prompt.with_name(prompt.name.replace("prompt", "reply")).write_text(f"to {prompt.read_text()}")
    ablation.gather(Namespace(root=tmp_path))
    replies = {file: file.read_text() for arm in arms for file in (tmp_path / arm).glob("*_reply.md")}
    assert len(replies) == 5 and "no reply to" in capsys.readouterr().out
    assert all(text == f"to {file.parent.name} {int(file.name[:2])}" for file, text in replies.items())
