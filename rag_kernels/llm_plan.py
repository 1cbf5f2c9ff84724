"""What a round of the LLM writer works on: new ideas, repairs, improvements, recombinations.

Comes in: the attempts so far and the width. Goes out: tasks in order of promise. A pure function of the history.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from archive.records import Attempt
from eval.records import Compiled
from rag_kernels.feedback import latest, speed

TIRED = 0.9  # each child that a parent has had already makes it this much less promising
PARENTS = 3


@dataclass(frozen=True, slots=True)
class Explore:
    """Write something new from an idea."""


@dataclass(frozen=True, slots=True)
class Rework:
    """Start from one or two attempts of this run."""

    kind: Literal["repair", "improve", "recombine"]
    parents: tuple[Attempt, ...]


Task = Explore | Rework


def plan_round(attempts: Sequence[Attempt], width: int) -> list[Task]:
    """Split `width` between the best so far, instructive failures, crossings and new ideas, in turn."""
    queues = [deque(improvements(attempts)), deque(repairs(attempts)), deque(crossings(attempts))]
    tasks: list[Task] = []
    while len(tasks) < width:
        tasks += [queue.popleft() for queue in queues if queue]
        tasks.append(Explore())
    return tasks[:width]


def improvements(attempts: Sequence[Attempt]) -> list[Rework]:
    return [Rework("improve", (a,)) for a in _best(attempts)]


def repairs(attempts: Sequence[Attempt]) -> list[Rework]:
    """Failures that nobody has worked on yet, newest first. What only lacked a GPU has nothing to repair."""
    tried = _children(attempts)
    return [
        Rework("repair", (a,))
        for a in reversed(latest(attempts))
        if speed(a) is None and not isinstance(a.judged.verdict, Compiled) and a.candidate.id not in tried
    ]


def crossings(attempts: Sequence[Attempt]) -> list[Rework]:
    """Pairs of good attempts that have other ideas and were not crossed before."""
    crossed = [{e.source for e in a.parents} for a in attempts]
    pairs = combinations(_best(attempts), 2)
    return [
        Rework("recombine", (a, b))
        for a, b in pairs
        if a.idea != b.idea and not any({a.candidate.id, b.candidate.id} <= c for c in crossed)
    ]


def _best(attempts: Sequence[Attempt]) -> list[Attempt]:
    children = _children(attempts)
    passed = [(speed(a), a) for a in latest(attempts)]
    ranked = [(s * TIRED ** children[a.candidate.id], a) for s, a in passed if s is not None]
    return [a for _, a in sorted(ranked, key=lambda pair: -pair[0])][:PARENTS]


def _children(attempts: Sequence[Attempt]) -> Counter[str]:
    """How many candidates of the run came from each candidate."""
    lines = {(e.child, e.source) for a in attempts for e in a.parents if e.relation in ("parent", "crossover")}
    return Counter(source for _, source in lines)
