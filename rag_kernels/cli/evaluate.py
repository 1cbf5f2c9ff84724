"""`rag-kernels eval`: judge a kernel from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.common import (
    ArchivePlace,
    DeviceChoice,
    Json,
    MaxAutotune,
    Precision,
    end_politely,
    read_options,
)
from rag_kernels.cli.generate import show_result, watch


def evaluate(
    problem: Annotated[Path, typer.Argument(metavar="PROBLEM", help="A KernelBench file.")],
    kernel: Annotated[Path, typer.Argument(metavar="KERNEL", help="A candidate of any tier: .cpp, .cu, or .py.")],
    device: DeviceChoice = None,
    confirm: Annotated[
        bool, typer.Option(help="Judge a passed kernel once more in a fresh process, as the archive's top tier asks.")
    ] = True,
    precision: Precision = "strict",
    max_autotune: MaxAutotune = False,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Judge a kernel: is it right, how fast is it, and how far from the physical floor.

    Example: rag-kernels eval examples/softmax_scale.py my_softmax.cpp
    """
    from eval.problem import load_problem
    from eval.tiers import candidate_from_file
    from rag_kernels.api import open_session, target_backend
    from rag_kernels.rows import result_row
    from rag_kernels.search import winner
    from rag_kernels.verdict_report import print_verdict

    options = read_options(device=device, archive=archive, precision=precision, max_autotune=max_autotune)
    loaded = load_problem(problem)
    candidate = candidate_from_file(kernel, target_backend(options))
    if device not in (None, "auto", candidate.backend):
        raise typer.BadParameter(f"{kernel} is {candidate.backend} code, but --device says {device}.")
    end_politely()
    with open_session(options, backend=candidate.backend) as session:
        attempts, finished = watch(session.evaluate(loaded, candidate, confirm=confirm), loaded.name, as_json=as_json)
    run_id = attempts[0].run_id if attempts else None
    if attempts and not as_json:
        print_verdict(attempts[-1].judged)
    show_result(result_row(attempts, run_id=run_id, problem=loaded.name), as_json=as_json)
    raise typer.Exit(130 if not finished else 0 if winner(attempts) else 1)
