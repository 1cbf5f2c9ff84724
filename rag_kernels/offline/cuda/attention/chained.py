"""Chained products in CUDA on mma.sync: a block keeps 64 rows, walks along the others tile by tile, and holds its sums.

Comes in: a ChainedRegion of a Function. Goes out: its kernel and launch. Products, tiles and copies are those of
attention (`texts/attention.py`); here stand the functions of the region: rows of its tensors, weights, which rows a
row is nothing to, where results go.
"""

from __future__ import annotations

import math

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.chained import ChainNest, Rows
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import text_of
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.attention.attention import ROOM, ROOM_ON_HOPPER
from rag_kernels.offline.cuda.attention.chained_hopper import HopperChain
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import ChainedRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.parameters import Number, c_name
from rag_kernels.offline.lowering.steps import Chained

KEPT = 64  # rows of a block

LOOP = """\
const int lane = threadIdx.x % 32, quad = lane % 4, band = threadIdx.x / 32 * 16;
const int64_t last = rows - 1, i0 = row0 + band;
const PLACE mine[2] = {PLACE(attend::least_of(i0 + lane / 4, last)), PLACE(attend::least_of(i0 + lane / 4 + 8, last))};
const PLACE from[2] = {PLACE(of_first(mine[0])), PLACE(of_first(mine[1]))};
const PLACE to[2] = {PLACE(of_end(mine[0])), PLACE(of_end(mine[1]))};
const int64_t inside = of_first(attend::least_of(i0 + 15, last)), outside = of_end(attend::least_of(i0, last));
const int64_t until = attend::least_of(row0 + KEPT - 1, last);
const int64_t low = attend::most_of(of_first(row0), int64_t(0)) / WALKED * WALKED;
const int64_t high = attend::least_of(of_end(until), keys);
BEGIN
if (STAGES == 2 && low < high) bring_tile(low, 0), attend::await<1>();
else attend::await<0>();
__syncthreads();
READY
int stage = 0;
for (int64_t n0 = low; n0 < high; n0 += WALKED) {
  if (STAGES == 1) bring_tile(n0, 0);
  if (STAGES == 2 && n0 + WALKED < high) bring_tile(n0 + WALKED, 1 - stage), attend::await<1>();
  else attend::await<0>();
  __syncthreads();
  MULTIPLY
  const auto take_weights = [&](auto whole) {  // of a tile in which each row sees all, no place is looked at
#pragma unroll
    for (int j = 0; j < WALKED / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const PLACE n = PLACE(n0) + j * 8 + quad * 2 + (c & 1);
        ZERO
        if (whole.value || (n >= from[c >> 1] && n < to[c >> 1] && n < keys)) of_weights(mine[c >> 1], n, GIVEN);
      }
  };
  if (n0 >= inside && n0 + WALKED <= outside && n0 + WALKED <= keys) take_weights(std::true_type{});
  else take_weights(std::false_type{});
  WEIGH
  __syncthreads();
  if (STAGES == 2) stage = 1 - stage;
}"""


def multiplies_sixteen_bits(step: Chained) -> bool:
    """Return whether all that chained products multiply are numbers of one type of sixteen bits."""
    loads = [load for i in step.inner for load in (i.kept, i.walked)] + [o.factor for o in step.outer]
    same = {load.storage for load in loads}
    return len(same) == 1 and same <= HALF


