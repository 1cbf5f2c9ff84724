"""CUDA for short rows whose elements are read across what is stored (a layer norm over channels that are put last).

Comes in: a row region of more than one pass, all of whose rows lie side by side in what is read, and along themselves
in what is stored. Goes out: a kernel that reads columns as `kept_columns.py` does, where each thread has elements of a
column that follow each other, and stores vectors of those.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop, Nest, text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.codegen.symbols import symbols
from rag_kernels.offline.cuda.elements.kept_columns import TEAM, KeptColumns
from rag_kernels.offline.cuda.elements.neighbours import is_step, neighbours
from rag_kernels.offline.cuda.elements.vectors import Vector
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.parameters import c_name

ABREAST = (8, 4, 2)  # elements of a row that a thread stores at once
SPARE = 1.25  # places for elements of a row, at most, for each that it has


@dataclass(slots=True)
class TurnedColumns(KeptColumns):
    """Prints a kernel whose threads have `items` neighbouring elements of `width` rows each."""

    abreast: int = 1
    shared: dict[Vector, str] = field(default_factory=dict)  # what all rows read alike, and its pointer as C

    def lie_along(self) -> Loop | None:
        """Return the outer loop along which everything lies that is read of a row for itself, if there is one."""
        nest = self.nest
        outer = {leaf for loop in nest.outer for leaf in loop.leaves}
        own = [v for v in nest.accesses if self.is_inner(v) and ir.tree_atoms(v) & outer]
        plain = bool(own) and not any(nest.accesses[v].values for v in own)
        fits = (loop for loop in nest.outer if all(is_step(nest.accesses[v], loop) for v in own))
        return next(fits, None) if plain else None

    def solo(self) -> bool:
        return False  # one thread alone would store a row by itself

    def items_of(self) -> int:
        count = self.reduced_count()
        widest = max((ITEMSIZE.get(self.printer.storage[b], 8) for b in self.nest.stores), default=8)
        for self.abreast in ABREAST:
            items = -(-count // (TEAM * self.abreast)) * self.abreast
            if count % self.abreast == 0 and self.abreast * widest <= 16 and items * TEAM <= SPARE * count:
                return items
        self.abreast = 1
        return KeptColumns.items_of(self)

    @property
    def item_place(self) -> str:
        return f"part * {self.items} + j"

    def find_targets(self, inner: dict[str, ir.Value]) -> None:
        axis = self.nest.reduced[-1]
        for number, buffer in enumerate(inner):
            fits = neighbours(self.nest.stores[buffer], axis, self.nest, self.abreast)
            if self.abreast > 1 and self.printer.storage[buffer] in ITEMSIZE and fits:
                self.targets[buffer] = f"{c_name(buffer)}_v{len(self.kept_loads) + number}"
        for v, access in self.nest.accesses.items() if self.full and self.abreast > 1 else ():
            alike = access.steps.keys() <= {*axis.leaves} and not access.values
            plain = v.storage in ITEMSIZE.keys() - {"bool"} and v.dtype != "bool" and not access.constant
            if alike and plain and is_step(access, axis) and len(self.nest.reduced) == 1:
                self.share(v, self.nest.offset(access))

    def share(self, value: ir.Load, place: str) -> None:
        """Take the elements of a tensor that all rows read out of vectors."""
        text = f"{self.printer.pointers[value.buffer]}[{place}]"
        name = f"{c_name(value.buffer)}_s{len(self.shared)}"
        vector = Vector(name, value.buffer, stored_type(value.storage, "cuda"), self.abreast)
        if text not in self.known_loads:
            self.known_loads[text] = vector.element("e")
            self.shared[vector] = self.printer.pointers[value.buffer]

    @property
    def full(self) -> bool:
        """Return whether all threads of a row have as many elements of it."""
        return self.items * TEAM == self.reduced_count()

    def each_item(self, lines: list[str]) -> list[str]:
        if not self.full:
            return KeptColumns.each_item(self, lines)
        return self.each_group(self.each_of_group(lines), lines)

    def each_group(self, body: list[str], using: list[str]) -> list[str]:
        """Return the lines for each of a thread's vectors of elements, with what all rows read alike that they use."""
        named = symbols(using)
        loads = [
            f"const {v.type} {v.name} = *reinterpret_cast<const {v.type}*>({pointer} + {self.first_of_group});"
            for v, pointer in self.shared.items()
            if v.name in named
        ]
        return [
            "#pragma unroll",
            f"for (int g = 0; g < {self.items // self.abreast}; ++g) {{",
            *indent([*loads, *body]),
            "}",
        ]

    @property
    def first_of_group(self) -> str:
        """Return which element of a row begins a vector, as C."""
        return f"part * {self.items} + g * {self.abreast}"

    def each_of_group(self, lines: list[str]) -> list[str]:
        """Return the lines for each element of a vector."""
        place = [f"const int j = g * {self.abreast} + e;", f"const int64_t k = {self.item_place};"]
        inside = [*place, *self.indices(self.nest.reduced, "k"), *lines]
        return ["#pragma unroll", f"for (int e = 0; e < {self.abreast}; ++e) {{", *indent(inside), "}"]

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        nest, asked = self.nest, [f"{self.total(self.nest.reduced)} % {self.abreast} == 0"]
        for buffer in self.targets:
            access, axis = nest.stores[buffer], nest.reduced[-1]
            loops = [x for x in (*nest.outer, nest.lane, *nest.reduced) if x and x is not axis]
            steps = [access.steps.get(loop.leaves[-1], {}) for loop in loops]
            asked += [f"({text_of(step)}) % {self.abreast} == 0" for step in [*steps, access.constant] if any(step)]
        loaded = [(v.buffer, nest.accesses[v]) for _, v in self.kept_loads.values()]
        assert nest.lane
        checks = [
            f"({nest.lane.size}) % {self.width} == 0",
            *(c for _, access in loaded for c in self.steps_of(access)),
        ]
        short = f"{self.total(nest.reduced)} {'==' if self.full else '<='} {self.items * TEAM}"
        aligned = self.aligned([*(b for b, _ in loaded), *self.targets, *(v.buffer for v in self.shared)])
        return " && ".join(dict.fromkeys([short, *checks, *asked, aligned]))

    def store(self, buffer: str, scope: Scope) -> list[str]:
        if buffer not in self.targets:
            return CudaRegion.store(self, buffer, scope)
        return [f"{self.targets[buffer]}.x[e] = {self.printer.emit_stored(buffer, self.stores[buffer], scope)};"]

    def storing_pass(self, lines: list[str]) -> list[str]:
        puts = [
            f"const int64_t k = {self.first_of_group};",
            *self.indices(self.nest.reduced, "k"),
            *map(self.put, self.targets),
        ]
        vectors = [f"{self.vector_of(b)} {name};" for b, name in self.targets.items()]
        body = self.each_column([*vectors, *self.each_of_group(lines), "{", *indent(puts), "}"])
        within = f" && {self.first_of_group} < {self.total(self.nest.reduced)}"
        return self.each_group([f"if (active{'' if self.full else within}) {{", *indent(body), "}"], lines)

    def vector_of(self, buffer: str) -> str:
        """Return the C type of what is stored at once."""
        return f"Pack<{stored_type(self.printer.storage[buffer], 'cuda')}, {self.abreast}>"

    def put(self, buffer: str) -> str:
        kind, place = self.vector_of(buffer), self.nest.offset(self.nest.stores[buffer])
        return f"*reinterpret_cast<{kind}*>(&{self.printer.pointers[buffer]}[{place}]) = {self.targets[buffer]};"


def as_columns(nest: Nest, lane: Loop) -> Nest:
    """Return a nest of rows as one of columns, which lie side by side along an outer loop."""
    return replace(nest, schedule="column", lane=lane, outer=[loop for loop in nest.outer if loop is not lane])


def turned_columns(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters
) -> TurnedColumns | None:
    """Return the kernel that reads short rows as columns, if the region goes over such more than once."""
    found = TurnedColumns.of(region, function, sizes, parameters)
    lane = found.lie_along() if parameters.vector > 1 and found.nest.schedule == "row" else None
    if lane is None:
        return None
    found.nest = found.printer.nest = as_columns(found.nest, lane)
    return found if found.find() else None
