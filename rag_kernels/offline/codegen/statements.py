"""Values to statements: each value once a scope, short ones that are used once in the statement that uses them.

Comes in: values and a nest. Goes out: lines of C, which both languages use. Knows the nest's index expressions and
nothing of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import CTYPES, narrowed, widened
from rag_kernels.offline.codegen.loop_nest import Access, Nest
from rag_kernels.offline.codegen.loop_nest import text_of as polynomial
from rag_kernels.offline.codegen.operator_texts import CUDA_BY_NUMBER, NAME, UNARY, Form, Text, text_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import is_float
from rag_kernels.offline.ir.operators import Operator, Types
from rag_kernels.offline.ir.patterns import operands, strip


@dataclass(slots=True)
class Scope:
    """A block of statements. A value that an outer scope has computed is not computed again."""

    parent: Scope | None = None
    lines: list[str] = field(default_factory=list)
    known: dict[object, str] = field(default_factory=dict)
    vectors: dict[object, str] = field(default_factory=dict)  # key that is known -> what its name is an element of
    taken: set[str] = field(default_factory=set)  # of these, what was asked for
    early: dict[str, str] | None = None  # floats that a loop loads some steps before it uses them: from where, by name

    def find(self, key: object) -> str | None:
        """Return the C name known for a key in this scope or an outer one."""
        scope: Scope | None = self
        while scope:
            if key in scope.known:
                if key in scope.vectors:
                    scope.taken.add(scope.vectors[key])
                return scope.known[key]
            scope = scope.parent
        return None

    def early_loads(self) -> dict[str, str] | None:
        """Return the notes on what is loaded early here, if any is."""
        scope: Scope | None = self
        while scope and scope.early is None:
            scope = scope.parent
        return scope.early if scope else None


def literal(number: bool | int | float, dtype: str) -> str:
    """Return a number as a C literal of the dtype."""
    if is_float(dtype):
        value = float(number)
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        text = repr(value)
        return text + "f" if dtype == "float32" else text
    if dtype == "bool":
        return str(bool(number)).lower()
    return LIMITS.get((dtype, int(number))) or str(int(number))


NESTED = 44  # characters of an expression that stands inside of another one
CLOSED = frozenset({"float32", "float64", "int32", "int64"})  # dtypes in which C computes as it stores
LIMITS = {
    (f"int{n}", sign * (1 << n - 1) - (sign > 0)): f"INT{n}_M{'AX' if sign > 0 else 'IN'}"
    for n in (32, 64)
    for sign in (1, -1)
}


def loaded_text(pointer: str, place: str, dtype: str) -> str:
    """Return an element of a tensor as C: g++ vectorises loads of bytes, not of bools."""
    return f"((const uint8_t*){pointer})[{place}] != 0" if dtype == "bool" else f"{pointer}[{place}]"


def is_by_number(value: ir.Op, form: Form) -> bool:
    """Return whether this is a division by a number that an argument carries, or where bits do not count by any."""
    number = strip(value.args[1]) if value.operator is Operator.DIV else None
    if not isinstance(number, ir.Const):
        return False
    return bool(number.name) or (form is Form.CUDA_NEAR and math.isfinite(number.number) and number.number != 0)


def distance_as_float(value: ir.Op) -> tuple[ir.Value, ...] | None:
    """Return the two places whose distance a value is as a float, or None."""
    of = operands(value, Operator.CAST) if value.dtype == "float32" else None
    places = [strip(place) for place in operands(strip(of[0]), Operator.SUB) or ()] if of else []
    return tuple(places) if places and all(isinstance(p, ir.Index) and p.limit is None for p in places) else None


@dataclass(slots=True)
class Printer:
    """Prints the values of one region as statements."""

    nest: Nest
    pointers: dict[str, str]  # buffer -> C pointer expression
    storage: dict[str, str]  # buffer -> dtype of its elements in memory
    form: Form = Form.C
    unsigned: str = "uint64_t"  # C type in which a guard compares places
    near_places: bool = False  # whether the distance of two places has 32 bits, from which floats are made faster
    count: int = 0
    _uses: dict[ir.Value, int] = field(default_factory=dict)

    def name(self, prefix: str = "v") -> str:
        """Return a new C name."""
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, value: ir.Value, scope: Scope) -> str:
        """Return the C name or literal of the value; statements that compute it go to the scope."""
        found = scope.find(value)
        if found is None:
            found = self.compute(value, scope)
            scope.known[value] = found
        return found

    def emit_stored(self, buffer: str, value: ir.Value, scope: Scope) -> str:
        """Return the C text of what a buffer keeps of the value."""
        return narrowed(self.emit(value, scope), self.storage[buffer])

    def compute(self, value: ir.Value, scope: Scope) -> str:
        """Return the C text of a value that no scope knows yet."""
        ctype = CTYPES[value.dtype]
        match value:
            case ir.Const():
                return f"{ctype}({value.name})" if value.name else literal(value.number, value.dtype)
            case ir.Size():
                return f"{ctype}({self.nest.names.product(value.group)})"
            case ir.Index(limit=None):
                return f"({self.nest.position(value.form)})"
            case ir.Index(limit=limit, every=every):
                assert limit is not None
                place, size = self.nest.position(value.form), self.nest.names.product(limit)
                inside = f"{self.unsigned}({place}) < {self.unsigned}({size})"
                if every > 1:
                    inside = f"{inside} * {every} && ({place}) % {every} == 0"
                return f"({inside})"
            case ir.Load():
                return self.load(value, scope)
            case ir.Op(operator=Operator.SAME):
                return self.emit(value.args[0], scope)
            case ir.Op():
                return self.assign(value, self.expression(value, scope)[0], scope)
            case _:
                raise AssertionError(f"{type(value).__name__} outside its loops")

    def expression(self, value: ir.Op, scope: Scope) -> tuple[str, int]:
        """Return an operator over its operands as C, and how tightly that binds."""
        if self.near_places and (places := distance_as_float(value)):
            return f"float({' - '.join(f'int{self.emit(place, scope)}' for place in places)})", NAME
        text = text_of(value.operator, value.dtype, value.args[0].dtype, self.form)
        if self.form is not Form.C and value.dtype == "float32" and is_by_number(value, self.form):
            text = CUDA_BY_NUMBER
        args = [self.operand(a, scope, value, place, text) for place, a in enumerate(value.args)]
        return text.form.format(*args, T=CTYPES[value.dtype]), text.binds

    def operand(self, value: ir.Value, scope: Scope, user: ir.Op, place: int, text: Text) -> str:
        """Return an operand as C: by its name, or if nothing else uses it and it is short, as it is computed."""
        inner = strip(value)
        alone = self.uses.get(value) == self.uses.get(inner) == 1 and scope.find(inner) is scope.find(value) is None
        if not alone or not isinstance(inner, ir.Op) or text.repeats(place) or not self.nests(inner, user, place):
            found = self.emit(value, scope)
            return f"({found})" if found.startswith("-") and text.binds == UNARY else found
        found, binds = self.expression(inner, scope)
        if len(found) > NESTED:
            found = scope.known[inner] = self.assign(inner, found, scope)
            return found
        return f"({found})" if binds < text.least(place) else found

    def nests(self, value: ir.Op, user: ir.Op, place: int) -> bool:
        """Return whether a value may be computed within another: where C keeps its dtype, and neither side of a choice
        is costly, since a branch around a function keeps a loop from being vectorised.
        """
        if value.dtype not in CLOSED and value.operator.traits.types not in {Types.COMPARED, Types.LOGICAL}:
            return False
        branch = user.operator is Operator.WHERE and place > 0
        return not branch or not any(isinstance(v, ir.Op) and v.operator.traits.costly for v in ir.walk(value))

    @property
    def uses(self) -> dict[ir.Value, int]:
        """Return how often each value is an operand."""
        if not self._uses:
            for v in ir.walk(*self.nest.region.stores.values()):
                for child in ir.children(v):
                    self._uses[child] = self._uses.get(child, 0) + 1
        return self._uses

    def assign(self, value: ir.Value, text: str, scope: Scope) -> str:
        """Declare a new variable with this text, and return its name."""
        name = self.name()
        scope.lines.append(f"const {CTYPES[value.dtype]} {name} = {text};")
        return name

    def place(self, value: ir.Load, scope: Scope) -> str:
        """Return the element offset of a load as C."""
        return self.at(self.nest.accesses[value], scope)

    def at(self, access: Access, scope: Scope) -> str:
        """Return an element offset as C, its computed indices too."""
        terms = [self.nest.offset(access)] if self.nest.offset(access) else []
        for index, stride in access.values:
            step = polynomial(stride)
            terms.append(self.emit(index, scope) + ("" if step == "1" else f" * ({step})"))
        return " + ".join(terms) or "0"

    def load(self, value: ir.Load, scope: Scope) -> str:
        """Return the name of a loaded element; a scope loads each address once."""
        pointer, place = self.pointers[value.buffer], self.place(value, scope)
        text = loaded_text(pointer, place, value.dtype)
        known = scope.find(text)
        if known is None:
            early = scope.early_loads() if value.dtype == "float32" else None
            known, element = self.name(), widened(text, value.storage)
            if early is not None:
                early[known] = element
            loaded = element if early is None else f"{known}_ahead[b]"
            scope.lines.append(f"const {CTYPES[value.dtype]} {known} = {loaded};")
            scope.known[text] = known
        return known