class CudaChain:
    """Prints chained products."""

    def __init__(self, region: ChainedRegion, function: Function, sizes: Sizes, parameters: CudaParameters) -> None:
        self.region, self.function, self.names = region, function, sizes.names
        self.on_hopper = parameters.attention == 2
        self.room = ROOM_ON_HOPPER if self.on_hopper else ROOM
        self.nest = ChainNest.of(region, sizes.names)
        self.sixteen = multiplies_sixteen_bits(region.chained)
        self.type = stored_type(self.nest.tiles[0].load.storage, "cuda") if self.sixteen else "float"
        products = set(self.nest.products)
        read = [rows.load.buffer for rows in (*self.nest.kept, *self.nest.tiles)]
        read += [v.buffer for v in ir.walk(*self.nest.expressions) if isinstance(v, ir.Load) and v not in products]
        self.written = [o.buffer for o in region.chained.outer]
        self.buffers = [*dict.fromkeys(read), *self.written]
        small = all(math.prod(function.specs[b].shape) < 1 << 31 for b in self.buffers)
        self.index = "int" if small else "int64_t"
        self.pointers = {b: f"{c_name(b)}_p" for b in self.buffers}

    @property
    def walked(self) -> int:
        """Return the rows of a tile that is walked along."""
        wide = max(rows.width for rows in self.nest.tiles)
        if self.sixteen:
            return 64 if wide <= 128 else 16
        return 32 if wide <= 64 else 16

    def stride(self, rows: Rows) -> int:
        """Return by how many elements rows stand apart in shared memory."""
        return (rows.width + 15) // 16 * 16 + (8 if self.sixteen else 4)

    @property
    def stages(self) -> int:
        """Return how many tiles a block holds."""
        return 2 if self.bytes(2) <= self.room else 1

    def bytes(self, stages: int) -> int:
        """Return the bytes of shared memory of a block."""
        kept = KEPT * sum(map(self.stride, self.nest.kept))
        walked = stages * self.walked * sum(map(self.stride, self.nest.tiles))
        return (kept + walked) * (2 if self.sixteen else 4)

    def parameters(self) -> list[tuple[str, str, str]]:
        """Return what the kernel gets: the type, the name, and the expression at its launch."""
        out = []
        for buffer in self.buffers:
            const = "" if buffer in self.written else "const "
            data = f"{c_name(buffer)}_data" if buffer in self.function.scratch else f"{c_name(buffer)}.data"
            ctype = stored_type(self.function.storage[buffer], "cuda")
            out.append((f"{const}{ctype}*", self.pointers[buffer], data))
        leaves = [*self.nest.batch, *self.nest.rows, *self.nest.keys]
        for rows in (*self.nest.kept, *self.nest.tiles):
            leaves += sorted(ir.tree_atoms(rows.load), key=lambda leaf: leaf.serial)
        values = [v for v in ir.walk(*self.region.stores.values()) if isinstance(v, ir.Load)]
        leaves += [leaf for v in values for group in v.stored for leaf in ir.leaves(group)]
        leaves += [leaf for o in self.region.chained.outer for group in o.dims for leaf in ir.leaves(group)]
        leaves += [leaf for v in ir.walk(*self.nest.expressions) if isinstance(v, ir.Index) for leaf in ir.own_atoms(v)]
        for name in dict.fromkeys(self.names[leaf] for leaf in leaves):
            out.append((f"const {self.index}", name, f"{self.index}({name})"))
        out += [(f"const {n.ctype}", n.name, n.name) for n in self.function.order if isinstance(n, Number)]
        return out

    def lambdas(self) -> list[str]:
        """Return the functions of the region."""
        nest = self.nest
        lines = nest.apart(f"{self.index}(b)", nest.batch, f"const {self.index}")
        row, key = nest.apart("i", nest.rows), nest.apart("n", nest.keys)
        for name, found, part, index, apart in (
            ("kept", nest.kept, nest.rows, "i", row),
            ("tile", nest.tiles, nest.keys, "n", key),
        ):
            for place, rows in enumerate(found):
                start = f"{self.pointers[rows.load.buffer]} + {nest.offset(rows.access, nest.batch)}"
                where = f"return {name}{place}_at + {nest.offset(rows.access, part)};"
                lines.append(f"const auto* const {name}{place}_at = {start};")
                body = " ".join([*apart, where])
                lines.append(f"const auto of_{name}{place} = [&](int64_t {index}) {{ {body} }};")
        printer = nest.printer(self.pointers, self.function.storage, on_gpu(near=self.sixteen))
        limits = nest.limit_values(printer, "attend::most_of")
        lines += [f"const int64_t limit{n} = {text};" for n, text in enumerate(limits)]
        return [*lines, *nest.bounds(row), *self.weights()]

    def weights(self) -> list[str]:
        """Return the function that makes the weights of a pair of rows of their products."""
        products = [f"x{n}" for n in range(len(self.nest.inner))]
        printer = self.nest.printer(self.pointers, self.function.storage, on_gpu(near=self.sixteen))
        lines, names = self.nest.weighed(printer, products)
        given = [f"float {x}" for x in products] + [f"float& w{n}" for n in range(len(names))]
        stores = [f"w{n} = float({name});" for n, name in enumerate(names)]
        declared = ", ".join([f"{self.index} i", f"{self.index} n", *given])
        row, key = (self.nest.apart(*p, f"const {self.index}") for p in (("i", self.nest.rows), ("n", self.nest.keys)))
        return [f"const auto of_weights = [&]({declared}) {{", *indent([*row, *key, *lines, *stores]), "};"]

    def loop(self) -> str:
        """Return the statements of a block from its first tile to the last."""
        nest, size = self.nest, self.walked
        widest = max(rows.width for rows in nest.tiles)
        few = widest <= (128 if len(nest.outer) == 1 else 64)
        lines = self.tiles()
        for n, rows in enumerate(nest.kept):
            held = f", {128 if few else 0}"
            lines.append(f"attend::Warp<{self.type}, {rows.width}, 16, {size}{held}> inner{n};")
        for n, place in enumerate(nest.outer):
            width = nest.tiles[place].width
            lines.append(f"attend::Warp<{self.type}, 16, {width}, {size}> outer{n};")
            lines.append(f"float o{n}[{(width + 15) // 16 * 2}][4] = {{}};")
        ready = [f"inner{n}.begin(kept{n} + band * {self.stride(rows)});" for n, rows in enumerate(nest.kept)]
        multiply, weigh = list[str](), list[str]()
        for n, place in enumerate(nest.inner):
            multiply += [f"float x{n}[{size // 8}][4];", f"inner{n}.scores(x{n}, {self.tile(place)});"]
        multiply += [f"float w{n}[{size // 8}][4];" for n in range(len(nest.outer))]
        for n, place in enumerate(nest.outer):
            weigh.append(f"outer{n}.weigh(o{n}, w{n}, {self.tile(place)});")
        zero = " ".join(f"w{n}[j][c] = 0.0f;" for n in range(len(nest.outer)))
        given = [f"x{n}[j][c]" for n in range(len(nest.inner))] + [f"w{n}[j][c]" for n in range(len(nest.outer))]
        text = LOOP.replace("BEGIN", "\n".join(lines)).replace("READY", "\n".join(ready)).replace("ZERO", zero)
        text = text.replace("MULTIPLY", "\n  ".join(multiply)).replace("WEIGH", "\n  ".join(weigh))
        text = text.replace("GIVEN", ", ".join(given)).replace("STAGES", str(self.stages))
        return text.replace("WALKED", str(size)).replace("KEPT", str(KEPT)).replace("PLACE", self.index)

    def tile(self, place: int) -> str:
        """Return where a tile of the present stage lies, as C."""
        return f"tile{place} + stage * {self.walked * self.stride(self.nest.tiles[place])}"

    def tiles(self) -> list[str]:
        """Return where rows lie in shared memory, and what brings them there."""
        lines, brought, start = list[str](), list[str](), "(Number*)shared"
        lines.append(f"using Number = {self.type};")
        for name, found, count in (("kept", self.nest.kept, KEPT), ("tile", self.nest.tiles, self.walked)):
            for n, rows in enumerate(found):
                lines.append(f"Number* const {name}{n} = {start};")
                many = count * self.stride(rows) * (self.stages if name == "tile" else 1)
                start = f"{name}{n} + {many}"
                of, index = ("rows - row0", "row0") if name == "kept" else ("keys - n0", "n0")
                to = f"{name}{n}" if name == "kept" else f"tile{n} + stage * {count * self.stride(rows)}"
                brought.append(
                    f"attend::fill<Number, {rows.width}, FAST>({to}, {count}, {of}, "
                    f"[&](int i) {{ return of_{name}{n}({index} + i); }});"
                )
        kept = len(self.nest.kept)
        lines += ["const auto bring_tile = [&](int64_t n0, int stage) {", *indent(brought[kept:])]
        return [*lines, "  attend::close();", "};", *brought[:kept], "attend::close();"]

    def results(self) -> list[str]:
        """Return the statements that store a block's sums."""
        nest, lines = self.nest, list[str]()
        for n, (outer, access) in enumerate(zip(self.region.chained.outer, nest.out, strict=True)):
            width, column = nest.tiles[nest.outer[n]].width, nest.stride(access, ir.leaves(outer.columns))
            assert column is not None
            place = f"{nest.offset(access, nest.batch, nest.rows)} + e * ({column})"
            lines += [
                "#pragma unroll",
                f"for (int j = 0; j < {(width + 15) // 16 * 2}; ++j)",
                "#pragma unroll",
                "  for (int c = 0; c < 2; ++c) {",
                "    const int e = j * 8 + quad * 2 + c;",
                f"    if (e < {width}) {self.pointers[outer.buffer]}[{place}] = o{n}[j][2 * h + c];",
                "  }",
            ]
        return [
            "#pragma unroll",
            "for (int h = 0; h < 2; ++h) {",
            "  const int64_t i = i0 + lane / 4 + 8 * h;",
            "  if (i >= rows) continue;",
            *indent([*nest.apart("i", nest.rows), *lines]),
            "}",
        ]

    def text(self, name: str, needs: Needs) -> tuple[list[str], list[str]]:
        """Return the kernel and the statements that launch it."""
        needs.attention = True
        nest, names = self.nest, self.names
        declared = ", ".join(f"{ctype} {n}" for ctype, n, _ in self.parameters())
        rows, keys, times = (names.product(part) for part in (nest.rows, nest.keys, nest.batch))
        ahead = any(band.after for band in nest.bands)  # the tiles with the most to walk along come first
        kernel = [
            f"// {', '.join(self.written)}: sums along {keys} rows for each of {rows}, {times} times",
            "template <int FAST>",
            f"__global__ void __launch_bounds__(128) {name}({declared}, int64_t tiles) {{",
            "  extern __shared__ float shared[];",
            f"  const int64_t rows = {rows}, keys = {keys}, t = blockIdx.x, b = t / tiles;",
            f"  const int64_t row0 = ({'tiles - 1 - t % tiles' if ahead else 't % tiles'}) * {KEPT};",
            *indent(self.lambdas()),
            *indent(self.loop().splitlines()),
            *indent(self.results()),
            "}",
        ]
        launch, second = self.launch(name, rows, times), HopperChain(self)
        if not self.on_hopper or not second.serves():
            return kernel, ["{", *indent([*self.checks(), *launch]), "}"]
        second.note(needs)
        given = ", ".join(value for _, _, value in self.parameters())
        text, other, serves = second.text(name, declared, given)
        found = f"const bool built = by_device([] {{ return rk::built_for_hopper((const void*){name}_hopper); }});"
        both = [*self.checks(), found, f"if ({serves}) {{", *indent(other), "} else {", *indent(launch), "}"]
        return [*kernel, *text], ["{", *indent(both), "}"]

    def checks(self) -> list[str]:
        """Return what must hold at a call, as statements."""
        listed = [b for b in self.buffers if self.index == "int" and b not in self.function.scratch]
        many = '"a tensor has too many elements for this kernel"'
        return [f"RK_CHECK({c_name(b)}.numel() < INT32_MAX, {many});" for b in listed]

    def launch(self, name: str, rows: str, times: str) -> list[str]:
        """Return the statements that launch the kernel."""
        given = ", ".join(value for _, _, value in self.parameters())
        lines = [f"const int64_t tiles = ({rows} + {KEPT - 1}) / {KEPT}, blocks = {times} * tiles;"]
        lines += ["if (blocks == 0) return;", f"constexpr int bytes = {self.bytes(self.stages)};"]
        for fast in (1, 0):
            lines += [
                f"if ({'' if fast else '!'}({self.aligned()})) {{",
                f"  cudaFuncSetAttribute({name}<{fast}>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);",
                f"  {name}<{fast}><<<blocks, 128, bytes, stream>>>({given}, tiles);",
                "}",
            ]
        return lines

    def aligned(self) -> str:
        """Return whether rows of the kernel's type are copied by sixteen bytes, as C."""
        elements = 8 if self.sixteen else 4
        found = [*self.nest.kept, *self.nest.tiles]
        copied = [rows for rows in found if stored_type(rows.load.storage, "cuda") == self.type]
        if not copied or any(rows.width % elements for rows in copied):
            return "false"
        data = {name: value for _, name, value in self.parameters()}
        terms = [f"uintptr_t({data[self.pointers[rows.load.buffer]]}) % 16 == 0" for rows in copied]
        outer = {*self.nest.batch, *self.nest.rows, *self.nest.keys}
        for rows in copied:
            steps = [step for leaf, step in rows.access.steps.items() if leaf in outer]
            steps += [rows.access.constant] if rows.access.constant else []
            terms += [f"({text_of(step)}) % {elements} == 0" for step in steps]
        return " && ".join(dict.fromkeys(terms))


def chained_text(
    name: str, region: ChainedRegion, function: Function, sizes: Sizes, parameters: CudaParameters, needs: Needs
) -> tuple[list[str], list[str]]:
    """Return the kernel of chained products and the statements that launch it; `needs` notes what it calls."""
    return CudaChain(region, function, sizes, parameters).text(name, needs)
