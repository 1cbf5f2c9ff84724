"""Composed sources under sanitizers: what their forward calls is recorded and called again in a checked program."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from judging import OF_SANITIZERS, verdict
from support.kept import kept_judge

from rag_kernels.eval.build.candidate_form import called_kernels
from rag_kernels.eval.build.compile import Built, build, checked, toolchain
from rag_kernels.eval.children.candidate.recorded_calls import Recorder
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import FunctionalProblem, Passed, Rejected
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

PROBLEM = """import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2.0 + 1.0

def get_inputs():
    return [torch.randn(64, 96)]

def get_init_inputs():
    return [96]
"""
COMPOSED = """KERNELS = r'''
#include "rag_kernel.h"
#include <vector>
void scale(rk::Tensor<const float> y, double by, bool shift, rk::Tensor<float> out) {
  std::vector<float> row(y.size(1));
  const int64_t n = y.numel(), m = y.size(1);
  float unused = 0;
  for (int64_t i = 0; i < n; ++i) {
    row[i % m] = y.data[i] > 0 ? y.data[i] * float(by) : 0.0f;
    out.data[i] = row[i % m] + (shift ? 1.0f : 0.0f);
  }
  FAULT
  if (unused == 12345.678f) out.data[0] = unused;
}
RK_EXPORT(scale, scale)
'''

def forward(x, linear_weight, linear_bias):
    y = torch.nn.functional.linear(x, linear_weight, linear_bias)
    out = torch.empty_like(y)
    kernels.scale(y, 2.0, True, out)
    return out
"""
HALVES = """#include <cuda_bf16.h>
#include "rag_kernel.h"
__global__ void one(__nv_bfloat16* x) { *x = 1.0f; }
void run(rk::Tensor<__nv_bfloat16> x) { one<<<1, 1>>>(x.data); }
RK_EXPORT(ones, run)
"""
FAULTS = {
    "a read past the end of a tensor": ("unused = y.data[n];", "heap-buffer-overflow"),
    "a read past the end of its own memory": ("unused = row.data()[m];", "heap-buffer-overflow"),
    "an overflow": ("int big = 2147483647; big += int(n > 0); unused = float(big);", "signed integer overflow"),
    "a race": (
        "int64_t seen = 0;\n#pragma omp parallel for\nfor (int64_t i = 0; i < n; ++i) ++seen;\n  unused = float(seen);",
        "data race",
    ),
}


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=OF_SANITIZERS, at_other_sizes=at_other_sizes) as opened:
        yield opened


@pytest.fixture(scope="module")
def problem(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("linear_relu", PROBLEM), workers=judge.workers)


@pytest.mark.parametrize("name", FAULTS)
def test_what_numbers_do_not_show_is_found(judge: LocalJudge, problem: FunctionalProblem, name: str) -> None:
    fault, says = FAULTS[name]
    found = verdict(judge, problem, COMPOSED.replace("FAULT", fault), "composed")
    assert isinstance(found, Rejected), found
    assert "sanitizer" in found.reason and says in found.reason.lower(), found.reason


def test_calls_that_a_program_could_not_repeat_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.ones(12)
    shared = "tensors that share memory"
    for arguments, why in (
        ([torch.ones(3, 4).t()], "a strided tensor"),
        ([None], "NoneType"),
        ([one, one], shared),
        ([one[:5], torch.ones(2), one[4:]], shared),
    ):
        recorder = Recorder()
        recorder("scale", [torch.ones(2), 1.0])
        assert recorder.parts and not recorder.left_out
        recorder("scale", arguments)
        recorder("scale", [2, one[:4], one[4:], one[:0]])
        assert recorder.left_out == f"`scale` is called with {why}" and not recorder.parts
    monkeypatch.setattr("rag_kernels.eval.children.candidate.recorded_calls.MOST_RECORDED", 100)
    recorder = Recorder()
    recorder("scale", [torch.ones(100)])
    assert recorder.left_out == "its kernels are called with too much" and not recorder.parts


@pytest.mark.parametrize(
    "before",
    [
        "kernels.first()\n    kernels.scale(",  # without arguments, and it leaves something behind
        "kernels.first()\n    y = y if True else kernels.nothing(x)\n    kernels.scale(",  # named, and never defined
    ],
)
def test_honest_ones_pass_and_all_their_calls_are_made_again(
    judge: LocalJudge, problem: FunctionalProblem, before: str
) -> None:
    first = "static float* table = nullptr;\nvoid first() { static float one = 1; table = &one; }\n"
    first += "RK_EXPORT(first, first)\n"
    source = COMPOSED.replace("FAULT", "unused = *table;").replace("void scale", first + "void scale")
    found = verdict(judge, problem, source.replace("kernels.scale(", before), "composed")
    assert isinstance(found, Passed), found
    assert "sanitizers: address, undefined-behaviour, thread" in found.checks, (found.checks, found.notes)


def test_only_functions_that_are_called_are_named() -> None:
    source = COMPOSED.replace("kernels.scale(", "kernels.other(y)\n    kernels.scale(")
    assert called_kernels(source) == ["other", "scale"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_kernels_of_sixteen_bits_are_checked_too(tmp_path: Path) -> None:
    """What a program declares ahead of them does not hide CUDA's types from the contract's header."""
    [made] = build([(checked(HALVES, ["ones", "twos"]), "cuda-checked")], tools=toolchain("sm_90"), cache=tmp_path)
    assert isinstance(made, Built), made.log
