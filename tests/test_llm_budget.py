"""The ledger alone, with a clock of its own; and what docs/models.md says about models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rag_kernels.budget import BudgetExhaustedError, Ledger, Spent
from rag_kernels.llm.request import load_litellm
from rag_kernels.records import Budget


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rounds_and_seconds_run_out() -> None:
    clock = Clock()
    ledger = Ledger(Budget(rounds=2, seconds=10), clock=clock)
    ledger.start_round()
    assert ledger.exhausted() is None and ledger.seconds_left() == 10
    clock.now += 4
    assert ledger.spent() == Spent(rounds=1, seconds=4.0)
    ledger.start_round()
    assert ledger.exhausted() == "The budget of 2 rounds is used up."
    with ledger.hold(5, None) as hold:  # the last round may still spend
        hold.charge(5, None)
    clock.now += 6
    assert ledger.seconds_left() == 0
    with pytest.raises(BudgetExhaustedError, match="10 s is used up"), ledger.hold(1, None):
        pass


def test_a_resumed_run_goes_on_from_what_was_spent() -> None:
    ledger = Ledger(Budget(rounds=3, seconds=60, tokens=100), spent=Spent(1, 50.0, 90, 0.5, 4, 1), clock=Clock())
    assert ledger.seconds_left() == 10
    refusal = "90 are spent or in flight, and the next call needs about 20"
    with pytest.raises(BudgetExhaustedError, match=refusal), ledger.hold(20, None):
        pass
    with ledger.hold(10, None) as hold:
        hold.charge(7, None)
    assert ledger.spent() == Spent(1, 50.0, 97, 0.5, 5, 2)


def test_what_is_in_flight_counts_until_it_is_settled() -> None:
    ledger = Ledger(Budget(usd=1.0))
    with ledger.hold(1000, 0.6) as hold:
        with pytest.raises(BudgetExhaustedError, match=r"\$0\.6000 are spent or in flight"), ledger.hold(1000, 0.6):
            pass
        assert ledger.exhausted() is not None
        hold.charge(500, 0.1)
    assert ledger.exhausted() is None  # it was cheaper than held, so there is room again
    with ledger.hold(1000, 0.6) as hold:
        hold.charge(1000, 0.95)
    assert ledger.exhausted() is not None and ledger.spent().usd == pytest.approx(1.05)


def test_a_call_that_breaks_releases_its_hold() -> None:
    ledger = Ledger(Budget(tokens=100))
    with pytest.raises(RuntimeError), ledger.hold(90, None):
        raise RuntimeError("broken")
    assert ledger.spent().calls == 0 and ledger.exhausted() is None


def test_the_models_in_the_documentation_are_known_to_litellm() -> None:
    text = Path(__file__).parent.parent.joinpath("docs", "models.md").read_text()
    names = [n for n in re.findall(r"--model ([\w./-]+)", text)]
    assert len(names) >= 8
    for name in names:
        assert load_litellm().get_llm_provider(name)[1] == name.split("/")[0]
