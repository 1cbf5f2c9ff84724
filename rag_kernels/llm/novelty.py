"""Tests whether an idea, or a source, repeats one of this run, before tokens or a build are paid for it.

Comes in: a text and the earlier ones by name. Goes out: a sentence for the writer that says which one it repeats, or
nothing. Ideas are compared by the cosine of their embeddings, with the same numbers in them. Sources are compared by
their form: an embedding of code cannot tell a renamed copy (0.99) from another OpenMP schedule (0.9998), which may well
be faster. Knows nothing of models.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

from numpy import float32
from numpy.typing import NDArray

Embed = Callable[[Sequence[str]], NDArray[float32]]

SAME_IDEA = 0.87  # tests/test_novelty.py: of 84 pairs of different ideas the likest have 0.80
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|#(?!\s*(?:include|define|pragma|if|else|endif))[^\n]*", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\"[^\"\n]*\"|\S")
_DECLARED = re.compile(r"(?P<type>\w+|[>*&])\s*(?<=[\s>*&])(?P<name>[A-Za-z_]\w*)\s*(?=[=;,)(\[{:])")
_NO_TYPE = frozenset("return else case goto new delete throw and or not in if while for sizeof using namespace".split())


def repeated_idea(idea: str, earlier: Mapping[str, str], embed: Embed) -> str:
    """Return a sentence that names which of the `earlier` ideas this one repeats; empty for a new idea."""
    if not earlier:
        return ""
    names, texts = list(earlier), list(earlier.values())
    rows = embed([idea, *texts])
    likeness = [
        float(row @ rows[0]) if _numbers(text) == _numbers(idea) else 0.0
        for row, text in zip(rows[1:], texts, strict=True)
    ]
    best = max(range(len(texts)), key=likeness.__getitem__)
    if likeness[best] < SAME_IDEA:
        return ""
    return f'Not taken up, since it repeats {names[best]}: "{idea[:200]}"'


def repeated_source(source: str, earlier: Mapping[str, str], idea: str) -> str:
    """Return a sentence that names the `earlier` source with this form; empty for a new source."""
    own = form(source)
    name = next((name for name, other in earlier.items() if form(other) == own), None)
    if name is None:
        return ""
    return f'Not built, since it is {name} again but for names and comments: the code for "{idea[:200]}"'


@functools.lru_cache(maxsize=1024)
def form(source: str) -> tuple[str, ...]:
    """Return the tokens of a source without comments, with the names that it declares numbered in order of
    appearance.
    """
    text = _COMMENT.sub(" ", source)
    declared = {m["name"] for m in _DECLARED.finditer(text) if m["type"] not in _NO_TYPE}
    numbers: dict[str, str] = {}
    return tuple(
        numbers.setdefault(token, f"v{len(numbers)}") if token in declared else token for token in _TOKEN.findall(text)
    )


def _numbers(text: str) -> list[str]:
    return sorted(_NUMBER.findall(text))
