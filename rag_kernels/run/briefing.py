"""What the writer of one run is told: its briefs, with exemplars that are kept current between judgements.

Comes in: a problem, the attempts so far, and functions that find exemplars and cards of technique. Goes out: a `Brief`
for each round or part of one, and the sources of all exemplars that were shown, for the label of a near-copy. Knows
nothing of retrieval, and of writers only that some learn from what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import BaselineTimes, Candidate, Device, FunctionalProblem
from rag_kernels.records import Brief, Card, Learnt, Shown, StreamingWriter, Writer
from rag_kernels.run.history import History

Retrieve = Callable[[FunctionalProblem, Sequence[Attempt]], Sequence[Shown]]
Techniques = Callable[[FunctionalProblem, Sequence[Attempt]], Sequence[Card]]


def no_techniques(fp: FunctionalProblem, attempts: Sequence[Attempt]) -> Sequence[Card]:
    """Return no cards, whatever the problem."""
    return ()


@dataclass(frozen=True, slots=True)
class Wishes:
    """Hold what the user asks of a run's kernels."""

    hint: str = ""
    precision: str = "strict"  # the lowest that products may be computed in
    also: tuple[str, ...] = ()  # other sizes at which the best one will be judged


NO_WISHES = Wishes()


@dataclass(slots=True)
class Briefing:
    """Make the briefs of one run. `times` are those of the baselines, where the writer reads them."""

    run_id: str
    problem: FunctionalProblem
    device: Device
    writer: Writer
    history: History
    wishes: Wishes
    retrieve: Retrieve
    techniques: Techniques
    times: BaselineTimes | None = None
    shown: tuple[Shown, ...] = ()  # in the next brief
    _sources: dict[str, str] = field(default_factory=dict)  # of all that were shown, by kernel id

    def refresh(self) -> None:
        """Retrieve the exemplars of the next brief; between judgements only: they may have to be judged first."""
        self.shown = tuple(self.retrieve(self.problem, self.history.attempts))
        self.remember(self.shown)

    def remember(self, shown: Sequence[Shown]) -> None:
        """Note the sources of exemplars that were shown, also before the run was resumed."""
        self._sources |= {s.kernel.id: s.kernel.source for s in shown}

    def brief(self, number: int, width: int, asked: int) -> Brief:
        """Return the brief for `width` drafts of a round of this number; `asked` were asked for before in the run."""
        attempts = tuple(self.history.attempts)
        return Brief(
            self.run_id,
            self.problem,
            self.device,
            self.shown,
            attempts,
            self.wishes.hint,
            number,
            width,
            asked=asked,
            learnt=self.writer.learnt if isinstance(self.writer, StreamingWriter) else Learnt(),
            baselines=self.times,
            cards=tuple(self.techniques(self.problem, attempts)),
            precision=self.wishes.precision,
            also=self.wishes.also,
        )

    def others(self, candidate: Candidate) -> list[tuple[str, str]]:
        """Return (kernel id, source) of all that was shown in this run, but the candidate itself."""
        return [(name, source) for name, source in self._sources.items() if name != candidate.id]
