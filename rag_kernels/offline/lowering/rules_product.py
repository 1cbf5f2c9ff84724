"""Rules for matrix products and convolutions: a product of two loads, summed over loops.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. `codegen/contraction.py` later finds such sums and gives them tiles; small ones run as any other reduction does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from rag_kernels.eval.aten import base_name
from rag_kernels.eval.records import Backend, Node, Ref, Value
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import FLOAT8, HALF, ITEMSIZE
from rag_kernels.offline.ir.expressions import add, mul, quotient
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import HALVED, LEAST_COLUMNS, LEAST_ROWS, narrow_dtype, strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.arguments import graph_dtype
from rag_kernels.offline.lowering.factor_lines import with_factors_in_lines
from rag_kernels.offline.lowering.lower import WRITTEN_OUT, Lowering, Rule, is_cheap
from rag_kernels.offline.lowering.rounded_products import as_rounded
from rag_kernels.offline.lowering.rules_pool import per_dimension, windows_along
from rag_kernels.offline.lowering.rules_reduce import softmax_value

SUMMED = ("float32", "float64")
THIN_DEPTH = 512  # of a product of few columns: its rows stay in a cache while each column reads them
FEW_LOADS = 4  # of a factor that is computed wherever a product reads it
FEW_TAPS = 64  # of a convolution of few filters
FEW_LANES = 64  # rows of a block of products, so that weights are dequantised once


def operand(lowering: Lowering, value: ir.Value) -> ir.Value:
    """Return a factor, stored first if it costs more than a few operations: it is read many times."""
    if not is_cheap(value, loads=FEW_LOADS):
        return lowering.reload_laid(value)
    if value.dtype not in SUMMED:
        raise ir.Unfusable(f"a product of {value.dtype}")
    return value


def of_factors(lowering: Lowering, left: ir.Value, right: ir.Value, last: int) -> ir.Value:
    """Return the sum of a product over its last dimensions. Of float64 there are no tiles, only what is thin."""
    total = lowering.op(mul, left, right)
    if last == 0:
        return total
    total = lowering.reduce("sum", total, range(-last, 0), keep=False)
    laid = {leaf for group in total.dims for leaf in ir.leaves(group)}
    sides = [ir.tree_atoms(left) & laid, ir.tree_atoms(right) & laid]
    few = min(ir.size_of(sides[0] - sides[1]), ir.size_of(sides[1] - sides[0])) < LEAST_ROWS
    if total.dtype == "float64" and not few:
        raise ir.Unfusable("a product of float64 in tiles")
    return total


def factor_of(lowering: Lowering, argument: Any, *, lanes: int = 0) -> ir.Value:
    """Return an argument as a factor of a product; the other factor has so many lanes, where that is known.

    One that is computed in sixteen bits is stored in these, since that is what tensor cores take; but weights of eight
    bits are dequantised on their way where few rows of the other factor want them. Sixteen bits hold floats of eight.
    """
    value = lowering.value(argument)
    dtype = graph_dtype(lowering, argument)
    dtype = "bfloat16" if dtype not in HALF and narrow_dtype(value) in FLOAT8 else dtype
    if dtype not in HALF or is_stored_in(dtype, value):
        return value
    if (lanes == 1 and is_pointwise(value)) or (0 < lanes <= FEW_LANES and is_dequantised(value)):
        return lowering.rounded(value, dtype)
    name = lowering.store(value, dtype=dtype)
    return ir.load(name, value.shape, dtype)


def is_dequantised(value: ir.Value) -> bool:
    """Return whether a value is cheap to compute, and its largest tensor has elements of one byte."""
    every = list(ir.walk(value))
    loads = [v for v in every if isinstance(v, ir.Load)]
    costly = any(
        isinstance(v, ir.Reduce | ir.Scan) or (isinstance(v, ir.Op) and v.operator.traits.costly) for v in every
    )
    largest = max(loads, key=lambda v: ir.size_of(a for group in v.stored for a in group), default=None)
    return not costly and largest is not None and ITEMSIZE[largest.storage] == 1


def is_stored_in(dtype: str, value: ir.Value) -> bool:
    """Return whether a value is an element of a tensor of this dtype, however it is laid out."""
    found = strip(value)
    return isinstance(found, ir.Load) and found.storage == dtype


def product(lowering: Lowering, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return a (..., m, k) times b (..., k, n), both of at least two dimensions."""
    a, b = operand(lowering, a), operand(lowering, b)
    left = lowering.with_dims(a, (*a.dims[:-1], (), a.dims[-1]))
    right = lowering.with_dims(b, (*b.dims[:-2], (), b.dims[-1], b.dims[-2]))
    return of_factors(lowering, left, right, 1)


