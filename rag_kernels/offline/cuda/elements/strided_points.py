"""CUDA for pointwise regions that read every second to fourth element (pixels of colours, pairs, `x[..., ::2]`).

Comes in: a point region, some of whose loads lie a few elements apart along the innermost loop. Goes out: a second
kernel whose threads load whole pixels by vectors, from which each element takes its own, and the C condition under
which it may run. Loads and stores side by side are those of `vectorized.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access, Poly, plus, text_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.found_vectors import find_quads, width_of
from rag_kernels.offline.cuda.elements.neighbours import others, value_of
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE

STEPS = (2, 3, 4)  # elements from one to the next
VECTOR_BYTES = 16


@dataclass(slots=True)
class StridedPoints(VectorizedRegion):
    """Prints a kernel whose threads take whole pixels together; `picks` has which element of one a load is."""

    picks: dict[str, str] = field(default_factory=dict)  # text of a scalar load -> the element of a vector
    pixels: dict[tuple[str, str], str] = field(default_factory=dict)  # buffer, and where in it -> name
    checks: dict[str, None] = field(default_factory=dict)  # of sizes, as C

    def find(self) -> bool:
        """Record what is read by whole pixels, and return whether there is any and all stores are vectors."""
        nest = self.nest
        if nest.schedule != "point" or nest.lane is None:
            return False
        self.width = width_of(self)
        if not find_quads(self) or self.targets.keys() != nest.stores.keys():
            return False
        for v in ir.walk(*self.values):
            if isinstance(v, ir.Load) and v.storage in ITEMSIZE.keys() - {"bool"} and v.dtype != "bool":
                self.take(v, nest.accesses[v])
        return bool(self.picks)

    def take(self, value: ir.Load, access: Access) -> None:
        """Record a load of one element of a pixel, where vectors of whole pixels are aligned."""
        assert self.axis
        nest, leaf, size = self.nest, self.axis.leaves[-1], ITEMSIZE[value.storage]
        text = f"{self.printer.pointers[value.buffer]}[{nest.offset(access)}]"
        step, place = int(access.stride(leaf)), access.constant.get((), 0)
        rest = plus(access.constant, {(): -place})
        aligned = not self.width * size % VECTOR_BYTES and not value_of(rest, nest) % self.width
        aligned &= all(access.stride(loop.leaves[-1]) % self.width == 0 for loop in others(self.axis, nest))
        if text in self.loads or access.values or step not in STEPS or not 0 <= place < step or not aligned:
            return
        if not self.lies_inside(value, access.steps[leaf], step):
            return
        address = replace(access, constant=rest)
        where = value.buffer, nest.offset(address)
        if where not in self.pixels:
            name = self.name_of(value.buffer, address)
            self.vectors[name] = replace(self.vectors[name], count=self.width * step)
            self.pixels[where] = name
        name = self.pixels[where]
        self.loads[text] = name
        self.picks[text] = self.element_in(name, f"{step} * u + {place}")

    def lies_inside(self, value: ir.Load, step: Poly, number: int) -> bool:
        """Return whether all elements of the last pixel lie in the tensor, and record what that asks of sizes."""
        assert self.axis
        last = value.index[-1]
        if set(step) != {()}:  # sizes: of the dimensions behind this one, which are the pixel
            self.checks[f"{text_of(step)} == {number}"] = None
            return len(step) == 1 and next(iter(step.values())) == 1
        if not isinstance(last, ir.Form) or {a for atom, _ in last.terms for a in atom.leaves()} != {*self.axis.leaves}:
            return False
        row = self.nest.names.product(value.stored[-1])
        self.checks[f"{row} >= {number} * {self.total([self.axis])}"] = None
        return len(self.axis.leaves) == 1 and ir.size_of(value.stored[-1]) >= number * self.axis.count

    def open_inner(self, scope: Scope) -> Scope:
        inner = VectorizedRegion.open_inner(self, scope)
        inner.known.update(self.picks)
        return inner

    def condition(self, name: str) -> str:
        return " && ".join([*self.checks, VectorizedRegion.condition(self, name)])


def strided_points(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters
) -> StridedPoints | None:
    """Return the kernel that loads whole pixels, if the region reads elements of such."""
    found = StridedPoints.of(region, function, sizes, parameters)
    return found if parameters.vector > 1 and found.find() else None
