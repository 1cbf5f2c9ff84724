"""Recurrent layers become a product over all steps and one kernel for what recurs, on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.emulated_texts import SMALL
from support.generated_kernels import Case, functional, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.ir.recurrence import BLOCKS, division_of

EVERY = """
self.a = nn.LSTM(12, 20, 2, batch_first=True, bidirectional=True); self.b = nn.LSTM(12, 100, bidirectional=True)
self.c = nn.GRU(40, 10, 2); self.d = nn.RNN(12, 8, nonlinearity='relu', bias=False); self.e = nn.RNN(8, 6)
"""
FORWARD = """
o, (h, c) = self.a(x); p, (i, j) = self.b(x); q, k = self.c(o, y); r, _ = self.d(x); s, l = self.e(r)
return o, h, c, p, i, j, q, k, r, s, l
"""


def in_line(text: str) -> str:
    """Return statements as one line."""
    return "; ".join(text.strip().splitlines())


def test_layers_of_every_kind_have_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers, directions, states that are given, teams of several blocks, and more rows than teams."""
    case = Case(in_line(FORWARD), "torch.randn(6, 3, 12)", "torch.randn(2, 3, 10)", in_line(EVERY))
    fp = functional("recurrent", case)
    monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(fp, SMALL)
    assert plan is not None and plan.candidate.tier == "kernel" and not plan.stopped
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_layers_in_sixteen_bits_keep_their_state_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = "self.a = nn.GRU(16, 24, 2, bidirectional=True).bfloat16()"
    case = Case("return self.a(x)[0]", "torch.randn(7, 5, 16).bfloat16()", "torch.randn(1)", init)
    fp = functional("recurrent_half", case)
    monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(fp, SMALL)
    assert plan is not None and plan.candidate.tier == "kernel"
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < 1.0


@pytest.mark.parametrize(
    ("init", "reason"),
    [("nn.LSTM(12, 20, proj_size=8)", "projection"), ("nn.GRU(8, 4096)", "weights")],
)
def test_what_kernels_do_not_serve_stays_with_the_library(init: str, reason: str) -> None:
    width = "12" if "12" in init else "8"
    case = Case("return torch.relu(self.a(x)[0])", f"torch.randn(2, 3, {width})", "torch.randn(1)", f"self.a = {init}")
    fp = functional("library", case)
    plan = write(fp, SMALL)
    assert plan is not None and len(plan.library) == 1 and reason in plan.stopped[0]


def test_layers_stay_with_the_library_on_a_cpu() -> None:
    case = Case("return torch.relu(self.a(x)[0])", "torch.randn(2, 3, 12)", "torch.randn(1)", "self.a = nn.GRU(12, 20)")
    plan = write(functional("on_cpu", case), CpuParameters())
    assert plan is not None and plan.library == ("gru",)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_a_layer_is_divided_so_that_a_device_holds_it(cell: str) -> None:
    found = 0
    for width in (2, 20, 64, 100, 256, 300, 512, 1024, 2048):
        for batch, sides in ((1, 1), (10, 2), (64, 1), (4096, 2)):
            division = division_of(cell, width, batch, sides)
            if division is None:
                continue
            found += 1
            assert division.units * division.parts >= width > division.units * (division.parts - 1)
            assert division.rows <= division.slices <= 32 and division.threads <= 512
            assert division.parts * sides <= BLOCKS
    assert found >= 16
