"""Contractions in C++: packed panels of both factors, a tile of sums in registers, the epilogue on finished rows.

Comes in: a Contraction. Goes out: three small functions of the region (pack the left factor, pack the right one,
store a row) and the call of `product`, which is the same text for every region. Packing copies factors with strides,
windows and guards into contiguous panels, so that the inner loop knows nothing of them.
"""

from __future__ import annotations

from rag_kernels.offline.codegen.contraction import Contraction, Side, guard_text
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.ir import values as ir

HEAD = """#include <cstdlib>
#include <omp.h>

// Products in tiles: MR x NR sums stay in registers while the packed factors stream by, the left one from L2, the
// right one from L1. Sums over DEPTH terms run in float, and join the sums so far.
#ifdef __AVX512F__
constexpr int64_t LANE = 16, MR = 8, NR = 2 * LANE;
#else
constexpr int64_t LANE = 8, MR = 4, NR = 2 * LANE;
#endif
typedef float Vec __attribute__((vector_size(LANE * 4), may_alias));

struct Panel {
  float* data;
  explicit Panel(int64_t n) : data(static_cast<float*>(std::aligned_alloc(64, (n * 4 + 63) / 64 * 64))) {}
  ~Panel() { std::free(data); }
  Panel(const Panel&) = delete;
};

inline int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

inline void tile_of_sums(int64_t depth, const float* a, const float* b, float* c, int64_t width, bool first) {
  Vec sums[MR][2] = {};
  for (int64_t k = 0; k < depth; ++k, a += MR, b += NR) {
    const Vec b0 = *(const Vec*)b, b1 = *(const Vec*)(b + LANE);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      sums[i][0] += a[i] * b0;
      sums[i][1] += a[i] * b1;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
    Vec* to = (Vec*)(c + i * width);
    to[0] = first ? sums[i][0] : to[0] + sums[i][0];
    to[1] = first ? sums[i][1] : to[1] + sums[i][1];
  }
}

template <class Left, class Right, class Store>
void product(int64_t batches, int64_t rows, int64_t columns, int64_t depth, Left left, Right right, Store store) {
  int64_t mc = std::min(ROWS, up(rows, MR)), nc = std::min(COLUMNS, up(columns, NR));
  const int64_t kc = std::min(DEPTH, std::max<int64_t>(depth, 1)), wanted = 3 * omp_get_max_threads();
  while (batches * ((rows + mc - 1) / mc) * ((columns + nc - 1) / nc) < wanted && (nc > NR || mc > 4 * MR)) {
    if (nc >= mc && nc > NR) nc = up(nc / 2, NR);
    else mc = up(mc / 2, MR);
  }
  const int64_t across = (rows + mc - 1) / mc, along = (columns + nc - 1) / nc;
#pragma omp parallel
  {
    Panel a(mc * kc), b(nc * kc), c(mc * nc);
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < batches * across * along; ++t) {
      const int64_t z = t / (across * along), row = t % across * mc, column = t / across % along * nc;
      const int64_t m = std::min(mc, rows - row), n = std::min(nc, columns - column);
      if (depth == 0) std::fill(c.data, c.data + mc * nc, 0.0f);
      for (int64_t k0 = 0; k0 < depth; k0 += kc) {
        const int64_t kn = std::min(kc, depth - k0);
        left(z, row, m, k0, kn, a.data);
        right(z, column, n, k0, kn, b.data);
        for (int64_t j = 0; j < n; j += NR)
          for (int64_t i = 0; i < m; i += MR)
            tile_of_sums(kn, a.data + i * kn, b.data + j * kn, c.data + i * nc + j, nc, k0 == 0);
      }
      for (int64_t i = 0; i < m; ++i) store(z, row + i, column, n, c.data + i * nc);
    }
  }
}
"""

I64 = "int64_t"


def region_text(contraction: Contraction, printer: Printer) -> list[str]:
    """Return the statements of a region that is a product."""
    left, right = (
        f"const auto {name} = [&](int64_t z, int64_t start, int64_t count, int64_t k0, int64_t kn, float* panel) {{"
        for name in ("left", "right")
    )
    sizes = ", ".join(
        contraction.extents(loops)
        for loops in (contraction.batches, contraction.rows, contraction.columns, contraction.depth)
    )
    body = [
        *contraction.phase_tables("const int64_t "),
        left,
        *indent(packed(contraction, contraction.left, "MR", printer)),
        "};",
        right,
        *indent(packed(contraction, contraction.right, "NR", printer)),
        "};",
        "const auto store = [&](int64_t z, int64_t row, int64_t start, int64_t count, const float* sums) {",
        *indent(stored(contraction, printer)),
        "};",
        f"product({sizes}, left, right, store);",
    ]
    for n, phase in reversed(list(enumerate(contraction.phases))):
        body = [f"for (int64_t phase{n} = 0; phase{n} < {phase.stride}; ++phase{n}) {{", *indent(body), "}"]
    return [contraction.note(), "{", *indent(body), "}"]


