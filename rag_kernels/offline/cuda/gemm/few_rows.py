"""Products of few rows on tensor cores: memory bounds them, so that the other factor streams through shared memory.

Comes in: a Contraction of numbers of sixteen bits with at most `MOST` rows, whose right factor has its terms side by
side: a tensor of sixteen bits, or one of eight that is dequantised on its way by whatever the factor computes; an
element may have several terms, as a byte has two of four bits. Goes out: the kernel and its launch, as in `gemm.py`,
with the condition on sizes and addresses under which it may run. A block has some columns; its warps share every piece
of the depth, and add up in the end. Pieces of both factors arrive by copies that run ahead (`cp.async`), so that memory
never waits for what is computed. A thread takes sixteen neighbouring bytes of a column: `mma.sync` may have its terms
in any order, if both factors have the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import CTYPES, stored_type
from rag_kernels.offline.codegen.contraction import Contraction
from rag_kernels.offline.codegen.loop_nest import text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.gemm.byte_pairs import BytePairs, byte_pairs, bytes_as_floats
from rag_kernels.offline.cuda.gemm.few_rows_text import BEGIN, LOOP, ORDER, TOGETHER
from rag_kernels.offline.cuda.gemm.gemm import Kernel
from rag_kernels.offline.cuda.gemm.hopper.tma_matrix import Matrix, matrix_of, matrix_read, start_of_matrix
from rag_kernels.offline.cuda.gemm.tensor_core import numbers_of
from rag_kernels.offline.cuda.kernel_text import PARTS, KernelText, Parameter
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import FLOAT8, HALF, ITEMSIZE, STORED_ONLY
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import HALVED, operands, strip

MOST, MOST_OF_BYTES = 32, 64  # rows at most, and where a term is a byte
MOST_TERMS = 32  # that a thread takes at a time
LEAST_COLUMNS, NARROW, WIDE = 33, 32, 128  # columns at least; of a block
LEAST_TERMS = 64  # of a sum: warps that share fewer have nothing to do but to add up
PROCESSORS = 132  # of the device that a block's columns are chosen for
FEW_COLUMNS = 48  # of a block of 16 warps; of more, eight have enough to do
LINE = 64  # bytes of a column in one piece of the depth, for each warp
SHARED = 227 * 1024  # bytes of a processor's blocks
BYTES = ("int8", "uint8")  # elements that become floats four at a time


@dataclass(slots=True)
class FewRowsKernel(Kernel):
    """A kernel for a product of few rows, bound by the right factor's bytes."""

    numbers: str = "bfloat16"
    left: Matrix | None = None
    right: Matrix | None = None  # of the right factor, what streams
    within: int = 0  # loops of the depth, the last ones, whose terms share an element of it
    columns: int = 64  # of a block

    def __post_init__(self) -> None:
        """Do nothing: there is one tile."""

    def note(self, needs: Needs) -> None:
        needs.tiles = True
        needs.few.add(self.numbers)

    @property
    def warps(self) -> int:
        """Return the warps of a block."""
        return 16 if self.columns <= FEW_COLUMNS and self.rows == 16 and self.packed == 1 else 8

    @property
    def itemsize(self) -> int:
        """Return the bytes of what streams."""
        assert self.right
        return ITEMSIZE[self.right.load.storage]

    @property
    def packed(self) -> int:
        """Return the terms of an element of what streams."""
        depth = self.contraction.depth
        return self.contraction.count(depth[len(depth) - self.within :])

    @property
    def each(self) -> int:
        """Return the terms that a thread takes at a time."""
        return 16 // self.itemsize * self.packed

    @property
    def depth(self) -> int:
        """Return the terms of a piece."""
        return LINE * self.warps // self.itemsize * self.packed

    @property
    def rows(self) -> int:
        """Return the rows of a block: those of one to four tensor core products."""
        return -(-self.contraction.count(self.contraction.rows) // 16) * 16

    @property
    def lines(self) -> tuple[int, int]:
        """Return the bytes from one line to the next, of both factors: what eight lanes read lies in all banks."""
        return 2 * self.depth + (64 if self.each == 8 else 16), LINE * self.warps + 64

    @property
    def stage(self) -> int:
        """Return the bytes of one piece of both factors."""
        left, right = self.lines
        return self.rows * left + self.columns * right

    @property
    def joined(self) -> int:
        """Return the bytes in which warps add up."""
        return 4 * self.warps * self.rows * (self.columns + 8)

    @property
    def stages(self) -> int:
        """Return how many pieces there is room for."""
        return max(2, min(8, SHARED // self.stage))

    @property
    def shared_bytes(self) -> int:
        return max(self.stages * self.stage, self.joined)

    def body(self) -> list[str]:
        c, kind = self.contraction, self.kind
        assert self.left and self.right
        left, right = self.lines
        number, element = (stored_type(t, "cuda") for t in (self.numbers, self.right.load.storage))
        lines = [
            f"constexpr int ROWS = {self.rows}, COLUMNS = {self.columns}, DEPTH = {self.depth};",
            f"constexpr int STAGES = {self.stages}, WARPS = {self.warps}, T = {32 * self.warps}, EACH = {self.each};",
            f"constexpr int SKEW = COLUMNS + 8, PACKED = {self.packed};",
            f"constexpr int LEFT = {left}, RIGHT = {right}, STAGE = ROWS * LEFT + COLUMNS * RIGHT;  // bytes of lines",
            f"const {kind} rows = {c.extents(c.rows)}, columns = {c.extents(c.columns)}, depth = {c.extents(c.depth)};",
            *BEGIN.replace("KIND", kind).splitlines(),
            *c.unflatten(c.batches, "z", kind),
            *self.left.place_lines("left", self.printer),
            *self.right.place_lines("right", self.printer),
            f"const {number}* const from_left = {self.address_of(self.left, 'left', 'row0')};",
            f"const {element}* const from_right = {self.address_of(self.right, 'right', 'column0')};",
        ]
        steps = {"LEFT_STEP": self.lane_step(self.left), "RIGHT_STEP": self.lane_step(self.right)}
        loop = LOOP.replace("KIND", kind).replace("NUMBERS", self.numbers).replace("ELEMENT", element)
        for name, step in steps.items():
            loop = loop.replace(name, step)
        early = self.early()
        parts = {
            "ORDER": ORDER.splitlines() if self.pairs and self.packed > 1 else [],
            "CONVERT": indent(indent(indent(self.converted(number, early)))),
            "BRING": self.brought_ahead(early),
            "BROUGHT": indent(self.taken_over(early)),
        }
        for line in loop.splitlines():
            lines += parts.get(line.strip(), [line])
        return [*lines, *TOGETHER.splitlines(), *self.epilogue()]

    def lane_step(self, matrix: Matrix) -> str:
        """Return the distance from one lane to the next, as C."""
        return f"({text_of(matrix.steps[matrix.by.index('lane')])})"

    @property
    def streamed(self) -> ir.Value:
        """Return the right factor before it is rounded, without its scale."""
        return without_scale(dequantised(self.contraction.right.value), self.contraction)[0]

    @property
    def scale(self) -> ir.Value | None:
        """Return what all terms of a column are multiplied by, where their numbers are exact without it."""
        return without_scale(dequantised(self.contraction.right.value), self.contraction)[1]

    def address_of(self, matrix: Matrix, name: str, lane: str) -> str:
        """Return where a lane begins, as C."""
        found = {"lane": f"int64_t({lane})"}
        found |= {f"place{n}": f"int64_t({name}_place{n})" for n in range(len(matrix.places))}
        places = [
            f"{found.get(by, by)} * ({text_of(step)})"
            for by, step in zip(matrix.by, matrix.steps, strict=True)
            if by != "term"
        ]
        return " + ".join([start_of_matrix(matrix, self.printer.pointers), *places])

    def early(self) -> list[ir.Load]:
        """Return what else is read that all terms which a thread takes at a time share: scales of blocks, say.

        Of more rows sums leave no registers for it (64 rows of int8: 70.4 us for 67.3 on an H200).
        """
        c = self.contraction
        assert self.right
        if self.rows > MOST:
            return []
        within = {leaf for loop in c.depth[len(c.depth) - self.within - 1 :] for leaf in loop.leaves}
        loads = (v for v in ir.walk(self.streamed) if isinstance(v, ir.Load) and v is not self.right.load)
        return [load for load in dict.fromkeys(loads) if not ir.tree_atoms(load) & within]

    def place_of_terms(self, step: str) -> list[str]:
        """Return the statements that name the column and the terms of the depth that a thread has in a step."""
        c, kind = self.contraction, self.kind
        return [
            f"const {kind} lane = column0 + j * 8 + g, column = lane < columns ? lane : columns - 1;",
            f"const {kind} deep = {kind}({step}) * DEPTH + (warp * 4 + q) * EACH, k = deep < depth ? deep : 0;",
            *c.unflatten(c.columns, "column", kind),
            *c.unflatten(c.depth, "k", kind),
        ]

    def brought_ahead(self, early: list[ir.Load]) -> list[str]:
        """Return the statements that load a step's early numbers, so that they are there when their step comes."""
        if not early:
            return []
        scope = Scope()
        made = [f"next{n}[j] = {self.printer.emit(load, scope)};" for n, load in enumerate(early)]
        return [
            *(f"{CTYPES[load.dtype]} next{n}[COLUMNS / 8];" for n, load in enumerate(early)),
            "const auto bring = [&](int step) {",
            "#pragma unroll",
            "  for (int j = 0; j < COLUMNS / 8; ++j) {",
            *indent(indent([*self.place_of_terms("step"), *scope.lines, *made])),
            "  }",
            "};",
            "if (first < last) bring(first);",
        ]

    @property
    def pairs(self) -> BytePairs | None:
        """Return the right factor as pairs of bytes, if it is of that shape."""
        c, top = self.contraction, strip(self.contraction.right.value)
        assert self.right
        if self.scale or not (isinstance(top, ir.Op) and top.operator in HALVED):
            return None  # a scale outside of the sum costs nothing; and what is not rounded has more digits
        within = {leaf for loop in c.depth[len(c.depth) - self.within - 1 :] for leaf in loop.leaves}
        alike = lambda v: not ir.tree_atoms(v) & within  # noqa: E731
        return byte_pairs(dequantised(c.right.value), self.numbers, self.right.load, self.packed, alike)

    @staticmethod
    def taken_over(early: list[ir.Load]) -> list[str]:
        """Return the statements that keep a step's early numbers and ask for the next one's."""
        if not early:
            return []
        return [
            *(f"{CTYPES[load.dtype]} now{n}[COLUMNS / 8];" for n, load in enumerate(early)),
            "#pragma unroll",
            f"for (int j = 0; j < COLUMNS / 8; ++j) {', '.join(f'now{n}[j] = next{n}[j]' for n in range(len(early)))};",
            "if (step + 1 < last) bring(step + 1);",
        ]

    def converted(self, number: str, early: list[ir.Load]) -> list[str]:
        """Return the statements that make the terms `b` of what was streamed, `w`, for products of tensor cores."""
        c, kind = self.contraction, self.kind
        assert self.right
        value, load = self.streamed, self.right.load
        if strip(value) is load and load.storage in HALF:
            return ["memcpy(b, &w, sizeof b);"]
        last = len(c.depth) - self.within
        scope, inner, inside = Scope(), c.depth[last - 1], c.depth[last:]
        scope.known[load] = "floats.x[u / PACKED]" if load.storage in FLOAT8 else "each.x[u / PACKED]"
        floats = [
            v
            for v in ir.walk(value)
            if (found := operands(v, Operator.CAST)) and strip(found[0]) is load and v.dtype == "float32"
        ]
        scope.known |= dict.fromkeys(floats if load.storage in BYTES and self.packed == 1 else (), "whole[u]")
        scope.known |= {load: f"now{n}[j]" for n, load in enumerate(early)}
        if pairs := self.pairs:
            made_of = pairs.lines(number, lambda u: c.unflatten(inside, u, kind), self.printer, scope)
            return [*self.place_of_terms("step"), *made_of]
        if self.packed > 1:
            scope.known |= bytes_as_floats(value, load, self.printer, scope)
        element = stored_type(load.storage, "cuda")
        text = self.printer.emit(value, scope)
        made = "\n".join([*scope.lines, text])
        taken = [f"Pack<{element}, EACH / PACKED> each;", "memcpy(&each, &w, sizeof each);"]
        if "floats.x" in made:
            taken.append("const Pack<float, EACH / PACKED> floats = floats_of(each);")
        elif "each.x" not in made:
            taken = []
        if "words[" in made:
            taken.append("const unsigned words[4] = {w.x, w.y, w.z, w.w};")
        if "whole[u]" in made:
            taken += ["float whole[EACH];", f"floats_of_bytes<{element}>(w, whole);"]
        return [
            *self.place_of_terms("step"),
            *taken,
            "float made[EACH];",
            f"const {kind} inner = {inner.var};",
            "#pragma unroll",
            "for (int u = 0; u < EACH; ++u) {",
            f"  const {kind} {inner.var} = inner + u / PACKED;",
            *indent(c.unflatten(inside, "(u % PACKED)", kind)),
            *indent([*scope.lines, f"made[u] = {text};"]),
            "}",
            "#pragma unroll",
            f"for (int u = 0; u < EACH / 2; ++u) b[u] = pair_of<{number}>(made[2 * u], made[2 * u + 1]);",
        ]

    def epilogue(self) -> list[str]:
        """Return the operators behind the sum, and the stores: neighbouring threads have neighbouring columns."""
        c, kind = self.contraction, self.kind
        scope = Scope()
        scope.known[c.total] = f"(sum * {self.printer.emit(self.scale, scope)})" if self.scale else "sum"
        values = {b: self.printer.emit_stored(b, v, scope) for b, v in c.nest.region.stores.items()}
        stores = [f"{self.place(b)} = {v};" for b, v in values.items()]
        inside = [*c.unflatten(c.rows, "row", kind), *c.unflatten(c.columns, "column", kind), *scope.lines, *stores]
        return [
            "for (int i = threadIdx.x; i < ROWS * COLUMNS; i += T) {",
            f"  const {kind} row = row0 + i / COLUMNS, column = column0 + i % COLUMNS;",
            "  const float sum = of_all(i);",
            "  if (row < rows && column < columns) {",
            *indent(indent(inside)),
            "  }",
            "}",
        ]

    def widths(self, pointers: dict[str, str]) -> dict[str, str]:
        return {}

    def condition(self, pointers: dict[str, str]) -> str:
        """Return when both factors lie in pieces of sixteen bytes, as C."""
        c = self.contraction
        assert self.left and self.right
        last, along = len(c.depth) - self.within, self.each // self.packed
        sizes = [f"({c.depth[last - 1].size}) % {along} == 0", f"({c.extents(c.depth)}) % 8 == 0"]
        sizes += [f"{c.extents(c.depth[last:])} == {self.packed}"] if self.within else []
        for matrix, each in ((self.left, 8), (self.right, along)):
            steps = zip(matrix.by, matrix.steps, strict=True)
            sizes += [f"({text_of(step)}) % {each} == 0" for by, step in steps if by != "term"]
        starts = ", ".join(start_of_matrix(m, pointers) for m in (self.left, self.right))
        sizes += self.pairs.conditions(self.printer) if self.pairs else []
        return " && ".join([*dict.fromkeys(sizes), f"aligned({{{starts}}})"])

    def text(self, name: str, parameters: list[Parameter], body: list[str], widths: dict[str, str]) -> KernelText:
        head = f"__global__ void __launch_bounds__({32 * self.warps}, 1) "
        return KernelText((self.contraction.note(),), head, name, [*parameters, *PARTS], body)

    def few_launch(self, name: str, arguments: list[str]) -> list[str]:
        """Return the statements that launch the kernel, with memory for the parts of a split depth."""
        c = self.contraction
        return [
            f"const int64_t all = ({c.extents(c.batches)}) * tiles({c.extents(c.rows)}, {self.rows})"
            f" * tiles({c.extents(c.columns)}, {self.columns});",
            f"const int64_t bytes = {self.shared_bytes};",
            f"const int64_t places = by_device([&] {{ return few_places({name}, {32 * self.warps}, bytes); }});",
            f"const int parts = few_parts(all, tiles({c.extents(c.depth)}, {self.depth}), places);",
            f"float* partial = parts > 1 ? scratch<float>(all * parts * {self.rows * self.columns}, stream) : nullptr;",
            "int* arrived = parts > 1 ? scratch<int>(all, stream) : nullptr;",
            "if (parts > 1) cudaMemsetAsync(arrived, 0, sizeof(int) * all, stream);",
            f"if (all > 0) {name}<<<blocks(all * parts), {32 * self.warps}, bytes, stream>>>"
            f"({', '.join([*arguments, 'parts', 'partial', 'arrived'])});",
            "if (parts > 1) {",
            "  cudaFreeAsync(partial, stream);",
            "  cudaFreeAsync(arrived, stream);",
            "}",
        ]


def dequantised(value: ir.Value) -> ir.Value:
    """Return a factor before it is rounded to sixteen bits, which a conversion does anyway."""
    value = strip(value)
    return value.args[0] if isinstance(value, ir.Op) and value.operator in HALVED else value


def without_scale(value: ir.Value, contraction: Contraction) -> tuple[ir.Value, ir.Value | None]:
    """Return numbers of a byte and the number that all of a column are multiplied by; else the value and None."""
    found = operands(value, Operator.MUL)
    depth = {leaf for loop in contraction.depth for leaf in loop.leaves}
    for one, other in (found, found[::-1]) if found else ():
        inside = operands(strip(one), Operator.CAST)
        load = strip(inside[0]) if inside else strip(one)
        if isinstance(load, ir.Load) and load.storage in {*BYTES, *FLOAT8} and not ir.tree_atoms(other) & depth:
            return one, other
    return value, None


def columns_for(rows: int, count: int) -> int:
    """Return how many of so many columns a block should have, so that all blocks run at once or in full waves.

    A column costs its bytes, a block those of the rows besides.
    """

    most = WIDE if rows <= 16 else WIDE // 2

    def cost(columns: int) -> int:
        waves = math.ceil(math.ceil(count / columns) / PROCESSORS)
        return waves * (columns + 16)

    return min(range(NARROW, most + 1, 8), key=lambda n: (cost(n), -n))


def few_rows_kernel(kernel: Kernel, columns: int) -> FewRowsKernel | None:
    """Return the kernel for a product of few rows, or None.

    `columns` of a block is a tuning parameter: 0 for no such kernel, 1 for what fits.
    """
    c, numbers = kernel.contraction, numbers_of(kernel.contraction, tf32=False)
    if not columns or not numbers or c.second or c.phases or c.right.guards or c.grouped:
        return None
    if c.count(c.rows) > MOST_OF_BYTES or c.count(c.columns) < LEAST_COLUMNS or c.count(c.depth) < LEAST_TERMS:
        return None
    left = matrix_of(c, c.left)
    if left is None or left.by[0] != "term" or left.load.storage != numbers:
        return None
    streamed = [found for load in c.right.loads if (found := streams(c, load))]
    if not streamed:
        return None
    right, within = max(streamed, key=lambda found: ir.size_of(a for group in found[0].load.stored for a in group))
    if (within or ITEMSIZE[right.load.storage] == 2) and c.count(c.rows) > MOST:
        return None
    columns = columns if columns > 1 else columns_for(c.count(c.rows), c.count(c.columns))
    made = FewRowsKernel(c, kernel.printer, kernel.kind, 0, kernel.tile, numbers, left, right, within, columns)
    return made if made.shared_bytes <= SHARED else None


def streams(c: Contraction, load: ir.Load) -> tuple[Matrix, int] | None:
    """Return a tensor of the right factor as it can stream, and the loops of the depth that share an element of it."""
    access, within = c.nest.accesses[load], 0
    while within + 1 < len(c.depth) and not access.steps.get(c.depth[-1 - within].leaves[-1]):
        within += 1
    last = len(c.depth) - within
    matrix, packed = matrix_read(c, c.right, load, within), c.count(c.depth[last:])
    if not matrix or matrix.by[0] != "term" or load.storage not in CTYPES.keys() | STORED_ONLY:
        return None
    along = 16 // ITEMSIZE[load.storage]
    fits = 8 <= along * packed <= MOST_TERMS and c.depth[last - 1].count % along == 0
    return (matrix, within) if fits else None
