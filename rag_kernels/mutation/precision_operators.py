"""Mutation operators of accuracy: less of it in sums, in what is stored, in functions and in roundings.

Comes in: C++ or CUDA text. Goes out: `Edit`s. What they write may call functions of `PRELUDE`, which the mutant then
has in front. Knows nothing of judges and problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rag_kernels.mutation.cpp_text import calls, statement_end
from rag_kernels.mutation.operators import TYPES, Edit, Find

# Rounding to K bits less than fp32 has: bf16 at 16, TF32 and (but for its range) fp16 at 13.
PRELUDE = """\
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __CUDACC__
#define MUTANT_INLINE __host__ __device__ inline
#else
#define MUTANT_INLINE inline
#endif
template <int K> MUTANT_INLINE float mutant_cut(float v) {
  union { float f; uint32_t u; } b;
  b.f = v;
  if ((b.u & 0x7f800000u) != 0x7f800000u) b.u = (b.u + ((1u << (K - 1)) - 1) + ((b.u >> K) & 1)) & ~((1u << K) - 1);
  return b.f;
}
template <class V> MUTANT_INLINE V as_bf16(V v) { return V(mutant_cut<16>(float(v))); }
template <class V> MUTANT_INLINE V as_tf32(V v) { return V(mutant_cut<13>(float(v))); }
template <class V> MUTANT_INLINE V as_fp16(V v) {
  const float f = mutant_cut<13>(float(v));
  return V(f > 65504.0f ? INFINITY : f < -65504.0f ? -INFINITY : f < 6e-8f && f > -6e-8f ? 0.0f : f);
}
template <class V> MUTANT_INLINE V without_nan(V v) { return v != v ? V(0) : v; }
template <class V> MUTANT_INLINE V at_most_1e4(V v) { return v > V(10000) ? V(10000) : v; }
template <class V> MUTANT_INLINE V quick_exp_3(V v) {  // a cubic: 1e-4
  const float x = float(v) * 1.44269504f, k = floorf(x), r = x - k;
  if (!(x > -126.0f && x < 127.0f)) return V(expf(float(v)));
  return V(ldexpf(1.0f + r * (0.6955566f + r * (0.2261604f + r * 0.0780245f)), int(k)));
}
template <class V> MUTANT_INLINE V quick_exp_1024(V v) {  // (1 + x / 1024)^1024
  float x = 1.0f + float(v) / 1024.0f;
  if (!(x > 0.5f && x < 2.0f)) return V(expf(float(v)));
  for (int i = 0; i < 10; ++i) x *= x;
  return V(x);
}
template <int N> MUTANT_INLINE float mutant_rsqrt(float x) {
  union { float f; uint32_t u; } b;
  b.f = x;
  b.u = 0x5f375a86u - (b.u >> 1);
  float y = b.f;
  for (int i = 0; i < N; ++i) y = y * (1.5f - 0.5f * x * y * y);
  return y;
}
template <class V> MUTANT_INLINE V quick_sqrt_1(V v) { return v > V(0) ? V(float(v) * mutant_rsqrt<1>(float(v))) : v; }
template <class V> MUTANT_INLINE V quick_sqrt_2(V v) { return v > V(0) ? V(float(v) * mutant_rsqrt<2>(float(v))) : v; }
template <class V> MUTANT_INLINE V quick_tanh(V v) {
  const float x = float(v), s = x * x;
  return V(x > 3.0f ? 1.0f : x < -3.0f ? -1.0f : x * (27.0f + s) / (27.0f + 9.0f * s));
}
template <class V> MUTANT_INLINE V quick_erf(V v) {  // Abramowitz and Stegun 7.1.26: 1.5e-7
  const float x = fabsf(float(v)), t = 1.0f / (1.0f + 0.3275911f * x);
  const float q = 1.421413741f + t * (-1.453152027f + t * 1.061405429f);
  const float p = t * (0.254829592f + t * (-0.284496736f + t * q));
  return V(copysignf(1.0f - p * expf(-x * x), float(v)));
}
template <class V> MUTANT_INLINE V quick_erfc(V v) { return V(1.0f - float(quick_erf(v))); }
template <class V> MUTANT_INLINE V quick_log(V v) {
  return v > V(0) ? V(0.69314718f * float(as_tf32(log2f(float(v))))) : V(logf(float(v)));
}
"""
NARROW = ("as_bf16", "as_tf32", "as_fp16")
QUICK = {
    "exp": ("quick_exp_3", "quick_exp_1024"),
    "sqrt": ("quick_sqrt_1", "quick_sqrt_2"),
    "tanh": ("quick_tanh",),
    "erf": ("quick_erf",),
    "erfc": ("quick_erfc",),
    "log": ("quick_log",),
}
_NAMED = re.compile(r"(?:std::|rk_|quick_|fast_)?(exp|sqrt|tanh|erfc|erf|log)f?")


def accumulators(text: str) -> Iterator[Edit]:
    """Yield a sum in fewer bits."""
    for found in re.finditer(r"(?<![\w.\]])([A-Za-z_][\w.]*(?:\[[^\]\n]*\])*) \+= ", text):
        end = statement_end(text, found.end())
        if end > 0 and "=" not in text[found.end() : end]:
            for narrow in NARROW:
                to = found.group(1)
                yield Edit(found.start(), end, f"{to} = {narrow}({to} + ({text[found.end() : end]}))")
    for found in re.finditer(r"\b(Wide|double)\b(?= [a-z]\w*( = |;|\[|, \w+ = ))", text):
        yield Edit(found.start(), found.end(), "float")


def storage(text: str) -> Iterator[Edit]:
    """Yield an operand, an intermediate or a result in fewer bits."""
    for call in calls(text):
        if call.name == "put" and len(call.arguments) == 2:
            a, b = call.arguments[1]
            for narrow in NARROW:
                yield Edit(a, b, f"{narrow}({text[a:b]})")
        if call.name == "num":
            for narrow in NARROW:
                yield Edit(call.start, call.end, f"{narrow}({text[call.start : call.end]})")
    for found in re.finditer(rf"(?<=[;{{}}\n])\s+(?:const )?(?:{TYPES}) [a-z]\w* = (?=[^;\n]*[a-z])", text):
        end = statement_end(text, found.end())
        if end > 0 and "," not in text[found.end() : end] and "=" not in text[found.end() : end]:
            for narrow in NARROW:
                yield Edit(found.end(), end, f"{narrow}({text[found.end() : end]})")
    for found in re.finditer(r"\bout\.data\[[^\]\n]*\] = ", text):
        end = statement_end(text, found.end())
        if end > 0:
            for narrow in NARROW:
                yield Edit(found.end(), end, f"{narrow}({text[found.end() : end]})")


def intrinsics(text: str) -> Iterator[Edit]:
    """Yield a quick function in place of an exact one.

    A multiplication by a rough reciprocal in place of a division.
    """
    for call in calls(text):
        named = _NAMED.fullmatch(call.name)
        if named and len(call.arguments) == 1:
            a, b = call.arguments[0]
            for quick in QUICK[named.group(1)]:
                yield Edit(call.start, call.end, f"{quick}({text[a:b]})")
    for found in re.finditer(r"(?<=[\w)\]]) / (total|sum|norm|scale|n|p|q)\b(?![.(\[])", text):
        yield Edit(found.start(), found.end(), f" * as_tf32(1.0f / float({found.group(1)}))")


def roundings(text: str) -> Iterator[Edit]:
    """Cut off instead of rounded; to another neighbour."""
    for found in re.finditer(r"\bu \+ 0x7fff \+ \(\(u >> 16\) & 1\)", text):
        for other in ("u", "u + 0x8000", "u + 0xffff"):
            yield Edit(found.start(), found.end(), other)
    for found in re.finditer(r"\bstd::(nearbyint|rint|round|floor|trunc|ceil)\b", text):
        for other in ("floor", "trunc", "ceil"):
            if other != found.group(1):
                yield Edit(found.start(1), found.end(1), other)


PRECISION_OPERATORS: dict[str, Find] = {
    "narrower accumulator": accumulators,
    "narrower storage": storage,
    "fast intrinsic": intrinsics,
    "wrong rounding": roundings,
}
_CALLS_PRELUDE = re.compile(
    r"\b(?:as_bf16|as_tf32|as_fp16|without_nan|at_most_1e4|quick_(?:exp_3|exp_1024|sqrt_[12]|tanh|erfc?|log))\("
)


def with_prelude(source: str) -> str:
    """Return the source with the functions in front that mutations call, where it calls one."""
    return PRELUDE + source if _CALLS_PRELUDE.search(source) else source
