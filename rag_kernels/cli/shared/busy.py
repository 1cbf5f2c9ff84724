"""The line that a terminal shows from a command's first moment until it has something to tell.

Comes in: a few words, and what `eval.progress` says meanwhile. Goes out: a line on stderr that is gone at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Row = dict[str, Any]


@contextmanager
def busy(first: str) -> Iterator[None]:
    """Say on a terminal what is waited for: `first`, until something else begins. What is printed stands above."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from rag_kernels.report.waiting import changing, waiting

    with waiting(counts=False, first=first) as line, changing(line, Console(stderr=True)):
        yield


def each_while_busy(rows: Iterator[Row], first: str) -> Iterator[Row]:
    """Yield the rows, and say on a terminal what is waited for until the next one is there."""
    while True:
        with busy(first):
            row = next(rows, None)
        if row is None:
            return
        yield row
