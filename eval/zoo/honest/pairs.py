"""Rows against rows: attention, cosine similarity, distances. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator

from rag_kernels.eval.zoo.honest.source_pieces import Honest, cpu, kernel, spread
from rag_kernels.eval.zoo.problems import task

# Attention of one query row `from` with `keys` keys; `allowed(j)` says which keys it sees; writes `width` numbers.
ROUTES = {
    "three passes": """\
std::vector<Acc> score(keys, -INFINITY);
    Acc top = -INFINITY, total = 0;
    for (int64_t j = 0; j < keys; ++j)
      if (allowed(j)) top = std::max(top, score[j] = dot(j) * scale);
    for (int64_t j = 0; j < keys; ++j) total += score[j] = std::exp(score[j] - top);
    for (int64_t d = 0; d < width; ++d) {
      Acc s = 0;
      for (int64_t j = 0; j < keys; ++j) s += score[j] / total * value(j, d);
      put(to[d], s);
    }""",
    "flash": """\
std::vector<Acc> sum(width);
    Acc top = -INFINITY, total = 0;
    for (int64_t j = 0; j < keys; ++j) {  // one pass, rescaled whenever the maximum grows
      if (!allowed(j)) continue;
      const Acc score = dot(j) * scale, best = std::max(top, score), shrink = std::exp(top - best),
          weight = std::exp(score - best);
      total = total * shrink + weight;
      for (int64_t d = 0; d < width; ++d) sum[d] = sum[d] * shrink + weight * value(j, d);
      top = best;
    }
    for (int64_t d = 0; d < width; ++d) put(to[d], sum[d] / total);""",
    "flash in blocks": """\
std::vector<Acc> sum(width);
    Acc top = -INFINITY, total = 0, weight[16];
    for (int64_t first = 0; first < keys; first += 16) {
      const int64_t size = std::min<int64_t>(16, keys - first);
      Acc best = top;
      for (int64_t j = 0; j < size; ++j)
        best = std::max(best, weight[j] = allowed(first + j) ? dot(first + j) * scale : -INFINITY);
      if (best == -INFINITY) continue;
      const Acc shrink = std::exp(top - best);
      total *= shrink;
      for (int64_t d = 0; d < width; ++d) sum[d] *= shrink;
      for (int64_t j = 0; j < size; ++j) {
        total += weight[j] = std::exp(weight[j] - best);
        for (int64_t d = 0; d < width; ++d) sum[d] += weight[j] * value(first + j, d);
      }
      top = best;
    }
    for (int64_t d = 0; d < width; ++d) put(to[d], sum[d] / total);""",
    "double": """\
