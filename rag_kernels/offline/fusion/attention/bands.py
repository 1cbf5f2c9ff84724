"""Masks of attention that follow from indices alone: which keys a row may see, so that whole tiles can be left out.

Comes in: what a softmax is taken of, as an expression. Goes out: `Band`s, each of which forbids all keys that lie
further than a bound after (or before) their row, `Limit`s, which forbid those behind (or before) a number that each
batch has, such as a length, and the expression without them. Any other mask stays in the expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import eq, ge, gt, le, lt, ne

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import NARROWED, exponential_below, operands, uncast
from rag_kernels.offline.lowering.steps import Attended

AS_GOOD_AS_INFINITE = -1e9  # added to a score, or in its place: exp of it is 0 beside any key that is allowed
LT, LE, GT, GE, EQ, NE = Operator.LT, Operator.LE, Operator.GT, Operator.GE, Operator.EQ, Operator.NE
OR, AND = {Operator.OR, Operator.BIT_OR}, {Operator.AND, Operator.BIT_AND}
LEAVES_ZERO = {Operator.SAME, Operator.CAST, Operator.NEG, *NARROWED}
OPPOSITE = {LT: GE, LE: GT, GT: LE, GE: LT, EQ: NE, NE: EQ}
WHOLE = {"int64", "int32", "int16"}  # dtypes of a limit
HOLDS: dict[Operator, Callable[[float, float], bool]] = {LT: lt, LE: le, GT: gt, GE: ge, EQ: eq, NE: ne}


@dataclass(frozen=True, slots=True)
class Band:
    """Keys that are forbidden: those with key - row > bound if `after`, else those with row - key > bound.

    The bound is a number plus named numbers, each with a factor.
    """

    after: bool
    row: ir.Atom
    key: ir.Atom
    bound: int
    names: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """Keys that are forbidden: from `value` + `bound` on if `after`, else those before it. All rows have the same."""

    after: bool
    key: ir.Atom
    value: ir.Value
    bound: int


@dataclass(frozen=True, slots=True)
class _Linear:
    """A sum of loops and named numbers, each with a factor, and a number."""

    loops: dict[ir.Atom, int]
    names: dict[str, int]
    number: int

    def plus(self, other: _Linear, factor: int = 1) -> _Linear:
        loops, names = dict(self.loops), dict(self.names)
        for atom, f in other.loops.items():
            loops[atom] = loops.get(atom, 0) + factor * f
        for name, f in other.names.items():
            names[name] = names.get(name, 0) + factor * f
        kept = {a: f for a, f in loops.items() if f}
        return _Linear(kept, {n: f for n, f in names.items() if f}, self.number + factor * other.number)


def split_bands(attended: Attended) -> tuple[tuple[Band | Limit, ...], ir.Value, bool]:
    """Return bands and limits of an attention, what its softmax is taken of where they allow a key, and whether they
    stand for large numbers, so that each row must have a key: there must be no more rows than keys, and no limits.
    """
    keys = set(ir.leaves(attended.keys))
    rows = ir.tree_atoms(attended.q) - set(ir.leaves(attended.depth)) - ir.tree_atoms(attended.k)
    finder = _Finder(rows - ir.tree_atoms(attended.v), keys)
    bands, rest = finder.split(attended.score)
    infinite = all(number == -math.inf for number in finder.fills)
    loads = {v.buffer for v in ir.walk(attended.score) if isinstance(v, ir.Load)} - {attended.scores.buffer}
    seen = all(isinstance(b, Band) and not b.names and b.bound >= 0 and b.row.size <= b.key.size for b in bands)
    if not bands or not (infinite or (seen and not loads)):
        return (), attended.score, False
    return tuple(dict.fromkeys(bands)), rest, not infinite


def split_weights(
    weights: Sequence[ir.Value], rows: set[ir.Atom], keys: set[ir.Atom]
) -> tuple[tuple[Band | Limit, ...], tuple[ir.Value, ...]]:
    """Return the bands and limits outside of which all weights are 0, as exponentials of minus infinity are, and the
    weights inside of them; none where they differ.
    """
    finder = _Zeros(_Finder(rows, keys))
    found = [finder.split(weight) for weight in weights]
    same = {frozenset(bands) for bands, _ in found}
    if len(same) > 1 or any(number != -math.inf for number in finder.of_scores.fills):
        return (), tuple(weights)
    return tuple(dict.fromkeys(found[0][0])), tuple(rest for _, rest in found)


@dataclass(slots=True)
class _Zeros:
    """Where values are 0 because they are multiples of exponentials of what a finder knows."""

    of_scores: _Finder
    made: dict[ir.Value, tuple[list[Band | Limit], ir.Value]] = field(default_factory=dict)

    def split(self, value: ir.Value) -> tuple[list[Band | Limit], ir.Value]:
        """Return the bands outside of which a value is 0, and the value inside of them; what is shared stays so."""
        if value not in self.made:
            self.made[value] = self.found(value) if isinstance(value, ir.Op) else ([], value)
        return self.made[value]

    def found(self, value: ir.Op) -> tuple[list[Band | Limit], ir.Value]:
        power = exponential_below(value)
        if power:
            bands, rest = self.of_scores.split(power[0])
            below = ir.Op(value.dims, value.dtype, Operator.SUB, (rest, power[1]))
            return (bands, ir.Op(value.dims, value.dtype, Operator.EXP, (below,))) if bands else ([], value)
        parts = [self.split(arg) for arg in value.args]
        every = [bands for bands, _ in parts]
        if value.operator is Operator.MUL:
            bands = every[0] + [band for band in every[1] if band not in every[0]]
        elif value.operator in {Operator.ADD, Operator.SUB}:
            bands = every[0] if set(every[0]) == set(every[1]) else []
        elif value.operator is Operator.WHERE:
            return self.chosen(value)
        elif value.operator is Operator.DIV or (len(value.args) == 1 and value.operator in LEAVES_ZERO):
            bands = every[0]
        else:
            bands = []
        return (bands, replace(value, args=tuple(rest for _, rest in parts))) if bands else ([], value)

    def chosen(self, value: ir.Op) -> tuple[list[Band | Limit], ir.Value]:
        """Return the same of a choice between 0 and a value, which is the value where bands leave it no other."""
        for zero, other, forbidden in ((1, 2, True), (2, 1, False)):
            bands, rest = self.split(value.args[other])
            if not bands or number_of(value.args[zero]) != 0:
                continue
            outside, left = self.of_scores.parted(value.args[0], forbidden)
            if left is None and {*outside} <= {*bands}:
                return bands, rest
            return bands, replace(value, args=tuple(rest if n == other else a for n, a in enumerate(value.args)))
        return [], value


@dataclass(slots=True)
class _Finder:
    rows: set[ir.Atom]
    keys: set[ir.Atom]
    fills: list[float]

    def __init__(self, rows: set[ir.Atom], keys: set[ir.Atom]) -> None:
        self.rows, self.keys, self.fills = rows, keys, []

    def split(self, value: ir.Value) -> tuple[list[Band | Limit], ir.Value]:
        """Return the bands outside of which a value is minus infinity, and the value inside of them."""
        if not isinstance(value, ir.Op):
            return [], value
        choice = choice_of(value)
        if choice:
            condition, yes, no = choice
            for fill, other, forbidden in ((yes, no, True), (no, yes, False)):
                number = number_of(fill)
                if number is None or number > AS_GOOD_AS_INFINITE:
                    continue
                bands, left = self.parted(condition, forbidden)
                if bands:
                    self.fills.append(number)
                    more, rest = self.split(other)
                    if left is not None:
                        args = (left, fill, rest) if forbidden else (left, rest, fill)
                        rest = ir.Op(value.dims, value.dtype, Operator.WHERE, args)
                    return bands + more, rest
            return [], value
        numbers = [number_of(a) for a in value.args]
        if value.operator is Operator.ADD:
            (a, left), (b, right) = (self.split(arg) for arg in value.args)
            if not a and not b:
                return [], value
            zero = [number_of(v) == 0 for v in (left, right)]
            rest = (
                right if zero[0] else left if zero[1] else ir.Op(value.dims, value.dtype, value.operator, (left, right))
            )
            return a + b, rest
        if value.operator in {Operator.SUB, Operator.NO_MORE}:
            a, left = self.split(value.args[0])
            return (a, replace(value, args=(left, value.args[1]))) if a else ([], value)
        positive = any(n is not None and n > 0 for n in numbers)
        scaled = value.operator is Operator.MUL or (value.operator is Operator.DIV and numbers[1] is not None)
        if not (uncast(value) is not value or (scaled and positive)):
            return [], value
        parts = [self.split(arg) for arg in value.args]
        found = [band for bands, _ in parts for band in bands]
        return (
            (found, ir.Op(value.dims, value.dtype, value.operator, tuple(v for _, v in parts)))
            if found
            else ([], value)
        )

    def parted(self, condition: ir.Value, truth: bool) -> tuple[list[Band | Limit], ir.Value | None]:
        """Return bands that a condition of this truth forbids, and the condition that forbids the rest, if any does."""
        found = self.bands(condition, truth)
        if found or not isinstance(condition, ir.Op):
            return found, None if found else condition
        args, joins = condition.args, OR if truth else AND
        if condition.operator is Operator.NOT:
            found, left = self.parted(args[0], not truth)
            return found, left if left is None else replace(condition, args=(left,))
        if condition.operator not in joins:
            return [], condition
        parts = [self.parted(arg, truth) for arg in args]
        rests = [left for _, left in parts if left is not None]
        rest = replace(condition, args=tuple(rests)) if len(rests) == len(args) else rests[0] if rests else None
        return [band for bands, _ in parts for band in bands], rest

    def bands(self, condition: ir.Value, truth: bool) -> list[Band | Limit]:
        """Return the bands that together forbid exactly where a condition has this truth, or nothing."""
        condition = uncast(condition)
        if not isinstance(condition, ir.Op):
            return []
        operator, args = condition.operator, condition.args
        if operator is Operator.NOT:
            return self.bands(args[0], not truth)
        if operator in (OR if truth else AND):
            parts = [self.bands(arg, truth) for arg in args]
            return [band for part in parts for band in part] if all(parts) else []
        choice = choice_of(condition)
        if choice:
            yes, no = (number_of(v) for v in choice[1:])
            if yes is None or no is None or bool(yes) == bool(no):
                return []
            return self.bands(choice[0], truth == bool(yes))
        if operator not in OPPOSITE:
            return []
        return self.compared(args[0], operator if truth else OPPOSITE[operator], args[1])

    def compared(self, left: ir.Value, sign: Operator, right: ir.Value) -> list[Band | Limit]:
        """Return the bands that forbid where a comparison holds."""
        choice, number = choice_of(left), number_of(right)
        if choice and number is not None:
            yes, no = (number_of(v) for v in choice[1:])
            if yes is None or no is None:
                return []
            holds = HOLDS[sign](yes, number), HOLDS[sign](no, number)
            return self.bands(choice[0], holds[0]) if holds[0] != holds[1] else []
        if sign in {EQ, NE}:
            return self.bands(left, sign is NE) if number == 0 else []
        if sign in {LT, LE}:  # to a > or >= of a difference
            left, right = right, left
        a, b = linear(left), linear(right)
        if a is None or b is None:
            return self.limited(left, right, a, b, strict=sign in {LT, GT})
        difference = a.plus(b, -1)  # forbidden where it is > 0, or >= 0
        factors = {factor: atom for atom, factor in difference.loops.items()}
        if len(difference.loops) != 2 or set(factors) != {1, -1}:
            return []
        after = factors[1] in self.keys and factors[-1] in self.rows
        before = factors[1] in self.rows and factors[-1] in self.keys
        if not after and not before:
            return []
        key, row = (factors[1], factors[-1]) if after else (factors[-1], factors[1])
        names = tuple((name, -factor) for name, factor in difference.names.items())
        bound = -difference.number - (1 if sign in {GE, LE} else 0)
        return [Band(after, row, key, bound, names)]

    def limited(
        self, left: ir.Value, right: ir.Value, a: _Linear | None, b: _Linear | None, *, strict: bool
    ) -> list[Band | Limit]:
        """Return the limit that forbids where left > right, or >= if not `strict`, of a place and a batch's number."""
        place, value, after = (a, right, True) if b is None else (b, left, False)
        whole = all(v.dtype in WHOLE and not isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(value))
        if place is None or place.names or not whole or ir.tree_atoms(value) & (self.keys | self.rows):
            return []
        loops = [*place.loops.items()]
        if len(loops) != 1 or loops[0][0] not in self.keys or loops[0][1] != 1:
            return []
        return [Limit(after, loops[0][0], value, (strict if after else not strict) - place.number)]


