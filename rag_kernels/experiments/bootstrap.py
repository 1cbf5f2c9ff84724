"""Means over problems with their intervals: by bootstrap, and for shares by Wilson's formula.

Comes in: values grouped by problem. Goes out: intervals of about 95 %. Problems are resampled, not trials: more seeds
of few problems say little about other problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rag_kernels.experiments.wilson import wilson

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    mean: float
    low: float
    high: float


def share_interval(values: Sequence[float]) -> Interval:
    """Return the mean of values between 0 and 1, one a problem, with Wilson's interval."""
    count = len(values)
    if not count:
        return Interval(float("nan"), float("nan"), float("nan"))
    return Interval(float(np.mean(values)), *wilson(float(np.sum(values)), count))


def ratio_interval(above: Mapping[str, Sequence[float]], below: Mapping[str, Sequence[float]] | None) -> Interval:
    """Return the geometric mean of `above`, over that of `below` where it is given, on the problems that both have."""
    logs = {name: float(np.mean(np.log(values))) for name, values in above.items()}
    if below is not None:
        logs = {name: log - float(np.mean(np.log(below[name]))) for name, log in logs.items() if name in below}
    found = _bootstrap(np.array(list(logs.values())))
    return Interval(*(float(np.exp(value)) for value in (found.mean, found.low, found.high)))


def _bootstrap(values: np.ndarray) -> Interval:
    if not len(values):
        return Interval(float("nan"), float("nan"), float("nan"))
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[drawn].mean(axis=1), (2.5, 97.5))
    return Interval(float(values.mean()), float(low), float(high))
