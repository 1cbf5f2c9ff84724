"""`rag-kernels check`: is a problem worth spending tokens on?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.shared.busy import each_while_busy
from rag_kernels.cli.shared.common import Backward, DeviceChoice, Json, Training, emit, read_options

if TYPE_CHECKING:
    from rag_kernels.ingest.functional.passes import Pass

DEGENERATE, BROKEN = 1, 2


def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="KernelBench files, or folders of them.")],
    device: DeviceChoice = None,
    backward: Backward = False,
    training: Training = False,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Time eager PyTorch and torch.compile, too: what a kernel has to beat.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Examine problems before any token is spent on them.

    Shows what the output depends on, which kernels that compute nothing would pass (here, and by KernelBench's own
    tolerance), and how far a lower precision lies from honest rounding. Results are kept in the cache.

    Exit code: 0 when all are admitted, 1 when one is degenerate, 2 when one cannot be used.

    Example: rag-kernels check examples/softmax_scale.py

    Example: rag-kernels check examples/ --device cpu --baselines --json
    """
    from rag_kernels.eval.problem import find_problems
    from rag_kernels.eval.records import ProblemError
    from rag_kernels.ingest.functional.passes import pass_of
    from rag_kernels.report.console import admission_line, print_admission

    files = find_problems(paths)
    if not files:
        raise ProblemError(f"There are no .py files in {', '.join(map(str, paths))}.")
    code, wanted = 0, pass_of(backward=backward, training=training)
    rows = admission_rows(files, read_options(device=device), wanted=wanted, baselines=baselines)
    for row in each_while_busy(rows, "looking at the machine"):
        code = max(code, BROKEN if not row["ok"] else DEGENERATE if row["degenerate"] else 0)
        if as_json:
            emit("admission", row)
        elif len(files) > 1 or not row["ok"]:
            print(admission_line(row), flush=True)
        else:
            print_admission(row)
    raise typer.Exit(code)


def admission_rows(
    files: list[Path], options: Any, *, wanted: Pass = "forward", baselines: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a row for each problem, as soon as it is examined; one that cannot be used has `ok` False and a reason."""
    from contextlib import ExitStack

    from rag_kernels.eval.judge import open_judge
    from rag_kernels.eval.machine.device import open_device
    from rag_kernels.eval.places import default_cache
    from rag_kernels.eval.process.workers import Workers
    from rag_kernels.eval.progress import doing
    from rag_kernels.eval.records import ProblemError
    from rag_kernels.eval.sessions.admission import admission_file, open_admission
    from rag_kernels.ingest.functional.functionalize import functionalize_to_fit, open_workers, room_bytes
    from rag_kernels.ingest.functional.passes import load_pass
    from rag_kernels.report.json_rows import admission_row
    from rag_kernels.wiring import target_backend

    backend = target_backend(options)
    cache = Path(options.cache) if options.cache else default_cache()
    room = room_bytes(backend)
    with ExitStack() as opened:
        workers = opened.enter_context(open_workers() if backend == "cpu" else Workers())
        place = open_device(backend, workers, cache)
        judge = opened.enter_context(open_judge(backend, cache_dir=cache)) if baselines else None
        for path in files:
            try:
                problem = load_pass(path, wanted)
                fp = functionalize_to_fit(problem, workers=workers, max_bytes=room)
                doing(f"trying what {problem.name} depends on, and kernels that compute nothing")
                admission = open_admission(admission_file(fp, place, cache=cache), fp, place, workers)
                times = judge.baseline_times(fp) if judge else None
                yield {
                    "problem": path.stem,
                    "path": str(path),
                    "ok": True,
                    "reason": "",
                    **admission_row(fp, place, admission),
                    "problem_id": problem.id,
                    "eager_us": times.eager_us if times else None,
                    "compile_us": times.compile_us if times else None,
                    "compile_note": times.note if times else "",
                }
            except ProblemError as error:
                yield {"problem": path.stem, "path": str(path), "ok": False, "reason": str(error)}
