"""Numbers and texts as people read them, on one line. Knows nothing of consoles."""

from __future__ import annotations

import textwrap

LINE_CHARS = 120
AT_LEAST = "≥"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def times(ratio: float | None, *, at_least: bool = False) -> str:
    """Return a speed-up; `at_least` marks one that nobody confirmed: it is the lower end of its interval."""
    return "-" if ratio is None else f"{AT_LEAST if at_least else ''}{ratio:.2f}x"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def money(usd: float | None) -> str:
    return "at an unknown price" if usd is None else f"${usd:.4f}" if usd else "no LLM cost"


def broken(text: str, width: int, hang: int | None = None) -> str:
    """Return text whose lines are broken between words at a width, each beneath the text that it goes on: `hang` spaces
    in, by default four more than the line itself. A width of 0 breaks nothing.
    """
    return "\n".join(part for line in text.splitlines() for part in _parts(line, width, hang))


def _parts(line: str, width: int, hang: int | None) -> list[str]:
    if not width or len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 4 if hang is None else hang)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def shorten(text: str, limit: int = LINE_CHARS) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= limit else first[: limit - 1] + "…"
