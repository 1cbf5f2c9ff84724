"""CUDA for neighbouring regions that fill slots of one buffer from the same elements (`cat([x, y, x * y])`).

Comes in: point regions of the same loops, each of which stores one slot of a buffer. Goes out: one kernel for all of
them, in which a thread fills its element of every slot, so that what several of them read is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.cuda.vectorized import VectorizedRegion, vectorized_region
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir


def together(regions: Sequence[Region]) -> list[tuple[Region, ...]]:
    """Return the regions in order, neighbours that fill slots from the same loops in one tuple."""
    return [tuple(same) for _, same in groupby(regions, key=_slots_of)]


def _slots_of(region: Region) -> tuple[object, ...]:
    """Return what regions have in common that one kernel can serve; others have nothing in common."""
    (buffer, value), *more = region.stores.items()
    reads = {v.buffer for v in ir.walk(value) if isinstance(v, ir.Load)}
    alone = more or type(region) is not Region or region.reduced or not region.slots or buffer in reads
    return (region,) if alone else (buffer, ir.leaves(region.outer))


@dataclass(frozen=True, slots=True)
class JoinedSlots:
    """The printers of several slots, of which the first stands for all."""

    parts: tuple[CudaRegion, ...]

    def text(self, name: str, function: Function) -> tuple[list[str], list[str]]:
        """Return the `__global__` function and the statements that launch it."""
        first = self.parts[0]
        points = [part.point() for part in self.parts]
        alike = [lines[0] for lines in takewhile(lambda lines: len(set(lines)) == 1, zip(*points, strict=False))]
        head = list(takewhile(lambda line: not line.startswith(("for ", "#pragma")), alike))
        rest = [line for point in points for line in ["{", *indent(point[len(head) :]), "}"]]
        body = [*head, *rest]
        parameters, arguments = first.parameters_of(body, function)
        body = [*(f"constexpr int64_t {n} = {v};" for n, v in first.constants_in(body)), *body]
        note = f"// {', '.join(first.stores)}: {len(self.parts)} slots of the same elements"
        kernel = f"__global__ void {name}({', '.join(parameters)}) {{"
        return [note, kernel, *indent(body), "}"], first.launch(name, arguments)

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        wide = [part for part in self.parts if isinstance(part, VectorizedRegion)]
        return " && ".join(dict.fromkeys(term for part in wide for term in part.condition(name).split(" && ")))


def joined_slots(
    regions: tuple[Region, ...], function: Function, sizes: Sizes, parameters: CudaParameters
) -> tuple[JoinedSlots, JoinedSlots | None]:
    """Return the kernel that takes an element at a time, and the one that takes vectors where all slots can be."""
    plain = JoinedSlots(tuple(CudaRegion.of(region, function, sizes, parameters) for region in regions))
    found = [vectorized_region(region, function, sizes, parameters) for region in regions]
    wide = [part for part in found if part]
    whole = len(wide) == len(regions) and len({part.width for part in wide}) == 1
    return plain, JoinedSlots(tuple(wide)) if whole else None
