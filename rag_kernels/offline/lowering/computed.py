"""Values read at computed places: an index that is an integer expression, not an affine form.

Comes in: a value, one of its dimensions, and the place in it that each element of the result reads. Goes out: the value
at these places. Cheap expressions are computed at the place; costly ones are stored first and read there. Places must
lie inside of the dimension: whoever builds them sees to that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import Expr, quotient, rest
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.rewriting import rewrite_along
from rag_kernels.offline.lowering.lower import FEW_AGAIN, Lowering


def iota(lowering: Lowering, group: ir.Group, trailing: int = 0, step: int = 1, start: int = 0) -> ir.Value:
    """Return the index along a dimension of these loops, which `trailing` others follow: start, start + step..."""
    terms = tuple((atom, step) for atom in group)
    if len(ir.leaves(group)) > 1:
        raise ir.Unfusable("an index over merged dimensions")
    return lowering.tracked(ir.Index((group, *[()] * trailing), "int64", ir.Form(terms, start)))


def length(lowering: Lowering, value: ir.Value, dim: int, dtype: str = "int64") -> ir.Value:
    """Return the number of elements along a dimension as a value, which follows the tensor's size."""
    return lowering.size(value.dims[dim], dtype)


def loop(size: int, *, fixed: bool = False) -> ir.Group:
    """Return a new loop of this size, or none for one element."""
    return () if size == 1 else (ir.Atom(size, fixed=fixed),)


def apart(lowering: Lowering, value: ir.Value) -> ir.Load:
    """Return the value as a load of a whole buffer on loops of its own."""
    load = lowering.stored(value)
    plain = all(
        isinstance(i, ir.Form) and i == ir.Form(tuple((a, 1) for a in group))
        for i, group in zip(load.index, load.dims, strict=False)
    )
    if plain and load.shape == lowering.specs[load.buffer].shape:
        return ir.load_again(load)
    return lowering.reload(lowering.with_dims(value, value.dims))


def at(
    lowering: Lowering, value: ir.Value, dim: int, place: ir.Value, group: ir.Group, *, light: bool = False
) -> ir.Value:
    """Return the value read at `place` along a dimension, which the loops of `group` take the place of.

    What would cost much to compute again is stored first, unless it is `light` though it does not look so.
    """
    dim %= len(value.dims)
    merged, kept = ir.leaves(value.dims[dim]), light or is_light(value, lowering.again)
    if len(merged) == 2 and kept and (found := of_two(lowering, value, dim, place, group)):
        return found
    if len(merged) > 1 or not kept:
        value = lowering.reload(value)
    dims = (*value.dims[:dim], group, *value.dims[dim + 1 :])
    leaf = ir.leaves(value.dims[dim])
    if not leaf:
        return lowering.with_dims(value, dims)
    try:
        return lowering.tracked(placed(value, leaf[0], place, dims))
    except ir.Unfusable:
        again = lowering.reload(value)
        dims = (*again.dims[:dim], group, *again.dims[dim + 1 :])
        return lowering.tracked(placed(again, ir.leaves(again.dims[dim])[0], place, dims))


def of_two(lowering: Lowering, value: ir.Value, dim: int, place: ir.Value, group: ir.Group) -> ir.Value | None:
    """Return the value read at `place` along a dimension of two loops (windows, and what is inside of one), or None."""
    outer, inner = ir.leaves(value.dims[dim])
    size = lowering.size((inner,), place.dtype)
    window, inside = lowering.op(quotient, place, size), lowering.op(rest, place, size)
    around = value.dims[:dim], value.dims[dim + 1 :]
    try:
        part = placed(value, inner, inside, (*around[0], (outer, *group), *around[1]))
        return lowering.tracked(placed(part, outer, window, (*around[0], group, *around[1])))
    except ir.Unfusable:
        return None


def is_light(value: ir.Value, most: int = FEW_AGAIN, *, costly: int = 0) -> bool:
    """Return whether a value may be computed again wherever it is read: of `most` expressions, few of them `costly`."""
    inside = [v for v in ir.walk(value) if isinstance(v, ir.Op) and v.operator is not Operator.SAME]
    return len(inside) <= most and sum(v.operator.traits.costly for v in inside) <= costly


def for_windows(lowering: Lowering, value: ir.Value, size: int, step: int) -> ir.Value:
    """Return a value that windows read, stored first where they overlap and would compute what is costly each time."""
    return lowering.reload(value) if size > step and not is_light(value) else value


def placed(value: ir.Value, leaf: ir.Atom, place: ir.Value, dims: tuple[ir.Group, ...]) -> ir.Value:
    """Return the same value with one loop replaced by a computed index.

    Raises Unfusable when a reduction or scan depends on the loop, or when it has been split.
    """
    inner = tuple(a for group in place.dims for a in ir.leaves(group))

    def changed(v: ir.Value, visit: Callable[[ir.Value], ir.Value]) -> ir.Value:
        own = {a for group in v.dims for a in ir.leaves(group)}
        new = tuple(a for a in inner if a not in own)
        around = tuple(
            tuple(a for mine in ir.leaves(group) for a in (new if mine is leaf else (mine,))) for group in v.dims
        )
        match v:
            case ir.Load():
                index = tuple(moved(i) if isinstance(i, ir.Form) else visit(i) for i in v.index)
                return replace(v, dims=around, index=index)
            case ir.Op():
                return replace(v, dims=around, args=tuple(visit(a) for a in v.args))
            case ir.Index(limit=None):
                found = moved(v.form)
                return replace(v, dims=around, form=found) if isinstance(found, ir.Form) else found
        raise ir.Unfusable("a reduction or a guard is read at computed places")

    def moved(form: ir.Form) -> ir.Form | ir.Value:
        """Return an index with the loop in it replaced."""
        hit = [(atom, factor) for atom, factor in form.terms if leaf in atom.leaves()]
        if not hit:
            return form
        if len(hit) > 1:
            raise ir.Unfusable("a dimension that is indexed by two terms is indexed again")
        whole, factor = hit[0]
        rest = ir.Form(tuple(term for term in form.terms if leaf not in term[0].leaves()), form.offset, form.sizes)
        found = among(whole.leaves())
        scaled = found if factor == 1 else found * factor
        if rest == ir.Form(()):
            return scaled.value
        return (scaled + Expr(ir.Index((), "int64", rest))).value

    def among(leaves: tuple[ir.Atom, ...]) -> Expr:
        """Return the index of an atom that was split in these, with one of them replaced."""
        total: Expr | None = None
        for number, mine in enumerate(leaves):
            term = Expr(place if mine is leaf else ir.Index((), "int64", ir.Form(((mine, 1),))))
            if number + 1 < len(leaves):
                term = term * ir.Size((), "int64", leaves[number + 1 :])
            total = term if total is None else total + term
        assert total is not None
        return total

    out = rewrite_along(value, leaf, changed)
    if out is value:
        raise ir.Unfusable("a dimension that nothing reads")
    out.dims = dims
    return out
