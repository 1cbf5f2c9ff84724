"""A judge for tests of the search: verdicts by candidate id, none computed. Keeps what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from factories import device, environment, judged, passed

from rag_kernels.eval.judge import More, nothing_more
from rag_kernels.eval.records import Candidate, Device, FunctionalProblem, Judged, Verdict


class ScriptedJudge:
    """Everything passes twice as fast, unless `verdicts` or `confirmations` (by candidate id) say otherwise."""

    def __init__(
        self,
        verdicts: dict[str, Verdict] | None = None,
        confirmations: dict[str, Verdict] | None = None,
        *,
        on: Device | None = None,
        before: Callable[[Candidate], None] = lambda candidate: None,
    ) -> None:
        self.device = on or device()
        self.asked: list[str] = []
        self.built: list[str] = []
        self.examined: list[str] = []
        self.confirmed: list[str] = []
        self._verdicts = verdicts or {}
        self._confirmations = confirmations or {}
        self._before = before

    def judge(
        self, problem: FunctionalProblem, candidates: Sequence[Candidate], more: More = nothing_more
    ) -> Iterator[tuple[Candidate, Judged]]:
        for candidate in candidates:
            self._before(candidate)
            self.asked.append(candidate.id)
            yield candidate, self._judged(self._verdicts.get(candidate.id, passed(2.0, confirmed=False)))

    def build_ahead(self, candidate: Candidate) -> None:
        self.built.append(candidate.id)

    def examine_ahead(self, problem: FunctionalProblem) -> None:
        self.examined.append(problem.problem.id)

    def confirm(self, problem: FunctionalProblem, candidate: Candidate) -> Judged:
        self.confirmed.append(candidate.id)
        return self._judged(self._confirmations.get(candidate.id, passed(2.0, confirmed=True)))

    def _judged(self, verdict: Verdict) -> Judged:
        return judged(verdict, on=self.device, env=environment())
