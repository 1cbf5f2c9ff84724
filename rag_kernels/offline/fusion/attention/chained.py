"""Products of which one factor is computed of other products, as one step: the gradients of attention.

Comes in: a problem in which weights are `exp(scores - a number for each row)`, and the rules by operator name. Goes
out: steps in which these weights are never stored, but are expressions of stand-ins for the products inside
(`Chained`). Where something else needs a product, nothing is recognised, and all is lowered as without this file.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.fusion.attention.operands import as_values, laid_out, settled_score, with_own_loops
from rag_kernels.offline.fusion.attention.recognition import (
    BETWEEN,
    is_product,
    operands_named,
    plain_load,
    product_apart,
    read_back,
    reads_of,
    weighted_sum,
)
from rag_kernels.offline.graph.nodes import refs
from rag_kernels.offline.graph.subgraph_match import specs_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.expressions import binary
from rag_kernels.offline.lowering.lower import Entry, Lowering, Rule
from rag_kernels.offline.lowering.steps import Attended, Chained, Inner, Lowered, Outer, values_of
from rag_kernels.offline.lowering.which_products import PRODUCTS

WIDEST, WIDEST_OF_HALVES = 128, 256  # elements of a row of any factor, and where all have sixteen bits
MOST_SUMS = 256  # elements of all rows of sums that one step makes


@dataclass(frozen=True, slots=True)
class Chain:
    """The names of products of which weights are computed, and of those that take the weights."""

    inner: frozenset[str]
    outer: frozenset[str]


def find_chains(fp: FunctionalProblem) -> Iterator[Chain]:
    """Yield the places of a graph at which powers of products, by numbers of their rows, are factors of products."""
    nodes, users, specs = {n.name: n for n in fp.nodes}, defaultdict[str, list[Node]](list), specs_of(fp)
    for node in fp.nodes:
        for name in dict.fromkeys(refs((*node.args, *(v for _, v in node.kwargs)))):
            users[name].append(node)
    for node in fp.nodes:
        if base_name(node.op) == "exp" and _is_by_rows(nodes, specs, node):
            size = math.prod(node.outputs[0].shape)
            behind = _behind(node, users, size)
            if behind is not None and not behind[0] & set(fp.results):
                inner = {p for name in behind[0] for p in _products_before(name, nodes, size)}
                yield Chain(frozenset(inner), frozenset(behind[1]))


def factors_of(fp: FunctionalProblem, chains: Sequence[Chain]) -> frozenset[str]:
    """Return the names of what these products multiply, through views and in other dtypes."""
    nodes, found = {n.name: n for n in fp.nodes}, set[str]()
    waiting = [name for c in chains for p in (*c.inner, *c.outer) for name in refs(nodes[p].args)]
    while waiting:
        name = waiting.pop()
        node = nodes.get(name)
        found.add(name)
        waiting += refs(node.args[:1]) if node and base_name(node.op) in BETWEEN else ()
    return frozenset(found)


def _is_by_rows(nodes: dict[str, Node], specs: dict[str, TensorSpec], power: Node) -> bool:
    """Return whether a node is exp(x - row)."""
    below = nodes.get(next(iter(refs(power.args)), ""))
    if below is None or base_name(below.op) != "sub" or not all(isinstance(a, Ref) for a in below.args):
        return False
    shapes = [specs[name].shape for name in refs(below.args)]
    return len(shapes[0]) > 2 and shapes[1] == (*shapes[0][:-1], 1)


def _behind(start: Node, users: dict[str, list[Node]], size: int) -> tuple[set[str], set[str]] | None:
    """Return what is computed of a node, element by element, and the products that take it; None if aught else does."""
    found, products, waiting = {start.name}, set[str](), [start.name]
    while waiting:
        for user in users[waiting.pop()]:
            if is_product(user):
                products.add(user.name)
            elif math.prod(user.outputs[0].shape) != size:
                return None
            elif user.name not in found:
                found.add(user.name)
                waiting.append(user.name)
    return found, products


def _products_before(name: str, nodes: dict[str, Node], size: int) -> set[str]:
    """Return the products of which a value is computed, element by element."""
    found, seen, waiting = set[str](), set[str](), [name]
    while waiting:
        node = nodes.get(waiting.pop())
        if node is None or node.name in seen or math.prod(node.outputs[0].shape) != size:
            continue
        seen.add(node.name)
        if is_product(node):
            found.add(node.name)
        else:
            waiting += refs(node.args)
    return found


@dataclass(slots=True)
class ChainRecogniser:
    """Rules for the products of some chains; all other operators keep theirs."""

    chains: Sequence[Chain]
    known: dict[str, Rule]
    products: dict[str, Inner] = field(default_factory=dict)  # by the buffer of its stand-in
    done: set[str] = field(default_factory=set)

    def rules(self) -> dict[str, Rule]:
        """Return the rules by operator name."""
        return self.known | {name: partial(self.rule, name) for name in sorted(PRODUCTS)}

    def rule(self, name: str, lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
        """Return what a product is: a stand-in inside of a chain, what a step makes at its end."""
        if any(node.name in chain.inner for chain in self.chains):
            return self.inner(lowering, node)
        if any(node.name in chain.outer for chain in self.chains):
            return self.outer(lowering, node)
        if name not in self.known:
            raise ir.Unfusable("left to the library")
        return self.known[name](lowering, node)

    def left(self, lowered: Lowered) -> list[Chain]:
        """Return the chains of which a product was not recognised, or is needed by something else."""
        read = [v for s in lowered.steps if not isinstance(s, Chained) for v in values_of(s)]
        read += [s.score for s in lowered.steps if isinstance(s, Attended)]
        needed = {name.removeprefix(STAND_IN) for name in reads_of(*read) if name.startswith(STAND_IN)}
        return [c for c in self.chains if not {*c.inner, *c.outer} <= self.done or c.inner & needed]

    def inner(self, lowering: Lowering, node: Node) -> ir.Value:
        """Return a product with a stand-in for its sums."""
        made = lambda: PRODUCTS[base_name(node.op)](lowering, node)  # noqa: E731
        value, a, b, stand_in, depth = product_apart(lowering, operands_named(node), made, STAND_IN + node.name)
        self.products[stand_in.buffer] = Inner(a, b, stand_in, depth)
        self.done.add(node.name)
        return value

    def outer(self, lowering: Lowering, node: Node) -> ir.Value:
        """Return what a product with weights makes, read from the buffer of a new step."""
        pair = operands_named(node)
        weights = [ref for ref in pair if reads_of(lowering.value(ref)) & self.products.keys()]
        others = [ref for ref in pair if ref not in weights]
        if len(weights) != 1 or len(others) != 1:
            raise ir.Unfusable("no product of weights and a factor")
        weight, entry = lowering.value(weights[0]), lowering.env[weights[0].name]
        stand_in = plain_load(f"weights of {node.name}", weight.dims)
        lowering.env[weights[0].name] = Entry((lowering.tracked(stand_in),), dtype=entry.dtype)
        try:
            with_own_loops(lowering, others)
            value = as_values(lowering, pair, lambda: PRODUCTS[base_name(node.op)](lowering, node))
        finally:
            lowering.env[weights[0].name] = entry
        total, factor, scales = weighted_sum(value, stand_in, half=True)
        for operator, number in scales:
            weight = lowering.op(binary(operator), weight, number)
        step = self.step(lowering, node, weight, stand_in, total, factor)
        lowering.steps.append(step)
        self.done.add(node.name)
        made = step.outer[0]
        return lowering.tracked(read_back(made.buffer, made.dims, made.storage, value.dims))

    def step(
        self, lowering: Lowering, node: Node, weight: ir.Value, stand_in: ir.Load, total: ir.Reduce, factor: ir.Load
    ) -> Chained:
        """Return the step of one product with weights."""
        walked = ir.leaves(total.over)
        out = ir.leaves(a for group in total.dims for a in group)
        placed = set(ir.leaves(a for group in stand_in.dims for a in group))
        columns = tuple(a for a in out if a not in placed)
        factor = laid_out(lowering, factor, {*out, *walked}, columns)
        used = [self.products[name] for name in sorted(reads_of(weight) & self.products.keys())]
        rows = tuple(a for a in out if a in placed and a not in ir.tree_atoms(factor))
        weight = settled_score(lowering, weight, [i.product for i in used], walked)
        inner = tuple(_sided(i, set(walked), set(rows)) for i in used)
        factors = (factor, *(load for i in inner for load in (i.kept, i.walked)))
        widest = WIDEST_OF_HALVES if {load.storage for load in factors} <= HALF else WIDEST
        if not columns or not rows or max(map(ir.size_of, (columns, *(i.depth for i in inner)))) > widest:
            raise ir.Unfusable("factors of another size")
        for atom in ir.leaves((*columns, *(a for i in inner for a in i.depth))):
            atom.fixed = atom.head = True
        order = (*(a for a in out if a not in columns), *columns)
        name = next(f"chained{n}" for n in count() if f"chained{n}" not in lowering.specs)
        storage = node.outputs[0].dtype
        lowering.specs[name] = TensorSpec(tuple(a.size for a in order), storage)
        made = Outer(name, tuple((a,) for a in order), weight, factor, columns, storage)
        return Chained(inner, (made,), rows, walked)


STAND_IN = "product of "


def _sided(inner: Inner, walked: set[ir.Atom], rows: set[ir.Atom]) -> Inner:
    """Return a product with the factor first that has the rows that stay; raises Unfusable where none or both have."""
    a, b = inner.kept, inner.walked
    if ir.tree_atoms(a) & walked:
        a, b = b, a
    if ir.tree_atoms(a) & walked or ir.tree_atoms(b) & rows or not ir.tree_atoms(b) & walked:
        raise ir.Unfusable("a product of other rows")
    return replace(inner, kept=a, walked=b)


def joined(lowered: Lowered) -> Lowered:
    """Return the steps in which chained products of the same rows are one, at the place of the last of them."""
    steps = list(lowered.steps)
    for place, step in enumerate(steps):
        if not isinstance(step, Chained):
            continue
        made = {outer.buffer for outer in step.outer}
        for later in range(place + 1, len(steps)):
            other = steps[later]
            if isinstance(other, Chained) and _loops(other) == _loops(step) and _sums(step) + _sums(other) <= MOST_SUMS:
                inner = {i.product: i for i in (*step.inner, *other.inner)}
                steps[later] = Chained(tuple(inner.values()), (*step.outer, *other.outer), other.rows, other.walked)
                steps[place] = replace(step, outer=())
                break
            if made & {*reads_of(*values_of(other)), *_named(other)}:
                break
    return replace(lowered, steps=tuple(s for s in steps if not isinstance(s, Chained) or s.outer))


def _loops(step: Chained) -> tuple[frozenset[ir.Atom], ...]:
    """Return the loops of a step: rows, what is walked, and batches."""
    rows, walked = frozenset(ir.leaves(step.rows)), frozenset(ir.leaves(step.walked))
    columns = {a for o in step.outer for a in ir.leaves(o.columns)}
    batches = {a for o in step.outer for group in o.dims for a in ir.leaves(group)}
    return rows, walked, frozenset(batches - rows - columns)


def _sums(step: Chained) -> int:
    """Return how many sums each row of a step has."""
    return sum(ir.size_of(outer.columns) for outer in step.outer)


def _named(step: object) -> set[str]:
    """Return the names that a library call reads, and what attention's scores read."""
    node = getattr(step, "node", None)
    score = reads_of(step.score) if isinstance(step, Attended) else set()
    return score | (set(refs((*node.args, *(v for _, v in node.kwargs)))) if node else set())
