"""What the commands share: flags, JSON output, logging, and settings with the flags over the environment.

Comes in: flags as typer parsed them. Goes out: `Settings`, rows on stdout, messages on stderr.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rag_kernels import choices
from rag_kernels.text.wording import broken

if TYPE_CHECKING:
    from rag_kernels.cli.shared.settings import Settings
    from rag_kernels.options import Options

Json = Annotated[bool, typer.Option("--json", help="One JSON object a result on stdout; messages go to stderr.")]
Backward = Annotated[
    bool,
    typer.Option("--backward", help="Take the problem's backward: the gradients of its inputs and parameters."),
]
Training = Annotated[
    bool,
    typer.Option("--training", help="Take a step of training: the problem's forward and its gradients by one kernel."),
]
Inputs = Annotated[
    str,
    typer.Option("--inputs", metavar="ARGS", help='What mymodel.py:Block is called with: "torch.randn(8, 512)".'),
]
Init = Annotated[
    str, typer.Option("--init", metavar="ARGS", help='What mymodel.py:Block is made with: "512, heads=8".')
]
Shapes = Annotated[
    str,
    typer.Option(
        "--shapes",
        metavar="SIZES",
        help='Judge at all of these sizes, "batch=1,8,64 seq=1024", by their names in PROBLEM; by default at what its '
        "get_workloads() lists, if it has one, else as it is written.",
    ),
]
ArchivePlace = Annotated[
    str | None,
    typer.Option(
        "--archive", metavar="PLACE", help="The archive's folder, quack://HOST:PORT, or :memory: to keep nothing."
    ),
]
DeviceChoice = Annotated[
    choices.DeviceChoice | None,
    typer.Option("--device", help="Where kernels are to run; auto takes CUDA if there is a GPU."),
]
Model = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="An LLM by its litellm name; repeat it for several. Without one the offline writer works.",
    ),
]
ApiBase = Annotated[
    str | None, typer.Option("--api-base", metavar="URL", help="Address of an OpenAI-compatible server.")
]
Effort = Annotated[
    int | None,
    typer.Option(
        "--effort",
        min=1,
        max=9,
        metavar="1..9",
        help="How much to try: rounds, drafts a round and exemplars in one. [2]",
    ),
]
Rounds = Annotated[
    int | None, typer.Option("--rounds", min=1, metavar="N", help="How many rounds at most; by default from --effort.")
]
Examples = Annotated[
    int | None,
    typer.Option(
        "--examples", min=0, metavar="N", help="Archived kernels to show the writer; by default from --effort."
    ),
]
Retrieval = Annotated[
    choices.RetrievalMode | None,
    typer.Option("--retrieval", help="How exemplars are found. [hybrid]"),
]
LeaveOut = Annotated[
    choices.LeaveOut,
    typer.Option("--leave-out", help="Hide kernels of this problem, or of its family, to measure what they are worth."),
]
Precision = Annotated[
    choices.Precision,
    typer.Option("--precision", help="Allow TF32 or lower in matrix products, for the kernel and for PyTorch alike."),
]
MaxAutotune = Annotated[
    bool, typer.Option("--max-autotune", help='Race torch.compile(mode="max-autotune") too: minutes a problem.')
]
Hint = Annotated[str, typer.Option("--hint", metavar="TEXT", help="A word of advice for the writer.")]
Drafts = Annotated[
    int | None,
    typer.Option("--drafts", min=1, metavar="N", help="Drafts a round, and LLM requests at once; from --effort."),
]
Temperature = Annotated[
    list[float] | None,
    typer.Option("--temperature", min=0, max=2, metavar="T", help="The LLM's temperature; several are taken in turn."),
]
ReasoningEffort = Annotated[
    choices.ReasoningEffort | None,
    typer.Option("--reasoning-effort", help="How long a reasoning LLM may think; by default the provider's choice."),
]
ReplySeconds = Annotated[
    float, typer.Option("--reply-seconds", min=1, metavar="S", help="How long one reply of a model may take.")
]
BudgetUsd = Annotated[
    float | None, typer.Option("--budget-usd", min=0, metavar="USD", help="Start nothing more once so much is spent.")
]
BudgetSeconds = Annotated[
    float | None, typer.Option("--budget-seconds", min=0, metavar="S", help="Start nothing more after so many seconds.")
]
BudgetTokens = Annotated[
    int | None, typer.Option("--budget-tokens", min=0, metavar="N", help="Start nothing more after so many tokens.")
]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Judge on a Ray cluster: host:port, ray://host:port, or `ray` for RAY_ADDRESS, else one started here.",
    ),
]
JudgeCpus = Annotated[
    int,
    typer.Option(
        "--judge-cpus",
        min=0,
        metavar="N",
        help="Cores of each judge on the cluster; by default a share for each GPU, or all.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed for whatever is drawn at random.")]


JSON_SCHEMA = 1  # counted up when a key of a row is renamed, goes, or means something else
OUR_LOGGERS = ("eval", "archive", "ingest", "rag_kernels")


def columns(stream: TextIO) -> int:
    """Return how many characters a line of a terminal holds; 0 elsewhere, where a line is one for grep."""
    return shutil.get_terminal_size().columns if stream.isatty() else 0


class StderrHandler(logging.Handler):
    """Write to whatever `sys.stderr` is at the moment, so that lines do not tear a live table."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is shown: our own, and the warnings of others (some libraries set their own
        level).
        """
        return record.levelno >= logging.WARNING or record.name.split(".")[0] in OUR_LOGGERS

    def emit(self, record: logging.LogRecord) -> None:
        print(broken(self.format(record), columns(sys.stderr), hang=2), file=sys.stderr, flush=True)


def start_logging(*, debug: bool) -> None:
    """Show our own messages on stderr, and of other libraries only warnings."""
    logging.basicConfig(handlers=[StderrHandler()], format="%(name)s: %(message)s" if debug else "%(message)s")
    for folder in OUR_LOGGERS:
        logging.getLogger(folder).setLevel(logging.DEBUG if debug else logging.INFO)


def end_politely() -> None:
    """Treat SIGTERM like Ctrl-C: the judge's processes are closed and the run is marked."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def emit(kind: str, row: dict[str, Any]) -> None:
    """Print one JSON object on a line of its own, at once. `kind` is its `type`, one of `json_types.TYPES`."""
    out = getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # a line that is shown meanwhile would break it at 80
    print(json.dumps({"type": kind, "schema": JSON_SCHEMA, **row}, ensure_ascii=False), file=out, flush=True)


