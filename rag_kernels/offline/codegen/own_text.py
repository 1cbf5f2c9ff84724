"""What texts of their own have in common: scatters, segments and sorts, whose loops are no nest that a schedule knows.

Comes in: a region of an `OwnText`. Goes out: a `Nest` with one loop for each leaf, by which values are printed, and the
C of indices. Knows nothing of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.offline.codegen.loop_nest import Access, Loop, Names, Nest, access_of
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.fusion.regions import OwnText, ScatterRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.lowering.steps import Scattered


def nest_of(region: OwnText, loops: Sequence[ir.Atom], names: Names) -> Nest:
    """Return the loops of the region's values, outermost first, with the addresses of what it reads and writes."""
    loads = [v for v in ir.walk(*region.stores.values()) if isinstance(v, ir.Load)]
    accesses = {v: access_of(v.stored, v.index, names) for v in loads}
    stores = {}
    for buffer in region.stores:
        dims = tuple((leaf,) for group in region.dims(buffer) for leaf in ir.leaves(group))  # merged loops, one by one
        stores[buffer] = access_of(dims, tuple(ir.Form(((leaf, 1),)) for (leaf,) in dims), names)
    if isinstance(region, ScatterRegion):
        stores = {region.scattered.buffer: place_of(region.scattered, names)}
    outer = [Loop((leaf,), f"i{k}", names[leaf], leaf.size) for k, leaf in enumerate(loops)]
    return Nest(region, "point", outer, [], None, names, accesses, stores)


def place_of(scattered: Scattered, names: Names) -> Access:
    """Return where an element of a scatter belongs in its buffer."""
    return access_of(scattered.dims, scattered.places, names)


def apart(nest: Nest, whole: str, leaves: Sequence[ir.Atom], ctype: str = "int64_t") -> list[str]:
    """Return declarations of the indices of some loops, of which `whole` runs through all together.

    They are taken apart in `ctype`, of which a GPU divides 32 bits several times as fast as 64.
    """
    lines = []
    for i, leaf in enumerate(leaves):
        inner = nest.names.product(tuple(leaves[i + 1 :]))
        text = f"{ctype}({whole}) / {ctype}({inner})" if i + 1 < len(leaves) else whole
        rest = f" % {ctype}({nest.names[leaf]})" if i else ""
        text = f"{ctype}({text})" if rest and text == whole else text
        lines.append(f"const int64_t {nest.var(leaf)} = {text}{rest};")
    return lines


def inside(printer: Printer, scattered: Scattered, scope: Scope, free: frozenset[ir.Atom]) -> list[str]:
    """Return C conditions that an element's places lie in the buffer, those that need none of the `free` loops."""
    found = []
    for place, group in zip(scattered.places, scattered.dims, strict=True):
        if isinstance(place, ir.Value) and not ir.tree_atoms(place) & free:
            size = printer.nest.names.product(group)
            found.append(f"uint64_t({printer.emit(place, scope)}) < uint64_t({size})")
    return found
