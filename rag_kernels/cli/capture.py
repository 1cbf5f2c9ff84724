"""`rag-kernels capture`: a problem from what a program of the user's own really computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.shared.common import Json, emit


def capture(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python program that calls the module.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="The program's own, after `--`.")
    ] = None,
    module: Annotated[
        str,
        typer.Option(
            "--module", metavar="NAME", help="The module's class, or its place in the model: LlamaMLP, layers.*.mlp."
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="By default NAME.py in this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a program, record the calls that one of its modules gets, and write them as a problem with its workloads.

    Example: rag-kernels capture serve.py --module LlamaMLP --out mlp.py -- --requests 100
    """
    from rag_kernels.eval.records import ProblemError
    from rag_kernels.ingest.live.capture import capture as record

    if not module:
        raise typer.BadParameter("Say which module: --module NAME, a class or a place such as `layers.*.mlp`.")
    found = record(script, arguments or [], module)
    place = out or Path(f"{found.problem.name.lower()}.py")
    if place.suffix != ".py" or not place.parent.is_dir():
        raise ProblemError(f"{place} cannot be written: name a .py file in a folder that exists.")
    place.write_text(found.problem.source)
    rows = [{"class": m.kind, "places": list(m.places), "calls": m.calls, "ways": m.ways} for m in found.modules]
    if as_json:
        emit("captured", {"out": str(place), "notes": list(found.notes), "modules": rows})
    else:
        for m in found.modules:
            where = f" ({', '.join(m.places[:3])}{'...' if len(m.places) > 3 else ''})" if m.places else ""
            print(f"{m.kind}{where}: {m.calls} calls, {m.ways} kinds")
        for note in found.notes:
            print(f"Note: {note}.")
        training = " --training" if found.trained else ""
        print(f"{found.problem.name} is written to {place}; next: rag-kernels generate {place}{training}")
    raise typer.Exit(0 if found.exit_code == 0 else 1)
