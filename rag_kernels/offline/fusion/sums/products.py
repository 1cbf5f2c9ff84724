"""Sums of products: their factors, and the tiles in which they run.

Comes in: values. Goes out: factors, sizes of tiles, and which two products have a factor in common. Knows nothing of
regions.
"""

from __future__ import annotations

from rag_kernels.offline.fusion.loops import key_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import LEAST_COLUMNS, LEAST_DEPTH, LEAST_ROWS, operands, sixteen_bits, strip
from rag_kernels.offline.ir.reductions import Kind


def factors_of(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return the two factors whose product a reduction sums, or None if it sums something else."""
    if not isinstance(value, ir.Reduce) or value.kind is not Kind.SUM or value.dtype != "float32":
        return None
    found = operands(strip(value.arg), Operator.MUL)
    return (found[0], found[1]) if found else None


def tile_of(value: ir.Value) -> tuple[int, int, int] | None:
    """Return batches, rows and columns of a sum of products large enough for tiles, or None.

    See `codegen/contraction.py`.
    """
    found = factors_of(value)
    if found is None:
        return None
    outer, reduced = key_of(value)
    left, right = (ir.tree_atoms(factor) & outer for factor in found)
    sizes = sorted(map(ir.size_of, (left - right, right - left)))
    if sizes[0] < LEAST_ROWS or sizes[1] < LEAST_COLUMNS or ir.size_of(reduced) < LEAST_DEPTH:
        return None
    return ir.size_of(left & right), sizes[0], sizes[1]


def is_half(value: ir.Value) -> bool:
    """Return whether a sum's factors are numbers of sixteen bits."""
    found = factors_of(value) or ()
    return bool(found) and all(map(sixteen_bits, found))


FEWEST_ROWS, FEWEST_COLUMNS, FEWEST_TERMS = 8, 33, 16  # of pairs: threads of narrower tiles have nothing to load


def shared_factor(sums: list[ir.Value], value: ir.Value) -> tuple[int, int] | None:
    """Return of which place two products have a factor in common: tensors that are large enough for tensor cores.

    The other factors lie along the innermost loop of `value`, and all are of one dtype.
    """
    one, other = ([strip(factor) for factor in factors_of(v) or ()] for v in sums)
    every = [*one, *other]
    if (
        len(every) != 4
        or any(not isinstance(v, ir.Load) for v in every)
        or any(isinstance(v, ir.Reduce) and v.guards for v in sums)
    ):
        return None
    dtypes = {v.storage for v in every if isinstance(v, ir.Load)}
    inner = ir.leaves(a for group in value.dims for a in group)[-1:]
    outer, reduced = key_of(sums[0])
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rows = ir.tree_atoms(one[a]) & outer
        columns, others = (ir.tree_atoms(v) & outer for v in (one[1 - a], other[1 - b]))
        large = ir.size_of(rows - columns) >= FEWEST_ROWS and ir.size_of(columns - rows) >= FEWEST_COLUMNS
        fits = columns == others and set(inner) <= columns - rows and ir.size_of(reduced) >= FEWEST_TERMS
        if (
            place_of(one[a]) == place_of(other[b])
            and large
            and fits
            and len(dtypes) == 1
            and dtypes <= {*HALF, "float32"}
        ):
            return a, b
    return None


def place_of(load: ir.Value) -> object:
    """Return what tells the element that a load reads from others."""
    assert isinstance(load, ir.Load)
    forms = [
        ([(leaf, n) for atom, n in f.terms for leaf in atom.leaves()], f.offset, f.sizes)
        if isinstance(f, ir.Form)
        else f
        for f in load.index
    ]
    return load.buffer, load.storage, forms
