"""Gradients of convolutions as products and sums, where these are better than the library's kernels.

Comes in: a problem's graph. Goes out: the same function, in which `convolution_backward` of single places (a window of
one) is a product for the input and one for each image, which are added up, for the weights; that of a filter for each
channel is another such convolution, and a sum for each place of the window. What stands around them is fused then.
Others stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.cells import SAME
from rag_kernels.offline.graph.rewrites import live
from rag_kernels.offline.graph.subgraph_match import specs_of

MOST_PLACES = 27  # of a window whose gradients are sums side by side
PLACES = "hwd"


def with_convolution_gradients(fp: FunctionalProblem) -> FunctionalProblem:
    """Return the problem with such gradients in parts; itself if there are none."""
    if not any(base_name(node.op) == "convolution_backward" for node in fp.nodes):
        return fp
    specs, made, parts = specs_of(fp), list[Node](), dict[str, list[Ref | None]]()
    for node in fp.nodes:
        found = _Parts(node, specs).results() if base_name(node.op) == "convolution_backward" else None
        if found is not None:
            nodes, parts[node.name] = found
            made += nodes
            continue
        given: Sequence[Any] = node.args
        source, place = given if node.op == "getitem" else (None, 0)
        part = parts[source.name][place] if isinstance(source, Ref) and source.name in parts else None
        made.append(Node(node.name, SAME, (part,), (), node.outputs) if part else node)
    return live(fp, made) if parts else fp


@dataclass(slots=True)
class _Parts:
    """The nodes that take the place of one `convolution_backward`."""

    node: Node
    specs: dict[str, TensorSpec]
    nodes: list[Node] = field(default_factory=list)

    def results(self) -> tuple[list[Node], list[Ref | None]] | None:
        """Return the nodes, and the gradients of the input, the weight and the bias that are wanted, or None."""
        every: Sequence[Any] = self.node.args
        grad, x, weight, _, stride, padding, dilation, transposed, _, groups, mask = every
        shape, of_weight = (self.specs[one.name].shape for one in (x, weight))
        rank, places = len(shape) - 2, prod(of_weight[2:])
        reach = [d * (k - 1) for d, k in zip(dilation, of_weight[2:], strict=True)]
        if transposed or {*stride} != {1} or any(p > r for p, r in zip(padding, reach, strict=True)):
            return None
        if places == groups == 1 and prod(shape[2:]) >= of_weight[1]:
            both = self.of_single_places(grad, x, weight)
        elif groups == shape[1] == of_weight[0] and groups > 1 and places <= MOST_PLACES:
            both = self.of_channels(grad, x, weight, padding, dilation, reach)
        else:
            return None
        bias = self.add("aten.sum.dim_IntList", grad, (0, *range(2, rank + 2)), shape=of_weight[:1])
        return self.nodes, [one if wanted else None for one, wanted in zip((*both, bias), mask, strict=True)]

    def add(self, op: str, *args: Value, shape: Sequence[int]) -> Ref:
        """Add a node, and return its name."""
        name, grad = f"{self.node.name}_part{len(self.nodes)}", self.node.args[0]
        assert isinstance(grad, Ref)
        self.nodes.append(Node(name, op, args, (), (TensorSpec(tuple(shape), self.specs[grad.name].dtype),)))
        return Ref(name)

    def of_single_places(self, grad: Ref, x: Ref, weight: Ref) -> tuple[Ref, Ref]:
        """Return the gradients of a product of channels at each pixel."""
        shape, of_weight = self.specs[x.name].shape, self.specs[weight.name].shape
        filters, pixels = of_weight[:2], PLACES[: len(shape) - 2]
        matrix = self.add("aten.reshape.default", weight, filters, shape=filters)
        of_x = self.add("aten.einsum.default", f"oc,bo{pixels}->bc{pixels}", (matrix, grad), shape=shape)
        each = self.add("aten.einsum.default", f"bo{pixels},bc{pixels}->boc", (grad, x), shape=(shape[0], *filters))
        total = self.add("aten.sum.dim_IntList", each, (0,), shape=filters)
        return of_x, self.add("aten.reshape.default", total, of_weight, shape=of_weight)

    def of_channels(
        self,
        grad: Ref,
        x: Ref,
        weight: Ref,
        padding: Sequence[int],
        dilation: Sequence[int],
        reach: Sequence[int],
    ) -> tuple[Ref, Ref]:
        """Return the gradients where each channel has a filter: that of a place is a sum over what it read."""
        shape, of_grad, of_weight = (self.specs[one.name].shape for one in (x, grad, weight))
        rank = len(shape) - 2
        axes = tuple(range(2, rank + 2))
        turned = self.add("aten.flip.default", weight, axes, shape=of_weight)
        around = tuple(r - p for r, p in zip(reach, padding, strict=True))
        ones, apart = (1,) * rank, tuple(dilation)
        convolution = grad, turned, None, ones, around, apart, shape[1]
        of_x = self.add(f"aten.conv{rank}d.default", *convolution, shape=shape)
        wide = [*shape[:2], *(n + 2 * p for n, p in zip(shape[2:], padding, strict=True))]
        borders = tuple(p for one in reversed(padding) for p in (one, one))
        read = [self.add("aten.constant_pad_nd.default", x, borders, shape=wide)]
        for d, (count, step, far) in enumerate(zip(of_weight[2:], dilation, reach, strict=True)):
            wide[2 + d] = of_grad[2 + d]
            cut = [(k * step, k * step - far or None) for k in range(count)]
            read = [self.add("aten.slice.Tensor", one, 2 + d, *ends, shape=wide) for one in read for ends in cut]
        sums = []
        for one in read:
            terms = self.add("aten.mul.Tensor", grad, one, shape=of_grad)
            sums.append(self.add("aten.sum.dim_IntList", terms, (0, *axes), shape=shape[1:2]))
        side = self.add("aten.stack.default", tuple(sums), -1, shape=(shape[1], len(sums)))
        return of_x, self.add("aten.reshape.default", side, of_weight, shape=of_weight)
