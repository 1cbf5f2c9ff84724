"""Rules for views, slices, broadcasts and triangles: they change indices and move nothing.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rag_kernels.eval.records import Node
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import patterns
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE, is_float
from rag_kernels.offline.ir.expressions import Expr, at_least, at_most, equal, where
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.lowering.arguments import graph_dtype, out_dtype
from rag_kernels.offline.lowering.computed import for_windows
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules.pool import windows_along


def reshape(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value in its new shape; parts of a split dimension are numbers where they are so at all sizes."""
    value, shape = lowering.value(given(node, 0)), node.outputs[0].shape
    made = lowering.view(value, shape)
    for group, text in zip(made.dims, lowering.shapes.get(node.name, ()), strict=False):
        for leaf in ir.leaves(group):
            leaf.fixed = leaf.fixed or (text.isdigit() and leaf.whole is not None)
    return made


OF_BITS = {dtype: operator for operator, dtype in patterns.OF_BITS.items()}
BITS_OF = {dtype: operator for operator, dtype in patterns.BITS_OF.items()}


def view(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value in its new shape; or elements as another dtype of as many bytes, bit by bit."""
    if not node.op.endswith("view.dtype"):
        return reshape(lowering, node)
    source, dtype = given(node, 0), node.outputs[0].dtype
    value, before = lowering.value(source), graph_dtype(lowering, source)
    if ITEMSIZE[before] != ITEMSIZE[dtype] or any(is_float(d) and d not in BITS_OF for d in (before, dtype)):
        raise ir.Unfusable(f"the bits of {before} as {dtype}")
    if before in BITS_OF:
        value = bits_of(patterns.before_rounding(value, before), before)
    if dtype not in OF_BITS:
        return lowering.cast(value, dtype)
    value = lowering.cast(value, taken(OF_BITS[dtype]))
    return lowering.tracked(ir.Op(value.dims, "float32", OF_BITS[dtype], (value,)))


def bits_of(value: ir.Value, dtype: str) -> ir.Value:
    """Return the bits that a value has as a number of this dtype."""
    pair = BITS_OF[dtype].traits.pair
    assert pair is not None
    return ir.Op(value.dims, pair[1], BITS_OF[dtype], (value,))


def taken(operator: Operator) -> str:
    """Return the dtype of bits that an operator makes a number of."""
    pair = operator.traits.pair
    assert pair is not None
    return pair[0][0]


def held(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value, of which some dimensions have the sizes that they have here and no others."""
    value = lowering.value(given(node, 0))
    ir.hold(value.dims[dim] for dim in given(node, 1))
    return value


def size_of(lowering: Lowering, node: Node) -> ir.Value:
    """Return the size of a dimension, as it is at the call."""
    return lowering.size(lowering.value(given(node, 0)).dims[given(node, 1)], "int64")


def permute(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    rank, name = len(value.dims), base_name(node.op)
    order = list(range(rank))
    if name == "permute":
        order = [d % rank for d in given(node, 1)]
    elif name == "movedim":
        moved, to = (tuple(given(node, i)) if isinstance(given(node, i), tuple) else (given(node, i),) for i in (1, 2))
        order = [d for d in order if d not in {m % rank for m in moved}]
        for place, d in sorted((t % rank, m % rank) for m, t in zip(moved, to, strict=True)):
            order.insert(place, d)
    elif name == "numpy_T":
        order.reverse()
    else:
        a, b = (rank - 2, rank - 1) if name in {"t", "mT"} else (given(node, 1) % rank, given(node, 2) % rank)
        if rank > 1:
            order[a], order[b] = order[b], order[a]
    return lowering.with_dims(value, tuple(value.dims[d] for d in order))


def squeeze(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value in its new shape: only dimensions of size one change, or dimensions merge."""
    return reshape(lowering, node)


def expand(lowering: Lowering, node: Node) -> ir.Value:
    value, shape = lowering.value(given(node, 0)), node.outputs[0].shape
    groups = [()] * (len(shape) - len(value.dims)) + list(value.dims)
    dims = tuple(g if ir.size_of(g) == n else (ir.Atom(n),) for g, n in zip(groups, shape, strict=True))
    return lowering.with_dims(value, dims)


def broadcast_tensors(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    names = given(node, 0)
    values = lowering.align([lowering.value(n) for n in names])
    rank = max(len(v.dims) for v in values)
    dims = tuple(next((v.dims[p] for v in values if len(v.dims) >= -p and v.dims[p]), ()) for p in range(-rank, 0))
    return tuple(lowering.with_dims(v, dims) for v in values)


def slice_value(
    lowering: Lowering, value: ir.Value, dim: int, start: int, length: int, step: int = 1, *, ends: bool = False
) -> ir.Value:
    """Return `length` elements from `start`, below zero from the end, along a dimension, every `step`th of them.

    `ends` says that it ends where the dimension does, or so many elements before: a longer one's is longer.
    """
    dim %= len(value.dims)
    if length == ir.size_of(value.dims[dim]) and step == 1:
        return value
    before = value.dims[dim]

    def form() -> tuple[ir.Form, ir.Group]:
        group: ir.Group = () if length == 1 else (ir.Atom(length),)
        return ir.Form(tuple((a, step) for a in group), start, ((before, 1),) if start < 0 else ()), group

    ended = ends and start >= 0 and step == 1
    along = longer(length - ir.size_of(before)) if ended else lambda group: None
    part = (start, step) if start >= 0 and not ended else (0, 0)
    return lowering.reindex(value, dim, form, along, windows=True, part=part)


def longer(by: int) -> Callable[[ir.Group], ir.Along]:
    """Return how long a loop is that has so many steps more than a dimension."""
    return lambda group: ir.Along((group,), by)


def slice_(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    dim = given(node, 1, "dim", 0)
    start = given(node, 2, "start", 0) or 0
    size = value.shape[dim]
    start, end = max(-size, min(start, size)), given(node, 3, "end")
    ends = end is None or end < 0 or end > size
    return slice_value(lowering, value, dim, start, node.outputs[0].shape[dim], given(node, 4, "step", 1), ends=ends)


def narrow(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    dim, start, length = given(node, 1), given(node, 2), given(node, 3)
    return slice_value(lowering, value, dim, start, length)


def select(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    dim, index = given(node, 1) % len(value.dims), given(node, 2)
    part = slice_value(lowering, value, dim, index, 1)
    return lowering.with_dims(part, (*part.dims[:dim], *part.dims[dim + 1 :]))


def flipped(atom: ir.Atom) -> Callable[[], tuple[ir.Form, ir.Group]]:
    """Return a function that returns the reversed index of a dimension, for `Lowering.reindex`."""
    return lambda: (ir.Form(((atom, -1),), -1, (((atom,), 1),)), (atom,))


def flip(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    for dim in given(node, 1):
        value = lowering.reindex(value, dim % len(value.dims), flipped(ir.Atom(value.shape[dim])), longer(0))
    return value


def pieces(lowering: Lowering, value: ir.Value, count: int, dim: int) -> list[ir.Value]:
    """Return the value in `count` pieces along a dimension, as `torch.chunk` cuts it."""
    size = value.shape[dim]
    step = -(-size // count)
    return cut(lowering, value, dim, [min(step, size - start) for start in range(0, size, step)])


def cut(lowering: Lowering, value: ir.Value, dim: int, sizes: Sequence[int]) -> list[ir.Value]:
    """Return pieces of these sizes along a dimension: equal ones of any that is so many times as long."""
    count = len(sizes)
    if count > 1 and len(set(sizes)) == 1:
        return [piece(lowering, value, dim, i, count) for i in range(count)]
    if count > 1:
        ir.hold([value.dims[dim]])
    return [slice_value(lowering, value, dim, sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def piece(lowering: Lowering, value: ir.Value, dim: int, number: int, count: int) -> ir.Value:
    """Return one of so many equal pieces along a dimension, which begins where its size says."""
    dim %= len(value.dims)

    def form() -> tuple[ir.Form, ir.Group]:
        length = value.shape[dim] // count
        group: ir.Group = () if length == 1 else (ir.Atom(length),)
        terms = tuple((a, 1) for a in group)
        return ir.Form(terms, sizes=((group, number),)) if group and number else ir.Form(terms, number), group

    return lowering.reindex(value, dim, form, lambda group: ir.Along((group,), parts=count, equal=True))


def chunk(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    return tuple(pieces(lowering, lowering.value(given(node, 0)), given(node, 1), given(node, 2, "dim", 0)))


def unbind(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    """Return the slices along a dimension, without it."""
    value = lowering.value(given(node, 0))
    dim = given(node, 1, "dim", 0) % len(value.dims)
    ir.hold([value.dims[dim]])  # as many as the graph has names for
    parts = [slice_value(lowering, value, dim, i, 1) for i in range(value.shape[dim])]
    return tuple(lowering.with_dims(p, (*p.dims[:dim], *p.dims[dim + 1 :])) for p in parts)


def unfold(lowering: Lowering, node: Node) -> ir.Value:
    """Return windows of a dimension, which run along a new last one."""
    value, size, step = lowering.value(given(node, 0)), given(node, 2, "size"), given(node, 3, "step")
    dim = given(node, 1, "dimension") % len(value.dims)
    value = for_windows(lowering, value, size, step)
    count = node.outputs[0].shape[dim]
    outer: ir.Group = () if count == 1 else (ir.Atom(count),)
    inner: ir.Group = () if size == 1 else (ir.Atom(size, fixed=True, window=size > step),)
    form = ir.Form((*((a, step) for a in outer), *((a, 1) for a in inner)))
    whole = partial(windows_along, count=count, size=size, stride=step)
    value = lowering.reindex(value, dim, lambda: (form, (*outer, *inner)), whole if outer else lambda group: None)
    return lowering.with_dims(value, (*value.dims[:dim], outer, *value.dims[dim + 1 :], inner))


def meshgrid(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    """Return each vector along its own dimension of a grid."""
    values = [lowering.value(name) for name in given(node, 0)]
    count, across = len(values), given(node, 1, "indexing", "ij") == "xy"
    out = []
    for i, value in enumerate(values):
        place = {0: 1, 1: 0}.get(i, i) if across else i
        groups = [v.dims[0] if v.dims else () for v in values]
        groups = [groups[1], groups[0], *groups[2:]] if across and count > 1 else groups
        dims = tuple(g if d == place else fresh_loop(g) for d, g in enumerate(groups))
        out.append(lowering.with_dims(value, dims))
    return tuple(out)


def fresh_loop(group: ir.Group) -> ir.Group:
    """Return a loop of its own of a group's size."""
    return (ir.Atom(ir.size_of(group)),) if ir.size_of(group) > 1 else ()


def shuffled(up: bool) -> Rule:
    """Return the rule of `pixel_shuffle` (`up`) or `pixel_unshuffle`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, factor = lowering.value(given(node, 0)), given(node, 1)
        *front, channels, height, width = value.shape
        n = len(front)
        if up:
            shape = [*front, channels // factor**2, factor, factor, height, width]
            order = [n, n + 3, n + 1, n + 4, n + 2]
        else:
            shape = [*front, channels, height // factor, factor, width // factor, factor]
            order = [n, n + 2, n + 4, n + 1, n + 3]
        value = lowering.view(value, shape)
        value = lowering.with_dims(value, tuple(value.dims[d] for d in (*range(n), *order)))
        return lowering.view(value, node.outputs[0].shape)

    return rule


def split(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    value, dim = lowering.value(given(node, 0)), given(node, 2, "dim", 0)
    return tuple(cut(lowering, value, dim, [spec.shape[dim] for spec in node.outputs]))


def cat(lowering: Lowering, node: Node) -> ir.Value:
    """Return tensors side by side, for cat and stack."""
    spec, names = node.outputs[0], given(node, 0)
    dim = given(node, 1, "dim", 0) % len(spec.shape)
    values = [lowering.value(name) for name in names]
    if base_name(node.op) == "stack":
        values = [lowering.with_dims(v, (*v.dims[:dim], (), *v.dims[dim:])) for v in values]
    dtype = out_dtype(node)
    if any(len(v.dims) != len(spec.shape) for v in values):
        raise ir.Unfusable("operands of other ranks")
    values = [lowering.cast(v, dtype) for v in values]
    grows = lowering.growing.get(node.name, node) is not node or node.name in lowering.slots
    if not grows and are_of_one_tensor(values, dim):
        return chosen(lowering, values, dim)
    return lowering.joined(node, values, dim)


MOST_CHOSEN, CHOSEN_LOADS = 4, 8  # pieces, and loads of each, which every element takes of all of them


def are_of_one_tensor(values: list[ir.Value], dim: int) -> bool:
    """Return whether few pieces of equal size come from the same tensors: reading both sides of a choice is cheap."""
    if not 1 < len(values) <= MOST_CHOSEN or len({v.shape[dim] for v in values}) > 1:
        return False
    inside = [list(ir.walk(v)) for v in values]
    if any(isinstance(v, ir.Reduce | ir.Scan) for found in inside for v in found):
        return False
    loads = [[v.buffer for v in found if isinstance(v, ir.Load)] for found in inside]
    return all(set(found) == set(loads[0]) and 0 < len(found) <= CHOSEN_LOADS for found in loads)


def cross(lowering: Lowering, node: Node) -> ir.Value:
    """Return the cross products of vectors of three along a dimension: the first of three if none is told."""
    one, other, shape = lowering.value(given(node, 0)), lowering.value(given(node, 1)), node.outputs[0].shape
    if one.shape != shape or other.shape != shape:
        raise ir.Unfusable("operands of other shapes")
    dim = given(node, 2, "dim", None if base_name(node.op) == "cross" else -1)
    dim = shape.index(3) if dim is None else dim % len(shape)
    a, b = ([slice_value(lowering, v, dim, place, 1) for place in range(3)] for v in (one, other))
    turns = [((place + 1) % 3, (place + 2) % 3) for place in range(3)]
    values = [lowering.op(lambda p, q, r, s: p * q - r * s, a[i], b[j], a[j], b[i]) for i, j in turns]
    values = [lowering.cast(v, out_dtype(node)) for v in values]
    return chosen(lowering, values, dim) if are_of_one_tensor(values, dim) else lowering.joined(node, values, dim)


def chosen(lowering: Lowering, values: list[ir.Value], dim: int) -> ir.Value:
    """Return pieces of equal size side by side as a choice for each element: halves that are rotated, or pairs."""
    values = lowering.align(values)
    which = ir.Atom(len(values), fixed=True)
    along = next((v.dims[dim] for v in values if v.dims[dim]), ())
    place = lowering.tracked(ir.Index(((which,),), "int64", ir.Form(((which, 1),))))
    out = values[-1]
    shape = [next((v.dims[d] for v in values if v.dims[d]), ()) for d in range(len(out.dims))]
    dims = (*shape[:dim], (which, *along), *shape[dim + 1 :])
    for number, value in reversed(list(enumerate(values[:-1]))):
        here = equal(Expr(place), number).value
        out = ir.Op(dims, value.dtype, Operator.WHERE, (here, value, out))
    return lowering.tracked(out)


def triangle(upper: bool) -> Rule:
    """Return the rule of `triu` (`upper`) or `tril`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, diagonal = lowering.value(given(node, 0)), given(node, 1, "diagonal", 0)
        row, column = value.dims[-2:]
        if len(ir.leaves(row)) != 1 or len(ir.leaves(column)) != 1:
            raise ir.Unfusable("a triangle of merged dimensions")
        (r,), (k,) = ir.leaves(row), ir.leaves(column)
        place = ir.Index((row, column), "int64", ir.Form(((k, 1), (r, -1))))
        inside = at_least if upper else at_most
        outside = False if value.dtype == "bool" else 0  # a 0 would make numbers of truth values, of which ~ is another
        return lowering.op(lambda place, x: where(inside(place, diagonal), x, outside), place, value)

    return rule
