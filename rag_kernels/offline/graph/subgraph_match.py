"""Matches of a pattern graph in a target graph: the same operators, the same numbers, values bound to its inputs.

Comes in: two functional problems. Goes out: every `Match`: the target's operators, the arguments with which the
pattern's kernel would be called, and the values that it would compute. A number may differ where it is a size of an
input, or where the pattern's functional form carries it as a keyword. Knows nothing of archives and texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rag_kernels.eval.records import (
    FunctionalProblem,
    Node,
    Ref,
    Scalar,
    ScalarArgument,
    TensorArgument,
    TensorSpec,
    Value,
)
from rag_kernels.eval.traits.aten import operator
from rag_kernels.offline.graph.nodes import refs

LARGEST = 40  # operators of a pattern
STEPS = 50_000  # of the search for a pattern

Place = tuple[str | int, ...]  # operator, argument, and within a tuple
Pair = tuple[Value, Value, Place, int]  # pattern's, target's, where, and the rank that dimensions count in


@dataclass(frozen=True, slots=True)
class Match:
    """A part of the target that the pattern's kernel can compute."""

    nodes: frozenset[str]
    arguments: tuple[Value, ...]  # of the call, in the order of the kernel contract, without outputs
    outputs: tuple[str, ...]  # names of the target, for the pattern's results in order


@dataclass(slots=True)
class _Found:
    """What a pattern's names and numbers have come to stand for so far."""

    names: dict[str, Value] = field(default_factory=dict)
    numbers: list[tuple[Place, Scalar, Scalar]] = field(default_factory=list)

    def copy(self) -> _Found:
        return _Found(dict(self.names), list(self.numbers))

    def number(self, p: Scalar, t: Scalar, place: Place, rank: int) -> bool:
        """Record two literals that correspond, and return whether they may.

        Numbers of one type may differ if the kernel turns out to receive them; everything else must be equal.
        """
        if type(p) is not type(t):
            return False
        if isinstance(p, bool | str | None):
            return p == t
        if rank and isinstance(p, int) and isinstance(t, int) and p % rank == t % rank:
            t = p  # the same dimension
        self.numbers.append((place, p, t))
        return True


def matches(pattern: FunctionalProblem, target: FunctionalProblem) -> Iterator[Match]:
    """Yield every match of the pattern in the target; matches may overlap."""
    if not _can_match(pattern):
        return
    anchor = pattern.results[-1]
    search = _Search(pattern, target)
    for node in target.nodes:
        found = search.solve([(Ref(anchor), Ref(node.name), (), 0)], _Found())
        if found is not None:
            yield found


def stands_free(target: FunctionalProblem, nodes: frozenset[str]) -> bool:
    """Return whether these operators can run as one call.

    They can if no other operator must come after some of them and before others.
    """
    behind: set[str] = set()
    for node in target.nodes:
        late = not behind.isdisjoint(refs_of(node))
        if node.name in nodes:
            if late:
                return False
        elif late or not nodes.isdisjoint(refs_of(node)):
            behind.add(node.name)
    return True


def refs_of(node: Node) -> list[str]:
    """Return all names that an operator refers to."""
    return [*refs(node.args), *refs(tuple(v for _, v in node.kwargs))]


def specs_of(fp: FunctionalProblem) -> dict[str, TensorSpec]:
    """Return the specs of all names that stand for one tensor."""
    made = {n.name: n.outputs[0] for n in fp.nodes if len(n.outputs) == 1}
    return {a.name: a.spec for a in fp.tensors} | made


def _can_match(pattern: FunctionalProblem) -> bool:
    """Return whether every input of the pattern is used, and every output is computed, each once."""
    names = {n.name for n in pattern.nodes}
    used = {name for n in pattern.nodes for name in refs_of(n)}
    outputs = set(pattern.results) <= names and len(set(pattern.results)) == len(pattern.results)
    whole = outputs and all(a.name in used for a in pattern.arguments)
    return whole and 0 < len(names) <= LARGEST and not pattern.uses_random


