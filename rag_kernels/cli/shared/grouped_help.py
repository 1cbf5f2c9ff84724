"""The list of commands in groups, by what one wants to do, and what a parser says in plain words.

Comes in: typer's group of commands. Goes out: the same with another list in its help; a command that no group names is
shown under "More".
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

GROUPS = {
    "Write kernels": ("generate", "capture", "grow", "sample"),
    "Judge your own": ("check", "functionalize", "eval", "verify"),
    "Look": ("search", "archive", "app", "report", "export"),
    "For agents": ("mcp", "agent-setup"),
    "Measure the tool": ("replay", "ablate", "zoo", "mutate"),
    "This machine": ("doctor",),
}


class PlainCommand(TyperCommand):
    """Tell arguments by their names alone: what is expected stands beside them, in words."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options."""
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append((record[0].partition(" <")[0], record[1]))
            else:
                options.append(record)
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class GroupedHelp(TyperGroup):
    """List the commands under the headings of `GROUPS`."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what is wrong with an option is said without the words of the library that found it."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ").replace("Input should", "It should")
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups, in their order."""
        known = {name for names in GROUPS.values() for name in names}
        rest = tuple(name for name in self.list_commands(ctx) if name not in known)
        for title, names in {**GROUPS, "More": rest}.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, command.get_short_help_str(80)) for name, command in found if command and not command.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=16)
