"""How a recurrent layer is divided among the blocks of a GPU: weights in registers, and teams of blocks by rows.

Comes in: sizes of a layer. Goes out: its `Division`, or None where the library's kernels are better. Both the rule that
makes a step of a layer and the text of its kernel ask here.
"""

from __future__ import annotations

from dataclasses import dataclass

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Gates of a cell, by the name of its operator."""

BLOCKS = 128  # that a device holds, one a processor
SLICE, LEAST_SLICES, MOST_SLICES = 16, 4, 32  # elements of a state that a thread has; threads of a unit, in a warp
THREADS, MANY_WEIGHTS, MOST_WEIGHTS = 512, 64, 128  # with more weights in a thread's registers a block has half as many
ROWS = (1, 2, 4)  # of a batch that a team has at once, each for one of the threads of a unit
ROUNDS = 2  # of all steps that a team may take, one after the other


@dataclass(frozen=True, slots=True)
class Division:
    """`parts` blocks of `units` x `slices` threads have a layer's units, and go through all steps for `rows` rows."""

    units: int
    slices: int
    parts: int
    rows: int

    @property
    def threads(self) -> int:
        """Return the threads of a block: whole warps."""
        return -(-self.units * self.slices // 32) * 32


def division_of(cell: str, width: int, batch: int, directions: int) -> Division | None:
    """Return how a layer of `width` units is divided; None where its weights or its batch are too large for that."""
    slices = LEAST_SLICES
    while slices < MOST_SLICES and 2 * slices * SLICE <= width:
        slices *= 2
    weights = GATES[cell] * 4 * -(-width // (4 * slices))
    if weights > MOST_WEIGHTS:
        return None
    units = min(width, (THREADS if weights <= MANY_WEIGHTS else THREADS // 2) // slices)
    parts = -(-width // units)
    teams = BLOCKS // (parts * directions)
    if not teams:
        return None
    rows = next((rows for rows in ROWS if -(-batch // rows) <= teams), ROWS[-1])
    return Division(units, slices, parts, rows) if -(-batch // rows) <= ROUNDS * teams else None
