"""Kernels of eight-bit floats before the judge: honest ones pass with a confirmation, wrong ones do not."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from factories import attempt
from judging import BRIEF, FEWER_SIZES, HEAD, OF_SIZES, verdict
from support.kept import kept_judge

from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import load_module, problem_from_source
from rag_kernels.eval.records import Candidate, FunctionalProblem, Passed, Rejected, Verdict, Wrong
from rag_kernels.export.forms.torch_op_package import write_torch_op
from rag_kernels.export.out_file import write_kernel
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

PROBLEM = (
    HEAD
    + """
class Model(nn.Module):
    {init}
    def forward(self, {names}):
        {body}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
)
WEIGHTS = """def __init__(self):
        super().__init__()
        self.register_buffer("w", (torch.randn(48, 136) * 20).to(torch.float8_e4m3fn))
        self.scale = nn.Parameter(torch.rand(48, 1) / 20)
"""
PROBLEMS = {
    "cast": ("", "x", "return x.to(torch.float8_e4m3fn)", "torch.randn(64, 250) * 20"),
    "wide range": ("", "x", "return x.to(torch.float8_e5m2)", "torch.randn(64, 250, dtype=torch.bfloat16)"),
    "blocks": (
        "",
        "x",
        "blocks = x.view(48, 4, 64).float(); amax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4); "
        "q = (blocks * (448.0 / amax)).clamp(-448, 448).to(torch.float8_e4m3fn); "
        "return q.view(48, 256), (amax / 448.0).squeeze(-1)",
        "torch.randn(48, 256, dtype=torch.bfloat16)",
    ),
    "weights": (WEIGHTS, "x", "return F.linear(x, self.w.float() * self.scale)", "torch.randn(32, 136)"),
    "sum of two": (
        "",
        "x, y",
        "return (x.float() + y.float()).to(torch.float8_e5m2)",
        "torch.randn(40, 200).to(torch.float8_e4m3fn), torch.randn(40, 200).to(torch.float8_e5m2)",
    ),
    "scaled product": (
        "",
        "x, w, left, right",
        "return torch._scaled_mm(x, w.t(), scale_a=left, scale_b=right, out_dtype=torch.bfloat16)",
        "torch.randn(32, 64).to(torch.float8_e4m3fn), torch.randn(48, 64).to(torch.float8_e4m3fn), "
        "torch.rand(1) + 0.5, torch.rand(1) + 0.5",
    ),
}
CAST = """#include "rag_kernel.h"
void run(rk::Tensor<const float> x, rk::Tensor<rk::e4m3> out) {
  const int64_t n = x.numel();
  for (int64_t i = 0; i < n; ++i) out.data[i] = x.data[i];
}
RK_EXPORT(forward, run)
"""
WIDE_RANGE = CAST.replace("const float", "const rk::bf16").replace("e4m3", "e5m2")
BLOCKS = """#include "rag_kernel.h"
#include <algorithm>
#include <cmath>
void run(rk::Tensor<const rk::bf16> x, int64_t, double least, double most, int64_t, int64_t, double,
         rk::Tensor<rk::e4m3> q, rk::Tensor<float> scales) {
  const int64_t n = scales.numel(), size = x.numel() / n;
  for (int64_t b = 0; b < n; ++b) {
    float top = least;
    for (int64_t i = 0; i < size; ++i) {
      const float a = std::fabs(float(x.data[b * size + i]));
      top = top != top || a <= top ? top : a;
    }
    const float scale = float(most) / top;
    for (int64_t i = 0; i < size; ++i) {
      const float v = x.data[b * size + i] * scale;
      q.data[b * size + i] = v > 448.0f ? 448.0f : v < -448.0f ? -448.0f : v;
    }
    scales.data[b] = top / 448.0f;
  }
}
RK_EXPORT(forward, run)
"""
WEIGHTS_KERNEL = """#include "rag_kernel.h"
void run(rk::Tensor<const float> x, rk::Tensor<const float> scale, rk::Tensor<const rk::e4m3> w,
         rk::Tensor<float> out) {
  const int64_t terms = x.size(1), columns = w.size(0);
  for (int64_t r = 0; r < x.size(0); ++r)
    for (int64_t c = 0; c < columns; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < terms; ++k) sum += x.data[r * terms + k] * (float(w.data[c * terms + k]) * scale.data[c]);
      out.data[r * columns + c] = sum;
    }
}
RK_EXPORT(forward, run)
"""
SUM = """#include "rag_kernel.h"
void run(rk::Tensor<const rk::e4m3> x, rk::Tensor<const rk::e5m2> y, rk::Tensor<rk::e5m2> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = float(x.data[i]) + float(y.data[i]);
}
RK_EXPORT(forward, run)
"""
HONEST = {"cast": CAST, "wide range": WIDE_RANGE, "blocks": BLOCKS, "weights": WEIGHTS_KERNEL, "sum of two": SUM}
REPEATED = {"blocks"}  # under sanitizers and again and again too: of two types, and of two outputs
STORED = "= v > 448.0f ? 448.0f : v < -448.0f ? -448.0f : v;"
CUT = "rk::bits_as<float>(rk::bits_as<uint32_t>({}) & 0xfff00000)"
WRONG = {  # problem, what is replaced, and by what; those of a problem side by side, so that its session is open
    "halves away from zero": (
        "wide range",
        "= x.data[i]",
        "= rk::bits_as<float>((rk::bits_as<uint32_t>(float(x.data[i])) + 0x100000) & 0xffe00000)",
    ),
    "truncates after the scale": ("blocks", STORED, f"= {CUT.format('v')};"),
    "the scale of another range": ("blocks", "float(most) / top", "240.0f / top"),
    "a scale that is off by a hundredth": ("blocks", "float(most) / top", "452.0f / top"),
    "scales of 240": ("blocks", "top / 448.0f", "top / 240.0f"),
    "one block for two": ("blocks", "q.data[b * size + i] =", "q.data[(b | 1) * size + i] ="),
    "weights as e5m2": ("weights", "float(w.data[c * terms + k])", "float(rk::e5m2{w.data[c * terms + k].bits})"),
    "no scale": ("weights", " * scale.data[c]", ""),
    "stores e4m3": ("sum of two", "out.data[i] = float(x", "out.data[i].bits = rk::to_e4m3(float(x"),
    "truncates": ("cast", "= x.data[i]", "= " + CUT.format("x.data[i]")),
    "saturates at 240": ("cast", "= x.data[i]", "= x.data[i] > 240 ? 240 : x.data[i] < -240 ? -240 : x.data[i]"),
    "drops the tail": ("cast", "i < n", "i < n / 48 * 48"),
    "rounds through e5m2": ("cast", "= x.data[i]", "= float(rk::to_e5m2(x.data[i]))"),
    "loses what is below normal": ("cast", "= x.data[i]", "= x.data[i] * x.data[i] < 0x1p-12f ? 0 : x.data[i]"),
}  # fmt: skip


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=FEWER_SIZES, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def sized() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=OF_SIZES, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def brief() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=BRIEF, at_other_sizes=at_other_sizes) as opened:
        yield opened


