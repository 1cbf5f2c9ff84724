"""Modules that build native code for themselves, under sanitizers: real g++, real AddressSanitizer, a real judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from judging import OF_SANITIZERS
from support.kept import kept_judge
from support.relu_module import RELU

from rag_kernels.eval.instruments.module_sanitizers import _own_on_gpu
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Candidate, FunctionalProblem, Passed, Rejected, Verdict
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

# Without torch's headers, which take twenty seconds to parse; its compilers are found as theirs are.
MODULE = """import ctypes
import subprocess
import torch
import torch.nn as nn

SOURCE = r'''
#include <vector>
extern "C" void run(const float* x, float* out, long n, long row) {
  std::vector<float> kept(row, 1.0f);
  float* kept_at = kept.data();
  volatile int large = 2147483647;
  BEFORE
  for (long i = 0; i < n; ++i) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
'''
with open("relu.cpp", "w") as file:
    file.write(SOURCE)
subprocess.run("c++ -O2 -shared -fPIC -o relu.so $PWD/relu.cpp", shell=True, check=True)
run = ctypes.CDLL("./relu.so").run
run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        run(x.data_ptr(), out.data_ptr(), x.numel(), x.shape[1])
        return out
"""
OVERRUN = "for (long i = 0; i <= row; ++i) out[0] += 0.0f * kept_at[i];"
OVERFLOW = "large = large + 1;"
ODD = "for (long i = 0; i < (row + 7) / 8 * 8; ++i) large = kept_at[i] < 2.0f;"
LOG = """========= COMPUTE-SANITIZER
rag-kernels: call 0
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<4, at::native::Add>(int, T2)+0x1c0
=========     by thread (0,0,0) in block (0,0,0)
========= Error: Race reported between Write access at void <unnamed>::row_sums<128>(const float *)+0x2b0 in cuda.cu:12
=========     and Read access at void <unnamed>::row_sums<128>(const float *)+0x300 in cuda.cu:14 [32 hazards]
========= ERROR SUMMARY: 2 errors
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=replace(OF_SANITIZERS, call_s=10.0), at_other_sizes=at_other_sizes) as one:
        yield one


@pytest.fixture(scope="module")
def relu(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("relu", RELU), workers=judge.workers)


def verdict(judge: LocalJudge, problem: FunctionalProblem, before: str) -> Verdict:
    ((_, judged),) = judge.judge(problem, [Candidate(MODULE.replace("BEFORE", before), "module", "cpu")])
    return judged.verdict


def test_an_honest_module_is_sanitized(judge: LocalJudge, relu: FunctionalProblem) -> None:
    passed = verdict(judge, relu, "")
    assert isinstance(passed, Passed) and "sanitizers: address, undefined-behaviour" in passed.checks, passed


@pytest.mark.parametrize(
    ("before", "what"),
    [(OVERRUN, "heap-buffer-overflow"), (OVERFLOW, "signed integer overflow")],
    ids=["overrun", "overflow"],
)
def test_an_error_whose_numbers_are_right_is_found(
    judge: LocalJudge, relu: FunctionalProblem, before: str, what: str
) -> None:
    rejected = verdict(judge, relu, before)
    assert isinstance(rejected, Rejected) and rejected.code == "sanitizer" and what in rejected.reason, rejected


def test_an_error_at_odd_sizes_alone_is_a_label(judge: LocalJudge, relu: FunctionalProblem) -> None:
    passed = verdict(judge, relu, ODD)
    assert isinstance(passed, Passed) and "shape-specialised" in passed.labels, passed


def test_of_a_gpus_log_only_the_kernels_of_the_source_count() -> None:
    own = _own_on_gpu(LOG, frozenset({"row_sums", "at", "native", "void"}))
    assert own is not None and "Race reported between Write access" in own and own.endswith("line 12")
    assert _own_on_gpu(LOG, frozenset({"another", "at", "native", "void", "unnamed"})) is None
    assert _own_on_gpu("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors", frozenset()) is None
