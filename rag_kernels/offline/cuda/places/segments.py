"""Segments in CUDA: threads walk through the rows of each, with columns side by side; nothing is joined atomically.

Comes in: a SegmentRegion of a Function. Goes out: its kernels and their launch: one that takes vectors of columns, one
that takes an element. A team of threads has a segment, and those of a block with long segments take them together.
Before that, stretches of PART rows that lie within one segment are joined by a block each, so that a segment of any
length keeps the device busy; what they come to is read in place of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop, Nest
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.own_text import nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Printer, Scope, literal
from rag_kernels.offline.cuda.elements.found_vectors import find_quads, width_of
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.kernel_text import KernelText, Parameter, arguments_of, constexprs
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import SegmentRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import c_name
from rag_kernels.offline.lowering.steps import Segmented

HEAD = """// Segments: a block is threads along columns, walkers of a segment, and segments.
namespace segments {
constexpr unsigned BLOCK = 256, MOST = 32;  // threads of a block; segments that it has at most
// `part` rows are a stretch; more than `most` of a segment are taken by the whole block.
struct Shape { dim3 block; int64_t part, parts, most; unsigned tiles; };
// `AHEAD` rows are on their way at once; walkers are added while threads are too few to fill a device.
inline Shape shape(int64_t segments, int64_t rows, int64_t columns, int64_t ahead) {
  unsigned across = 1, walkers = 1;
  while (across < 32 && across < columns) across *= 2;
  const int64_t mean = rows / (segments > 0 ? segments : 1), tiles = (columns + across - 1) / across;
  while (walkers * across < 32 && walkers < mean) walkers *= 2;
  while (walkers * across < BLOCK && 2 * ahead * walkers <= mean && segments * tiles * across * walkers < (1 << 17))
    walkers *= 2;
  unsigned several = BLOCK / (across * walkers);
  if (several > MOST) several = MOST;
  const int64_t usual = 4 * mean / walkers, most = walkers * (usual > 16 * ahead ? usual : 16 * ahead);
  int64_t part = 512;
  while (rows / part > 2048) part *= 2;
  return Shape{dim3(across, walkers, several), part, rows / part, most, unsigned(tiles)};
}
// The first number below `n` of which `is_behind` does not hold, found by a warp; it holds of those before it.
template <class F> __device__ int64_t first_not(int64_t n, F is_behind) {
  const unsigned lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t step = (high - low + 31) / 32, place = low + step * lane;
    const unsigned held = __ballot_sync(~0u, place < high && is_behind(place));
    const int64_t count = __popc(held), found = low + step * count;
    if (count == 0) return low;
    low = found - step + 1;
    high = found < high ? found : high;
  }
  return low;
}
// What `walkers` neighbours along the block's threads come to, in the first of them.
template <class F, class T, unsigned N> __device__ void meet(T (&mine)[N], T* s, unsigned walker, unsigned walkers) {
  const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  for (unsigned half = walkers / 2; half > 0; half /= 2) {
    __syncthreads();
#pragma unroll
    for (unsigned u = 0; u < N; ++u) s[u * BLOCK + t] = mine[u];
    __syncthreads();
    if (walker < half) {
#pragma unroll
      for (unsigned u = 0; u < N; ++u) mine[u] = F()(mine[u], s[u * BLOCK + t + half * blockDim.x]);
    }
  }
}
}  // namespace segments
"""
AHEAD = 4  # rows that a thread loads before it joins the first


@dataclass(slots=True)
class SegmentKernel(VectorizedRegion):
    """Prints the walk through the rows of segments, `width` columns a thread."""

    rows: Loop | None = None  # None where there is one
    columns: tuple[Loop, ...] = ()

    @classmethod
    def of_segments(
        cls, region: SegmentRegion, function: Function, sizes: Sizes, parameters: CudaParameters, *, wide: bool
    ) -> SegmentKernel | None:
        """Return the kernel of a region; None where it is to be `wide` and no vectors fit its columns."""
        step = region.segmented
        own, rows = ir.leaves(step.dims[0]), ir.leaves(step.rows)
        columns = [leaf for group in step.dims[1:] for leaf in ir.leaves(group)]
        nest = nest_of(region, [*own, *rows, *columns], sizes.names)
        loops, lane = nest.outer, None
        if wide and not columns:
            return None
        if wide:
            last = loops[-1]
            lane = Loop(last.leaves, "l", last.size, last.count)
            nest = Nest(region, "point", loops[:-1], [], lane, nest.names, nest.accesses, nest.stores)
        printer = Printer(nest, function.pointers, function.storage, on_gpu(near=function.near))
        scratch = tuple(c_name(b) for b in function.scratch)
        made = cls(nest, printer, {}, parameters=parameters, constants=sizes.constants, scratch=scratch)
        made.rows = loops[len(own)] if rows else None
        made.width = width_of(made) if wide else 1
        if wide and not (find_quads(made) and step.buffer in made.targets):
            return None
        made.columns = (*loops[len(own) + len(rows) : -1], made.quad) if wide else tuple(loops[len(own) + len(rows) :])
        return made

    @property
    def step_of(self) -> Segmented:
        region = self.nest.region
        assert isinstance(region, SegmentRegion)
        return region.segmented

    @property
    def values(self) -> tuple[ir.Value, ...]:
        """Return what a row's elements are; bounds have functions of their own."""
        return (self.step_of.value,)

    @property
    def many(self) -> str:
        """Return the number of segments, as C."""
        return self.nest.names.product(self.step_of.dims[0])

    @property
    def length(self) -> str:
        """Return the number of rows, as C."""
        return self.nest.names.product(self.step_of.rows)

    def bound(self, name: str, value: ir.Value) -> list[str]:
        """Return a function that says where a segment begins or ends, inside of the rows."""
        scope = Scope()
        text = self.printer.emit(value, scope)
        own = [f"const int64_t {self.nest.var(leaf)} = segment;" for leaf in ir.leaves(self.step_of.dims[0])]
        return [
            f"const auto {name} = [&](int64_t segment) -> int64_t {{",
            *indent([*own, *scope.lines, f"const int64_t at = {text};"]),
            f"  return at < 0 ? 0 : at < {self.length} ? at : {self.length};",
            "};",
        ]

    def row(self) -> list[str]:
        """Return a function that makes a row's elements, and says whether the row takes part."""
        step, task = self.step_of, Scope()
        ctype = CTYPES[step.value.dtype]
        takes = self.printer.emit(step.takes, task) if step.takes is not None else "true"
        if self.width > 1:
            self.begin(task)
            self.settle_lane(task)
        inner = self.open_inner(task)
        text = self.printer.emit(step.value, inner)
        inner.lines.append(f"found[{'u' if self.width > 1 else '0'}] = {text};")
        lines = [*task.lines, *(self.quad_lines(inner.lines) if self.width > 1 else inner.lines)]
        var = [f"const int64_t {self.rows.var} = place;"] if self.rows else []
        head = f"const auto row = [&](int64_t place, {ctype} (&found)[{self.width}]) -> bool {{"
        return [head, *indent([*var, *lines, f"return {takes};"]), "};"]

    def head(self) -> list[str]:
        """Return what both kernels begin with: which columns a thread has, and the functions of rows and bounds."""
        step = self.step_of
        names = [self.total(list(self.columns)), "threadIdx.x + uint32_t(blockDim.x) * (blockIdx.x % tiles_)"]
        return [
            f"typedef {CTYPES[step.value.dtype]} T;",
            f"constexpr unsigned N = {self.width}, AHEAD = {AHEAD};",
            f"__shared__ {CTYPES[step.value.dtype]} s[{256 * self.width}];",
            *(["__shared__ unsigned s_count[256];"] if step.takes is not None else []),
            f"const int64_t columns = {names[0]}, q_ = {names[1]}, q = q_ < columns ? q_ : 0;",
            *self.indices(list(self.columns), "q"),
            *self.bound("begins", step.begin),
            *self.bound("ends", step.end),
            *self.row(),
        ]

    def walker(self) -> list[str]:
        """Return a function that joins every `walkers`-th row of a stretch to what a thread has."""
        step = self.step_of
        start, functor = start_of(step.kind, step.value.dtype), C[step.kind].functor
        takes = step.takes is not None
        place = "const int64_t j = i + a * int64_t(walkers), at = j < count ? j : i;"
        return [
            f"const auto walk = [&](int64_t count, unsigned walker, unsigned walkers, auto place, T (&mine)[N]"
            f"{', unsigned& taken' if takes else ''}) {{",
            "  for (int64_t i = walker; i < count; i += int64_t(walkers) * AHEAD) {",
            "    T found[AHEAD][N];",
            "    bool there[AHEAD];",
            "#pragma unroll",
            "    for (unsigned a = 0; a < AHEAD; ++a) {",
            f"      {place}",
            "      there[a] = row(place(at), found[a]) && j < count;",
            "    }",
            "#pragma unroll",
            "    for (unsigned a = 0; a < AHEAD; ++a) {",
            *(["      taken += there[a];"] if takes else []),
            "#pragma unroll",
            "      for (unsigned u = 0; u < N; ++u)",
            f"        mine[u] = {functor}()(mine[u], there[a] ? found[a][u] : T({start}));",
            "    }",
            "  }",
            "};",
        ]

    def begun(self, inside: str = "") -> list[str]:
        """Return what a thread has before it joins any row."""
        step = self.step_of
        return [
            f"{inside}T mine[N];",
            "#pragma unroll",
            f"{inside}for (unsigned u = 0; u < N; ++u) mine[u] = {start_of(step.kind, step.value.dtype)};",
            *([f"{inside}unsigned taken[1] = {{0}};"] if step.takes is not None else []),
        ]

    def parts(self) -> list[str]:
        """Return the body that joins the stretches which lie within one segment, a block each."""
        step, takes = self.step_of, self.step_of.takes is not None
        functor = C[step.kind].functor
        return [
            "const int64_t part = blockIdx.x / tiles_, from = part * part_;",
            "const unsigned walkers = blockDim.y * blockDim.z, walker = threadIdx.y + blockDim.y * threadIdx.z;",
            "const int64_t owner = segments::first_not(many_, [&](int64_t i) { return ends(i) <= from; });",
            "if (owner >= many_ || begins(owner) > from || ends(owner) < from + part_) return;",
            *self.begun(),
            "walk(part_, walker, walkers, [&](int64_t i) { return from + i; }, mine"
            f"{', taken[0]' if takes else ''});",
            f"segments::meet<{functor}>(mine, s, walker, walkers);",
            *(["segments::meet<Sum>(taken, s_count, walker, walkers);"] if takes else []),
            "if (walker > 0 || q_ >= columns) return;",
            "#pragma unroll",
            "for (unsigned u = 0; u < N; ++u) joined_[(part * columns + q) * N + u] = mine[u];",
            *(["if (q == 0) counted_[part] = taken[0];"] if takes else []),
        ]

    def whole(self) -> list[str]:
        """Return the body that joins segments: each team its own if it is short, then the block each long one."""
        step, takes = self.step_of, self.step_of.takes is not None
        functor = C[step.kind].functor
        own = [f"const int64_t {self.nest.var(leaf)} = segment;" for leaf in ir.leaves(step.dims[0])]
        count = "int64_t(taken[0])" if takes else "last - first"
        return [
            "__shared__ bool long_ones[segments::MOST];",
            "const int64_t base = int64_t(blockIdx.x / tiles_) * blockDim.z;",
            "for (unsigned turn = 0; turn <= blockDim.z; ++turn) {",
            "  if (turn > 0 && !long_ones[turn - 1]) continue;",
            "  const int64_t segment = base + (turn > 0 ? turn - 1 : threadIdx.z);",
            "  const unsigned walkers = turn > 0 ? blockDim.y * blockDim.z : blockDim.y;",
            "  const unsigned walker = threadIdx.y + (turn > 0 ? blockDim.y * threadIdx.z : 0);",
            "  const bool exists = segment < many_;",
            "  const int64_t first = exists ? begins(segment) : 0, end_ = exists ? ends(segment) : 0;",
            "  const int64_t last = end_ > first ? end_ : first;",
            "  const bool is_long = blockDim.z > 1 && last - first > most_;",
            "  const bool mine_now = exists && (turn > 0 || !is_long);",
            "  if (turn == 0 && threadIdx.x == 0 && threadIdx.y == 0) long_ones[threadIdx.z] = exists && is_long;",
            "  int64_t whole = (first + part_ - 1) / part_, past = last / part_;  // stretches that are joined already",
            "  if (past <= whole || whole >= parts_) whole = past = 0;",
            "  if (past > parts_) past = parts_;",
            "  const int64_t head = past > whole ? whole * part_ - first : last - first, tail = past * part_ - head;",
            *self.begun("  "),
            "  if (mine_now) {",
            "    const int64_t count = past > whole ? head + last - past * part_ : head;",
            "    walk(count, walker, walkers, [&](int64_t i) { return i < head ? first + i : i + tail; }, mine"
            f"{', taken[0]' if takes else ''});",
            "    for (int64_t i = whole + walker; i < past; i += walkers) {",
            "#pragma unroll",
            "      for (unsigned u = 0; u < N; ++u)",
            f"        mine[u] = {functor}()(mine[u], joined_[(i * columns + q) * N + u]);",
            *(["      taken[0] += counted_[i];"] if takes else []),
            "    }",
            "  }",
            f"  segments::meet<{functor}>(mine, s, walker, walkers);",
            *(["  segments::meet<Sum>(taken, s_count, walker, walkers);"] if takes else []),
            "  __syncthreads();",
            "  if (!mine_now || walker > 0 || q_ >= columns) continue;",
            *indent(own),
            f"  const int64_t many = {count};",
            *indent(self.stored(step)),
            "}",
        ]

    def stored(self, step: Segmented) -> list[str]:
        """Return the statements that store what a segment came to, `many` rows of it."""
        ctype, mine = CTYPES[step.value.dtype], f"mine[{'u' if self.width > 1 else '0'}]"
        result = f"{mine} / T(many)" if step.mean else mine
        element = f"many > 0 ? {result} : {ctype}({literal(step.empty, step.value.dtype)})"
        if self.width > 1:
            name = self.targets[step.buffer]
            each = ["#pragma unroll", f"for (unsigned u = 0; u < N; ++u) {name}.x[u] = {element};"]
            return [f"{self.vectors[name].type} {name};", *each, self.put(name)]
        offset = self.nest.offset(self.nest.stores[step.buffer]) or "0"
        return [f"{self.printer.pointers[step.buffer]}[{offset}] = {element};"]

    def kernels(self, name: str, function: Function) -> tuple[list[str], list[str]]:
        """Return both kernels, and the statements that launch them."""
        step, ctype = self.step_of, CTYPES[self.step_of.value.dtype]
        takes = step.takes is not None
        head = [*self.head(), *self.walker()]
        bodies = {f"{name}_parts": [*head, *self.parts()], name: [*head, *self.whole()]}
        both = [line for body in bodies.values() for line in body]
        parameters = self.parameters_of(both, function)
        const = {f"{name}_parts": "", name: "const "}
        text = [f"// {step.buffer}: {self.many} segments of {self.length} rows"]
        for kernel, body in bodies.items():
            own = [Parameter(f"{const[kernel]}{ctype}*", "joined_")]
            own += [Parameter(f"{const[kernel]}unsigned*", "counted_")] if takes else []
            own += [Parameter("int64_t", n) for n in ("many_", "part_", "parts_", "most_")]
            own.append(Parameter("unsigned", "tiles_"))
            body = [*constexprs(self.constants_in(body)), *body]
            text += KernelText((), "__global__ void __launch_bounds__(256) ", kernel, [*parameters, *own], body).lines()
        given = ", ".join(
            [
                *arguments_of(parameters),
                "joined",
                *(["counted"] if takes else []),
                "many, shape.part, shape.parts, shape.most, shape.tiles",
            ]
        )
        size = f"shape.parts * ({self.total(list(self.columns))}) * {self.width}"
        launch = [
            f"const int64_t many = {self.many};",
            f"const segments::Shape shape = segments::shape(many, {self.length}, "
            f"small({self.total(list(self.columns))}), {AHEAD});",
            f"{ctype}* joined = shape.parts > 0 ? scratch<{ctype}>({size}, stream) : nullptr;",
            *(
                ["unsigned* counted = shape.parts > 0 ? scratch<unsigned>(shape.parts, stream) : nullptr;"]
                if takes
                else []
            ),
            "const dim3 block = shape.block;",
            f"if (shape.parts > 0) {name}_parts<<<blocks(shape.parts * shape.tiles), block, 0, stream>>>({given});",
            f"{name}<<<blocks((many + block.z - 1) / block.z * shape.tiles), block, 0, stream>>>({given});",
            "if (joined) cudaFreeAsync(joined, stream);",
            *(["if (counted) cudaFreeAsync(counted, stream);"] if takes else []),
        ]
        return text, launch


def segment_text(
    name: str, region: SegmentRegion, function: Function, sizes: Sizes, parameters: CudaParameters
) -> tuple[list[str], list[str]]:
    """Return the kernels of segments, and the statements that launch those that fit a call."""
    plain = SegmentKernel.of_segments(region, function, sizes, parameters, wide=False)
    assert plain is not None
    text, launch = plain.kernels(name, function)
    wide = None if parameters.vector == 1 else SegmentKernel.of_segments(region, function, sizes, parameters, wide=True)
    if wide is not None:
        more, other = wide.kernels(f"{name}_wide", function)
        condition = wide.condition(f"{name}_wide")
        text += more
        launch = [f"if ({condition}) {{", *indent(other), "} else {", *indent(launch), "}"] if condition else other
    total = region.segmented.dims
    count = plain.nest.names.product(tuple(atom for group in total for atom in group))
    return text, [f"if ({count}) {{", *indent(launch), "}"]
