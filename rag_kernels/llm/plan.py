"""The plan of the LLM writer: new ideas, repairs, improvements, recombinations, and second looks at losers.

Comes in: the attempts so far, and how many tasks are wanted and were wanted before. Goes out: tasks in order of
promise. A pure function of these.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Compiled
from rag_kernels.feedback.explain import latest, speed

TIRED = 0.9  # each child that a parent has had already makes it this much less promising
PARENTS = 3
SLOWER = 0.95  # of its parent's speed: less is a regression, not noise

Kind = Literal["improve", "repair", "recombine", "revisit"]


@dataclass(frozen=True, slots=True)
class Explore:
    """Write something new from an idea."""


@dataclass(frozen=True, slots=True)
class Rework:
    """Start from one or two attempts of this run."""

    kind: Kind
    parents: tuple[Attempt, ...]


Task = Explore | Rework
ROTATION: tuple[Kind | Literal["explore"], ...] = ("improve", "repair", "recombine", "explore", "improve", "revisit")
assert set(get_args(Kind)) < set(ROTATION)


def plan(attempts: Sequence[Attempt], count: int, asked: int = 0) -> list[Task]:
    """Return `count` tasks after the `asked` ones before: the kinds in rotation, but those without a parent.

    A run's first draft is no turn, so that one that goes on after a single draft improves it first. A round that is
    asked for in parts gets other parents from one part to the next.
    """
    found = reworks(attempts)
    if not any(found.values()):
        return [Explore()] * count
    turn = max(0, asked - 1)
    offset = turn // len(ROTATION)
    queues = {kind: deque(tasks[offset % len(tasks) :] if tasks else ()) for kind, tasks in found.items()}
    chosen: list[Task] = []
    while len(chosen) < count:
        kind = ROTATION[turn % len(ROTATION)]
        turn += 1
        if kind == "explore":
            chosen.append(Explore())
        elif queues[kind]:
            chosen.append(queues[kind].popleft())
    return chosen


def reworks(attempts: Sequence[Attempt]) -> dict[Kind, list[Rework]]:
    """Return, by kind, every task that starts from earlier attempts, the most promising first."""
    children = _children(attempts)
    best = _best(attempts, children)
    return {
        "improve": [Rework("improve", (a,)) for a in best],
        "repair": repairs(attempts, children),
        "recombine": crossings(attempts, best),
        "revisit": regressions(attempts, children),
    }


def repairs(attempts: Sequence[Attempt], children: Counter[str]) -> list[Rework]:
    """Return failures that nobody has worked on yet, newest first, without those that only lacked a GPU."""
    return [
        Rework("repair", (a,))
        for a in reversed(latest(attempts))
        if speed(a) is None and not isinstance(a.judged.verdict, Compiled) and not children[a.candidate.id]
    ]


def crossings(attempts: Sequence[Attempt], best: Sequence[Attempt]) -> list[Rework]:
    """Return pairs of good attempts that have other ideas, were not crossed before, and of which none came from the
    other: there is little in a kernel and its repair to combine.
    """
    crossed = [{e.source for e in a.parents} for a in attempts]
    return [
        Rework("recombine", (a, b))
        for a, b in combinations(best, 2)
        if a.idea != b.idea
        and not any({a.candidate.id, b.candidate.id} <= c for c in crossed)
        and not (_came_from(a, b) or _came_from(b, a))
    ]


def _came_from(child: Attempt, parent: Attempt) -> bool:
    return any(edge.source == parent.candidate.id and edge.relation != "retrieved" for edge in child.parents)


def regressions(attempts: Sequence[Attempt], children: Counter[str]) -> list[Rework]:
    """Return right but slower attempts, untouched since, each with the parent that it is slower than."""
    known = {a.candidate.id: a for a in latest(attempts)}
    found = []
    for child in reversed(known.values()):
        parents = [known[e.source] for e in child.parents if e.relation != "retrieved" and e.source in known]
        faster = max(parents, key=lambda p: speed(p) or 0.0, default=None)
        own, theirs = speed(child), speed(faster) if faster else None
        if faster and own and theirs and own < SLOWER * theirs and not children[child.candidate.id]:
            found.append(Rework("revisit", (child, faster)))
    return found


def _best(attempts: Sequence[Attempt], children: Counter[str]) -> list[Attempt]:
    passed = [(speed(a), a) for a in latest(attempts)]
    ranked = [(s * TIRED ** children[a.candidate.id], a) for s, a in passed if s is not None]
    return [a for _, a in sorted(ranked, key=lambda pair: -pair[0])][:PARENTS]


def _children(attempts: Sequence[Attempt]) -> Counter[str]:
    """Return how many candidates of the run came from each candidate."""
    lines = {(e.child, e.source) for a in attempts for e in a.parents if e.relation in ("parent", "crossover")}
    return Counter(source for _, source in lines)
