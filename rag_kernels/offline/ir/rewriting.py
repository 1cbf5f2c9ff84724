"""Trees of values with some values replaced: what every pass over the IR goes through.

Comes in: a value and what to put in place of some. Goes out: a tree whose untouched parts are the same objects. Knows
nothing of loops and regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rag_kernels.offline.ir import values as ir

Made = dict[ir.Value, ir.Value]  # values already visited -> what became of them


def rewrite(value: ir.Value, change: Callable[[ir.Value], ir.Value | None], made: Made | None = None) -> ir.Value:
    """Return the tree with some values replaced; untouched parts stay the same objects.

    `change` returns the replacement of a value, or None to keep it and visit its children. A `made` that calls share,
    whose `change` says the same of a value each time, spares visits to what they have in common: a chain of steps of
    which each is stored takes time by its length, not by its square.
    """
    return rewrite_each((value,), change, made)[0]


def rewrite_each(
    values: Sequence[ir.Value], change: Callable[[ir.Value], ir.Value | None], made: Made | None = None
) -> tuple[ir.Value, ...]:
    """Return several trees with some values replaced; what they have in common stays so."""
    memo: Made = {} if made is None else made
    below: dict[ir.Value, tuple[ir.Value, ...]] = {}
    path = list(reversed(values))  # no recursion: chains of steps are deep
    while path:
        v = path[-1]
        if v not in memo and v not in below:
            if new := change(v):
                memo[v] = new
            else:
                below[v] = ir.children(v)
                path += [child for child in reversed(below[v]) if child not in memo]
                continue
        if v not in memo:
            memo[v] = rebuilt(v, memo.__getitem__)
        path.pop()
    return tuple(memo[value] for value in values)


def rebuilt(value: ir.Value, visit: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Return the value over visited children, or itself when none changed."""
    before = ir.children(value)
    after = tuple(map(visit, before))
    if all(a is b for a, b in zip(after, before, strict=True)):
        return value
    match value:
        case ir.Op():
            return ir.Op(value.dims, value.dtype, value.operator, after)
        case ir.Reduce():
            return replace(value, arg=after[0])
        case ir.Scan():
            return ir.Scan(value.dims, value.dtype, value.kind, after[0], value.over)
        case ir.Load():
            values = iter(after)
            index = tuple(next(values) if isinstance(i, ir.Value) else i for i in value.index)
            return ir.Load(value.dims, value.dtype, value.buffer, value.stored, index, value.storage)
        case _:
            raise AssertionError(type(value))


def rewrite_along(
    value: ir.Value, leaf: ir.Atom, change: Callable[[ir.Value, Callable[[ir.Value], ir.Value]], ir.Value]
) -> ir.Value:
    """Return the tree with every value replaced that runs over a loop; others stay the same objects.

    `change` returns the replacement of a value, and is given what does so for its children.
    """
    memo: dict[ir.Value, ir.Value] = {}

    def visit(v: ir.Value) -> ir.Value:
        if v not in memo:
            along = leaf in ir.tree_atoms(v) or any(leaf in ir.leaves(group) for group in v.dims)
            memo[v] = change(v, visit) if along else v
        return memo[v]

    return visit(value)
