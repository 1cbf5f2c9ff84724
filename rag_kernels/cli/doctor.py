"""`rag-kernels doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

from typing import Annotated

import typer

from rag_kernels.cli.common import ApiBase, ArchivePlace, Json, Model, emit, read_options


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
    from rag_kernels.doctor import checks

    rows = []
    for check in checks(read_options(models=model, api_base=api_base, archive=archive), probe=probe):
        rows.append(check)
        if as_json:
            emit(
                {
                    "check": check.check,
                    "ok": check.ok,
                    "required": check.required,
                    "detail": check.detail,
                    "next_step": check.next_step,
                }
            )
        else:
            mark = "ok     " if check.ok else "MISSING" if check.required else "no     "
            print(f"{mark}  {check.check:<12} {check.detail}", flush=True)
            if check.next_step:
                print(f"{'':<23}{check.next_step}")
    raise typer.Exit(2 if any(row.required and not row.ok for row in rows) else 0)
