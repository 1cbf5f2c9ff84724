"""CUDA for many short rows of a length that no vector divides: a thread has a row, a block brings its rows together.

Comes in: a region of rows of a few elements (logits of 18 actions, of 21 classes). Goes out: a kernel in which a block
copies the rows of its threads to shared memory side by side, each thread reduces its own without a word to others, and
what is stored along rows leaves side by side again; and the C condition under which it may run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import stored_type, widened
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.parameters import c_name

ROWS = 128  # of a block, one a thread
SHORTEST, LONGEST = 3, 48  # elements of a row
LEAST_ROWS = 1 << 14  # that give every processor several blocks
MOST_BYTES = 40 << 10  # of shared memory
UNROLLED = 32  # elements of a row whose loop is unrolled as a whole


@dataclass(slots=True)
class StagedRows(CudaRegion):
    """Prints a kernel whose threads have a row each; rows lie in shared memory, those that are read as floats."""

    brought: dict[str, tuple[str, str]] = field(default_factory=dict)  # text of a load -> array, element of its tensor
    taken: dict[str, str] = field(default_factory=dict)  # buffer that is stored along rows -> array

    @property
    def place(self) -> str:
        """Return where an element of a thread's row lies in an array, as C."""
        at = "0"
        for loop in self.nest.reduced:
            at = loop.var if at == "0" else f"({at}) * {loop.count} + {loop.var}"
        return f"threadIdx.x * {self.reduced_count()} + {at}"

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        return " && ".join(f"{loop.size} == {loop.count}" for loop in self.nest.reduced)

    def find(self) -> bool:
        """Record what is read and stored along rows, and return whether all of that lies row behind row."""
        nest = self.nest
        if nest.schedule != "row" or self.has_scan() or not self.top or count_of(nest.outer) < LEAST_ROWS:
            return False
        if not SHORTEST <= self.reduced_count() <= LONGEST:
            return False
        outer = {leaf for loop in nest.outer for leaf in loop.leaves}
        for v in ir.walk(*self.values):
            if not isinstance(v, ir.Load) or not self.is_inner(v) or not ir.tree_atoms(v) & outer:
                continue
            access, pointer = nest.accesses[v], self.printer.pointers[v.buffer]
            if v.dtype != "float32" or not self.is_plain(access):
                return False
            name = f"{c_name(v.buffer)}_rows"
            self.brought[f"{pointer}[{nest.offset(access)}]"] = name, widened(f"{pointer}[begun + at]", v.storage)
        for buffer in self.inner_stores():
            if self.printer.storage[buffer] not in ITEMSIZE or not self.is_plain(nest.stores[buffer]):
                return False
            self.taken[buffer] = f"{c_name(buffer)}_out"
        self.known_loads = {text: f"{name}[{self.place}]" for text, (name, _) in self.brought.items()}
        sizes = [4] * len(self.brought) + [ITEMSIZE[self.printer.storage[b]] for b in self.taken]
        return bool(self.brought) and ROWS * self.reduced_count() * sum(sizes) <= MOST_BYTES

    def is_plain(self, access: Access) -> bool:
        """Return whether elements lie row behind row, from the first on."""
        nest = self.nest
        return not access.values and not access.constant and nest.is_dense(access, [*nest.outer, *nest.reduced])

    def row(self) -> list[str]:
        """Return the body: rows are brought, each thread reduces its own, and what was made of them is stored."""
        outer, size = self.total(self.nest.outer), self.reduced_count()
        arrays = {name: "float" for name, _ in self.brought.values()}
        arrays |= {name: stored_type(self.printer.storage[b], "cuda") for b, name in self.taken.items()}
        loads = [f"{name}[at] = {element};" for name, element in dict(self.brought.values()).items()]
        stores = [f"{self.printer.pointers[b]}[begun + at] = {name}[at];" for b, name in self.taken.items()]
        body = ["const int64_t t = first + threadIdx.x;", *self.indices(self.nest.outer, "t")]
        return [
            *(f"__shared__ {ctype} {name}[{ROWS * size}];" for name, ctype in arrays.items()),
            f"const int64_t first = int64_t(blockIdx.x) * {ROWS}, begun = first * {size};",
            f"const int here = {outer} - first < {ROWS} ? int({outer} - first) : {ROWS};",
            *self.side_by_side(loads),
            "__syncthreads();",
            "if (int(threadIdx.x) < here) {",
            *indent([*body, *self.passes("row", "true", "true")]),
            "}",
            *(["__syncthreads();", *self.side_by_side(stores)] if stores else []),
        ]

    def side_by_side(self, lines: list[str]) -> list[str]:
        """Return the loop in which neighbouring threads take neighbouring elements of the block's rows."""
        size = self.reduced_count()
        inside = [f"const int at = e * {ROWS} + threadIdx.x;", f"if (at < here * {size}) {{", *indent(lines), "}"]
        return ["#pragma unroll", f"for (int e = 0; e < {size}; ++e) {{", *indent(inside), "}"]

    def pass_loop(self, body: list[str], tail: list[str], kind: str, active: str, scanning: bool) -> list[str]:
        """Return a thread's loop over its row."""
        lines = [*body, *tail]
        for loop in reversed(self.nest.reduced):
            head = f"for (int {loop.var} = 0; {loop.var} < {loop.count}; ++{loop.var}) {{"
            unroll = "#pragma unroll" if self.reduced_count() <= UNROLLED else "#pragma unroll 8"
            lines = [unroll, head, *indent(lines), "}"]
        return lines

    def join(self, found: list[tuple[str, str, str]], kind: str) -> list[str]:
        """Return nothing: a thread has all of its row."""
        return []

    def loads_ahead(self, found: list[ir.Reduce], kind: str) -> bool:
        return False

    def store(self, buffer: str, scope: Scope) -> list[str]:
        if buffer not in self.taken:
            return CudaRegion.store(self, buffer, scope)
        text = self.printer.emit_stored(buffer, self.stores[buffer], scope)
        return [f"{self.taken[buffer]}[{self.place}] = {text};"]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        outer = self.total(self.nest.outer)
        return [
            f"{name}<<<blocks((small({outer}) + {ROWS - 1}) / {ROWS}), {ROWS}, 0, stream>>>({', '.join(arguments)});"
        ]


def staged_rows(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> StagedRows | None:
    """Return the kernel of a region of many short rows, or None for others."""
    if parameters.vector == 1:
        return None
    found = StagedRows.of(region, function, sizes, parameters)
    return found if found.find() else None
