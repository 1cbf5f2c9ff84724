"""Attention in CUDA: one kernel on mma.sync, a second one on wgmma where that serves, keys split where rows are few.

Comes in: an AttentionRegion of a Function. Goes out: the kernels and their launches. The fixed texts are
`texts/attention.py` and `attention_hopper.py`; here stand the functions of the region: rows of its tensors, scores,
which keys a row may see, where results go.
"""

from __future__ import annotations

import math

from rag_kernels.offline.codegen.attention import AttentionNest
from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access, store_access, text_of
from rag_kernels.offline.codegen.operator_texts import Form, on_gpu
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.attention.attention_hopper import LN2, HopperAttention
from rag_kernels.offline.cuda.needs import Needs
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import AttentionRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.parameters import Number, c_name
from rag_kernels.offline.lowering.steps import Attended

LOG2E = "1.4426950408889634"
ROOM = 99 << 10  # bytes of shared memory that a block of any device from sm_80 on may have
ROOM_ON_HOPPER = 160 << 10


def of_sixteen_bits(attended: Attended) -> bool:
    """Return whether all that an attention multiplies are numbers of one type of sixteen bits."""
    same = {attended.q.storage, attended.k.storage, attended.v.storage}
    return len(same) == 1 and same <= HALF and attended.half


