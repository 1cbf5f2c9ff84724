"""Modules of candidates: which calls of a burst one of them may serve."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from rag_kernels.eval.children.candidate.candidate_code import ModuleCode
from rag_kernels.eval.messages.to_candidate import Binding, Held, InContent

HEAD = """import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.register_buffer("seen", torch.zeros(1))
        self.room = torch.zeros(3, 4)

    def forward(self, x):
"""
ORDINARY = HEAD + "        return x * self.weight\n"
IN_ONE_PLACE = HEAD + "        return torch.mul(x, self.weight, out=self.room)\n"
WEIGHT = Held(1, "weight", "parameter")
SEEN = Held(2, "seen", "buffer")


def bind(code: ModuleCode, factor: float, held: list[Held], beside: int | None) -> Callable[[], torch.Tensor]:
    """A call of the module on ones, where its weights would be `factor`."""
    tensors = [torch.ones(3, 4), torch.full((4,), factor), torch.zeros(1)]
    buffers = SimpleNamespace(tensors=tensors, results=[], fresh=lambda: None)
    told = Binding((), (), (), leaves=(InContent(0),), held=tuple(held), seed=1, beside=beside)
    run = code.bind(buffers, told)

    def call() -> torch.Tensor:
        run()
        (result,) = buffers.results
        assert isinstance(result, torch.Tensor)
        return result

    return call


@pytest.mark.parametrize(
    "source,held,shared",
    [(ORDINARY, [WEIGHT], True), (IN_ONE_PLACE, [WEIGHT], False), (ORDINARY, [WEIGHT, SEEN], False)],
    ids=["ordinary", "results in one place", "state"],
)
def test_calls_of_a_burst_share_a_module_without_state(source: str, held: list[Held], shared: bool) -> None:
    """What a module keeps and hands out again would be overwritten by the calls that follow."""
    code = ModuleCode(source, torch.device("cpu"))
    first = bind(code, 2.0, held, None)
    second, third = bind(code, 3.0, held, 0), bind(code, 4.0, held, 0)
    alone = bind(code, 5.0, held, None)
    found = [call() for call in (first, second, third, alone)]
    assert [float(result.max()) for result in found] == ([2.0, 2.0, 2.0, 5.0] if shared else [2.0, 3.0, 4.0, 5.0])
