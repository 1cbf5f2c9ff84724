"""The list of commands in groups, by what one wants to do.

Comes in: typer's group of commands. Goes out: the same with another list in its help; a command that no group names is
shown under "More".
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Write kernels": ("generate", "capture", "grow", "sample"),
    "Judge your own": ("check", "functionalize", "eval", "verify"),
    "Look": ("search", "archive", "app", "report", "export"),
    "For agents": ("mcp", "agent-setup"),
    "Measure the tool": ("replay", "ablate", "zoo", "mutate"),
    "This machine": ("doctor",),
}


class GroupedHelp(TyperGroup):
    """List the commands under the headings of `GROUPS`."""

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
