"""Passes over the data of a region: which reductions each pass completes, and which values it needs from earlier ones.

Comes in: a nest. Goes out: `RegionPrinter`, on which both languages' region printers are built, and the C text of
reductions' starts and steps. Knows nothing of threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.loop_nest import Loop, Nest
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.reductions import Kind


def accumulator(value: ir.Reduce | ir.Scan) -> str:
    """Return the C type of a reduction's accumulator.

    Sums and products of floats run in double, and logarithms of sums; truth values in int.
    """
    if value.kind in {Kind.ANY, Kind.ALL}:
        return "int"
    in_double = value.dtype == "float32" and value.kind in {Kind.SUM, Kind.PROD, Kind.LOGSUM}
    return "double" if in_double else CTYPES[value.dtype]


def indent(lines: Iterable[str]) -> list[str]:
    """Return the lines, two spaces further in."""
    return ["  " + line for line in lines]


def around(loops: list[Loop], body: list[str], *, unroll: bool = False) -> list[str]:
    """Return plain serial loops, outermost first, around some lines."""
    for loop in reversed(loops):
        head = ["#pragma unroll"] if unroll else []
        body = [*head, f"for (int64_t {loop.var} = 0; {loop.var} < {loop.size}; ++{loop.var}) {{", *indent(body), "}"]
    return body


def levels(roots: Iterable[ir.Value]) -> dict[ir.Value, int]:
    """Return by value how many reductions must be complete before it can be computed."""
    out: dict[ir.Value, int] = {}
    for value in ir.walk(*roots):
        below = max((out[c] for c in ir.children(value)), default=0)
        out[value] = below + 1 if isinstance(value, ir.Reduce) else below
    return out


@dataclass(slots=True)
class RegionPrinter:
    """The state in which one region is printed; both languages derive from it."""

    nest: Nest
    printer: Printer
    level: dict[ir.Value, int]
    kept: dict[ir.Value, str] = field(default_factory=dict)  # value held in a row buffer -> array

    @property
    def stores(self) -> dict[str, ir.Value]:
        """Return the stored values by buffer."""
        return self.nest.region.stores

    @property
    def told(self) -> str:
        """Return which buffers are stored, and of how many pieces."""
        written = self.nest.region.written
        pieces = f" in {len(self.stores)} pieces" if len(self.stores) > len(written) else ""
        return f"{', '.join(written)}{pieces}"

    @property
    def values(self) -> tuple[ir.Value, ...]:
        """Return the stored values."""
        return tuple(self.stores.values())

    @property
    def top(self) -> int:
        """Return how many levels of reductions the region has."""
        return max(self.level.values(), default=0)

    def store(self, buffer: str, scope: Scope) -> list[str]:
        """Return the statement that writes a buffer's element; what it needs goes to the scope."""
        text = self.printer.emit_stored(buffer, self.stores[buffer], scope)
        return [f"{self.printer.pointers[buffer]}[{self.nest.offset(self.nest.stores[buffer]) or '0'}] = {text};"]

    def inner_stores(self) -> dict[str, ir.Value]:
        """Return the stores that run over the reduced loops; the others happen once an outer element."""
        return {b: v for b, v in self.stores.items() if self.is_inner(v) or self.stored_inside(v)}

    def reductions(self, level: int) -> list[ir.Reduce]:
        """Return the reductions that the pass of this level completes."""
        return [v for v in ir.walk(*self.values) if isinstance(v, ir.Reduce) and self.level[v] == level]

    def is_inner(self, value: ir.Value) -> bool:
        """Return whether the value depends on a reduced loop."""
        return bool(ir.tree_atoms(value) & set(self.nest.region.reduced))

    def frontier(self, roots: list[ir.Value]) -> list[ir.Value]:
        """Return the values without a reduced loop that the roots' inner expressions use directly."""
        out: list[ir.Value] = []
        seen: set[ir.Value] = set()
        reduced = set(self.nest.region.reduced)

        def visit(v: ir.Value) -> None:
            if v in seen or v in self.kept:
                return
            seen.add(v)
            if ir.tree_atoms(v) & reduced:
                for child in ir.children(v):
                    visit(child)
            elif not isinstance(v, ir.Const | ir.Size):
                out.append(v)

        for root in roots:
            visit(root)
        return out

    def stored_inside(self, value: ir.Value) -> bool:
        """Return whether the value is stored along a reduced loop, even if it does not depend on one."""
        own = {a for g in value.dims for a in ir.leaves(g)}
        return bool(own & set(self.nest.region.reduced))
