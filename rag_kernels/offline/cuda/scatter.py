"""Scatters in CUDA: a thread for each element, which joins what stands at its place by an atomic operation.

Comes in: a ScatterRegion of a Function. Goes out: its kernel and its launch. Floating sums of elements that share a
place are not in one order, as in PyTorch; of elements that are set there any may stay. Where many elements have few
places (a histogram), a second kernel joins them in shared memory first, and a block's results once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.own_text import inside, nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import ScatterRegion, loops_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import c_name
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.lower import Scattered

JOINS = {Kind.SUM: "join_sum({at}, {v});", None: "*({at}) = {v};"}
FEW_PLACES, SHARED_BY, COPIES = (
    2048,
    32,
    8,
)  # places at most; elements of one at least; copies of all in a block at most
NEAR = frozenset({"float32", "float64", "int64", "int32"})  # elements that join in shared memory
NEAR_BLOCKS, OF_A_BLOCK = 528, 4096  # blocks at most, and what is worth one
JOINS |= {kind: f"join_by<{C[kind].functor}>({{at}}, {{v}});" for kind in (Kind.PROD, Kind.MAX, Kind.MIN)}


@dataclass(slots=True)
class CudaScatter(CudaRegion):
    """Prints one scatter as a kernel."""

    def point(self) -> list[str]:
        """Return one element of the scatter a thread."""
        head = [
            "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(self.nest.outer)}) return;",
        ]
        buffer = self.scattered.buffer
        return [*head, *self.element(self.printer.pointers[buffer], "return")]

    def element(self, pointer: str, otherwise: str) -> list[str]:
        """Return how element `t` joins what stands at its place behind a pointer."""
        region = self.nest.region
        assert isinstance(region, ScatterRegion)
        scope = Scope()
        conditions = inside(self.printer, region, scope, frozenset())
        place = self.printer.at(self.nest.stores[self.scattered.buffer], scope)
        head = [
            *self.indices(self.nest.outer, "t"),
            *scope.lines,
            *([f"if (!({' && '.join(conditions)})) {otherwise};"] if conditions else []),
        ]
        element = Scope(scope)
        value = self.printer.emit(self.scattered.value, element)
        return [*head, *element.lines, JOINS[self.scattered.kind].format(at=f"{pointer} + ({place})", v=value)]

    @property
    def scattered(self) -> Scattered:
        region = self.nest.region
        assert isinstance(region, ScatterRegion)
        return region.scattered

    def has_few_places(self, dtype: str) -> bool:
        """Return whether many elements join at few places, at the sizes that the kernel is written for."""
        places = math.prod(ir.size_of(group) for group in self.scattered.dims)
        elements = math.prod(leaf.size for loop in self.nest.outer for leaf in loop.leaves)
        joins = self.scattered.kind in {Kind.SUM, Kind.MAX, Kind.MIN}
        return joins and dtype in NEAR and places <= FEW_PLACES and elements >= SHARED_BY * places

    def near_text(self, name: str, function: Function) -> tuple[list[str], str]:
        """Return the kernel that joins in shared memory first, and the arguments that it is launched with."""
        scattered = self.scattered
        assert scattered.kind
        dtype = function.specs[scattered.buffer].dtype
        ctype, start = CTYPES[dtype], start_of(scattered.kind, dtype)
        joined = JOINS[scattered.kind].format(at=f"{self.printer.pointers[scattered.buffer]} + p", v="whole")
        body = [
            f"__shared__ {ctype} near[{FEW_PLACES}];",
            f"const unsigned fit = unsigned({FEW_PLACES} / places_), copies = fit < {COPIES} ? fit : {COPIES};",
            "const unsigned few = unsigned(places_);",
            f"for (unsigned p = threadIdx.x; p < copies * few; p += blockDim.x) near[p] = {start};",
            f"{ctype}* const mine = near + threadIdx.x / 32 % copies * few;",
            "__syncthreads();",
            "const int64_t stride = int64_t(gridDim.x) * blockDim.x, first = int64_t(blockIdx.x) * blockDim.x;",
            "#pragma unroll 4",
            f"for (int64_t t = first + threadIdx.x; t < {self.total(self.nest.outer)}; t += stride) {{",
            *indent(self.element("mine", "continue")),
            "}",
            "__syncthreads();",
            "for (unsigned p = threadIdx.x; p < few; p += blockDim.x) {",
            f"  {ctype} whole = near[p];",
            f"  for (unsigned c = 1; c < copies; ++c) whole = {C[scattered.kind].functor}()(whole, near[c * few + p]);",
            f"  if (!(whole == {start})) {joined}",
            "}",
        ]
        parameters, arguments = self.parameters_of(body, function)
        body = [*(f"constexpr int64_t {n} = {v};" for n, v in self.constants_in(body)), *body]
        head = f"__global__ void {name}({', '.join([*parameters, 'int64_t places_'])}) {{"
        return [head, *indent(body), "}"], ", ".join(arguments)


def scatter_text(
    name: str, region: ScatterRegion, function: Function, sizes: Sizes, parameters: CudaParameters
) -> tuple[list[str], list[str]]:
    """Return the kernel of a scatter, and the statements that launch it."""
    pointers = {b: f"{c_name(b)}_p" for b in function.specs}
    nest = nest_of(region, loops_of(region.scattered.value), sizes.names)
    printer = Printer(nest, pointers, function.storage(), function.near)
    scratch = tuple(c_name(b) for b in function.scratch)
    kernel = CudaScatter(nest, printer, {}, parameters=parameters, constants=sizes.constants, scratch=scratch)
    text, launch = kernel.text(name, function)
    total = kernel.total(nest.outer)
    if kernel.has_few_places(function.specs[region.scattered.buffer].dtype):
        near, arguments = kernel.near_text(f"{name}_near", function)
        places = " * ".join(f"({sizes.names.product(group)})" for group in region.scattered.dims) or "1"
        text += near
        launch = [
            f"const int64_t all = {total}, places = {places}, worth = (all + {OF_A_BLOCK - 1}) / {OF_A_BLOCK};",
            f"if (places <= {FEW_PLACES} && all >= {SHARED_BY} * places) {{",
            f"  {name}_near<<<unsigned(worth < {NEAR_BLOCKS} ? worth : {NEAR_BLOCKS}), THREADS, 0, stream>>>"
            f"({arguments}, places);",
            "} else {",
            *indent(launch),
            "}",
        ]
    return text, [f"if ({total}) {{", *indent(launch), "}"]
