"""`rag-kernels verify`: judge an exported package again, from the evidence that it carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.common import ArchivePlace, Json, emit, end_politely, read_options
from rag_kernels.cli.generate import watch


def verify(
    package: Annotated[Path, typer.Argument(metavar="PACKAGE", help="A file or folder that `export` wrote.")],
    confirm: Annotated[bool, typer.Option(help="Judge a passed kernel once more in a fresh process.")] = True,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Judge an exported package again on this machine, and say whether it is what its evidence speaks of.

    The problem and the kernel are those of the evidence; the package's files are compared with it and never run. Exit
    code: 0 when the kernel passes and the files agree, else 1. Nothing is archived unless --archive names a place.

    Example: rag-kernels verify softmax-torch-op
    """
    from rag_kernels.eval.records import Passed, verdict_name
    from rag_kernels.eval.told import told
    from rag_kernels.export.check import check_package
    from rag_kernels.report.json_rows import result_row
    from rag_kernels.wiring import open_session

    checked = check_package(package)
    import torch

    here = "cuda" if torch.cuda.is_available() else "cpu"
    attempt, *others = sorted(checked.attempts, key=lambda a: a.candidate.backend != here)
    options = read_options(archive=archive or ":memory:")
    end_politely()
    if not as_json:
        before = told(attempt.judged)
        speed = f"{before.speedup:.2f}x" if before else "not timed"
        print(f"{checked.form} of {attempt.problem.problem.name}, kernel {attempt.candidate.id}")
        print(f"  its evidence: passed, {speed}, {attempt.created_at[:10]} on {attempt.judged.device.name}")
        for other in others:
            print(f"  its kernel for {other.candidate.backend}, {other.candidate.id}, is not judged here")
        for name in checked.other_texts:
            print(f"  {name} is not what its evidence says: it was changed, or another version wrote it")
        for name in checked.other_libraries:
            print(f"  {name} has other bytes than this machine's compiler makes of the source")
    with open_session(options, backend=attempt.candidate.backend) as session:
        judging = session.evaluate(attempt.problem.problem, attempt.candidate, confirm=confirm)
        attempts, finished = watch(judging, attempt.problem.problem.name, as_json=as_json, brief=True)
    verdict = attempts[-1].judged.verdict if attempts else None
    right = finished and isinstance(verdict, Passed)
    if as_json:
        row = result_row(attempts, run_id=None, problem=attempt.problem.problem.name)
        files = {"other_texts": list(checked.other_texts), "other_libraries": list(checked.other_libraries)}
        emit("verified", {**row, "form": checked.form, "kernel_id": attempt.candidate.id, "holds": right, **files})
    elif right:
        after = told(attempts[-1].judged)
        print(f"It passes here{f', {after.speedup:.2f}x the better baseline' if after else ''}.")
    elif verdict is not None:
        print(f"It does not pass here: {verdict_name(verdict)}, {getattr(verdict, 'reason', '')}")
    raise typer.Exit(0 if right and not checked.other_texts else 1)
