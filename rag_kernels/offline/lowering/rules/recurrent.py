"""Rules of recurrent layers: LSTM, GRU and plain ones, as products over all steps and what recurs behind each.

Comes in: a graph node and the `Lowering` that builds values. Goes out: its values, or `ir.Unfusable` with the reason.
What an input comes to at all steps is one product; the rest is a step of its own (`steps.Recurrent`), layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rag_kernels.eval.records import Node, Ref, TensorSpec
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import add, equal, where
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.recurrence import GATES, division_of
from rag_kernels.offline.lowering.computed import iota
from rag_kernels.offline.lowering.lower import Lowering
from rag_kernels.offline.lowering.rules.product import product, transposed
from rag_kernels.offline.lowering.steps import Direction, Recurrent

Pair = tuple[ir.Value, ...]  # a hidden state, and the memory of an LSTM


def recurrent(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    """Return the states of all steps, and for each layer and direction the last one, with the memory of an LSTM."""
    layers = _Layers.of(lowering, node)
    x, last = lowering.value(given(node, 0)), list[Pair]()
    for layer in range(layers.count):
        directions = [layers.direction(x, layer * layers.sides + side, back=side > 0) for side in range(layers.sides)]
        x, *ends = layers.step(directions, node.outputs[0].dtype)
        last += [tuple(_side(lowering, end, side) for end in ends) for side in range(layers.sides)]
    return x, *(_stacked(lowering, states) for states in zip(*last, strict=True))


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of one operator, whose parameters are in the order of PyTorch."""

    lowering: Lowering
    cell: str
    states: tuple[Any, ...]  # before the first step, of all layers and directions
    parameters: tuple[Any, ...]
    biased: bool
    count: int
    sides: int
    batch_first: bool

    @classmethod
    def of(cls, lowering: Lowering, node: Node) -> _Layers:
        """Return the layers of a node; raises Unfusable where kernels do not serve them."""
        cell, x, states = base_name(node.op), given(node, 0), given(node, 1)
        parameters, biased, count, dropout, train, both, batch_first = (given(node, place) for place in range(2, 9))
        if not lowering.recurs or not node.op.endswith(".input"):
            raise ir.Unfusable("a layer that recurs")
        if train and dropout:
            raise ir.Unfusable("dropout between layers")
        states = tuple(states) if isinstance(states, Sequence) else (states,)
        sides, each = 1 + bool(both), 4 if biased else 2
        made = cls(lowering, cell, states, tuple(parameters), bool(biased), count, sides, bool(batch_first))
        shape = lowering.value(x).shape
        width = lowering.value(parameters[1]).shape[1]
        if len(parameters) != each * count * sides:
            raise ir.Unfusable("a projection of states")
        if lowering.value(x).dtype != "float32" or not all(shape) or width < 2:
            raise ir.Unfusable("steps of another form")
        if division_of(cell, width, shape[0 if batch_first else 1], sides) is None:
            raise ir.Unfusable("a layer whose weights or batch are large")
        return made

    def direction(self, x: ir.Value, place: int, *, back: bool) -> Direction:
        """Return one direction of a layer: what its input comes to, stored, and what the state is multiplied by."""
        lowering, each = self.lowering, 4 if self.biased else 2
        of_input, of_state, *biases = self.parameters[place * each : (place + 1) * each]
        gates = product(lowering, x, transposed(lowering, lowering.value(of_input)))
        bias: ir.Value = ir.Const((), "float32", 0)
        if self.biased:
            gates = lowering.op(add, gates, lowering.value(biases[0]))
            bias = self.whole(biases[1])
        first = tuple(self.before(states, place) for states in self.states)
        return Direction(lowering.reload(gates), self.whole(of_state), bias, first, back)

    def step(self, directions: Sequence[Direction], storage: str) -> tuple[ir.Load, ...]:
        """Return the states of a layer at all steps, the last ones by direction, and an LSTM's last memory.

        They are stored in the dtype `storage`.
        """
        lowering, [one, *others] = self.lowering, directions
        gates, units = one.gates.dims[2], one.weight.dims[1]
        batch, steps = one.gates.dims[:2] if self.batch_first else one.gates.dims[1::-1]
        for direction in directions:
            for mine, theirs in zip(one.gates.dims, direction.gates.dims, strict=True) if others else ():
                self.same(mine, theirs)
            self.same(gates, direction.weight.dims[0])
            self.same(units, direction.weight.dims[1])
            for group in direction.bias.dims:
                self.same(gates, group)
            for first in direction.first:
                for mine, theirs in zip((batch, units), first.dims, strict=bool(first.dims)):
                    self.same(mine, theirs)
        for leaf in ir.leaves((*gates, *units)):
            leaf.fixed = True
        names = [f"{what}{len(lowering.steps)}" for what in ("states", "last", "memory")]
        while any(name in lowering.specs or name in lowering.env for name in names):
            names = [name + "_" for name in names]
        names = names if self.cell == "lstm" else names[:2]
        sides = (ir.Atom(len(directions), fixed=True),) if others else ()
        buffers = (names[0], names[1], "".join(names[2:]))
        made = Recurrent(self.cell, *buffers, steps, batch, sides, units, self.batch_first, tuple(directions))
        for name, dims in made.stored.items():
            lowering.specs[name] = TensorSpec(tuple(map(ir.size_of, dims)), storage)
        lowering.steps.append(made)
        found = tuple(ir.load(name, lowering.specs[name].shape, storage) for name in names)
        lowering.made.update(found)
        return found

    def same(self, mine: ir.Group, theirs: ir.Group) -> None:
        """Make two dimensions the same loops."""
        if mine is not theirs:
            self.lowering.loops.unify(mine, theirs)

    def whole(self, argument: Ref) -> ir.Load:
        """Return a tensor of the graph as a load with loops of its own."""
        name = self.lowering.buffer(argument.name)
        spec = self.lowering.specs[name]
        return ir.load(name, spec.shape, spec.dtype)

    def before(self, argument: Ref, place: int) -> ir.Value:
        """Return the state before the first step: zero, or what stands at a place of a tensor."""
        known = strip(self.lowering.value(argument))
        if isinstance(known, ir.Const) and not known.name:
            return ir.Const((), "float32", known.number)
        whole = self.whole(argument)
        index = (ir.Form((), place), *whole.index[1:])
        return ir.Load(whole.dims[1:], whole.dtype, whole.buffer, whole.stored, index, whole.storage)


def _side(lowering: Lowering, value: ir.Value, side: int) -> ir.Value:
    """Return what one direction has of states of both."""
    found = lowering.reindex(value, 0, lambda: (ir.Form((), side), ()))
    return lowering.with_dims(found, found.dims[1:])


def _stacked(lowering: Lowering, values: Sequence[ir.Value]) -> ir.Value:
    """Return values of layers and directions along a first dimension."""
    group = (ir.Atom(len(values), fixed=True),) if len(values) > 1 else ()
    found = lowering.with_dims(values[0], (group, *values[0].dims))
    if not group:
        return found
    here = iota(lowering, group, trailing=len(values[0].dims))
    for place, value in enumerate(values[1:], 1):
        there = lowering.op(lambda i, place=place: equal(i, place), here)
        found = lowering.op(where, there, lowering.with_dims(value, ((), *value.dims)), found)
    return found


RECURRENT = dict.fromkeys(GATES, recurrent)