std::vector<Wide> score(keys), sum(width);
    Wide top = -INFINITY, total = 0;
    for (int64_t j = 0; j < keys; ++j) { score[j] = allowed(j) ? Wide(dot(j)) * scale : -INFINITY;
        top = std::max(top, score[j]); }
    for (int64_t j = keys; j-- > 0;) {
      total += score[j] = std::exp(score[j] - top);
      for (int64_t d = 0; d < width; ++d) sum[d] += score[j] * value(j, d);
    }
    for (int64_t d = 0; d < width; ++d) put(to[d], Acc(sum[d] / total));""",
}
ATTENTION = """
void run(In q, In k, In v, {mask}Out out) {{
  const int64_t queries = q.size(2), keys = k.size(2), depth = q.size(3), width = v.size(3);
  const Acc scale = 1 / std::sqrt(Acc(depth));
  each(q.size(0) * q.size(1) * queries, [&](int64_t row) {{
    const int64_t head = row / queries, i = row % queries;
    const T* from = q.data + row * depth;
    T* to = out.data + row * width;
    auto allowed = [&](int64_t j) -> bool {{ return {allowed}; }};
    auto value = [&](int64_t j, int64_t d) {{ return num(v.data[(head * keys + j) * width + d]); }};
    auto dot = [&](int64_t j) {{
      Acc s = 0;
      for (int64_t d = 0; d < depth; ++d) s += num(from[d]) * num(k.data[(head * keys + j) * depth + d]);
      return s;
    }};
    (void)i;
    {route}
  }});
}}
"""


def heads(options: str, queries: str, keys: str, cast: str = "", more: str = "", argument: str = "") -> str:
    """Return attention over three tensors."""
    tensors = ", ".join(f"torch.randn({shape}){cast}" for shape in (queries, keys, keys))
    return task(f"F.scaled_dot_product_attention(q, k, v{options})", tensors + more, arguments=f"q, k, v{argument}")


SAME = "2, 3, 67, 24"
ATTENTIONS = (
    ("attention", heads("", SAME, SAME), "", "j >= 0", "float32"),
    ("causal attention", heads(", is_causal=True", "1, 5, 53, 16", "1, 5, 53, 16"), "", "j <= i", "float32"),
    (
        "masked attention",
        heads(", attn_mask=m", SAME, SAME, more=", torch.rand(67, 67) > 0.2", argument=", m"),
        "rk::Tensor<const bool> m, ",
        "m.data[i * keys + j]",
        "float32",
    ),
    ("cross attention", heads("", "3, 2, 19, 40", "3, 2, 83, 40"), "", "j < keys", "float32"),
    ("bf16 attention", heads("", "1, 2, 37, 32", "1, 2, 37, 32", ".bfloat16()"), "", "true", "bfloat16"),
)
SIMILARITIES = {
    "three sums": "Acc p = 0, q = 0, s = 0;\n"
    "    for (int64_t i = 0; i < n; ++i) { p += a[i] * a[i]; q += b[i] * b[i]; s += a[i] * b[i]; }\n"
    "    out.data[r] = s / (std::max(std::sqrt(p), e) * std::max(std::sqrt(q), e));",
    "unit rows first": "Acc p = 0, q = 0, s = 0;\n"
    "    for (int64_t i = 0; i < n; ++i) { p += a[i] * a[i]; q += b[i] * b[i]; }\n"
    "    p = std::max(std::sqrt(p), e); q = std::max(std::sqrt(q), e);\n"
    "    for (int64_t i = 0; i < n; ++i) s += (a[i] / p) * (b[i] / q);\n    out.data[r] = s;",
    "double": "Wide p = 0, q = 0, s = 0;\n"
    "    for (int64_t i = n; i-- > 0;) { p += Wide(a[i]) * a[i]; q += Wide(b[i]) * b[i]; "
    "s += Wide(a[i]) * b[i]; }\n"
    "    out.data[r] = T(s / (std::max<Wide>(std::sqrt(p), e) * std::max<Wide>(std::sqrt(q), e)));",
    "simd": "Acc p = 0, q = 0, s = 0;\n    #pragma omp simd reduction(+ : p, q, s)\n"
    "    for (int64_t i = 0; i < n; ++i) { p += a[i] * a[i]; q += b[i] * b[i]; s += a[i] * b[i]; }\n"
    "    out.data[r] = s / (std::max(std::sqrt(p), e) * std::max(std::sqrt(q), e));",
}
DISTANCES = {
    "differences": "Acc s = 0;\n      for (int64_t i = 0; i < n; ++i) s += (a[i] - b[i]) * (a[i] - b[i]);\n"
    "      out.data[r * m + c] = std::sqrt(s);",
    "double": "Wide s = 0;\n      for (int64_t i = 0; i < n; ++i) { const Wide d = Wide(a[i]) - b[i]; s += d * d; "
    "}\n      out.data[r * m + c] = T(std::sqrt(s));",
}


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for number, (name, source, mask, allowed, dtype) in enumerate(ATTENTIONS):
        for route, schedule in zip(ROUTES, spread(len(ROUTES), 2 * number), strict=True):
            body = ATTENTION.format(mask=mask, allowed=allowed, route=ROUTES[route])
            text = kernel(body, schedule=schedule, dtype=dtype)
            yield Honest(f"{name}: {route}, {schedule}", "attention", source, cpu(text))
    cosine = task("F.cosine_similarity(x, y, dim=-1)", "torch.randn(301, 257), torch.randn(301, 257)", arguments="x, y")
    for way, inner in SIMILARITIES.items():
        for schedule in ("serial", "omp-guided"):
            body = (
                "void run(In x, In y, int64_t, double eps, Out out) {\n  const int64_t n = x.size(-1);\n"
                "  const Acc e = Acc(eps);\n"
            )
            body += "  each(x.numel() / n, [&](int64_t r) {\n    const T *a = x.data + r * n, *b = y.data + r * n;\n"
            text = kernel(f"{body}    {inner}\n  }});\n}}\n", schedule=schedule)
            yield Honest(f"cosine: {way}, {schedule}", "similarity", cosine, cpu(text))
    distance = task("torch.cdist(x, y)", "torch.randn(101, 17), torch.randn(67, 17)", arguments="x, y")
    for way, inner in DISTANCES.items():
        for schedule in ("omp-dynamic", "pool"):
            body = (
                "void run(In x, In y, Out out) {\n  const int64_t n = x.size(1), m = y.size(0);\n"
                "  each(x.size(0), [&](int64_t r) {\n"
            )
            body += "    for (int64_t c = 0; c < m; ++c) {\n      const T *a = x.data + r * n, *b = y.data + c * n;\n"
            text = kernel(f"{body}      {inner}\n    }}\n  }});\n}}\n", schedule=schedule)
            yield Honest(f"distance: {way}, {schedule}", "similarity", distance, cpu(text))
