"""Reads of what the graph wrote before: `out[t] = h`, and then `out[t]`, or `out[t - 1]`.

Comes in: a graph. Goes out: the same one, where a place that was written last is read from what was written there, and
a place that the last write left alone from the tensor as it was before. A loop that fills a tensor row by row so stays
a chain of steps; otherwise each step would ask of every write before it whether that was here. Where all rows were
written, the tensor is their stack, and who reads it asks nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.graph.subgraph_match import refs_of, specs_of


@dataclass(frozen=True, slots=True)
class Places:
    """Which places of a dimension are read or written; of a single one the dimension may be dropped."""

    dim: int
    at: range
    dropped: bool

    def apart(self, other: Places) -> bool:
        """Return whether no place is among the other ones, as far as that is cheap to tell."""
        if self.dim != other.dim:
            return False
        if max(self.at[0], other.at[0]) > min(self.at[-1], other.at[-1]):
            return True
        few, many = sorted((self.at, other.at), key=len)
        return len(few) == 1 and few[0] not in many


def read_through(fp: FunctionalProblem) -> list[Node]:
    """Return the graph's nodes with reads of written places as above, and without copies that change nothing."""
    specs, made, same = specs_of(fp), dict[str, Node](), dict[str, Ref]()
    for whole in fp.nodes:
        node = renamed(whole, same)
        while (before := _before(node, made, specs)) is not None:
            node = replace(node, args=(before, *node.args[1:]))
        found = _equal_to(node, made, specs)
        if found is not None and node.name not in fp.results and specs.get(found.name) == node.outputs[0]:
            same[node.name] = found
        made[node.name] = node
    return list(made.values())


def stacked(nodes: Sequence[Node], results: Sequence[str], specs: Mapping[str, TensorSpec]) -> list[Node]:
    """Return the nodes with a stack in place of the last of writes that fill every place of a dimension, one each."""
    made = {node.name: node for node in nodes}
    uses = Counter([*results, *(name for node in nodes for name in refs_of(node))])
    return [_stack_of(node, made, uses, specs) or node for node in nodes]


def _stack_of(
    node: Node, made: Mapping[str, Node], uses: Mapping[str, int], specs: Mapping[str, TensorSpec]
) -> Node | None:
    """Return the stack of what a chain of writes that ends here wrote, or None where a place is left as it was."""
    last = places(node, specs) if base_name(node.op) == "select_scatter" else None
    if last is None:
        return None
    spec, written, step = node.outputs[0], dict[int, Ref](), node
    while (here := places(step, specs)) is not None and base_name(step.op) == "select_scatter" and here.dim == last.dim:
        before, piece = step.args[:2]
        if not isinstance(piece, Ref) or piece.name not in specs or specs[piece.name].dtype != spec.dtype:
            return None
        written.setdefault(here.at[0], piece)
        if not isinstance(before, Ref) or uses[before.name] != 1 or before.name not in made:
            break
        step = made[before.name]
    if len(written) != spec.shape[last.dim]:
        return None
    pieces = tuple(written[at] for at in range(len(written)))
    return Node(node.name, "aten.stack.default", (pieces, last.dim), (), node.outputs)


def renamed(node: Node, same: Mapping[str, Ref]) -> Node:
    """Return a node that refers to other names for the same values."""

    def new(value: Value) -> Value:
        if isinstance(value, Ref):
            return same.get(value.name, value)
        return tuple(map(new, value)) if isinstance(value, tuple) else value

    return replace(node, args=tuple(map(new, node.args)), kwargs=tuple((k, new(v)) for k, v in node.kwargs))


def _before(node: Node, made: Mapping[str, Node], specs: Mapping[str, TensorSpec]) -> Ref | None:
    """Return the tensor before the last write, where a node reads only what that left alone."""
    source, read, written = _last_write(node, made, specs)
    if source is None or read is None or written is None or not read.apart(written):
        return None
    return source.args[0] if isinstance(source.args[0], Ref) else None


def _equal_to(node: Node, made: Mapping[str, Node], specs: Mapping[str, TensorSpec]) -> Ref | None:
    """Return the name of what a node only says again: a copy, all of a tensor, or what was just written there."""
    arguments: Sequence[Value] = node.args
    if base_name(node.op) == "copy":
        return arguments[1] if isinstance(arguments[1], Ref) else None
    source, read, written = _last_write(node, made, specs)
    if source is not None and read is not None and read == written:
        return source.args[1] if isinstance(source.args[1], Ref) else None
    here = places(node, specs)
    if here is None or here.dropped or not isinstance(arguments[0], Ref):
        return None
    if here.at != range(specs[arguments[0].name].shape[here.dim]):
        return None
    said = arguments[1] if base_name(node.op) == "slice_scatter" else arguments[0]
    return said if isinstance(said, Ref) else None


def _last_write(
    node: Node, made: Mapping[str, Node], specs: Mapping[str, TensorSpec]
) -> tuple[Node | None, Places | None, Places | None]:
    """Return the write whose result a node reads from, the places read, and those written."""
    first = node.args[0] if node.args else None
    source = made.get(first.name) if isinstance(first, Ref) else None
    if base_name(node.op) not in {"select", "slice"} or source is None or not base_name(source.op).endswith("_scatter"):
        return None, None, None
    return source, places(node, specs), places(source, specs)


def places(node: Node, specs: Mapping[str, TensorSpec]) -> Places | None:
    """Return the places along a dimension that a select or slice reads, or its `_scatter` writes."""
    name, tensor = base_name(node.op), node.args[0] if node.args else None
    kind, moved = name.removesuffix("_scatter"), int(name.endswith("_scatter"))
    if kind not in {"select", "slice"} or not isinstance(tensor, Ref) or tensor.name not in specs:
        return None
    shape = specs[tensor.name].shape
    dim = given(node, 1 + moved, "dim", 0)
    if not isinstance(dim, int) or not shape:
        return None
    size = shape[dim % len(shape)]
    if kind == "select":
        index = given(node, 2 + moved, "index")
        if not isinstance(index, int) or not size:
            return None
        at = range(index % size, index % size + 1)
    else:
        bounds = [given(node, place + moved, word) for place, word in ((2, "start"), (3, "end"), (4, "step"))]
        if not all(bound is None or isinstance(bound, int) for bound in bounds):
            return None
        at = range(*slice(*bounds).indices(size))
    return Places(dim % len(shape), at, kind == "select") if at else None