class _Search:
    """One pattern and one target; `solve` binds pairs until none is left, and tries both orders of a sum."""

    def __init__(self, pattern: FunctionalProblem, target: FunctionalProblem) -> None:
        self.pattern, self.target = pattern, target
        self.inputs = {a.name: a for a in pattern.arguments}
        self.parts = {n.name: n for n in pattern.nodes}
        self.nodes = {n.name: n for n in target.nodes}
        self.specs = specs_of(target)
        self.scalars = {a.name: a.value for a in target.arguments if isinstance(a, ScalarArgument)}
        self.users: dict[str, set[str]] = {name: {""} for name in target.results}
        for node in target.nodes:
            for name in refs_of(node):
                self.users.setdefault(name, set()).add(node.name)
        self.left = STEPS

    def solve(self, todo: list[Pair], found: _Found) -> Match | None:
        """Return the match that follows from binding these pairs, or None.

        `todo` pairs pattern values with target values; both orders of a commutative operator are tried.
        """
        while todo:
            self.left -= 1
            p, t, place, rank = todo.pop()
            if self.left < 0:
                return None
            if isinstance(p, tuple):
                if not isinstance(t, tuple) or len(t) != len(p):
                    return None
                todo += [(a, b, (*place, i), rank) for i, (a, b) in enumerate(zip(p, t, strict=True))]
            elif not isinstance(p, Ref):
                if isinstance(t, Ref | tuple) or not found.number(p, t, place, rank):
                    return None
            elif p.name in found.names:
                if found.names[p.name] != t:
                    return None
            elif p.name in self.inputs:
                if not self.binds(self.inputs[p.name], t):
                    return None
                found.names[p.name] = t
            else:
                orders = self.orders(self.parts[p.name], t, found)
                found.names[p.name] = t
                if len(orders) != 1:
                    return self.first([([*todo, *order], found.copy()) for order in orders])
                todo += orders[0]
        return self.rest(found)

    def first(self, ways: Sequence[tuple[list[Pair], _Found]]) -> Match | None:
        """Return the match of the first way that leads to one."""
        return next((match for way in ways if (match := self.solve(*way)) is not None), None)

    def rest(self, found: _Found) -> Match | None:
        """Return the match once results that the first one does not lead to are bound as well."""
        name = next((name for name in self.pattern.results if name not in found.names), None)
        if name is None:
            return self.match(found)
        op = self.parts[name].op
        ways = [[(Ref(name), Ref(n.name), (), 0)] for n in self.target.nodes if n.op == op]
        return self.first([(list[Pair](way), found.copy()) for way in ways])

    def binds(self, argument: TensorArgument | ScalarArgument, t: Value) -> bool:
        """Return whether an input of the pattern can be this value."""
        if isinstance(argument, TensorArgument):
            return isinstance(t, Ref) and t.name in self.specs and alike(argument.spec, self.specs[t.name])
        number = self.scalars.get(t.name) if isinstance(t, Ref) else t
        return type(number) is type(argument.value)

    def orders(self, part: Node, t: Value, found: _Found) -> list[list[Pair]]:
        """Return pairs of arguments in each order that is worth a try; none when the operators differ."""
        node = self.nodes.get(t.name) if isinstance(t, Ref) else None
        if node is None or node.op != part.op or t in found.names.values() or len(part.outputs) != len(node.outputs):
            return []
        ours, theirs = _arguments(part), _arguments(node)
        if ours.keys() != theirs.keys() or not all(map(alike, part.outputs, node.outputs)):
            return []
        first = next(iter(refs_of(node)), "")
        rank = len(self.specs[first].shape) if first in self.specs else 0
        axes = operator(part.op).dims
        straight: list[Pair] = [(ours[k], theirs[k], (part.op, k), rank if k in axes else 0) for k in ours]
        if not _commutes(part) or not _commutes(node):
            return [straight]
        return [straight, [(ours[0], theirs[1], (part.op, 0), 0), (ours[1], theirs[0], (part.op, 1), 0)]]

    def match(self, found: _Found) -> Match | None:
        """Return the match, if nothing outside reads its inner values and its kernel can be told all numbers."""
        bound = {p: t.name for p, t in found.names.items() if p in self.parts and isinstance(t, Ref)}
        nodes = frozenset(bound.values())
        hidden = [t for p, t in bound.items() if p not in self.pattern.results]
        inputs = [found.names[a.name] for a in self.pattern.arguments]
        if any(not self.users[name] <= nodes for name in hidden) or not nodes.isdisjoint(refs(tuple(inputs))):
            return None
        numbers = self.constants(found)
        if numbers is None or not stands_free(self.target, nodes):
            return None
        return Match(nodes, (*inputs, *numbers), tuple(bound[name] for name in self.pattern.results))

    def constants(self, found: _Found) -> list[Scalar] | None:
        """Return the keyword constants as the target has them, or None when a number differs that is no keyword.

        A number is known by its text, so that 1, 1.0 and True are three. One that stands in several places may be the
        keyword in only some of them: it must not differ then, unless all are the same argument of the same operator.
        """
        keywords = [repr(value) for _, value in self.pattern.abi_constants]
        sizes = self.sizes(found)
        uses: dict[str, list[tuple[Place, Scalar, Scalar]]] = {}
        for use in found.numbers:
            uses.setdefault(repr(use[1]), []).append(use)
        told: dict[str, Scalar] = {}
        for text, there in uses.items():
            values = {repr(t): t for _, _, t in there}
            carried = keywords.count(text)
            free = carried == 1 and len(values) == 1 and len({place for place, _, _ in there}) == 1
            differ = [(p, t) for _, p, t in there if repr(t) != text]
            if (not free and not all(pair in sizes for pair in differ)) or (carried and len(values) > 1):
                return None
            told[text] = next(iter(values.values()))
        return [told.get(repr(value), value) for _, value in self.pattern.abi_constants]

    def sizes(self, found: _Found) -> set[tuple[Scalar, Scalar]]:
        """Return pairs of sizes (pattern's, target's) that numbers may stand for.

        They are of dimensions of the inputs, of neighbouring dimensions together, and of what is left of these in
        groups that are as many in both.
        """
        out: set[tuple[int, int]] = set()
        for argument in self.pattern.tensors:
            bound = found.names[argument.name]
            assert isinstance(bound, Ref)
            ours, theirs = argument.spec.shape, self.specs[bound.name].shape
            for first in range(len(ours)):
                for last in range(first + 1, len(ours) + 1):
                    out.add((math.prod(ours[first:last]), math.prod(theirs[first:last])))
        groups = {p for _, p, t in found.numbers if isinstance(p, int) and p == t and p > 1}
        return {(a // g, b // g) for a, b in out for g in (1, *groups) if a % g == b % g == 0}


def alike(ours: TensorSpec, theirs: TensorSpec) -> bool:
    """Return whether two specs have the same dtype and rank, and broadcast along the same dimensions."""
    same = ours.dtype == theirs.dtype and len(ours.shape) == len(theirs.shape)
    return same and all((a == 1) == (b == 1) for a, b in zip(ours.shape, theirs.shape, strict=True))


def _arguments(node: Node) -> dict[str | int, Value]:
    """Return arguments by position or name, with known defaults."""
    return {**dict(operator(node.op).defaults), **dict(enumerate(node.args)), **dict(node.kwargs)}


def _commutes(node: Node) -> bool:
    tensors, overload = all(isinstance(v, Ref) for v in node.args), operator(node.op).commutative
    return bool(overload) and node.op.endswith(f".{overload}") and len(node.args) == 2 and tensors and not node.kwargs
