"""A source without what it never calls: kernels of the starter archive still build so, in a part of the tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchivedKernel, KernelFilter
from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.retrieval.starter import stock
from rag_kernels.text.called import called_only
from rag_kernels.text.tokens import estimate_tokens

SOURCE = """#include "rag_kernel.h"
// Doubles.
inline float twice(float x) { return 2 * x; }
inline float unused(float x) { return twice(x) + 1; }
struct Pair { float a, b; };
inline float add(float x, float y) { return x + y; }
inline Pair add(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
RK_WGMMA_COLUMNS(96)
constexpr int NEVER = 3;
constexpr int WIDE[] = {1, 2}, ROWS = 8;
#ifdef FAST
inline float fast(float x) { return x; }
#endif
#define SQUARE(x) ((x) * (x))
#define CUBE(x) ((x) * \\
                 SQUARE(x))
namespace mine { constexpr char said[] = "} unused("; }
template <class T, int N = (4 > 3)> T pass(T v) { return v; }
void run(rk::Tensor<const float> x, rk::Tensor<float> out) {  // NEVER mind
  for (int64_t i = 0; i < ROWS; ++i) out.data[i] = pass(SQUARE(add(twice(x.data[i]), 1.0f)));
}
RK_EXPORT(forward, run)
"""


@pytest.fixture(scope="module")
def kernels() -> list[ArchivedKernel]:
    archive = MemoryArchive()
    stock(archive, load_embedder())
    return archive.kernels(KernelFilter())


def test_what_nothing_calls_is_left_out_with_its_comment() -> None:
    text = called_only(SOURCE)
    gone = ("unused(float", "Pair", "NEVER = 3", "FAST", "CUBE")
    assert not [name for name in gone if name in text]
    stays = ("// Doubles.\ninline float twice", "SQUARE(x)", "namespace mine", "ROWS = 8", "T pass(T v)", "RK_EXPORT")
    stays += ("RK_WGMMA_COLUMNS(96)\n",)
    assert all(name in text for name in stays)
    assert called_only(text) == text


def test_what_cannot_be_taken_apart_is_left_as_it_is() -> None:
    for text in ("", "no code", "void f() {", "class ModelNew: pass", "x = 'RK_EXPORT('"):
        assert called_only(text) == text


def test_a_composed_source_keeps_its_python() -> None:
    composed = f"KERNELS = r'''\n{SOURCE}'''\n\ndef forward(x):\n    return kernels.forward(x)\n"
    text = called_only(composed)
    assert "unused(float" not in text and text.startswith("KERNELS = r'''\n#include") and text.endswith("forward(x)\n")


def test_kernels_build_without_what_they_never_call(kernels: list[ArchivedKernel], tmp_path: Path) -> None:
    chosen = [k for k in kernels if k.backend == "cpu" and called_only(k.source) != k.source]
    texts = [called_only(k.source) for k in chosen]
    inner = [m[1] if (m := re.search(r"KERNELS = r'''(.*?)'''", text, re.DOTALL)) else text for text in texts]
    assert inner
    for built in build([(text, "cpu") for text in inner], tools=toolchain(), cache=tmp_path):
        assert isinstance(built, Built), built.log


def test_kernels_for_a_gpu_build_so_too(kernels: list[ArchivedKernel], tmp_path: Path) -> None:
    if toolchain().nvcc is None:
        pytest.skip("there is no nvcc")
    chosen = [k for k in kernels if k.backend == "cuda" and k.problem_name in ("abs_add_div", "abs_mean_div")]
    for built in build([(called_only(k.source), "cuda") for k in chosen], tools=toolchain(), cache=tmp_path):
        assert isinstance(built, Built), built.log


def test_exemplars_for_a_gpu_fit_a_prompt(kernels: list[ArchivedKernel]) -> None:
    """Many of the starter archive's that were generated have no room in a prompt but without what they never call."""
    on_gpu = [k for k in kernels if k.backend == "cuda" and k.writer == "offline"]
    short = {k.problem_name for k in on_gpu if estimate_tokens(called_only(k.source)) <= 6000}
    whole = {k.problem_name for k in on_gpu if estimate_tokens(k.source) <= 6000}
    assert "conv2d" in short - whole and len(short) > 3 * len(on_gpu) / 4 and len(short - whole) >= 10
    small = next(k for k in on_gpu if k.problem_name == "abs_add_div")
    assert estimate_tokens(called_only(small.source)) < estimate_tokens(small.source) / 3
