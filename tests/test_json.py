"""Rows of `--json` are what docs/reference/json.md says: each type from the command that prints it."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NotRequired, get_origin, get_type_hints

import pytest
import typer
from cli_home import BRIEF, RELU, RIGHT, WRONG, Done, inside, model, run
from pydantic import TypeAdapter, ValidationError

from rag_kernels import cli
from rag_kernels.cli.shared.common import JSON_SCHEMA
from rag_kernels.report.json_types import TYPES


def fault(row: dict[str, Any]) -> str:
    """What is wrong with a row: a key too many, one too few, or a value of another kind."""
    rest = dict(row)
    kind, schema = rest.pop("type"), rest.pop("schema")
    record = TYPES[kind].record
    hints = get_type_hints(record, include_extras=True)
    needed = {key for key, hint in hints.items() if get_origin(hint) is not NotRequired}
    if schema != JSON_SCHEMA or not needed <= rest.keys() or not rest.keys() <= hints.keys():
        return f"{kind}: {needed - rest.keys()} are missing, {rest.keys() - hints.keys()} are not told"
    for key, value in rest.items():
        hint = hints[key].__args__[0] if get_origin(hints[key]) is NotRequired else hints[key]
        try:
            TypeAdapter(hint).validate_python(value)
        except ValidationError as error:
            return f"{kind}.{key}: {error}"
    return ""


def faults(done: Done, *types: str) -> list[str]:
    assert {row["type"] for row in done.rows} == set(types), done.err
    return [told for row in done.rows if (told := fault(row))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("json")
    (made / "relu.py").write_text(RELU.problem.source)
    (made / "right.cpp").write_text(RIGHT)
    (made / "wrong.cpp").write_text(WRONG)
    (made / "broken.py").write_text("class Model(:\n")
    return made


def test_the_types_of_a_search(home: Path) -> None:
    where = ("--archive", home / "a", "--json")
    writer = model(home / "m", RIGHT, WRONG)
    done = inside(home, "generate", "relu.py", "--model", writer, *BRIEF, *where, quick=True)
    assert faults(done, "attempt", "result") == []
    kernel_id = done.rows[-1]["kernel_id"]
    assert faults(inside(home, "report", "latest", *where), "solved", "score") == []
    assert faults(inside(home, "search", "relu", *where), "hit") == []
    assert faults(inside(home, "archive", "show", kernel_id, *where), "kernel") == []
    assert faults(inside(home, "archive", "stats", *where), "stats") == []
    assert faults(inside(home, "archive", "cards", *where), "card") == []
    assert faults(inside(home, "archive", "verify", *where), "audit") == []
    assert faults(inside(home, "archive", "reindex", *where), "reindexed") == []
    assert faults(inside(home, "archive", "export", "b.zip", *where), "bundle") == []
    assert faults(inside(home, "archive", "import", "b.zip", "--archive", home / "b", "--json"), "bundle") == []
    assert faults(inside(home, "archive", "cards", *where), "card") == []
    assert faults(inside(home, "export", kernel_id, "--out", "k.py", *where), "exported") == []
    small = ("--archive", home / "b", "--json")  # without the starter archive, whose pages take a while
    assert faults(run(home, "app", "--export", "site", *small), "site") == []
    assert faults(inside(home, "archive", "retract", kernel_id, "--why", "a test", *where), "retracted") == []
    again = inside(home, "replay", "latest", *where, quick=True)
    assert faults(again, "replayed", "replay_summary") == []


def test_the_types_of_judging(home: Path) -> None:
    for file in ("right.cpp", "wrong.cpp"):
        where = ("--archive", ":memory:", "--no-confirm", "--json")
        assert faults(inside(home, "eval", "relu.py", file, *where, quick=True), "attempt", "result") == []
    assert faults(inside(home, "functionalize", "relu.py", "broken.py", "--json"), "functional") == []
    checked = inside(home, "check", "relu.py", "broken.py", "--baselines", "--json", quick=True)
    assert faults(checked, "admission") == []
    assert [row.get("eager_us", 0) > 0 for row in checked.rows] == [True, False]


def test_the_types_of_the_machine(home: Path) -> None:
    assert faults(inside(home, "doctor", "--json"), "check") == []
    assert faults(inside(home, "agent-setup", "--json"), "agent_setup") == []
    assert faults(inside(home, "generate", "missing.py", "--json"), "error") == []


def test_every_type_has_a_command_and_keys() -> None:
    for kind in TYPES.values():
        assert kind.commands and (kind.record.__doc__ or "").strip()
        assert fields(kind.record) if is_dataclass(kind.record) else get_type_hints(kind.record)


def test_a_row_of_other_keys_is_seen() -> None:
    good = {"type": "audit", "schema": JSON_SCHEMA, "ok": True, "wrong": []}
    assert fault(json.loads(json.dumps(good))) == ""
    assert fault({**good, "more": 1}) and fault({**good, "ok": "perhaps"})
    assert fault({key: value for key, value in good.items() if key != "ok"})


def test_every_type_that_is_printed_is_told_and_every_command_prints_some() -> None:
    """Of the source: whatever is emitted has a record, no record is left over, and each command takes `--json`."""
    root = Path(cli.__file__).resolve().parents[2]
    texts = [file.read_text() for folder in ("rag_kernels/cli", "app") for file in (root / folder).rglob("*.py")]
    printed = {kind for text in texts for kind in re.findall(r"\bemit\(\s*\"(\w+)\"", text)}
    printed |= {"differs", "replayed"}  # by `replay`, which chooses between them
    assert printed == set(TYPES)

    def commands(command: Any) -> list[Any]:
        inner = getattr(command, "commands", {})
        return [found for one in inner.values() for found in commands(one)] or [command]

    silent = {
        c.name for c in commands(typer.main.get_command(cli.app)) if not any("--json" in p.opts for p in c.params)
    }
    assert silent == {"mcp"}  # which speaks JSON-RPC on stdout, and nothing else
