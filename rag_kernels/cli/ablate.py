"""`rag-kernels ablate`: is retrieval worth anything?"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from rag_kernels.cli.shared.common import Json, emit, end_politely, problem_files
from rag_kernels.cli.shared.flags import with_search_flags

if TYPE_CHECKING:
    from rag_kernels.choices import RetrievalMode
    from rag_kernels.options import Options


@with_search_flags("retrieval", "leave_out", "seed", "cluster", "judge_cpus")
def ablate(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Folders of KernelBench files, or files.")],
    retrieval: Annotated[
        str, typer.Option("--retrieval", metavar="MODES", help="Ways to compare, with commas between them.")
    ] = "off,random,bm25,dense,hybrid",
    exclude_family: Annotated[
        bool,
        typer.Option("--exclude-family", help="Hide kernels of the problem's family, not only those of the problem."),
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Trials of each problem and way.")] = 1,
    results: Annotated[
        Path,
        typer.Option("--results", metavar="FOLDER", help="An archive of its own for all attempts; it goes on there."),
    ] = Path("ablation"),
    *,
    options: Options,
    as_json: Json = False,
) -> None:
    """Run the same writer with exemplars found in several ways, and with none; compare what it wins.

    Example: rag-kernels ablate examples/ --retrieval off,random,hybrid --exclude-family --seeds 3
    """
    from rag_kernels.experiments.retrieval_ablation import AblationTrial, summarise
    from rag_kernels.experiments.retrieval_ablation import ablate as run_all
    from rag_kernels.report.console import arms_text, trial_line
    from rag_kernels.wiring import open_arms

    arms = modes(retrieval)
    options = replace(options, leave_out="family" if exclude_family else "problem")
    files = problem_files(paths)
    end_politely()
    trials: list[AblationTrial] = []
    try:
        with open_arms(options, results) as (source, make_session):
            for trial in run_all(files, make_session, options, arms=arms, seeds=range(seeds), source=source):
                trials.append(trial)
                if as_json:
                    emit("trial", asdict(trial))
                else:
                    print(trial_line(trial), flush=True)
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on. So far:", file=sys.stderr)
    found = summarise(trials)
    if as_json:
        for arm in found:
            emit("arm", asdict(arm))
    else:
        print(arms_text(found))
    raise typer.Exit(0 if any(trial.solved for trial in trials) else 1)


def modes(text: str) -> list[RetrievalMode]:
    """Return the ways that a list with commas names, each once."""
    from rag_kernels.choices import RetrievalMode

    known: tuple[RetrievalMode, ...] = get_args(RetrievalMode)
    asked = [name.strip() for name in text.split(",") if name.strip()]
    found = [mode for mode in known if mode in asked]
    if not found or set(asked) - set(known):
        raise typer.BadParameter(f"--retrieval takes some of {', '.join(known)}, with commas between them.")
    return found
