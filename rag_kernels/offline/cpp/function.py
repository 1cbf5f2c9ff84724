"""C++/OpenMP for a function: what it needs, its export, and each of its regions by the printer that it takes.

Comes in: a Function and tuning parameters. Goes out: one source text of the kernel contract.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rag_kernels.offline.codegen.contraction import find_contraction
from rag_kernels.offline.codegen.kernel_function import SHORT, Function, Sizes, innermost
from rag_kernels.offline.codegen.loop_nest import Names, Nest, build_nest
from rag_kernels.offline.codegen.math_prelude import called
from rag_kernels.offline.codegen.operator_texts import Form
from rag_kernels.offline.codegen.reduction_levels import indent, levels
from rag_kernels.offline.codegen.statements import Printer
from rag_kernels.offline.cpp import attention as attention_cpp
from rag_kernels.offline.cpp import contraction as contract_cpp
from rag_kernels.offline.cpp import order as order_cpp
from rag_kernels.offline.cpp import scatter as scatter_cpp
from rag_kernels.offline.cpp import segments as segments_cpp
from rag_kernels.offline.cpp.region import CpuParameters, CpuRegion
from rag_kernels.offline.fusion.regions import (
    AttentionRegion,
    OrderRegion,
    Region,
    ScatterRegion,
    SegmentRegion,
    loads_of,
)
from rag_kernels.offline.graph.training_step import DEAR
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.parameters import c_name, whole_of

FEW_LANES = 4  # that are done one by one
HEAD = """#pragma GCC optimize("no-trapping-math")  // comparisons vectorise; values stay exact
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#include <cmath>
#include <cstdint>
#include <memory>
#include <algorithm>
#include "rag_kernel.h"
"""


def constants(p: CpuParameters) -> str:
    """Return the declarations that state the tuning parameters in a source."""
    numbers = f"BLOCK = {p.block}, TILE = {p.tile}, LANES = {p.lanes}, KEEP = {int(p.keep)}"
    numbers += f", ROWS = {p.rows}, COLUMNS = {p.columns}, DEPTH = {p.depth}, PRODUCTS = {p.products}, "
    numbers += f"ATTENTION = {p.attention}" + (f", SHORT = {p.short}" if p.short != SHORT else "")
    numbers += f", SAVING = {p.saving}" if p.saving != DEAR else ""
    return f"constexpr int64_t {numbers};  // tuning parameters\n"


@dataclass(slots=True)
class Needs:
    """What the functions of one source call of the fixed texts: noted by each region when it is printed.

    `calls` has mathematical functions, whose texts stand before these.
    """

    calls: set[str] = field(default_factory=set)
    threads: bool = False
    products: bool = False
    attention: bool = False
    order: bool = False

    def text(self) -> str:
        """Return the fixed texts."""
        parts = ("#include <omp.h>\n", contract_cpp.HEAD, attention_cpp.HEAD, order_cpp.HEAD)
        noted = (self.threads, self.products, self.attention, self.order)
        return "".join(part for part, needed in zip(parts, noted, strict=True) if needed)


def function_text(function: Function, parameters: CpuParameters, needs: Needs) -> str:
    """Return the function that runs these regions, and its export; what it calls is noted."""
    names = Names()
    sizes = Sizes(names)
    sizes.solve(function, short=0, free=True)
    regions = [line for r in function.regions for line in ["", *region_text(r, function, sizes, parameters, needs)]]
    lines = [f"void {function.name}_kernel({function.parameters('cpu')}) {{"]
    lines += ["  " + d for d in sizes.declarations]
    lines += [f'  RK_CHECK({c}, "this kernel needs {c}");' for c in dict.fromkeys(sizes.checks)]
    for buffer, ctype, total in function.scratch_memory(names, "cpu"):
        name = c_name(buffer)
        lines.append(f"  std::unique_ptr<{ctype}[]> {name}_memory(new {ctype}[{total}]);")
        lines.append(f"  {ctype}* const {name}_data = {name}_memory.get();")
    local = pointers_of(function)
    arguments = [b for b in dict.fromkeys((*function.inputs, *function.outputs)) if not local[b].endswith(".data")]
    lines += [f"  auto* const {local[b]} = {c_name(b)}.data;" for b in arguments]
    lines += ["  " + line if line else "" for line in regions]
    return "\n".join([*lines, "}", f"RK_EXPORT({function.name}, {function.name}_kernel)", ""])


def pointers_of(function: Function) -> dict[str, str]:
    """Return the pointers to all buffers, as C.

    A store of one byte may change anything for a compiler, the tensors that hold the pointers too: it would read these
    again at each element, and make no vectors. So they are variables where there is such a store.
    """
    bytes_stored = any(ITEMSIZE.get(function.specs[b].dtype) == 1 for r in function.regions for b in r.stores)
    variables = function.specs if bytes_stored else function.scratch
    return {b: f"{c_name(b)}_data" if whole_of(b) in variables else f"{c_name(b)}.data" for b in function.specs}


def region_text(region: Region, function: Function, sizes: Sizes, parameters: CpuParameters, needs: Needs) -> list[str]:
    """Return the statements of one region: in tiles if it is a product, else by its schedule."""
    pointers, names = pointers_of(function), sizes.names
    storage = function.storage
    needs.calls |= called(region.stores.values(), Form.C)
    match region:
        case AttentionRegion():
            needs.attention = True
            needs.calls.add(attention_cpp.CALLED)
            return attention_cpp.region_text(region, function, names, pointers)
        case ScatterRegion():
            needs.threads = True
            return scatter_cpp.region_text(region, names, pointers, storage)
        case SegmentRegion():
            needs.threads = True
            return segments_cpp.region_text(region, names, pointers, storage)
        case OrderRegion():
            needs.order = True
            return order_cpp.region_text(region, names, pointers, storage)
    contraction = find_contraction(region, names)
    if contraction:
        needs.products = True
        return contract_cpp.region_text(contraction, Printer(contraction.nest, pointers, storage))
    nest = long_lanes(build_nest(region, names))
    known = levels(region.stores.values())
    own = own_steps(nest, sizes, parameters.short)
    local = function.pointers if own else pointers
    text = CpuRegion(nest, Printer(nest, local, storage), known, parameters=parameters).text()
    return at_own_steps(text, own, {local[b]: pointers[b] for b in buffers_of(region)}) if own else text


def buffers_of(region: Region) -> list[str]:
    """Return what a region reads and writes."""
    return list(dict.fromkeys((*(v.buffer for v in loads_of(region)), *region.stores)))


def own_steps(nest: Nest, sizes: Sizes, most: int) -> dict[str, int]:
    """Return the sizes, by name, that loops of short rows have for this problem and that no number tells."""
    loops = innermost(nest, most) if nest.schedule == "row" else []
    named = {sizes.names[leaf]: leaf.size for loop in loops for leaf in loop.leaves}
    return {name: size for name, size in named.items() if name not in sizes.constants}


def at_own_steps(text: list[str], own: dict[str, int], pointers: dict[str, str]) -> list[str]:
    """Return the statements of a region for a call of this problem's sizes, whose loops g++ unrolls, and for others.

    `pointers` are those that they use, with what they point to: g++ makes no vectors where it reads these again.
    """
    note, *body = text
    local = [f"auto* const {pointer} = {data};" for pointer, data in pointers.items()]
    numbers = [f"std::integral_constant<int64_t, {size}>()" for size in own.values()]
    return [
        note,
        "{",
        f"  const auto rows = [&]({', '.join(f'auto steps_{name}' for name in own)}) {{",
        *indent(indent([*(f"const int64_t {name} = steps_{name};" for name in own), *local, *body])),
        "  };",
        f"  if ({' && '.join(f'{name} == {size}' for name, size in own.items())}) rows({', '.join(numbers)});",
        f"  else rows({', '.join(own)});",
        "}",
    ]


def long_lanes(nest: Nest) -> Nest:
    """Return the nest of a pass whose lanes are a number, and few, with the next loop as lanes around these.

    So pairs that lie beside each other, such as real and imaginary parts, are made by vectors over the pairs.
    """
    few, outer = nest.lane, nest.outer
    if nest.schedule != "point" or few is None or not outer or not all(leaf.fixed for leaf in few.leaves):
        return nest
    if few.count > FEW_LANES or outer[-1].count < few.count:
        return nest
    lane = replace(outer[-1], var="l")
    return replace(nest, outer=outer[:-1], lane=lane, reduced=[replace(few, var="r0")])
