"""Branches on a tensor's value that only raise: what a recording without data answers, so that they are not taken.

Comes in: the stack of what asks for a truth's value. Goes out: the answer by which `if (x < 0).any(): raise ...` or
`assert x.any()` goes on, as it does wherever the module itself does; None where something else hangs on it.
"""

from __future__ import annotations

import ast
import linecache
import sys
from functools import cache
from types import FrameType

_MACHINERY = ("/torch/_", "/torch/fx/", "/torch/utils/", "/torch/overrides.py", "/ingest/graphs/", "/contextlib.py")


def answer_that_goes_on() -> bool | None:
    """Return what the truth that is asked for must be, so that a check of the caller's does not raise."""
    frame: FrameType | None = sys._getframe(1)
    while frame and any(part in frame.f_code.co_filename for part in _MACHINERY):
        frame = frame.f_back
    if frame is None:
        return None
    answers = _answers("".join(linecache.getlines(frame.f_code.co_filename)))
    positions, at = list(frame.f_code.co_positions()), frame.f_lasti // 2
    for line, end, column, last in (positions[at], positions[at - 1]):  # what asks, and what made that which it asks
        if line is None or end is None or column is None or last is None:
            return None
        parts = {answer for place, answer in answers if _overlap(place, ((line, column), (end, last)))}
        if len(parts) == 1:
            return parts.pop()
    return None


Place = tuple[tuple[int, int], tuple[int, int]]  # line and column where an expression begins, and where it ends


def _overlap(one: Place, other: Place) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@cache
def _answers(text: str) -> list[tuple[Place, bool]]:
    """Return what the parts of the conditions of a text's checks have to be."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    found: list[tuple[Place, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found += _parts(node.test, True)
        elif isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
            found += _parts(node.test, False)
    return found


def _parts(test: ast.expr, wanted: bool) -> list[tuple[Place, bool]]:
    """Return what the parts of a condition have to be, so that it comes out as wanted."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _parts(test.operand, not wanted)
    if isinstance(test, ast.BoolOp):
        return [part for value in test.values for part in _parts(value, wanted)]
    ends = test.end_lineno or test.lineno, test.end_col_offset or test.col_offset
    return [(((test.lineno, test.col_offset), ends), wanted)]
