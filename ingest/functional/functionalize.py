"""A problem as a parameterized call, worked out in a child process and checked against the module.

Comes in: a `Problem` and the `Workers` whose children may run its code. Goes out: a `FunctionalProblem`, or a
ProblemError whose sentence says what to do. This module never imports torch: `functionalize_child` does,
in the child.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import FunctionalProblem, Problem, ProblemError

PRELOAD = ("torch._dynamo", "rag_kernels.ingest.functional.functionalize_child")
CHILD = "rag_kernels.ingest.functional.functionalize_child:functionalize_here"
RUNS = "rag-kernels runs the module of"  # and the problem's id: what a child that was killed had told last
ANY = "any"  # among the sizes that a child is told not to run: all but the problem's own
MOST_CRASHES = 6  # sizes at which a module may end its process before no others are tried


def open_workers() -> Workers:
    """Start a warm parent that has imported what every problem takes, which saves seconds for each."""
    return Workers(preload=PRELOAD)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one problem: its functional form, or the reason why there is none."""

    name: str
    functional: FunctionalProblem | None
    reason: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.functional is not None


def functionalize(
    problem: Problem,
    *,
    workers: Workers,
    deadline_s: float = 60.0,
    memory_bytes: int | None = None,
    threads: int | None = None,
    resized: bool = False,
) -> FunctionalProblem:
    """Record, emit and verify one problem in a child process.

    `resized` says that the sizes are not the author's: the result's problem then folds the indices that it draws into
    what they index (`ingest.functional.ranges`).

    Raises ProblemError with the reason when the problem cannot be used, or when the child fails or takes longer than
    `deadline_s`.
    """
    payload = {"problem": problem, "threads": threads, "resized": resized}
    crashed: list[str] = []
    crash = ""
    while True:
        try:
            asked = payload | {"crashed": crashed}
            reply = workers.call(CHILD, asked, deadline_s=deadline_s, memory_bytes=memory_bytes)
        except WorkerFailed as failure:
            if failure.kind != "crashed" or ANY in crashed:
                raise ProblemError(_sentence(problem, failure, deadline_s)) from failure
            crash = f"{failure.message}{_where(problem, failure)}"
            ran = _ran_last(failure)
            if ran == problem.id:
                raise ProblemError(_sentence(problem, failure, deadline_s)) from failure
            crashed.append(ran if ran and ran not in crashed and len(crashed) < MOST_CRASHES else ANY)
            continue
        if not isinstance(reply, FunctionalProblem):
            raise ProblemError(str(reply["reason"]))
        if crash and not reply.verified:
            return replace(reply, notice=f"{reply.notice} (at smaller sizes the module ended its process: {crash})")
        return reply


def _ran_last(failure: WorkerFailed) -> str:
    """Return the id of the problem whose module a child ran when it was killed; "" where its last words do not say."""
    told = [line for line in failure.log.splitlines() if line.startswith(RUNS)]
    return told[-1].removeprefix(RUNS).strip() if told else ""


def _where(problem: Problem, failure: WorkerFailed) -> str:
    """Return the innermost line of the problem's own text that a child's last words name."""
    found = re.search(rf'File "<{re.escape(problem.name)}>", (line \d+ in \w+)', failure.log)
    return f", {found[1]}" if found else ""


def _sentence(problem: Problem, failure: WorkerFailed, deadline_s: float) -> str:
    if failure.kind == "timed_out":
        return (
            f"{problem.name} was not functionalized within {deadline_s:g} s: its forward, get_inputs or __init__ hangs "
            "or is very slow; make its sizes smaller or its loops shorter."
        )
    if failure.kind == "memory":
        return f"{problem.name} allocates more memory than there is ({failure.message}); make its sizes smaller."
    told = f"{problem.name} ended its process while it was functionalized ({failure.message}{_where(problem, failure)})"
    if failure.signal in (signal.SIGSEGV, signal.SIGBUS):
        return f"{told}: an operator reads or writes out of bounds there; correct its indices, offsets or sizes."
    tail = failure.log.strip().splitlines()[-1:]
    return f"{told}: {tail[0]}" if tail and not tail[0].startswith(RUNS) else f"{told}."


def functionalize_many(
    problems: Iterable[Problem],
    *,
    workers: Workers,
    jobs: int = 2,
    deadline_s: float = 60.0,
    memory_bytes: int | None = None,
) -> Iterator[Row]:
    """Yield a row for each of several problems in the order given, `jobs` at a time with one thread each."""

    def row(problem: Problem) -> Row:
        started = time.monotonic()
        try:
            functional = functionalize(
                problem, workers=workers, deadline_s=deadline_s, memory_bytes=memory_bytes, threads=1
            )
            return Row(problem.name, functional, "", time.monotonic() - started)
        except ProblemError as error:
            return Row(problem.name, None, str(error), time.monotonic() - started)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(row, problems)
