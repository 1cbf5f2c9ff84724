"""Products that several nests would compute, each for itself: the first one stores them for the others.

Comes in: the values that a graph stores. Goes out: the products, or roundings of one with its bias, that are worth a
buffer. The backward of a gate takes both halves' products and the incoming gradient's in three ways: thirteen products
where eight do. Knows nothing of regions.
"""

from __future__ import annotations

from collections.abc import Iterable

from rag_kernels.offline.fusion.loops import key_of, reductions
from rag_kernels.offline.fusion.stores.stored_first import is_each
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import HALVED

DEEP = 256  # terms of a sum at which it costs more to compute again than to store and to read


def worth_keeping(values: Iterable[ir.Value]) -> frozenset[ir.Value]:
    """Return the products that a nest stores for later ones; values with the same products left share a nest."""
    left = [(value, deep_products(value)) for value in values]
    left = [(value, products) for value, products in left if products]
    kept = set[ir.Value]()
    for place, (value, products) in enumerate(left):
        mine = products - kept
        for other, others in left[place + 1 :] if mine else ():
            theirs = others - kept
            if theirs & mine and (theirs != mine or outer_loops(other) != outer_loops(value)):
                kept |= theirs & mine
    return frozenset(kept)


def outer_loops(value: ir.Value) -> set[ir.Atom]:
    """Return the loops of a value's elements and of reductions other than products: by these it has its nest."""
    rows = {leaf for v in reductions(value) if not tile_of(v) for leaf in key_of(v)[1]}
    return rows | {leaf for group in value.dims for leaf in ir.leaves(group)}


def deep_products(value: ir.Value) -> frozenset[ir.Value]:
    """Return the products of a value that are deep enough, each as it would be stored: rounded with what is added."""
    if not ir.outermost(value):
        return frozenset()
    below: dict[ir.Value, set[ir.Value]] = {}  # the outermost reductions in a value
    found: dict[ir.Value, ir.Value] = {}
    for v in ir.walk(value):
        if isinstance(v, ir.Reduce | ir.Scan):
            below[v] = {v}
            if isinstance(v, ir.Reduce) and tile_of(v) and ir.size_of(key_of(v)[1]) >= DEEP and is_plain_element(v):
                found[v] = v
            continue
        below[v] = set().union(*(below[child] for child in ir.children(v)))
        if isinstance(v, ir.Op) and v.operator in HALVED and len(below[v]) == 1:
            (product,) = below[v]
            unrounded = isinstance(product, ir.Reduce) and not product.rounded and found.get(product) is product
            if unrounded and is_each(v, product) and is_plain_element(v):
                found[product] = v
    return frozenset(found.values())


def is_plain_element(value: ir.Value) -> bool:
    """Return whether a value has an element for each of the loops that it depends on, and no others."""
    return ir.tree_atoms(value) == {leaf for group in value.dims for leaf in ir.leaves(group)}
