"""The judge from source to verdict, on a CPU with real compilers and processes: every kind of verdict."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from judging import verdict
from support.kept import kept_judge

from rag_kernels.eval.build.candidate_form import Forbidden, check_composed
from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import (
    BuildFailed,
    Candidate,
    Crashed,
    FunctionalProblem,
    Passed,
    ProblemError,
    Rejected,
    Tier,
    TimedOut,
    Wrong,
)
from rag_kernels.eval.source_form import source_form
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.ingest.functional.functionalize import functionalize

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return torch.relu(x * self.weight + self.bias)

def get_inputs():
    return [torch.rand(512, 256)]

def get_init_inputs():
    return [256]
"""
HONEST = """
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
void scale_shift(In x, In w, In b, rk::Tensor<float> out) {
  int64_t n = x.size(1), rows = x.size(0);
  BEFORE
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; ++i) {
      float y = x.data[r * n + i] * w.data[i] + b.data[i];
      out.data[r * n + i] = y > 0 ? y : 0;
    }
}
RK_EXPORT(forward, scale_shift)
"""
COMPOSED = """
KERNELS = r'''
#include "rag_kernel.h"
void relu(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] > 0 ? x.data[i] : 0;
}
RK_EXPORT(relu, relu)
'''

def forward(x, weight, bias):
    y = torch.addcmul(bias, x, weight)
    out = torch.empty_like(y)
    kernels.relu(y, out)
    return out
"""
MODULE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return F.relu(torch.addcmul(self.bias, x, self.weight))
"""
QUICK = Limits(
    load_s=30,
    call_s=8,
    memory_bytes=1 << 30,
    measure_compile=False,
    timing=TimingRule(pairs=8, max_pairs=8, timed_s=0.05),
)


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=QUICK) as opened:
        yield opened


@pytest.fixture(scope="module")
def problem(judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source("scale_shift", PROBLEM), workers=judge.workers)


def altered(before: str = "", **replacements: str) -> str:
    source = HONEST.replace("BEFORE", before)
    for old, new in replacements.values():
        source = source.replace(old, new)
    return source


def test_an_honest_kernel_passes_with_times_and_checks(judge: LocalJudge, problem: FunctionalProblem) -> None:
    passed = verdict(judge, problem, altered())
    assert isinstance(passed, Passed), passed
    assert passed.label == "custom kernel"
    assert passed.error_ratio < 5
    assert "zero-mean draw" in passed.checks
    measurement = passed.measurement
    assert measurement.candidate_us > 0 and measurement.eager_us > 0 and measurement.floor_us > 0
    assert measurement.speedup_eager.low <= measurement.speedup_eager.median <= measurement.speedup_eager.high
    assert not measurement.confirmed
    assert measurement.speedup_compile is None and "not asked" in measurement.compile_note


@pytest.mark.parametrize(("source", "tier"), [(COMPOSED, "composed"), (MODULE, "module")])
def test_the_other_tiers_pass(judge: LocalJudge, problem: FunctionalProblem, source: str, tier: Tier) -> None:
    passed = verdict(judge, problem, source, tier)
    assert isinstance(passed, Passed), passed


def test_a_build_failure_keeps_the_compilers_words(judge: LocalJudge, problem: FunctionalProblem) -> None:
    failed = verdict(judge, problem, altered("int y = undeclared;"))
    assert isinstance(failed, BuildFailed)
    assert "undeclared" in failed.reason and "undeclared" in failed.log


WRONG = {
    "forgets the bias, which is zero at first": (("+ b.data[i]", ""),),
    "forgets the activation, which inputs in 0..1 never need": (("y > 0 ? y : 0", "y"),),
    "leaves the last row": (("r < rows", "r < rows - 1"),),
    "is a ten-thousandth off in one row": (("? y : 0", "? (r == 77 ? y * 1.0001f : y) : 0"),),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_numbers_are_caught(judge: LocalJudge, problem: FunctionalProblem, name: str) -> None:
    source = altered(**{str(i): pair for i, pair in enumerate(WRONG[name])})
    wrong = verdict(judge, problem, source)
    assert isinstance(wrong, Wrong), wrong
    assert wrong.where


CHEATS = {
    "returns its first answer for ever": "static bool done = false; if (done) return; done = true;",
    "stops working after the first calls": "static int calls = 0; if (++calls > 4) return;",
    "keeps its answer by pointer": """
      static const float* seen = nullptr; static float kept[512 * 256];
      if (seen == x.data) { __builtin_memcpy(out.data, kept, sizeof kept); return; }
      seen = x.data; for (int i = 0; i < 512 * 256; ++i) { float y = x.data[i] * w.data[i % 256] + b.data[i % 256];
      kept[i] = out.data[i] = y > 0 ? y : 0; } return;""",
    "keeps its answer by a fingerprint of the first element": """
      static float seen = -1; static float kept[512 * 256]; float first = x.data[5 * 256];
      if (seen > first - 0.5f && seen < first + 0.5f) { __builtin_memcpy(out.data, kept, sizeof kept); return; }
      seen = first; for (int i = 0; i < 512 * 256; ++i) { float y = x.data[i] * w.data[i % 256] + b.data[i % 256];
      kept[i] = out.data[i] = y > 0 ? y : 0; } return;""",
}


@pytest.mark.parametrize("name", list(CHEATS))
def test_cached_answers_are_wrong_answers(judge: LocalJudge, problem: FunctionalProblem, name: str) -> None:
    assert isinstance(verdict(judge, problem, altered(CHEATS[name])), Wrong)


@pytest.mark.parametrize(
    ("name", "code", "word"),
    [
        ("segfault", "*(volatile int*)8 = 1;", "SIGSEGV"),
        ("writes to its input", "const_cast<float*>(x.data)[3] = 0;", "SIGSEGV"),
        ("abort", "__builtin_trap();", "SIG"),
        ("refuses", 'RK_CHECK(rows == 1, "only one row is supported");', "only one row"),
        ("another count of arguments", "", "number of arguments"),
    ],
)
def test_crashes_say_how(judge: LocalJudge, problem: FunctionalProblem, name: str, code: str, word: str) -> None:
    source = altered(code)
    if name == "another count of arguments":
        source = source.replace(", rk::Tensor<float> out)", ", double extra, rk::Tensor<float> out)")
    crashed = verdict(judge, problem, source)
    assert isinstance(crashed, Crashed), crashed
    assert word in crashed.reason


@pytest.mark.parametrize(
    ("source", "tier", "named"),
    [
        (HONEST.replace("BEFORE", "").replace("RK_EXPORT(forward, scale_shift)", ""), "kernel", "forward"),
        (COMPOSED.replace("RK_EXPORT(relu, relu)", ""), "composed", "relu"),
    ],
)
def test_a_source_without_an_export_is_told_what_to_add(
    judge: LocalJudge, problem: FunctionalProblem, source: str, tier: Tier, named: str
) -> None:
    crashed = verdict(judge, problem, source, tier)
    assert isinstance(crashed, Crashed), crashed
    assert f"exports no function `{named}`; add RK_EXPORT({named}, your_function)" in crashed.reason


def test_a_hang_is_timed_out_and_the_judge_goes_on(problem: FunctionalProblem) -> None:
    with kept_judge("cpu", limits=replace(QUICK, call_s=1.5)) as brief:
        hung = verdict(brief, problem, altered('for (;;) asm volatile("");'))
        assert isinstance(hung, TimedOut)
        assert isinstance(verdict(brief, problem, altered()), Passed)


def test_memory_and_forks_are_bounded(judge: LocalJudge, problem: FunctionalProblem) -> None:
    eats = """#include <stdlib.h>
    """ + altered(
        'for (int i = 0; i < 64; ++i) { volatile char* p = (char*)malloc(1 << 28); RK_CHECK(p, "no memory");'
        " for (long j = 0; j < 1 << 28; j += 4096) p[j] = 1; }"
    )
    assert isinstance(verdict(judge, problem, eats), Crashed)
    forks = "#include <unistd.h>\n" + altered("for (int i = 0; i < 10; ++i) if (fork() == 0) { sleep(30); _exit(0); }")
    verdict(judge, problem, forks)
    (built,) = build([(forks, "cpu")], tools=toolchain(), cache=judge.cache)
    assert isinstance(built, Built)
    assert not [p for p in psutil.process_iter() if _holds(p, built.library)]


def _holds(process: psutil.Process, library: Path) -> bool:
    try:
        return any(m.path == str(library) for m in process.memory_maps())
    except psutil.Error:
        return False


def test_a_round_is_built_together_and_yields_each_verdict(judge: LocalJudge, problem: FunctionalProblem) -> None:
    sources = [
        altered("int unused = 1; (void)unused;"),
        altered(end=("r < rows", "r < rows - 2")),
        altered("int x = ;"),
    ]
    judged = list(judge.judge(problem, [Candidate(s, "kernel", "cpu") for s in sources]))
    assert [type(j.verdict) for _, j in judged] == [Passed, Wrong, BuildFailed]


def test_the_wrong_backend_is_rejected(judge: LocalJudge, problem: FunctionalProblem) -> None:
    ((_, judged),) = judge.judge(problem, [Candidate(altered(), "kernel", "cuda")])
    assert isinstance(judged.verdict, Rejected)
    assert judged.verdict.code == "wrong_backend"


def test_a_random_forward_cannot_be_judged(judge: LocalJudge) -> None:
    random = PROBLEM.replace("torch.relu(", "torch.dropout(torch.relu(").replace("self.bias)", "self.bias), 0.5, True)")
    fp = functionalize(problem_from_source("dropout", random), workers=judge.workers)
    with pytest.raises(ProblemError, match="random"):
        list(judge.judge(fp, [Candidate(altered(), "kernel", "cpu")]))


REPLACED = """import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.hidden = torch.zeros(8, size)

    def forward(self, x, start):
        self.hidden.copy_(start)
        self.hidden = torch.tanh(self.linear(x + self.hidden))
        return self.hidden * 2

