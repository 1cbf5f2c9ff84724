"""Rules for matrix products: a product of two loads, summed over loops.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. `codegen/contraction.py` later finds such sums and gives them tiles; small ones run as any other reduction does.
"""

from __future__ import annotations

import math
from typing import Any

from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import FLOAT8, HALF, ITEMSIZE
from rag_kernels.offline.ir.expressions import add, mul, where
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import LEAST_ROWS, narrow_dtype, operands, strip
from rag_kernels.offline.lowering.arguments import graph_dtype
from rag_kernels.offline.lowering.lower import Lowering, is_cheap
from rag_kernels.offline.lowering.rounded_products import as_rounded
from rag_kernels.offline.lowering.rules.reduce import softmax_value

SUMMED = ("float32", "float64")
FEW_LOADS = 4  # of a factor that is computed wherever a product reads it
FEW_LANES = 64  # rows of a block of products, so that weights are dequantised once


def operand(lowering: Lowering, value: ir.Value, lanes: int = 0) -> ir.Value:
    """Return a factor, stored first if it costs more than a few operations, or combines tensors and the other factor
    has many lanes: it is read many times. Weights of codes are not, where a single lane reads them. The copy engine
    reads what lies in memory alone.
    """
    if lanes == 1 and is_dequantised(value) and value.dtype in SUMMED:
        return value
    many = bool(lowering.lanes) and lanes >= lowering.lanes
    computed = not isinstance(strip(value), ir.Load) and lowering.fed and is_laid(value)
    if (many and (computed or combines(value))) or not is_cheap(value, loads=FEW_LOADS) or is_column(value):
        return lowering.reload_laid(value)
    if value.dtype not in SUMMED:
        raise ir.Unfusable(f"a product of {value.dtype}")
    return value


def combines(value: ir.Value) -> bool:
    """Return whether a value is of several tensors' elements, another for each place that it is laid out along."""
    loads = [v for v in ir.walk(value, enter=lambda v: not isinstance(v, ir.Load)) if isinstance(v, ir.Load)]
    return len(loads) > 1 and is_laid(value)


def is_laid(value: ir.Value) -> bool:
    """Return whether a value is another one for each place that it is laid out along."""
    return {leaf for group in value.dims for leaf in ir.leaves(group)} <= ir.tree_atoms(value)


def is_column(value: ir.Value) -> bool:
    """Return whether a value is one of the columns of a tensor, such as all real parts: no vector is loaded of it."""
    found = strip(value)
    if not isinstance(found, ir.Load) or not found.index:
        return False
    last = found.index[-1]
    return isinstance(last, ir.Form) and not last.terms and ir.size_of(found.stored[-1]) > 1


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


