"""Names in C: the numbers that a kernel receives, and names that stay clear of keywords and of generated ones.

Comes in: a FunctionalProblem. Goes out: its numbers in the order of the kernel contract.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eval.records import FunctionalProblem, Scalar, ScalarArgument, TensorArgument


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar parameter: its C type, its name in C, and the Python expression that passes it."""

    name: str
    ctype: str
    python: str


TAKEN = re.compile(
    r"([a-z]|acc)\d+|row\d+|part_\d+|t|l|k|u|lo|hi|at|from|to|first|last|tile|tiles|result|block|stream|active|inside|"
    r"p|s|z|to|len|panel|count|start|kn|left|right|store|found|sums|rows?|columns?|depth|"
    r"across|along|band|high|in|now|more|fetch|put|at|a|b|e|i|j|tx|ty|own|share|(phase|first|taps|above|handed)\d+"
)
KEYWORDS = frozenset(
    "auto bool break case catch char class const continue default delete do double else enum extern false float for "
    "goto if inline int long namespace new operator or and not private public register return short signed sizeof "
    "static struct switch template this throw true try typedef typename union unsigned using virtual void volatile "
    "while xor abs exp log floor ceil sqrt pow sin cos tan gamma rk std forward".split()
)


def c_name(name: str) -> str:
    """A name in C, out of the way of keywords and of the names that generated loops use."""
    return name + "_arg" if TAKEN.fullmatch(name) or name in KEYWORDS else name


def numbers(fp: FunctionalProblem) -> list[tuple[Number, Scalar]]:
    """The numbers of the call in contract order, with their values: scalar arguments, then constants."""
    kinds = {bool: "bool", int: "int64_t", float: "double"}
    flat: list[tuple[str, str, Scalar]] = [
        (a.name, a.name, a.value) for a in fp.arguments if isinstance(a, ScalarArgument)
    ]
    for name, value in fp.constants:
        if isinstance(value, tuple):
            flat += [(f"{name}_{i}", f"{name}[{i}]", v) for i, v in enumerate(value)]
        else:
            flat.append((name, name, value))
    out: list[tuple[Number, Scalar]] = []
    for name, python, value in flat:
        if type(value) in kinds:
            taken = {n.name for n, _ in out} | {a.name for a in fp.arguments if isinstance(a, TensorArgument)}
            name = c_name(name)
            while name in taken:
                name += "_"
            out.append((Number(name, kinds[type(value)], python), value))
    return out
