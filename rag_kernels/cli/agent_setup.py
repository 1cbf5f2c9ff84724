"""`rag-kernels agent-setup`: tell a project's coding agents of the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.shared.common import Json, emit

WAYS = "claude,cursor,codex"


def agent_setup(
    project: Annotated[Path, typer.Argument(metavar="FOLDER", help="The project that the agents work on.")] = Path(),
    agents: Annotated[
        str, typer.Option("--agents", metavar="NAMES", help="For which agents, with commas between them.")
    ] = WAYS,
    as_json: Json = False,
) -> None:
    """Write into a project what lets its coding agents use the judge: the MCP server's entry, and a skill.

    Files that are there are added to. Codex has its servers in the user's own configuration, which is left alone: the
    lines for it are printed.

    Example: rag-kernels agent-setup . --agents claude
    """
    from rag_kernels.agents.setup_files import AGENTS, toml_lines, write_files

    chosen = tuple(name for name in AGENTS if name in agents.split(","))
    unknown = [name for name in agents.split(",") if name not in AGENTS]
    if unknown or not chosen:
        raise typer.BadParameter(f"--agents {agents}: these are known: {', '.join(AGENTS)}.")
    if not project.is_dir():
        raise typer.BadParameter(f"{project} is no folder.")
    written = write_files(project, chosen)
    entry = toml_lines(project) if "codex" in chosen else ""
    if as_json:
        emit("agent_setup", {"written": [str(path) for path in written], "codex_toml": entry})
        return
    for path in written:
        print(f"wrote {path}")
    if entry:
        print(f"\nCodex reads servers from ~/.codex/config.toml; add to it:\n\n{entry}", end="")
