"""What tests that ask a real judge have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.build.products import Library
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.records import Candidate, FunctionalProblem, Tier, Verdict
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_worker import Resources
from rag_kernels.eval.timing_rule import TimingRule

THOROUGH = Limits(
    measure_compile=False,
    call_s=3.0,
    thorough=True,
    timing=TimingRule(pairs=5, max_pairs=5, timed_s=0.01, warm_pairs=3, self_pairs=7),
)

# Without what takes most of its time, for tests that are about the rest; `test_judge_precision.py` has most at once.
FEWER_SIZES = replace(THOROUGH, without=frozenset({"squares and tiles"}))
OF_SANITIZERS = replace(THOROUGH, without=frozenset({"repeats", "odd shapes"}))
OF_SIZES = replace(FEWER_SIZES, without=FEWER_SIZES.without | {"repeats", "sanitizers"})
OF_REPEATS = replace(THOROUGH, without=frozenset({"sanitizers", "odd shapes"}))
BRIEF = replace(THOROUGH, thorough=False)  # as before a confirmation


def verdict(judge: LocalJudge, problem: FunctionalProblem, source: str, tier: Tier = "kernel") -> Verdict:
    ((_, judged),) = judge.judge(problem, [Candidate(source, tier, "cpu")])
    return judged.verdict


@contextmanager
def loaded(
    judge: LocalJudge, fp: FunctionalProblem, source: str, limits: Limits | None = None
) -> Iterator[tuple[ProblemSession, LoadedCandidate]]:
    """Hand out a session of a problem, and a C++ kernel that is loaded in it, in the judge's workers."""
    candidate, workers = Candidate(source, "kernel", "cpu"), judge.workers
    (built,) = build([(source, "cpu")], tools=toolchain(judge.device.arch), cache=judge.cache)
    assert isinstance(built, Built)
    resources = Resources(
        workers=workers, candidate_workers=workers, device=judge.device, limits=limits or judge.limits
    )
    with (
        ProblemSession(fp, resources) as session,
        LoadedCandidate(session, candidate, Library(built.library)) as subject,
    ):
        yield session, subject


SOFTMAX_KERNEL = r"""
#include "rag_kernel.h"
#include <cmath>
#include <thread>
#include <vector>
#include <xmmintrin.h>
void softmax(rk::Tensor<const float> x, int64_t dim, rk::Tensor<float> out) {
  int64_t n = x.size(1), rows = x.size(0);
  BEFORE
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x.data + r * n;
    float* o = out.data + r * n;
    float m = p[0], s = 0;
    for (int64_t i = 1; i < n; ++i) m = p[i] > m ? p[i] : m;
    MIDDLE
    for (int64_t i = 0; i < n; ++i) s += o[i] = std::exp(p[i] - m);
    for (int64_t i = 0; i < n; ++i) o[i] /= s;
  }
  AFTER
}
RK_EXPORT(forward, softmax)
"""


def altered(before: str = "", middle: str = "", after: str = "") -> str:
    """Return a softmax of rows with code before the rows, in the middle of each, and after them."""
    return SOFTMAX_KERNEL.replace("BEFORE", before).replace("MIDDLE", middle).replace("AFTER", after)


HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
SOFTMAX = (
    HEAD
    + """
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.rand(128, 256)]

def get_init_inputs():
    return []
"""
)
