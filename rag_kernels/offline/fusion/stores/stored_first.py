"""Which values are worth a buffer of their own before the nest that uses them, and which are read where they lie.

Comes in: values, with the loops of a nest. Goes out: yes or no, by what a value costs and how often it is used.
`planner.py` asks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from rag_kernels.offline.fusion.loops import Key, key_of, reductions
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import strip

WORK = 4  # operators of a value that is rather read
USED_OFTEN, LONG_ROW = 16, 8  # times that an element stored first is used; elements of a row read where it lies
ONCE = frozenset({Operator.SQRT, Operator.DIV})  # of what other rows come to


def is_of_rows(value: ir.Value) -> bool:
    """Return whether a value is one for each row of the reductions in it: these can store it, as what they come to.

    Not of products: what else reads one would compute it again, in a nest of its own.
    """
    found = ir.outermost(value)
    if isinstance(strip(value), ir.Reduce) or any(isinstance(v, ir.Scan) or tile_of(v) for v in found):
        return False
    keys = {key_of(v) for v in found}
    return len(keys) == 1 and ir.tree_atoms(value) == next(iter(keys))[0]


def is_of_windows(value: ir.Value) -> bool:
    """Return whether a value is what windows come to: a nest has neighbours side by side that read side by side."""
    found = reductions(value)
    return bool(found) and all(any(a.window for a in key_of(v)[1]) and not tile_of(v) for v in found)


def is_of_other_product(value: ir.Value, main: Key | None) -> bool:
    """Return whether a value is one for each result of a product in a nest of its own: that stores it as it is."""
    found = reductions(value)
    return len(found) == 1 and bool(tile_of(found[0])) and main != key_of(found[0]) and is_each(value, found[0])


def is_each(value: ir.Value, reduction: ir.Value) -> bool:
    """Return whether a value has an element for each of a reduction's."""
    return ir.tree_atoms(value) == key_of(reduction)[0]


def is_costly_of_rows(value: ir.Value, main: Key) -> bool:
    """Return whether a value is worth storing once for each row of other loops, of which a region takes every element.

    It is a root or a quotient of what the rows come to; its operators run as often as the region has elements else.
    """
    outer, reduced = main
    if not ir.tree_atoms(value) < outer | reduced or value.dtype not in ITEMSIZE or not is_of_rows(value):
        return False
    if any(key_of(v) == main for v in ir.outermost(value)):
        return False
    return any(isinstance(v, ir.Op) and v.operator in ONCE for v in ir.walk(value))


def innermost(value: ir.Value) -> frozenset[ir.Atom]:
    """Return the loops of a value's last dimension that is more than one element."""
    return frozenset(next((ir.leaves(group) for group in reversed(value.dims) if group), ()))


def is_costly(value: ir.Value) -> bool:
    """Return whether a value is that of a costly operator: a division of 64 bits takes a hundred instructions."""
    divided = isinstance(value, ir.Op) and value.operator in {Operator.QUOTIENT, Operator.REST}
    return isinstance(value, ir.Op) and (value.operator.traits.costly or (divided and value.dtype == "int64"))


def is_work(value: ir.Value) -> bool:
    """Return whether a value takes more to compute than to read: several operators of something that is loaded."""
    every = list(ir.walk(value))
    return sum(isinstance(v, ir.Op) for v in every) >= WORK and any(isinstance(v, ir.Load) for v in every)


def read_in(stored: dict[ir.Value, ir.Load], outer: frozenset[ir.Atom], value: ir.Value) -> ir.Value | None:
    """Return the load of a value that is stored and lies along not all of a nest's outer loops; None to compute it."""
    found = stored.get(strip(value))
    if found is None or found.dtype != value.dtype:
        return None
    own = {leaf for atom in ir.tree_atoms(value) for leaf in atom.leaves()}
    return None if outer <= own else replace(found, dims=value.dims)


def is_plain(value: ir.Value) -> bool:
    """Return whether a value runs over one loop a dimension at most, and none that it is not computed along."""
    groups = [ir.leaves(group) for group in value.dims]
    leaves = {leaf for atom in ir.tree_atoms(value) for leaf in atom.leaves()}
    return all(len(group) <= 1 for group in groups) and {a for group in groups for a in group} == leaves


def is_lookup(value: ir.Value) -> bool:
    """Return whether a load is at a computed place, another for each element, and its neighbours are elsewhere."""
    if not isinstance(value, ir.Load):
        return False
    if not any(ir.tree_atoms(form) for form in value.index if not isinstance(form, ir.Form)):
        return False
    last = value.index[-1]
    along = ir.size_of(a for a, factor in last.terms if factor == 1) if isinstance(last, ir.Form) else 1
    return along < LONG_ROW


def is_looked_up_often(value: ir.Value, loops: set[ir.Atom]) -> bool:
    """Return whether a value has few elements beside these loops, of which each is looked up and used often."""
    own, laid = ir.tree_atoms(value), {leaf for group in value.dims for leaf in ir.leaves(group)}
    few = own == laid and own < loops and USED_OFTEN * ir.size_of(own) <= ir.size_of(loops)
    return few and value.dtype in ITEMSIZE and any(map(is_lookup, ir.walk(value)))


def is_of_pair(value: ir.Value) -> TypeGuard[ir.Op]:
    """Return whether a value is one number of a running pair: a softmax's maximum or sum, an extreme or its place."""
    return isinstance(value, ir.Op) and bool(value.operator.traits.pair) and isinstance(value.args[0], ir.Reduce)
