"""The nouns of driving: what a writer is asked, what it drafts, and what a run may spend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from archive.records import ArchivedKernel, Attempt, Exemplar, Relation
from eval import codec
from eval.records import LATER, Candidate, Device, FunctionalProblem


@dataclass(frozen=True, slots=True)
class Shown:
    """An exemplar with the kernel it names, and for writers that work on graphs the problem that it solves."""

    exemplar: Exemplar
    kernel: ArchivedKernel
    problem: FunctionalProblem | None = field(default=None, metadata=LATER)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a writer has said of the run so far: its lessons, and what it was told was no news."""

    lessons: str = ""
    repeats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Brief:
    """All that a writer may know when it drafts one round, or a part of one."""

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


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate before it is judged. `parents` are kernel ids with how they contributed."""

    candidate: Candidate
    idea: str
    parents: tuple[tuple[str, Relation], ...] = ()
    exemplars: tuple[Exemplar, ...] = ()
    model: str = ""
    call_ids: tuple[str, ...] = ()
    cost_usd: float | None = 0.0
    note: str = ""


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

    def stream(self, brief: Brief) -> Iterator[Draft]:
        """Draft up to `brief.width` candidates, each as soon as it is there."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend; `None` is no limit. `usd` needs a model whose price is known."""

    rounds: int = 2
    seconds: float | None = None
    tokens: int | None = None
    usd: float | None = None


class WriterError(Exception):
    """The writer cannot go on (bad key, unreachable model, no usable reply); the message says what to do."""


codec.register(Shown, Learnt, Brief, Draft)