def get_inputs():
    return [torch.randn(8, 32), torch.randn(8, 32)]

def get_init_inputs():
    return [32]
"""


@pytest.mark.parametrize("begins", ["        self.hidden.copy_(start)\n", ""])
def test_a_tensor_that_a_call_replaces_is_put_back(judge: LocalJudge, begins: str) -> None:
    """What the fp64 answer left in the module was fp64, and the next call of it failed (KernelBench, level 3, 33).

    A copy of the module is right, also where results depend on what the call before has left.
    """
    source = REPLACED.replace("        self.hidden.copy_(start)\n", begins)
    recurrent = functionalize(problem_from_source("recurrent", source), workers=judge.workers)
    itself = verdict(judge, recurrent, source.replace("class Model(", "class ModelNew("), "module")
    assert isinstance(itself, Passed), itself


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "y = torch.load('x')",
        "y = x._data",
        "x.data = y",
        "y = open('f')",
        "y = torch.ops.mine.op(x)",
        "y = [i for i in range(3)]",
        "y = (lambda: 1)()",
        "y = x.numpy()",
        "global z",
        "y = kernels.a.b(x)",
        "k = kernels",
        "y = x if kernels.muted else y",
        "y = kernels",
        "kernels = x",
        "y = kernels._instead",
        "y = __import__('os')",
        "y = torch.utils.cpp_extension.load_inline('x')",
        "while True: pass",
    ],
)
def test_composed_sources_keep_to_their_subset(line: str) -> None:
    with pytest.raises(Forbidden):
        check_composed(f"KERNELS = r'''x'''\ndef forward(x):\n    {line}\n    return x\n")


def test_the_sources_here_have_these_tiers() -> None:
    assert [source_form(source).tier for source in (HONEST, COMPOSED, MODULE)] == ["kernel", "composed", "module"]
    check_composed(COMPOSED)


QUANTISED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        return torch.round(x / scale).to(torch.int8)

def get_inputs():
    return [torch.randn(256, 1024)]

def get_init_inputs():
    return []
"""
QUANTISE = """
#include "rag_kernel.h"
#include <cmath>
void quantise(rk::Tensor<const float> x, int64_t dim, int64_t divisor, rk::Tensor<int8_t> q) {
  int64_t n = x.size(1), rows = x.size(0);
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x.data + r * n;
    float m = 0;
    for (int64_t i = 0; i < n; ++i) m = std::fmax(m, std::fabs(p[i]));
    const float inverse = 1.0f / (m / 127.0f);
    for (int64_t i = 0; i < n; ++i) q.data[r * n + i] = (int8_t)(ROUNDED);
  }
}
RK_EXPORT(forward, quantise)
"""


def test_integers_may_be_one_apart_where_rounding_decides_and_nowhere_else(judge: LocalJudge) -> None:
    problem = functionalize(problem_from_source("quantised", QUANTISED), workers=judge.workers)
    rounded = "std::nearbyint(p[i] * inverse)"
    passed = verdict(judge, problem, QUANTISE.replace("ROUNDED", rounded))
    assert isinstance(passed, Passed), passed
    for elsewhere in ("(r == 0 && i == n - 1)", "(p[i] * inverse > 100.1f && p[i] * inverse < 100.3f)"):
        wrong = verdict(judge, problem, QUANTISE.replace("ROUNDED", f"{rounded} + {elsewhere}"))
        assert isinstance(wrong, Wrong) and "elements differ" in wrong.where, wrong
