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
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.own_text import inside, nest_of, place_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.kernel_text import KernelText, Parameter, arguments_of, constexprs
from rag_kernels.offline.cuda.places.wide_scatter import WideScatter
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion, bounds_of
from rag_kernels.offline.fusion.loops import loops_of
from rag_kernels.offline.fusion.regions import ScatterRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import c_name
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.steps import Scattered

JOINS = {
    Kind.SUM: "join_sum({at}, {v});",
    Kind.PROD: "join_by<Prod>({at}, {v});",
    Kind.MAX: "join_extreme<true>({at}, {v});",
    Kind.MIN: "join_extreme<false>({at}, {v});",
    None: "*({at}) = {v};",
}
FEW_PLACES, SHARED_BY, COPIES = 2048, 32, 8  # at most; elements of one at least; copies of all in a block at most
NEAR = frozenset({"float32", "float64", "int64", "int32"})  # elements that join in shared memory
NEAR_BLOCKS, OF_A_BLOCK = 528, 4096  # blocks at most, and what is worth one


@dataclass(slots=True)
class CudaScatter(CudaRegion):
    """Prints one scatter as a kernel."""

    def point(self) -> list[str]:
        """Return the body for one element of the scatter a thread."""
        head = [
            "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(self.nest.outer)}) return;",
        ]
        at = f"{self.printer.pointers[self.scattered.buffer]} + ({{place}})"
        return [*head, *(self.elements(at) if self.region.also else self.element(at, "return"))]

    def elements(self, at: str) -> list[str]:
        """Return how element `t` of each of several scatters joins what stands at its address."""
        scope, joins = Scope(), list[str]()
        for one in self.region.every:
            conditions = inside(self.printer, one, scope, frozenset())
            place = self.printer.at(place_of(one, self.nest.names), scope)
            value = self.printer.emit_stored(one.buffer, one.value, scope)
            join = JOINS[one.kind].format(at=at.format(place=place), v=value)
            joins.append(f"if ({' && '.join(conditions)}) {join}" if conditions else join)
        return [*self.indices(self.nest.outer, "t"), *scope.lines, *joins]

    def element(self, at: str, otherwise: str) -> list[str]:
        """Return how element `t` joins what stands at an address, in which `{place}` is its place."""
        scope = Scope()
        conditions = inside(self.printer, self.scattered, scope, frozenset())
        place = self.printer.at(self.nest.stores[self.scattered.buffer], scope)
        head = [
            *self.indices(self.nest.outer, "t"),
            *scope.lines,
            *([f"if (!({' && '.join(conditions)})) {otherwise};"] if conditions else []),
        ]
        element = Scope(scope)
        value = self.printer.emit_stored(self.scattered.buffer, self.scattered.value, element)
        return [*head, *element.lines, JOINS[self.scattered.kind].format(at=at.format(place=place), v=value)]

    @property
    def region(self) -> ScatterRegion:
        region = self.nest.region
        assert isinstance(region, ScatterRegion)
        return region

    @property
    def scattered(self) -> Scattered:
        return self.region.scattered

    def batches(self) -> int | None:
        """Return of how many loops, outermost first, each step has few places of its own that many elements join.

        That is asked at the sizes that the kernel is written for; None where there are no such loops.
        """
        scattered = self.scattered
        if scattered.kind not in {Kind.SUM, Kind.MAX, Kind.MIN} or self.region.also:
            return None
        loops = self.nest.outer
        for count in range(len(scattered.dims)):
            places = math.prod(ir.size_of(group) for group in scattered.dims[count:])
            if places <= FEW_PLACES:
                return count if count_of(loops[count:]) >= SHARED_BY * places else None
            form = scattered.places[count]
            if count >= len(loops) or form != ir.Form(tuple((leaf, 1) for leaf in loops[count].leaves)):
                return None
        return None

    def near_text(self, name: str, function: Function, batches: int) -> tuple[list[str], str]:
        """Return the kernel that joins in shared memory first, and the arguments that it is launched with."""
        scattered, nest = self.scattered, self.nest
        assert scattered.kind
        dtype = function.specs[scattered.buffer].dtype
        ctype, start = CTYPES[dtype], start_of(scattered.kind, dtype)
        pointer, loops = self.printer.pointers[scattered.buffer], nest.outer[:batches]
        joined = JOINS[scattered.kind].format(at=f"{pointer} + of_batch + p", v="whole")
        first_place = " + ".join(nest.terms(nest.stores[scattered.buffer], loops)) or "0"
        body = [
            f"__shared__ {ctype} near[{FEW_PLACES}];",
            f"const unsigned fit = unsigned({FEW_PLACES} / places_), copies = fit < {COPIES} ? fit : {COPIES};",
            "const unsigned few = unsigned(places_);",
            f"for (unsigned p = threadIdx.x; p < copies * few; p += blockDim.x) near[p] = {start};",
            f"{ctype}* const mine = near + threadIdx.x / 32 % copies * few;",
            "__syncthreads();",
            f"const int64_t each = {self.total(nest.outer[batches:])}, batch = blockIdx.x / per_;",
            "int64_t of_batch = 0;",
            *(["{", *indent([*self.indices(loops, "batch"), f"of_batch = {first_place};"]), "}"] if loops else []),
            "const int64_t stride = int64_t(per_) * blockDim.x, from = int64_t(blockIdx.x % per_) * blockDim.x;",
            "#pragma unroll 4",
            "for (int64_t t = batch * each + from + threadIdx.x; t < (batch + 1) * each; t += stride) {",
            *indent(self.element("mine + (({place}) - of_batch)", "continue")),
            "}",
            "__syncthreads();",
            "for (unsigned p = threadIdx.x; p < few; p += blockDim.x) {",
            f"  {ctype} whole = near[p];",
            f"  for (unsigned c = 1; c < copies; ++c) whole = {C[scattered.kind].functor}()(whole, near[c * few + p]);",
            f"  if (!(whole == {start})) {joined}",
            "}",
        ]
        parameters = self.parameters_of(body, function)
        body = [*constexprs(self.constants_in(body)), *body]
        head = f"__global__ void {bounds_of(self.parameters.threads)}"
        own = Parameter("int64_t", "places_"), Parameter("unsigned", "per_")
        return KernelText((), head, name, [*parameters, *own], body).lines(), ", ".join(arguments_of(parameters))

    def near_launch(self, name: str, arguments: str, batches: int, otherwise: list[str]) -> list[str]:
        """Return the statements that launch it where places are few, and else what is done otherwise."""
        nest = self.nest
        places = " * ".join(f"({nest.names.product(group)})" for group in self.scattered.dims[batches:]) or "1"
        each = self.total(nest.outer[batches:])
        return [
            f"const int64_t batches = {self.total(nest.outer[:batches])}, each = {each}, places = {places};",
            f"const int64_t worth = (each + {OF_A_BLOCK - 1}) / {OF_A_BLOCK};",
            f"const int64_t most = batches < {NEAR_BLOCKS} ? {NEAR_BLOCKS} / batches : 1;",
            f"const int64_t per = small({self.total(nest.outer)}) && worth < most ? worth : most;",
            f"if (places <= {FEW_PLACES} && each >= {SHARED_BY} * places) {{",
            f"  {name}<<<blocks(batches * per), THREADS, 0, stream>>>({arguments}, places, unsigned(per));",
            "} else {",
            *indent(otherwise),
            "}",
        ]


