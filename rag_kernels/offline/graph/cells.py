"""Steps of recurrent cells as their products and gates, which kernels of ours are written for.

Comes in: a problem's graph. Goes out: the same function, in which `gru_cell`, `lstm_cell` and the two `rnn` cells are
linear layers, pieces of these and pointwise operators, as PyTorch's own documentation has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.graph.rewrites import NewNodes, live

SAME = "aten.clone.default"


def with_cells_written_out(fp: FunctionalProblem) -> FunctionalProblem:
    """Return the problem with each recurrent cell in its parts; itself if it has none."""
    if not any(base_name(node.op) in CELLS for node in fp.nodes):
        return fp
    new = NewNodes({a.name for a in fp.arguments} | {n.name for n in fp.nodes})
    states = dict[str, tuple[Ref, ...]]()
    for node in fp.nodes:
        source = node.args[0] if node.op == "getitem" else None
        if cell := CELLS.get(base_name(node.op)):
            found = states[node.name] = cell(_Cell(new, node))
            if len(found) == 1:
                new.made.append(Node(node.name, SAME, found, (), node.outputs))
        elif isinstance(source, Ref) and source.name in states and isinstance(place := node.args[1], int):
            new.made.append(Node(node.name, SAME, (states[source.name][place],), (), node.outputs))
        else:
            new.made.append(node)
    return live(fp, new.made)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One step of a cell, and the operators that it becomes."""

    new: NewNodes
    node: Node

    @property
    def spec(self) -> TensorSpec:
        """Return what a state looks like."""
        return self.node.outputs[0]

    def gates(self, state: Value, place: int, count: int) -> list[Ref]:
        """Return the pieces of a linear layer of the input (place 0) or of the state (place 1)."""
        source = (given(self.node, 0), state)[place]
        weight, bias = given(self.node, 2 + place), given(self.node, 4 + place, ("b_ih", "b_hh")[place])
        wide = TensorSpec((*self.spec.shape[:-1], count * self.spec.shape[-1]), self.spec.dtype)
        layer = self.new.add(f"{self.node.name}_{place}", wide, "linear.default", source, weight, bias)
        if count == 1:
            return [layer]
        size = self.spec.shape[-1]
        ends = [(-1, i * size, (i + 1) * size) for i in range(count)]
        return [self.new.add(f"{layer.name}_gate", self.spec, "slice.Tensor", layer, *end) for end in ends]

    def do(self, operator: str, *args: Value) -> Ref:
        return self.new.add(f"{self.node.name}_step", self.spec, operator, *args)

    def sums(self, state: Value, count: int) -> list[Ref]:
        """Return what input and state come to, for each gate."""
        both = zip(self.gates(state, 0, count), self.gates(state, 1, count), strict=True)
        return [self.do("add.Tensor", x, h) for x, h in both]


def _gru(cell: _Cell) -> tuple[Ref, ...]:
    state = given(cell.node, 1)
    x, h = (cell.gates(state, place, 3) for place in (0, 1))
    reset, update = (cell.do("sigmoid.default", cell.do("add.Tensor", x[i], h[i])) for i in (0, 1))
    new = cell.do("tanh.default", cell.do("add.Tensor", x[2], cell.do("mul.Tensor", reset, h[2])))
    return (cell.do("add.Tensor", new, cell.do("mul.Tensor", update, cell.do("sub.Tensor", state, new))),)


def _lstm(cell: _Cell) -> tuple[Ref, ...]:
    states = given(cell.node, 1)
    assert isinstance(states, Sequence)
    gates = cell.sums(states[0], 4)
    taken, forgotten, shown = (cell.do("sigmoid.default", gates[i]) for i in (0, 1, 3))
    kept = cell.do("mul.Tensor", forgotten, states[1])
    memory = cell.do("add.Tensor", kept, cell.do("mul.Tensor", taken, cell.do("tanh.default", gates[2])))
    return cell.do("mul.Tensor", shown, cell.do("tanh.default", memory)), memory


def _plain(activation: str) -> Callable[[_Cell], tuple[Ref, ...]]:
    def step(cell: _Cell) -> tuple[Ref, ...]:
        [total] = cell.sums(given(cell.node, 1), 1)
        return (cell.do(f"{activation}.default", total),)

    return step


CELLS: dict[str, Callable[[_Cell], tuple[Ref, ...]]] = {
    "gru_cell": _gru,
    "lstm_cell": _lstm,
    "rnn_tanh_cell": _plain("tanh"),
    "rnn_relu_cell": _plain("relu"),
}
