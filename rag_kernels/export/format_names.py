"""The formats by name, and what each is: the first line of each file in `forms` says it, and so makes it one.

Comes in: nothing. Goes out: a dictionary. Imports none of these files, since they import torch, and `--help` may not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FORMS = Path(__file__).with_name("forms")
FIRST_LINE = re.compile(r'"""The format `(?P<name>[\w-]+)`: (?P<told>.+?)\.(?:""")?$')
DEFAULT = "module"  # comes first
SOURCE = "source"  # the kernel as it was judged, beside all formats: it carries no evidence


@dataclass(frozen=True, slots=True)
class Named:
    """A format of this name lies in `forms/{file}.py`; `told` is what it is, as part of a sentence."""

    file: str
    told: str


@cache
def formats() -> dict[str, Named]:
    """Return all formats that carry their evidence."""
    found = {}
    for file in sorted(FORMS.glob("*.py")):
        with file.open() as text:
            if line := FIRST_LINE.match(text.readline().rstrip()):
                found[line["name"]] = Named(file.stem, line["told"])
    return {name: found[name] for name in sorted(found, key=lambda name: (name != DEFAULT, name))}
