"""A product whose halves gate each other as two products: one kernel multiplies and gates, and stores nothing between.

Comes in: a problem's graph. Goes out: the same function, in which `linear(x, w)` that is cut in two, of which one half
multiplies a function of the other's elements (SwiGLU, GEGLU, `glu`), is a linear layer for each half of the weight.
Whether two products of one factor become one kernel is the planner's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.graph.rewrites import NewNodes, live
from rag_kernels.offline.graph.subgraph_match import refs_of, specs_of
from rag_kernels.offline.graph.written_places import renamed

CUTS = frozenset({"chunk", "split", "split_with_sizes"})
MOST_STEPS = 3  # between a half and the gate
FEW_ROWS = 64  # of what is multiplied: weights are streamed for so few, by a kernel that has one product


def with_gates_apart(fp: FunctionalProblem) -> FunctionalProblem:
    """Return the problem with a linear layer for each half of one that is gated by itself; itself if there is none."""
    graph = _Graph.of(fp)
    new = NewNodes({a.name for a in fp.arguments} | {n.name for n in fp.nodes})
    halves = dict[str, Ref]()
    found = {n.name: cut for n in fp.nodes if (cut := graph.cut_of(n))}
    if not found:
        return fp
    for node in fp.nodes:
        if node.name in found:
            made = _apart(new, node, graph.specs)
            cut = found[node.name]
            for piece in graph.readers[cut.name] if base_name(cut.op) in CUTS else ():
                halves[piece.name] = made[1 if piece.args[1] else 0]
            if base_name(cut.op) == "glu":
                halves[f"{cut.name} left"], halves[f"{cut.name} right"] = made
        elif f"{node.name} left" in halves:
            gate = new.add(f"{node.name}_gate", node.outputs[0], "sigmoid.default", halves[f"{node.name} right"])
            new.made.append(Node(node.name, "aten.mul.Tensor", (halves[f"{node.name} left"], gate), (), node.outputs))
        else:
            new.made.append(renamed(node, halves))
    return live(fp, new.made)


def _apart(new: NewNodes, node: Node, specs: Mapping[str, TensorSpec]) -> tuple[Ref, Ref]:
    """Add the layers of both halves, and return their results."""
    source, weight, bias = node.args[0], given(node, 1), given(node, 2, "bias")
    spec = node.outputs[0]
    half = spec.shape[-1] // 2
    made = []
    for number in (0, 1):
        cut = (0, number * half, (number + 1) * half)
        like = f"{node.name}_half{number}"
        rows = TensorSpec((half, *specs[weight.name].shape[1:]), specs[weight.name].dtype)
        arguments = [source, new.add(f"{like}_weight", rows, "slice.Tensor", weight, *cut)]
        if bias is not None:
            each = TensorSpec((half,), specs[bias.name].dtype)
            arguments.append(new.add(f"{like}_bias", each, "slice.Tensor", bias, *cut))
        made.append(new.add(like, TensorSpec((*spec.shape[:-1], half), spec.dtype), "linear.default", *arguments))
    return made[0], made[1]


@dataclass(frozen=True, slots=True)
class _Graph:
    """What reads what."""

    specs: Mapping[str, TensorSpec]
    results: Sequence[str]
    readers: Mapping[str, list[Node]] = field(default_factory=dict)

    @classmethod
    def of(cls, fp: FunctionalProblem) -> _Graph:
        readers = dict[str, list[Node]]()
        for node in fp.nodes:
            for name in refs_of(node):
                readers.setdefault(name, []).append(node)
        return cls(specs_of(fp), fp.results, readers)

    def reader_of(self, name: str) -> Node | None:
        """Return the only operator that reads a value, once."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and name not in self.results else None

    def cut_of(self, node: Node) -> Node | None:
        """Return the operator that cuts a linear layer into halves which gate each other, or None if none does."""
        cut = self.reader_of(node.name) if base_name(node.op) == "linear" else None
        weight = given(node, 1)
        if cut is None or not isinstance(weight, Ref) or cut.args[0] != Ref(node.name):
            return None
        *rows, width = node.outputs[0].shape
        name, last = base_name(cut.op), len(rows)
        at = given(cut, 1 if name == "glu" else 2, "dim", -1 if name == "glu" else 0)
        if width % 2 or at not in (-1, last) or prod(rows) <= FEW_ROWS:
            return None
        if name == "glu":
            return cut
        pieces = self.readers.get(cut.name, [])
        equal = [spec.shape[-1] for spec in cut.outputs] == [width // 2] * 2
        both = name in CUTS and equal and sorted(str(p.args[1]) for p in pieces if p.op == "getitem") == ["0", "1"]
        met = [self.gate_of(piece) for piece in pieces] if both and len(pieces) == 2 else []
        return cut if met and met[0] is not None and met[0] is met[1] else None

    def gate_of(self, piece: Node) -> Node | None:
        """Return the product in which a half, or a function of its elements, meets the other."""
        node: Node | None = piece
        for _ in range(MOST_STEPS):
            node = self.reader_of(node.name) if node else None
            if node is None or base_name(node.op) == "mul":
                return node
            if not operator(node.op).elementwise:
                return None
        return None