def gathered(lowering: Lowering, value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return where batches of a factor are in place, and the factor if all are: matrices of a tensor at computed
    places, NaN where there is none. None for other values.

    The product of such a one is NaN, so that no copy of the matrices need say it.
    """
    found = operands(strip(value), Operator.WHERE)
    if not found or len(value.dims) < 3 or not isinstance(strip(found[1]), ir.Load):
        return None
    of_batch = {leaf for group in value.dims[:-2] for leaf in ir.leaves(group)}
    known, inner, other = found
    if not is_nan_number(strip(other)) or not ir.tree_atoms(known) <= of_batch:
        return None
    kept = (group if ir.tree_atoms(known) & set(ir.leaves(group)) else () for group in value.dims[:-2])
    return lowering.with_dims(known, (*kept, (), ())), lowering.with_dims(inner, value.dims)


def is_nan_number(value: ir.Value) -> bool:
    """Return whether a value is the number NaN."""
    return isinstance(value, ir.Const) and value.number != value.number


def factor_of(
    lowering: Lowering, argument: Any, *, lanes: int = 0, windows: bool = False, known: list[ir.Value] | None = None
) -> ir.Value:
    """Return an argument as a factor of a product; the other factor has so many lanes, where that is known.

    One that is computed in sixteen bits is stored in these, since that is what tensor cores take; but weights of eight
    bits are dequantised on their way where few rows of the other factor want them. Sixteen bits hold floats of eight.
    A factor lies as it is computed, since matrices are read along lines and across; what `windows` read lies for them.
    `known` gets the condition under which batches that are gathered are in place, and the product is what it says.
    """
    value = lowering.value(argument)
    if known is not None and (found := gathered(lowering, value)):
        known.append(found[0])
        value = found[1]
    dtype = graph_dtype(lowering, argument)
    dtype = "bfloat16" if dtype not in HALF and narrow_dtype(value) in FLOAT8 else dtype
    if dtype not in HALF or is_stored_in(dtype, value):
        return value
    if (lanes == 1 and is_pointwise(value)) or (0 < lanes <= FEW_LANES and is_dequantised(value)):
        return lowering.rounded(value, dtype)
    return lowering.reload(value, dtype) if windows else lowering.reload_laid(value, dtype, as_computed=True)


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
    rows, columns = ir.size_of(ir.leaves(a.dims[-2])), ir.size_of(ir.leaves(b.dims[-1]))
    a, b = operand(lowering, a, columns), operand(lowering, b, rows)
    left = lowering.with_dims(a, (*a.dims[:-1], (), a.dims[-1]))
    right = lowering.with_dims(b, (*b.dims[:-2], (), b.dims[-1], b.dims[-2]))
    return of_factors(lowering, left, right, 1)


def transposed(lowering: Lowering, value: ir.Value) -> ir.Value:
    """Return the value with its last two dimensions exchanged."""
    return lowering.with_dims(value, (*value.dims[:-2], value.dims[-1], value.dims[-2]))


def matmul(lowering: Lowering, node: Node) -> ir.Value:
    """Return a product of matrices or vectors: matmul, mm, bmm, mv and dot."""
    matrices = all(len(shape_of(lowering, given(node, place))) > 1 for place in (0, 1))
    known = list[ir.Value]() if matrices else None
    a = factor_of(lowering, given(node, 0), known=known)
    b = factor_of(lowering, given(node, 1), lanes=math.prod(a.shape[:-1]), known=known)
    vector_a, vector_b = len(a.dims) == 1, len(b.dims) == 1
    a = lowering.with_dims(a, ((), *a.dims)) if vector_a else a
    b = lowering.with_dims(b, (*b.dims, ())) if vector_b else b
    out = product(lowering, a, b)
    for condition in known or ():
        out = lowering.op(lambda holds, total: where(holds, total, math.nan), condition, out)
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


def is_pointwise(value: ir.Value) -> bool:
    """Return whether a value is computed element by element, from tensors."""
    return not any(isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(value))


def attention(lowering: Lowering, node: Node) -> ir.Value:
    """Return scaled dot-product attention without masks and dropout, as two products around a softmax.

    Weights are stored in sixteen bits where values are, since that is what tensor cores take.
    """
    q, k, v = (factor_of(lowering, given(node, i)) for i in range(3))
    masked = given(node, 3, "attn_mask") is not None or given(node, 5, "is_causal", False)
    if masked or given(node, 4, "dropout_p", 0.0):
        raise ir.Unfusable("a mask or dropout")
    scale = given(node, 6, "scale")
    if not scale:
        scale = 1.0 / math.sqrt(q.shape[-1])
        ir.hold(q.dims[-1:])
    scores = lowering.op(mul, product(lowering, q, transposed(lowering, k)), lowering.scalar(scale, q.dtype))
    weights, dtype = softmax_value(lowering, scores, -1), graph_dtype(lowering, given(node, 2))
    name = lowering.store(weights, dtype=dtype if dtype in HALF else "")
    return product(lowering, ir.load(name, weights.shape, lowering.specs[name].dtype), v)


def shape_of(lowering: Lowering, argument: Any) -> tuple[int, ...]:
    """Return the shape of an argument of the graph."""
    entry = lowering.env[argument.name]
    return entry.values[0].shape if entry.values else lowering.specs[entry.buffer].shape
