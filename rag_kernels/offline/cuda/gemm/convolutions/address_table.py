"""Addresses of implicit matrix products by a table: an element's address is its lane's base plus its term's step.

Comes in: a side of a Contraction whose loads step through several loops (convolutions). Goes out: statements that fill
the table in shared memory once for a block, and that load a quad with it. A guard (a window that reaches over an edge)
depends on the lane and on one loop of the depth: a lane has one bit for every step of such a loop that is inside, a
term names the bits that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.offline.codegen.c_types import widened
from rag_kernels.offline.codegen.contraction import Phase, Side, guard_text
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.gemm.gemm import Kernel
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import operands

ROOM = 226 * 1024  # bytes of shared memory, of a block on Hopper
LANE, NEVER = 30, 31  # bits: the lane exists; no lane has it


def can_step(kernel: Kernel, side: Side) -> bool:
    """Return whether a side's addresses are a base of the lane plus a step of the term, and its guards fit the bits.

    What it computes may not go by places (an identity that is subtracted): the table has addresses alone.
    """
    c = kernel.contraction
    several = len(c.depth) > 1 or bool(side.guards)
    if kernel.kind != "int" or not several or len(side.loads) != 1:
        return False
    if any(isinstance(v, ir.Index) for v in ir.walk(side.value, enter=lambda v: not isinstance(v, ir.Load))):
        return False
    access = c.nest.accesses[side.loads[0]]
    exact = all(divided(v, c.phases) for v, _ in access.values)
    loops = [depth_loop(kernel, g) for g in side.guards]
    return exact and None not in loops and sum(loop.count for loop in loops if loop) <= LANE


def divided(value: ir.Value, phases: Sequence[Phase]) -> bool:
    """Return whether a value is a position over the stride, of an output and a window that have a phase.

    Within a phase that division is exact, so that the position may be split into lane and term. Where an output's loop
    was split into parts it has no phases: the quotient's remainder is another one in each lane.
    """
    found = operands(value, Operator.QUOTIENT)
    exact = [{loop for loop in (p.output, p.window) if loop} for p in phases]
    named = {atom for a in found or () for atom in ir.own_atoms(a)}
    return bool(found) and named in exact and all(isinstance(a, ir.Index | ir.Const) for a in found or ())


def depth_loop(kernel: Kernel, guard: ir.Index) -> Loop | None:
    """Return the one loop of the depth that a guard depends on, or None."""
    atoms = set(ir.own_atoms(guard))
    found = [loop for loop in kernel.contraction.depth if atoms & set(loop.leaves)]
    return found[0] if len(found) == 1 else None


def steps_before(kernel: Kernel, side: Side, name: str, limit: str, deep: bool, left_stepped: bool) -> list[str]:
    """Return statements that fill the table of steps, and a lane's base and bits (of a thread that stays with its
    lane).

    `left_stepped`: the left side has a table as well, which lies before this one.
    """
    c, table = kernel.contraction, f"{name}_steps"
    scope = Scope()
    place = kernel.printer.place(side.loads[0], scope)
    before = "right + 2 * HALVES * COLUMNS * LINE"
    if name == "right" and left_stepped:
        before = "left_steps + (depth + DEPTH - 1) / DEPTH * DEPTH"
    bits = [f"1 << {LANE}"]
    shifts, used = [], 0
    for guard in side.guards:
        loop = depth_loop(kernel, guard)
        assert loop is not None
        shifts.append((guard, loop, used))
        bits.append(f"1 << ({used} + {loop.var})")
        used += loop.count
    lines = [
        f"const auto {name}_at = [&](int at_lane, int at_term) -> int {{",
        *indent([*c.unflatten(side.lanes, "at_lane", "int"), *kernel.unflatten_depth("at_term"), *scope.lines]),
        f"  return {place};",
        "};",
        f"int2* const {table} = (int2*)({before});",
        f"const int {name}_zero = {name}_at(0, 0);",
        "for (int at = threadIdx.x; at < (depth + DEPTH - 1) / DEPTH * DEPTH; at += T) {",
        *indent(kernel.unflatten_depth("at")),
        f"  const int needed = {' | '.join(bits)};",
        f"  {table}[at] = at < depth ? make_int2({name}_at(0, at) - {name}_zero, needed) : make_int2(0, 1 << {NEVER});",
        "}",
    ]
    if not deep:
        lines.append(f"const int {name}_base = {name}_at({name}_lane, 0);")
        lines += mask(kernel, side, name, limit, shifts)
    return lines


def mask(kernel: Kernel, side: Side, name: str, limit: str, shifts: list[tuple[ir.Index, Loop, int]]) -> list[str]:
    """Return statements that compute the bits of a thread's lane."""
    lane = f"{name}_lane"
    inner: list[str] = []
    for guard, loop, shift in shifts:
        holds = guard_text(kernel.contraction, guard, kernel.printer)
        inner += [
            f"for (int {loop.var} = 0; {loop.var} < {loop.size}; ++{loop.var})",
            f"  {name}_bits |= ({holds}) ? 1 << ({shift} + {loop.var}) : 0;",
        ]
    return [
        f"int {name}_bits = 0;",
        f"if ({lane} < {limit}) {{",
        f"  {name}_bits = 1 << {LANE};",
        *indent([*kernel.contraction.unflatten(side.lanes, lane, "int"), *inner]),
        "}",
    ]


def steps_each(kernel: Kernel, side: Side, name: str, deep: bool) -> list[str]:
    """Return statements that load a quad with the table."""
    (load,) = side.loads
    limit = "rows" if name == "left" else "columns"
    scope = Scope()
    scope.known[load] = widened(f"{kernel.printer.pointers[load.buffer]}[base + step.x]", load.storage)
    text = kernel.printer.emit(side.value, scope)
    here = [f"const int base = {name}_at(lane, 0), bits = lane < {limit} ? 1 << {LANE} : 0;"]
    return [
        *(here if deep else [f"const int base = {name}_base, bits = {name}_bits;"]),
        "#pragma unroll",
        "for (int u = 0; u < 4; ++u) {",
        f"  const int2 step = {name}_steps[k + u];",
        "  if ((bits & step.y) == step.y) {",
        *indent(indent(scope.lines)),
        f"    (&next_{name}[e].x)[u] = {text};",
        "  }",
        "}",
    ]
