"""How much of a kernel stands in another one: did the writer learn from its exemplar, or copy it?

Comes in: two sources. Goes out: the share of the first one's runs of tokens that the second one has too. Comments and
spacing do not count, and names do: a copy keeps them, a kernel written anew seldom hits on the same ones.
"""

from __future__ import annotations

import re

TOKENS = 6  # in a run: shorter ones are the language, longer ones break at each small change
NEAR_COPY = 0.8  # from this share on a winner is called a near-copy


def likeness(source: str, other: str) -> float:
    """Between 0 and 1; every kernel shares its includes and its export with every other, some 0.1 to 0.2."""
    own = _runs(source)
    return len(own & _runs(other)) / len(own) if own else 0.0


def _runs(source: str) -> set[tuple[str, ...]]:
    text = re.sub(r"/\*.*?\*/|//[^\n]*|#(?!include|pragma|define|if|endif|else)[^\n]*", " ", source, flags=re.DOTALL)
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return {tuple(tokens[start : start + TOKENS]) for start in range(len(tokens) - TOKENS + 1)}
