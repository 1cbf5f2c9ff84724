"""Values to statements: one C assignment an operator, each value once a scope.

Comes in: values and a nest. Goes out: lines of C, which both languages use. Knows the nest's index expressions and
nothing of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.loop_nest import Nest, text_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import is_float


@dataclass(slots=True)
class Scope:
    """A block of statements. A value that an outer scope has computed is not computed again."""

    parent: Scope | None = None
    lines: list[str] = field(default_factory=list)
    known: dict[object, str] = field(default_factory=dict)

    def find(self, key: object) -> str | None:
        """Return the C name known for a key in this scope or an outer one."""
        scope: Scope | None = self
        while scope:
            if key in scope.known:
                return scope.known[key]
            scope = scope.parent
        return None


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
    return str(int(number)) if dtype != "bool" else str(bool(number)).lower()


@dataclass(slots=True)
class Printer:
    """Prints the values of one region as statements."""

    nest: Nest
    pointers: dict[str, str]  # buffer -> C pointer expression
    storage: dict[str, str]  # buffer -> dtype of its elements in memory
    near: bool = False  # whether functions may be exact to some bits fewer than float32 has
    count: int = 0

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
                inside = f"uint64_t({place}) < uint64_t({size})"
                if every > 1:
                    inside = f"uint64_t({place}) < uint64_t({size}) * {every} && ({place}) % {every} == 0"
                return f"({inside})"
            case ir.Load():
                return self.load(value, scope)
            case ir.Op(template="{0}"):
                return self.emit(value.args[0], scope)
            case ir.Op():
                args = [self.emit(a, scope) for a in value.args]
                template = value.template.replace("rk_exp(", "rk_exp_near(") if self.near else value.template
                return self.assign(value, template.format(*args, T=ctype), scope)
            case _:
                raise AssertionError(f"{type(value).__name__} outside its loops")

    def assign(self, value: ir.Value, text: str, scope: Scope) -> str:
        """Declare a new variable with this text, and return its name."""
        name = self.name()
        scope.lines.append(f"const {CTYPES[value.dtype]} {name} = {text};")
        return name

    def place(self, value: ir.Load, scope: Scope) -> str:
        """Return the element offset of a load as C."""
        access = self.nest.accesses[value]
        terms = [self.nest.offset(access)] if self.nest.offset(access) else []
        for index, stride in access.values:
            step = text_of(stride)
            terms.append(self.emit(index, scope) + ("" if step == "1" else f" * ({step})"))
        return " + ".join(terms) or "0"

    def load(self, value: ir.Load, scope: Scope) -> str:
        """Return the name of a loaded element; a scope loads each address once."""
        text = f"{self.pointers[value.buffer]}[{self.place(value, scope)}]"
        if value.dtype == "bool":  # g++ vectorises loads of bytes, not of bools
            text = f"((const uint8_t*){text.replace('[', ')[', 1)} != 0"
        known = scope.find(text)
        if known is None:
            known = self.assign(value, text, scope)
            scope.known[text] = known
        return known
