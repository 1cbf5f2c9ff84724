"""Elements that another nest stores, computed where they are read, so that one nest may do both.

Comes in: a region, and an earlier one of which it reads. Goes out: the region that reads less of it. `planner.py` asks,
and keeps the region as it was where that makes no nest less.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rag_kernels.offline.fusion.regions import Region, reductions_in
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.rewriting import rewrite


def inlined(region: Region, other: Region) -> Region:
    """Return the region with elements that the other one stores at the same place replaced by how they are computed.

    What rows come to is so only for rows of the same elements, which one nest has at hand for both.
    """
    if other.slots or (reductions_in(other) and not of_the_same_rows(region, other)):
        return region

    return replace(region, stores={b: rewrite(v, partial(made_at, other)) for b, v in region.stores.items()})


def of_the_same_rows(one: Region, other: Region) -> bool:
    """Return whether two regions reduce the same loops, neither by a product in tiles nor as a scan."""
    alike = all(ir.leaves(a) == ir.leaves(b) for a, b in ((one.outer, other.outer), (one.reduced, other.reduced)))
    found = [*reductions_in(one), *reductions_in(other)] if alike else []
    return alike and all(isinstance(v, ir.Reduce) and not tile_of(v) for v in found)


def made_at(region: Region, value: ir.Value) -> ir.Value | None:
    """Return what a region stores at the place that a load reads, if it is the same in the loops of both; else None."""
    if not isinstance(value, ir.Load) or value.buffer not in region.stores:
        return None
    forms = [f for f in value.index if isinstance(f, ir.Form)]
    here = [(leaf, factor) for f in forms for a, factor in f.terms for leaf in a.leaves()]
    there = [(leaf, 1) for group in region.stores[value.buffer].dims for leaf in ir.leaves(group)]
    plain = len(forms) == len(value.index) and all(not f.offset and not f.sizes and len(f.terms) <= 1 for f in forms)
    return region.stores[value.buffer] if plain and here == there else None
