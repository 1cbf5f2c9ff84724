"""What rows of a product come to, taken in the product's own kernel: emulated to the end, on Hopper and before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, halved
from support.tensor_core_drafts import RATIO, drafted, for_hopper, limit, ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cuda.function import CudaParameters

LINEAR = "self.l = nn.Linear(144, 288)"
LOSS = "s = self.l(x); return F.gelu(s).sum(1, keepdim=True) * 2, (s * y).amax(1)"

# Sums and extremes, layouts of both factors, batches, split depths, edges; parameters that choose tiles and clusters.
HOPPER = {
    "sum and maximum": (
        Case(LOSS, "torch.randn(200, 144)", "torch.randn(200, 288)", init=LINEAR),
        "bfloat16",
        CudaParameters(products=2, shape=128128, clusters=2, turns=2),
    ),
    "sum and maximum in tf32": (
        Case(LOSS, "torch.randn(200, 144)", "torch.randn(200, 288)", init=LINEAR),
        "float32",
        CudaParameters(products=2, tensor=2),
    ),
    "exponentials": (
        Case("return (x @ y * 0.1).logsumexp(-1)", "torch.randn(136, 72)", "torch.randn(72, 192)"),
        "float16",
        CudaParameters(products=2),
    ),
    "a loss over both": (
        Case("return torch.einsum('rk,ck->rc', x, y).relu().mean()", "torch.randn(72, 160)", "torch.randn(96, 160)"),
        "bfloat16",
        CudaParameters(products=2),
    ),
    "columns of the left factor": (
        Case("return (x @ y.t() + 1).amin(0)", "torch.randn(128, 64)", "torch.randn(72, 64)"),
        "bfloat16",
        CudaParameters(products=2),
    ),
    "batches": (
        Case(
            "return torch.logsumexp(torch.einsum('bqhd,bkhd->bhqk', x, y) * 0.5, -1)",
            "torch.randn(2, 40, 3, 72)",
            "torch.randn(2, 64, 3, 72)",
        ),
        "bfloat16",
        CudaParameters(products=2, shape=64064, few=0),
    ),
    "lanes side by side in tf32": (
        Case("return (x @ y).abs().amin(1)", "torch.randn(136, 72)", "torch.randn(72, 160)"),
        "float32",
        CudaParameters(products=2, tensor=2),
    ),
    "wide groups": (
        Case(
            "s = self.l(x); return F.gelu(s).mean(1), s.logsumexp(1)",
            "torch.randn(72, 64)",
            "torch.randn(1)",
            init="self.l = nn.Linear(64, 1088)",
        ),
        "bfloat16",
        CudaParameters(products=2, shape=128192, clusters=2, turns=1),
    ),
    "the widest groups": (
        Case("return (x @ y.t()).logsumexp(1)", "torch.randn(40, 64)", "torch.randn(4224, 64)"),
        "bfloat16",
        CudaParameters(products=2),
    ),
    "a depth in parts": (
        Case("return (x @ y).square().mean(1)", "torch.randn(40, 1096)", "torch.randn(1096, 96)"),
        "float16",
        CudaParameters(products=2),
    ),
}


LOSSES = {
    "a loss": "return F.cross_entropy(self.l(x).float(), y)",
    "losses with weights": "return F.cross_entropy(self.l(x), y, weight=self.w, ignore_index=3, reduction='none')",
    "log probabilities": "s = self.l(x).float(); return s.gather(1, y.view(-1, 1)).squeeze(1) - s.logsumexp(1)",
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)


@pytest.mark.parametrize("name", HOPPER)
def test_hopper(name: str, tmp_path: Path) -> None:
    case, dtype, parameters = HOPPER[name]
    case = case if dtype == "float32" else halved(case, dtype)
    fp, plan = drafted(name, case, parameters, "tma_load", "bool leader", regions=2)
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


@pytest.mark.parametrize("name", LOSSES)
def test_a_target_among_the_columns(name: str, tmp_path: Path) -> None:
    """An element at a place that each row has of its own is one of the columns that its row sums."""
    init = "self.l = nn.Linear(72, 160); self.register_buffer('w', torch.rand(160))"
    case = Case(LOSSES[name], "torch.randn(70, 72)", "torch.randint(0, 160, (70,))", init=init)
    fp, plan = drafted(name, halved(case, "bfloat16"), CudaParameters(products=2), "bool leader")
    assert ratio(for_hopper(plan), fp, tmp_path) < RATIO


@pytest.mark.parametrize(
    ("dtype", "tensor", "columns"), [("bfloat16", 1, 96), ("bfloat16", 1, 1088), ("float32", 2, 96), ("float32", 1, 96)]
)
def test_what_the_copy_engine_cannot_read(dtype: str, tensor: int, columns: int, tmp_path: Path) -> None:
    """Odd lines: tiles come through registers, and a warp has a piece of a row at a time."""
    x, y = "torch.randn(71, 67)", f"torch.randn(67, {columns})"
    case = Case("s = x @ y; return F.softplus(s).sum(1), s.logsumexp(1)", x, y)
    parameters = CudaParameters(products=2, tensor=tensor)
    fp, plan = drafted("odd", case if dtype == "float32" else halved(case, dtype), parameters, "all lanes", regions=2)
    assert ratio(plan, fp, tmp_path) < limit(parameters)


def test_infinite_and_missing_numbers_come_through(tmp_path: Path) -> None:
    """Groups of minus infinity, a row of nothing else, plus infinity, NaN, and numbers beyond what exp has."""
    case = Case(
        "s = x @ y[:64] + y[64:]; return s.logsumexp(1), s.amax(1), s.amin(1)",
        "torch.randn(40, 64)",
        "torch.randn(104, 96)",
    )
    fp = functional("infinite", halved(case, "bfloat16"))
    plan = write(fp, CudaParameters(products=2))
    assert plan is not None and "bool leader" in plan.candidate.source
    call = numbers.caller(for_hopper(plan), fp, tmp_path)
    x, y = torch.randn(40, 64).bfloat16(), torch.randn(104, 96).bfloat16()
    m = y[64:]
    m *= 100
    m[:, 32:64], m[3], m[5, 40], m[7, 90] = -torch.inf, -torch.inf, torch.inf, torch.nan
    m[9] -= 1000
    s = (x @ y[:64]).float() + m.float()
    for ours, eager in zip(call(x, y), (s.logsumexp(1), s.amax(1), s.amin(1)), strict=True):
        torch.testing.assert_close(ours.float(), eager, rtol=2e-2, atol=0.1, equal_nan=True)


def test_a_product_that_is_read_otherwise_is_stored() -> None:
    """Its elements, other rows, columns that no groups fill, few rows: then a nest of its own reduces it."""
    for body, rows, columns in (
        ("s = x @ y; return s, s.sum(1)", 64, 96),
        ("return torch.softmax(x @ y, 1)", 64, 96),
        ("s = x @ y; return s.sum(0), s.sum(1)", 64, 96),
        ("return (x @ y).sum(1)", 64, 90),
        ("return (x @ y).sum(1)", 16, 96),
    ):
        case = Case(body, f"torch.randn({rows}, 64)", f"torch.randn(64, {columns})")
        plan = write(functional("stored", halved(case, "bfloat16")), CudaParameters(products=2))
        assert plan is not None and "bool leader" not in plan.candidate.source
