"""Products before the judge: strict ones, lower precision where it is a fault and where it is allowed."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from judging import (
    FEWER_SIZES,
    HEAD,
    OF_SIZES,
    SOFTMAX,
    loaded,
    verdict,
)
from support.kept import kept_judge

from rag_kernels.eval.admission_records import Examination
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import (
    FunctionalProblem,
    Passed,
)
from rag_kernels.eval.sessions.admission import admit
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.trial.checks import Findings
from rag_kernels.eval.trial.other_sizes import FEW, ODD, OtherSizes
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

LINEAR = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 96)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.rand(64, 256)]

def get_init_inputs():
    return []
"""
)


LINEAR_KERNEL = r"""
#include "rag_kernel.h"
#include <cstring>
static inline float cast(float v) { CAST; return v; }
void linear(rk::Tensor<const float> x, rk::Tensor<const float> w, rk::Tensor<const float> b, rk::Tensor<float> out) {
  const int64_t M = x.size(0), K = x.size(1), N = w.size(0);
  #pragma omp parallel for
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      float s = 0;
      for (int64_t k = 0; k < K; ++k) s += cast(x.data[i * K + k]) * cast(w.data[j * K + k]);
      out.data[i * N + j] = s + b.data[j] > 0 ? s + b.data[j] : 0;
    }
}
RK_EXPORT(forward, linear)
"""


ROUND = "unsigned u; std::memcpy(&u, &v, 4); u = (u + {half}) & ~{mask}; std::memcpy(&v, &u, 4)"


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=FEWER_SIZES, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def linear(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("linear_relu", LINEAR), workers=judge.workers)


def test_an_honest_product_is_strict(judge: LocalJudge, linear: FunctionalProblem) -> None:
    passed = verdict(judge, linear, LINEAR_KERNEL.replace("CAST", ""))
    assert isinstance(passed, Passed), passed
    assert passed.precision == "strict" and passed.claims_speed
    assert passed.labels == ("finite-only",)  # its ReLU makes 0 of NaN, where PyTorch's leaves it
    assert {"exactness probe", "odd sizes", "10 repeats", "idle after the call"} <= set(passed.checks)
    assert "sanitizers: address, undefined-behaviour, thread" in passed.checks
    assert passed.measurement.cold and passed.measurement.speedup_warm is not None


@pytest.mark.parametrize(("half", "mask", "name"), [("0x1000", "0x1fffu", "tf32"), ("0x8000", "0xffffu", "bf16")])
def test_a_product_in_lower_precision_is_named(
    judge: LocalJudge, linear: FunctionalProblem, half: str, mask: str, name: str
) -> None:
    rejected = verdict(judge, linear, LINEAR_KERNEL.replace("CAST", ROUND.format(half=half, mask=mask)))
    assert "rejected:lower_precision" in codes(rejected), rejected
    assert name in rejected.reason  # type: ignore[union-attr]


def test_a_lower_precision_passes_where_it_is_asked_for(linear: FunctionalProblem) -> None:
    limits = replace(OF_SIZES, precision="any")
    source = LINEAR_KERNEL.replace("CAST", ROUND.format(half="0x8000", mask="0xffffu"))
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as lenient:
        passed = verdict(lenient, linear, source)
    assert isinstance(passed, Passed) and passed.precision == "bf16" and not passed.claims_speed, passed
    assert "shape-specialised" not in passed.labels


CHAIN = (
    HEAD
    + """
class Model(nn.Module):
    def forward(self, x, y, z):
        return torch.tanh(x @ y) @ z

def get_inputs():
    return [torch.randn(48, 512), torch.randn(512, 64), torch.randn(64, 40)]

def get_init_inputs():
    return []
"""
)


CHAIN_KERNEL = r"""
#include "rag_kernel.h"
#include <cmath>
#include <cstring>
#include <vector>
typedef rk::Tensor<const float> In;
static inline float cast(float v) { CAST; return v; }
static void times(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N) {
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      float s = 0;
      for (int64_t k = 0; k < K; ++k) s += cast(a[i * K + k]) * cast(b[k * N + j]);
      c[i * N + j] = s;
    }
}
void chain(In x, In y, In z, rk::Tensor<float> out) {
  std::vector<float> inner(x.size(0) * y.size(1));
  times(x.data, y.data, inner.data(), x.size(0), x.size(1), y.size(1));
  for (float& v : inner) v = std::tanh(v);
  times(inner.data(), z.data, out.data, x.size(0), y.size(1), z.size(1));
}
RK_EXPORT(forward, chain)
"""


def test_tf32_is_no_fault_where_it_is_allowed() -> None:
    """Neither at other sizes, nor on special values, nor behind another product; less than that is one."""
    limits = replace(OF_SIZES, precision="tf32")
    with kept_judge("cpu", limits=limits, at_other_sizes=at_other_sizes) as lenient:
        chain = functionalize(problem_from_source("chain", CHAIN), workers=lenient.workers)
        tf32, less = (
            verdict(lenient, chain, CHAIN_KERNEL.replace("CAST", ROUND.format(half=half, mask=mask)))
            for half, mask in (("0x1000", "0x1fffu"), ("0x8000", "0xffffu"))
        )
    assert isinstance(tf32, Passed) and tf32.precision == "tf32" and not tf32.claims_speed, tf32
    assert not [label for label in tf32.labels if label.startswith("fragile") or label == "shape-specialised"], tf32
    assert not isinstance(less, Passed), less


def test_products_of_few_bits_at_other_sizes_are_told(judge: LocalJudge, linear: FunctionalProblem) -> None:
    """By probes at few rows and at larger sizes; odd ones are tried by ordinary numbers alone."""
    source = LINEAR_KERNEL.replace("CAST", ROUND.format(half="0x80", mask="0xffu"))
    with loaded(judge, linear, source) as (session, subject):
        for sizes, precision in ((ODD, "strict"), (FEW, "split-precision")):
            others = OtherSizes(cast(ProblemKnowledge, SimpleNamespace(session=session)), Findings(), frozenset())
            assert others.try_at(subject, session, sizes)
            assert others.found.precision == precision


@pytest.mark.parametrize(("precision", "by_noise"), [("strict", False), ("tf32", True)])
def test_a_lower_precision_without_calibrated_limits_is_held_to_its_own_noise(
    judge: LocalJudge, monkeypatch: pytest.MonkeyPatch, precision: str, by_noise: bool
) -> None:
    """Fixed limits are what strict results keep: an examination may fail, or leave the calibration out."""
    fp = functionalize(problem_from_source("rows", SOFTMAX.replace("128, 256", "64, 256")), workers=judge.workers)
    other = judge.by_other_limits(replace(judge.limits, precision=precision))
    monkeypatch.setattr(other.sessions, "admission", lambda fp: admit(Examination(notes=("not examined",))))
    try:
        assert other.sessions.open(fp).session.by_noise == by_noise
    finally:
        other.close()
