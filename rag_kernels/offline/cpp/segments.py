"""Segments in C++: a thread walks through the rows of a segment, and has what they come to in registers.

Comes in: a SegmentRegion. Goes out: its statements. Rows join in their order, so that results do not depend on the
number of threads; where segments are few, threads share the columns of one.
"""

from __future__ import annotations

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.loop_nest import Loop, Names
from rag_kernels.offline.codegen.own_text import nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.reduction_texts import start_of
from rag_kernels.offline.codegen.statements import Printer, Scope, literal
from rag_kernels.offline.cpp.scatter import in_common, step_of
from rag_kernels.offline.fusion.regions import SegmentRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.lowering.steps import Segmented

FEW, LEAST_COLUMNS = 1 << 14, 64  # elements for which no other thread is woken; columns that are worth one
TILE = 64  # columns whose sums stay in registers
ROWS_AHEAD = 6  # after how many rows one is read that is fetched now, where rows lie at computed places

TILES = (
    "int64_t from = first;",
    f"for (; from + {TILE} <= end; from += {TILE}) part(from, std::integral_constant<int64_t, {TILE}>());",
    "if (from < end) part(from, end - from);",
)


def region_text(region: SegmentRegion, names: Names, pointers: dict[str, str], storage: dict[str, str]) -> list[str]:
    """Return the statements of segments."""
    step = region.segmented
    own, rows = ir.leaves(step.dims[0]), ir.leaves(step.rows)
    columns = [leaf for group in step.dims[1:] for leaf in ir.leaves(group)]
    nest = nest_of(region, [*own, *rows, *columns], names)
    printer = Printer(nest, pointers, storage)
    loops = nest.outer[len(own) + len(rows) :]
    count, length = names.product(step.dims[0]), names.product(step.rows)
    outer = Scope()
    bounds = [printer.emit(value, outer) for value in (step.begin, step.end)]
    lines = part_text(step, printer, loops, outer)
    for loop in reversed(loops[:-1]):
        lines = [f"for (int64_t {loop.var} = 0; {loop.var} < {loop.size}; ++{loop.var}) {{", *indent(lines), "}"]
    last = loops[-1].size if loops else "1"
    return [
        f"// {step.buffer}: {count} segments of {length} rows",
        "{",
        f"  const int64_t last = {last}, most = last / {LEAST_COLUMNS}, threads = omp_get_max_threads();",
        f"  const int64_t parts = {count} >= 4 * threads || most < 2 ? 1 : most < threads ? most : threads;",
        f"  #pragma omp parallel for schedule(dynamic, 4) if (({length}) * ({names.product(tuple(columns))}) >= {FEW})",
        f"  for (int64_t task = 0; task < ({count}) * parts; ++task) {{",
        *([f"    const int64_t {nest.var(own[0])} = task / parts;"] if own else []),
        "    const int64_t first = last * (task % parts) / parts, end = last * (task % parts + 1) / parts;",
        *indent(indent(outer.lines)),
        f"    const int64_t begin = std::max<int64_t>(0, {bounds[0]});",
        f"    const int64_t until = std::max<int64_t>(begin, std::min<int64_t>({bounds[1]}, {length}));",
        *indent(indent(lines)),
        "  }",
        "}",
    ]


def part_text(step: Segmented, printer: Printer, loops: list[Loop], outer: Scope) -> list[str]:
    """Return the statements for columns `first` to before `end`, whose sums stay in registers TILE at a time."""
    nest, ctype, rows = printer.nest, CTYPES[step.value.dtype], ir.leaves(step.rows)
    inner = Scope(outer)
    takes = printer.emit(step.takes, inner) if step.takes is not None else ""
    for common in in_common(step.value, frozenset(loops[-1].leaves if loops else ())):
        printer.emit(common, inner)
    element = Scope(inner)
    value = printer.emit(step.value, element)
    join = step_of(step.kind, step.value.dtype).format(a="sums[c]", v=value)
    column = [f"const int64_t {loops[-1].var} = from + c;"] if loops else []
    offset = nest.offset(nest.stores[step.buffer]) or "0"
    result = f"taken > 0 ? sums[c]{' / taken' if step.mean else ''} : {ctype}({literal(step.empty, step.value.dtype)})"

    def each(body: list[str]) -> list[str]:
        return ["#pragma omp simd", "for (int64_t c = 0; c < count; ++c) {", *indent([*column, *body]), "}"]

    row = [
        *([f"const int64_t {nest.var(rows[0])} = row;"] if rows else []),
        *(fetched(step, printer, loops) if rows and loops else []),
        *inner.lines,
        *([f"if (!({takes})) {{", "  --taken;", "  continue;", "}"] if takes else []),
        *each([*element.lines, join]),
    ]
    return [
        "const auto part = [&](int64_t from, auto count) {",
        f"  {ctype} sums[{TILE}];",
        "  int64_t taken = until - begin;",
        f"  for (int64_t c = 0; c < count; ++c) sums[c] = {start_of(step.kind, step.value.dtype)};",
        "  for (int64_t row = begin; row < until; ++row) {",
        *indent(indent(row)),
        "  }",
        *indent(each([f"{printer.pointers[step.buffer]}[{offset}] = {result};"])),
        "};",
        *(TILES if loops else ["part(0, std::integral_constant<int64_t, 1>());"]),
    ]


def fetched(step: Segmented, printer: Printer, loops: list[Loop]) -> list[str]:
    """Return statements that fetch rows at computed places, which no processor foresees, some rows ahead."""
    nest, [leaf] = printer.nest, ir.leaves(step.rows)
    lines: list[str] = []
    for load in [v for v in ir.walk(step.value) if isinstance(v, ir.Load)]:
        access = nest.accesses[load]
        if not any(leaf in ir.tree_atoms(index) for index, _ in access.values) or not access.stride(
            loops[-1].leaves[-1]
        ):
            continue
        scope, pointer = Scope(), printer.pointers[load.buffer]
        place = printer.at(access, scope)
        lines += [
            *scope.lines,
            f"const char* const there = (const char*)({pointer} + {place});",
            f"for (int64_t byte = 0; byte < int64_t(count * sizeof(*{pointer})); byte += 64)",
            "  __builtin_prefetch(there + byte);",
        ]
        break
    if not lines:
        return []
    head = [f"const int64_t {nest.var(leaf)} = row + {ROWS_AHEAD}, {loops[-1].var} = from;"]
    return [f"if (row + {ROWS_AHEAD} < {nest.names.product(step.rows)}) {{", *indent([*head, *lines]), "}"]
