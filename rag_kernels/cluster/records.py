"""The records of dispatching: running judges, what they are asked, and how one of them can be lost.

Goes in and out of `cluster.dispatcher`; `cluster.ray_judge` starts judges on Ray. Knows nothing of either.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from rag_kernels.cluster.remote_judge import About, Fault
from rag_kernels.eval.errors import Internal
from rag_kernels.eval.records import Candidate, FunctionalProblem, Judged


class LostError(Internal):
    """A judge is gone. `host_too`: with the host that it ran on, which says nothing about what it was doing."""

    def __init__(self, why: str, *, host_too: bool) -> None:
        super().__init__(why)
        self.host_too = host_too


class JudgeHandle(Protocol):
    """Control a judge somewhere. Its futures end in a LostError when it is gone; `end` kills it, `close` ends it in
    order.
    """

    def open(self) -> Future[About | Fault]: ...
    def build(self, candidate: Candidate) -> None: ...
    def judge(self, problem: FunctionalProblem, candidate: Candidate, confirm: bool) -> Future[Judged | Fault]: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class JudgePool(Protocol):
    """Start judges."""

    def wanted(self) -> int:
        """Return how many judges the cluster has room for now."""
        ...

    def start(self) -> JudgeHandle:
        """Start one more judge; it opens once there is a place for it."""
        ...


@dataclass(eq=False, slots=True)
class JudgeSlot:
    """Hold a judge that was started; `about` is None until it is open."""

    handle: JudgeHandle
    about: About | None = None
    job: Job | None = None
    since: float = 0.0
    problem: str = ""  # what it has open
    retired: bool = False  # it holds its place, so that nobody is hired for it, and gets no work

    @property
    def works(self) -> bool:
        return self.about is not None and not self.retired


@dataclass(frozen=True, slots=True)
class FailedTry:
    """Hold a judgement that came to nothing, and where."""

    unit: str
    why: Fault | LostError


@dataclass(eq=False, slots=True)
class Job:
    """Hold a candidate that is to be judged. `built_by` is the judge that builds it ahead."""

    problem: FunctionalProblem
    candidate: Candidate
    confirm: bool
    number: int
    answer: Future[Judged] = field(default_factory=Future)
    asked_at: float = field(default_factory=time.monotonic)
    built_by: JudgeSlot | None = None
    tries: list[FailedTry] = field(default_factory=list)  # in vain

    @property
    def losses(self) -> list[str]:
        return [str(one.why) for one in self.tries if isinstance(one.why, LostError)]

    @property
    def faults(self) -> list[Fault]:
        return [one.why for one in self.tries if isinstance(one.why, Fault)]
