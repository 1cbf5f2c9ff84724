"""Numbers and texts as people read them, on one line. Knows nothing of consoles."""

from __future__ import annotations

LINE_CHARS = 120


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def money(usd: float | None) -> str:
    return "at an unknown price" if usd is None else f"${usd:.4f}" if usd else "no LLM cost"


def shorten(text: str, limit: int = LINE_CHARS) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= limit else first[: limit - 1] + "…"
