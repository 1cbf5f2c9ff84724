"""CUDA for long rows of any length: vectors lie where sixteen bytes begin in memory.

Comes in: a row region whose tensors lie alike, row behind row, in rows that are no multiple of a vector (a vocabulary
of 50257). Goes out: a second kernel for it, and the C condition under which it may run. A row's first and last vector
may have elements of other rows, or of none: two lanes take them, an element at a time. What does not lie so, such as
weights that all rows share, is read an element at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access, Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.elements.found_vectors import narrowest
from rag_kernels.offline.cuda.elements.neighbours import MOST_WIDTH, axis_of, is_step
from rag_kernels.offline.cuda.elements.vectorized import KEPT, MOST_THREADS, Taken, VectorizedRegion
from rag_kernels.offline.cuda.elements.vectors import Vector
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.parameters import c_name

LONG = 128  # vectors of a row at least


@dataclass(slots=True)
class OddRows(VectorizedRegion):
    """Prints a kernel whose vectors begin at multiples of their size; `start` is where a row begins, in elements."""

    start: str = ""

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        assert self.axis
        return f"{self.axis.size} >= {LONG * self.width} && {self.aligned(v.buffer for v in self.vectors.values())}"

    def name_of(self, buffer: str, access: Access) -> str:
        name = f"{c_name(buffer)}_v{len(self.addresses) or ''}"
        self.vectors[name] = Vector(name, buffer, stored_type(self.printer.storage[buffer], "cuda"), self.width)
        self.addresses[name] = f"{self.printer.pointers[buffer]} + {self.start} + ({self.width} * k - before)"
        return name

    @property
    def element(self) -> str:
        return f"{self.width} * {self.quad.var} + u - before"

    @property
    def quads(self) -> str:
        return "quads"

    @property
    def template(self) -> str:
        return ""

    @property
    def bounds(self) -> str:
        return f"__launch_bounds__({MOST_THREADS}, 2) "

    def row(self) -> list[str]:
        return CudaRegion.row(self)

    def passes(self, kind: str, active: str, first: str) -> list[str]:
        assert self.axis
        return [
            f"const int64_t before = ({self.start}) % {self.width};  // of its first vector, not the row's",
            f"const int64_t quads = (before + {self.axis.size} + {self.width - 1}) / {self.width};",
            *CudaRegion.passes(self, kind, active, first),
        ]

    def declared(self, taken: Taken) -> list[str]:
        fill = f"for (int u = 0; u < {self.width}; ++u) {taken.name}[u] = {taken.start};"
        return [*VectorizedRegion.declared(self, taken), "#pragma unroll", fill]

    def each(self, lines: list[str]) -> list[str]:
        assert self.axis
        inside = f"if (!edge || ({self.axis.var} >= 0 && {self.axis.var} < {self.axis.size})) {{"
        return VectorizedRegion.each(self, [inside, *indent(lines), "}"])

    @property
    def part(self) -> str:
        """Return from which element of a vector to which the row goes, as C."""
        assert self.axis
        return f"before - {self.width} * k, before + {self.axis.size} - {self.width} * k"

    def load(self, name: str) -> str:
        vector = self.vectors[name]
        whole = VectorizedRegion.load(self, name)
        return f"edge ? part_of<{vector.ctype}, {vector.count}>({self.addresses[name]}, {self.part}) : {whole}"

    def put(self, name: str) -> str:
        whole = VectorizedRegion.put(self, name)
        return f"if (edge) put_part_of({self.addresses[name]}, {self.as_stored(name)}, {self.part}); else {whole}"

    def pass_loop(self, body: list[str], tail: list[str], kind: str, active: str, scanning: bool) -> list[str]:
        number = self.printer.name("sweep")
        lines = [*self.indices([self.quad], "k"), *self.quad_lines([*body, *tail])]
        return [
            f"auto {number} = [&](int64_t k, bool edge) {{",
            *indent(lines),
            "};",
            f"if (threadIdx.x < 2 && (threadIdx.x == 0 || quads > 1)) {number}(threadIdx.x ? quads - 1 : 0, true);",
            *self.walk("quads - 2", "x", [f"{number}(k + 1, false);"]),
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        assert self.axis
        outer = self.total(self.nest.outer)
        quads = f"small({self.axis.size}) / {self.width}"
        return [
            f"const int64_t quads = {quads};",
            f"const bool longest = quads > {KEPT * MOST_THREADS};",
            f"const dim3 wanted = longest ? dim3({MOST_THREADS}, 1) : quad_block(quads, {outer});",
            f"const dim3 block = fitted<{name}>(wanted);",
            f"{name}<<<blocks((small({outer}) + block.y - 1) / block.y), block, 0, stream>>>({', '.join(arguments)});",
        ]


def odd_rows(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> OddRows | None:
    """Return the kernel of a region of long rows of an odd length, or None for others."""
    found = OddRows.of(region, function, sizes, parameters)
    axis = axis_of(found.nest)
    if parameters.vector == 1 or found.nest.schedule != "row" or found.has_scan() or axis is None:
        return None
    found.width = min(MOST_WIDTH, 16 // narrowest(found, axis))
    if len(found.nest.reduced) > 1 or axis.count < LONG * found.width:
        return None
    found.axis = axis
    return found if find_rows(found, axis) else None


def find_rows(found: OddRows, axis: Loop) -> bool:
    """Record the loads and stores of rows that lie alike, those of most bytes, and return whether there are any."""
    nest, storage = found.nest, found.printer.storage
    places = dict[str, int]()
    stores = {b: a for b, a in nest.stores.items() if storage[b] in ITEMSIZE and is_row(found, a, axis)}
    loads = [
        v
        for v in ir.walk(*nest.region.stores.values())
        if isinstance(v, ir.Load) and v.storage in ITEMSIZE.keys() - {"bool"} and is_row(found, nest.accesses[v], axis)
    ]
    for buffer, access in [*stores.items(), *((v.buffer, nest.accesses[v]) for v in loads)]:
        place = start_of_row(found, access)
        places[place] = places.get(place, 0) + ITEMSIZE[storage[buffer]]
    if not places:
        return False
    found.start = max(places, key=lambda place: places[place])
    for buffer, access in stores.items():
        if start_of_row(found, access) == found.start:
            found.targets[buffer] = found.name_of(buffer, access)
    for v in loads:
        if start_of_row(found, nest.accesses[v]) == found.start:
            text = f"{found.printer.pointers[v.buffer]}[{nest.offset(nest.accesses[v])}]"
            found.loads.setdefault(text, "")
            found.loads[text] = found.loads[text] or found.name_of(v.buffer, nest.accesses[v])
            found.names[v] = found.loads[text]
    return True


def is_row(found: OddRows, access: Access, axis: Loop) -> bool:
    """Return whether neighbours along the axis are neighbours in memory, in rows of the tensor's own."""
    return is_step(access, axis) and not access.values and bool(start_of_row(found, access)) and not access.constant


def start_of_row(found: OddRows, access: Access) -> str:
    """Return where a row begins in its tensor, in elements, as C; nothing for one that all rows share."""
    return " + ".join(found.nest.terms(access, found.nest.outer))
