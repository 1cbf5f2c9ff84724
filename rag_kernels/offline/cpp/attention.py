"""Attention in C++: tiles of keys, for each of them all rows of a task, and the softmax joined from tile to tile.

Comes in: an AttentionRegion. Goes out: small functions of the region (rows of the tensors, scores, which keys a row may
see) and the call of `attend::run`, which is the same text for every region. Keys are packed once for all rows of a
task, so that products keep their sums in registers; one or few queries (decoding) are dotted with keys where they lie.
"""

from __future__ import annotations

from rag_kernels.offline.codegen.attention import AttentionNest
from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.kernel_function import Function
from rag_kernels.offline.codegen.loop_nest import Names
from rag_kernels.offline.codegen.operator_texts import Form
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.fusion.regions import AttentionRegion
from rag_kernels.offline.ir import values as ir

CALLED = "rk_exp"  # by what follows
HEAD = """#include <cstdlib>
#include <omp.h>

// Attention in tiles of KEYS keys. A task has up to TASK rows; BAND of them at a time meet a tile while it is near.
namespace attend {
#ifdef __AVX512F__
constexpr int64_t WIDTH = 16, SUMS = 8;
#else
constexpr int64_t WIDTH = 8, SUMS = 4;
#endif
constexpr int64_t PANEL = 2 * WIDTH, KEYS = 128, BAND = 32, TASK = 512, FEW = 4;
typedef float Wide __attribute__((vector_size(WIDTH * 4), may_alias));

struct Room {
  float* data;
  explicit Room(int64_t n) : data(static_cast<float*>(std::aligned_alloc(64, (n * 4 + 63) / 64 * 64))) {}
  ~Room() { std::free(data); }
  Room(const Room&) = delete;
};

constexpr int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

// `to` (SUMS rows of `across` numbers) = or += left (SUMS rows) times a panel of PANEL columns.
inline void multiply(int64_t depth, const float* left, int64_t stride, const float* panel, float* to, int64_t across,
                     bool add) {
  Wide sums[SUMS][2] = {};
  for (int64_t k = 0; k < depth; ++k, panel += PANEL) {
    const Wide x = *(const Wide*)panel, y = *(const Wide*)(panel + WIDTH);
#pragma GCC unroll 8
    for (int i = 0; i < SUMS; ++i) {
      sums[i][0] += left[i * stride + k] * x;
      sums[i][1] += left[i * stride + k] * y;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < SUMS; ++i) {
    Wide* const at = (Wide*)(to + i * across);
    at[0] = add ? at[0] + sums[i][0] : sums[i][0];
    at[1] = add ? at[1] + sums[i][1] : sums[i][1];
  }
}

// The weights of `count` keys in place of their scores; `top` and `sum` are those of the row so far. Returns by what
// the row's sums so far shrink.
inline float weigh(float* s, int64_t count, float& top, double& sum) {
  float most = top;
#pragma omp simd reduction(max : most)
  for (int64_t n = 0; n < count; ++n) most = s[n] > most ? s[n] : most;
  const float base = most == -INFINITY ? 0.0f : most;
  float total = 0.0f;
#pragma omp simd reduction(+ : total)
  for (int64_t n = 0; n < count; ++n) {
    s[n] = rk_exp(s[n] - base);
    total += s[n];
  }
  const float shrink = top == most ? 1.0f : rk_exp(top - base);
  sum = sum * shrink + total;
  top = most;
  return shrink;
}

template <int64_t D, int64_t E, class Query, class Key, class Value, class Score, class First, class End, class Put>
void run(int64_t batches, int64_t rows, int64_t keys, Query query, Key key, Value value, Score score, First first,
         End end, Put put) {
  constexpr int64_t ACROSS = whole(E, PANEL);
  int64_t task = std::min(TASK, whole(rows, BAND));
  while (task > BAND && batches * ((rows + task - 1) / task) < 3 * omp_get_max_threads()) task = whole(task / 2, BAND);
  const int64_t tasks = (rows + task - 1) / task;
#pragma omp parallel
  {
    Room left(task * D), out(task * ACROSS), s(BAND * KEYS), right(KEYS * D), weighed(KEYS * ACROSS);
    std::unique_ptr<float[]> top(new float[task]);
    std::unique_ptr<double[]> sum(new double[task]);
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < batches * tasks; ++t) {
      const int64_t b = t / tasks, row = (tasks - 1 - t % tasks) * task, count = std::min(task, rows - row);
      const int64_t padded = whole(count, SUMS);
      std::fill(left.data + count * D, left.data + padded * D, 0.0f);
      std::fill(out.data, out.data + padded * ACROSS, 0.0f);
      int64_t from = keys, to = 0;
      for (int64_t i = 0; i < count; ++i) {
        query(b, row + i, left.data + i * D);
        top[i] = -INFINITY, sum[i] = 0;
        from = std::min(from, std::max<int64_t>(first(b, row + i), 0));
        to = std::max(to, std::min(end(b, row + i), keys));
      }
      for (int64_t n0 = from / KEYS * KEYS; n0 < to; n0 += KEYS) {
        const int64_t n = std::min(KEYS, keys - n0), wide = whole(n, PANEL);
        const bool few = count <= FEW;
        if (!few) {
          for (int64_t j = 0; j < wide; ++j) {
            float* const panel = right.data + j / PANEL * PANEL * D + j % PANEL;
            if (j < n) {
              const auto* const from_key = key(b, n0 + j);
              for (int64_t d = 0; d < D; ++d) panel[d * PANEL] = float(from_key[d]);
            } else {
              for (int64_t d = 0; d < D; ++d) panel[d * PANEL] = 0.0f;
            }
          }
          for (int64_t j = 0; j < n; ++j) {
            const auto* const from_value = value(b, n0 + j);
            for (int64_t e = 0; e < ACROSS; e += PANEL) {
              float* const panel = weighed.data + e * n + j * PANEL;
              const int64_t there = std::min(PANEL, E - e);
              for (int64_t i = 0; i < there; ++i) panel[i] = float(from_value[e + i]);
              for (int64_t i = there; i < PANEL; ++i) panel[i] = 0.0f;
            }
          }
        }
        for (int64_t i0 = 0; i0 < count; i0 += BAND) {
          const int64_t band = std::min(BAND, count - i0);
          bool seen = false;
          for (int64_t i = i0; i < i0 + band; ++i) seen = seen || (first(b, row + i) < n0 + n && end(b, row + i) > n0);
          if (!seen) continue;
          if (few) {
            for (int64_t j = 0; j < n; ++j) {
              const auto* const from_key = key(b, n0 + j);
              for (int64_t i = 0; i < band; ++i) {
                const float* const q = left.data + (i0 + i) * D;
                float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
                for (int64_t d = 0; d < D; ++d) dot += q[d] * float(from_key[d]);
                s.data[i * KEYS + j] = dot;
              }
            }
          } else {
            for (int64_t j = 0; j < wide; j += PANEL)
              for (int64_t i = 0; i < band; i += SUMS)
                multiply(D, left.data + (i0 + i) * D, D, right.data + j * D, s.data + i * KEYS + j, KEYS, false);
          }
          for (int64_t i = 0; i < band; ++i) {
            float* const mine = s.data + i * KEYS;
            const int64_t low = std::min(std::max<int64_t>(first(b, row + i0 + i) - n0, 0), n);
            const int64_t high = std::max(std::min(end(b, row + i0 + i) - n0, n), low);
            score(b, row + i0 + i, n0, n, mine);
            for (int64_t j = 0; j < low; ++j) mine[j] = -INFINITY;
            for (int64_t j = high; j < n; ++j) mine[j] = -INFINITY;
            const float shrink = weigh(mine, n, top[i0 + i], sum[i0 + i]);
            float* const o = out.data + (i0 + i) * ACROSS;
            if (shrink != 1.0f)
              for (int64_t e = 0; e < ACROSS; ++e) o[e] *= shrink;
          }
          if (few) {
            for (int64_t j = 0; j < n; ++j) {
              const auto* const from_value = value(b, n0 + j);
              for (int64_t i = 0; i < band; ++i) {
                const float w = s.data[i * KEYS + j];
                float* const o = out.data + (i0 + i) * ACROSS;
#pragma omp simd
                for (int64_t e = 0; e < E; ++e) o[e] += w * float(from_value[e]);
              }
            }
          } else {
            for (int64_t i = band; i < whole(band, SUMS); ++i)
              std::fill(s.data + i * KEYS, s.data + i * KEYS + n, 0.0f);
            for (int64_t e = 0; e < ACROSS; e += PANEL)
              for (int64_t i = 0; i < band; i += SUMS)
                multiply(n, s.data + i * KEYS, KEYS, weighed.data + e * n, out.data + (i0 + i) * ACROSS + e, ACROSS,
                         true);
          }
        }
      }
      for (int64_t i = 0; i < count; ++i) put(b, row + i, out.data + i * ACROSS, sum[i]);
    }
  }
}
}  // namespace attend
"""


