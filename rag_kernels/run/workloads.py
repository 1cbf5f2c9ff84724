"""One kernel on every workload of a problem: an attempt each, what all take together, and which kernel serves all best.

Comes in: a session, a problem, its workloads, and a candidate or the attempts of a search. Goes out: a `Served` for
each, their `Total`, and a `Choice`. `Search` is the search of whoever has one problem, with workloads or without: the
command, the Python functions, the benches. Knows nothing of terminals.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from rag_kernels.archive.records import Attempt, Run
from rag_kernels.budget import Ledger
from rag_kernels.eval.contract import joint_contract
from rag_kernels.eval.records import SPECIALISED, Candidate, Measurement, Passed, Problem
from rag_kernels.eval.sizes.workloads import Workload, heaviest, problem_at
from rag_kernels.run.session import Session
from rag_kernels.run.standings import is_confirmed, merit, standing, winner

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
    confirmed: bool  # at all where it passed
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
        confirmed=bool(timed) and all(m.confirmed for _, m in timed),
        candidate_us=sum(weight * m.candidate_us for weight, m in timed),
        eager_us=sum(weight * m.eager_us for weight, m in timed),
        compile_us=sum(compiled) if len(compiled) == len(timed) else None,
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel for all workloads. `attempt` is the search's, with the contract that all of them show together."""

    attempt: Attempt
    served: tuple[Served, ...]  # as far as it was judged
    workloads: int

    @property
    def serves_all(self) -> bool:
        """Return whether it was judged, and passed, at every workload."""
        return total(self.served).passed == self.workloads


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to: why it ended, the kernel to report, and what came of it at each workload."""

    why: str
    attempts: tuple[Attempt, ...]
    best: Attempt | None
    choice: Choice | None = None  # None also where there are no workloads

    @property
    def served(self) -> tuple[Served, ...]:
        return self.choice.served if self.choice else ()

    @property
    def solved(self) -> bool:
        """Return whether there is a kernel, and it serves all workloads."""
        return self.best is not None and (self.choice is None or self.choice.serves_all)


@dataclass(slots=True)
class Search:
    """The search for one kernel of a problem: at the workload with the most to do, then judged at all of them."""

    session: Session
    problem: Problem
    workloads: Sequence[Workload]
    run: Run
    found: Found | None = None  # when its events are over

    @classmethod
    def of(cls, session: Session, problem: Problem, workloads: Sequence[Workload], resume: str | None = None) -> Search:
        """Begin a search, or resume one. Raises ProblemError for sizes that the problem has not, or without the run."""
        at = searched_at(problem, workloads)
        run = session.old_run(resume, at) if resume else session.new_run("generate", at)
        return cls(session, problem, workloads, run)

    def events(self, *, confirm: bool = True) -> Iterator[Attempt | Served]:
        """Yield each attempt, then each judgement of the best at a workload; `found` is what they come to.

        The budget of time is that of both: when it is up no other kernel is tried, and the best so far is confirmed.
        """
        session, run, ledger = self.session, self.run, self.session.ledger(self.run)
        searched, also = searched_at(self.problem, self.workloads), [w.name for w in self.workloads]
        why = yield from session.generate(searched, run, ledger=ledger, also=also, confirm=confirm)
        attempts = session.archive.attempts(run.id)
        choice = None
        if self.workloads:
            problem, workloads = self.problem, self.workloads
            choice = yield from choose(session, problem, workloads, attempts, ledger=ledger, confirm=confirm)
        best = choice.attempt if choice else winner(attempts)
        self.found = Found(why, tuple(attempts), best, choice)


def searched_at(problem: Problem, workloads: Sequence[Workload]) -> Problem:
    """Return the problem at the workload for which kernels are written: the one with the most to do."""
    return problem_at(problem, heaviest(problem, workloads)) if workloads else problem


def choose(
    session: Session,
    problem: Problem,
    workloads: Sequence[Workload],
    attempts: Sequence[Attempt],
    *,
    ledger: Ledger,
    confirm: bool = True,
) -> Generator[Served, None, Choice | None]:
    """Judge the best kernels of a search at every workload; yield each judgement, and return the best of those that
    serve all of them, else the one that passed at the most; None where the search found no kernel.

    What may claim a speed goes before what may not, then the least time counts, where intervals tell one from another.
    The choice is confirmed at every workload before it is returned; where that fails it is another one's turn.
    """
    ranked = sorted(standing(attempts), key=lambda a: (is_confirmed(a), *merit(a)), reverse=True)[:CONTESTANTS]
    tried: list[Choice] = []
    for attempt in ranked if len(ranked) > 1 or not confirm else ():
        served: list[Served] = []
        for one in judge_workloads(session, problem, workloads, attempt.candidate, confirm=False):
            yield one
            served.append(one)
            failed = one.measurement is None and any(c.serves_all for c in tried)
            if failed or ledger.seconds_left() == 0:
                break
        tried.append(Choice(attempt, tuple(served), len(workloads)))
        if ledger.seconds_left() == 0:
            break
    best = _best(tried)
    if not confirm:
        return best and replace(best, attempt=_with_joint_contract(best))
    left = [attempt for attempt in ranked if best is None or attempt.candidate.id != best.attempt.candidate.id]
    confirmed: list[Choice] = []
    for attempt in ([best.attempt] if best else []) + left:
        served = []
        for one in judge_workloads(session, problem, workloads, attempt.candidate, confirm=True):
            yield one
            served.append(one)
        confirmed.append(Choice(attempt, tuple(served), len(workloads)))
        others = any(c.serves_all and c.attempt is not attempt for c in tried)
        if confirmed[-1].serves_all or not others or ledger.seconds_left() == 0:
            break
    best = _best(confirmed)
    return best and replace(best, attempt=_with_joint_contract(best))


def _best(choices: Sequence[Choice]) -> Choice | None:
    """Return the best; an earlier one stays unless another is ahead of it."""
    best: Choice | None = None
    for choice in choices:
        if best is None or _ahead(choice, best):
            best = choice
    return best


def _ahead(one: Choice, other: Choice) -> bool:
    """Return whether a kernel is better than another: right at more, of more merit, or quicker by the intervals."""
    if not (one.serves_all and other.serves_all):
        return (one.serves_all, total(one.served).passed) > (other.serves_all, total(other.served).passed)
    if _merit(one) != _merit(other):
        return _merit(one) > _merit(other)
    return _least_and_most(one, other)[1] < _least_and_most(other, other)[0]


def _merit(choice: Choice) -> tuple[bool, bool]:
    """Return whether it may claim a speed, and is strict, at every workload."""
    known = [merit(s.attempt) for s in choice.served]
    return all(m[0] for m in known), all(m[1] for m in known)


def _least_and_most(choice: Choice, reference: Choice) -> tuple[float, float]:
    """Return the ends of what a kernel takes for all workloads, which both pass; eager's times are the reference's."""
    least = most = 0.0
    for one, other in zip(choice.served, reference.served, strict=True):
        assert one.measurement is not None and other.measurement is not None
        eager_us, over = one.workload.weight * other.measurement.eager_us, one.measurement.speedup_eager
        least, most = least + eager_us / over.high, most + eager_us / over.low
    return least, most


def _with_joint_contract(choice: Choice) -> Attempt:
    """Return the attempt with what all workloads show of the calls that it serves; nothing where one of them failed."""
    attempt, judged = choice.attempt, choice.attempt.judged
    own_sizes = (s.attempt for s in choice.served if s.attempt.problem.problem.id == attempt.problem.problem.id)
    judged = next((a.judged for a in own_sizes if isinstance(a.judged.verdict, Passed)), judged)
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
