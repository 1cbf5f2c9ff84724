"""Segments in C++: a thread walks through the rows of a segment, and has what they come to beside it.

Comes in: a SegmentRegion. Goes out: its statements. Rows join in their order, so that results do not depend on the
number of threads; where segments are few, threads share the columns of one.
"""

from __future__ import annotations

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.loop_nest import Loop, Names, Nest
from rag_kernels.offline.codegen.own_text import nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.reduction_texts import start_of
from rag_kernels.offline.codegen.statements import Printer, Scope, literal
from rag_kernels.offline.cpp.scatter import in_common, step_of
from rag_kernels.offline.fusion.regions import SegmentRegion
from rag_kernels.offline.ir import values as ir

FEW, LEAST_COLUMNS = 1 << 14, 64  # elements for which no other thread is woken; columns that are worth one


def region_text(region: SegmentRegion, names: Names, pointers: dict[str, str], storage: dict[str, str]) -> list[str]:
    """Return the statements of segments."""
    step = region.segmented
    own, rows = ir.leaves(step.dims[0]), ir.leaves(step.rows)
    columns = [leaf for group in step.dims[1:] for leaf in ir.leaves(group)]
    nest = nest_of(region, [*own, *rows, *columns], names)
    printer = Printer(nest, pointers, storage)
    loops = nest.outer[len(own) + len(rows) :]
    count, length = names.product(step.dims[0]), names.product(step.rows)
    ctype = CTYPES[step.value.dtype]
    outer = Scope()
    bounds = [printer.emit(value, outer) for value in (step.begin, step.end)]
    inner = Scope(outer)
    takes = printer.emit(step.takes, inner) if step.takes is not None else ""
    for common in in_common(step.value, frozenset(columns[-1:])) if len(columns) == 1 else []:
        printer.emit(common, inner)
    element = Scope(inner)
    value = printer.emit(step.value, element)
    join = step_of(step.kind, step.value.dtype).format(a="sums[c]", v=value)
    row = [
        *inner.lines,
        *([f"if (!({takes})) {{", "  --taken;", "  continue;", "}"] if takes else []),
        *over(nest, loops, [*element.lines, join]),
    ]
    var = f"const int64_t {nest.var(rows[0])} = row;" if rows else ""
    some = "sums[c] / taken" if step.mean else "sums[c]"
    offset = nest.offset(nest.stores[step.buffer]) or "0"
    result = f"taken > 0 ? {some} : {ctype}({literal(step.empty, step.value.dtype)})"
    wide = names.product(tuple(columns))
    last = loops[-1].size if loops else "1"
    return [
        f"// {step.buffer}: {count} segments of {length} rows",
        "{",
        f"  const int64_t last = {last}, most = last / {LEAST_COLUMNS}, threads = omp_get_max_threads();",
        f"  const int64_t parts = {count} >= 4 * threads || most < 2 ? 1 : most < threads ? most : threads;",
        f"  #pragma omp parallel if (({length}) * ({wide}) >= {FEW})",
        "  {",
        f"    std::unique_ptr<{ctype}[]> memory(new {ctype}[{wide}]);",
        f"    {ctype}* const sums = memory.get();",
        "    #pragma omp for schedule(dynamic, 4)",
        f"    for (int64_t task = 0; task < ({count}) * parts; ++task) {{",
        *([f"      const int64_t {nest.var(own[0])} = task / parts;"] if own else []),
        "      const int64_t first = last * (task % parts) / parts, end = last * (task % parts + 1) / parts;",
        *indent(indent(indent(outer.lines))),
        f"      const int64_t begin = std::max<int64_t>(0, {bounds[0]});",
        f"      const int64_t until = std::max<int64_t>(begin, std::min<int64_t>({bounds[1]}, {length}));",
        "      int64_t taken = until - begin;",
        *indent(indent(indent(over(nest, loops, [f"sums[c] = {start_of(step.kind, step.value.dtype)};"])))),
        "      for (int64_t row = begin; row < until; ++row) {",
        *([f"        {var}"] if var else []),
        *indent(indent(indent(indent(row)))),
        "      }",
        *indent(indent(indent(over(nest, loops, [f"{pointers[step.buffer]}[{offset}] = {result};"])))),
        "    }",
        "  }",
        "}",
    ]


def over(nest: Nest, loops: list[Loop], body: list[str]) -> list[str]:
    """Return the loops over columns around a body, of which `c` is the number among them."""
    if not loops:
        return ["for (int64_t c = first; c < end; ++c) {", *indent(body), "}"]
    flat = loops[0].var
    for loop in loops[1:]:
        flat = f"({flat}) * {loop.size} + {loop.var}"
    *outer, last = loops
    lines = [
        "#pragma omp simd",
        f"for (int64_t {last.var} = first; {last.var} < end; ++{last.var}) {{",
        f"  const int64_t c = {flat};",
        *indent(body),
        "}",
    ]
    for loop in reversed(outer):
        lines = [f"for (int64_t {loop.var} = 0; {loop.var} < {loop.size}; ++{loop.var}) {{", *indent(lines), "}"]
    return lines