def read_settings(**flags: Any) -> Settings:
    """Return the settings: flags that were given, then the environment, then the defaults."""
    from pydantic import ValidationError

    from rag_kernels.cli.shared.settings import Settings

    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"])
        raise typer.BadParameter(
            f"RAG_KERNELS_{name.upper()} (or --{name.replace('_', '-')}): {first['msg'].lower()}."
        ) from error


def problem_files(paths: Sequence[Path]) -> list[Path]:
    """Return the problem files that paths name, those of folders among them; raises ProblemError where one is
    missing.
    """
    from rag_kernels.eval.problem import find_problems
    from rag_kernels.eval.records import ProblemError

    files = find_problems(list(paths))
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        raise ProblemError(f"There are no problem files in {', '.join(missing or map(str, paths))}; check the path.")
    return files


def writable_out(path: Path | None, suffixes: tuple[str, ...]) -> None:
    """Refuse an output path before any work is done for it."""
    if path is None:
        return
    if path.suffix not in suffixes:
        raise typer.BadParameter(f"--out {path} must end in {' or '.join(suffixes)}.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"--out {path} cannot be written: its folder does not exist, or it is one.")


def read_options(*, models: list[str] | None = None, temperatures: list[float] | None = None, **flags: Any) -> Options:
    """Return `Options` for a session: the flags that were given, then the environment, then the defaults."""
    from rag_kernels.options import Options

    names = ("api_base", "archive", "device", "effort", "retrieval", "embedder", "cache")
    settings = read_settings(**{name: flags.pop(name, None) for name in names})
    chosen = models or [name.strip() for name in settings.model.split(",") if name.strip()]
    known = {name: getattr(settings, name) for name in names}
    return Options(models=tuple(chosen), temperatures=tuple(temperatures or ()), **known, **flags)
