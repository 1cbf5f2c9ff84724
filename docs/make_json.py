"""Writes docs/reference/json.md from the records of the rows that `--json` prints: `python docs/make_json.py`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, NotRequired, get_origin, get_type_hints

from rag_kernels.cli.shared.common import JSON_SCHEMA
from rag_kernels.report.json_types import TYPES, JsonType

PAGE = Path(__file__).with_name("reference") / "json.md"
PREFACE = f"""# What `--json` prints

What a program may rely on that reads the output of a command with `--json`: every line of stdout is one JSON object,
and messages go to stderr. Each object has a `type`, one of those below, and a `schema`, {JSON_SCHEMA} in this version:
it is counted up when a key is renamed, goes, or means something else. New keys and new types may come at any time.

Speed-ups are those that are told of a kernel: over eager and over torch.compile, and `speedup` over the better of both;
confirmed, or with `at_least` the lower end of the interval. `*_median` and `*_interval` are the measurement itself.
Times of one call are in microseconds (`_us`), others in seconds. What does not apply is null.

This page is made by `python docs/make_json.py`.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([PREFACE, *(_section(name, kind) for name, kind in TYPES.items())])


def _section(name: str, kind: JsonType) -> str:
    hints = get_type_hints(kind.record, include_extras=True)
    told = " ".join((kind.record.__doc__ or "").split())
    where = "any command that fails" if kind.commands == ("all",) else ", ".join(f"`{each}`" for each in kind.commands)
    lines = [f"## {name}\n", f"{told} Printed by {where}.\n", "| key | value |", "|---|---|"]
    lines += [
        f"| `{key}` | {_told(hint)}{', may be missing' if get_origin(hint) is NotRequired else ''} |"
        for key, hint in hints.items()
    ]
    return "\n".join(lines) + "\n"


def _told(hint: Any) -> str:
    """Return a type as JSON has it."""
    if dataclasses.is_dataclass(hint):
        return "object"
    text = hint.__name__ if isinstance(hint, type) and not getattr(hint, "__args__", ()) else str(hint)
    text = re.sub(r"typing_extensions\.|typing\.|rag_kernels(?:\.\w+)*\.", "", text)
    text = re.sub(r"NotRequired\[(.*)\]$", r"\1", text)
    for before, after in (
        (r"Literal\[[^\]]*\]|\bstr\b", "text"),
        (r"Interval|dict\[[^\]]*\]", "object"),
        (r"(?:list|tuple)\[(\w+)(?:, \.\.\.)?\]", r"list of \1"),
        (r"\b(?:int|float)\b", "number"),
        (r"\bbool\b", "true or false"),
        (r" \| None", " or null"),
    ):
        text = re.sub(before, after, text)
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
