"""Find places in C++ and CUDA text, without a parser: what is code, where an operand, a call or a statement ends.

Comes in: a source. Goes out: offsets into it. Comments, strings and preprocessor lines (but pragmas) are blanked first,
so that offsets stay those of the source. It assumes the form that this project's sources have: spaces around binary
operators, none before the star of a pointer. Knows nothing of mutations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANK = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|^[ \t]*#(?![ \t]*pragma)[^\n]*|^RK_EXPORT[^\n]*", re.S | re.M
)
_OPENING, _CLOSING = "([{", ")]}"
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[fFuUlL]*")
_NAME = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*(?:<[\w:, ]*>(?=\())?")
_CALL = re.compile(r"([A-Za-z_]\w*(?:::\w+)*)(?:<[\w:, ]*>)?\(")
_NO_CALLS = frozenset("if for while switch return sizeof defined alignas decltype void operator catch".split())
_DECLARES = re.compile(
    r"\b(?:const|auto|In|Out|Places|Found|Truth|int64_t|int|float|double|bool|T|V|N|F|X|Acc|Wide)\b[&* ]+\w"
)


def blanked(source: str) -> str:
    """Return the text with everything that is no code replaced by spaces, of the same length."""
    return _BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)


def closing(text: str, opening: int) -> int:
    """Return the offset behind the bracket that closes the one at `opening`, or -1."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] in _OPENING) - (text[at] in _CLOSING)
        if depth == 0:
            return at + 1
    return -1


def opening(text: str, closing_at: int) -> int:
    """Return the offset of the bracket that the one at `closing_at` closes, or -1."""
    depth = 0
    for at in range(closing_at, -1, -1):
        depth += (text[at] in _CLOSING) - (text[at] in _OPENING)
        if depth == 0:
            return at
    return -1


def operand_end(text: str, start: int) -> int:
    """Return where the operand ends that begins at `start`: a number, or a name or a bracket with what hangs on it."""
    at = start + (text[start : start + 1] in ("-", "!", "*"))
    number, name = _NUMBER.match(text, at), _NAME.match(text, at)
    if number:
        return number.end()
    if name:
        at = name.end()
    elif text[at : at + 1] != "(":
        return -1
    while at < len(text):
        if text[at] in "([":
            at = closing(text, at)
            if at < 0:
                return -1
        elif member := re.compile(r"(?:\.|->)\w+").match(text, at):
            at = member.end()
        else:
            return at
    return -1


def operand_start(text: str, end: int) -> int:
    """Return where the operand begins that ends at `end`, or -1."""
    at = end
    while at > 0:
        last = text[at - 1]
        if last in ")]":
            at = opening(text, at - 1)
            if at < 0:
                return -1
            if at > 0 and (text[at - 1].isalnum() or text[at - 1] in "_)]"):
                continue
            return at
        found = re.compile(r"[\w.:]+$").search(text, max(0, at - 60), at)
        return found.start() if found else -1
    return -1


def term_end(text: str, start: int) -> int:
    """Return where a product ends: operands joined by `*`, `/` and `%`."""
    at = operand_end(text, start)
    while at > 0 and (joined := re.compile(r" [*/%] ").match(text, at)):
        following = operand_end(text, joined.end())
        if following < 0:
            break
        at = following
    return at


def statement_end(text: str, start: int) -> int:
    """Return the offset of the semicolon that ends the statement, outside of any bracket that opens in it; or -1."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in _OPENING) - (text[at] in _CLOSING)
        if depth < 0:
            return -1
        if depth == 0 and text[at] == ";":
            return at
    return -1


@dataclass(frozen=True, slots=True)
class Called:
    """A call: the name, where it begins, and where its arguments begin and end."""

    name: str
    start: int
    end: int
    arguments: tuple[tuple[int, int], ...]


def calls(text: str) -> Iterator[Called]:
    """Yield every call of a named function; definitions and lambdas are none."""
    for found in _CALL.finditer(text):
        end = closing(text, found.end() - 1)
        inner = text[found.end() : end - 1]
        typed = re.search(
            r"\b(?:float|double|void|bool|int|int64_t|Acc|T|Wide|V|N|auto)[&*]? +$", text[: found.start()][-24:]
        )
        if end < 0 or found.group(1) in _NO_CALLS or _DECLARES.search(inner) or typed:
            continue
        yield Called(found.group(1), found.start(), end, tuple(_split(text, found.end(), end - 1)))


def _split(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    depth, first = 0, start
    for at in range(start, end):
        depth += (text[at] in _OPENING) - (text[at] in _CLOSING)
        if depth == 0 and text[at] == ",":
            yield first, at
            first = at + 1 + (text[at + 1 : at + 2] == " ")
    if first < end:
        yield first, end


@dataclass(frozen=True, slots=True)
class Loop:
    """The header of a `for` with two semicolons: where each of its parts begins and ends, and where its body begins."""

    start: int
    first: tuple[int, int]
    condition: tuple[int, int]
    step: tuple[int, int]
    body: int

    def holds(self, at: int) -> bool:
        return self.start <= at < self.body


def loops(text: str) -> list[Loop]:
    """Return the headers of all `for` loops, in order."""
    found = []
    for head in re.finditer(r"\bfor \(", text):
        end = closing(text, head.end() - 1)
        a = statement_end(text, head.end())
        b = statement_end(text, a + 1) if a >= 0 else -1
        if 0 < a < b < end:
            found.append(Loop(head.start(), (head.end(), a), (a + 1, b), (b + 1, end - 1), end))
    return found
