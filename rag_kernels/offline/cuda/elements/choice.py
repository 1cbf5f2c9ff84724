"""Which kernel of this folder serves a region, if any does.

Comes in: a region of a Function and tuning parameters. Goes out: a printer for a kernel that takes neighbouring
elements together. The order of the ways is the order in which they are tried.
"""

from __future__ import annotations

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.cuda.elements.found_vectors import find_quads, vectorized_region
from rag_kernels.offline.cuda.elements.kept_columns import KeptColumns, kept_columns
from rag_kernels.offline.cuda.elements.odd_rows import odd_rows
from rag_kernels.offline.cuda.elements.short_lanes import ShortLanes, short_lanes_region
from rag_kernels.offline.cuda.elements.staged_rows import StagedRows, staged_rows
from rag_kernels.offline.cuda.elements.stepped_points import stepped_points
from rag_kernels.offline.cuda.elements.strided_points import strided_points
from rag_kernels.offline.cuda.elements.strip_points import StripPoints, strip_points
from rag_kernels.offline.cuda.elements.turned_columns import turned_columns
from rag_kernels.offline.cuda.elements.turned_points import turned_region
from rag_kernels.offline.cuda.elements.turned_windows import turned_windows
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.elements.wide_columns import WideColumns
from rag_kernels.offline.cuda.elements.window_lanes import WindowLanes, window_lanes
from rag_kernels.offline.cuda.elements.window_rows import window_rows
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import Region

__all__ = ["VectorizedRegion", "wide_region"]


def wide_region(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters
) -> VectorizedRegion | ShortLanes | WindowLanes | KeptColumns | StripPoints | StagedRows | None:
    """Return the kernel of a region that takes neighbouring elements together, if there is one."""
    columns = WideColumns.of(region, function, sizes, parameters)
    if columns.nest.schedule == "column":
        wide = parameters.vector > 1 and columns.serves() and find_quads(columns)
        kept = None if wide else kept_columns(region, function, sizes, parameters)
        if wide or kept:
            return columns if wide else kept
        windows = (kind(region, function, sizes, parameters) for kind in (window_rows, window_lanes, turned_windows))
        return next((made for made in windows if made), None)
    if columns.has_few_long_threads():
        return None
    turned = turned_columns(region, function, sizes, parameters)
    if turned:
        return turned
    kinds = turned_region, stepped_points, strided_points
    point = next((made for kind in kinds if (made := kind(region, function, sizes, parameters))), None)
    vectorized = point or vectorized_region(region, function, sizes, parameters)
    odd = vectorized or odd_rows(region, function, sizes, parameters)
    short = odd or short_lanes_region(region, function, sizes, parameters)
    staged = short or staged_rows(region, function, sizes, parameters)
    return staged or strip_points(region, function, sizes, parameters)
