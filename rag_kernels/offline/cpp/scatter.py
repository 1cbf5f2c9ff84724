"""Scatters in C++: every thread goes through all places, and writes those that are its own.

Comes in: a ScatterRegion. Goes out: its statements. No element is written by two threads and all are written in the
order of the loops, so that results do not depend on the number of threads. Where some dimension of the result is
addressed by a loop of its own, each thread has a part of that loop; elsewhere a range of the result.
"""

from __future__ import annotations

from rag_kernels.offline.codegen.loop_nest import Loop, Names
from rag_kernels.offline.codegen.own_text import inside, nest_of, place_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.reduction_texts import C
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.fusion.loops import loops_of
from rag_kernels.offline.fusion.regions import ScatterRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import is_float
from rag_kernels.offline.ir.reductions import Kind

FEW = 1 << 14  # elements for which no other thread is woken
LEAST_PART = 8  # steps of a loop that is worth sharing


def region_text(region: ScatterRegion, names: Names, pointers: dict[str, str], storage: dict[str, str]) -> list[str]:
    """Return the statements of a scatter."""
    scattered = region.scattered
    nest = nest_of(region, loops_of(scattered.value), names)
    printer = Printer(nest, pointers, storage)
    shared = None if region.also else shared_loop(scattered.places, nest.outer)
    last = nest.outer[-1] if nest.outer else None
    outer, inner = Scope(), Scope()
    inner.parent = outer
    free = frozenset(last.leaves if last else ())
    before = [] if region.also else inside(printer, scattered, outer, free)
    for common in (v for one in region.every for v in in_common(one.value, free)):
        printer.emit(common, outer)
    elements, guarded = list[str](), False
    for one in region.every:
        conditions = [c for c in inside(printer, one, inner, frozenset()) if c not in before]
        place, at = printer.at(place_of(one, names), inner), list[str]()
        if shared is None:
            at = [f"const int64_t at = {place};"]
            conditions.append("at >= first && at < end")
            place = "at"
        element = Scope(inner)
        value = printer.emit_stored(one.buffer, one.value, element)
        step = step_of(one.kind, one.value.dtype).format(a=f"{pointers[one.buffer]}[{place}]", v=value)
        joins, told = [*element.lines, step], " && ".join(conditions)
        if region.also:
            elements += ["{", *indent([*at, f"if ({told}) {{", *indent(joins), "}"]), "}"]
        else:
            elements = [*at, *([f"if (!({told})) continue;"] if told else []), *joins]
        guarded |= bool(conditions)
    body = [*inner.lines, *elements]
    simd = shared is not None and shared is last and not guarded
    lines = looped(nest.outer, last, shared, (outer.lines, before), body, simd=simd)
    total = names.product(tuple(leaf for loop in nest.outer for leaf in loop.leaves))
    split = f"{shared.size}" if shared else names.product(tuple(a for g in scattered.dims for a in g))
    note = f"// {scattered.buffer}: {total} values scattered ({scattered.kind or 'set'})"
    return [
        note,
        f"#pragma omp parallel if ({total} >= {FEW})",
        "{",
        "  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads(), all = " + split + ";",
        "  const int64_t first = all * thread / threads, end = all * (thread + 1) / threads;",
        *indent(lines),
        "}",
    ]


def in_common(value: ir.Value, loops: frozenset[ir.Atom]) -> list[ir.Value]:
    """Return the largest values of a tree that are the same at every step of some loops.

    The compiler takes out of a loop what is cheap, but no rounding to sixteen bits and no function.
    """
    found = ir.walk(value, enter=lambda v: bool(ir.tree_atoms(v) & loops)) if loops else ()
    return [v for v in found if not ir.tree_atoms(v) & loops and not isinstance(v, ir.Const | ir.Size)]


def step_of(kind: Kind | None, dtype: str) -> str:
    """Return how an element joins what stands at its place."""
    if kind is None:
        return "{a} = {v};"
    return C[kind].step if is_float(dtype) else C[kind].step_in_blocks or C[kind].step


def shared_loop(places: tuple[ir.Form | ir.Value, ...], loops: list[Loop]) -> Loop | None:
    """Return the longest loop that alone addresses a dimension of the result, if one is long enough to be shared."""
    alone = {
        form.terms[0][0].leaves()
        for form in places
        if isinstance(form, ir.Form) and len(form.terms) == 1 and form.terms[0][1]
    }
    found = [loop for loop in loops if loop.leaves in alone and loop.count >= LEAST_PART]
    return max(found, key=lambda loop: loop.count, default=None)


def looped(
    loops: list[Loop],
    last: Loop | None,
    shared: Loop | None,
    around_last: tuple[list[str], list[str]],
    body: list[str],
    *,
    simd: bool,
) -> list[str]:
    """Return all loops around the body; `around_last` has what stands before the innermost, and its conditions."""
    declared, conditions = around_last
    if last is None:  # one element
        condition = " && ".join(conditions) or "true"
        return [*declared, f"for (bool once = {condition}; once; once = false) {{", *indent(body), "}"]
    for loop in reversed(loops):
        start, stop = ("first", "end") if loop is shared else ("0", loop.size)
        pragma = ["#pragma omp simd"] if simd and loop is last else []
        head = f"for (int64_t {loop.var} = {start}; {loop.var} < {stop}; ++{loop.var}) {{"
        body = [*pragma, head, *indent(body), "}"]
        if loop is last:
            guard = [f"if ({' && '.join(conditions)}) {{", *indent(body), "}"] if conditions else body
            body = [*declared, *guard]
    return body