def unflatten_lanes(contraction: Contraction, lanes: list[Loop], flat: str, room: str) -> list[str]:
    """Return statements for the outer lane loops' variables; the innermost runs from `from` for `len` steps."""
    *outer, inner = lanes
    size = contraction.extent(inner)
    if not outer:
        return [f"const int64_t from = {flat};", f"const int64_t len = {room};"]
    return [
        f"const int64_t from = ({flat}) % {size};",
        *contraction.unflatten(outer, f"(({flat}) / {size})", I64),
        f"const int64_t len = std::min<int64_t>({room}, {size} - from);",
    ]


def packed(contraction: Contraction, side: Side, width: str, printer: Printer) -> list[str]:
    """Return the body that packs a factor into panels of `width` lanes.

    Element (k, lane) of a panel lies at k * width + lane; missing lanes are zero. Stretches of lanes run along the
    innermost lane loop; a guard leaves a part of a stretch, and the rest is zero.
    """
    return [
        *contraction.unflatten(contraction.batches, "z", I64),
        f"for (int64_t k = 0; k < kn && count % {width}; ++k)",
        f"  for (int64_t s = count; s % {width}; ++s)",
        f"    panel[(count / {width} * kn + k) * {width} + s % {width}] = 0.0f;",
        "for (int64_t s = 0; s < count;) {",
        *indent(unflatten_lanes(contraction, side.lanes, "start + s", "count - s")),
        *indent(
            columnwise(contraction, side, width, printer)
            if along_depth(contraction, side)
            else rowwise(contraction, side, width, printer)
        ),
        "  s += len;",
        "}",
    ]


def columnwise(contraction: Contraction, side: Side, width: str, printer: Printer) -> list[str]:
    """Return loops that pack lane after lane, for a factor that is contiguous along the depth."""
    lines, text = contraction.factor(side, printer)
    return [
        "for (int64_t u = 0; u < len; ++u) {",
        f"  const int64_t {side.lanes[-1].var} = {contraction.variable(side.lanes[-1], '(from + u)')};",
        f"  float* to = panel + (s + u) / {width} * {width} * kn + (s + u) % {width};",
        "  for (int64_t k = 0; k < kn; ++k) {",
        *indent(indent([f"const int64_t {contraction.depth[0].var} = k0 + k;", *lines, f"to[k * {width}] = {text};"])),
        "  }",
        "}",
    ]


def rowwise(contraction: Contraction, side: Side, width: str, printer: Printer) -> list[str]:
    """Return loops that pack all lanes of a stretch for one k after the other."""
    inner = side.lanes[-1]
    along = [g for g in side.guards if set(ir.own_atoms(g)) & set(inner.leaves)]
    whole = [guard_text(contraction, g, printer) for g in side.guards if g not in along]
    scope = Scope()
    row = [f"const int64_t {inner.var}_0 = {contraction.variable(inner, 'from')};"]
    bounds = [f"({text})" for text in whole]
    row.append(f"int64_t low = 0, high = {' && '.join(bounds) + ' ? len : 0' if bounds else 'len'};")
    for g in along:
        row += ["{", f"  const int64_t {inner.var} = {inner.var}_0;", *indent(lane_bounds(contraction, g, inner)), "}"]
    row += hoisted(contraction, side, inner, printer, scope)
    text = printer.emit(side.value, scope)
    lane = f"const int64_t {inner.var} = {inner.var}_0 + (done + u) * {stride_of(contraction, inner)};"
    read = indent(indent([lane, *scope.lines, f"to[u] = {text};"]))
    part = ["#pragma omp simd", "for (int64_t u = 0; u < n; ++u) {", *indent(read), "}"]
    if side.guards:
        part = [
            "const int64_t first = std::min(std::max(low - done, int64_t(0)), n), last = std::min(high - done, n);",
            "for (int64_t u = 0; u < first; ++u) to[u] = 0.0f;",
            "for (int64_t u = std::max(last, first); u < n; ++u) to[u] = 0.0f;",
            "#pragma omp simd",
            "for (int64_t u = first; u < last; ++u) {",
            *indent(read),
            "}",
        ]
    row += [
        "for (int64_t done = 0, n; done < len; done += n) {",
        f"  const int64_t off = (s + done) % {width};",
        f"  n = std::min({width} - off, len - done);",
        f"  float* to = panel + (s + done - off) * kn + k * {width} + off;",
        f"  if (n == {width} && low <= done && done + n <= high) {{",
        "#pragma omp simd",
        f"    for (int64_t u = 0; u < {width}; ++u) {{",
        *indent(indent(read)),
        "    }",
        "    continue;",
        "  }",
        *indent(part),
        "}",
    ]
    return over_depth(contraction, row)


