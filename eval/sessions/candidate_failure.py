"""What a failure of a candidate's worker means: the verdict that its trial ends with.

Comes in: a failure of `process.workers`, and the stage at which it came. Goes out: a verdict, or `Stopped` with one.
"""

from __future__ import annotations

import re
import signal

from rag_kernels.eval.errors import Internal
from rag_kernels.eval.process.workers import WorkerFailed
from rag_kernels.eval.records import Crashed, Rejected, TimedOut, Verdict

_UNDEFINED = re.compile(r"undefined symbol: (\w+)")  # as the dynamic linker says it


class Stopped(Internal):
    """Ends a trial early with its verdict; never leaves the judge. `alive`: its worker can be asked on."""

    def __init__(self, verdict: Verdict, *, alive: bool = False) -> None:
        super().__init__()
        self.verdict = verdict
        self.alive = alive


def room_is_ours(failure: WorkerFailed, stage: str, tier: str) -> bool:
    """Return whether memory ran out for what the judge lays out: until its first call a kernel's code takes none by
    PyTorch; a module builds itself while it is loaded."""
    return failure.kind == "memory" and stage == "load" and tier != "module"


def failure_verdict(failure: WorkerFailed, stage: str, deadline_s: float) -> Verdict:
    """Return the verdict that a worker's failure is, at the stage `load` or `call`."""
    during = "while it was loaded" if stage == "load" else "during a call"
    if failure.kind == "timed_out":
        return TimedOut(stage, deadline_s, f"The candidate did not finish within {deadline_s:g} s {during}.")
    hint = ""
    match failure.signal:
        case signal.SIGSYS:
            why = f"The candidate made a system call that the sandbox forbids, {during}."
            return Rejected("sandbox_violation", why)
        case signal.SIGSEGV | signal.SIGBUS:
            hint = " (a read or write out of bounds, or a write to a read-only input)"
        case signal.SIGILL:
            hint = " (an instruction this CPU does not have)"
    if undefined := _UNDEFINED.search(failure.log):
        name = undefined.group(1)
        hint = f" (`{name}` is declared and nowhere defined: define it in the source)"
    raised = failure.kind == "raised"
    subject = "The candidate failed" if raised else "The candidate's process ended"
    return Crashed(f"{subject} {during}: {failure.message}{hint}", failure.log, raised=raised)
