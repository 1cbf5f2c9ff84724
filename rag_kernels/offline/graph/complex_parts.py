"""Complex arithmetic as arithmetic on real and imaginary parts, for which loops have operators.

Comes in: a problem's graph. Goes out: the same function, in which what is pointwise in complex numbers, or moves them,
is done part by part; so are products that a kernel of ours computes. A tensor becomes its parts where it is made of
floats (`polar`, `view_as_complex`) or where the library or the caller made it (`view_as_real`); it becomes one again
for the library's operators and as a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.offline.graph.cells import SAME
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.graph.rewrites import NewNodes, live
from rag_kernels.offline.graph.subgraph_match import refs_of, specs_of

REAL = {"complex64": "float32", "complex128": "float64"}
"""Dtypes of parts."""

STACK = "aten.stack.default"
Pair = tuple[Ref, Ref]
Ours = Callable[[Node, Sequence[tuple[int, ...]]], bool]
"""Whether a product of factors with these shapes is computed by a kernel of ours."""


def with_parts_of_complex(fp: FunctionalProblem, ours: Ours) -> FunctionalProblem:
    """Return the problem with complex tensors in their parts; itself where nothing computes with any."""
    specs = specs_of(fp)
    if not any(base_name(n.op) in ARITHMETIC.keys() - LOOKS and _touches_complex(n, specs) for n in fp.nodes):
        return fp
    taken = {a.name for a in fp.arguments} | {n.name for n in fp.nodes}
    work = _Parts(NewNodes(taken), specs, {n.name: n for n in fp.nodes}, ours)
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
    ours: Ours
    parts: dict[str, Pair] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of what is new
    whole: set[str] = field(default_factory=set)  # of these, what is one tensor of the new graph too
    nought: set[str] = field(default_factory=set)  # real parts that are zero, or NaN beside a part that is not finite

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
        moving = refs(node.args[:2] if base_name(node.op) in WRITES else node.args[0])
        if "pad" in base_name(node.op) and given(node, 3 if base_name(node.op) == "pad" else 2, "value"):
            return None  # the imaginary part has zeros there
        if not spec.dtype or node.op.endswith(".dtype") or not all(map(self.is_complex, moving)):
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

    def operand(self, place: int) -> Operand | None:
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
        shape = self.work.shapes.get(part.name) or self.work.specs[part.name].shape
        return part if shape == self.spec.shape else self.add("expand.default", part, self.spec.shape)


Operand = tuple[Value, Value | None]
Rule = Callable[[_Made], "Pair | Ref | None"]


def _polar(made: _Made) -> Pair:
    size, angle = made.node.args
    cos, sin = made.add("cos.default", angle), made.add("sin.default", angle)
    return made.add("mul.Tensor", size, cos), made.add("mul.Tensor", size, sin)


def _joined(made: _Made) -> Pair | None:
    re, im = made.node.args
    if not isinstance(re, Ref) or not isinstance(im, Ref):
        return None
    if {made.work.specs[v.name].shape for v in (re, im)} != {made.spec.shape}:
        return None
    made_of = [made.work.nodes.get(v.name) for v in (re, im)]
    real, imaginary = (n.args[0] if n and n.op == "torch.tensor" else None for n in made_of)
    if real == 0 and imaginary:
        made.work.nought.add(re.name)
    return re, im


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
    cos, sin = made.add("cos.default", im), made.add("sin.default", im)
    if re.name in made.work.nought:
        return cos, sin
    size = made.add("exp.default", re)
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
    re, im = made.add("mul.Tensor", a, c), made.add("mul.Tensor", b, c)
    if isinstance(a, Ref) and a.name in made.work.nought and (isinstance(c, Ref) or c):
        made.work.nought.add(re.name)
    return re, im


def _power(made: _Made) -> Pair | None:
    """Return a small whole power as products."""
    base, exponent = made.operand(0), given(made.node, 1)
    if base is None or not isinstance(base[0], Ref) or not isinstance(base[1], Ref) or exponent not in {2, 3}:
        return None
    one = base[0], base[1]
    square = _product(made, one, one)
    return square if exponent == 2 else _product(made, square, one)


def _multiplied(made: _Made) -> Pair | None:
    """Return a product of complex matrices as four of real ones."""
    node = made.node
    factors = node.args[1] if base_name(node.op) == "einsum" else node.args[:2]
    names = [*refs(factors)]
    if len(names) != 2 or not all(map(made.work.is_complex, names)):
        return None
    if base_name(node.op) != "outer" and not made.work.ours(node, [made.work.specs[name].shape for name in names]):
        return None

    def term(x: Ref, y: Ref) -> Ref:
        args = (node.args[0], (x, y)) if base_name(node.op) == "einsum" else (x, y)
        return made.work.add(node, made.spec, node.op, *args)

    (a, b), (c, d) = map(made.work.parts_of, names)
    pair = made.add("sub.Tensor", term(a, c), term(b, d)), made.add("add.Tensor", term(a, d), term(b, c))
    bias = given(node, 2, "bias")
    if not isinstance(bias, Ref):
        return pair
    re, im = (made.add("add.Tensor", *both) for both in zip(pair, made.work.parts_of(bias.name), strict=True))
    return re, im


def _div(made: _Made) -> Pair | None:
    one, other = made.operand(0), made.operand(1)
    if one is None or other is None or len(made.node.args) > 2 or made.node.kwargs:
        return None
    return _quotient(made, one, other)


def _quotient(made: _Made, one: Operand, other: Operand) -> Pair:
    """Divide by what is real; or by a complex number whose larger part is one, so that nothing overflows early."""
    (a, b), (c, d) = one, other
    if d is None:
        return made.add("div.Tensor", a, c), made.add("div.Tensor", b, c)
    size = made.add("maximum.default", made.add("abs.default", c), made.add("abs.default", d))
    c, d = made.add("div.Tensor", c, size), made.add("div.Tensor", d, size)
    below = made.add("mul.Tensor", made.add("add.Tensor", _square(made, c), _square(made, d)), size)
    re, im = made.add("mul.Tensor", c, a), made.add("mul.Tensor", d, a)
    if b is None:
        im = made.add("neg.default", im)
    else:
        re = made.add("add.Tensor", re, made.add("mul.Tensor", b, d))
        im = made.add("sub.Tensor", made.add("mul.Tensor", b, c), im)
    return made.add("div.Tensor", re, below), made.add("div.Tensor", im, below)


def _direction(made: _Made, re: Ref, im: Ref) -> Pair:
    """Return a number of size one; zero of zero."""
    least = 1.1754943508222875e-38 if made.spec.dtype == "float32" else 2.2250738585072014e-308
    size = made.add("clamp_min.default", made.add("hypot.default", re, im), least)
    return made.add("div.Tensor", re, size), made.add("div.Tensor", im, size)


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


def _zeros(made: _Made) -> Pair | None:
    if made.spec.dtype == made.node.outputs[0].dtype:
        return None
    re, im = (made.add("full.default", made.spec.shape, 0.0) for _ in range(2))
    return re, im


def _cast(made: _Made) -> Pair | Ref | None:
    """Return the parts in another width, a real number with no imaginary part, or the real part."""
    source, dtype = given(made.node, 0), f"torch.{made.spec.dtype}"
    if made.work.is_complex(source.name):
        pair = made.work.parts_of(source.name)
        re, im = (made.add("to.dtype", part, dtype) for part in pair)
        return re if made.spec.dtype == made.node.outputs[0].dtype else (re, im)
    return made.add("to.dtype", source, dtype), made.add("full.default", made.spec.shape, 0.0)


def _norm(made: _Made) -> Ref | None:
    """Return the norm of the sizes of the elements."""
    found = made.operand(0)
    if found is None or not isinstance(found[0], Ref) or not isinstance(found[1], Ref):
        return None
    spec = replace(made.spec, shape=made.work.specs[refs_of(made.node)[0]].shape)
    sizes = made.work.add(made.node, spec, "aten.hypot.default", found[0], found[1])
    return made.work.add(made.node, made.spec, made.node.op, sizes, *made.node.args[1:])


def _filled(made: _Made) -> Pair | None:
    """Return a real number in every place."""
    number = given(made.node, 1)
    if isinstance(number, Ref) or made.spec.dtype == made.node.outputs[0].dtype:
        return None
    return made.add("full.default", made.spec.shape, number), made.add("full.default", made.spec.shape, 0.0)


def _adjoint(made: _Made, re: Ref, im: Ref) -> Pair:
    re, im = (made.add("transpose.int", part, -2, -1) for part in (re, im))
    return re, made.add("neg.default", im)


def _masked(made: _Made) -> Pair | None:
    found, mask, number = made.operand(0), *made.node.args[1:3]
    if found is None or found[1] is None or isinstance(number, Ref):
        return None
    re, im = (made.add("masked_fill.Scalar", part, mask, n) for part, n in zip(found, (number, 0.0), strict=True))
    return re, im


def _wave(of_re: str, of_im: str, *, sign: str = "") -> Rule:
    """Return the rule of `sin`, `cos`, `sinh` or `cosh`, by functions of both parts."""
    other = {"sin": "cos", "cos": "sin", "sinh": "cosh", "cosh": "sinh"}

    def function(made: _Made, a: Ref, b: Ref) -> Pair:
        re, im = (
            made.add("mul.Tensor", made.add(f"{one}.default", a), made.add(f"{two}.default", b))
            for one, two in ((of_re, of_im), (other[of_re], other[of_im]))
        )
        return re, made.add("neg.default", im) if sign else im

    return _one(function)


def _log(made: _Made, re: Ref, im: Ref) -> Pair:
    """By the square of the size, in double where that holds it: near one nothing may be lost."""
    angle = made.add("atan2.default", im, re)
    if made.spec.dtype == "float64":
        return made.add("log.default", made.add("hypot.default", re, im)), angle
    wide = _Made(made.work, replace(made.node, outputs=(replace(made.spec, dtype="float64"),)))
    a, b = (_square(wide, wide.add("to.dtype", part, "torch.float64")) for part in (re, im))
    half = wide.add("mul.Tensor", wide.add("log.default", wide.add("add.Tensor", a, b)), 0.5)
    return made.add("to.dtype", half, "torch.float32"), angle


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
    if one is None or other is None:
        return None
    (a, b), (c, d) = ((x, 0.0 if y is None else y) for x, y in (one, other))
    return made.add("where.self", condition, a, c), made.add("where.self", condition, b, d)


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
    "reciprocal": _one(lambda made, re, im: _quotient(made, (1.0, None), (re, im))),
    "pow": _power,
    "sgn": _one(_direction),
    "add": _sum("add"),
    "sub": _sum("sub"),
    "rsub": _sum("sub", swapped=True),
    "sum": _reduced,
    "mean": _reduced,
    "cumsum": _reduced,
    "zeros": _zeros,
    "zeros_like": _zeros,
    "new_zeros": _zeros,
    "full_like": _filled,
    "fill": _filled,
    "to": _cast,
    "mH": _one(_adjoint),
    "adjoint": _one(_adjoint),
    "masked_fill": _masked,
    "sin": _wave("sin", "cosh"),
    "cos": _wave("cos", "cosh", sign="-"),
    "sinh": _wave("sinh", "cos"),
    "cosh": _wave("cosh", "cos"),
    "log": _one(_log),
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "vdot": _vdot,
    "where": _where,
    "matmul": _multiplied,
    "mm": _multiplied,
    "bmm": _multiplied,
    "mv": _multiplied,
    "dot": _multiplied,
    "outer": _multiplied,
    "linear": _multiplied,
    "einsum": _multiplied,
}
"""Operators that make parts of parts."""

PARTS = frozenset({"real", "imag"})
LOOKS = PARTS | {"view_as_complex", "view_as_real", "to"}
"""Those of them that compute nothing."""

WRITES = frozenset({"slice_scatter", "select_scatter", "copy"})
"""Operators whose first two arguments are both of the result's dtype."""


def _moves(name: str) -> bool:
    """Return whether an operator moves elements and computes none: each part as the other."""
    traits = operator(name)
    placed = traits.exact and bool(traits.places)
    return traits.view or traits.same_value or placed or traits.cost == "layout" or name == "constant_pad_nd"
