"""Which model writes next: wins per dollar, with a seed."""

from __future__ import annotations

from collections import Counter
from random import Random

import factories

from rag_kernels.llm.model_choice import choose, mean_costs, trials
from rag_kernels.records import Trial


def test_every_model_is_asked_once_before_any_is_asked_twice() -> None:
    assert [choose(["a", "b", "c"], [], number=n) for n in range(3)] == ["a", "b", "c"]


def test_a_pass_is_credited_by_what_it_beats() -> None:
    speeds = (2.0, 1.0, 3.0)
    attempts = [
        factories.attempt(number=n, variant=n, verdict=factories.passed(s), model="m", cost_usd=0.5)
        for n, s in enumerate(speeds, 1)
    ]
    attempts += [factories.attempt(number=4, variant=4, verdict=factories.wrong(), model="m", cost_usd=None)]
    attempts += [factories.attempt(number=5, variant=5, verdict=factories.passed(1.0))]  # no model had part in it
    assert trials(attempts) == [Trial("m", 1.0, 0.5), Trial("m", 0.5, 0.5), Trial("m", 1.0, 0.5), Trial("m", 0.0, None)]


def shares(wins: dict[str, float], cost: dict[str, float], *, seed: int, rounds: int = 300) -> Counter[str]:
    """How often each model is chosen when it wins with that chance at that price."""
    chance = Random(seed)
    known: list[Trial] = []
    for number in range(rounds):
        model = choose(list(wins), known, number=number, seed=seed)
        known.append(Trial(model, float(chance.random() < wins[model]), cost[model]))
    return Counter(t.model for t in known)


def test_the_model_that_wins_more_gets_most_of_the_work() -> None:
    for seed in range(5):
        chosen = shares({"good": 0.6, "bad": 0.2}, {"good": 0.01, "bad": 0.01}, seed=seed)
        assert chosen["good"] > 0.75 * 300 and chosen["bad"] >= 1


def test_a_dear_model_must_win_as_much_more() -> None:
    for seed in range(5):
        chosen = shares({"dear": 0.6, "cheap": 0.3}, {"dear": 0.10, "cheap": 0.01}, seed=seed)
        assert chosen["cheap"] > 0.75 * 300


def test_the_same_seed_gives_the_same_choices() -> None:
    runs = [shares({"a": 0.5, "b": 0.4}, {"a": 0.01, "b": 0.01}, seed=7, rounds=40) for _ in range(2)]
    assert runs[0] == runs[1]


def test_an_unknown_price_leaves_wins_alone_and_a_free_model_is_not_infinitely_cheap() -> None:
    known = [Trial("a", 1.0, 0.2), Trial("b", 1.0, None)]
    assert mean_costs(["a", "b"], known) == {"a": 1.0, "b": 1.0}
    known = [Trial("a", 1.0, 0.2), Trial("free", 1.0, 0.0), Trial("dead", 0.0, None, answered=False)]
    assert mean_costs(["a", "free", "dead"], known) == {"a": 0.2, "free": 0.01, "dead": 0.1}