class CudaAttention:
    """Prints one attention."""

    def __init__(self, region: AttentionRegion, function: Function, sizes: Sizes, parameters: CudaParameters) -> None:
        self.tuned = parameters
        self.region, self.function, self.names = region, function, sizes.names
        self.nest = AttentionNest.of(region, sizes.names)
        a = region.attended
        self.depth, self.columns = ir.size_of(self.nest.depth), ir.size_of(self.nest.columns)
        self.sixteen = of_sixteen_bits(a)
        self.type = stored_type(a.q.storage, "cuda") if self.sixteen else "float"
        self.storage = function.storage
        read = [a.q.buffer, a.k.buffer, a.v.buffer]
        read += [v.buffer for v in ir.walk(*self.nest.expressions) if isinstance(v, ir.Load) and v is not a.scores]
        self.buffers = [*dict.fromkeys(read), *a.stored]
        small = all(math.prod(function.specs[b].shape) < 1 << 31 for b in self.buffers)
        self.index = "int" if small else "int64_t"

    @property
    def rows(self) -> int:
        """Return the number of queries of a block."""
        rows = ir.size_of(self.nest.rows)
        return 16 if rows <= 16 else 32 if rows <= 32 else 64

    @property
    def keys(self) -> int:
        """Return the number of keys of a tile."""
        least = 16 * (4 // (self.rows // 16))
        wide = max(self.depth, self.columns)
        if self.sixteen and self.rows == 16 and wide <= 128 and self.room > ROOM:
            return 128  # of few queries memory bounds it: the more at once, the less a key costs
        wanted = (64 if wide <= 128 else 32) if self.sixteen else (64 if wide <= 32 else 32)
        return max(least, wanted)

    def stages(self) -> int:
        """Return how many tiles of keys a block holds."""
        size = 2 if self.sixteen else 4
        lanes = [(n + 15) // 16 * 16 + 16 // size for n in (self.depth, self.columns)]
        needed = (self.rows * lanes[0] + 2 * self.keys * sum(lanes)) * size
        return 2 if needed <= self.room else 1

    @property
    def room(self) -> int:
        """Return the bytes of shared memory that a block may have."""
        return ROOM_ON_HOPPER if self.tuned.attention == 2 else ROOM

    def parameters(self) -> list[tuple[str, str, str]]:
        """Return what a kernel gets: the type, the name, and the expression at its launch."""
        out = []
        for buffer in self.buffers:
            ctype = stored_type(self.storage[buffer], "cuda")
            const = "" if buffer in self.region.attended.stored else "const "
            name = c_name(buffer)
            data = f"{name}_data" if buffer in self.function.scratch else f"{name}.data"
            out.append((f"{const}{ctype}*", f"{name}_p", data))
        leaves = [*self.nest.batch, *self.nest.rows, *self.nest.keys, *self.nest.depth, *self.nest.columns]
        values = [v for v in ir.walk(*self.region.stores.values()) if isinstance(v, ir.Load)]
        leaves += [leaf for v in values for group in v.stored for leaf in ir.leaves(group)]
        leaves += [leaf for dims in self.region.attended.stored.values() for g in dims for leaf in ir.leaves(g)]
        leaves += [leaf for v in ir.walk(*self.nest.expressions) if isinstance(v, ir.Index) for leaf in ir.own_atoms(v)]
        for name in dict.fromkeys(self.names[leaf] for leaf in leaves):
            out.append((f"const {self.index}", name, f"{self.index}({name})"))
        out += [(f"const {n.ctype}", n.name, n.name) for n in self.function.order if isinstance(n, Number)]
        return out

    def lambdas(self, at: str) -> list[str]:
        """Return the functions of the region; the index of a batch is `at`."""
        nest, a = self.nest, self.region.attended
        lines = nest.apart(at, nest.batch)
        row, key = nest.apart("i", nest.rows), nest.apart("n", nest.keys)
        pointer = {b: f"{c_name(b)}_p" for b in self.buffers}
        for name, load, access in (("q", a.q, nest.q), ("k", a.k, nest.k), ("v", a.v, nest.v)):
            lines.append(f"const auto* const {name}_at = {pointer[load.buffer]} + {nest.offset(access, nest.batch)};")
        for name, access, part, index, apart in (
            ("query", nest.q, nest.rows, "i", row),
            ("key", nest.k, nest.keys, "n", key),
            ("value", nest.v, nest.keys, "n", key),
        ):
            where = f"return {name[0]}_at + {nest.offset(access, part)};"
            lines += [f"const auto of_{name} = [&](int64_t {index}) {{ {' '.join([*apart, where])} }};"]
        lines += [f"const int64_t limit{n} = {text};" for n, text in enumerate(self.limits())]
        return [*lines, *nest.bounds(row), *self.score(row, key)]

    def limits(self) -> list[str]:
        """Return the keys at which a batch's limits stand, as C."""
        pointer = {b: f"{c_name(b)}_p" for b in self.buffers}
        return self.nest.limit_values(self.nest.printer(pointer, self.storage, self.form), "attend::most_of")

    @property
    def form(self) -> Form:
        """Return how operators are written: weights of sixteen bits need no last bits of a score."""
        return on_gpu(near=self.sixteen)

    def score(self, row: list[str], key: list[str]) -> list[str]:
        """Return the function that makes a score of a product: in powers of two, or as `unit` has it."""
        if self.nest.factor is not None:
            return [
                f"const float of_products = float({self.nest.scale()} * {LOG2E});",
                "const auto of_score = [&](int64_t, int64_t, float part) { return part * of_products; };",
            ]
        pointer = {b: f"{c_name(b)}_p" for b in self.buffers}
        lines, result = self.nest.scored(self.nest.printer(pointer, self.storage, self.form), "part")
        return [
            "const auto of_score = [&](int64_t i, int64_t n, float part) {",
            *indent([*row, *key, *lines, f"return float({result});"]),
            "};",
        ]

    @property
    def unit(self) -> str:
        """Return what makes powers of two of differences of scores.

        Of the differences, not of the scores: what is masked with the least number would be infinite, and a row of
        nothing else has equal weights.
        """
        return "1.0f" if self.powers_of_two else f"{LOG2E}f"

    def put(self) -> list[str]:
        """Return the function that stores an element of a row's result."""
        nest, a = self.nest, self.region.attended
        column = nest.stride(nest.out, nest.columns)
        assert column is not None
        empty = "NAN" if math.isnan(a.empty) else f"{a.empty!r}f"
        place = f"{c_name(a.buffer)}_p[{nest.offset(nest.out, nest.batch, nest.rows)} + e * ({column})]"
        return [
            "const auto of_put = [&](int64_t i, int64_t e, float total, float top, float all, float share) {",
            *indent(nest.apart("i", nest.rows)),
            f"  {place} = all == 0.0f ? {empty} : total * share;",
            *(
                [f"  if (e == 0) {self.total(f'top * {LN2}' if self.powers_of_two else 'top', 'all')}"]
                if a.total
                else []
            ),
            "};",
        ]

    def total(self, top: str, all_: str) -> str:
        """Return the statement that stores the largest score of a row, and the log of the sum behind it."""
        a, access = self.region.attended, store_access(self.region, self.region.attended.total, self.names)
        place = self.nest.offset(access, self.nest.batch, self.nest.rows)
        return f"{c_name(a.top)}_p[{place}] = {top}, {c_name(a.total)}_p[{place}] = logf({all_});"

    @property
    def powers_of_two(self) -> bool:
        """Return whether scores are in powers of two: where they are products times a number."""
        return self.nest.factor is not None

    def text(self, name: str, needs: Needs) -> tuple[list[str], list[str]]:
        """Return the kernels and the statements that launch them."""
        needs.attention = True
        params = self.parameters()
        declared = ", ".join(f"{ctype} {n}" for ctype, n, _ in params)
        given = ", ".join(value for _, _, value in params)
        kernels, launch = [*self.kernel(name, declared), *self.join(name, declared)], self.launch(name, given)
        second = HopperAttention(self, keys=self.tuned.keys, in_turn=self.tuned.in_turn)
        if self.tuned.attention < 2 or not second.serves():
            return kernels, ["{", *indent(launch), "}"]
        second.note(needs)
        text, other, serves = second.text(name, declared, given)
        found = f"const bool built = by_device([] {{ return rk::built_for_hopper((const void*){name}_hopper); }});"
        both = [found, f"if ({serves}) {{", *indent(other), "} else {", *indent(launch), "}"]
        return [*kernels, *text], ["{", *indent(both), "}"]

    @property
    def once(self) -> str:
        """Return whether one product of TF32 will do, as C: where it is allowed, and a formula has PyTorch's products.

        Its own operator multiplies fp32 exactly even then.
        """
        return str(self.tuned.tensor == 2 and not self.sixteen and math.isnan(self.region.attended.empty)).lower()

    @property
    def shape(self) -> str:
        """Return the template arguments of the fixed text."""
        return f"{self.type}, {self.depth}, {self.columns}, {self.keys}, {self.rows}, {self.stages()}"

    def kernel(self, name: str, declared: str) -> list[str]:
        """Return the kernel on mma.sync: a block has a tile of rows, and where keys are split a part of them."""
        nest, names, tile = self.nest, self.names, self.rows
        rows, keys = names.product(nest.rows), names.product(nest.keys)
        return [
            f"// {self.region.attended.buffer}: attention of {rows} rows to {keys} keys, "
            f"{names.product(nest.batch)} times",
            "template <int FAST>",
            f"__global__ void __launch_bounds__(128) {name}(",
            f"    {declared}, int64_t tiles, int64_t splits, float* scratch_p) {{",
            "  extern __shared__ float shared[];",
            f"  const int64_t rows = {rows}, keys = {keys};",
            "  const int64_t t = blockIdx.x, split = t % splits, b = t / splits / tiles;",
            f"  const int64_t row0 = (tiles - 1 - t / splits % tiles) * {tile};",
            *indent(self.lambdas("b")),
            *indent(self.put()),
            f"  const int64_t until = attend::least_of(row0 + {tile - 1}, rows - 1);",
            f"  int64_t low = attend::most_of(of_first(row0), int64_t(0)) / {self.keys} * {self.keys};",
            "  int64_t high = attend::least_of(of_end(until), keys);",
            f"  const int64_t parts = (high - low + {self.keys - 1}) / {self.keys};",
            f"  const int64_t each = (parts + splits - 1) / splits * {self.keys};",
            "  low += split * each, high = attend::least_of(high, low + each);",
            "  const auto give = [&](int64_t i, int64_t e, float total, float top, float all, float share) {",
            "    if (splits == 1) return of_put(i, e, total, top, all, share);",
            "    const int64_t at = (b * rows + i) * splits + split;",
            "    const int64_t of_all = int64_t(gridDim.x / tiles / splits) * rows * splits;",
            "    if (e == 0) scratch_p[at] = top, scratch_p[of_all + at] = all;",
            f"    scratch_p[2 * of_all + at * {self.columns} + e] = total;",
            "  };",
            f"  attend::run<{self.shape}, FAST, {self.once}>((char*)shared, rows, keys, row0, low, high, of_query,",
            f"      of_key, of_value, of_score, of_first, of_end, {self.unit}, give);",
            "}",
        ]

    def join(self, name: str, declared: str) -> list[str]:
        """Return the kernel that joins the parts of rows whose keys were split."""
        nest = self.nest
        return [
            f"__global__ void __launch_bounds__(128) {name}_join(",
            f"    {declared}, int64_t splits, const float* scratch_p) {{",
            f"  const int64_t rows = {self.names.product(nest.rows)}, i = blockIdx.x % rows, b = blockIdx.x / rows;",
            "  const int64_t of_all = gridDim.x * splits;",
            *indent(nest.apart("b", nest.batch)),
            *indent(self.put()),
            "  const float* const at = scratch_p + blockIdx.x * splits;",
            f"  const float* const parts = scratch_p + 2 * of_all + blockIdx.x * splits * {self.columns};",
            f"  attend::join<{self.columns}>(at, at + of_all, parts, int(splits), {self.unit},",
            "      [&](int e, float total, float top, float all) { of_put(i, e, total, top, all, 1.0f / all); });",
            "}",
        ]

    def launch(self, name: str, given: str) -> list[str]:
        """Return the statements that launch both kernels."""
        nest, names = self.nest, self.names
        listed = [b for b in self.buffers if self.index == "int" and b not in self.function.scratch]
        many = '"a tensor has too many elements for this kernel"'
        return [
            *(f'RK_CHECK({c}, "this kernel needs {c}");' for c in nest.checks()),
            *(f"RK_CHECK({c_name(b)}.numel() < INT32_MAX, {many});" for b in listed),
            f"const int64_t rows = {names.product(nest.rows)}, keys = {names.product(nest.keys)};",
            f"const int64_t times = {names.product(nest.batch)};",
            "if (rows * times == 0) return;",
            f"const int64_t tiles = (rows + {self.rows - 1}) / {self.rows};",
            f"const int64_t splits = attend::splits_of(times * tiles, (keys + {self.keys - 1}) / {self.keys});",
            "const int64_t blocks = times * tiles * splits, joined = times * rows;",
            f"constexpr int bytes = attend::bytes<{self.shape}>();",
            "float* scratch_p = nullptr;",
            f"if (splits > 1) scratch_p = scratch<float>(joined * splits * {self.columns + 2}, stream);",
            f"cudaFuncSetAttribute({name}<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);",
            f"cudaFuncSetAttribute({name}<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);",
            f"if ({self.aligned()}) {{",
            f"  {name}<1><<<blocks, 128, bytes, stream>>>({given}, tiles, splits, scratch_p);",
            "} else {",
            f"  {name}<0><<<blocks, 128, bytes, stream>>>({given}, tiles, splits, scratch_p);",
            "}",
            "if (splits > 1) {",
            f"  {name}_join<<<joined, 128, 0, stream>>>({given}, splits, scratch_p);",
            "  cudaFreeAsync(scratch_p, stream);",
            "}",
        ]

    def aligned(self) -> str:
        """Return whether rows of keys and values, and of queries of their type, are copied by sixteen bytes, as C."""
        a, nest = self.region.attended, self.nest
        same = [stored_type(x.storage, "cuda") == self.type for x in (a.q, a.k, a.v)]
        if not all(same[1:]):
            return "false"
        copied = ((a.q, nest.q), (a.k, nest.k), (a.v, nest.v))[0 if same[0] else 1 :]
        elements = 8 if self.sixteen else 4
        if self.depth % elements or self.columns % elements:
            return "false"
        pointers = dict.fromkeys(
            next(v for _, n, v in self.parameters() if n == f"{c_name(x.buffer)}_p") for x, _ in copied
        )
        terms = [f"uintptr_t({p}) % 16 == 0" for p in pointers]
        steps = [s for _, access in copied for s in self.steps(access)]
        return " && ".join([*terms, *(f"({s}) % {elements} == 0" for s in dict.fromkeys(steps))])

    def steps(self, access: Access) -> list[str]:
        """Return the strides of a tensor's rows, and its offset, as C."""
        inner = {*self.nest.depth, *self.nest.columns}
        found = [text_of(step) for leaf, step in access.steps.items() if leaf not in inner]
        return [*found, *([text_of(access.constant)] if access.constant else [])]


def attention_text(
    name: str, region: AttentionRegion, function: Function, sizes: Sizes, parameters: CudaParameters, needs: Needs
) -> tuple[list[str], list[str]]:
    """Return the kernels of an attention and the statements that launch them; `needs` notes what these call."""
    return CudaAttention(region, function, sizes, parameters).text(name, needs)
