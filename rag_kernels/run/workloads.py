"""One kernel on every workload of a problem: an attempt each, and what all of them take together.

Comes in: a session, a problem, its workloads and a candidate. Goes out: a `Served` for each, and their `Total`. Knows
nothing of terminals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Candidate, Measurement, Passed, Problem
from rag_kernels.eval.workloads import Workload, problem_at
from rag_kernels.run.session import Session


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a kernel on one workload."""

    workload: Workload
    attempt: Attempt

    @property
    def measurement(self) -> Measurement | None:
        """Return its times; None where the kernel did not pass."""
        verdict = self.attempt.judged.verdict
        return verdict.measurement if isinstance(verdict, Passed) else None


@dataclass(frozen=True, slots=True)
class Total:
    """Times of all workloads, each as often as it comes; None for compile where one of them has no time of it."""

    passed: int
    candidate_us: float
    eager_us: float
    compile_us: float | None


def judge_workloads(
    session: Session, problem: Problem, workloads: Sequence[Workload], candidate: Candidate, *, confirm: bool
) -> Iterator[Served]:
    """Judge a candidate at every workload's sizes, in order; each is a run of its own in the archive.

    Raises ProblemError before anything is judged where a workload names a size that the problem does not have.
    """
    for workload, sized in [(w, problem_at(problem, w)) for w in workloads]:
        *_, attempt = session.evaluate(sized, candidate, confirm=confirm)
        yield Served(workload, attempt)


def total(served: Sequence[Served]) -> Total:
    """Sum the times of those that passed, weighted by how often each workload comes."""
    timed = [(s.workload.weight, m) for s in served if (m := s.measurement) is not None]
    compiled = [weight * m.compile_us for weight, m in timed if m.compile_us is not None]
    return Total(
        passed=len(timed),
        candidate_us=sum(weight * m.candidate_us for weight, m in timed),
        eager_us=sum(weight * m.eager_us for weight, m in timed),
        compile_us=sum(compiled) if len(compiled) == len(timed) else None,
    )
