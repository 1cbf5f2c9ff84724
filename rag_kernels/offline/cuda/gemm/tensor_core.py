"""Contractions in CUDA on tensor cores, by wgmma where the GPU has it; factors come from wherever they lie.

Comes in: a Contraction. Goes out: the kernel and its launch, as in `gemm.py`. Numbers of sixteen bits are multiplied as
they are, fp32 as one TF32 product where that is allowed, else as three: each factor is split into a high and a
low TF32 number, and the product of the low ones is left out, as in Ootomo & Yokota, "Recovering single precision
accuracy from Tensor Cores", 2022. A block has 128 x 128 or 64 x 256 sums, each of its eight warps 16 x 128 of them; of
few columns it has a half or a quarter of these. Both factors lie in shared memory as high and low halves in the layout
that wgmma reads, in quads along the depth. Where tiles do not fill the device, the depth is split among blocks, and
the last block of a tile adds the parts up in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.contraction import Contraction, Side, guard_text
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.gemm.convolutions.address_table import ROOM, can_step, steps_before, steps_each
from rag_kernels.offline.cuda.gemm.gemm import Kernel, Tile
from rag_kernels.offline.cuda.gemm.hopper.column_groups import of_columns
from rag_kernels.offline.cuda.gemm.tensor_core_text import BEGIN, EPILOGUE, LOOP, THREE
from rag_kernels.offline.cuda.kernel_text import PARTS, KernelText, Parameter
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import FLOAT8, HALF, STORED_ONLY
from rag_kernels.offline.ir.patterns import narrow_dtype, sixteen_bits, strip

THREADS, WARP, LINE = 256, 32, 32  # a line has so many words: 32 terms of fp32, or 64 of sixteen bits
FULL_SUMS, PROCESSORS = THREADS * 64, 132  # of a tile; of a device
LEAST_DEPTH = 256  # of a part, as `parts_of` has it


def serves(contraction: Contraction) -> bool:
    """Return whether the product fills tiles well enough, even if most of 64 rows or half of 32 columns are empty."""
    return (
        contraction.count(contraction.rows) >= 8
        and contraction.count(contraction.columns) >= 16
        and contraction.count(contraction.depth) >= 16
    )


def cut(contraction: Contraction, wanted: int) -> tuple[int, int]:
    """Return the rows and columns of a tile: as many as 64 sums a thread give, fewer where the result has fewer.

    Where tiles of 128 rows would leave most processors idle, they have 64. `wanted` rows are a tuning parameter.
    """
    c = contraction
    rows, columns = c.count(c.rows), c.count(c.columns) * len(c.totals)
    high = wanted or (64 if rows <= 64 else 128)
    wide = fitting(high, columns)
    tiles = c.count(c.batches) * -(-rows // high) * -(-columns // wide)
    if not wanted and wide < FULL_SUMS // high and tiles * parts_at_most(c) < PROCESSORS:
        high, wide = 64, fitting(64, columns)
    return high, wide


def fitting(rows: int, columns: int) -> int:
    """Return how many of so many columns a tile of these rows has."""
    return next((w for w in (FULL_SUMS // rows // 4, FULL_SUMS // rows // 2) if columns <= w), FULL_SUMS // rows)


def parts_at_most(contraction: Contraction) -> int:
    """Return among how many blocks the depth of a tile is split at most."""
    return 1 if contraction.phases else max(1, contraction.count(contraction.depth) // LEAST_DEPTH)


def numbers_of(contraction: Contraction, *, tf32: bool) -> str:
    """Return the number format in which tensor cores take both factors in one pass, or "" if they need three."""
    sides = [side for side in (contraction.left, contraction.right, contraction.second) if side]
    kinds = {"bfloat16" if narrow_dtype(side.value) in FLOAT8 else sixteen_bits(side.value) for side in sides}
    kind = kinds.pop() if len(kinds) == 1 else ""
    return kind if kind in HALF else "tf32" if tf32 else ""


@dataclass(slots=True)
class TensorKernel(Kernel):
    """A kernel for a contraction on tensor cores. `numbers` is their format, or empty for three TF32 products."""

    numbers: str = ""

    def note(self, needs: Needs) -> None:
        needs.tiles = needs.tensor_cores = True
        needs.passes |= {self.numbers} if self.numbers else set()

    @property
    def depth(self) -> int:
        """Return the terms of one step."""
        return 2 * LINE if self.numbers in HALF else LINE

    @property
    def halves(self) -> int:
        """Return how many numbers stand for one."""
        return 1 if self.numbers else 2

    @property
    def quad(self) -> str:
        """Return the C type of four terms."""
        return f"Four<{stored_type(self.numbers, 'cuda')}>" if self.numbers in HALF else "float4"

    @property
    def vector_storage(self) -> str:
        return self.numbers if self.numbers in HALF else "float32"

    def __post_init__(self) -> None:
        rows, columns = cut(self.contraction, self.wanted)
        self.tile = Tile(rows, columns, self.depth, rows * columns // THREADS)

    @property
    def shared_bytes(self) -> str:
        """Return the dynamic shared memory of a block in bytes, as C.

        It has two buffers of two halves of both tiles, room to begin at a multiple of 1024, and the tables of steps.
        """
        tables = sum(1 for side in (self.contraction.left, self.contraction.right) if self.stepped(side))
        step = self.depth
        depth = f"(({self.largest(self.contraction.depth)} + {step - 1}) / {step} * {step})"
        depth = f" + {8 * tables} * {depth}" if tables else ""
        return f"{self.tile_bytes}{depth}"

    @property
    def tile_bytes(self) -> int:
        """Return the bytes of both buffers, or of the sums that take their place, without tables."""
        buffers = 8 * self.halves * LINE * (self.tile.rows + self.tile.columns)
        return max(buffers, 4 * self.tile.rows * (self.tile.columns + 8)) + 1024

    @property
    def times(self) -> str:
        return " * parts"

    @property
    def dynamic(self) -> str:
        return "bytes"

    def body(self) -> list[str]:
        c, tile, kind = self.contraction, self.tile, self.kind
        left = self.quads(c.left, "left", "row0", tile.rows)
        right = self.quads(c.right, "right", "column0", self.wide)
        second = self.quads(c.second, "second", "column0", self.wide) if c.second else ([], [], [])
        lines = [
            f"constexpr int ROWS = {tile.rows}, COLUMNS = {tile.columns}, DEPTH = {self.depth}, T = {THREADS};",
            f"constexpr int LINE = {LINE}, HALVES = {self.halves}, WIDE = {self.wide};  // columns of the result",
            f"constexpr int SUMS = {self.tile.sums};  // of a thread",
            *c.phase_tables(f"const {kind} "),
            f"const {kind} rows = {c.extents(c.rows)}, columns = {c.extents(c.columns)}, depth = {c.extents(c.depth)};",
            *BEGIN.replace("KIND", kind).replace("QUAD", self.quad).splitlines(),
            *c.unflatten(c.batches, "z", kind),
            *([f"{self.quad} next_second[WIDE * DEPTH / 4 / T];"] if c.second else []),
            *left[0],
            *right[0],
            *second[0],
            f"const auto fetch = [&]({kind} k0) {{",
            *indent([*left[1], *right[1], *second[1]]),
            "};",
            "const auto put = [&](int to) {",
            *indent([*left[2], *right[2], *second[2], "publish();"]),
            "};",
            *(["__syncthreads();  // the steps"] if self.stepped(c.left) or self.stepped(c.right) else []),
            *self.loop(),
            *self.epilogue(),
        ]
        return lines

    @property
    def wide(self) -> int:
        """Return the columns of the result that a block has: of two products each has half of the tile."""
        return self.tile.columns // len(self.contraction.totals)

    def loop(self) -> list[str]:
        """Return the loop over the depth."""
        begin, end = (f"multiply_{self.numbers}(sums, a, b, k0 > begin);", "finish(sums);") if self.numbers else THREE
        lines = []
        for line in LOOP.replace("KIND", self.kind).splitlines():
            found = {"  MULTIPLY": begin, "  FINISH": end}.get(line)
            lines += indent(found.splitlines()) if found else [line]
        return lines

    def quads(self, side: Side, name: str, start: str, width: int) -> tuple[list[str], list[str], list[str]]:
        """Return statements before the loop, those that load a thread's quads, and those that put them.

        Neighbouring threads load along the depth where the factor lies so, along the lanes otherwise: then a thread
        stays with one lane, and what depends on the lane alone is done before the loop.
        """
        c, kind, vectorized = self.contraction, self.kind, self.vector_loop(side) is not None
        stepped = self.stepped(side)
        deep = self.loads_deep(side)
        limit = "rows" if name == "left" else "columns"
        k, lane = ("at % (DEPTH / 4) * 4", "at / (DEPTH / 4)") if deep else (f"at / {width} * 4", f"at % {width}")
        before = [] if deep else [f"const {kind} {name}_lane = {start} + threadIdx.x % {width};"]
        indices = c.unflatten(side.lanes, "lane" if deep else f"{name}_lane", kind)
        if stepped:
            before += steps_before(self, side, name, limit, deep, self.stepped(self.contraction.left))
            body = steps_each(self, side, name, deep)
        else:
            known = name == "second" and not self.loads_deep(c.right)  # which has the same lane
            before += [] if deep or known else indices
            quad = [*(indices if deep else []), *self.each(side, name, vectorized)]
            body = [f"if (k < depth && lane < {limit}) {{", *indent(quad), "}"]
        loop = ["#pragma unroll", f"for (int e = 0; e < {width * self.depth // 4 // THREADS}; ++e) {{"]
        loop.append("  const unsigned at = e * T + threadIdx.x;")
        fetch = [
            *loop,
            f"  const {kind} k = k0 + {k}, lane = {f'{start} + {lane}' if deep else f'{name}_lane'};",
            f"  next_{name}[e] = {{}};",
            *indent(body),
            "}",
        ]
        base, lanes, after = name, width, ""
        if name != "left":
            base, lanes, after = "right", self.tile.columns, " + WIDE * LINE" if name == "second" else ""
        high, low = f"{base} + to * HALVES * {lanes} * LINE{after}", f"{base} + (to * 2 + 1) * {lanes} * LINE{after}"
        put = f"put_four({high}, " if self.numbers else f"put_quad({high}, {low}, "
        return before, fetch, [*loop, f"  {put}{lane}, {k}, next_{name}[e]);", "}"]

    def loads_deep(self, side: Side) -> bool:
        """Return whether neighbouring threads load along the depth; else a thread stays with one lane."""
        if self.vector_loop(side) is not None:
            return True
        return self.deep(side) and not (self.stepped(side) and side.guards)  # a lane's bits are made once

    def each(self, side: Side, name: str, vectorized: bool) -> list[str]:
        """Return statements that load a quad, term by term or at once."""
        lines, text = self.contraction.factor(side, self.printer)
        guards = [f"({guard_text(self.contraction, g, self.printer)})" for g in side.guards]
        single = [*lines, f"(&next_{name}[e].x)[u] = {text};"]
        if guards:
            single = [f"if ({' && '.join(guards)}) {{", *indent(single), "}"]
        each = [
            "#pragma unroll",
            "for (int u = 0; u < 4; ++u) if (k + u < depth) {",
            *indent([*self.unflatten_depth("(k + u)"), *single]),
            "}",
        ]
        whole = self.whole_loads(side)
        if whole:
            return [
                f"if (wide_{name}) {{",
                *indent(self.each_of_whole(side, name, whole)),
                "} else {",
                *indent(each),
                "}",
            ]
        if not vectorized:
            return each
        read = f"next_{name}[e] = *reinterpret_cast<const {self.quad}*>(&{self.address(side.loads[0])});"
        return [f"if (wide_{name}) {{", *indent([*self.unflatten_depth("k"), read]), "} else {", *indent(each), "}"]

    def whole_loads(self, side: Side) -> list[ir.Load]:
        """Return the tensors of a computed factor of which four neighbouring terms may be loaded at once."""
        last = self.contraction.depth[-1]
        if isinstance(strip(side.value), ir.Load) or side.guards or not self.deep(side) or self.stepped(side):
            return []
        return [v for v in side.loads if self.aligned(self.contraction.nest.accesses[v], last)]

    def each_of_whole(self, side: Side, name: str, loads: list[ir.Load]) -> list[str]:
        """Return statements that load four neighbouring terms of these tensors, and compute a quad of them."""
        scope, lines = Scope(), self.unflatten_depth("k")
        for n, load in enumerate(loads):
            kind = f"Four<{stored_type(load.storage, 'cuda')}>"
            lines.append(f"const {kind} of_{name}{n} = *reinterpret_cast<const {kind}*>(&{self.address(load)});")
            scope.known[load] = f"{'float' if load.storage in STORED_ONLY else ''}((&of_{name}{n}.x)[u])"
        text = self.printer.emit(side.value, scope)
        inside = [*self.unflatten_depth("(k + u)"), *scope.lines, f"(&next_{name}[e].x)[u] = {text};"]
        return [*lines, "#pragma unroll", "for (int u = 0; u < 4; ++u) {", *indent(inside), "}"]

    def widths(self, pointers: dict[str, str]) -> dict[str, str]:
        c, found = self.contraction, Kernel.widths(self, pointers)
        for name, side in (("right", c.right), ("left", c.left), ("second", c.second)):
            loads = self.whole_loads(side) if side else []
            if loads:
                accesses = [c.nest.accesses[v] for v in loads]
                places = list(dict.fromkeys(pointers[v.buffer] for v in loads))
                found[f"wide_{name}"] = self.multiples(c.depth[-1], accesses, places)
        return found

    def stepped(self, side: Side) -> bool:
        """Return whether the side has a table of addresses, and room for it; the right side's comes first."""
        if self.vector_loop(side) is not None or self.contraction.second or not can_step(self, side):
            return False
        tables = 2 if side is self.contraction.left and self.stepped(self.contraction.right) else 1
        return self.tile_bytes + 8 * tables * (self.contraction.count(self.contraction.depth) + self.depth - 1) <= ROOM

    def vector_loop(self, side: Side) -> Loop | None:
        """Return the depth loop along which four neighbours may be loaded at once, or None."""
        loop = Kernel.vector_loop(self, side)
        return loop if loop in self.contraction.depth else None

    def epilogue(self) -> list[str]:
        """Return the operators behind the sum, and the stores: each thread stays with one column."""
        c, kind = self.contraction, self.kind
        scope = Scope()
        for total, after in zip(c.totals, ("", " + WIDE"), strict=False):
            scope.known[total] = f"tile[i * (COLUMNS + 8) + threadIdx.x % WIDE{after}]"
        if c.grouped:
            return self.groups()
        values = {b: self.printer.emit_stored(b, v, scope) for b, v in c.nest.region.stores.items()}
        places = {b: self.place(b) for b in values}
        stores = [f"{places[b]} = {v};" for b, v in values.items()]
        return [
            *EPILOGUE.splitlines(),
            f"const {kind} column = column0 + threadIdx.x % WIDE;",
            "if (column < columns) {",
            *indent(c.unflatten(c.columns, "column", kind)),
            "#pragma unroll 4",
            "  for (int i = threadIdx.x / WIDE; i < ROWS && row0 + i < rows; i += T / WIDE) {",
            f"    const {kind} row = row0 + i;",
            *indent(indent([*c.unflatten(c.rows, "row", kind), *scope.lines, *stores])),
            "  }",
            "}",
        ]

    def groups(self) -> list[str]:
        """Return the epilogue that stores what groups of columns come to: a warp has a piece of a row at a time."""
        c, kind, inner, scope = self.contraction, self.kind, self.contraction.columns[-1].var, Scope()
        piece = max(c.grouped, WARP)
        scope.known[c.total] = f"tile[i * (COLUMNS + 8) + at + u * {WARP}]"
        lines = of_columns(c, self.printer, scope, piece // WARP, f"const {kind} {inner} = inner + u * {WARP};")
        values = {b: self.printer.emit_stored(b, v, scope) for b, v in c.nest.region.stores.items()}
        return [
            *EPILOGUE.splitlines(),
            f"for (int e = threadIdx.x / {WARP}; e < ROWS * (WIDE / {piece}); e += T / {WARP}) {{",
            f"  const int i = e / (WIDE / {piece}), at = e % (WIDE / {piece}) * {piece} + threadIdx.x % {WARP};",
            f"  const {kind} row = row0 + i, column = column0 + at;",
            "  if (row >= rows || column >= columns) continue;  // all lanes, or none",
            *indent([*c.unflatten(c.rows, "row", kind), *c.unflatten(c.columns, "column", kind)]),
            f"  const {kind} inner = {inner};",
            *indent(lines),
            "  if (inner == 0) {",
            *indent(indent([*scope.lines, *(f"{self.place(b)} = {v};" for b, v in values.items())])),
            "  }",
            "}",
        ]

    def vector_store(self) -> bool:
        return False

    def text(self, name: str, parameters: list[Parameter], body: list[str], widths: dict[str, str]) -> KernelText:
        return Kernel.text(self, name, [*parameters, *PARTS], body, widths)

    def launch(self, name: str, arguments: list[str], checks: list[str], widths: dict[str, str]) -> list[str]:
        """Return the statements that launch the kernel, with memory for the parts of a split depth."""
        c, depth = (
            self.contraction,
            "1" if self.contraction.phases else self.contraction.extents(self.contraction.depth),
        )
        head = [
            f"const int64_t all = ({c.extents(c.batches)}) * tiles({self.largest(c.rows)}, {self.tile.rows})"
            f" * tiles({self.largest(c.columns)}, {self.wide});",
            f"const int parts = parts_of(all, {depth});",
            f"float* partial = parts > 1 ? scratch<float>(all * parts * {self.tile.sums * THREADS}, stream) : nullptr;",
            "int* arrived = parts > 1 ? scratch<int>(all, stream) : nullptr;",
            "if (parts > 1) cudaMemsetAsync(arrived, 0, sizeof(int) * all, stream);",
            f"const int64_t bytes = {self.shared_bytes};",
            f"const auto raised = cudaFuncSetAttribute({name}, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);",
            'RK_CHECK(raised == cudaSuccess, "this product needs more shared memory than the device has");',
        ]
        arguments = [*arguments, "parts", "partial", "arrived"]
        lines = Kernel.launch(self, name, arguments, checks, widths)
        return [
            *head,
            *lines,
            "if (parts > 1) {",
            "  cudaFreeAsync(partial, stream);",
            "  cudaFreeAsync(arrived, stream);",
            "}",
        ]

    def largest(self, loops: list[Loop]) -> str:
        """Return how many steps these loops have at most in any phase, as C."""
        return " * ".join(f"({loop.size})" if " " in loop.size else loop.size for loop in loops) or "1"
