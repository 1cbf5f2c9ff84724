"""What tests that ask a real judge have in common."""

from __future__ import annotations

from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.records import Candidate, FunctionalProblem, Tier, Verdict
from rag_kernels.eval.timing_rule import TimingRule

THOROUGH = Limits(
    measure_compile=False,
    call_s=3.0,
    thorough=True,
    timing=TimingRule(pairs=5, max_pairs=5, timed_s=0.01, warm_pairs=3, self_pairs=7),
)


def verdict(judge: LocalJudge, problem: FunctionalProblem, source: str, tier: Tier = "kernel") -> Verdict:
    ((_, judged),) = judge.judge(problem, [Candidate(source, tier, "cpu")])
    return judged.verdict
