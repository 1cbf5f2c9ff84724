"""The nouns of driving: what a writer is asked, what it drafts, what it learns, and what a run may spend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from rag_kernels.archive.records import ArchivedKernel, Attempt, Claim, Exemplar, LLMCall, Relation
from rag_kernels.eval import codec
from rag_kernels.eval.contract import takes
from rag_kernels.eval.errors import RagKernelsError
from rag_kernels.eval.records import (
    LATER,
    SPECIALISED,
    BaselineTimes,
    Candidate,
    Contract,
    Device,
    FunctionalProblem,
    TensorSpec,
)

REPEATS_TOLD = 4
TUNE = "Tune: "  # what begins the idea of a draft that changes numbers of the offline writer's own texts alone


@dataclass(frozen=True, slots=True)
class Lesson:
    """Hold what a kernel gained over the one that it was made from, on the same problem and device."""

    parent_id: str
    gain: float  # how many times as fast
    change: str  # a unified diff, where it is short; else empty
    counted: str = field(default="", metadata=LATER)  # what the GPU's counters said of the parent


@dataclass(frozen=True, slots=True)
class Shown:
    """Hold an exemplar with the kernel it names, and for writers that work on graphs the problem that it solves."""

    exemplar: Exemplar
    kernel: ArchivedKernel
    problem: FunctionalProblem | None = field(default=None, metadata=LATER)
    lesson: Lesson | None = field(default=None, metadata=LATER)
    claim: Claim | None = field(default=None, metadata=LATER)  # what its maker says, where nobody has judged it here
    counted: str = field(default="", metadata=LATER)  # what the GPU's counters say of it
    contract: Contract | None = field(default=None, metadata=LATER)  # with the problem: the calls that it was right for

    def serves(self, specs: Sequence[TensorSpec]) -> bool:
        """Return whether the kernel may be called with these tensors; without a contract its labels say it."""
        if self.contract is not None:
            return takes(self.contract, specs)
        own = [argument.spec for argument in self.problem.tensors] if self.problem is not None else []
        return SPECIALISED not in self.kernel.labels or list(specs) == own


@dataclass(frozen=True, slots=True)
class Card:
    """Hold a technique as a prompt shows it, with what is known of it here and why it was chosen."""

    id: str
    title: str
    advice: str
    sizes: str
    evidence: str
    weight: float
    why: str


@dataclass(frozen=True, slots=True)
class Trial:
    """Hold one draft that was asked for. `reward` is from 0 to 1; a `cost_usd` of `None` is unknown.

    A request that was refused or never answered says nothing about the model's price.
    """

    model: str
    reward: float
    cost_usd: float | None
    answered: bool = True


@dataclass(frozen=True, slots=True)
class Learnt:
    """Hold what a writer knows of a run beside its attempts: lessons, ideas refused as repeats, and lost drafts."""

    lessons: str = ""
    repeats: tuple[str, ...] = ()
    lost: tuple[Trial, ...] = field(default=(), metadata=LATER)  # drafts of which there is no attempt

    def plus(self, more: Learnt) -> Learnt:
        repeats = (*self.repeats, *more.repeats)[-REPEATS_TOLD:]
        return Learnt(more.lessons or self.lessons, repeats, self.lost + more.lost)


@dataclass(frozen=True, slots=True)
class Gained:
    """Hold what came of one brief beside its drafts: what was learnt, the ideas that were taken up, the calls it
    took.
    """

    learnt: Learnt = Learnt()
    ideas: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()  # that were answered, by their ids

    def plus(self, more: Gained) -> Gained:
        return Gained(self.learnt.plus(more.learnt), self.ideas + more.ideas, self.calls + more.calls)


@dataclass(frozen=True, slots=True)
class Brief:
    """Hold all that a writer may know when it drafts one round, or a part of one."""

    run_id: str
    problem: FunctionalProblem
    device: Device
    exemplars: tuple[Shown, ...]
    attempts: tuple[Attempt, ...]  # of this run so far, oldest first
    hint: str
    round: int  # 1, 2, 3...
    width: int  # how many drafts are wanted at most
    asked: int = 0  # how many were asked for before in this run
    learnt: Learnt = Learnt()
    baselines: BaselineTimes | None = field(default=None, metadata=LATER)  # timed before there was any kernel
    cards: tuple[Card, ...] = field(default=(), metadata=LATER)  # techniques that may help
    precision: str = field(default="strict", metadata=LATER)  # the lowest that products may be computed in
    also: tuple[str, ...] = field(default=(), metadata=LATER)  # other sizes at which the kernel is to be right


@dataclass(frozen=True, slots=True)
class Draft:
    """Hold a candidate before it is judged. `parents` are kernel ids with how they contributed."""

    candidate: Candidate
    idea: str
    parents: tuple[tuple[str, Relation], ...] = ()
    exemplars: tuple[Exemplar, ...] = ()
    model: str = ""
    call_ids: tuple[str, ...] = ()
    cost_usd: float | None = 0.0
    note: str = ""
    techniques: tuple[str, ...] = field(default=(), metadata=LATER)  # ids of the cards that were in view


@dataclass(frozen=True, slots=True)
class Past:
    """Hold what a run had when it was cut short.

    `gained` and `drafts` came of the briefs that were answered whole. Of the other briefs there are the attempts that
    were `judged`, and the `calls` that no draft was made of yet, in the order in which they came.
    """

    gained: Gained = Gained()
    drafts: tuple[Draft, ...] = ()
    judged: tuple[Attempt, ...] = ()
    calls: tuple[LLMCall, ...] = ()


class Writer(Protocol):
    """The seam for whatever writes kernels: an LLM, the offline writer, a recorded script."""

    name: str

    def propose(self, brief: Brief) -> Sequence[Draft]:
        """Draft up to `brief.width` candidates; an empty list says that nothing more comes to mind."""
        ...


@runtime_checkable
class StreamingWriter(Writer, Protocol):
    """A writer whose drafts take a while: it may be asked for more, from other threads, while some are under way.

    What it asks of a model follows from the brief alone, so that a run that was killed asks the same again.
    """

    @property
    def learnt(self) -> Learnt:
        """What the next brief should pass on."""
        ...

    def gained(self, brief: Brief) -> Gained:
        """Return what has come of this brief beside drafts."""
        ...

    def go_on(self, past: Past) -> None:
        """Know what the run knew when it was cut short; called before anything is asked."""
        ...

    def stream(self, brief: Brief) -> Iterator[Draft]:
        """Draft up to `brief.width` candidates, each as soon as it is there."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit what a run may spend; `None` is no limit. `usd` needs a model whose price is known."""

    rounds: int = 2
    seconds: float | None = None
    tokens: int | None = None
    usd: float | None = None


@runtime_checkable
class TellsBaselines(Protocol):
    """A judge that can time what a kernel has to beat, before there is one."""

    def baseline_times(self, fp: FunctionalProblem) -> BaselineTimes | None: ...


@runtime_checkable
class SaysWhyNot(Protocol):
    """A writer that can say what of a problem it has no kernel for."""

    def why_not(self, fp: FunctionalProblem) -> str: ...


class WriterError(RagKernelsError):
    """The writer cannot go on (bad key, unreachable model, no usable reply); the message says what to do."""


class NoDraftError(WriterError):
    """Models answered, and nothing of what they said was a kernel."""


codec.register(BaselineTimes, Lesson, Shown, Card, Trial, Learnt, Gained, Brief, Draft)
