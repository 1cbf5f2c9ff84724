"""Which loops a value runs over, and its reductions.

Comes in: values. Goes out: their outer and reduced loops. Knows nothing of regions.
"""

from __future__ import annotations

from rag_kernels.offline.ir import values as ir

Key = tuple[frozenset[ir.Atom], frozenset[ir.Atom]]


def loops_of(value: ir.Value) -> tuple[ir.Atom, ...]:
    """Return the loops along which a value lies, outermost first."""
    return tuple(leaf for group in value.dims for leaf in ir.leaves(group))


def key_of(value: ir.Value) -> Key:
    """Return the outer and the reduced loops of a reduction or scan."""
    assert isinstance(value, ir.Reduce | ir.Scan)
    over = frozenset(ir.leaves((value.over,) if isinstance(value, ir.Scan) else value.over))
    named = {a for g in value.dims for a in ir.leaves(g)}
    return frozenset((ir.tree_atoms(value) | named) - over), over


def reductions(value: ir.Value) -> list[ir.Value]:
    """Return all reductions and scans of the tree, those that others depend on first."""
    if not ir.outermost(value):
        return []
    return [v for v in ir.walk(value) if isinstance(v, ir.Reduce | ir.Scan)]


def ordered(atoms: frozenset[ir.Atom]) -> tuple[ir.Atom, ...]:
    """Return the atoms in the order in which they were made."""
    return tuple(sorted(atoms, key=lambda a: a.serial))
