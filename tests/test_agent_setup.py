"""What tells a project's agents of the judge: files that are added to, and a skill by the public convention."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import typer.main
import yaml

from rag_kernels.agents.setup_files import AGENTS, NAME, SKILL, SetupError, command, toml_lines, write_files
from rag_kernels.cli import app

ROOT = Path(__file__).resolve().parent.parent


def test_what_others_wrote_stays_and_the_entry_is_written_once(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"other": {"command": "x"}}, "more": 1}')
    written = write_files(tmp_path, AGENTS)
    assert write_files(tmp_path, AGENTS) == written and all(path.is_file() for path in written)
    shown = {path.relative_to(tmp_path).as_posix() for path in written}
    skills = {f"{folder}/skills/{NAME}/SKILL.md" for folder in (".claude", ".codex")}
    assert shown == {".mcp.json", ".cursor/mcp.json", *skills}
    known = json.loads((tmp_path / ".mcp.json").read_text())
    assert known["more"] == 1 and known["mcpServers"]["other"] == {"command": "x"}
    program, *arguments = command()
    assert known["mcpServers"][NAME] == {"command": program, "args": arguments} and arguments == ["mcp", "--root", "."]
    assert tomllib.loads(toml_lines(tmp_path))["mcp_servers"][NAME]["args"] == ["mcp", "--root", str(tmp_path)]


def test_a_file_that_cannot_be_added_to_is_left_alone_and_nothing_else_is_written(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"mcpServers": []}'):
        (tmp_path / ".mcp.json").write_text(text)
        with pytest.raises(SetupError, match="mend it, or add the server by hand"):
            write_files(tmp_path, AGENTS)
        assert (tmp_path / ".mcp.json").read_text() == text and len(list(tmp_path.iterdir())) == 1


def test_the_skill_keeps_to_the_public_convention() -> None:
    _, head, body = (SKILL / "SKILL.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts["name"] == NAME == SKILL.name and re.fullmatch(r"[a-z0-9-]{1,64}", NAME)
    assert 1 <= len(facts["description"]) <= 1024 and "Use when" in facts["description"]
    assert set(facts) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert len(body.splitlines()) < 500 and len(body) < 5000 * 3.5
    for named in re.findall(r"`(references/[\w.]+)`", body):
        assert (SKILL / named).is_file()
    assert (ROOT / "skills" / NAME / "SKILL.md").samefile(SKILL / "SKILL.md")


def test_the_skill_names_commands_that_there_are() -> None:
    text = (SKILL / "SKILL.md").read_text()
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = set(re.findall(r"`rag-kernels ([a-z-]+)", text))
    assert named and named <= known.keys()


def test_the_skills_example_is_a_problem_that_can_be_used(tmp_path: Path) -> None:
    from rag_kernels import functionalize

    text = (SKILL / "references" / "problem.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "problem.py").write_text(code)
    assert functionalize(tmp_path / "problem.py").verified
