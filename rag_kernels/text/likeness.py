"""The likeness of two sources: for the label of a near-copy, and for what retrieval leaked.

Comes in: two texts in C++, CUDA or Python. Goes out: the share of the first one's runs of tokens that the second one
has too, as plagiarism detectors count (Schleimer, Wilkerson, Aiken: Winnowing, SIGMOD 2003). Order of functions,
comments, spacing and names (but those of called functions) make no difference.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import replace

from rag_kernels.eval.records import Judged, Passed

RUN = 8  # tokens
NEAR_COPY = 0.9
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|#(?!\s*(?:include|define|pragma|if|else|endif))[^\n]*", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z_]\w*\(?|\d[\w.]*|\S")


def likeness(source: str, other: str) -> float:
    """Return the share of the first source in the second, 0 to 1; 0 for a source without code."""
    own = _runs(source)
    return len(own & _runs(other)) / len(own) if own else 0.0


@functools.lru_cache(maxsize=512)
def _runs(text: str) -> frozenset[tuple[str, ...]]:
    words = _TOKEN.findall(_COMMENT.sub(" ", text))
    tokens = ["v" if (t[0].isalpha() or t[0] == "_") and t[-1] != "(" else t for t in words]
    return frozenset(tuple(tokens[i : i + RUN]) for i in range(len(tokens) - RUN + 1))


def label_near_copy(judged: Judged, source: str, shown: Iterable[tuple[str, str]]) -> Judged:
    """Add `near-copy: ID` to a passed kernel that is one of the (id, source) pairs that its writer was shown."""
    alike = [(likeness(source, theirs), kernel_id) for kernel_id, theirs in shown]
    score, kernel_id = max(alike, default=(0.0, ""))
    if score < NEAR_COPY or not isinstance(judged.verdict, Passed):
        return judged
    labels = (*judged.verdict.labels, f"near-copy: {kernel_id}")
    return replace(judged, verdict=replace(judged.verdict, labels=labels))
