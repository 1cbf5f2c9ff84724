"""Which products Hopper's kernels serve, and how each is cut.

Comes in: the kernel of `tensor_core.py` for a contraction. Goes out: a `WgmmaKernel` for it with the shape that should
take least time (`hopper/shape.py`), or None where the copy engine cannot feed one.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.offline.codegen.contraction import Contraction
from rag_kernels.offline.cuda.gemm.hopper.leave import results_of
from rag_kernels.offline.cuda.gemm.hopper.shape import LINE, PLAIN, Product, Shape, best_shape, shape_of
from rag_kernels.offline.cuda.gemm.hopper.tma_matrix import matrix_of
from rag_kernels.offline.cuda.gemm.hopper.wgmma import STRIP, WgmmaKernel
from rag_kernels.offline.cuda.gemm.tensor_core import TensorKernel
from rag_kernels.offline.fusion.stores.stored_first import is_costly
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF

NARROW = 16  # columns of a group up to which rows and columns may be exchanged


def wgmma_kernel(
    kernel: TensorKernel, wanted: tuple[int, int, int], of: type[WgmmaKernel] = WgmmaKernel
) -> WgmmaKernel | None:
    """Return the kernel (one `of` these) for a contraction in one pass that the copy engine can feed, or None.

    `wanted` has the shape of tiles, blocks of a cluster and whether groups take turns, as tuning parameters say them.
    """
    c, numbers = kernel.contraction, kernel.numbers
    left, right = matrix_of(c, c.left), matrix_of(c, c.right)
    if not numbers or left is None or right is None:
        return None
    if {left.load.storage, right.load.storage} != {"float32" if numbers == "tf32" else numbers}:
        return None
    turned, second = False, matrix_of(c, c.second) if c.second else None
    if c.second and (second is None or second.by != right.by):
        return None
    if numbers == "tf32":
        turned = right.lanes_inside and not left.lanes_inside and c.grouped <= NARROW
        left, right = (right, left) if turned else (left, right)
        right = right.turned() if right.lanes_inside else right
        if c.second and (turned or right.steps[0] != {(): 1}):
            return None
    made = of(c, kernel.printer, kernel.kind, 0, kernel.tile, numbers, left, right, PLAIN, turned, second)
    stored = {kernel.printer.storage[b] for b in c.nest.region.stores}
    if numbers in HALF and stored <= {*HALF} and not c.grouped and made.wide_tail():
        made.results = results_of(c, made.tail_loads())
    wanted = wanted if turned or not c.grouped or wanted[0] % 1000 % c.grouped == 0 else (0, *wanted[1:])
    made.product = product_of(made)
    made.shape = with_whole_lines(made, shape_of(wanted, best_shape(made.product)))
    made.adds, made.chain = made.way_to_add(), made.steps_of_chain()
    return made


def product_of(kernel: WgmmaKernel) -> Product:
    """Return what a shape is chosen for."""
    c, itemsize, left, right = kernel.contraction, kernel.itemsize, kernel.left, kernel.right
    assert left and right
    rows, columns = map(c.count, kernel.lanes)
    depth = c.count(c.depth)
    inside = [lanes if one.lanes_inside else depth for one, lanes in ((left, rows), (right, columns))]
    return Product(
        rows,
        columns * len(c.totals),
        c.count(c.batches),
        depth * itemsize // 2,  # a term of fp32 takes the time of two of sixteen bits
        slab=0 if c.second else kernel.slab if right.lanes_inside else STRIP // 2,
        registers=kernel.by_registers,
        astride=any(length * itemsize % LINE for length in inside),
        tail=has_tail(c),
        leaves=kernel.results is not None,
        group=1 if kernel.turned else max(1, c.grouped),
    )


def with_whole_lines(kernel: WgmmaKernel, shape: Shape) -> Shape:
    """Return a shape, or another one where a block would bring parts of lines: these come whole.

    It has half of a pair's columns, or of a cluster's.
    """
    assert kernel.right
    if not kernel.right.lanes_inside:
        return shape
    if kernel.second and shape.columns // 2 % kernel.slab:
        return replace(shape, rows=min(shape.rows, 128), columns=2 * kernel.slab)
    return replace(shape, cluster=1) if shape.columns // shape.cluster % kernel.slab else shape


def has_tail(contraction: Contraction) -> bool:
    """Return whether much stands behind the sum: a function of each result, or a tensor as large."""
    c = contraction
    results = {leaf for loop in (*c.rows, *c.columns) for leaf in loop.leaves}
    behind = ir.walk(*c.nest.region.stores.values(), enter=lambda v: v not in c.totals)
    return any(is_costly(v) or (isinstance(v, ir.Load) and ir.tree_atoms(v) >= results) for v in behind)