def scatter_text(
    name: str, region: ScatterRegion, function: Function, sizes: Sizes, parameters: CudaParameters
) -> tuple[list[str], list[str]]:
    """Return the kernel of a scatter, and the statements that launch it."""
    nest = nest_of(region, loops_of(region.scattered.value), sizes.names)
    printer = Printer(nest, function.pointers, function.storage, on_gpu(near=function.near))
    scratch = tuple(c_name(b) for b in function.scratch)
    kernel = CudaScatter(nest, printer, {}, parameters=parameters, constants=sizes.constants, scratch=scratch)
    printed, launched = kernel.text(name, function)
    text, launch = printed.lines(), launched(name)
    total = kernel.total(nest.outer)
    if wide := WideScatter.found(region, function, sizes, parameters):
        rows, launched = wide.text(f"{name}_wide", function)
        text += rows.lines()
        other = launched(f"{name}_wide")
        launch = [f"if ({wide.condition(f'{name}_wide')}) {{", *indent(other), "} else {", *indent(launch), "}"]
    dtype = function.specs[region.scattered.buffer].dtype
    batches = kernel.batches() if dtype in NEAR else None
    if batches is not None:
        near, arguments = kernel.near_text(f"{name}_near", function, batches)
        text += near
        launch = kernel.near_launch(f"{name}_near", arguments, batches, launch)
    return text, [f"if ({total}) {{", *indent(launch), "}"]