def transposed(lowering: Lowering, value: ir.Value) -> ir.Value:
    """Return the value with its last two dimensions exchanged."""
    return lowering.with_dims(value, (*value.dims[:-2], value.dims[-1], value.dims[-2]))


def matmul(lowering: Lowering, node: Node) -> ir.Value:
    """Return a product of matrices or vectors: matmul, mm, bmm, mv and dot."""
    a = factor_of(lowering, given(node, 0))
    b = factor_of(lowering, given(node, 1), lanes=math.prod(a.shape[:-1]))
    vector_a, vector_b = len(a.dims) == 1, len(b.dims) == 1
    a = lowering.with_dims(a, ((), *a.dims)) if vector_a else a
    b = lowering.with_dims(b, (*b.dims, ())) if vector_b else b
    out = product(lowering, a, b)
    dims = out.dims[:-1] if vector_b else out.dims
    position = len(dims) - (1 if vector_b else 2)
    return lowering.with_dims(out, (*dims[:position], *dims[position + 1 :]) if vector_a else dims)


def linear(lowering: Lowering, node: Node) -> ir.Value:
    x = factor_of(lowering, given(node, 0))
    lanes = math.prod(x.shape[:-1])
    flat = len(x.dims) == 1
    x = lowering.with_dims(x, ((), *x.dims)) if flat else x
    out = product(lowering, x, transposed(lowering, factor_of(lowering, given(node, 1), lanes=lanes)))
    out = lowering.with_dims(out, out.dims[1:]) if flat else out
    bias = given(node, 2, "bias")
    return out if bias is None else lowering.op(add, out, lowering.value(bias))


def addmm(lowering: Lowering, node: Node) -> ir.Value:
    """Return beta * input + alpha * (a @ b); also for baddbmm."""
    a = factor_of(lowering, given(node, 1))
    out = product(lowering, a, factor_of(lowering, given(node, 2), lanes=math.prod(a.shape[:-1])))
    alpha, beta = given(node, 4, "alpha", 1), given(node, 3, "beta", 1)
    out = out if alpha == 1 else lowering.op(mul, out, lowering.scalar(alpha, out.dtype))
    if beta == 0:
        return out
    term = lowering.value(given(node, 0))
    term = (as_rounded(lowering, (term,), node.outputs[0].dtype) or (term,))[0]
    term = term if beta == 1 else lowering.op(mul, term, lowering.scalar(beta, out.dtype))
    return lowering.op(add, out, term)


def scaled_mm(lowering: Lowering, node: Node) -> ir.Value:
    """Return a product of floats of eight bits times the scales of both: one each, or one for each row and column."""
    a = factor_of(lowering, given(node, 0))
    out = product(lowering, a, factor_of(lowering, given(node, 1), lanes=a.shape[0]))
    if given(node, 5, "scale_result") is not None:
        raise ir.Unfusable("a scale of the result")
    for place, side in ((2, (a.shape[0], 1)), (3, (1, out.shape[1]))):
        scale = lowering.value(given(node, place))
        if math.prod(scale.shape) > 1 and scale.shape != side:
            raise ir.Unfusable("scales of blocks")
        scale = scale if scale.shape == side else lowering.with_dims(scale, ())
        out = lowering.op(mul, out, scale)
    bias = given(node, 4, "bias")
    return out if bias is None else lowering.op(add, out, lowering.value(bias))


