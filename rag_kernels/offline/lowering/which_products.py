"""Which products are generated and which stay with the library, and what their sums know.

Comes in: a choice (none, where likely faster, all) and the backend. Goes out: the rules of products by operator name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile

from rag_kernels.eval.records import Backend, Node, Value
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.patterns import HALVED, LEAST_COLUMNS, LEAST_ROWS
from rag_kernels.offline.lowering.factor_lines import with_factors_in_lines
from rag_kernels.offline.lowering.lower import LEFT, WRITTEN_OUT, Lowering, Rule
from rag_kernels.offline.lowering.rules.convolution import convolution
from rag_kernels.offline.lowering.rules.einsum import einsum, letters_of
from rag_kernels.offline.lowering.rules.product import addmm, attention, linear, matmul, scaled_mm, shape_of

THIN_DEPTH = 512  # of a product of few columns: its rows stay in a cache while each column reads them


FEW_TAPS = 64  # of a convolution of few filters
NARROW = 96  # elements of a row of pixels: vectors along fewer are cut at the borders of each place of a window
VECTOR = 16  # elements of a row that vectors run along


ATTENTION = "scaled_dot_product_attention"


PRODUCTS: dict[str, Rule] = {
    "_scaled_mm": scaled_mm,
    "matmul": matmul,
    "mm": matmul,
    "bmm": matmul,
    "mv": matmul,
    "dot": matmul,
    "vdot": matmul,
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
OF_VECTORS = ("mv", "dot", "vdot")


def factors_of(node: Node) -> tuple[Value, ...]:
    """Return the factors of a product."""
    factors = node.args[1] if base_name(node.op) == "einsum" else node.args[:2]
    return factors if isinstance(factors, tuple) else ()


def likely_faster(node: Node, shapes: Sequence[tuple[int, ...]], backend: Backend, *, half: bool = False) -> bool:
    """Return whether the generated product is likely to beat the library's, by the shapes of its factors.

    Both variants are drafted, so the judge has the last word. Depthwise convolutions and matrix-vector products run as
    plain reductions, limited by memory. On a GPU strict fp32 transposed and 3-D convolutions of the library are far
    from the floor; on a CPU its pointwise ones are.
    """
    name = base_name(node.op)
    if backend == "cpu" and is_narrow(node, shapes):
        return False
    if is_rearrangement(node) or is_thin(node, shapes):
        return True
    if backend == "cpu" and name == "einsum" and not half and runs_along_both(node, shapes):
        return True
    if not name.startswith("conv") and name not in {"matmul", "mm", *OF_VECTORS}:
        return False
    if half and name not in OF_VECTORS:
        return False
    first, second = shapes
    if not name.startswith("conv"):
        return len(second) == 1 or 1 in (second[-1], math.prod(first[:-1]))
    if second[1] == 1 and second[0] == first[1]:
        return True
    return (name.endswith("3d") or "transpose" in name) if backend == "cuda" else math.prod(second[2:]) == 1


def is_thin(node: Node, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a product sums so little for each element, or has so few columns, that memory bounds it.

    Tiles gain nothing there, and what stands before and behind it is fused.
    """
    name = base_name(node.op)
    if name == "einsum":
        if len(shapes) != 2:
            return False
        (left, right), output = letters_of(str(node.args[0]), [len(shape) for shape in shapes])
        sizes = dict(zip(left, shapes[0], strict=False)) | dict(zip(right, shapes[1], strict=False))
        depth = math.prod(sizes[x] for x in {*left, *right} - set(output))
        sides = [
            math.prod(sizes[x] for x in side if x in output and x not in other)
            for side, other in ((left, right), (right, left))
        ]
    elif name in {"linear", "matmul", "mm", "bmm"}:
        first, second = shapes
        if len(first) < 2 or len(second) < 2:
            return False
        depth, columns = first[-1], second[0] if name == "linear" else second[-1]
        sides = [math.prod(first[:-1]), columns]
    elif name in {"conv1d", "conv2d", "conv3d"}:
        weight = shapes[1]
        groups = given(node, 6, "groups", 1)
        return weight[0] // groups < LEAST_ROWS and math.prod(weight[1:]) <= FEW_TAPS
    else:
        return False
    few = sides[1] < LEAST_ROWS or max(sides) < LEAST_COLUMNS
    return depth <= WRITTEN_OUT or min(sides) == 1 or (few and depth <= THIN_DEPTH)


def is_narrow(node: Node, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a node is a convolution by windows over rows that are few vectors long."""
    window = shapes[1][2:] if base_name(node.op) in {"conv1d", "conv2d", "conv3d"} else ()
    return math.prod(window) > 1 and shapes[0][-1] < NARROW


def runs_along_both(node: Node, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether both operands and the result of an einsum end in the same letters, along which vectors run.

    The library would move these to the front and multiply many small matrices.
    """
    if len(shapes) != 2:
        return False
    (left, right), output = letters_of(str(node.args[0]), [len(shape) for shape in shapes])
    ends = zip(left[::-1], right[::-1], output[::-1], strict=False)
    shared = len([*takewhile(lambda letters: len({*letters}) == 1, ends)])
    return shared > 0 and math.prod(shapes[0][-shared:]) >= VECTOR


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
        shapes = [shape_of(lowering, factor) for factor in factors_of(node)]
        if not likely_faster(node, shapes, backend, half=is_half(lowering, node)):
            raise ir.Unfusable(LEFT)
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


def ours_of_complex(whose: int, backend: Backend) -> Callable[[Node, Sequence[tuple[int, ...]]], bool]:
    """Return which products of complex matrices are taken apart: as `product_rules` has it for real ones."""
    return lambda node, shapes: whose == 2 or (whose == 1 and likely_faster(node, shapes, backend))


def product_rules(whose: int, backend: Backend) -> dict[str, Rule]:
    """Return rules for products: none for 0 (the library's), where likely faster for 1, all for 2."""
    if whose == 2 and backend == "cuda":
        ours = {name: knowing_its_dtype(rule) for name, rule in PRODUCTS.items()}
        ours |= {name: with_factors_in_lines(ours[name]) for name in OF_MATRICES}
        return ours
    if whose == 1:
        return {name: only_where_faster(rule, backend) for name, rule in PRODUCTS.items() if name != ATTENTION}
    return PRODUCTS if whose == 2 else {}
