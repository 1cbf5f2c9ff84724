"""Prompt templates: files in `prompts/`, rendered strictly, so that a missing value is an error.

Comes in: a template's name and values. Goes out: the text exactly as it is sent. Knows nothing of what it says.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).resolve().parent / "prompts"


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(FOLDER)
    return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)


def render(template: str, **values: Any) -> str:
    """Render `prompts/<template>.jinja`."""
    return _environment().get_template(f"{template}.jinja").render(**values).strip() + "\n"
