"""The same problem at other sizes, for the judge: small ones, and odd ones that no tile divides.

Comes in: a FunctionalProblem. Goes out: another one of the same graph, or None where the problem's text does not
allow it. Problems are run in child processes only.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import FunctionalProblem, Problem, ProblemError
from rag_kernels.eval.scaled_problem import (
    REACHES,
    difference,
    grown,
    halved,
    larger_sizes,
    odd_sizes,
    parts_of_sizes,
    scaled,
)
from rag_kernels.eval.sessions.session_pool import Between, Grown, Rest, Rung, Sizes
from rag_kernels.ingest.functional.folding import unfolded
from rag_kernels.ingest.functional.functionalize import footprint, functionalize, functionalize_to_fit

SMALL_BYTES, TINY_BYTES = 4 << 20, 16 << 10
LARGE_FLOPS = 4e9
RUNG_BYTES = 64 << 20  # sanitizers are ten times as slow, or more
GROWN_TIMES, GROWN_BYTES, GROWN_FLOPS = 8, 32 << 20, 2e9
GROWN_TRIES = 3


def at_other_sizes(
    fp: FunctionalProblem, sizes: Sizes, workers: Workers, *, small: FunctionalProblem | None = None
) -> FunctionalProblem | None:
    """Return the problem at `small` sizes (a few MB), `odd` ones (small if need be), `large` or a rung's; or None.

    `small` is the one at small sizes where it is known: others follow from it, and finding it takes seconds.
    """
    if isinstance(sizes, Rest):
        return _resized(fp, small.problem, partial(odd_sizes, by=sizes.by), workers) if small is not None else None
    try:
        small = fp if footprint(fp) <= SMALL_BYTES else small or _small(fp, workers)
    except ProblemError:
        return None
    if isinstance(sizes, Grown):
        return _grown(fp, sizes, workers)
    if isinstance(sizes, Between):
        return _between(fp, small, sizes, workers)
    if isinstance(sizes, Rung):
        return _halved(fp, small, sizes, workers)
    if sizes == "large":
        return _large(fp, workers)
    if sizes == "tiny":
        return _tiny(fp, workers)
    if sizes == "small":
        return small if small.graph_key == fp.graph_key else None
    return _odd(fp, small, workers)


def _small(fp: FunctionalProblem, workers: Workers) -> FunctionalProblem:
    """Scale it down by as much as it is too large; where that does not do, by trying sizes, which takes longer."""
    problem = unfolded(fp.problem)
    guess = scaled(problem, SMALL_BYTES / footprint(fp) / 2)
    if guess is not None:
        with contextlib.suppress(ProblemError):
            small = functionalize(guess, workers=workers, resized=True)
            if footprint(small) <= 4 * SMALL_BYTES and small.graph_key == fp.graph_key:
                return replace(small, notice=difference(problem, guess))
    return functionalize_to_fit(fp.problem, workers=workers, max_bytes=SMALL_BYTES, full=fp)


def _tiny(fp: FunctionalProblem, workers: Workers) -> FunctionalProblem | None:
    """Return the problem at sizes that a call takes microseconds for; None where its text does not allow it."""
    problem = unfolded(fp.problem)
    changed = scaled(problem, TINY_BYTES / footprint(fp))
    if changed is None:
        return None
    try:
        found = functionalize(changed, workers=workers, resized=True)
    except ProblemError:
        return None
    return replace(found, notice=difference(problem, changed)) if found.graph_key == fp.graph_key else None


def _between(
    fp: FunctionalProblem, small: FunctionalProblem, sizes: Between, workers: Workers
) -> FunctionalProblem | None:
    """Return the problem at parts of its sizes, or of the small ones where these are too large."""
    fits = 4 * footprint(fp) <= RUNG_BYTES and 8 * fp.features.flops <= LARGE_FLOPS
    change = partial(parts_of_sizes, times=sizes.times, parts=sizes.parts)
    return _resized(fp, (fp if fits else small).problem, change, workers, most_bytes=2 * RUNG_BYTES)


def _halved(fp: FunctionalProblem, small: FunctionalProblem, rung: Rung, workers: Workers) -> FunctionalProblem | None:
    """Return the problem at the sizes of a rung, where these are others than the small ones and its own."""
    changed = halved(unfolded(fp.problem), rung.least, reach=rung.reach)
    if changed is None:
        return None
    try:
        found = functionalize(changed, workers=workers, resized=True)
    except ProblemError:
        return None
    fits = footprint(found) <= min(RUNG_BYTES, footprint(fp) - 1)
    if not fits or found.graph_key != fp.graph_key or found.problem.source == small.problem.source:
        return None
    return replace(found, notice=difference(fp.problem, changed))


def _large(fp: FunctionalProblem, workers: Workers) -> FunctionalProblem | None:
    """Return the problem at more than twice its sizes, of the inputs alone if need be; None where that is too large."""
    if 4 * footprint(fp) > RUNG_BYTES or 8 * fp.features.flops > LARGE_FLOPS:
        return None
    return _resized(fp, fp.problem, larger_sizes, workers, most_bytes=2 * RUNG_BYTES)


def _grown(fp: FunctionalProblem, sizes: Grown, workers: Workers) -> FunctionalProblem | None:
    """Return the problem with one size grown, by itself or with those equal to it; others make room."""
    for together in (False, True):
        shrink = min(1.0, GROWN_BYTES / (GROWN_TIMES * footprint(fp)))
        for _ in range(GROWN_TRIES):
            changed = grown(unfolded(fp.problem), sizes.number, times=GROWN_TIMES, shrink=shrink, together=together)
            if changed is None:
                return None
            try:
                found = functionalize(changed, workers=workers, resized=True)
            except ProblemError:
                break
            excess = max(footprint(found) / GROWN_BYTES, found.features.flops / GROWN_FLOPS)
            if excess <= 1:
                return (
                    replace(found, notice=difference(fp.problem, changed)) if found.graph_key == fp.graph_key else None
                )
            shrink /= 2 * excess
    return None


def _odd(fp: FunctionalProblem, small: FunctionalProblem, workers: Workers) -> FunctionalProblem | None:
    """Return the problem with all sizes odd if the module allows it, else those of the inputs, else the batch."""
    return _resized(fp, small.problem, odd_sizes, workers)


def _resized(
    fp: FunctionalProblem,
    problem: Problem,
    change: Callable[..., Problem | None],
    workers: Workers,
    most_bytes: float = math.inf,
) -> FunctionalProblem | None:
    """Return the problem at changed sizes, as many of them as it allows and still has the same graph."""
    for reach in reversed(REACHES):
        changed = change(unfolded(problem), reach=reach)
        if changed is None:
            continue
        try:
            found = functionalize(changed, workers=workers, resized=True)
        except ProblemError:
            continue
        if found.graph_key == fp.graph_key and footprint(found) <= most_bytes:
            return replace(found, notice=difference(fp.problem, changed))
    return None
