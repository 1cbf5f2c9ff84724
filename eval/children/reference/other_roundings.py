"""What a problem's module gives when it rounds otherwise: run after run, each with other random rounding.

Comes in: a bound module at its current content. Goes out: its outputs, of as many runs as are asked for, or how far
they are off at most. Runs in the reference's process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from rag_kernels.eval.children.reference.answer import Answer
from rag_kernels.eval.children.reference.bound_module import BoundModule
from rag_kernels.eval.numerics.compare import UNIT_ROUNDOFF, largest_error
from rag_kernels.eval.numerics.eight_bits import chosen, narrowed
from rag_kernels.eval.numerics.oracle import right_answer
from rag_kernels.eval.numerics.rounding_noise import SCALE, RoundingNoise, rounded_anew
from rag_kernels.eval.numerics.steps import stepped
from rag_kernels.eval.traits.marked_values import moves_at_numbers
from rag_kernels.eval.traits.steps import has_steps

NOISE_RUNS = 3
LONE_RUNS = 8
MOST_RUNS = 16  # each moves about half of the integers that rounding decides
LARGER = 1.0, 4.0, 16.0  # times the rounding of a product's operands, run after run: limits of errors are 64 roundings


class OtherRoundings:
    """Runs of one module; `operands` is the unit roundoff that operands of products in fp32 may have (0: their own)."""

    def __init__(self, module: BoundModule, operands: float) -> None:
        self.module, self.operands = module, operands
        self.has_steps = has_steps(module.fp)
        self.may_move = not moves_at_numbers(module.fp)  # inputs: there what is just such a number is no other

    def generator(self) -> torch.Generator:
        """Return a generator of its own, which PyTorch's decides."""
        return torch.Generator(self.module.device).manual_seed(int(torch.randint(1 << 30, ())))

    def moved(self, at: int, *, scale: float = SCALE, inputs: bool = True) -> Iterator[torch.Tensor]:
        """Yield an output of one run after another with amplified rounding, of `inputs` that are rounded anew."""
        generator = self.generator()
        for _ in range(LONE_RUNS):
            self.module.restore()
            leaves = [rounded_anew(v, generator) for v in self.module.leaves] if inputs and self.may_move else None
            with RoundingNoise(generator, scale, operands=self.operands):
                results = self.module.call(leaves)
            yield results[at]

    def again(self, at: int, *, exact_stays: bool = True) -> Iterator[torch.Tensor]:
        """Yield an output of one of `runs` after another."""
        for results in self.runs(exact_stays=exact_stays):
            yield results[at]

    def runs(self, *, exact_stays: bool) -> Iterator[list[torch.Tensor]]:
        """Yield the outputs of one run after another with amplified rounding.

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
            yield results  # outside: what is done with it rounds as ever

    def noise(self, answer: Answer, *, moved: float = 0.0) -> list[torch.Tensor | None]:
        """Return the largest error of a few runs with amplified rounding, element by element; None for exact outputs.

        With inputs `moved` by so many roundings, too: where a row is constant, or far from zero, PyTorch may be exact
        by luck, and nobody owes more than the answer to inputs that are as good. Inputs of 16 bits are what they
        are, and computed on in fp32: they are moved by a rounding there, in fp64.
        """
        generator, moved = self.generator(), moved if self.may_move else 0.0
        finely = bool(moved) and answer.kind == "fp64" and any(_is_narrow(v) for v in self.module.leaves)
        worst: list[torch.Tensor | None] = [None] * len(answer.oracle)
        for _ in range(NOISE_RUNS):
            self.module.restore()
            leaves = [rounded_anew(v, generator, moved) for v in self.module.leaves] if moved and not finely else None
            with RoundingNoise(generator, operands=self.operands):
                results = self.module.call(leaves)
            worst = self._worse(worst, results, answer)
            if finely:
                values = [rounded_anew(v.float() if _is_narrow(v) else v, generator) for v in self.module.values]
                wide = right_answer(partial(self.module.call_on, values, wide=True), answer.reference) or answer.oracle
                worst = self._worse(worst, [t.float() if t.is_floating_point() else t for t in wide], answer)
        return worst

    def wide_noise(self, answer: Answer) -> list[torch.Tensor | None]:
        """Return that of many runs, and of a few; the answer keeps it. Its content has to be there."""
        if answer.wide is None:
            worst = [None if t is None else t.clone() for t in answer.noise or self.noise(answer)]
            for results in self.runs(exact_stays=False):
                worst = self._worse(worst, results, answer)
            answer.wide = worst
        return answer.wide

    def _worse(
        self, worst: Sequence[torch.Tensor | None], results: Sequence[torch.Tensor], answer: Answer
    ) -> list[torch.Tensor | None]:
        """Return the greater of the errors that are known and those of one more run, but for its steps."""
        return [
            known if not got.is_floating_point() else largest_error(self._unstepped(got, right), right, known)
            for known, got, right in zip(worst, results, answer.oracle, strict=True)
        ]

    def _unstepped(self, got: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        step = stepped(got, right, right) if self.has_steps else None
        return got if step is None else chosen(step, narrowed(right, got.dtype), got)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
