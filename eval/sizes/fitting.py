"""A smaller problem of the same graph that fits into memory, and how it differs from the one that was asked for.

Comes in: a Problem, and a `measure` of its bytes that the caller hands in. Goes out: the problem at the largest sizes
that fit, with a sentence that says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from rag_kernels.eval.records import Problem, ProblemError
from rag_kernels.eval.sizes.resizing import scaled
from rag_kernels.eval.sizes.text_sizes import LAST, REACHES, difference, rewritten, sites_of

_TRIES = 12
_TRIES_TO_GROW = 3


def fit(problem: Problem, *, max_bytes: int, measure: Callable[[Problem], int]) -> tuple[Problem, str]:
    """Return a problem whose measure is at most `max_bytes`, and how it differs ("" when it does not).

    `measure` may raise ProblemError for a smaller problem that does not hold together; others are then tried.
    """
    size = measure(problem)
    if size <= max_bytes:
        return problem, ""
    for reach in (*REACHES, LAST):
        factor, previous = max_bytes / size, None
        for _ in range(_TRIES):
            candidate = scaled(problem, factor, reach=reach)
            if candidate is None:
                break
            if candidate == previous:
                factor /= 4
                continue
            if reach in ("batch", "inputs") and reduction(problem, candidate) < 0.4 * size / max_bytes:
                break  # even this reach's smallest problem is too large
            try:
                smaller = measure(candidate)
            except ProblemError:
                break
            if smaller <= max_bytes:
                return candidate, difference(problem, candidate)
            factor, previous = factor * min(0.5, max_bytes / smaller), candidate
    raise ProblemError(
        f"{problem.name} needs {size / 1e6:.0f} MB and could not be shrunk to {max_bytes / 1e6:.0f} MB by its sizes; "
        "write them as integers at module level, as KernelBench does."
    )


def roomiest(
    problem: Problem, smaller: Problem, *, max_bytes: int, measure: Callable[[Problem], int]
) -> tuple[Problem, str]:
    """Return the problem at the largest sizes that fit, from a smaller one that does, and how it differs.

    Sizes were halved; now each grows again as far as there is room, those of the module first, equal ones together. By
    how much the whole grows with one is guessed, and learnt from a guess that was wrong, so that few are measured.
    Where numbers of the code went with the sizes (reach "text"), all stay as they are: those would have to grow along.
    """
    before = sites_of(problem.source)
    both = zip(before, sites_of(smaller.source), strict=False)
    halves = {own.key: new.value for own, new in both if new.value != own.value}
    if rewritten(problem, before, halves).source != smaller.source:
        return smaller, difference(problem, smaller)  # numbers of the module's code were halved with its sizes
    taken = measure(smaller)
    for reach in reversed(REACHES):
        for value in sorted({site.value for site in before if site.reach == reach}, reverse=True):
            larger = _grown_again(problem, smaller, {s.key for s in before if (s.reach, s.value) == (reach, value)})
            power = 1.0
            for _ in range(_TRIES_TO_GROW):
                times = max((t for t in larger if taken * t**power <= max_bytes), default=None)
                if times is None:
                    break
                candidate = larger.pop(times)
                with suppress(ProblemError):
                    size = measure(candidate)
                    if size <= max_bytes:
                        smaller, taken = candidate, size
                        break
                    power = max(power, math.log(size / taken, times))
    return smaller, difference(problem, smaller)


def _grown_again(problem: Problem, smaller: Problem, keys: Collection[str]) -> dict[float, Problem]:
    """Return the smaller problem with these sizes less small, by how many times they are what they were there.

    Between two halves there are seven such; sizes of the module stay whole multiples.
    """
    pairs = [(own, now) for own, now in zip(sites_of(problem.source), sites_of(smaller.source), strict=False)]
    sites = [replace(now, key=own.key, reach=own.reach) for own, now in pairs]
    most = {own.key: own.value for own, now in pairs if own.key in keys and now.value < own.value}
    values = {site.key: site.value for site in sites if site.key in most}
    modules = any(site.reach == "all" for site in sites if site.key in most)
    found: dict[float, Problem] = {}
    octaves = max((most[key] // value for key, value in values.items()), default=0).bit_length()
    for times in (2.0**octave * eighths / 8 for octave in range(octaves) for eighths in range(9, 17)):
        changes = {key: int(value * times) for key, value in values.items()}
        whole = not modules or all(value * times == changes[key] for key, value in values.items())
        if whole and all(values[key] < changes[key] <= most[key] for key in values):
            found[times] = rewritten(smaller, sites, changes)
    return found


def reduction(problem: Problem, smaller: Problem) -> float:
    """Return by how much the product of all sizes has shrunk: an estimate of how much less there is to do."""
    new = {s.key: s.value for s in sites_of(smaller.source)}
    old = {s.key: s.value for s in sites_of(problem.source)}
    return math.prod(value / new.get(key, value) for key, value in old.items())
