"""A contract as one function of straight lines, which says in a microsecond whether a call keeps to it: yes or no.

Comes in: conditions under which it does not, as text, and the values that they name. Goes out: the function, compiled
once for each text; it returns None where a condition holds. Why a call does not keep to it says the slower way of those
who know the contract. Knows nothing of tensors and modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CodeType
from typing import Any


class Lines:
    """Conditions in the order in which they are asked. `parameters` are names that the function's own must not meet."""

    def __init__(self, parameters: Iterable[str] = ()) -> None:
        self.prefix = "g"
        while any(name.startswith(self.prefix) for name in parameters):
            self.prefix += "_"
        self.values: dict[str, Any] = {}
        self.known: dict[int, str] = {}
        self.lines: dict[str, None] = {}  # each once
        self.whole: set[int] = set()  # by id, dictionaries that are asked about as a whole
        self.now = f"{self.prefix}now"
        self.type, self.len = self.name(type), self.name(len)

    def name(self, value: Any) -> str:
        """Return the name of a value in the text."""
        known = self.known.get(id(value))
        if known is None:
            known = self.known[id(value)] = f"{self.prefix}{len(self.values)}"
            self.values[known] = value
        return known

    def refuse(self, condition: str) -> None:
        """Say no where a condition holds."""
        self.lines[f"if {condition}: return None"] = None

    def unlike(self, read: str, value: Any) -> None:
        """Say no where what is read is neither this value nor equal to it."""
        told = self.name(value)
        self.refuse(f"({self.now} := {read}) is not {told} and not {self.now} == {told}")

    def same(self, read: str, value: Any) -> None:
        """Say no where what is read is not of this value and type."""
        self.refuse(self.unlike_constant(read, value))

    def unlike_constant(self, read: str, value: Any) -> str:
        """Return the condition under which what is read is not of this value and type: `same_constant` as text."""
        told, kind = self.name(value), f"{self.type}({read}) is not {self.name(type(value))}"
        by_text = type(value) is float and not value < 0 and not value > 0  # NaN, and zeros of both signs
        other = f"{self.name(repr)}({read}) != {repr(value)!r}" if by_text else f"{read} != {told}"
        return f"{read} is not {told} and ({kind} or {other})"

    def let(self, read: str) -> str:
        """Return the name of what is read here."""
        told = f"{self.prefix}v{len(self.lines)}"
        self.lines[f"{told} = {read}"] = None
        return told

    def function(self, parameters: str, result: str) -> Callable[..., Any]:
        """Return the function; it raises whatever reading and comparing does, which is no yes either."""
        body = "\n    ".join([*self.lines, f"return {result}"])
        exec(_code(f"def guard({parameters}):\n    {body}\n"), self.values)
        made: Callable[..., Any] = self.values["guard"]
        return made


@lru_cache(256)
def _code(text: str) -> CodeType:
    return compile(text, "<guard>", "exec")
