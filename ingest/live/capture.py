"""A problem from a user's own program: the program runs, and what one of its modules is called with is recorded.

Comes in: a script with its arguments, and the pattern of a module's class or place. Goes out: a `Captured`. The script
runs in a process of its own, with its own output; this module never imports torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Problem, ProblemError

PROGRAM = "rag_kernels.ingest.live.capture_run"


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the program that was called: its class, where it stands, and how often and in how many ways."""

    kind: str
    places: tuple[str, ...]
    calls: int
    ways: int


@dataclass(frozen=True, slots=True)
class Captured:
    """The problem of the module that was called most, what was left out, every module found, and the exit code.

    `trained` says that the program can have wanted gradients of it.
    """

    problem: Problem
    notes: tuple[str, ...]
    modules: tuple[Module, ...]
    exit_code: int
    trained: bool = False


def capture(script: Path, arguments: Sequence[str], pattern: str) -> Captured:
    """Run a script and return the problem of the module whose class or place matches.

    Raises ProblemError where the script cannot be run, calls no such module, or the module cannot be traced.
    """
    if not script.is_file():
        raise ProblemError(f"There is no script {script}.")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "recorded.json")
        command = [sys.executable, "-m", PROGRAM, str(out), pattern, str(script), *arguments]
        code = _ended(subprocess.Popen(command))
        if not out.exists():
            raise ProblemError(f"{script} ended with code {code} before anything could be recorded; see its output.")
        told = json.loads(out.read_text())
    if "reason" in told:
        raise ProblemError(told["reason"])
    modules = tuple(Module(row["class"], tuple(row["places"]), row["calls"], row["ways"]) for row in told["modules"])
    return Captured(
        problem_from_source(told["name"], told["source"]), tuple(told["notes"]), modules, code, told["trained"]
    )


def _ended(program: subprocess.Popen[bytes]) -> int:
    """Return the program's exit code. Ctrl-C reaches the program too, and ends it; a second one kills it."""
    try:
        return program.wait()
    except KeyboardInterrupt:
        try:
            return program.wait()
        except KeyboardInterrupt:
            program.kill()
            raise
