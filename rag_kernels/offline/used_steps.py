"""Which steps, and which stores of regions, somebody reads; which steps stand together in one function.

Comes in: the steps of a graph, and its results. Goes out: those that are needed, in runs
of regions between library calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rag_kernels.offline.fusion.loops import key_of
from rag_kernels.offline.fusion.regions import OrderRegion, RecurrentRegion, Region, reads_of
from rag_kernels.offline.graph.nodes import refs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import whole_of
from rag_kernels.offline.lowering.steps import Library


def used(steps: Sequence[Region | Library], results: Sequence[str]) -> list[Region | Library]:
    """Return the steps without the regions, and the stores of regions, that nobody reads."""
    needed, kept = set(results), list[Region | Library]()
    for step in reversed(steps):
        if isinstance(step, Region):
            if not needed & step.written.keys():
                continue
            step = without_unread(step, needed)
        needed |= reads(step)
        kept.append(step)
    return kept[::-1]


def without_unread(region: Region, needed: set[str]) -> Region:
    """Return the region without stores that nobody reads: what it was fused with has these values in registers."""
    stores = {b: v for b, v in region.stores.items() if whole_of(b) in needed}
    if isinstance(region, OrderRegion | RecurrentRegion):
        return replace(region, stores=stores)
    values = tuple(ir.walk(*stores.values()))
    read = {v.buffer for v in values if isinstance(v, ir.Load)}
    loops = {leaf for v in values if isinstance(v, ir.Reduce | ir.Scan) for leaf in key_of(v)[1]}
    if type(region) is not Region or read & region.written.keys() or not loops >= set(region.reduced):
        return region
    return replace(region, stores=stores, slots={b: s for b, s in region.slots.items() if b in stores})


def grouped(steps: list[Region | Library]) -> list[list[Region] | Library]:
    """Return the steps with neighbouring regions joined into lists, each of which becomes one function."""
    out: list[list[Region] | Library] = []
    for step in steps:
        if isinstance(step, Library):
            out.append(step)
        elif out and isinstance(out[-1], list):
            out[-1].append(step)
        else:
            out.append([step])
    return out


def reads(step: Region | Library) -> set[str]:
    """Return the buffers that a step reads."""
    if isinstance(step, Library):
        return {*refs(step.node.args), *refs(tuple(v for _, v in step.node.kwargs))}
    return reads_of(step)


def needed_after(run: list[Region], readers: Mapping[str, int], results: Sequence[str]) -> set[str]:
    """Return the buffers of these regions that other steps or the results read; `readers` has how many steps read
    each.
    """
    own = Counter(buffer for region in run for buffer in reads_of(region))
    return {b for region in run for b in region.written if b in results or readers.get(b, 0) > own[b]}
