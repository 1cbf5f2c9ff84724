"""A source, an assembly or a command as text in colours, its lines numbered where asked, with a button that copies it.

Comes in: a text and the name of its language. Goes out: HTML in which the text is escaped. It is coloured here, because
the script that would do it in the browser is half a megabyte. Knows nothing of Streamlit.
"""

from __future__ import annotations

from functools import lru_cache
from html import escape

from rich.console import Console
from rich.style import Style
from rich.syntax import Syntax

COLOURED_CHARS = 60_000  # more than this is shown without colours: markup is three times the text
KINDS = {"blue": "w", "cyan": "k", "green": "n", "yellow": "t", "magenta": "m"}  # word, kind, name, text, mark
LANGUAGES = {"asm": "gas"}  # by their names elsewhere
_CONSOLE = Console(color_system="standard", force_terminal=True, width=10_000)


def listing(text: str, language: str = "", *, numbers: bool = False, tall: int = 0, wraps: bool = False) -> str:
    """Return the markup of a text. More than `tall` lines scroll where it is not 0."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").rstrip()  # lines end as the colouring ends them
    lines = _coloured(text, language) if language and len(text) <= COLOURED_CHARS else escape(text).split("\n")
    if numbers:
        lines = [f'<span class="rk-line">{line}</span>' for line in lines]
    names = ["rk-code", *(["rk-wraps"] if wraps else []), *(["rk-tall"] if tall and len(lines) > tall else [])]
    head = f'<div class="{" ".join(names)}" data-language="{escape(language)}">'
    body = "\n".join(lines)
    return f'{head}<button type="button" data-copy>Copy</button><pre tabindex="0"><code>{body}</code></pre></div>'


@lru_cache(maxsize=64)
def _coloured(text: str, language: str) -> list[str]:
    """Return the lines of a text, each with its colours as classes."""
    syntax = Syntax("", LANGUAGES.get(language, language), theme="ansi_light", tab_size=0)
    lines = syntax.highlight(text).split("\n", allow_blank=True)
    drawn = []
    for line in lines[: text.count("\n") + 1]:
        parts: list[tuple[str, str]] = []
        for segment in line.render(_CONSOLE):
            kind = _kind(segment.style) if segment.text.strip() else ""
            if parts and parts[-1][0] == kind:
                kind, before = parts.pop()
                parts.append((kind, before + segment.text))
            else:
                parts.append((kind, segment.text))
        drawn.append("".join(f'<i class="{kind}">{escape(said)}</i>' if kind else escape(said) for kind, said in parts))
    return drawn


def _kind(style: Style | None) -> str:
    """Return the class of a piece of text, by the look that rich's theme has for it; empty for plain text."""
    if style is None:
        return ""
    return "r" if style.dim else KINDS.get(style.color.name, "") if style.color else ""
