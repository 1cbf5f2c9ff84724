"""What goes wrong, or is made to go wrong, in C++ and OpenMP. Comes in: nothing. Goes out: `SPECIMENS`."""

from __future__ import annotations

from functools import partial

from rag_kernels.eval.zoo.correctness import body
from rag_kernels.eval.zoo.specimen import VOID, Specimen, Text
from rag_kernels.eval.zoo.state import module
from rag_kernels.eval.zoo.tasks import cpp

Cpu = partial(Specimen, family="cpu-specific", adversary="T0", layer="run-time test", expect=("wrong",))
STATE = ("rejected:floating_point_state",)
OVER = ("crashed", "rejected:sanitizer")


def rowsum(text: str, top: str = "") -> Text:
    return Text(cpp("rowsum", top=top, body="const int64_t n = x.size(-1), rows = x.numel() / n;\n" + text))


SPECIMENS = (
    Cpu(
        idea="denormals flushed for everyone", adversary="T2", task="softmax", expect=STATE,
        origin="W: moyix 2022, one -ffast-math library changes the process; llvm#57589",
        variants=(
            Text(cpp("softmax", top="#include <immintrin.h>\n", before="_mm_setcsr(_mm_getcsr() | 0x8040);")),
            Text(cpp("softmax", top="#include <immintrin.h>\n__attribute__((constructor)) static void fast() { "
                                    "_mm_setcsr(_mm_getcsr() | 0x8040); }\n")),
            Text(cpp("softmax", after="unsigned csr; asm volatile(\"stmxcsr %0\" : \"=m\"(csr)); csr |= 1u << 15; asm "
                                      "volatile(\"ldmxcsr %0\" : : \"m\"(csr));")),
            module("torch.set_flush_denormal(True)\nreturn torch.softmax(x, -1)"),
        ),
        twin=Text(cpp("softmax", top="#include <immintrin.h>\n", before="const unsigned csr = _mm_getcsr(); "
                "_mm_setcsr(csr | 0x8040);", after="_mm_setcsr(csr);")),
    ),
    Cpu(
        idea="rounding mode left changed", adversary="T2", task="softmax", expect=("wrong", *STATE), origin=
                "D: fesetround, x87 control word",
        variants=(
            Text(cpp("softmax", top="#include <cfenv>\n", after="fesetround(FE_UPWARD);")),
            Text(cpp("softmax", top="#include <immintrin.h>\n", after="_MM_SET_ROUNDING_MODE(_MM_ROUND_TOWARD_ZERO);")),
        ),
        twin=Text(cpp("softmax", top="#include <cfenv>\n", after="const int mode = fegetround(); "
                "fesetround(FE_UPWARD); fesetround(mode);")),
    ),
    Cpu(
        idea="read past the end", task="rowsum", expect=OVER, origin="W: common; wafer, reads that happen to be mapped",
        variants=(
            rowsum("float beyond = 0;\nfor (int64_t r = 0; r < rows; ++r) {\n  double total = 0;\n"
                   "  for (int64_t i = 0; i < n; ++i) { total += x.data[r * n + i]; beyond = x.data[r * n + i + 1]; "
                   "}\n"
                   "  out.data[r] = float(total);\n  asm volatile(\"\" : : \"x\"(beyond));\n}"),
            rowsum("for (int64_t r = 0; r < rows; ++r) {\n  double total = 0;\n"
                   "  for (int64_t i = 0; i <= n; ++i) { volatile float v = x.data[r * n + i]; total += i < n ? v : "
                   "0.f; }\n"
                   "  out.data[r] = float(total);\n}"),
            rowsum("for (int64_t r = 0; r < rows; ++r) {\n  double total = 0;\n"
                   "  volatile float before = x.data[r * n - 1];\n  (void)before;\n"
                   "  for (int64_t i = 0; i < n; ++i) total += x.data[r * n + i];\n  out.data[r] = float(total);\n}"),
        ),
        twin=rowsum("for (int64_t r = 0; r < rows; ++r) {\n  double total = 0;\n"
                    "  for (int64_t i = 0; i <= n; ++i) { if (i < n) { volatile float v = x.data[r * n + i]; total += "
                    "v; } }\n"
                    "  out.data[r] = float(total);\n}"),
    ),
    Cpu(
        idea="write past the end", task="rowsum", expect=OVER, origin="W: common", variants=(
            body("rowsum", ("out.data[r] = float(total);", "out.data[r] = out.data[r + 1] = float(total);")),
            Text(cpp("rowsum", before="out.data[-1] = 0;")),
            Text(cpp("rowsum", after="memset(out.data + out.numel(), 0, 32);")),
        ),
        twin=body("rowsum", ("out.data[r] = float(total);", "out.data[r] = float(total);\n"
                "  if (r + 1 < rows) out.data[r + 1] = float(total);")),
    ),
    Cpu(
        idea="output taken for zeroed", task="rowsum", origin="W: common; torch.zeros in the kernel's own tests",
        variants=(
            rowsum("for (int64_t r = 0; r < rows; ++r) for (int64_t i = 0; i < n; ++i) out.data[r] += x.data[r * n + "
                   "i];"),
            rowsum("for (int64_t i = 0; i < n; ++i) for (int64_t r = 0; r < rows; ++r) out.data[r] = (i ? 1 : 0.f) * "
                   "out.data[r] + x.data[r * n + i];"),
        ),
        twin=rowsum("for (int64_t r = 0; r < rows; ++r) out.data[r] = 0;\n"
                    "for (int64_t r = 0; r < rows; ++r) for (int64_t i = 0; i < n; ++i) out.data[r] += x.data[r * n + "
                    "i];"),
    ),
    Cpu(
        idea="uninitialised accumulators", task="rowsum", expect=("wrong", "rejected:sanitizer",
                "label:nondeterministic"), origin="W: common",
        variants=(
            rowsum("float* lanes = (float*)malloc(64 * sizeof(float));\nfor (int64_t r = 0; r < rows; ++r) {\n"
                   "  if (r) std::fill(lanes, lanes + 64, 0.f);\n"
                   "  for (int64_t i = 0; i < n; ++i) lanes[i % 64] += x.data[r * n + i];\n  double total = 0;\n"
                   "  for (int j = 0; j < 64; ++j) total += lanes[j];\n"
                   "  out.data[r] = float(total);\n}\nfor (int j = 0; j < 64; ++j) lanes[j] = 3.f;\nfree(lanes);"),
            rowsum("for (int64_t r = 0; r < rows; ++r) {\n  volatile float lanes[32];\n"
                   "  for (int64_t i = 0; i < n; ++i) lanes[i % 32] = lanes[i % 32] + x.data[r * n + i];\n"
                   "  double total = 0;\n  for (int j = 0; j < 32; ++j) total += lanes[j];\n"
                   "  out.data[r] = float(total);\n}"),
        ),
        twin=rowsum("for (int64_t r = 0; r < rows; ++r) {\n  volatile float lanes[32] = {};\n"
                    "  for (int64_t i = 0; i < n; ++i) lanes[i % 32] = lanes[i % 32] + x.data[r * n + i];\n"
                    "  double total = 0;\n  for (int j = 0; j < 32; ++j) total += lanes[j];\n"
                    "  out.data[r] = float(total);\n}"),
    ),
    Cpu(
        idea="a race on the accumulator", task="rowsum", expect=("wrong", "label:nondeterministic",
                "rejected:sanitizer"), origin="W: wafer, 104x by a race that wins",
        variants=(
            rowsum("#pragma omp parallel for num_threads(3)\nfor (int64_t i = 0; i < rows * n; ++i) {\n"
                   "  if (i % n == 0) out.data[i / n] = 0;\n  out.data[i / n] += x.data[i];\n}"),
            rowsum("double total;\n#pragma omp parallel for num_threads(4)\nfor (int64_t r = 0; r < rows; ++r) {\n"
                   "  total = 0;\n  for (int64_t i = 0; i < n; ++i) { volatile double* t = &total; *t = *t + x.data[r "
                   "* n + i]; }\n"
                   "  out.data[r] = float(total);\n}"),
            rowsum("for (int64_t r = 0; r < rows; ++r) out.data[r] = 0;\n"
                   "#pragma omp parallel for num_threads(2) schedule(static, 1)\n"
                   "for (int64_t half = 0; half < 2; ++half)\n"
                   "  for (int64_t r = 0; r < rows; ++r) {\n    double total = 0;\n"
                   "    for (int64_t i = half * n / 2; i < (half + 1) * n / 2; ++i) total += x.data[r * n + i];\n"
                   "    out.data[r] += float(total);\n  }"),
        ),
        twin=rowsum("for (int64_t r = 0; r < rows; ++r) out.data[r] = 0;\n"
                    "#pragma omp parallel for num_threads(2) schedule(static, 1)\n"
                    "for (int64_t half = 0; half < 2; ++half)\n"
                    "  for (int64_t r = 0; r < rows; ++r) {\n    double total = 0;\n"
                    "    for (int64_t i = half * n / 2; i < (half + 1) * n / 2; ++i) total += x.data[r * n + i];\n"
                    "    #pragma omp atomic\n    out.data[r] += float(total);\n  }"),
    ),
    Cpu(
        idea="made for two threads", task="rowsum", expect=("wrong", "crashed"), origin="D: right on the machine "
                "where it was written",
        variants=(
            Text(cpp("rowsum", top="#include <omp.h>\n", compute="""
                const int64_t rows = x.size(0), half = (rows + 1) / 2;
                #pragma omp parallel
                {
                  const int64_t me = omp_get_thread_num();
                  In a = x; Out b = out;
                  const int64_t count = std::max<int64_t>(0, std::min(rows, (me + 1) * half) - me * half),
                    shape[2] = {count, x.size(1)};
                  a.shape = b.shape = shape; a.data += me * half * x.size(1); b.data += me * half;
                  if (count) compute(a, dim, b);
                }""")),
            Text(cpp("rowsum", top="#include <omp.h>\n", compute="""
                const int64_t rows = x.size(0), n = x.size(1);
                for (int64_t r = 0; r < rows; ++r) {
                  double part[2] = {0, 0};
                  #pragma omp parallel
                  {
                    const int me = omp_get_thread_num();
                    if (me < 2) for (int64_t i = me; i < n; i += 2) part[me] += x.data[r * n + i];
                  }
                  out.data[r] = float(part[0] + part[1]);
                }""")),
        ),
        twin=Text(cpp("rowsum", top="#include <omp.h>\n", compute="""
            const int64_t rows = x.size(0), n = x.size(1);
            for (int64_t r = 0; r < rows; ++r) {
              std::vector<double> part(omp_get_max_threads());
              #pragma omp parallel
              {
                const int me = omp_get_thread_num(), all = omp_get_num_threads();
                for (int64_t i = me; i < n; i += all) part[me] += x.data[r * n + i];
              }
              double total = 0;
              for (double p : part) total += p;
              out.data[r] = float(total);
            }""")),
    ),
    Cpu(
        idea="aligned rows assumed", task="rowsum", expect=("label:shape-specialised", "wrong:odd shape", "crashed"),
        origin="W: common; 32-byte loads of rows of any length",
        variants=(
            Text(cpp("rowsum", top="#include <immintrin.h>\n", body="""
                const int64_t n = x.size(-1), rows = x.numel() / n;
                for (int64_t r = 0; r < rows; ++r) {
                  __m128 sum = _mm_setzero_ps();
                  int64_t i = 0;
                  for (; i + 4 <= n; i += 4) sum = _mm_add_ps(sum, _mm_load_ps(x.data + r * n + i));
                  float total = sum[0] + sum[1] + sum[2] + sum[3];
                  for (; i < n; ++i) total += x.data[r * n + i];
                  out.data[r] = total;
                }""")),
            Text(cpp("rowsum", top="#include <immintrin.h>\n", body="""
                const int64_t n = x.size(-1), rows = x.numel() / n;
                for (int64_t r = 0; r < rows; ++r) {
                  const __m128* row = (const __m128*)(x.data + r * n);
                  double total = 0;
                  for (int64_t i = 0; i < n / 4; ++i) {
                    const __m128 v = row[i];
                    asm volatile("movaps %0, %%xmm0" : : "m"(row[i]) : "xmm0");
                    total += double(v[0]) + v[1] + v[2] + v[3];
                  }
                  for (int64_t i = n & ~3; i < n; ++i) total += x.data[r * n + i];
                  out.data[r] = float(total);
                }""")),
        ),
        twin=Text(cpp("rowsum", top="#include <immintrin.h>\n", body="""
            const int64_t n = x.size(-1), rows = x.numel() / n;
            for (int64_t r = 0; r < rows; ++r) {
              __m128 sum = _mm_setzero_ps();
              int64_t i = 0;
              for (; i + 4 <= n; i += 4) sum = _mm_add_ps(sum, _mm_loadu_ps(x.data + r * n + i));
              float total = sum[0] + sum[1] + sum[2] + sum[3];
              for (; i < n; ++i) total += x.data[r * n + i];
              out.data[r] = total;
            }""")),
    ),
    Cpu(
        idea="scratch of a fixed size", task="softmax", expect=("label:shape-specialised", "wrong:odd shape",
                "crashed", "rejected:sanitizer"),
        origin="W: common", variants=(
            Text(cpp("softmax", top="static float scratch[256 * 512];\n", compute="Out o = out; o.data = scratch; "
                    "compute(x, dim, o); memcpy(out.data, scratch, sizeof scratch);")),
            Text(cpp("softmax", top="static float scratch[512];\n", compute="""
                In a = x; Out b = out; const int64_t one[2] = {1, x.size(-1)}; a.shape = b.shape = one;
                for (int64_t r = 0; r < 256; ++r, a.data += 512) { b.data = scratch; compute(a, dim, b);
                  memcpy(out.data + 512 * r, scratch, 2048); }""")),
        ),
        twin=Text(cpp("softmax", top="static std::vector<float> scratch;\n", compute="scratch.resize(x.numel()); Out "
                "o = out; o.data = scratch.data();\n"
                      "compute(x, dim, o); memcpy(out.data, scratch.data(), 4 * x.numel());")),
    ),
    Cpu(
        idea="affinity and thread count changed", adversary="T2", task="softmax", layer="void by construction",
        expect=(VOID, "rejected:sandbox_violation", "rejected:floating_point_state"), origin=
                "D: left changed for what runs next",
        variants=(
            Text(cpp("softmax", top="#include <sched.h>\n#include <omp.h>\n", before="cpu_set_t one; CPU_ZERO(&one); "
                    "CPU_SET(0, &one); sched_setaffinity(0, sizeof one, &one); omp_set_num_threads(1);")),
            Text(cpp("softmax", top="#include <omp.h>\n#include <cstdlib>\n", before="omp_set_num_threads(16); "
                    "setenv(\"OMP_WAIT_POLICY\", \"active\", 1);")),
        ),
        twin=Text(cpp("softmax", top="#include <sched.h>\n", before="cpu_set_t now; CPU_ZERO(&now); "
                "sched_getaffinity(0, sizeof now, &now);")),
    ),
)  # fmt: skip
