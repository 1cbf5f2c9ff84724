"""The files by which a project's agents find the judge: the MCP server's entry, and the skill.

Comes in: a project's folder, and which agents. Goes out: paths written. What other tools wrote into these files stays.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from rag_kernels.eval.errors import RagKernelsError

Agent = Literal["claude", "cursor", "codex"]
AGENTS: tuple[Agent, ...] = get_args(Agent)
NAME = "rag-kernels"
SKILL = Path(__file__).resolve().parent / "skills" / NAME


@dataclass(frozen=True, slots=True)
class Places:
    """Where an agent looks in a project for servers, and for skills; None where it does not look into projects."""

    servers: str | None
    skills: str | None


PLACES: dict[Agent, Places] = {
    "claude": Places(".mcp.json", ".claude/skills"),
    "cursor": Places(".cursor/mcp.json", None),
    "codex": Places(None, ".codex/skills"),
}


class SetupError(RagKernelsError):
    """A file of the project cannot be added to; the message says why."""


def command(root: str = ".") -> list[str]:
    """Return the command that starts the server: by its name where that finds this installation, else by its path."""
    here, found = Path(sys.executable).with_name(NAME), shutil.which(NAME)
    program = NAME if found and Path(found).resolve() == here.resolve() else str(here)
    return [program, "mcp", "--root", root]


def toml_lines(project: Path) -> str:
    """Return the entry for a user's own configuration in TOML, as Codex reads it."""
    program, *arguments = command(str(project.resolve()))
    return f"[mcp_servers.{NAME}]\ncommand = {json.dumps(program)}\nargs = {json.dumps(arguments)}\n"


def write_files(project: Path, agents: tuple[Agent, ...]) -> list[Path]:
    """Write the server's entry and the skill for each agent; return what was written. Raises SetupError."""
    entries = {agent: servers for agent in agents if (servers := PLACES[agent].servers)}
    texts = {project / place: _with_server(project / place) for place in entries.values()}  # all, before any is written
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    places = [skills for agent in agents if (skills := PLACES[agent].skills)]
    return [*texts, *(_copy_skill(project / skills) for skills in places)]


def _with_server(path: Path) -> str:
    try:
        known = json.loads(path.read_text()) if path.is_file() else {}
        servers = known.setdefault("mcpServers", {})
        program, *arguments = command()
        servers[NAME] = {"command": program, "args": arguments}
    except (ValueError, AttributeError, TypeError):
        raise SetupError(f"{path} is no JSON object with `mcpServers`: mend it, or add the server by hand.") from None
    return json.dumps(known, indent=2) + "\n"


def _copy_skill(skills: Path) -> Path:
    shutil.copytree(SKILL, skills / NAME, dirs_exist_ok=True)
    return skills / NAME / "SKILL.md"
