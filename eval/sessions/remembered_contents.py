"""Secret contents of calls that are looked at, whose answers are kept: what is right there is computed once a session.

Comes in: how a content of a sort is made. Goes out: such a content, made now or earlier, and the number of its answer.
No process of a candidate meets one of them twice, and processes share nothing, so that to come again tells none of them
anything. Knows nothing of workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from rag_kernels.eval.buffers.call_content import Recipe

MOST = 48
PLAIN = 8  # of ordinary contents: a race looks at six or so
MIXED, NUDGED = 2, 1  # of each special kind among others; of one content with another element


class RememberedContents:
    """Of one session. `room` is how many answers are worth their memory."""

    def __init__(self, rng: random.Random, room: int) -> None:
        self._rng, self._room = rng, min(room, MOST)
        self._made: dict[Hashable, list[Recipe]] = {}
        self._numbers: dict[Recipe, int] = {}

    def content(self, sort: Hashable, most: int, met: set[Recipe], make: Callable[[], Recipe]) -> Recipe:
        """Return a content of this sort, of which `most` are remembered; none of those `met`, which it joins."""
        known = self._made.setdefault(sort, [])
        unmet = [recipe for recipe in known if recipe not in met]
        recipe = self._rng.choice(unmet) if unmet and len(known) >= most else make()
        if len(known) < most and len(self._numbers) < self._room and recipe not in self._numbers:
            known.append(recipe)
            self._numbers[recipe] = -1 - len(self._numbers)  # draws have the others
        met.add(recipe)
        return recipe

    def number(self, recipe: Recipe) -> int | None:
        """Return the number of its answer; None of a content that is not remembered."""
        return self._numbers.get(recipe)
