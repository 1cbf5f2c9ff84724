"""Complex arithmetic as arithmetic on real and imaginary parts, for which loops have operators.

Comes in: a problem's graph. Goes out: the same function, in which what is pointwise in complex numbers, or moves them,
is done part by part. A tensor becomes its parts where it is made of floats (`polar`, `view_as_complex`) or where the
library or the caller made it (`view_as_real`); it becomes one again for the library's operators and as a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rag_kernels.eval.aten import base_name, operator
from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec, Value
from rag_kernels.offline.graph.cells import SAME
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.graph.rewrites import NewNodes, live
from rag_kernels.offline.graph.subgraph_match import refs_of, specs_of

REAL = {"complex64": "float32", "complex128": "float64"}
"""Dtypes of parts."""

STACK = "aten.stack.default"
Pair = tuple[Ref, Ref]


def with_parts_of_complex(fp: FunctionalProblem) -> FunctionalProblem:
    """Return the problem with complex tensors in their parts; itself where nothing computes with any."""
    specs = specs_of(fp)
    if not any(base_name(n.op) in ARITHMETIC.keys() - LOOKS and _touches_complex(n, specs) for n in fp.nodes):
        return fp
    taken = {a.name for a in fp.arguments} | {n.name for n in fp.nodes}
    work = _Parts(NewNodes(taken), specs, {n.name: n for n in fp.nodes})
    for node in fp.nodes:
        work.take(node)
    for name in fp.results:
        work.as_one(name)
    return live(fp, work.new.made)


def _touches_complex(node: Node, specs: dict[str, TensorSpec]) -> bool:
    named = [specs[name].dtype for name in refs_of(node) if name in specs]
    return any(dtype in REAL for dtype in (*named, *(spec.dtype for spec in node.outputs)))


@dataclass(slots=True)
class _Parts:
    """The new graph so far, and the parts of its complex tensors."""

    new: NewNodes
    specs: dict[str, TensorSpec]
    nodes: dict[str, Node]
    parts: dict[str, Pair] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of what is new
    whole: set[str] = field(default_factory=set)  # of these, what is one tensor of the new graph too

    def take(self, node: Node) -> None:
        """Add an operator of the old graph to the new one."""
        if _touches_complex(node, self.specs) and len(node.outputs) == 1 and self.apart(node):
            return
        for name in refs_of(node):
            self.as_one(name)
        self.new.made.append(node)

    def apart(self, node: Node) -> bool:
        """Add an operator part by part, and return whether there is a way to."""
        name, made = base_name(node.op), _Made(self, node)
        rule = ARITHMETIC.get(name)
        found = rule(made) if rule else self.moved(node) if _moves(name) else None
        if isinstance(found, Ref):  # a real result
            last = self.new.made[-1]
            if last.name == found.name and name not in PARTS:
                self.new.made[-1] = replace(last, name=node.name)
            else:
                self.new.made.append(Node(node.name, SAME, (found,), (), node.outputs))
        elif found is not None:
            self.parts[node.name] = found
        return found is not None

    def moved(self, node: Node) -> Pair | None:
        """Return both parts moved as an operator moves elements."""
        spec = replace(node.outputs[0], dtype=REAL.get(node.outputs[0].dtype, ""))
        if not spec.dtype or node.op.endswith(".dtype") or not all(map(self.is_complex, refs(node.args[0]))):
            return None
        re, im = (self.add(node, spec, node.op, *(self.part(a, i) for a in node.args)) for i in (0, 1))
        return re, im

    def add(self, like: Node, spec: TensorSpec, op: str, *args: Value) -> Ref:
        """Add an operator of the new graph, with the keywords of an old one of its kind."""
        name = self.new.name_like(f"{like.name}_part")
        kwargs = like.kwargs if op == like.op else ()
        self.new.made.append(Node(name, op, args, kwargs, (spec,)))
        self.shapes[name] = spec.shape
        return Ref(name)

    def part(self, value: Value, place: int) -> Value:
        """Return an argument with complex tensors replaced by one part of theirs."""
        if isinstance(value, tuple):
            return tuple(self.part(v, place) for v in value)
        return self.parts_of(value.name)[place] if isinstance(value, Ref) and self.is_complex(value.name) else value

    def is_complex(self, name: str) -> bool:
        return name in self.specs and self.specs[name].dtype in REAL

    def parts_of(self, name: str) -> Pair:
        """Return the parts of a complex tensor."""
        if name not in self.parts:
            spec, source = self.specs[name], Ref(name)
            made = self.nodes.get(name, Node(name, "", (), (), (spec,)))
            if operator(made.op).transposes == "adjoint":
                source = self.add(made, spec, "aten.resolve_conj.default", source)
            real = TensorSpec(spec.shape, REAL[spec.dtype])
            both = self.add(made, replace(real, shape=(*real.shape, 2)), "aten.view_as_real.default", source)
            re, im = (self.add(made, real, "aten.select.int", both, -1, place) for place in (0, 1))
            self.parts[name] = re, im
            self.whole.add(name)
        return self.parts[name]

    def as_one(self, name: str) -> None:
        """See to it that a tensor of the old graph is one of the new graph."""
        if name not in self.parts or name in self.whole:
            return
        self.whole.add(name)
        spec = self.specs[name]
        both = self.add(self.nodes[name], TensorSpec((*spec.shape, 2), REAL[spec.dtype]), STACK, self.parts[name], -1)
        self.new.made.append(Node(name, "aten.view_as_complex.default", (both,), (), (spec,)))


@dataclass(frozen=True, slots=True)
class _Made:
    """An operator of complex numbers, and what makes its parts."""

    work: _Parts
    node: Node

    @property
    def spec(self) -> TensorSpec:
        """Return what a part of the result looks like, or a real result."""
        spec = self.node.outputs[0]
        return replace(spec, dtype=REAL.get(spec.dtype, spec.dtype))

    def add(self, name: str, *args: Value) -> Ref:
        """Add a pointwise operator that has the shape of the result."""
        return self.work.add(self.node, self.spec, f"aten.{name}", *args)

    def operand(self, place: int) -> tuple[Value, Value | None] | None:
        """Return the parts of an operand, or a real operand and None; None for what these parts do not go with."""
        value = given(self.node, place)
        if not isinstance(value, Ref):
            return None if value is None or isinstance(value, tuple | str) else (value, None)
        dtype = self.work.specs[value.name].dtype if value.name in self.work.specs else ""
        if dtype in REAL:
            return self.work.parts_of(value.name) if REAL[dtype] == self.spec.dtype else None
        return (value, None) if dtype in {self.spec.dtype, "int64", "int32", "bool"} else None

    def in_shape(self, part: Ref) -> Ref:
        """Return a part in the shape of the result."""
        same = self.work.shapes.get(part.name, self.spec.shape) == self.spec.shape
        return part if same else self.add("expand.default", part, self.spec.shape)


Rule = Callable[[_Made], "Pair | Ref | None"]


def _polar(made: _Made) -> Pair:
    size, angle = made.node.args
    cos, sin = made.add("cos.default", angle), made.add("sin.default", angle)
    return made.add("mul.Tensor", size, cos), made.add("mul.Tensor", size, sin)


def _joined(made: _Made) -> Pair | None:
    re, im = made.node.args
    shapes = {made.work.specs[v.name].shape for v in (re, im) if isinstance(v, Ref)}
    return (re, im) if isinstance(re, Ref) and isinstance(im, Ref) and shapes == {made.spec.shape} else None


def _seen_as_complex(made: _Made) -> Pair:
    re, im = (made.add("select.int", given(made.node, 0), -1, i) for i in (0, 1))
    return re, im


def _seen_as_real(made: _Made) -> Ref:
    [name] = refs_of(made.node)
    return made.add("stack.default", made.work.parts_of(name), -1)


def _one(function: Callable[[_Made, Ref, Ref], Pair | Ref]) -> Rule:
    """Return the rule of an operator on one complex tensor."""

    def rule(made: _Made) -> Pair | Ref | None:
        found = made.operand(0)
        if found is None or not isinstance(found[0], Ref) or not isinstance(found[1], Ref):
            return None
        return function(made, found[0], found[1])

    return rule


def _exp(made: _Made, re: Ref, im: Ref) -> Pair:
    size = made.add("exp.default", re)
    cos, sin = made.add("cos.default", im), made.add("sin.default", im)
    return made.add("mul.Tensor", size, cos), made.add("mul.Tensor", size, sin)


def _product(made: _Made, one: Pair, other: Pair) -> Pair:
    (a, b), (c, d) = one, other
    re = made.add("sub.Tensor", made.add("mul.Tensor", a, c), made.add("mul.Tensor", b, d))
    return re, made.add("add.Tensor", made.add("mul.Tensor", a, d), made.add("mul.Tensor", b, c))


def _mul(made: _Made) -> Pair | None:
    one, other = made.operand(0), made.operand(1)
    if one is None or other is None:
        return None
    (a, b), (c, d) = one, other
    if isinstance(a, Ref) and isinstance(b, Ref) and isinstance(c, Ref) and isinstance(d, Ref):
        return _product(made, (a, b), (c, d))
    if b is None:
        a, b, c = c, d, a
    return made.add("mul.Tensor", a, c), made.add("mul.Tensor", b, c)


def _div(made: _Made) -> Pair | None:
    """By what is real; or by a complex number whose larger part is one, so that nothing overflows early."""
    one, other = made.operand(0), made.operand(1)
    if one is None or other is None or len(made.node.args) > 2 or made.node.kwargs:
        return None
    (a, b), (c, d) = one, other
    if d is None:
        return made.add("div.Tensor", a, c), made.add("div.Tensor", b, c)
    if b is None:
        return None
    size = made.add("maximum.default", made.add("abs.default", c), made.add("abs.default", d))
    c, d = made.add("div.Tensor", c, size), made.add("div.Tensor", d, size)
    below = made.add("mul.Tensor", made.add("add.Tensor", _square(made, c), _square(made, d)), size)
    re = made.add("add.Tensor", made.add("mul.Tensor", a, c), made.add("mul.Tensor", b, d))
    im = made.add("sub.Tensor", made.add("mul.Tensor", b, c), made.add("mul.Tensor", a, d))
    return made.add("div.Tensor", re, below), made.add("div.Tensor", im, below)


def _square(made: _Made, x: Value) -> Ref:
    return made.add("mul.Tensor", x, x)


def _sum(name: str, *, swapped: bool = False) -> Rule:
    """Return the rule of `add`, `sub` or `rsub`."""

    def rule(made: _Made) -> Pair | None:
        one, other = made.operand(int(swapped)), made.operand(int(not swapped))
        if one is None or other is None or len(made.node.args) > 2 or made.node.kwargs:
            return None
        (a, b), (c, d) = one, other
        re = made.add(f"{name}.Tensor", a, c) if isinstance(a, Ref) else made.add("rsub.Scalar", c, a)
        if isinstance(b, Ref) and isinstance(d, Ref):
            return re, made.add(f"{name}.Tensor", b, d)
        alone = b if isinstance(b, Ref) else d if name == "add" else made.add("neg.default", d)
        return (re, made.in_shape(alone)) if isinstance(alone, Ref) else None

    return rule


def _reduced(made: _Made) -> Pair | None:
    """Return the sums of both parts."""
    found = made.operand(0)
    if found is None or found[1] is None or dict(made.node.kwargs).get("dtype") is not None:
        return None
    re, im = (made.work.add(made.node, made.spec, made.node.op, v, *made.node.args[1:]) for v in found)
    return re, im


def _vdot(made: _Made) -> Pair | None:
    one, other, [name, *_] = made.operand(0), made.operand(1), refs_of(made.node)
    if one is None or other is None or one[1] is None or other[1] is None:
        return None
    wide = _Made(made.work, replace(made.node, outputs=(made.work.specs[name],)))
    (a, b), (c, d) = one, other
    re = wide.add("add.Tensor", wide.add("mul.Tensor", a, c), wide.add("mul.Tensor", b, d))
    im = wide.add("sub.Tensor", wide.add("mul.Tensor", a, d), wide.add("mul.Tensor", b, c))
    return made.add("sum.default", re), made.add("sum.default", im)


def _where(made: _Made) -> Pair | None:
    condition, one, other = made.node.args[0], made.operand(1), made.operand(2)
    if one is None or other is None or one[1] is None or other[1] is None:
        return None
    re, im = (made.add("where.self", condition, x, y) for x, y in zip(one, other, strict=True))
    return re, im


ARITHMETIC: dict[str, Rule] = {
    "polar": _polar,
    "complex": _joined,
    "view_as_complex": _seen_as_complex,
    "view_as_real": _seen_as_real,
    "real": _one(lambda made, re, im: re),
    "imag": _one(lambda made, re, im: im),
    "abs": _one(lambda made, re, im: made.add("hypot.default", re, im)),
    "angle": _one(lambda made, re, im: made.add("atan2.default", im, re)),
    "_conj": _one(lambda made, re, im: (re, made.add("neg.default", im))),
    "conj_physical": _one(lambda made, re, im: (re, made.add("neg.default", im))),
    "neg": _one(lambda made, re, im: (made.add("neg.default", re), made.add("neg.default", im))),
    "exp": _one(_exp),
    "square": _one(lambda made, re, im: _product(made, (re, im), (re, im))),
    "mul": _mul,
    "div": _div,
    "add": _sum("add"),
    "sub": _sum("sub"),
    "rsub": _sum("sub", swapped=True),
    "sum": _reduced,
    "mean": _reduced,
    "vdot": _vdot,
    "where": _where,
}
"""Operators that make parts of parts."""

PARTS = frozenset({"real", "imag"})
LOOKS = PARTS | {"view_as_complex", "view_as_real"}
"""Those of them that compute nothing."""

JOINS = frozenset({"cat", "stack", "flip", "roll", "repeat"})


def _moves(name: str) -> bool:
    """Return whether an operator moves elements and computes none: each part as the other."""
    traits = operator(name)
    return traits.view or traits.same_value or bool(traits.places and traits.exact) or name in JOINS
