"""The choice of the model that writes next: Thompson sampling over what each model wins per dollar.

Comes in: the attempts of a run, and the drafts that were paid for and came to nothing. Goes out: the name of a model.
With a seed the same history gives the same choice, in any process. Knows nothing of prompts and prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rag_kernels.archive.records import Attempt
from rag_kernels.feedback.explain import latest, speed
from rag_kernels.records import Trial

FREE = 20.0  # a model that costs nothing counts as this much cheaper than the dearest one: time has its price too


def trials(attempts: Sequence[Attempt]) -> list[Trial]:
    """Return the trials of a run. A pass is rewarded by the share of earlier passes that it beats, a failure by 0."""
    earlier: list[float] = []
    found = []
    for attempt in latest(attempts):
        won = speed(attempt)
        reward = 0.0
        if won is not None:
            reward = (1 + sum(other < won for other in earlier)) / (1 + len(earlier))
            earlier.append(won)
        if attempt.model:
            found.append(Trial(attempt.model, reward, attempt.cost_usd))
    return found


def choose(models: Sequence[str], known: Sequence[Trial], *, number: int, seed: int = 0) -> str:
    """Return the model for branch `number` of a run. The first try each model, then the best draw decides.

    Beta-Bernoulli Thompson sampling (graded rewards, as Agrawal and Goyal treat them), divided by the mean cost.
    """
    if number < len(models) or len(models) == 1:
        return models[number % len(models)]
    random, costs = Random(f"{seed} {number}"), mean_costs(models, known)
    draws = {model: _draw(model, known, random) / costs[model] for model in models}
    return max(models, key=draws.__getitem__)


def _draw(model: str, known: Sequence[Trial], random: Random) -> float:
    rewards = [t.reward for t in known if t.model == model]
    won = sum(rewards)
    return random.betavariate(1 + won, 1 + len(rewards) - won)


def mean_costs(models: Sequence[str], known: Sequence[Trial]) -> dict[str, float]:
    """Return dollars per trial and model; all alike when the price of a model that was tried is unknown.

    A model of which nothing is known yet is taken to cost as much as the others do.
    """
    answered = [t for t in known if t.answered]
    if any(t.cost_usd is None for t in answered):
        return dict.fromkeys(models, 1.0)
    paid = {m: [t.cost_usd or 0.0 for t in answered if t.model == m] for m in models}
    means = {m: sum(costs) / len(costs) for m, costs in paid.items() if costs}
    dearest = max(means.values(), default=0.0)
    if not dearest:
        return dict.fromkeys(models, 1.0)
    other = sum(means.values()) / len(means)
    return {m: max(means.get(m, other), dearest / FREE) for m in models}
