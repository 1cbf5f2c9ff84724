"""Rows of few large elements in 16 bits: chance is told from fault."""

import math
from collections.abc import Iterator

import pytest
import torch

from rag_kernels.eval.numerics.by_chance import by_chance
from rag_kernels.eval.numerics.compare import LIMITS, compare, exceeding, yardstick
from rag_kernels.eval.numerics.rounding_noise import RoundingNoise

ROWS, COLUMNS = 2048, 256
BF16 = torch.bfloat16


class Softmax:
    """A softmax of scaled products in bf16, which PyTorch rounds three times; many rows have one large element."""

    def __init__(self, seed: int, scale: float = 2.7) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(ROWS, COLUMNS, generator=self.generator).to(BF16)
        self.weight = (torch.randn(COLUMNS, COLUMNS, generator=self.generator) / math.sqrt(COLUMNS)).to(BF16)
        self.scale = torch.tensor(scale).to(BF16)
        self.own = torch.softmax((self.x @ self.weight.t()) * self.scale, -1)
        self.exact = torch.softmax((self.x.double() @ self.weight.double().t()) * self.scale.double(), -1)
        scores = (self.x.float() @ self.weight.float().t()).to(BF16).float() * self.scale.float()
        self.honest = torch.softmax(scores, -1)  # rounded once before it
        self.largest = self.honest.amax(-1, keepdim=True)

    def again(self) -> Iterator[torch.Tensor]:
        for _ in range(8):
            with RoundingNoise(self.generator, 1 / math.sqrt(3)):
                result = torch.softmax((self.x @ self.weight.t()) * self.scale, -1)
            yield result

    def explained(self, got: torch.Tensor) -> bool:
        over = exceeding(got, self.exact, yardstick(self.own, self.exact), LIMITS[2])
        assert bool(over.any()) and not compare(got, self.own, self.exact).ok  # by the limit alone it is refused
        return by_chance(got, self.exact, over, self.again())


@pytest.mark.parametrize("scale", [1.3, 2.7, 5.3])
def test_a_kernel_that_rounds_less_than_pytorch_is_not_refused_for_rows_in_which_that_was_lucky(scale: float) -> None:
    for seed in range(3):
        problem = Softmax(seed, scale)
        assert problem.explained(problem.honest.to(BF16))


@pytest.mark.parametrize("fault", ["the rest left out", "five bits", "three units off"])
def test_a_fault_of_such_rows_is_no_chance(fault: str) -> None:
    problem = Softmax(5)
    value, largest = problem.honest, problem.largest
    if fault == "the rest left out":
        value = torch.where(largest > 0.9, (value == largest).float(), value)
    elif fault == "five bits":
        value = torch.where((largest > 0.5) & (value == largest), (value * 32).floor() / 32, value)
    else:
        value = torch.where(largest > 0.5, value * (1 + 3 * 2.0**-7), value)
    assert not problem.explained(value.to(BF16))


def test_rows_of_many_elements_are_held_to_the_limit() -> None:
    problem = Softmax(6, scale=0.05)
    assert not problem.explained((problem.honest * (1 + 2.0**-7)).to(BF16))
