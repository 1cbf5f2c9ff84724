"""The problem that a command names: a file, or a module in a file of the user's.

Comes in: what was written on the command line. Goes out: a Problem. Knows nothing of what becomes of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rag_kernels.eval.records import Problem
    from rag_kernels.ingest.functional.passes import Pass


def problem_of(written: Path, wanted: Pass, *, inputs: str = "", init: str = "") -> Problem:
    """Return the problem that a command names: a pass of a file, or of a module in a file with its inputs."""
    from rag_kernels.ingest.functional.passes import load_pass, of_pass
    from rag_kernels.ingest.live.named_module import named_module, problem_of_named

    named = named_module(str(written))
    if named is None:
        if inputs or init:
            raise typer.BadParameter("--inputs and --init go with a module of your own: mymodel.py:Block.")
        return load_pass(written, wanted)
    found = problem_of_named(*named, inputs=inputs, init=init)
    return of_pass(found.problem, wanted, fixed=found.fixed)
