"""What the honest kernels are made of: C++ fragments that they share, and the record of one kernel.

Comes in: C++ bodies. Goes out: kernel-tier sources, `Honest`.
A source is the fragments that it needs, a schedule (how independent pieces of work are spread over threads) and a
body. Nothing here assumes alignment: a tensor may end where a page does. Knows nothing of the families.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_kernels.eval.element_types import element_type
from rag_kernels.eval.records import Candidate


@dataclass(frozen=True, slots=True)
class Honest:
    """A kernel that a fair judge accepts. `allowed_labels` are those that it may carry without being misjudged."""

    name: str
    family: str
    task_source: str
    candidate: Candidate
    allowed_labels: tuple[str, ...] = ()


# How `each(n, work)` spreads n independent pieces of work over threads.
SCHEDULES = {
    "serial": "template <class F> void each(int64_t n, F work) { for (int64_t i = 0; i < n; ++i) work(i); }\n",
    **{
        f"omp-{name}": "template <class F> void each(int64_t n, F work) {\n"
        f"  #pragma omp parallel for schedule({clause})\n"
        "  for (int64_t i = 0; i < n; ++i) work(i);\n}\n"
        for name, clause in {
            "static": "static",
            "dynamic": "dynamic, 4",
            "guided": "guided",
            "cyclic": "static, 1",
        }.items()
    },
    "omp-tasks": """\
template <class F> void each(int64_t n, F work) {
  #pragma omp parallel
  #pragma omp single
  #pragma omp taskloop grainsize(16)
  for (int64_t i = 0; i < n; ++i) work(i);
}
""",
    "threads": """\
#include <thread>
// Three threads of its own for each call, joined before it returns.
template <class F> void each(int64_t n, F work) {
  std::vector<std::thread> team;
  for (int64_t t = 0; t < 3; ++t)
    team.emplace_back([=] { for (int64_t i = n * t / 3; i < n * (t + 1) / 3; ++i) work(i); });
  for (std::thread& member : team) member.join();
}
""",
    "counter": """\
#include <atomic>
// Whoever is free takes the next eight; which thread computes a piece does not change its value.
template <class F> void each(int64_t n, F work) {
  std::atomic<int64_t> next{0};
  #pragma omp parallel
  for (int64_t first; (first = next.fetch_add(8)) < n;)
    for (int64_t i = first; i < std::min(first + 8, n); ++i) work(i);
}
""",
    "pool": """\
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
// Two threads that live as long as the library; between calls they sleep on a condition variable.
struct Pool {
  std::mutex lock; std::condition_variable wake, done;
  std::function<void(int64_t)> job; int64_t round = 0; int busy = 0;
  Pool() { for (int64_t t = 0; t < 2; ++t) std::thread([this, t] { serve(t); }).detach(); }
  void serve(int64_t t) {
    for (int64_t seen = 0;;) {
      { std::unique_lock<std::mutex> held(lock); wake.wait(held, [&] { return round != seen; }); seen = round; }
      job(t);
      std::lock_guard<std::mutex> held(lock);
      if (--busy == 0) done.notify_one();
    }
  }
  void run(std::function<void(int64_t)> work) {
    std::unique_lock<std::mutex> held(lock);
    job = std::move(work); busy = 2; ++round; wake.notify_all();
    done.wait(held, [&] { return busy == 0; });
  }
};
template <class F> void each(int64_t n, F work) {
  static Pool* pool = new Pool;
  pool->run([&](int64_t t) { for (int64_t i = n * t / 2; i < n * (t + 1) / 2; ++i) work(i); });
}
""",
}

# `num` reads a stored number, `put` rounds one to its storage, to nearest and ties to even.
STORAGE = {
    "bfloat16": """\
inline float num(rk::bf16 v) { return float(v); }
inline void put(rk::bf16& to, float v) {
  uint32_t u; std::memcpy(&u, &v, 4);
  to.bits = v != v ? 0x7fc0 : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
""",
    "float16": """\
inline float num(rk::f16 h) {
  const int e = (h.bits >> 10) & 31, m = h.bits & 1023;
  const float v = e == 31 ? (m ? NAN : INFINITY) : std::ldexp(float(e ? m | 1024 : m), (e ? e : 1) - 25);
  return h.bits >> 15 ? -v : v;
}
inline void put(rk::f16& to, float v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  const float a = std::fabs(v);
  if (!(a < 65520.0f)) { to.bits = sign | (a != a ? 0x7e00 : 0x7c00); return; }
  int e = 0;
  if (a > 0) std::frexp(a, &e);
  e = a > 0 ? std::max(e, -13) : -13;
  to.bits = sign + uint16_t((e + 13) << 10) + uint16_t(std::nearbyint(std::ldexp(a, 11 - e)));
}
""",
}
LINES = """\
// Along one dimension: element i of line k is data[start(k) + i * inner].
struct Lines {
  int64_t n, inner, count;
  int64_t start(int64_t k) const { return k / inner * n * inner + k % inner; }
};
template <class X> Lines lines_of(const rk::Tensor<X>& x, int64_t dim) {
  dim = dim < 0 ? dim + x.ndim : dim;
  int64_t inner = 1, n = x.ndim ? x.size(dim) : 1;
  for (int i = int(dim) + 1; i < x.ndim; ++i) inner *= x.size(i);
  return {n, inner, n ? x.numel() / n : 0};
}
"""
PLAIN = (
    "template <class N> inline N num(N v) { return v; }\n"
    "template <class N, class V> inline void put(N& to, V v) { to = N(v); }\n"
)


def kernel(body: str, *, schedule: str = "", dtype: str = "float32", pieces: Sequence[str] = ()) -> str:
    """Return a kernel-tier source. `body` defines `run`; T is the stored type, Acc the one to compute in."""
    stored = element_type(dtype, "cpu")
    assert stored is not None, dtype
    computed = "float" if dtype in STORAGE else stored
    wide = {"float": "double", "double": "long double"}.get(computed, computed)
    head = f'#include "rag_kernel.h"\ntypedef {stored} T;\ntypedef {computed} Acc;\ntypedef {wide} Wide;\n'
    head += "typedef rk::Tensor<const T> In;\ntypedef rk::Tensor<T> Out;\n"
    parts = [head, PLAIN + STORAGE.get(dtype, ""), *pieces, SCHEDULES.get(schedule, ""), body.strip("\n") + "\n"]
    return "".join(parts) + "RK_EXPORT(forward, run)\n"


def spread(count: int, start: int = 0) -> Iterator[str]:
    """Yield names of schedules, going round, so that the same algorithm meets another one on the next task."""
    names = list(SCHEDULES)
    return (names[(start + i) % len(names)] for i in range(count))


def cpu(source: str) -> Candidate:
    return Candidate(source, "kernel", "cpu")
