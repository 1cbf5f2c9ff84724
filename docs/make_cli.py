"""Writes docs/reference/cli.md from the help texts and the settings: `python docs/make_cli.py`."""

import subprocess
import sys
from pathlib import Path

from rag_kernels.cli.shared.settings import Settings

PAGE = Path(__file__).with_name("reference") / "cli.md"


def page() -> str:
    """Return the whole page: typer's own documentation of the commands, then the settings."""
    command = [sys.executable, "-P", "-m", "typer", "rag_kernels.cli", "utils", "docs", "--name", "rag-kernels"]
    commands = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()
    rows = [
        f"| `RAG_KERNELS_{name.upper()}` | `{field.default}` | {field.description} |".replace("| `` |", "| |")
        for name, field in Settings.model_fields.items()
    ]
    settings = "\n".join(["| Variable | Default | What it sets |", "|---|---|---|", *rows])
    return f"""{commands}

## Settings

Flags come before these environment variables, and these before the defaults.

{settings}

## Exit codes

| Code | Meaning |
|---|---|
| 0 | It worked; for `generate`, `eval` and `grow`: there is a verified kernel. |
| 1 | It ran, but no kernel is verified (`check`: degenerate; `functionalize`: some failed; `archive verify`: faults). |
| 2 | Bad usage or input, or something that the machine lacks; the message says what to do. |
| 70 | A fault of rag-kernels itself; `rag-kernels --debug ...` shows where. |
| 130 | Ctrl-C or a kill; what was judged is in the archive, and `--resume` goes on. |
"""


if __name__ == "__main__":
    PAGE.write_text(page())