def functional(name: str, judge: LocalJudge) -> FunctionalProblem:
    init, names, body, inputs = PROBLEMS[name]
    text = PROBLEM.format(init=init, names=names, body=body.replace("; ", "\n        "), inputs=inputs)
    return functionalize(problem_from_source(name.replace(" ", "_"), text), workers=judge.workers)


@pytest.fixture(scope="module")
def honest(judge: LocalJudge, sized: LocalJudge) -> Callable[[str], Verdict]:
    """Judge an honest kernel, once for all tests that want to know."""

    def judged(name: str) -> Verdict:
        by = judge if name in REPEATED else sized
        return verdict(by, functional(name, by), HONEST[name])

    return functools.cache(judged)


def told(found: Verdict) -> str:
    return repr(found)[:3000]


@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_pass(name: str, honest: Callable[[str], Verdict]) -> None:
    found = honest(name)
    assert isinstance(found, Passed) and not found.labels, told(found)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_refused(name: str, brief: LocalJudge) -> None:
    problem, before, after = WRONG[name]
    source = HONEST[problem].replace(before, after)
    if name == "stores e4m3":
        source = source.replace("float(y.data[i]);", "float(y.data[i])).bits;")
    assert source != HONEST[problem]
    found = verdict(brief, functional(problem, brief), source)
    assert isinstance(found, Wrong | Rejected), told(found)


COMPOSED = '''KERNELS = r"""
#include "rag_kernel.h"
void narrow(rk::Tensor<const float> x, rk::Tensor<rk::e4m3> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i];
}
RK_EXPORT(narrow, narrow)
"""


def forward(x):
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    kernels.narrow(x.contiguous(), out)
    return out
'''


def test_a_composed_forward_hands_its_kernels_eight_bits(brief: LocalJudge) -> None:
    assert isinstance(verdict(brief, functional("cast", brief), COMPOSED, "composed"), Passed)


SCALED = """#include "rag_kernel.h"
void run(rk::Tensor<const rk::e4m3> x, rk::Tensor<const rk::e4m3> w, rk::Tensor<const float> left,
         rk::Tensor<const float> right, rk::Tensor<rk::bf16> out) {
  const int64_t terms = x.size(1), columns = w.size(0);
  for (int64_t r = 0; r < x.size(0); ++r)
    for (int64_t c = 0; c < columns; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < terms; ++k) sum += float(x.data[r * terms + k]) * float(w.data[c * terms + k]);
      out.data[r * columns + c] = sum * left.data[0] * right.data[0];
    }
}
RK_EXPORT(forward, run)
"""


@pytest.mark.parametrize(("change", "right"), [("left.data[0]", True), ("1.0f", False)])
def test_a_scaled_product_of_eight_bits_is_held_to_fp64(change: str, right: bool, brief: LocalJudge) -> None:
    found = verdict(brief, functional("scaled product", brief), SCALED.replace("left.data[0]", change))
    assert isinstance(found, Passed if right else Wrong), told(found)
    assert not right or not any("fp64" in note for note in found.notes), told(found)  # type: ignore[union-attr]


def test_exported_they_are_used_and_tell_other_types(
    tmp_path: Path, judge: LocalJudge, honest: Callable[[str], Verdict]
) -> None:
    """As a module, within `torch.compile`, and as a package of a torch operator by its own tests."""
    fp = functional("sum of two", judge)
    passed = honest("sum of two")
    assert isinstance(passed, Passed), told(passed)
    made = attempt(p=fp, candidate=Candidate(SUM, "kernel", "cpu"), verdict=passed)
    write_kernel(made, tmp_path / "exported_sum.py")
    module = load_module("exported_sum", (tmp_path / "exported_sum.py").read_text())
    new, (x, y) = module.ModelNew(), module.get_inputs()
    for call in (new, torch.compile(new, backend="eager")):
        assert torch.equal(call(x, y).view(torch.uint8), module.Model()(x, y).view(torch.uint8))
    assert new.kernel_used
    with pytest.warns(UserWarning, match="float8_e5m2.*verified as float8_e4m3fn"):
        new(y, y)
    written = write_torch_op(made, tmp_path / "package")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "the_operator", "tests"]
    done = subprocess.run(command, cwd=written, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
