"""One kernel on every workload of a problem: an attempt each, what all take together, and which kernel serves all best.

Comes in: a session, a problem, its workloads, and a candidate or the attempts of a search. Goes out: a `Served` for
each, their `Total`, and a `Choice`. Knows nothing of terminals.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.contract import joint_contract
from rag_kernels.eval.records import SPECIALISED, Candidate, Measurement, Passed, Problem
from rag_kernels.eval.workloads import Workload, heaviest, problem_at
from rag_kernels.run.session import Session
from rag_kernels.run.standings import is_confirmed, merit, standing

CONTESTANTS = 3  # of a search's kernels, how many are judged at every workload


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


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel for all workloads. `attempt` is the search's, with the contract that all of them show together."""

    attempt: Attempt
    served: tuple[Served, ...]

    @property
    def serves_all(self) -> bool:
        """Return whether it passed at every workload."""
        return all(s.measurement is not None for s in self.served)


def searched_at(problem: Problem, workloads: Sequence[Workload]) -> Problem:
    """Return the problem at the workload for which kernels are written: the one with the most to do."""
    return problem_at(problem, heaviest(problem, workloads)) if workloads else problem


def choose(
    session: Session,
    problem: Problem,
    workloads: Sequence[Workload],
    attempts: Sequence[Attempt],
    *,
    confirm: bool = True,
) -> Generator[Served, None, Choice | None]:
    """Judge the best kernels of a search at every workload; yield each judgement, and return the kernel that serves all
    of them in the least time, or without one that which passed at the most; None where the search found no kernel.

    The search's winner is confirmed at each and stays the choice unless another is ahead by more than chance explains.
    """
    best: Choice | None = None
    ranked = sorted(standing(attempts), key=lambda a: (is_confirmed(a), *merit(a)), reverse=True)
    for attempt in ranked[:CONTESTANTS]:
        served: list[Served] = []
        for one in judge_workloads(session, problem, workloads, attempt.candidate, confirm=confirm and best is None):
            yield one
            served.append(one)
            if best is not None and one.measurement is None:
                break
        found = Choice(attempt, tuple(served))
        if best is None or _ahead(found, best, len(workloads)):
            best = found
    return best and replace(best, attempt=_with_joint_contract(best))


def chosen(
    session: Session,
    problem: Problem,
    workloads: Sequence[Workload],
    attempts: Sequence[Attempt],
    *,
    confirm: bool = True,
) -> Choice | None:
    """Return what `choose` comes to."""
    choosing = choose(session, problem, workloads, attempts, confirm=confirm)
    while True:
        try:
            next(choosing)
        except StopIteration as stopped:
            found: Choice | None = stopped.value
            return found


def _ahead(one: Choice, other: Choice, workloads: int) -> bool:
    """Return whether one kernel is better than another: it passes at more, or takes less time by the intervals."""
    passed, before = (total(c.served).passed for c in (one, other))
    if passed != before or not passed or len(one.served) < workloads:
        return passed > before
    return _least_and_most(one, other)[1] < _least_and_most(other, other)[0]


def _least_and_most(choice: Choice, reference: Choice) -> tuple[float, float]:
    """Return the ends of what a kernel takes for all workloads; eager's times are the reference's."""
    eager = {s.workload: s.measurement.eager_us for s in reference.served if s.measurement}
    timed = [(s.workload.weight * eager[s.workload], s.measurement) for s in choice.served if s.workload in eager]
    known = [(us, m.speedup_eager) for us, m in timed if m is not None]
    return sum(us / over.high for us, over in known), sum(us / over.low for us, over in known)


def _with_joint_contract(choice: Choice) -> Attempt:
    """Return the attempt with what all workloads show of the calls that it serves; nothing where one of them failed."""
    attempt, judged = choice.attempt, choice.attempt.judged
    verdict = judged.verdict
    assert isinstance(verdict, Passed)
    found = None
    if choice.serves_all:
        shown = [v for s in choice.served if isinstance(v := s.attempt.judged.verdict, Passed)]
        anywhere = all(v.contract is not None and v.contract.alignment == "element" for v in shown)
        own = None if any(SPECIALISED in v.labels for v in shown) else verdict.contract
        others = [s.attempt.problem for s in choice.served]
        found = joint_contract(attempt.problem, own, others, any_alignment=anywhere)
    return replace(attempt, judged=replace(judged, verdict=replace(verdict, contract=found)))
