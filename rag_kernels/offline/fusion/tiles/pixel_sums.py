"""What a convolution's pixels come to for each filter, or filters for each pixel (a mean, an extreme), as own nests.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which such a reduction is marked, so that the
planner stores it alone, behind the convolution. A backend whose kernel has a piece of an image at hand joins the two
(`cuda/gemm/convolutions/joined_pixels.py`) and stores no pixel. Reductions stay where anything else reads the
convolution, where there are so few that each is taken in parts, and where each pixel takes a costly function (a GELU):
the few warps that finish a tile take longer for these than all of a processor's, which read what was stored.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.offline.fusion.loops import key_of, loops_of
from rag_kernels.offline.fusion.stores.stored_first import is_costly
from rag_kernels.offline.fusion.sums.parts import Split
from rag_kernels.offline.fusion.sums.products import factors_of, tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.ir.values import outermost
from rag_kernels.offline.lowering.steps import Lowered, Stored, values_of

KINDS = frozenset({Kind.SUM, Kind.MAX, Kind.MIN, Kind.FASTMAX})
MOST_FILTERS = 128  # of a tile, which has all filters of its pixels


def with_pixel_sums(lowered: Lowered, split: Split) -> Lowered:
    """Return the steps with reductions of a convolution marked, where nothing else reads the convolution."""
    stored = [step.value for step in lowered.steps if isinstance(step, Stored)]
    found = {v: product for v in ir.walk(*stored) if (product := product_of(v, split))}
    every = [value for step in lowered.steps if not isinstance(step, Stored) for value in values_of(step)]
    read = {*ir.walk(*every), *ir.walk(*stored, enter=lambda v: v not in found)}
    marked = dict[ir.Value, ir.Value]()
    for v, product in found.items():
        if isinstance(v, ir.Reduce) and product not in read:
            marked[v] = replace(v, apart=True)
    if not marked:
        return lowered
    steps = (
        replace(step, value=rewrite(step.value, marked.get)) if isinstance(step, Stored) else step
        for step in lowered.steps
    )
    return replace(lowered, steps=tuple(steps))


def product_of(value: ir.Value, split: Split) -> ir.Reduce | None:
    """Return the convolution of which a reduction takes all pixels of each image and filter, or all filters of each
    pixel; None for others.
    """
    if not isinstance(value, ir.Reduce) or value.kind not in KINDS or value.dtype != "float32" or value.guards:
        return None
    found = outermost(value.arg)
    product = found[0] if len(found) == 1 else None
    if not isinstance(product, ir.Reduce) or not tile_of(product) or value.arg.dtype != "float32":
        return None
    if any(is_costly(v) for v in ir.walk(value.arg, enter=lambda v: v is not product)):
        return None
    outer, reduced = key_of(value)
    _, filters, pixels = lanes_of(product)
    fits = ir.size_of(filters) <= MOST_FILTERS if reduced == filters else ir.size_of(outer) >= split.rows
    every = pixels and key_of(product)[0] == outer | reduced and reduced in (pixels, filters)
    return product if every and fits else None


def lanes_of(product: ir.Reduce) -> tuple[frozenset[ir.Atom], frozenset[ir.Atom], frozenset[ir.Atom]]:
    """Return the loops over a convolution's images, filters and pixels, as its results lie; all empty where a product
    is none, or has groups.
    """
    none = frozenset[ir.Atom]()
    outer, _ = key_of(product)
    loads = [v for factor in factors_of(product) or () if isinstance(v := strip(factor), ir.Load)]
    window = next((v for v in loads if is_window(v)), None)
    if len(loads) < 2 or window is None or not isinstance(window.index[0], ir.Form):
        return none, none, none
    filters = frozenset(a for v in loads if v is not window for a in ir.tree_atoms(v)) & outer
    images = frozenset(ir.leaves(atom for atom, _ in window.index[0].terms)) & outer
    first, laid = len(images), loops_of(product)
    ordered = set(laid[:first]) == images and set(laid[first : first + len(filters)]) == filters
    if filters & ir.tree_atoms(window) or not ordered:
        return none, none, none
    return images, filters, outer - images - filters


def is_window(load: ir.Load) -> bool:
    """Return whether a tensor is read through a window: a place of it is a sum of loops, or computed."""
    return any(isinstance(place, ir.Value) or len(place.terms) > 1 for place in load.index)
