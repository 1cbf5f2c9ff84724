"""Scatters of rows: a thread takes neighbouring elements, which join neighbours in memory.

Comes in: a ScatterRegion of a Function. Goes out: its kernel, where the last loop runs along rows of the base and no
index depends on it (messages of a graph, tokens of an expert, rows of an embedding's gradient). On Hopper four floats
join by one atomic operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop, Nest, text_of
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.own_text import inside, nest_of
from rag_kernels.offline.codegen.reduction_texts import C
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.elements.found_vectors import find_quads, width_of
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.loops import loops_of
from rag_kernels.offline.fusion.regions import ScatterRegion
from rag_kernels.offline.ir.parameters import c_name
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.steps import Scattered


@dataclass(slots=True)
class WideScatter(VectorizedRegion):
    """Prints one scatter as a kernel that takes vectors along its last loop."""

    @classmethod
    def found(cls, region: ScatterRegion, function: Function, sizes: Sizes, parameters: CudaParameters) -> Self | None:
        """Return the kernel of a scatter, or None where it has no rows that vectors fit."""
        nest = with_lane(nest_of(region, loops_of(region.scattered.value), sizes.names))
        if parameters.vector == 1 or nest is None or not nest.outer or region.also:
            return None
        printer = Printer(nest, function.pointers, function.storage, on_gpu(near=function.near))
        scratch = tuple(c_name(b) for b in function.scratch)
        made = cls(nest, printer, {}, parameters=parameters, constants=sizes.constants, scratch=scratch)
        made.width = width_of(made)
        return made if find_quads(made) and region.scattered.buffer in made.targets else None

    @property
    def scattered(self) -> Scattered:
        region = self.nest.region
        assert isinstance(region, ScatterRegion)
        return region.scattered

    def point(self) -> list[str]:
        """Return the elements of a vector a thread."""
        scattered = self.scattered
        loops, task = [*self.nest.outer, self.quad], Scope()
        conditions = inside(self.printer, scattered, task, frozenset())
        outside = [f"if (!({' && '.join(conditions)})) return;"] if conditions else []
        task.lines += outside
        self.begin(task)
        self.settle_lane(task)
        target = self.targets[scattered.buffer]
        places = self.nest.stores[scattered.buffer].values
        steps = [f"{self.printer.emit(index, task)} * ({text_of(stride)})" for index, stride in places]
        self.addresses[target] = " + ".join([self.addresses[target], *steps])
        scope = self.open_inner(task)
        text = self.printer.emit(scattered.value, scope)
        store = self.put_element(target, text)
        lines = [*task.lines, *self.quad_lines([*scope.lines, store])]
        head = [
            "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(loops)}) return;",
        ]
        return [*head, *self.indices(loops, "t"), *lines]

    def put(self, name: str) -> str:
        kind = self.scattered.kind
        if kind is None:
            return VectorizedRegion.put(self, name)
        joins = {Kind.SUM: "join_sums", Kind.MAX: "join_extremes<true>", Kind.MIN: "join_extremes<false>"}
        join = joins.get(kind) or f"join_all<{C[kind].functor}>"
        return f"{join}({self.addresses[name]}, {name});"


def with_lane(nest: Nest) -> Nest | None:
    """Return the loops of a scatter with the last one as its lane."""
    if not nest.outer:
        return None
    last = nest.outer[-1]
    lane = Loop(last.leaves, "l", last.size, last.count)
    return Nest(nest.region, "point", nest.outer[:-1], [], lane, nest.names, nest.accesses, nest.stores)
