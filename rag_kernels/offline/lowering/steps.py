"""The steps of a problem: what is stored, sorted, scattered, joined, attended or recurs, and what PyTorch keeps.

Comes in: values. Goes out: nothing; `lower.py` makes steps and `fusion` reads them. Knows nothing of the graph's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from rag_kernels.eval.records import FunctionalProblem, Node, TensorSpec
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite_each
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
    top: str = ""  # buffers of the maximum of each row's scores, and of the logsumexp of these less that,
    total: str = ""  # where something wants them
    row_dims: tuple[ir.Group, ...] = ()

    @property
    def stored(self) -> dict[str, tuple[ir.Group, ...]]:
        """Return the dimensions of its buffers."""
        return {self.buffer: self.dims} | {name: self.row_dims for name in (self.top, self.total) if name}


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """A product that is never stored, of rows that stay in place and of rows that are walked along."""

    kept: ir.Load
    walked: ir.Load
    product: ir.Load  # a stand-in for it
    depth: ir.Group  # which it sums over


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    """A sum along the walked rows of `weight` times `factor`, where `weight` is an expression of inner products."""

    buffer: str
    dims: tuple[ir.Group, ...]  # of the result, in the order in which it lies in memory
    weight: ir.Value
    factor: ir.Load
    columns: ir.Group  # of the factor and of the result
    storage: str  # dtype of the result in memory


@dataclass(frozen=True, slots=True, eq=False)
class Chained:
    """Products of which one factor is computed of other products: gradients of attention.

    Loops of the results that no factor has are the rows which stay; those that a factor has, too, are batches.
    """

    inner: tuple[Inner, ...]
    outer: tuple[Outer, ...]
    rows: tuple[ir.Atom, ...]
    walked: tuple[ir.Atom, ...]

    @property
    def weights(self) -> tuple[ir.Value, ...]:
        """Return the expressions of inner products, with numbers in place of these."""
        products, number = {i.product for i in self.inner}, ir.Const((), "float32", 0)
        return rewrite_each([o.weight for o in self.outer], lambda v: number if v in products else None)


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


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """One way through the steps of a recurrent layer, with all gates of a kind side by side.

    `gates` is what the input comes to, [steps, batch, gates x units] or with the batch first; the state is multiplied
    by `weight`, [gates x units, units], and `bias` is added; `first` is the state before the first step, [batch,
    units], and the memory of an LSTM. Values are whole tensors or numbers.
    """

    gates: ir.Value
    weight: ir.Value
    bias: ir.Value
    first: tuple[ir.Value, ...]
    back: bool  # from the last step to the first

    @property
    def values(self) -> tuple[ir.Value, ...]:
        """Return all that is read."""
        return (self.gates, self.weight, self.bias, *self.first)


@dataclass(frozen=True, slots=True, eq=False)
class Recurrent:
    """A recurrent layer: the states of all steps, the last one of each direction, and an LSTM's last memory."""

    cell: str  # the name of its operator
    states: str  # buffer [steps, batch, directions x units], or with the batch first
    last: str  # buffer [directions, batch, units], and so is that of the memory, "" where there is none
    memory: str
    steps: ir.Group
    batch: ir.Group
    sides: ir.Group
    units: ir.Group
    batch_first: bool
    directions: tuple[Direction, ...]

    @property
    def stored(self) -> dict[str, tuple[ir.Group, ...]]:
        """Return the dimensions of its buffers."""
        outer = (self.batch, self.steps) if self.batch_first else (self.steps, self.batch)
        end: tuple[ir.Group, ...] = (self.sides, self.batch, self.units)
        ends = {name: end for name in (self.last, self.memory) if name}
        return {self.states: (*outer, (*self.sides, *self.units)), **ends}


Step = Stored | Library | Attended | Chained | Scattered | Ordered | Segmented | Recurrent


def made_by(step: Step) -> tuple[str, ...]:
    """Return the buffers that a step makes."""
    match step:
        case Library():
            return (step.node.name,)
        case Ordered():
            return (step.elements, step.places)
        case Attended() | Recurrent():
            return tuple(step.stored)
        case Chained():
            return tuple(outer.buffer for outer in step.outer)
        case _:
            return (step.buffer,)


S = TypeVar("S", bound=Step)


def with_values(step: S, change: Callable[[ir.Value], ir.Value]) -> S:
    """Return the step with the values that it computes replaced; attention, chained products, recurrent layers and
    library calls compute none."""
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
        case Chained():
            loads = [load for i in step.inner for load in (i.kept, i.walked)]
            return (*loads, *(o.factor for o in step.outer), *step.weights)
        case Recurrent():
            return tuple(value for direction in step.directions for value in direction.values)
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
