"""Contractions in CUDA on plain cores: tiles of both factors in shared memory, 8 x 8 sums a thread, then the epilogue.

Comes in: a Contraction. Goes out: one `__global__` kernel and its launch. The loads know strides, windows and guards
(an implicit matrix product, for convolutions); the inner product knows none of them. While one pair of tiles is
multiplied, the next is on its way to registers. Where tiles are few and deep (a linear layer of low rank), the depth is
split among blocks, and the last block of a tile adds the parts up in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.codegen.contraction import Contraction, Side, guard_text
from rag_kernels.offline.codegen.loop_nest import Access, Loop, text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.gemm.text import BEGIN_PART, JOIN_PARTS, LOOP, PART_OF_DEPTH, SUMS
from rag_kernels.offline.cuda.kernel_text import PARTS, KernelText, Parameter
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import start_name
from rag_kernels.offline.ir.patterns import strip

FULL, LEAST_STEPS = 132, 8  # blocks that keep a device busy; steps of a depth that is worth splitting


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of a block, the terms of one step, and how many sums a thread has."""

    rows: int
    columns: int
    depth: int
    sums: int = 64

    @property
    def threads(self) -> int:
        return self.rows * self.columns // self.sums


def tile_for(contraction: Contraction, wanted: int) -> Tile:
    """Return the tile for a product: 128 x 128 where there are blocks enough for every processor, else smaller ones."""
    rows, columns = contraction.count(contraction.rows), contraction.count(contraction.columns)
    if rows <= 16:
        return Tile(16, 256, 8)
    if rows <= 32:
        return Tile(32, 128, 16)
    if columns <= 32:
        return Tile(128, 32, 16)
    blocks = contraction.count(contraction.batches) * -(-rows // 128) * -(-columns // 128)
    if wanted == 64 or (not wanted and (blocks < 132 or (rows <= 64 and columns <= 64))):
        return Tile(64, 64, 16)
    if rows <= 64:
        return Tile(64, 128, 16)
    return Tile(128, 64, 16) if columns <= 64 else Tile(128, 128, 16)


@dataclass(slots=True)
class Kernel:
    """A kernel for a contraction on plain cores."""

    contraction: Contraction
    printer: Printer
    kind: str  # type of indices
    wanted: int = 0  # size of tiles, 0 for what fits
    tile: Tile = Tile(128, 128, 16)
    splits: bool = field(default=False, init=False)  # whether the depth of a tile may be split among blocks

    def __post_init__(self) -> None:
        c = self.contraction
        self.tile = tile = tile_for(c, self.wanted)
        blocks = c.count(c.batches) * -(-c.count(c.rows) // tile.rows) * -(-c.count(c.columns) // tile.columns)
        self.splits = blocks < FULL and c.count(c.depth) >= LEAST_STEPS * tile.depth and not c.phases

    def note(self, needs: Needs) -> None:
        """Note what the kernel and its launch call of the fixed texts."""
        needs.tiles = True
        needs.splits |= self.splits

    @property
    def wide(self) -> int:
        """Return the columns of the result that a block has."""
        return self.tile.columns

    @property
    def times(self) -> str:
        """Return C text that multiplies the number of tiles to give the grid's size."""
        return " * parts" if self.splits else ""

    @property
    def dynamic(self) -> str:
        """Return the dynamic shared memory of a block in bytes, as C."""
        return "0"

    @property
    def vector_storage(self) -> str:
        """Return the dtype of tensors of which a thread loads four neighbours at once."""
        return "float32"

    def body(self) -> list[str]:
        """Return the statements of the kernel."""
        c, tile, kind = self.contraction, self.tile, self.kind
        left = self.fetches(c.left, "left", "row0", tile.rows)
        right = self.fetches(c.right, "right", "column0", tile.columns)
        block, loop = "blockIdx.x", LOOP
        for whole, part in PART_OF_DEPTH if self.splits else ():
            block, loop = "block", loop.replace(whole, part)
        lines = [
            f"constexpr int ROWS = {tile.rows}, COLUMNS = {tile.columns}, DEPTH = {tile.depth}, T = {tile.threads};",
            "__shared__ __align__(16) float left[2][DEPTH][ROWS + 4], right[2][DEPTH][COLUMNS + 4];",
            *c.phase_tables(f"const {kind} "),
            f"const {kind} rows = {c.extents(c.rows)}, columns = {c.extents(c.columns)}, depth = {c.extents(c.depth)};",
            "// Blocks run through bands of eight tiles of rows, so that neighbours share what they load.",
            "const unsigned across = (rows + ROWS - 1) / ROWS, along = (columns + COLUMNS - 1) / COLUMNS;",
            *(["const unsigned block = blockIdx.x / parts;"] if self.splits else []),
            f"const {kind} z = {block} / (across * along);",
            f"const unsigned t = {block} % (across * along), band = t / (8 * along), in = t % (8 * along);",
            "const unsigned high = across - band * 8 < 8 ? across - band * 8 : 8;",
            f"const {kind} row0 = {kind}(band * 8 + in % high) * ROWS, column0 = {kind}(in / high) * COLUMNS;",
            *c.unflatten(c.batches, "z", kind),
            "__align__(16) float next_left[ROWS * DEPTH / T], next_right[COLUMNS * DEPTH / T];",
            f"const auto fetch = [&]({kind} k0) {{",
            *indent([*left[0], *right[0]]),
            "};",
            "const auto put = [&](int to) {",
            *indent([*left[1], *right[1]]),
            "};",
            *SUMS.splitlines(),
            *(BEGIN_PART.replace("KIND", kind).splitlines() if self.splits else []),
            *loop.splitlines(),
            *(JOIN_PARTS.splitlines() if self.splits else []),
            *self.epilogue(),
        ]
        return lines

    def fetches(self, side: Side, name: str, start: str, width: int) -> tuple[list[str], list[str]]:
        """Return statements that load a thread's part of the next tile, and those that put it into shared memory."""
        c, kind, step = self.contraction, self.kind, self.tile.depth
        limit = "rows" if name == "left" else "columns"
        along = self.vector_loop(side)
        vector = 4 if along else 1
        deep = along in c.depth if along else self.deep(side)
        each = step // vector if deep else width // vector  # of the axis along which neighbouring threads load
        k, lane = ("at % {0} * {1}", "at / {0}") if deep else ("at / {0}", "at % {0} * {1}")
        k, lane = (text.format(each, vector).removesuffix(" * 1") for text in (k, lane))
        lines, text = c.factor(side, self.printer)
        guards = [f"({guard_text(c, g, self.printer)})" for g in side.guards]
        if vector > 1:
            zero, read = [f"*(float4*)&next_{name}[e * 4] = make_float4(0, 0, 0, 0);"], self.four(side, name, deep)
        else:
            zero, read = [f"next_{name}[e] = 0.0f;"], [*lines, f"next_{name}[e] = {text};"]
            if guards:
                read = [f"if ({' && '.join(guards)}) {{", *indent(read), "}"]
            read = [*c.unflatten(side.lanes, "lane", kind), *self.unflatten_depth("k"), *read]
        loop = f"for (int e = 0; e < {width * step // vector // self.tile.threads}; ++e) {{"
        place = "const unsigned at = e * T + threadIdx.x;"
        fetch = [
            "#pragma unroll",
            loop,
            f"  {place}",
            f"  const {kind} k = k0 + {k}, lane = {start} + {lane};",
            *indent(zero),
            f"  if (k < depth && lane < {limit}) {{",
            *indent(indent(read)),
            "  }",
            "}",
        ]
        if vector > 1 and deep:
            store = [f"{name}[to][{k} + u][{lane}] = next_{name}[e * 4 + u];"]
            store = ["#pragma unroll", f"for (int u = 0; u < 4; ++u) {store[0]}"]
        elif vector > 1:
            store = [f"*(float4*)&{name}[to][{k}][{lane}] = *(float4*)&next_{name}[e * 4];"]
        else:
            store = [f"{name}[to][{k}][{lane}] = next_{name}[e];"]
        return fetch, ["#pragma unroll", loop, f"  {place}", *indent(store), "}"]

    def unflatten_depth(self, flat: str) -> list[str]:
        """Return statements that turn an index along the depth into its loops' variables.

        The number of window positions of a phase is known at run time only: a product with the inverse stands for that
        division (exact below 2^20).
        """
        c, lines, rest = self.contraction, [], flat
        exact = c.count(c.depth) < 1 << 20
        for n, loop in reversed(list(enumerate(c.depth))):
            if n == 0:
                lines.append(f"const {self.kind} {loop.var} = {c.variable(loop, rest)};")
                continue
            size, found = c.extent(loop), c.phase_of(loop)
            above = f"int(({rest} + 0.5f) * (1.0f / taps{found[0]}))" if found and exact else f"{rest} / {size}"
            lines.append(f"const {self.kind} above{n} = {above};")
            lines.append(f"const {self.kind} {loop.var} = {c.variable(loop, f'({rest} - above{n} * {size})')};")
            rest = f"above{n}"
        return lines

    def four(self, side: Side, name: str, deep: bool) -> list[str]:
        """Return the load of four neighbours: sixteen bytes at once where they are aligned, otherwise one by one."""
        c, (load,) = self.contraction, side.loads
        limit = "rows" if name == "left" else "columns"
        lane, k = ("lane", "(k + u)") if deep else ("(lane + u)", "k")
        indices = [*c.unflatten(side.lanes, "lane", self.kind), *self.unflatten_depth("k")]
        single = [*c.unflatten(side.lanes, lane, self.kind), *self.unflatten_depth(k)]
        inside = "k + u < depth" if deep else f"lane + u < {limit}"
        return [
            f"if (wide_{name}) {{",
            *indent(indices),
            f"  *(float4*)&next_{name}[e * 4] = *reinterpret_cast<const float4*>(&{self.address(load)});",
            "} else {",
            "  #pragma unroll",
            f"  for (int u = 0; u < 4; ++u) if ({inside}) {{",
            *indent(indent([*single, f"next_{name}[e * 4 + u] = {self.address(load)};"])),
            "  }",
            "}",
        ]

    def address(self, load: ir.Load) -> str:
        """Return the element that a load reads, as C."""
        nest = self.contraction.nest
        return f"{self.printer.pointers[load.buffer]}[{nest.offset(nest.accesses[load]) or '0'}]"

    def place(self, buffer: str) -> str:
        """Return the element that a store writes, as C.

        A slot's start is an argument, so that kernels for all slots are alike.
        """
        pointer, nest = self.printer.pointers[buffer], self.contraction.nest
        return f"{pointer}[{nest.offset(nest.stores[buffer], start_name(pointer)) or '0'}]"

    def vector_loop(self, side: Side) -> Loop | None:
        """Return the loop along which a plain load may take four neighbours at once, or None."""
        if (
            (self.tile.rows if side is self.contraction.left else self.tile.columns)
            * self.tile.depth
            % (4 * self.tile.threads)
        ):
            return None
        value = strip(side.value)
        if not isinstance(value, ir.Load) or value.storage != self.vector_storage or side.guards:
            return None
        access = self.contraction.nest.accesses[value]
        return next(
            (loop for loop in (side.lanes[-1], *self.contraction.depth[-1:]) if self.aligned(access, loop)), None
        )

    def aligned(self, access: Access, loop: Loop) -> bool:
        """Return whether four neighbours of a loop are sixteen aligned bytes."""
        others = [a for a in access.steps if a not in loop.leaves]
        plain = not access.values and not access.constant and not self.contraction.phase_of(loop)
        return (
            plain
            and access.steps.get(loop.leaves[-1]) == {(): 1}
            and loop.count % 4 == 0
            and all(access.stride(a) % 4 == 0 for a in others)
        )

    def deep(self, side: Side) -> bool:
        """Return whether neighbouring threads should load along the depth: where the factor is contiguous there."""
        term = self.contraction.depth[-1].leaves[-1]
        accesses = [a for a in map(self.contraction.nest.accesses.__getitem__, side.loads) if a.stride(term)]
        return bool(accesses) and all(
            a.stride(term) == 1 and a.stride(side.lanes[-1].leaves[-1]) != 1 for a in accesses
        )

    def widths(self, pointers: dict[str, str]) -> dict[str, str]:
        """Return by parameter a C condition on sizes and addresses: that accesses of sixteen bytes are aligned."""
        c, found = self.contraction, {}
        for name, side in (("wide_left", c.left), ("wide_right", c.right), ("wide_second", c.second)):
            loop = self.vector_loop(side) if side else None
            if side and loop:
                (load,) = side.loads
                found[name] = self.multiples(loop, [c.nest.accesses[load]], [pointers[load.buffer]])
        if self.vector_store():
            stores = c.nest.stores
            found["wide_out"] = self.multiples(c.columns[-1], list(stores.values()), [pointers[b] for b in stores])
        return found

    def multiples(self, loop: Loop, accesses: list[Access], pointers: list[str], of: int = 4) -> str:
        """Return the C condition that accesses step by multiples in all other loops, from aligned addresses."""
        steps = [text_of(step) for a in accesses for leaf, step in a.steps.items() if leaf not in loop.leaves]
        sizes = dict.fromkeys(f"({text}) % {of} == 0" for text in [loop.size, *steps])
        return " && ".join([*sizes, f"aligned({{{', '.join(pointers)}}})"])

    def vector_store(self) -> bool:
        """Return whether a thread may store four neighbouring columns at once."""
        inner = self.contraction.columns[-1]
        stores = [self.contraction.nest.stores[b] for b in self.contraction.nest.region.stores]
        floats = all(self.printer.storage[b] == "float32" for b in self.contraction.nest.region.stores)
        return floats and all(self.aligned(a, inner) for a in stores)

    def epilogue(self) -> list[str]:
        """Return the operators behind the sum, and the stores: a run of neighbouring columns at a time."""
        c, vector, kind = self.contraction, self.vector_store(), self.kind
        row, column = "ty * 4 + i % 4 + i / 4 * (ROWS / 2)", "tx * 4 + j / 4 * (COLUMNS / 2)"
        scope = Scope()
        scope.known[c.total] = "sums[i][j + u]"
        values = {b: self.printer.emit_stored(b, v, scope) for b, v in c.nest.region.stores.items()}
        names = {b: f"{self.printer.pointers[b][:-2]}_v" for b in values}
        places = {b: self.place(b) for b in values}
        body = [*c.unflatten(c.columns, "(column + u)", kind), *scope.lines]
        single = [
            "#pragma unroll",
            "for (int u = 0; u < 4; ++u) {",
            "  if (column + u < columns) {",
            *indent(indent([*body, *(f"{places[b]} = {v};" for b, v in values.items())])),
            "  }",
            "}",
        ]
        inner = single
        if vector:
            stores = [f"*reinterpret_cast<float4*>(&{places[b]}) = {names[b]};" for b in values]
            inner = [
                "if (wide_out && column < columns) {",
                *(f"  float4 {name};" for name in names.values()),
                "#pragma unroll",
                "  for (int u = 0; u < 4; ++u) {",
                *indent(indent([*body, *(f"(&{names[b]}.x)[u] = {v};" for b, v in values.items())])),
                "  }",
                *indent([*c.unflatten(c.columns, "column", kind), *stores]),
                "} else if (!wide_out) {",
                *indent(single),
                "}",
            ]
        return [
            "#pragma unroll",
            "for (int i = 0; i < 8; ++i) {",
            f"  const {kind} row = row0 + {row};",
            "  if (row < rows) {",
            *indent(indent(c.unflatten(c.rows, "row", kind))),
            "#pragma unroll",
            "    for (int j = 0; j < 8; j += 4) {",
            f"      const {kind} column = column0 + {column};",
            *indent(indent(indent(inner))),
            "    }",
            "  }",
            "}",
        ]

    def text(self, name: str, parameters: list[Parameter], body: list[str], widths: dict[str, str]) -> KernelText:
        """Return the `__global__` function."""
        phases = [Parameter("int", f"phase{n}") for n in range(len(self.contraction.phases))]
        flags = [Parameter("bool", flag) for flag in widths]
        every = [*parameters, *(PARTS if self.splits else ()), *flags, *phases]
        head = f"__global__ void __launch_bounds__({self.tile.threads}) "
        return KernelText((self.contraction.note(),), head, name, every, body)

    def launch(self, name: str, arguments: list[str], checks: list[str], widths: dict[str, str]) -> list[str]:
        """Return the statements that launch the kernel, phase by phase."""
        c, tile = self.contraction, self.tile
        total = f"({c.extents(c.batches)}) * tiles({c.extents(c.rows)}, {tile.rows})"
        total += f" * tiles({c.extents(c.columns)}, {self.wide})"
        shared = ["parts", "partial", "arrived"] if self.splits else []
        call = ", ".join([*arguments, *shared, *widths, *(f"phase{n}" for n in range(len(c.phases)))])
        shape = f"blocks(grid{self.times}), {tile.threads}, {self.dynamic}, stream"
        lines = [f"const int64_t grid = {total};", f"if (grid > 0) {name}<<<{shape}>>>({call});"]
        for n, phase in reversed(list(enumerate(c.phases))):
            lines = [f"for (int phase{n} = 0; phase{n} < {phase.stride}; ++phase{n}) {{", *indent(lines), "}"]
        lines = [*(f"const bool {flag} = {condition};" for flag, condition in widths.items()), *lines]
        lines = self.with_parts(total, lines) if self.splits else lines
        return [*(f'RK_CHECK({text}, "this kernel needs {text}");' for text in checks), *lines]

    def with_parts(self, tiles: str, lines: list[str]) -> list[str]:
        """Return a launch with memory for the parts of a split depth."""
        depth = self.contraction.extents(self.contraction.depth)
        return [
            f"const int64_t all = {tiles};",
            f"const int parts = split_depth(all, tiles({depth}, {self.tile.depth}));",
            f"float* partial = parts > 1 ? scratch<float>(all * parts * {64 * self.tile.threads}, stream) : nullptr;",
            "int* arrived = parts > 1 ? scratch<int>(all, stream) : nullptr;",
            "if (parts > 1) cudaMemsetAsync(arrived, 0, sizeof(int) * all, stream);",
            *lines,
            "if (parts > 1) {",
            "  cudaFreeAsync(partial, stream);",
            "  cudaFreeAsync(arrived, stream);",
            "}",
        ]