def region_text(region: AttentionRegion, function: Function, names: Names, pointers: dict[str, str]) -> list[str]:
    """Return the statements of an attention."""
    nest = AttentionNest.of(region, names)
    attended, storage = region.attended, function.storage
    depth, columns = (ir.size_of(group) for group in (nest.depth, nest.columns))
    batch, row = nest.apart("b", nest.batch), nest.apart("i", nest.rows)
    sizes = ", ".join(names.product(part) for part in (nest.batch, nest.rows, nest.keys))
    lines = [
        f"// {attended.buffer}: attention of {names.product(nest.rows)} rows to {names.product(nest.keys)} keys, "
        f"{names.product(nest.batch)} times"
    ]
    lines += [f'RK_CHECK({c}, "this kernel needs {c}");' for c in nest.checks()]
    scale = nest.scale() if nest.factor is not None else "1.0"
    lines += [f"const float of_products = float({scale});"]
    lines += ["const auto of_query = [&](int64_t b, int64_t i, float* to) {", *indent([*batch, *row])]
    place = f"{pointers[attended.q.buffer]} + {nest.offset(nest.q, nest.batch, nest.rows)}"
    lines += [
        f"  const auto* const at = {place};",
        f"  for (int64_t d = 0; d < {depth}; ++d) to[d] = float(at[d]) * of_products;",
        "};",
    ]
    key = nest.apart("n", nest.keys)
    for name, load, access in (("key", attended.k, nest.k), ("value", attended.v, nest.v)):
        offset = nest.offset(access, nest.batch, nest.keys)
        lines += [f"const auto of_{name} = [&](int64_t b, int64_t n) {{", *indent([*batch, *key])]
        lines += [f"  return {pointers[load.buffer]} + {offset};", "};"]
    lines += _scores(nest, pointers, storage, batch, row)
    limits = nest.limit_values(nest.printer(pointers, storage, Form.C), "std::max<int64_t>")
    for name, after, start, join in (
        ("first", False, "0", "std::max"),
        ("end", True, sizes.split(", ")[-1], "std::min"),
    ):
        text = f"int64_t({start})"
        for band in nest.bands:
            if band.after == after:
                edge = f"{nest.index(band.row)} + {nest.band_bound(band)} + 1"
                edge = edge if after else f"{nest.index(band.row)} - ({nest.band_bound(band)})"
                text = f"{join}<int64_t>({text}, {edge})"
        text = nest.limited(text, after=after, least="std::min<int64_t>", most="std::max<int64_t>")
        own = [*(batch if limits else ()), *(f"const int64_t limit{n} = {value};" for n, value in enumerate(limits))]
        lines += [
            f"const auto of_{name} = [&](int64_t b, int64_t i) {{",
            *indent([*own, *row]),
            f"  return {text};",
            "};",
        ]
    out = stored_type(attended.storage, "cpu")
    empty = "NAN" if attended.empty != attended.empty else repr(attended.empty)
    lines += [
        "const auto of_put = [&](int64_t b, int64_t i, const float* o, double all) {",
        *indent([*batch, *row]),
        f"  {out}* const to = {pointers[attended.buffer]} + {nest.offset(nest.out, nest.batch, nest.rows)};",
        "  const float share = float(1.0 / all);",
        f"  for (int64_t e = 0; e < {columns}; ++e) {_element(nest, 'to')} = all == 0 ? {empty} : o[e] * share;",
        "};",
        f"attend::run<{depth}, {columns}>({sizes}, of_query, of_key, of_value, of_score, of_first, of_end, of_put);",
    ]
    return ["{", *indent(lines), "}"]


def _element(nest: AttentionNest, pointer: str) -> str:
    stride = nest.stride(nest.out, nest.columns)
    if stride is None:
        raise AssertionError("columns of a result that do not lie at one distance")
    return f"{pointer}[e]" if stride == "1" else f"{pointer}[e * ({stride})]"


def _scores(
    nest: AttentionNest, pointers: dict[str, str], storage: dict[str, str], batch: list[str], row: list[str]
) -> list[str]:
    """Return the function that makes scores of a row's products, in place."""
    head = "const auto of_score = [&](int64_t b, int64_t i, int64_t start, int64_t count, float* s) {"
    if nest.factor is not None:
        return ["const auto of_score = [](int64_t, int64_t, int64_t, int64_t, float*) {};"]
    statements, result = nest.scored(nest.printer(pointers, storage, Form.C), "part")
    return [
        head,
        *indent([*batch, *row]),
        "#pragma omp simd",
        "  for (int64_t j = 0; j < count; ++j) {",
        "    const int64_t n = start + j;",
        *indent(indent(nest.apart("n", nest.keys))),
        "    const float part = s[j];",
        *indent(indent(statements)),
        f"    s[j] = {result};",
        "  }",
        "};",
    ]
