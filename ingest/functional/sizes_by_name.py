"""Record a problem at two other sizes, so that the numbers of its graph that follow sizes of arguments are known.

Comes in: a problem, its graph and what its recording took. Goes out: `NamedSizes`, or None where its text has no sizes
that can be changed so that the graph stays the same. Runs in the child process, without data.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rag_kernels.eval.build.step_form import pulled_arguments
from rag_kernels.eval.records import Problem, ProblemError, TrainingStep
from rag_kernels.eval.sizes.resizing import free_sizes, told_apart
from rag_kernels.ingest.functional.folding import unfolded
from rag_kernels.ingest.graphs.graph import Functional, functional
from rag_kernels.ingest.graphs.named_sizes import NamedSizes, alike, named_sizes
from rag_kernels.ingest.graphs.recording import Known, trace

DEEP_NODES = 150  # recording those takes seconds: all sizes are tried, then the batch
MOST_SINGLE = 12  # sizes that are tried one after another


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Records a problem with some of its sizes changed; None where the graph is no longer the same."""

    problem: Problem
    graph: Functional
    calls: int

    def at(self, number: int, keys: Collection[str], *, together: bool = False) -> Functional | None:
        """Return the graph at the first or the second of the problems in which sizes are told apart."""
        other = told_apart(self.problem, number, keys, together=together)
        if other is None:
            return None
        same_module = set(keys) <= free_sizes(self.problem, reach="inputs").keys()
        try:
            graph = functional(other.name, trace(other, known=Known(self.calls, module=same_module)))
        except (ProblemError, MemoryError, RecursionError):  # sizes that do not hold together
            return None
        return graph if alike(self.graph, graph) else None

    def both(self, keys: Collection[str], *, together: bool = False) -> list[Functional]:
        """Return the graphs at both problems; none where one is not the same."""
        first = self.at(0, keys, together=together)
        second = self.at(1, keys, together=together) if first else None
        return [first, second] if first and second else []


def sizes_by_name(
    problem: Problem, graph: Functional, calls: int, taken: set[str], step: TrainingStep | None = None
) -> NamedSizes | None:
    """Return names for as many sizes as can be changed: all, else equal ones as one, else those that go together."""
    recorder = _Recorder(unfolded(problem), graph, calls)
    sizes = free_sizes(recorder.problem)
    others = recorder.both(sizes)
    every = True
    if not others and len(graph.nodes) > DEEP_NODES:
        first = recorder.at(0, free_sizes(recorder.problem, reach="batch"))  # one size is told from no other
        others, every = [first] if first else [], False
    elif not others:
        several = len(set(sizes.values())) < len(sizes)
        others = recorder.both(sizes, together=True) if several else []
        every = bool(others)
        others = others or _one_by_one(recorder, [*sizes])
    pulled = pulled_arguments(graph.arguments, step) if step else 0
    return named_sizes(graph, others, taken, pulled=pulled, every=every)


def _one_by_one(recorder: _Recorder, sizes: list[str]) -> list[Functional]:
    """Return the graphs with as many sizes changed as go together, each tried in turn."""
    kept: list[str] = []
    for size in sizes[:MOST_SINGLE] if len(sizes) > 1 else []:
        if recorder.both([*kept, size]):
            kept.append(size)
    return recorder.both(kept)