def einsum(lowering: Lowering, node: Node) -> ir.Value:
    """Return the product of the operands from left to right, as PyTorch multiplies them unless it knows a better order.

    Each letter may stand once in each operand. A dimension that one operand alone has is summed before, and one that no
    later operand has at once, so that a product has two factors.
    """
    operands = node.args[1]
    if not isinstance(operands, tuple):
        raise ir.Unfusable("an einsum of another form")
    terms, output = letters_of(str(node.args[0]), [len(shape_of(lowering, name)) for name in operands])
    if not all((t.isalpha() or not t) and len(set(t)) == len(t) for t in (*terms, output)):
        raise ir.Unfusable("an einsum of another form")
    if len(terms) == 1:
        return rearranged(lowering, lowering.value(operands[0]), terms[0], output)
    values, spelt = [], tuple(terms)
    for place, name in enumerate(operands):
        others = set("".join([output, *terms[:place], *terms[place + 1 :]]))
        value = factor_of(lowering, name, lanes=times_used(lowering, operands, (*spelt, output), place))
        if value.dtype not in SUMMED:
            raise ir.Unfusable(f"a product of {value.dtype}")
        alone = [i for i, letter in enumerate(terms[place]) if letter not in others]
        values.append(lowering.reduce("sum", value, alone, keep=False) if alone else value)
        terms[place] = "".join(letter for letter in terms[place] if letter in others)
    letters, total = terms[0], values[0]
    for number, (term, value) in enumerate(zip(terms[1:], values[1:], strict=True), 2):
        later = set("".join([output, *terms[number:]]))
        kept = output if number == len(terms) else "".join(x for x in dict.fromkeys(letters + term) if x in later)
        summed = sorted(set(letters + term) - set(kept))
        factors = []
        for side, factor in ((letters, operand(lowering, total)), (term, operand(lowering, value))):
            groups = dict(zip(side, factor.dims, strict=True))
            factors.append(lowering.with_dims(factor, tuple(groups.get(letter, ()) for letter in (*kept, *summed))))
        total = of_factors(lowering, factors[0], factors[1], len(summed))
        letters = kept
    return total


def times_used(lowering: Lowering, operands: Sequence[Value], terms: Sequence[str], place: int) -> int:
    """Return how often a product of two operands uses each element of one; 0 where there are more of them.

    `terms` has the letters of the operands as they are given, and of the result.
    """
    if len(operands) != 2:
        return 0
    sizes = dict(zip(terms[1 - place], shape_of(lowering, operands[1 - place]), strict=True))
    return math.prod(size for letter, size in sizes.items() if letter in terms[2] and letter not in terms[place])


def is_pointwise(value: ir.Value) -> bool:
    """Return whether a value is computed element by element, from tensors."""
    return not any(isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(value))


