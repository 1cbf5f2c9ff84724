"""Sums of two products of sixteen bits, rounded as the graph rounds them.

Comes in: the terms of a sum. Goes out: the terms as the graph has them, or None where they are no such products. A
product may lie in memory, where it is rounded: a kernel that added another one to it as it is would round neither as
the graph does nor as fp32 would, and little may be left of two large numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import HALVED, operands, strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.lower import Lowering
from rag_kernels.offline.lowering.steps import Library, Stored

SCALED = frozenset({Operator.MUL, Operator.DIV})  # of a product and a number


def as_rounded(lowering: Lowering, terms: Sequence[ir.Value], dtype: str) -> list[ir.Value] | None:
    """Return the terms of a sum of this dtype of the graph, each rounded to it; None if one of them is no product."""
    if dtype not in HALF or not all(is_product(lowering, term) for term in terms):
        return None

    def each(value: ir.Value) -> ir.Value | None:
        if isinstance(value, ir.Op) and value.operator in HALVED:
            return value
        return lowering.rounded(value, value.rounded) if isinstance(value, ir.Reduce) and value.rounded else None

    return [lowering.rounded(lowering.tracked(rewrite(term, each)), dtype) for term in terms]


def is_product(lowering: Lowering, value: ir.Value) -> bool:
    """Return whether a value is a product that the graph rounds, perhaps with a bias, scaled, or a sum of such."""
    value = strip(value)
    match value:
        case ir.Reduce():
            return bool(value.rounded)
        case ir.Load():
            return any(is_made_by_product(lowering, step, value.buffer) for step in lowering.steps)
        case ir.Op(operator=operator, args=args) if operator in SCALED:
            numbers = [isinstance(strip(arg), ir.Const) for arg in args]
            return sum(numbers) == 1 and all(n or is_product(lowering, a) for n, a in zip(numbers, args, strict=True))
        case ir.Op(operator=operator, args=args) if operator in {Operator.ADD, Operator.SUB}:
            return all(is_product(lowering, arg) for arg in args)
        case ir.Op(operator=operator) if operator in HALVED:
            inside = ir.walk(value, enter=lambda v: not isinstance(v, ir.Reduce))
            return is_product(lowering, value.args[0]) or any(map(sums_products, inside))
        case _:
            return False


def sums_products(value: ir.Value) -> bool:
    """Return whether a value is a sum of products."""
    return isinstance(value, ir.Reduce) and value.kind is Kind.SUM and bool(operands(strip(value.arg), Operator.MUL))


def is_made_by_product(lowering: Lowering, step: object, buffer: str) -> bool:
    """Return whether a step writes a product to this buffer."""
    if isinstance(step, Library):
        return step.node.name == buffer and operator(base_name(step.node.op)).cost == "product"
    return isinstance(step, Stored) and step.buffer == buffer and is_product(lowering, step.value)
