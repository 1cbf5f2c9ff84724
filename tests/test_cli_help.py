"""The help of every command fits a terminal of 80 columns, and no line of it is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from rag_kernels.cli import app


def helps(command: Any, parent: Any, name: str) -> Iterator[tuple[str, str]]:
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=80)
    yield context.command_path, command.get_help(context)
    for inner_name, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, context, inner_name)


def test_help_fits_and_is_not_cut() -> None:
    pages = dict(helps(typer.main.get_command(app), None, "rag-kernels"))
    assert len(pages) > 25
    lines = [(name, line) for name, text in pages.items() for line in text.splitlines()]
    assert [told for told in lines if len(told[1]) > 80] == []
    assert [told for told in lines if re.search("<(path|text|list)", told[1])] == []  # arguments have words, not types
    assert [told for told in lines if re.fullmatch(r"  [a-z-]+ {2,}.*\.\.\.", told[1])] == []  # in lists of commands
