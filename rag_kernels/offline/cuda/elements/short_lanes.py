"""CUDA for pointwise regions whose innermost dimension is short: pairs of rotated numbers, real and imaginary parts.

Comes in: a point region whose lane has two or three elements, too few for a vector. Goes out: a second kernel in which
a thread takes several whole lanes with one store, and the C condition under which it may run. What is read lies either
lane by lane (`x[..., 0]` beside `x[..., 1]`, or both), or has one element for each lane (an angle); other loads stay as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access, Loop, text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.vectors import Vector
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.parameters import c_name

LANES = (2, 3)
VECTOR_BYTES = 16


@dataclass(slots=True)
class ShortLanes(CudaRegion):
    """Prints a kernel in which a thread takes `many` lanes side by side; `axis` is the loop over lanes."""

    axis: Loop | None = None
    many: int = 1
    vectors: dict[str, Vector] = field(default_factory=dict)  # by the address of the first element
    loads: dict[str, str] = field(default_factory=dict)  # text of a scalar load -> the same element of a vector
    targets: dict[str, str] = field(default_factory=dict)  # buffer -> address
    checks: dict[str, None] = field(default_factory=dict)  # of sizes, as C

    @property
    def lane(self) -> Loop:
        """Return the loop over the elements of a lane."""
        assert self.nest.lane
        return self.nest.lane

    @property
    def walked(self) -> list[Loop]:
        """Return the loops that threads are spread over: the outer ones, and groups of lanes."""
        assert self.axis
        size, count = f"({self.axis.size} / {self.many})", self.axis.count // self.many
        return [*self.nest.outer[:-1], Loop(self.axis.leaves, f"{self.axis.var}_q", size, count)]

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        return " && ".join([*self.checks, self.aligned(vector.buffer for vector in self.vectors.values())])

    def find(self) -> bool:
        """Record what can be taken whole, and return whether all stores can."""
        if self.nest.schedule != "point" or not self.nest.outer or self.lane.count not in LANES:
            return False
        self.axis = self.nest.outer[-1]
        narrowest = min(ITEMSIZE.get(self.printer.storage[b], 0) for b in self.nest.stores)
        if not narrowest:
            return False
        self.many = max(1, VECTOR_BYTES // narrowest // (2 if self.lane.count == 2 else 1))  # of three: 48 bytes
        if self.axis.count % self.many:
            return False
        for check in (f"{self.lane.size} == {self.lane.count}", f"{self.axis.size} % {self.many} == 0"):
            self.checks[check] = None
        for buffer, access in self.nest.stores.items():
            if self.layout(buffer, access) != "lanes" or access.constant:
                return False
            self.targets[buffer] = self.vector(buffer, access, self.many * self.lane.count)
        for v in ir.walk(*self.nest.region.stores.values()):
            if isinstance(v, ir.Load) and v.storage in ITEMSIZE.keys() - {"bool"}:
                self.take(v)
        return True

    def take(self, value: ir.Load) -> None:
        """Record a load that lies lane by lane or has one element for each lane."""
        access = self.nest.accesses[value]
        layout = self.layout(value.buffer, access)
        if layout == "neither":
            return
        assert self.axis
        within = access.constant.get((), 0)
        element = self.axis_element
        if layout == "lanes":
            stride = access.stride(self.lane.leaves[-1])
            element = f"{self.lane.count} * {element}" + (f" + {self.lane.var}" if stride else "")
            element += f" + {within}" if within else ""
        address = self.vector(value.buffer, access, self.many * (self.lane.count if layout == "lanes" else 1))
        text = f"{self.printer.pointers[value.buffer]}[{self.nest.offset(access)}]"
        self.loads[text] = self.vectors[address].element(element)

    @property
    def axis_element(self) -> str:
        """Return the number of the lane among those of the thread, as C."""
        return "u"

    def layout(self, buffer: str, access: Access) -> Literal["lanes", "one a lane", "neither"]:
        """Return how the elements of neighbouring lanes lie, at this problem's sizes."""
        assert self.axis
        step, inner = access.stride(self.axis.leaves[-1]), access.stride(self.lane.leaves[-1])
        constant, count = access.constant.get((), 0), self.lane.count
        if access.values or set(access.constant) - {()}:
            return "neither"
        if step == count and inner in (0, 1) and constant >= 0 and constant + inner * (count - 1) < count:
            found: Literal["lanes", "one a lane"] = "lanes"
        elif step == 1 and not inner and not constant:
            found = "one a lane"
        else:
            return "neither"
        width = self.aligned_to(buffer, self.many * (count if found == "lanes" else 1))
        rest = [loop for loop in self.nest.outer[:-1] if width and access.stride(loop.leaves[-1]) % width]
        return found if width and not rest else "neither"

    def aligned_to(self, buffer: str, count: int) -> int:
        """Return the number of elements to a multiple of which a vector must be aligned; 0 where it would be padded."""
        size = ITEMSIZE.get(self.printer.storage[buffer], 0)
        whole = size * count
        return 0 if not whole or (whole > VECTOR_BYTES and whole % VECTOR_BYTES) else min(whole, VECTOR_BYTES) // size

    def vector(self, buffer: str, access: Access, count: int) -> str:
        """Record a vector at the address of its first element, with the checks that it needs; return that address."""
        assert self.axis
        pointer = self.printer.pointers[buffer]
        step = text_of(access.steps[self.axis.leaves[-1]])
        factor = f"({step})" if "+" in step else step
        lanes = f"{self.many} * {self.axis.var}_q" + ("" if step == "1" else f" * {factor}")
        address = " + ".join([pointer, *self.nest.terms(access, self.nest.outer[:-1]), lanes])
        if address not in self.vectors:
            name = f"{c_name(buffer)}_v{len(self.vectors) or ''}"
            self.vectors[address] = Vector(name, buffer, stored_type(self.printer.storage[buffer], "cuda"), count)
        if step not in {"1", str(self.lane.count)}:
            self.checks[f"{factor} == {access.stride(self.axis.leaves[-1])}"] = None
        inner = access.steps.get(self.lane.leaves[-1])
        if inner and text_of(inner) != "1":
            self.checks[f"({text_of(inner)}) == 1"] = None
        width = self.aligned_to(buffer, count)
        for loop in self.nest.outer[:-1]:
            if loop.leaves[-1] in access.steps:
                self.checks[f"({text_of(access.steps[loop.leaves[-1]])}) % {width} == 0"] = None
        return address

    def store(self, buffer: str, scope: Scope) -> list[str]:
        vector = self.vectors[self.targets[buffer]]
        text = self.printer.emit_stored(buffer, self.stores[buffer], scope)
        return [f"{vector.name}.x[{self.lane.count} * {self.axis_element} + {self.lane.var}] = {text};"]

    def point(self) -> list[str]:
        assert self.axis
        made, scope = dict.fromkeys(self.targets.values()), Scope()
        scope.known |= {text: element for text, element in self.loads.items()}
        stores = [line for buffer in self.stores for line in self.store(buffer, scope)]
        each = [
            f"const int64_t {self.axis.var} = {self.many} * {self.axis.var}_q + {self.axis_element};",
            "#pragma unroll",
            f"for (int {self.lane.var} = 0; {self.lane.var} < {self.lane.count}; ++{self.lane.var}) {{",
            *indent([*scope.lines, *stores]),
            "}",
        ]
        taken = {a: v for a, v in self.vectors.items() if a not in made}
        return [
            "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(self.walked)}) return;",
            *self.indices(self.walked, "t"),
            *(f"const {v.type} {v.name} = *reinterpret_cast<const {v.type}*>({a});" for a, v in taken.items()),
            *(f"{self.vectors[a].type} {self.vectors[a].name};" for a in made),
            "#pragma unroll",
            f"for (int {self.axis_element} = 0; {self.axis_element} < {self.many}; ++{self.axis_element}) {{",
            *indent(each),
            "}",
            *(f"*reinterpret_cast<{self.vectors[a].type}*>({a}) = {self.vectors[a].name};" for a in made),
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        return self.one_thread_each(self.walked, name, arguments)


def short_lanes_region(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters
) -> ShortLanes | None:
    """Return the kernel of a region that takes short lanes whole, or None where it has none."""
    if parameters.vector == 1:
        return None
    found = ShortLanes.of(region, function, sizes, parameters)
    return found if found.nest.lane is not None and found.find() else None
