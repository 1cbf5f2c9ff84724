"""The answer to one content: the module's own outputs, what is right, and what others are held against.

Runs in the reference's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from rag_kernels.eval.numerics.compare import Yardstick, yardstick
from rag_kernels.eval.numerics.left_open import left_open, put_right

Outputs = Sequence[torch.Tensor]


@dataclass(slots=True)
class Answer:
    """The module's own outputs and the oracle's, on the device; `kind` is what the oracle computes in.

    All lists have one entry an output; None for exact ones (no floating point).
    """

    reference: list[torch.Tensor]
    oracle: list[torch.Tensor]
    kind: Literal["fp64", "own dtype"]
    noise: list[torch.Tensor | None] | None = None
    wide: list[torch.Tensor | None] | None = None  # by many more runs, once somebody was wrong by that of a few
    owed: list[Yardstick | None] = field(default_factory=list)  # empty until it was asked for
    raw: list[torch.Tensor] = field(default_factory=list)  # the module's outputs, where steps were taken out
    open: list[torch.Tensor | None] = field(default_factory=list)  # where nobody is judged; empty: everywhere

    def yardsticks(self) -> list[Yardstick | None]:
        """Return what each output is held against."""
        if not self.owed:
            noise = self.noise or [None] * len(self.oracle)
            self.owed = [
                yardstick(own, right, row) if own.is_floating_point() and own.numel() else None
                for own, right, row in zip(self.reference, self.oracle, noise, strict=True)
            ]
        return self.owed

    def leave_open(self) -> None:
        """Leave a few elements open at which PyTorch itself has no digit."""
        noise = self.noise or [None] * len(self.oracle)
        self.open = [left_open(*of) for of in zip(self.reference, self.oracle, noise, strict=True)]
        self.reference = self.put_right(self.reference)
        for row, places in zip(noise, self.open, strict=True):
            if row is not None and places is not None:
                row.masked_fill_(places, 0.0)

    def put_right(self, outputs: Outputs) -> list[torch.Tensor]:
        """Return outputs that are right where they are left open."""
        places = self.open or [None] * len(self.oracle)
        return [put_right(*of) for of in zip(outputs, self.oracle, places, strict=True)]
