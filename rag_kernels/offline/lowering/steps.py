"""The steps of a problem: records of what is stored, sorted, scattered, joined or attended, and what PyTorch keeps.

Comes in: values. Goes out: nothing; `lower.py` makes steps and `fusion` reads them. Knows nothing of the graph's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from rag_kernels.eval.records import FunctionalProblem, Node, TensorSpec
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.wellformed import Checker


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A value that is written to a buffer of this shape, or to a slot of it."""

    buffer: str
    value: ir.Value
    spec: TensorSpec
    slot: ir.Slot | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """An operator that PyTorch keeps. Refs among its arguments are buffers."""

    node: Node


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """Attention as one step: softmax(score) v, where `score` is an expression of `scores`, a stand-in for q k^T.

    Loops that queries have and neither keys nor values are its rows; those of the result that keys or values have are
    its batches.
    """

    buffer: str
    dims: tuple[ir.Group, ...]  # of the result, in the order in which it lies in memory
    q: ir.Load
    k: ir.Load
    v: ir.Load
    scores: ir.Load
    score: ir.Value
    depth: ir.Group  # which q k^T sums over
    keys: ir.Group  # along which the softmax runs
    columns: ir.Group  # of v and of the result
    storage: str  # dtype of the result in memory
    half: bool  # whether the graph rounds weights to sixteen bits before the product with v
    empty: float  # what a row is for which no key is left: NaN in the formula, 0 in the library's operator


@dataclass(frozen=True, slots=True, eq=False)
class Scattered:
    """Elements that join what an earlier step stored in a buffer, at computed places of it.

    There is one index for each group of `dims`; an element of which one lies outside is left out. The loops are those
    of `value`; where several elements have one place, the last one stays, on a GPU any.
    """

    buffer: str
    dims: tuple[ir.Group, ...]
    places: tuple[ir.Form | ir.Value, ...]
    value: ir.Value
    kind: Kind | None  # how elements join; None: they take the place of what stands there


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """A value sorted along the loops `over`: the first elements of each lane, and where they stood in it.

    Equal elements keep their order; NaN is greater than every number. `taken` are the loops over what is kept. With
    `ranks` that are the elements of these ranks, computed of sizes and numbers, and no others; where `nans` is true and
    a lane has any NaN, the first of these instead.
    """

    elements: str  # buffer, and below that of indices
    places: str
    dims: tuple[ir.Group, ...]  # of the value and, with `taken` in place of `over`, of both buffers
    value: ir.Value
    over: ir.Group
    taken: ir.Group
    descending: bool
    ranks: tuple[ir.Value, ...] = ()
    nans: bool = False

    @property
    def stored(self) -> tuple[ir.Group, ...]:
        """Return the dimensions of both buffers: of one rank there is no dimension."""
        if self.ranks and not self.taken:
            return tuple(group for group in self.dims if group != self.over)
        return tuple(self.taken if group == self.over else group for group in self.dims)


@dataclass(frozen=True, slots=True, eq=False)
class Segmented:
    """Rows of a value that join by segments, of which each has those from `begin` to before `end`.

    `dims` are the segments, then the value's columns. Rows for which `takes` does not hold are left out. With `mean` a
    sum is divided by how many join, and a segment without any is `empty`.
    """

    buffer: str
    dims: tuple[ir.Group, ...]
    value: ir.Value
    rows: ir.Group  # the loop along which the value's rows lie
    begin: ir.Value
    end: ir.Value
    takes: ir.Value | None
    kind: Kind
    mean: bool
    empty: float | int


Step = Stored | Library | Attended | Scattered | Ordered | Segmented


def made_by(step: Step) -> tuple[str, ...]:
    """Return the buffers that a step makes."""
    match step:
        case Library():
            return (step.node.name,)
        case Ordered():
            return (step.elements, step.places)
        case _:
            return (step.buffer,)


S = TypeVar("S", bound=Step)


def with_values(step: S, change: Callable[[ir.Value], ir.Value]) -> S:
    """Return the step with the values that it computes replaced; attention and library calls compute none."""
    match step:
        case Stored():
            return replace(step, value=change(step.value))
        case Ordered():
            return replace(step, value=change(step.value), ranks=tuple(map(change, step.ranks)))
        case Scattered():
            places = tuple(change(p) if isinstance(p, ir.Value) else p for p in step.places)
            return replace(step, value=change(step.value), places=places)
        case Segmented():
            takes = None if step.takes is None else change(step.takes)
            return replace(step, value=change(step.value), begin=change(step.begin), end=change(step.end), takes=takes)
        case _:
            return step


def values_of(step: Step) -> tuple[ir.Value, ...]:
    """Return the values that a step computes or reads."""
    match step:
        case Stored():
            return (step.value,)
        case Ordered():
            return (step.value, *step.ranks)
        case Scattered():
            return (step.value, *(p for p in step.places if isinstance(p, ir.Value)))
        case Segmented():
            return (step.value, step.begin, step.end, *([] if step.takes is None else [step.takes]))
        case Attended():
            return (step.q, step.k, step.v)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class Lowered:
    """A problem as steps in order, with the spec of every buffer by name."""

    problem: FunctionalProblem
    steps: tuple[Step, ...]
    results: tuple[str, ...]  # buffers
    buffers: dict[str, TensorSpec]
    stopped: tuple[str, ...]  # operators that no rule covers, each with the reason

    def checked(self, checker: Checker, stage: str) -> Lowered:
        """Return the steps themselves; raises IllFormed when this stage made a value that is not well-formed."""
        checker.check([value for step in self.steps for value in values_of(step)], stage)
        return self
