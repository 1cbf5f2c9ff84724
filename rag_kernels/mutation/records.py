"""The nouns of a mutation run: one row a mutant and one row an original, as the file has them.

Comes in: nothing. Goes out: `Row`. Rows are appended to a file as soon as they are known, and read from it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

State = Literal[
    "not built",
    "same code",
    "no witness",
    "killed",
    "killed when confirmed",
    "labelled",
    "survived",
    "judge fault",
]
WITNESSED: frozenset[str] = frozenset({"killed", "killed when confirmed", "labelled", "survived", "judge fault"})
KILLED: frozenset[str] = frozenset({"killed", "killed when confirmed", "labelled"})
UNUSUAL: frozenset[str] = frozenset({"infinity", "NaN"})  # kinds of inputs that hold some of these
ORIGINAL = ""  # the operator of a row that is no mutant's


@dataclass(frozen=True, slots=True)
class Row:
    """One mutant, or one original (whose `operator` is empty).

    `witness` is the kind of input on which it is wrong by more than rounding, `sizes` whether at the problem's own
    sizes, `how` how far. `codes` and `reason` are the verdict's; `refused_by` names the other evaluators whose rule
    refuses it.
    """

    key: str
    original: str
    family: str
    stock: str
    operator: str
    state: State
    change: str = ""
    witness: str = ""
    sizes: str = ""
    how: str = ""
    codes: tuple[str, ...] = ()
    reason: str = ""
    refused_by: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def line(self) -> str:
        return json.dumps(asdict(self))


def read_rows(file: Path) -> Iterator[Row]:
    """Yield the rows of a file; a last line that was cut off is passed over, so that its mutant is tried again."""
    if not file.is_file():
        return
    for line in file.read_text().splitlines():
        try:
            given: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        given["codes"], given["refused_by"] = tuple(given["codes"]), tuple(given["refused_by"])
        yield Row(**given)
