"""What groups of a product's columns come to, in the C of a tile's epilogue: neighbouring lanes share a group.

Comes in: a contraction whose stores are reductions of groups of columns (`tiles/product_statistics.py`), and a scope
that knows its sums. Goes out: statements, which all lanes of a warp must run together. Knows nothing of tiles.
"""

from __future__ import annotations

from collections.abc import Iterable

from rag_kernels.offline.codegen.contraction import Contraction
from rag_kernels.offline.codegen.reduction_levels import indent, levels
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.ir import values as ir


def groups_in(contraction: Contraction) -> list[ir.Reduce]:
    """Return the reductions of groups of columns, those that others depend on first."""
    every = ir.walk(*contraction.nest.region.stores.values(), enter=lambda v: v not in contraction.totals)
    return [v for v in every if isinstance(v, ir.Reduce) and v not in contraction.totals]


def of_columns(contraction: Contraction, printer: Printer, scope: Scope, each: int, inside: str) -> list[str]:
    """Return the statements that compute what groups come to where a lane has `each` columns of one.

    `scope` knows the sums of column `u`, and is told the groups; `inside` are the statements that tell its place.
    """
    lanes = contraction.grouped // each
    groups, lines, kept = groups_in(contraction), list[str](), dict[object, str]()
    level = levels(contraction.nest.region.stores.values())
    for now in sorted({level[group] for group in groups}):
        one, steps = Scope(scope), list[str]()
        one.known |= kept
        for group in (group for group in groups if level[group] == now):
            name, value = printer.name(), printer.emit(group.arg, one)
            lines.append(f"float {name} = {start_of(group.kind, group.dtype)};")
            steps.append((C[group.kind].step_of_floats or C[group.kind].step).format(a=name, v=value))
            if used_again(group.arg, (v for v in groups if level[v] > now)):
                array = printer.name()
                lines.append(f"float {array}[{each}];")
                steps.append(f"{array}[u] = {value};")
                kept[group.arg] = f"{array}[u]"
            scope.known[group] = name
        lines += ["#pragma unroll", f"for (int u = 0; u < {each}; ++u) {{", f"  {inside}"]
        lines += [*indent([*one.lines, *steps]), "}"]
        done = [group for group in groups if level[group] == now]
        lines += [f"{scope.known[group]} = {joined(group, scope.known[group], lanes)};" for group in done]
    return lines


def used_again(value: ir.Value, groups: Iterable[ir.Reduce]) -> bool:
    """Return whether any of these groups depends on a value but through a group."""
    return any(value in set(ir.walk(group.arg, enter=lambda v: not isinstance(v, ir.Reduce))) for group in groups)


def joined(group: ir.Reduce, value: str, lanes: int) -> str:
    """Return what neighbouring lanes have together, as C."""
    return f"of_lanes({value}, {C[group.kind].functor}(), {lanes})"
