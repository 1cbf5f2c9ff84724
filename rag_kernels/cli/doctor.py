"""`rag-kernels doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.shared.common import ApiBase, ArchivePlace, Json, Model, columns, emit, read_options
from rag_kernels.text.wording import broken

INDENT = 24  # where what is told of a check begins


def doctor(
    model: Model = None,
    api_base: ApiBase = None,
    archive: ArchivePlace = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also send the models one short request (costs tokens).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the compiler, ninja, GPU, sandbox, embedder, archive and LLM.

    Exit code: 0 when kernels for the CPU can be made here, 2 when something for that is missing.

    Example: rag-kernels doctor
    """
    from rag_kernels.doctor import Check, checks, conclusion, ready

    rows = []
    for check in checks(read_options(models=model, api_base=api_base, archive=archive), probe=probe):
        rows.append(check)
        if as_json:
            emit("check", asdict(check))
        else:
            home = str(Path.home()).rstrip("/") + "/"
            detail = check.detail.replace(home, "~/") if len(home) > 1 else check.detail
            mark = "ok     " if check.ok else "MISSING" if check.required else "no     "
            width = columns(sys.stdout)
            print(broken(f"{mark}  {check.check:<14} {detail}", width, hang=INDENT), flush=True)
            if check.next_step:
                print(broken(f"{'':<{INDENT}}{check.next_step}", width, hang=INDENT))
    said = conclusion(rows)
    if as_json:
        emit("check", asdict(Check("conclusion", ready(rows), said, required=True)))
    else:
        print(f"\n{said}")
    raise typer.Exit(0 if ready(rows) else 2)
