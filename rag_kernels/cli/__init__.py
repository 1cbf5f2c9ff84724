"""The command line: `rag-kernels COMMAND`. One file a command; nothing heavy is imported before a command runs.

Comes in: arguments and the environment. Goes out: results on stdout, messages on stderr, and the exit code: 0, or 1
(it ran, but there is no verified kernel), or 2 (bad usage or input). This is the one place, beside the judge's
process boundary, where exceptions are caught: each becomes a sentence.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.archive.opening import COMMAND
from rag_kernels.cli import (
    ablate,
    agent_setup,
    archive,
    capture,
    check,
    doctor,
    evaluate,
    explorer,
    export,
    functionalize,
    generate,
    grow,
    mcp,
    mutate,
    replay,
    report,
    sample,
    search,
    verify,
    zoo,
)
from rag_kernels.cli.shared.common import columns, emit, start_logging
from rag_kernels.cli.shared.grouped_help import GroupedHelp, PlainCommand
from rag_kernels.eval.errors import Internal, RagKernelsError
from rag_kernels.text.wording import broken

EXIT_BAD_INPUT = 2
EXIT_OUR_FAULT = 70
# New objects after which Python looks for circles of references. Libraries make a million, and no garbage: to look
# after each 700 is work for nothing.
SELDOM = (50_000, 20, 20)

app = typer.Typer(
    name="rag-kernels",
    cls=GroupedHelp,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate", cls=PlainCommand, short_help="Write and prove a faster kernel.")(generate.generate)
app.command("check", cls=PlainCommand, short_help="Is a problem worth it?")(check.check)
app.command("functionalize", cls=PlainCommand, short_help="Show problems as calls.")(functionalize.functionalize)
app.command("eval", cls=PlainCommand, short_help="Judge a kernel of your own.")(evaluate.evaluate)
app.command("capture", cls=PlainCommand, short_help="Make a problem of your own program.")(capture.capture)
app.command("sample", cls=PlainCommand, short_help="Write candidates, judge elsewhere.")(sample.sample)
app.command("export", cls=PlainCommand, short_help="Write an archived kernel for others.")(export.export)
app.command("verify", cls=PlainCommand, short_help="Judge an exported package again.")(verify.verify)
app.command("search", cls=PlainCommand, short_help="Find archived kernels.")(search.search)
app.command("grow", cls=PlainCommand, short_help="Generate for many problems.")(grow.grow)
app.command("report", cls=PlainCommand, short_help="Say what runs achieved: pass@k, fast_p.")(report.report)
app.command("replay", cls=PlainCommand, short_help="Repeat a recorded run.")(replay.replay)
app.command("ablate", cls=PlainCommand, short_help="Measure what retrieval is worth.")(ablate.ablate)
app.add_typer(archive.app, name="archive", short_help="Look after the archive.")
app.command("app", cls=PlainCommand, short_help="Browse the archive.")(explorer.explorer)
app.command("zoo", cls=PlainCommand, short_help="Try the judge on kernels that cheat.")(zoo.zoo)
app.command("mutate", cls=PlainCommand, short_help="Count faults that the judge misses.")(mutate.mutate)
app.command("mcp", cls=PlainCommand, short_help="Serve the judge to coding agents.")(mcp.mcp)
app.command("agent-setup", cls=PlainCommand, short_help="Tell a project's agents of the judge.")(
    agent_setup.agent_setup
)
app.command("doctor", cls=PlainCommand, short_help="Check this machine.")(doctor.doctor)


def show_version(wanted: bool) -> None:
    if wanted:
        from rag_kernels.cli.shared.versions import versions

        print(versions())
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug messages.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the versions of rag-kernels, its judge and torch, and exit.",
        ),
    ] = False,
) -> None:
    """Write, prove, time and archive faster kernels for PyTorch modules.

    Example: rag-kernels generate examples/softmax_scale.py --device cpu --out best.py
    """
    start_logging(debug=debug)


def main() -> None:
    """Run a command: the entry point of the `rag-kernels` script."""
    arguments = sys.argv[1:]
    gc.set_threshold(*SELDOM)
    COMMAND.set()
    try:
        app(arguments, prog_name="rag-kernels")
    except Exception as error:
        if "--debug" in arguments:
            raise
        message = expected(error)
        fail(
            message
            or f"This is a fault of rag-kernels itself ({type(error).__name__}: {error}). "
            "Run it again as `rag-kernels --debug ...` to see where.",
            arguments,
        )
        sys.exit(EXIT_BAD_INPUT if message else EXIT_OUR_FAULT)


def expected(error: Exception) -> str:
    """Return the sentence of an error that is the input's or the machine's; empty when the fault is ours."""
    if isinstance(error, RagKernelsError) and not isinstance(error, Internal):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}.{advice(error)}"
    return ""


def advice(error: OSError) -> str:
    """Return what to do where the cache's folder, or one above it, cannot be made or written; else nothing."""
    from rag_kernels.eval.places import default_cache

    cache, place = default_cache(), Path(os.fsdecode(error.filename or ""))
    if error.filename and (place == cache or place in cache.parents or cache in place.parents):
        return f" Builds and baselines are kept in {cache}: set RAG_KERNELS_CACHE to a folder that can be written."
    return ""


def fail(message: str, arguments: list[str]) -> None:
    print(broken(f"Error: {message}", columns(sys.stderr), hang=2), file=sys.stderr)
    if "--json" in arguments:
        emit("error", {"error": message})
