"""The sizes that a problem is met at: several workloads of one problem, and how often each comes.

Comes in: a Problem, whose text may define `get_workloads()`, or a line such as "batch=1,8,64 seq=1024". Goes out:
Workloads, and the problem at each of them. Works on text: nothing of the problem is run.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rag_kernels.eval.records import Problem, ProblemError
from rag_kernels.eval.sizes.text_sizes import named_sizes, resized, size_names

WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class Workload:
    """Values of a problem's sizes by their names in its text, and how often this comes among all."""

    sizes: tuple[tuple[str, int], ...]
    weight: float = 1.0

    @property
    def name(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.sizes) or "as written"


def problem_at(problem: Problem, workload: Workload) -> Problem:
    """Return the problem at a workload's sizes.

    Raises ProblemError for a size that its text does not name.
    """
    known = size_names(problem)
    for name, _ in workload.sizes:
        if name not in known:
            raise ProblemError(
                f"{problem.name} has no size {name!r}: its sizes are {', '.join(known) or 'not written as integers'}; "
                "a size is an integer that is assigned to a name at module level or in get_inputs()."
            )
    return resized(problem, dict(workload.sizes))


def heaviest(problem: Problem, workloads: Sequence[Workload]) -> Workload:
    """Return the workload with the most to do, by the product of its sizes and how often it comes."""
    written = named_sizes(problem)
    names = {name for workload in workloads for name, _ in workload.sizes}

    def work(workload: Workload) -> float:
        sizes = dict(workload.sizes)
        return workload.weight * math.prod(sizes.get(name, written.get(name, 1)) for name in names)

    return max(workloads, key=work)


def read_shapes(line: str) -> tuple[Workload, ...]:
    """Read "batch=1,8,64 seq=1024": every combination of the values, in order.

    Raises ProblemError for another form.
    """
    lists: list[list[tuple[str, int]]] = []
    for word in line.split():
        name, found, values = word.partition("=")
        if not (name and found and all(v.isdecimal() and int(v) > 0 for v in values.split(","))):
            raise ProblemError(f"{word!r} is no list of sizes: write shapes as NAME=1,8,64, separated by spaces.")
        lists.append([(name, int(value)) for value in values.split(",")])
    if not lists:
        raise ProblemError("No shapes are given: write them as NAME=1,8,64, separated by spaces.")
    return tuple(Workload(sizes) for sizes in itertools.product(*lists))


def workloads_of(problem: Problem) -> tuple[Workload, ...]:
    """Return what `get_workloads()` of the problem lists; nothing without one.

    It returns a list of dictionaries from sizes' names to integers, with a "weight" where one comes more often. Raises
    ProblemError where that is not written out.
    """
    functions = [n for n in ast.parse(problem.source).body if isinstance(n, ast.FunctionDef)]
    function = next((f for f in reversed(functions) if f.name == "get_workloads"), None)
    if function is None:
        return ()
    last = function.body[-1]
    try:
        rows = ast.literal_eval(last.value) if isinstance(last, ast.Return) and last.value else None
        return tuple(_workload(dict(row)) for row in rows or ())
    except (ValueError, TypeError, AttributeError) as error:
        raise ProblemError(
            f"{problem.name}: get_workloads() must return a list that is written out, as "
            f'[{{"batch": 8, "seq": 1024, "weight": 3}}]: {error}.'
        ) from error


def _workload(row: dict[str, object]) -> Workload:
    weight = row.pop(WEIGHT, 1.0)
    if not isinstance(weight, int | float) or weight <= 0:
        raise ValueError(f"a weight is a positive number, not {weight!r}")
    for name, value in row.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"the size {name} is a positive integer, not {value!r}")
    return Workload(tuple((name, int(str(value))) for name, value in row.items()), float(weight))
