"""Draw mutants of a source, by a seed: one edit each.

Comes in: an honest source. Goes out: `Mutant`s, the operators taking turns, so that one with many places does not crowd
out the others. Two that read the same are one. Knows nothing of judges and problems.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from rag_kernels.mutation.operators import OPERATORS, sites
from rag_kernels.mutation.precision_operators import PRECISION_OPERATORS, with_prelude

ALL = OPERATORS | PRECISION_OPERATORS


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source with one fault. `change` is the changed lines as a diff without context."""

    operator: str
    source: str
    change: str


def mutants(source: str, *, seed: str, only: frozenset[str] = frozenset()) -> Iterator[Mutant]:
    """Yield every mutant of a source, in an order that the seed draws: a round of the operators after the other."""
    rng = random.Random(seed)
    found = {name: sites(source, find) for name, find in ALL.items() if not only or name in only}
    for edits in found.values():
        rng.shuffle(edits)
    seen = {source}
    while any(found.values()):
        for name in rng.sample(sorted(found), len(found)):
            if not found[name]:
                continue
            edit = found[name].pop()
            changed = source[: edit.start] + edit.text + source[edit.end :]
            if changed not in seen:
                seen.add(changed)
                yield Mutant(name, with_prelude(changed), difference(source, changed))


def difference(source: str, changed: str) -> str:
    """Return the changed lines, as a diff shows them, without context."""
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), lineterm="", n=0)
    return "\n".join(line.rstrip() for line in lines if not line.startswith(("---", "+++", "@@")))
