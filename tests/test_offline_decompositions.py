"""Operators without a rule as what PyTorch makes them of: right in both languages, at other sizes right or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.emulated_texts import SMALL
from support.generated_kernels import Case, functional, halved, worst_ratio

from rag_kernels.offline.compose import spelled_out, stopped_at, write
from rag_kernels.offline.cpp.region import CpuParameters

LANGUAGES = {"cpp": CpuParameters(products=2), "cuda": replace(SMALL, products=2)}
CASES = {
    "sums and differences": Case(
        "n = torch.where(x > 1, x * float('nan'), x); g = torch.gradient(x, dim=1)[0]; return torch.nansum(n, 1), "
        "torch.nanmean(n, 0), x.frac(), torch.trapezoid(x, dx=0.5), torch.cumulative_trapezoid(x, dim=1), g + x, "
        "torch.linalg.vecdot(x, x + y), torch.linalg.matrix_norm(x, 1), torch.isposinf(x / (x > 0)).float() + y, "
        "torch.hann_window(30) * x",
        "torch.randn(18, 30)",
        "torch.randn(30)",
    ),
    "products": Case(
        "a = y.unflatten(1, (5, 6)); return torch.kron(x[:5, :6], y[:3]) * 2, torch.cov(x[:6]), "
        "torch.tensordot(x.unflatten(1, (5, 6)), a, ([1, 2], [1, 2])).relu(), F.bilinear(x[:, :5], x[:, :6], a), "
        "torch.inner(x, y).exp(), torch.corrcoef(x[:4] * 2), torch.linalg.matrix_power(x[:9, :9] * 0.3, 3), "
        "torch.addbmm(x[:5, :6], a, a.mT @ a), torch.chain_matmul(x, y.T, y)",
        "torch.randn(18, 30)",
        "torch.randn(30, 30)",
    ),
    "windows": Case(
        "g = torch.ops.aten.unfold_backward; w = x.unflatten(1, (6, 5)); return g(w, [18, 30], 1, 5, 5) + 1, "
        "g(w, [18, 15], 1, 5, 2) * 2, g(w.transpose(0, 1), [20, 18], 0, 5, 3), g(w, [18, 45], 1, 5, 8).exp()",
        "torch.randn(18, 30)",
        "torch.randn(3)",
    ),
    "places": Case(
        "t = torch.tensor_split(x, 3, 1); m = x.masked_scatter(x > 0, y); return F.channel_shuffle(x[None], 3) * 2, "
        "torch.diag_embed(x.exp()), torch.block_diag(x, y).relu(), torch.cartesian_prod(x[0], y[:, 0]).sum(1), "
        "torch.rot90(x, 1, (0, 1)) + 1, m + 1, torch.diagonal_scatter(y, x[:, 0], 2)[:, :9] * 3, t[0] * t[2], "
        "torch.hstack((x, y)).tanh(), torch.dstack((x, y)) * 2, x.as_strided((9, 8), (5, 2)) + 1",
        "torch.randn(18, 30)",
        "torch.randn(18, 30)",
    ),
}


@pytest.mark.parametrize(
    ("name", "language", "dtype"),
    [
        ("sums and differences", "cpp", "float32"),
        ("products", "cuda", "bfloat16"),
        ("places", "cpp", "bfloat16"),
        ("windows", "cuda", "float32"),
    ],
)
def test_operators_without_a_rule_are_what_they_are_made_of(
    name: str, language: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if language == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)
    fp = functional(name.replace(" ", "_"), halved(CASES[name], dtype))
    plan = write(fp, LANGUAGES[language])
    assert plan is not None and plan.candidate.tier == "kernel", plan and plan.stopped
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (
            "torch.cov(x), torch.kron(x, x[:2, :3]) * 2, F.channel_shuffle(x[None], 6) + 1, torch.gradient(x)[0] * 3",
            False,
        ),
        ("torch.diagonal_scatter(x, x[:, 0]) * 2", True),  # where what is written ends is a number
        ("F.adaptive_max_pool2d(x[None], 6) + 1", True),  # by windows alike, which others are not
    ],
)
def test_what_follows_from_sizes_is_read_or_held(body: str, refused: bool, tmp_path: Path) -> None:
    case = Case(f"return {body}", "torch.randn(12, 18)", "torch.arange(5.0)")
    plan = write(functional("small", case), CpuParameters(products=2, short=0))
    assert plan is not None and plan.candidate.tier == "kernel", plan and plan.stopped
    other = functional("large", replace(case, x="torch.randn(24, 30)" if refused else "torch.randn(24, 15)"))
    call = numbers.caller(plan, other, tmp_path)
    if refused:
        with pytest.raises((RuntimeError, ValueError), match="this kernel needs"):
            worst_ratio(other, call)
    else:
        assert worst_ratio(other, call) <= numbers.RATIO


def test_what_has_a_part_that_is_not_known_stays_whole() -> None:
    fp = functional("whole", Case("return torch.logdet(x) * 2, torch.pdist(y)", "torch.eye(4)", "torch.randn(5, 3)"))
    assert spelled_out(fp, 2, "cpu") is fp
    assert stopped_at(fp, CpuParameters()) == ("logdet (no rule)", "pdist (no rule)")
