"""CUDA for pointwise regions that read at computed places (interpolation, sampling): a thread takes several images.

Comes in: a point region whose places and weights do not depend on one of its outer loops. Goes out: a second kernel
whose threads compute them once for several steps of that loop, and the C condition under which it may run. Loads and
stores are those of `vectorized.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.found_vectors import find_quads, narrowest
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator

# Of the loop that a thread takes: 22.0 us, 26.7 with four (images of 64 x 64 twice as large, an H200).
STEPS = (8, 4, 2)
STORED_BYTES = 8  # at once: lanes that lie further apart would read from more cache lines with each load
LEAST_OPERATORS = 6  # that a thread spares with each further step
FULL = 1 << 17  # threads that keep a device busy


@dataclass(slots=True)
class SteppedPoints(VectorizedRegion):
    """Prints a kernel whose threads take `many` steps of `along`, each with a vector of the lane."""

    packs: bool = False
    along: Loop | None = None
    many: int = 1
    steady: set[str] = field(default_factory=set)  # vectors that are the same for all steps

    def find(self) -> bool:
        """Settle which loop a thread steps along, and return whether that spares it enough."""
        nest = self.nest
        if nest.schedule != "point" or nest.lane is None:
            return False
        places = [index for access in nest.accesses.values() for index, _ in access.values]
        if any(isinstance(v, ir.Load) for v in ir.walk(*places)):
            return False  # anywhere: threads wait for what they read there, and more of them wait at once
        free = [loop for loop in nest.outer if places and not self.reaches(places, loop)]
        self.along = max(free, key=self.spared, default=None)
        if self.along is None or self.spared(self.along) < LEAST_OPERATORS:
            return False
        self.width = max(2, STORED_BYTES // narrowest(self, nest.lane))
        threads = count_of([*nest.outer, nest.lane]) // self.width
        self.many = next((n for n in STEPS if self.along.count % n == 0 and threads // n >= FULL), 1)
        if self.many == 1 or not find_quads(self) or self.targets.keys() != nest.stores.keys():
            return False
        self.steady = {*self.loads.values(), *self.gathered.values()}
        for value in ir.walk(*nest.region.stores.values()):
            if isinstance(value, ir.Load) and self.reaches([value], self.along):
                self.steady -= {self.names.get(value, "")}
        return True

    @staticmethod
    def reaches(values: list[ir.Value], loop: Loop) -> bool:
        """Return whether any of these values depends on the loop."""
        return any(ir.tree_atoms(value) & set(loop.leaves) for value in values)

    def spared(self, loop: Loop) -> int:
        """Return how many operators do not depend on the loop, but on the lane."""
        assert self.nest.lane
        lane, steps = set(self.nest.lane.leaves), set(loop.leaves)
        found = [v for v in ir.walk(*self.values) if isinstance(v, ir.Op) and v.operator is not Operator.SAME]
        return sum(bool(atoms & lane) and not atoms & steps for atoms in map(ir.tree_atoms, found))

    @property
    def walked(self) -> list[Loop]:
        """Return the loops that threads are spread over."""
        assert self.along
        groups = replace(self.along, var=f"{self.along.var}_group", size=f"({self.along.size} / {self.many})")
        return [*(groups if loop is self.along else loop for loop in self.nest.outer), self.quad]

    def condition(self, name: str) -> str:
        assert self.along
        return f"{self.total([self.along])} % {self.many} == 0 && {VectorizedRegion.condition(self, name)}"

    def place_of(self, name: str) -> str:
        return name if name in self.steady else f"{name}[step]"

    def spare(self, scope: Scope, but: set[ir.Atom]) -> None:
        """Compute in this scope what depends on none of these loops."""
        seen = set[ir.Value]()

        def visit(value: ir.Value) -> None:
            if value in seen or isinstance(value, ir.Const | ir.Size):
                return
            seen.add(value)
            if not ir.tree_atoms(value) & but:
                self.printer.emit(value, scope)
                return
            for child in ir.children(value):
                visit(child)

        for value in self.values:
            visit(value)

    def point(self) -> list[str]:
        assert self.along and self.nest.lane
        steps, lane = set(self.along.leaves), set(self.nest.lane.leaves)
        task = Scope()
        self.spare(task, steps | lane)
        self.begin(task)
        column = self.open_inner(task)
        self.spare(column, steps)
        inner = Scope(column)
        stores = [line for buffer in self.stores for line in self.store(buffer, inner)]
        read, made = self.in_order(self.read - self.steady), list(self.targets.values())
        once = sorted(self.read & self.steady)
        types = {name: vector.type for name, vector in self.vectors.items()}
        loads = [f"{n}[step] = {self.load(n)};" for n in read]
        puts = [f"*reinterpret_cast<{types[n]}*>({self.addresses[n]}) = {n}[step];" for n in made]
        return [
            "const int64_t number = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (number >= {self.total(self.walked)}) return;",
            *self.indices(self.walked, "number"),
            *task.lines,
            *(f"const {types[n]} {n} = {self.load(n)};" for n in once),
            *(f"{types[n]} {n}[{self.many}];" for n in dict.fromkeys([*read, *made])),
            *(self.each_step(loads, read) if loads else []),
            *self.each([*column.lines, *self.each_step([*inner.lines, *stores], [])]),
            *self.each_step(puts, made),
        ]

    def each_step(self, lines: list[str], vectors: list[str]) -> list[str]:
        """Return the lines for each step of a thread, which load or store these vectors."""
        assert self.along
        head = [f"const int64_t {self.along.var} = {self.many} * {self.along.var}_group + step;"]
        if self.numbered & set(vectors):
            head.append(f"const int64_t t = {self.flat([*self.nest.outer, self.quad])};")
        return [
            "#pragma unroll",
            f"for (int step = 0; step < {self.many}; ++step) {{",
            *indent([*head, *lines]),
            "}",
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        return self.one_thread_each(self.walked, name, arguments)


def stepped_points(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters
) -> SteppedPoints | None:
    """Return the kernel that computes places once for several steps of a loop, if the region has such places."""
    found = SteppedPoints.of(region, function, sizes, parameters)
    return found if parameters.vector > 1 and found.find() else None