def stride_of(contraction: Contraction, loop: Loop) -> int:
    """Return the stride of a loop within its phase, or 1."""
    found = contraction.phase_of(loop)
    return found[1].stride if found else 1


def lane_bounds(contraction: Contraction, guard: ir.Index, inner: Loop) -> list[str]:
    """Return statements that narrow low..high to the lanes for which a guard holds.

    The guard's position grows evenly along the lanes.
    """
    assert guard.limit is not None
    step = sum(f for atom, f in guard.form.terms if atom.leaves() == inner.leaves) * stride_of(contraction, inner)
    limit = f"{contraction.nest.names.product(guard.limit)} * {guard.every}"
    return [
        f"const int64_t at = {contraction.nest.position(guard.form)};",
        f"low = std::max(low, at < 0 ? (-at + {step - 1}) / {step} : 0);",
        f"high = std::min(high, at < {limit} ? ({limit} - at + {step - 1}) / {step} : 0);",
    ]


def hoisted(contraction: Contraction, side: Side, inner: Loop, printer: Printer, scope: Scope) -> list[str]:
    """Return statements that divide a phase's positions once a stretch: from there they grow by one a lane."""
    found = contraction.phase_of(inner)
    lines: list[str] = []
    for load in side.loads:
        for n, (value, _) in enumerate(contraction.nest.accesses[load].values):
            if found and found[1].output in ir.tree_atoms(value) and value.dtype == "int64":
                text = printer.emit(value, inside := Scope())
                lines += [
                    f"int64_t place{n};",
                    f"{{ const int64_t {inner.var} = {inner.var}_0;",
                    *indent(inside.lines),
                    f"  place{n} = {text}; }}",
                ]
                scope.known[value] = f"(place{n} + done + u)"
    return lines


def along_depth(contraction: Contraction, side: Side) -> bool:
    """Return whether the factor is contiguous along the depth rather than along its lanes."""
    if len(contraction.depth) != 1 or side.guards or contraction.phases:
        return False
    accesses = [contraction.nest.accesses[v] for v in side.loads]
    steps = [a.steps.get(contraction.depth[0].leaves[-1], {}) for a in accesses]
    return all(step == {(): 1} for step in steps) and not any(a.values for a in accesses)


def over_depth(contraction: Contraction, row: list[str]) -> list[str]:
    """Return the loop over k with the variables of the depth loops counted along."""
    if len(contraction.depth) == 1:
        (loop,) = contraction.depth
        step = f"const int64_t {loop.var} = {contraction.variable(loop, '(k0 + k)')};"
        return ["for (int64_t k = 0; k < kn; ++k) {", *indent([step, *row]), "}"]
    sizes = [contraction.extent(loop) for loop in contraction.depth]
    start, below = [], "1"
    for n in reversed(range(len(sizes))):
        wrapped = f" % {sizes[n]}" if n else ""
        start.append(f"int64_t d{n} = k0 / ({below}){wrapped};")
        below = f"{below} * {sizes[n]}"
    steps = [
        f"const int64_t {loop.var} = {contraction.variable(loop, f'd{n}')};" for n, loop in enumerate(contraction.depth)
    ]
    carry = "++d0;"
    for n in range(1, len(sizes)):
        carry = f"if (++d{n} == {sizes[n]}) {{ d{n} = 0; {carry} }}"
    return [*start, "for (int64_t k = 0; k < kn; ++k) {", *indent([*steps, *row, carry]), "}"]


def stored(contraction: Contraction, printer: Printer) -> list[str]:
    """Return the epilogue of one row, and its stores."""
    *_, inner = contraction.columns
    scope = Scope()
    scope.known[contraction.total] = "sums[s + u]"
    stores = []
    for buffer, value in contraction.nest.region.stores.items():
        text = printer.emit_stored(buffer, value, scope)
        stores.append(
            f"{printer.pointers[buffer]}[{contraction.nest.offset(contraction.nest.stores[buffer]) or '0'}] = {text};"
        )
    lane = f"const int64_t {inner.var} = {contraction.variable(inner, '(from + u)')};"
    return [
        *contraction.unflatten(contraction.batches, "z", I64),
        *contraction.unflatten(contraction.rows, "row", I64),
        "for (int64_t s = 0; s < count;) {",
        *indent(unflatten_lanes(contraction, contraction.columns, "start + s", "count - s")),
        "#pragma omp simd",
        "  for (int64_t u = 0; u < len; ++u) {",
        *indent(indent([lane, *scope.lines, *stores])),
        "  }",
        "  s += len;",
        "}",
    ]