def letters_of(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand of an einsum and of its result: those for `...` and for a result that is not
    named too.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    hidden = [rank - len(t.replace("...", "")) if "..." in t else 0 for t, rank in zip(terms, ranks, strict=True)]
    most = max(hidden)
    if not arrow:
        every = inputs.replace(",", "").replace(".", "")
        output = "..." * bool(most) + "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    shared = "".join(free[:most])
    written = [t.replace("...", shared[most - n :]) for t, n in zip(terms, hidden, strict=True)]
    return written, output.replace("...", shared)


def rearranged(lowering: Lowering, value: ir.Value, letters: str, output: str) -> ir.Value:
    """Return one operand of an einsum with its dimensions in another order, summed over those that are left out."""
    gone = [i for i, letter in enumerate(letters) if letter not in output]
    value = lowering.reduce("sum", value, gone, keep=False) if gone else value
    left = [letter for letter in letters if letter in output]
    return lowering.with_dims(value, tuple(value.dims[left.index(letter)] for letter in output))


def attention(lowering: Lowering, node: Node) -> ir.Value:
    """Return scaled dot-product attention without masks and dropout, as two products around a softmax."""
    q, k, v = (factor_of(lowering, given(node, i)) for i in range(3))
    masked = given(node, 3, "attn_mask") is not None or given(node, 5, "is_causal", False)
    if masked or given(node, 4, "dropout_p", 0.0):
        raise ir.Unfusable("a mask or dropout")
    scale = given(node, 6, "scale") or 1.0 / math.sqrt(q.shape[-1])
    scores = lowering.op(mul, product(lowering, q, transposed(lowering, k)), lowering.scalar(scale, q.dtype))
    return product(lowering, lowering.reload(softmax_value(lowering, scores, -1)), v)


def convolution(rank: int, *, transpose: bool = False) -> Rule:
    """Return the rule of a convolution over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        x, weight, bias = given(node, 0), given(node, 1), given(node, 2, "bias")
        if transpose:
            groups, dilation = given(node, 6, "groups", 1), given(node, 7, "dilation", 1)
        else:
            dilation, groups = given(node, 5, "dilation", 1), given(node, 6, "groups", 1)
        padding = given(node, 4, "padding", 0)
        if node.op.endswith(".padding"):
            padding = named_padding(given(node, 4, "padding", "valid"), shape_of(lowering, weight)[2:], dilation)
        if len(node.outputs[0].shape) != rank + 2:
            raise ir.Unfusable("no batch")
        window = [per_dimension(v, rank, None) for v in (given(node, 3, "stride", 1), padding, dilation)]
        x, zeros = (x, ((0, 0),) * rank) if transpose else unpadded(lowering, x, rank)
        around = [2 * pad + sum(more) for pad, more in zip(window[1], zeros, strict=True)]
        window[1] = [pad + before for pad, (before, _) in zip(window[1], zeros, strict=True)]
        factors = factor_of(lowering, x), factor_of(lowering, weight)
        out = windowed(lowering, *factors, node.outputs[0].shape, groups, (window, around), transpose)
        if bias is None:
            return out
        offset = lowering.value(bias)
        return lowering.op(add, out, lowering.with_dims(offset, (*offset.dims, *[()] * rank)))

    return rule


def unpadded(lowering: Lowering, argument: Any, rank: int) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """Return what a convolution reads without the zeros that `F.pad` lays around it, and how many these are.

    They are so many before and after along each dimension, which the guards of the window see to.
    """
    name = argument.name if isinstance(argument, Ref) else ""
    node = next((node for node in lowering.fp.nodes if node.name == name), None)
    none = argument, ((0, 0),) * rank
    if node is None or base_name(node.op) not in {"pad", "constant_pad_nd"}:
        return none
    named = base_name(node.op) == "pad"
    other = named and given(node, 2, "mode", "constant") != "constant"
    widths = [*given(node, 1), *[0] * (2 * rank)]
    if other or given(node, 2 + named, "value", 0) or len(given(node, 1)) > 2 * rank or min(widths) < 0:
        return none
    return given(node, 0), tuple((widths[2 * i], widths[2 * i + 1]) for i in reversed(range(rank)))


def named_padding(name: str, kernel: tuple[int, ...], dilation: Any) -> tuple[int, ...]:
    """Return how many elements come before the first one: none for `valid`, for `same` so many that sizes stay.

    Where an odd number is needed, the one more comes after the last element, which the guards of the window see to.
    """
    steps = per_dimension(dilation, len(kernel), 1)
    return tuple((step * (k - 1)) // 2 if name == "same" else 0 for k, step in zip(kernel, steps, strict=True))


def whole_load(lowering: Lowering, value: ir.Value) -> ir.Load:
    """Return the value as a load that steps through its buffer dimension by dimension."""
    found = lowering.stored(value)
    plain = [ir.Form(tuple((a, 1) for a in group)) for group in found.dims]
    return found if found.stored == found.dims and list(found.index) == plain else lowering.reload(value)


def windowed(
    lowering: Lowering,
    x: ir.Value,
    weight: ir.Value,
    shape: tuple[int, ...],
    groups: int,
    windows: tuple[list[list[int]], list[int]],
    transpose: bool,
) -> ir.Value:
    """Return the sum over channels and window positions, one loop each.

    A dimension of the window is an index and a guard. `windows` has strides, pads before and dilations, each with one
    number for each dimension, and pads before and after together.
    """
    window, around = windows
    if x.dtype != "float32" or weight.dtype != "float32":
        raise ir.Unfusable(f"a convolution of {x.dtype}")
    source, weight = whole_load(lowering, x), operand(lowering, weight)
    source = ir.load(source.buffer, source.shape, source.storage)  # loops of its own: the window replaces them
    batch, channels, filters = source.dims[0], source.shape[1] // groups, shape[1] // groups
    over_group, over_channel = ir.regroup(source.dims[1], (groups, channels), fixed=(0,))
    kernel = weight.shape[2:]
    order = (groups, channels, filters) if transpose else (groups, filters, channels)
    weight = lowering.view(weight, (*order, *kernel), fixed=(0,))
    if transpose:
        weight = lowering.with_dims(weight, (weight.dims[0], weight.dims[2], weight.dims[1], *weight.dims[3:]))
    out: list[ir.Group] = []
    index: list[ir.Form | ir.Value] = list(source.index[:2])
    taps: list[ir.Atom] = []
    guards: list[ir.Index] = []
    for i, (stride, pad, dilation) in enumerate(zip(*window, strict=True)):
        plain = kernel[i] == stride == 1 and not pad  # every place is read where it is written
        o: ir.Group = source.dims[2 + i] if plain else () if shape[2 + i] == 1 else (ir.Atom(shape[2 + i]),)
        k: ir.Group = () if kernel[i] == 1 else (ir.Atom(kernel[i], fixed=True, window=True),)
        if o and not plain and not transpose:
            o[0].along = windows_along(
                source.stored[2 + i], shape[2 + i], (kernel[i] - 1) * dilation + 1, stride, around[i]
            )
        lowering.loops.unify(k, weight.dims[3 + i])
        place, guard = position(o, k, source.stored[2 + i], (stride, pad, dilation), transpose)
        out.append(o)
        index.append(place)
        taps += k
        guards += guard
    dims = (batch, over_group, (), *out, over_channel)
    values = lowering.tracked(ir.Load(dims, "float32", source.buffer, source.stored, tuple(index), source.storage))
    factors = lowering.with_dims(weight, ((), weight.dims[0], weight.dims[1], *[()] * len(out), weight.dims[2]))
    terms = lowering.op(mul, values, factors)
    over = (*terms.dims[-1], *taps)
    total: ir.Value = ir.Op(terms.dims[:-1], "float32", Operator.SAME, (terms,))
    if over:
        total = ir.Reduce(terms.dims[:-1], "float32", Kind.SUM, terms, over, tuple(guards))
    return lowering.view(lowering.tracked(total), shape)


def position(
    o: ir.Group, k: ir.Group, stored: ir.Group, window: tuple[int, int, int], transpose: bool
) -> tuple[ir.Form | ir.Value, list[ir.Index]]:
    """Return where output `o` and window position `k` read one dimension, and the guard if that may lie outside."""
    stride, pad, dilation = window
    size, outputs, taps = ir.size_of(stored), ir.size_of(o), ir.size_of(k)
    if not transpose:
        form = ir.Form(tuple((a, stride) for a in o) + tuple((a, dilation) for a in k), -pad)
        outside = pad or (outputs - 1) * stride - pad + (taps - 1) * dilation >= size
        return form, [ir.Index((), "bool", form, stored)] if outside else []
    form = ir.Form(tuple((a, 1) for a in o) + tuple((a, -dilation) for a in k), pad)
    if stride == 1:
        outside = pad < (taps - 1) * dilation or outputs - 1 + pad >= size
        return form, [ir.Index((), "bool", form, stored)] if outside else []
    place = quotient(ir.Index((), "int64", form), stride)
    return place.value, [ir.Index((), "bool", form, stored, every=stride)]


ATTENTION = "scaled_dot_product_attention"
PRODUCTS: dict[str, Rule] = {
    "_scaled_mm": scaled_mm,
    "matmul": matmul,
    "mm": matmul,
    "bmm": matmul,
    "mv": matmul,
    "dot": matmul,
    "linear": linear,
    "addmm": addmm,
    "baddbmm": addmm,
    "einsum": einsum,
    ATTENTION: attention,
    "conv1d": convolution(1),
    "conv2d": convolution(2),
    "conv3d": convolution(3),
    "conv_transpose1d": convolution(1, transpose=True),
    "conv_transpose2d": convolution(2, transpose=True),
    "conv_transpose3d": convolution(3, transpose=True),
}
OF_MATRICES = ("linear", "matmul", "mm", "bmm")


def shape_of(lowering: Lowering, argument: Any) -> tuple[int, ...]:
    """Return the shape of an argument of the graph."""
    entry = lowering.env[argument.name]
    return entry.values[0].shape if entry.values else lowering.specs[entry.buffer].shape


def likely_faster(lowering: Lowering, node: Node, backend: Backend) -> bool:
    """Return whether the generated product is likely to beat the library's.

    Both variants are drafted, so the judge has the last word. Depthwise convolutions and matrix-vector products run as
    plain reductions, limited by memory. On a GPU strict fp32 transposed and 3-D convolutions of the library are far
    from the floor; on a CPU its pointwise ones are.
    """
    name = base_name(node.op)
    if is_rearrangement(node) or is_thin(lowering, node):
        return True
    if not name.startswith("conv") and name not in {"matmul", "mm", "mv"}:
        return False
    if is_half(lowering, node) and name != "mv":
        return False
    first, second = shape_of(lowering, node.args[0]), shape_of(lowering, node.args[1])
    if not name.startswith("conv"):
        return len(second) == 1 or 1 in (second[-1], math.prod(first[:-1]))
    if second[1] == 1 and second[0] == first[1]:
        return True
    return (name.endswith("3d") or "transpose" in name) if backend == "cuda" else math.prod(second[2:]) == 1


def is_thin(lowering: Lowering, node: Node) -> bool:
    """Return whether a product sums so little for each element, or has so few columns, that memory bounds it.

    Tiles gain nothing there, and what stands before and behind it is fused.
    """
    name = base_name(node.op)
    if name == "einsum":
        operands = node.args[1]
        if not isinstance(operands, tuple) or len(operands) != 2:
            return False
        shapes = [shape_of(lowering, operand) for operand in operands]
        (left, right), output = letters_of(str(node.args[0]), [len(shape) for shape in shapes])
        sizes = dict(zip(left, shapes[0], strict=False)) | dict(zip(right, shapes[1], strict=False))
        depth = math.prod(sizes[x] for x in {*left, *right} - set(output))
        sides = [
            math.prod(sizes[x] for x in side if x in output and x not in other)
            for side, other in ((left, right), (right, left))
        ]
    elif name in {"linear", "matmul", "mm", "bmm"}:
        first, second = shape_of(lowering, node.args[0]), shape_of(lowering, node.args[1])
        if len(first) < 2 or len(second) < 2:
            return False
        depth, columns = first[-1], second[0] if name == "linear" else second[-1]
        sides = [math.prod(first[:-1]), columns]
    elif name in {"conv1d", "conv2d", "conv3d"}:
        weight = shape_of(lowering, node.args[1])
        groups = given(node, 6, "groups", 1)
        return weight[0] // groups < LEAST_ROWS and math.prod(weight[1:]) <= FEW_TAPS
    else:
        return False
    few = sides[1] < LEAST_ROWS or max(sides) < LEAST_COLUMNS
    return depth <= WRITTEN_OUT or min(sides) == 1 or (few and depth <= THIN_DEPTH)


def is_rearrangement(node: Node) -> bool:
    """Return whether a node is an einsum of one operand, which multiplies nothing."""
    return base_name(node.op) == "einsum" and "," not in str(given(node, 0))


def is_half(lowering: Lowering, node: Node) -> bool:
    """Return whether an operand of a product has elements of sixteen bits."""
    names = [*refs(node.args)]
    entries = [lowering.env[name] for name in names if name in lowering.env]
    return any((e.dtype or lowering.specs[e.buffer].dtype if e.buffer else e.dtype) in HALF for e in entries)


def only_where_faster(rule: Rule, backend: Backend) -> Rule:
    """Return the rule restricted to nodes for which the generated product is likely faster."""

    def chosen(lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
        if not likely_faster(lowering, node, backend):
            raise ir.Unfusable("left to the library")
        return rule(lowering, node)

    return chosen


def only_in_full(rule: Rule) -> Rule:
    """Return the rule restricted to operands of full precision."""

    def chosen(lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
        if is_half(lowering, node) and not is_rearrangement(node):
            raise ir.Unfusable("sixteen-bit operands, left to the library")
        return rule(lowering, node)

    return chosen


def knowing_its_dtype(rule: Rule) -> Rule:
    """Return the rule whose sums know the dtype of sixteen bits to which the graph rounds them.

    With a bias, or another product that is rounded before, it rounds what comes of both: little may be left of two
    large numbers.
    """

    def halved(value: ir.Value) -> bool:
        return isinstance(value, ir.Op) and value.operator in HALVED

    def inside(value: ir.Value) -> bool:
        return not isinstance(value, ir.Reduce) and not halved(value)

    def chosen(lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
        found = rule(lowering, node)
        if isinstance(found, ir.Value) and node.outputs[0].dtype in HALF:
            values = list(ir.walk(found, enter=inside))
            if any(isinstance(value, ir.Load) or halved(value) for value in values):
                return lowering.rounded(found, node.outputs[0].dtype)
            for value in values:
                if isinstance(value, ir.Reduce):
                    value.rounded = value.rounded or node.outputs[0].dtype
        return found

    return chosen


def product_rules(whose: int, backend: Backend) -> dict[str, Rule]:
    """Return rules for products: none for 0 (the library's), where likely faster for 1, all for 2."""
    if whose == 2 and backend == "cuda":
        ours = {name: knowing_its_dtype(rule) for name, rule in PRODUCTS.items()}
        ours |= {name: with_factors_in_lines(ours[name]) for name in OF_MATRICES}
        return ours | {ATTENTION: only_in_full(attention)}
    if whose == 1:
        return {name: only_where_faster(rule, backend) for name, rule in PRODUCTS.items() if name != ATTENTION}
    return PRODUCTS if whose == 2 else {}
