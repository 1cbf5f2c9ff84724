"""Judge archived kernels again on this machine, and mark those that do not hold.

Comes in: the kernels that are due, and the seams of a `Session`. Goes out: a `Reverified` for each, on disk before it
is yielded: a kill loses nothing, and the next call goes on. Knows nothing of terminals.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rag_kernels.archive import recheck
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.recheck import Due, Recheck
from rag_kernels.archive.records import Attempt, Run
from rag_kernels.eval.judge import Judge
from rag_kernels.eval.machine.device import gpu_name
from rag_kernels.eval.records import Backend, FunctionalProblem, MachineError, Passed, Problem, ProblemError
from rag_kernels.records import Draft
from rag_kernels.run.history import History
from rag_kernels.run.standings import as_attempt, now

Functionalize = Callable[[Problem], FunctionalProblem]


@dataclass(frozen=True, slots=True)
class Reverified:
    """Hold the new judgement of one kernel, and of the evaluation that spoke for it; no attempt when it cannot be
    judged here.
    """

    due: Due
    attempt: Attempt | None
    mark: Recheck | None
    why_not: str = ""

    @property
    def state(self) -> Literal["holds", "stale", "fails here", "not judged"]:
        """Return whether the kernel holds here. One that is verified on another device and fails here is not stale."""
        if self.attempt is None:
            return "not judged"
        if self.mark is not None and self.mark.outcome in ("slower", "fails"):
            return "stale"
        return "holds" if isinstance(self.attempt.judged.verdict, Passed) else "fails here"


def reverify(
    kernels: Sequence[Due], *, archive: Archive, judge: Judge, functionalize: Functionalize
) -> Iterator[Reverified]:
    """Judge each kernel as a new candidate is judged, confirmation included, and mark its earlier evaluations."""
    settings = json.dumps({"kernels": len(kernels), "device": judge.device.name}, sort_keys=True)
    run = Run(f"r_{secrets.token_hex(6)}", "reverify", f"{len(kernels)} kernels", settings, now())
    archive.start_run(run)
    history = History()
    status = "interrupted"
    try:
        for due in kernels:
            try:
                functional = _as_it_was(functionalize(due.problem), due.problem)
            except ProblemError as error:
                yield Reverified(due, None, None, str(error))
                continue
            yield _judged_again(due, functional, run, history, archive, judge)
        status = "finished"
    finally:
        archive.finish_run(run.id, status)


def _judged_again(
    due: Due, functional: FunctionalProblem, run: Run, history: History, archive: Archive, judge: Judge
) -> Reverified:
    draft = Draft(due.candidate, due.idea, model=due.model, note="judged again")
    [(_, judged)] = judge.judge(functional, [due.candidate])
    attempt = as_attempt(history, run, functional, draft, judged, due.writer, 1)
    if isinstance(judged.verdict, Passed):
        archive.record_attempt(attempt)
        history.add(attempt)
        judged = judge.confirm(functional, due.candidate)
        attempt = as_attempt(history, run, functional, draft, judged, due.writer, 1)
    marks = {mark.evaluation_id: mark for mark in recheck.record(archive, attempt)}
    history.add(attempt)
    return Reverified(due, attempt, marks.get(due.evaluation_id or ""))


def _as_it_was(functional: FunctionalProblem, problem: Problem) -> FunctionalProblem:
    """Return the functional problem, unless it had to be made smaller; then raise ProblemError."""
    if functional.problem.id != problem.id:
        raise ProblemError(
            f"{problem.name} is too large for this machine ({functional.notice}): judge it on a larger one."
        )
    return functional


def require_device(backend: Backend) -> None:
    """Raise a MachineError when kernels could only be built here, which proves nothing."""
    if backend == "cuda" and gpu_name() is None:
        raise MachineError("There is no NVIDIA GPU here to judge CUDA kernels on: use --device cpu or another machine.")
