"""Scatters in CUDA: a thread for each element, which joins what stands at its place by an atomic operation.

Comes in: a ScatterRegion of a Function. Goes out: its kernel and its launch. Floating sums of elements that share a
place are not in one order, as in PyTorch; of elements that are set there any may stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.own_text import inside, nest_of
from rag_kernels.offline.codegen.reduction_texts import C
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import ScatterRegion, loops_of
from rag_kernels.offline.ir.parameters import c_name
from rag_kernels.offline.ir.reductions import Kind

JOINS = {Kind.SUM: "join_sum({at}, {v});", None: "*({at}) = {v};"}
JOINS |= {kind: f"join_by<{C[kind].functor}>({{at}}, {{v}});" for kind in (Kind.PROD, Kind.MAX, Kind.MIN)}


@dataclass(slots=True)
class CudaScatter(CudaRegion):
    """Prints one scatter as a kernel."""

    def point(self) -> list[str]:
        """Return one element of the scatter a thread."""
        region = self.nest.region
        assert isinstance(region, ScatterRegion)
        scattered = region.scattered
        scope = Scope()
        conditions = inside(self.printer, region, scope, frozenset())
        place = self.printer.at(self.nest.stores[scattered.buffer], scope)
        head = [
            "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(self.nest.outer)}) return;",
            *self.indices(self.nest.outer, "t"),
            *scope.lines,
            *([f"if (!({' && '.join(conditions)})) return;"] if conditions else []),
        ]
        element = Scope(scope)
        value = self.printer.emit(scattered.value, element)
        at = f"{self.printer.pointers[scattered.buffer]} + ({place})"
        return [*head, *element.lines, JOINS[scattered.kind].format(at=at, v=value)]


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
    return text, [f"if ({total}) {{", *("  " + line for line in launch), "}"]
