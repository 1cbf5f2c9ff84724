"""A convolution and the nest behind it that joins all its pixels, or filters, as one kernel that stores none of them.

Comes in: regions of a function, one behind the other (`fusion/tiles/` makes such). Goes out: a region of both,
which stores what each pixel is made to, with how these are joined; `gemm/convolutions/pixel_sums.py` writes its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rag_kernels.offline.codegen.kernel_function import Function
from rag_kernels.offline.fusion.loops import key_of, loops_of
from rag_kernels.offline.fusion.regions import Region, reads_of
from rag_kernels.offline.fusion.stores.inlined import made_at
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.fusion.tiles.pixel_sums import KINDS, lanes_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.ir.values import outermost


@dataclass(frozen=True, slots=True)
class PixelsJoined:
    """A convolution's region and the one behind it, as one. `pixels` is the buffer that need not be."""

    pixels: str
    region: Region  # which stores what each pixel is made to, under the names of what these come to
    sums: Region  # the second of the two
    kinds: dict[str, Kind]
    of_filters: bool  # for each pixel; else of pixels, for each image and filter


def pixels_joined(function: Function, place: int) -> PixelsJoined | None:
    """Return the region at this place, a convolution, with the next one, if that joins all its pixels or filters and
    nobody else reads them.
    """
    first, *rest = function.regions[place : place + 2]
    second = rest[0] if rest else None
    if type(first) is not Region or type(second) is not Region or first.slots or second.slots or len(first.stores) > 1:
        return None
    ((pixels, made),) = first.stores.items()
    kinds = {b: kind for b, value in second.stores.items() if (kind := kind_of(value, second))}
    if len(kinds) < len(second.stores) or pixels not in function.scratch or pixels not in reads_of(second):
        return None
    product = next((v for v in outermost(made) if isinstance(v, ir.Reduce) and tile_of(v)), None)
    if product is None or any(pixels in reads_of(other) for other in function.regions if other is not second):
        return None
    _, filters, places = lanes_of(product)
    reduced, laid = frozenset(ir.leaves(second.reduced)), loops_of(made)
    left = tuple(leaf for leaf in laid if leaf not in reduced)
    if reduced not in (filters, places) or any(loops_of(value) != left for value in second.stores.values()):
        return None
    stores = dict[str, ir.Value]()
    for buffer, value in second.stores.items():
        joined = strip(value)
        assert isinstance(joined, ir.Reduce)
        one = rewrite(joined.arg, partial(made_at, first))
        if any(isinstance(v, ir.Load) and v.buffer == pixels for v in ir.walk(one)):
            return None
        stores[buffer] = ir.Op(made.dims, value.dtype, Operator.SAME, (one,))
    return PixelsJoined(pixels, Region(stores, first.outer, first.reduced), second, kinds, reduced == filters)


def kind_of(value: ir.Value, region: Region) -> Kind | None:
    """Return how a value joins all that its region reduces, if it does nothing else."""
    joined = strip(value)
    if not isinstance(joined, ir.Reduce) or joined.kind not in KINDS or joined.guards or joined.dtype != "float32":
        return None
    whole = key_of(joined) == (frozenset(ir.leaves(region.outer)), frozenset(ir.leaves(region.reduced)))
    return joined.kind if whole else None
