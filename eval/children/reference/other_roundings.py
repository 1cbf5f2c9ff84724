"""What a problem's module gives when it rounds otherwise: run after run, each with other random rounding.

Comes in: a bound module at its current content. Goes out: one of its outputs, of as many runs as are asked for. Runs in
the reference's process.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rag_kernels.eval.children.reference.bound_module import BoundModule
from rag_kernels.eval.numerics.compare import UNIT_ROUNDOFF
from rag_kernels.eval.numerics.rounding_noise import SCALE, RoundingNoise, rounded_anew

LONE_RUNS = 8
MOST_RUNS = 16  # each moves about half of the integers that rounding decides
LARGER = 1.0, 4.0, 16.0  # times the rounding of a product's operands, run after run: limits of errors are 64 roundings


class OtherRoundings:
    """Runs of one module; `operands` is the unit roundoff that operands of products in fp32 may have (0: their own)."""

    def __init__(self, module: BoundModule, operands: float) -> None:
        self.module, self.operands = module, operands

    def generator(self) -> torch.Generator:
        """Return a generator of its own, which PyTorch's decides."""
        return torch.Generator(self.module.device).manual_seed(int(torch.randint(1 << 30, ())))

    def moved(self, at: int, *, scale: float = SCALE, inputs: bool = True) -> Iterator[torch.Tensor]:
        """Yield an output of one run after another with amplified rounding, of `inputs` that are rounded anew."""
        generator = self.generator()
        for _ in range(LONE_RUNS):
            self.module.restore()
            leaves = [rounded_anew(v, generator) for v in self.module.leaves] if inputs else None
            with RoundingNoise(generator, scale, operands=self.operands):
                results = self.module.call(leaves)
            yield results[at]

    def again(self, at: int, *, exact_stays: bool = True) -> Iterator[torch.Tensor]:
        """Yield an output of one run after another with amplified rounding.

        That of products is of their operands: what cancels is not near to what it owes, and has little of its own. The
        last runs have what a product of largest error that is right would have; where a lower precision is allowed,
        all have that.
        """
        generator = self.generator()
        for made in range(MOST_RUNS):
            unit = self.operands or UNIT_ROUNDOFF[torch.float32] * LARGER[made * len(LARGER) // MOST_RUNS]
            self.module.restore()
            with RoundingNoise(generator, operands=unit, exact_stays=exact_stays):
                results = self.module.call()
            yield results[at]  # outside: what is done with it rounds as ever