def choice_of(value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Return condition, value if true and value if false of a choice, or None."""
    found = operands(uncast(value), Operator.WHERE)
    return (found[0], found[1], found[2]) if found else None


def number_of(value: ir.Value) -> float | None:
    """Return the number that a value is, or None. One that the call carries by name is none, unless it is infinite."""
    value = uncast(value)
    if product := operands(value, Operator.MUL):
        factors = [number_of(arg) for arg in product]
        if factors[0] is not None and factors[1] is not None:
            return factors[0] * factors[1]
    if not isinstance(value, ir.Const) or (value.name and math.isfinite(value.number)):
        return None
    return float(value.number)


def linear(value: ir.Value) -> _Linear | None:
    """Return an integer expression as a sum of loops and numbers, or None if it is none."""
    match value:
        case ir.Const(number=number, name=name) if isinstance(number, int) or float(number).is_integer():
            return _Linear({}, {name: 1}, 0) if name else _Linear({}, {}, int(number))
        case ir.Index(form=form, limit=None) if not form.sizes:
            loops: dict[ir.Atom, int] = {}
            for atom, factor in form.terms:
                for i, leaf in enumerate(parts := atom.leaves()):
                    loops[leaf] = loops.get(leaf, 0) + factor * ir.size_of(parts[i + 1 :])
            return _Linear({a: f for a, f in loops.items() if f}, {}, form.offset)
        case ir.Op(operator=Operator.SAME | Operator.CAST, args=args):
            return linear(args[0])
        case ir.Op(operator=Operator.ADD | Operator.SUB as sign, args=args):
            a, b = (linear(arg) for arg in args)
            return a.plus(b, 1 if sign is Operator.ADD else -1) if a and b else None
        case _:
            return None


def bound_text(names: Sequence[tuple[str, int]], bound: int) -> str:
    """Return a bound as C."""
    terms = [f"{factor} * int64_t({name})" if factor != 1 else f"int64_t({name})" for name, factor in names]
    return " + ".join([*terms, str(bound)])
