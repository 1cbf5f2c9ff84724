"""Steps of recurrent cells become products and gates of ours, in both languages."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.emulated_texts import SMALL
from support.generated_kernels import Case, functional, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters

CELLS = """
h = self.a(x[:, 1], self.a(x[:, 0], y)); s, c = self.b(h); s, c = self.b(h, (s, c)); z = self.c(s)
return h, c, z, self.d(z), *torch.unsafe_split(h, 7, 1)
"""


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_cells_are_products_and_gates(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = "self.a, self.b = nn.GRUCell(12, 20), nn.LSTMCell(20, 16); self.c = nn.RNNCell(16, 8, bias=False)"
    init += "; self.d = nn.RNNCell(8, 8, nonlinearity='relu')"
    fp = functional(
        "cells", Case("; ".join(CELLS.strip().splitlines()), "torch.randn(10, 2, 12)", "torch.randn(10, 20)", init)
    )
    if language == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(fp, CpuParameters() if language == "cpp" else SMALL)
    assert plan is not None and set(plan.library) <= {"linear"}
    assert language == "cpp" or plan.candidate.tier == "kernel"
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO
