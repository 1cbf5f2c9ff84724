"""Losses, distances, running and k extremes, and rarer functions: in C++, and in emulated CUDA in sixteen bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, halved, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters

SMALL = CudaParameters(threads=64, long_threads=128, team=4, sharing=0)
CASES = {
    "functions": Case(
        "p = x.sigmoid(); h = y.abs() + 1; n = x / (x > 0); return torch.nan_to_num(n, 0.5, 2.0, -2.0), "
        "torch.nan_to_num(x), torch.logit(p, eps=1e-3), torch.erfc(x), torch.sinc(x), torch.heaviside(x.round(), y), "
        "torch.hypot(x, y), torch.logaddexp(x, y), torch.logaddexp2(x, y), torch.xlogy(h, h), torch.fmod(x, h), "
        "torch.fmod(x, 2.0), torch.copysign(x, y), torch.exp2(x * 20), torch.asinh(x), torch.acosh(h), "
        "torch.atanh(p * 0.9), torch.special.entr(p), torch.special.ndtr(x), torch.rad2deg(x), torch.signbit(x), "
        "torch.float_power(h, 2), torch.fmax(x, n), torch.fmin(n, x), torch.isclose(x, y, 0.5), "
        "torch.ldexp(x, y.round()), torch.lgamma(h), torch.special.gammaln(x * 5), torch.erfinv(p)",
        "torch.randn(5, 33)",
        "torch.randn(33)",
    ),
    "moments and distances": Case(
        "v, m = torch.var_mean(x, -1); s, n = torch.std_mean(x, (0, 2), keepdim=True, correction=0); "
        "lo, hi = torch.aminmax(x, dim=1); return v, m, s, n, lo, hi, torch.prod(x, -1), torch.prod(y), "
        "torch.count_nonzero(x > 0, 1), torch.dist(x, y), x.norm(p=3, dim=-1), F.pairwise_distance(x, y), "
        "F.cosine_similarity(x, y, -1)",
        "torch.randn(3, 5, 20)",
        "torch.rand(20) + 0.5",
    ),
    "losses": Case(
        "p = x.sigmoid(); t = y.sigmoid(); s = y.sign(); return F.binary_cross_entropy(p, t), "
        "F.binary_cross_entropy(p, t, weight=t, reduction='none'), F.binary_cross_entropy_with_logits(x, t), "
        "F.binary_cross_entropy_with_logits(x, t, pos_weight=t[0] * 3), F.poisson_nll_loss(x, t * 9, full=True), "
        "F.poisson_nll_loss(p, t, log_input=False, reduction='sum'), F.soft_margin_loss(x, s), "
        "F.hinge_embedding_loss(x, s), F.margin_ranking_loss(x, y, s, margin=0.3), "
        "F.cosine_embedding_loss(x, y, s[:, 0], margin=0.1)",
        "torch.randn(9, 20)",
        "torch.randn(9, 20)",
    ),
    "losses of classes": Case(
        "w = x[0].sigmoid(); t = torch.where(y > 17, 3, y); i = torch.where(y > 15, -100, y); l = x.log_softmax(-1); "
        "return F.cross_entropy(x, i, label_smoothing=0.1), F.cross_entropy(x, t, weight=w, ignore_index=3), "
        "F.cross_entropy(x, y, weight=w, reduction='none'), F.nll_loss(l, y), F.cross_entropy(x, x.sigmoid()), "
        "F.nll_loss(l, y, weight=w, ignore_index=3, reduction='sum'), "
        "F.cross_entropy(x, x.sigmoid(), weight=w, label_smoothing=0.2, reduction='sum')",
        "torch.randn(29, 20)",
        "torch.randint(0, 20, (29,))",
    ),
    "losses of pixels": Case(
        "return F.cross_entropy(x, y, weight=x[0, :, 0, 0].sigmoid()), "
        "F.cross_entropy(x, y, label_smoothing=0.1, reduction='none'), F.nll_loss(x.log_softmax(1), y)",
        "torch.randn(3, 6, 4, 5)",
        "torch.randint(0, 6, (3, 4, 5))",
    ),
    "extremes so far": Case(
        "a, b = torch.cummax(x, -1); c, d = torch.cummin(x.round(), 0); return a, b, c, d, "
        "torch.cummax(x.round(), -1).indices, torch.cummin(x, 1).values + y, torch.cummax(x.to(torch.int32), 1).values",
        "torch.randn(37, 133) * 9",
        "torch.randn(133)",
    ),
    "a few extremes": Case(
        "v, i = torch.topk(x, 3, -1); w, j = torch.topk(x * 2, 2, 0, largest=False); "
        "return v.softmax(-1), i, w, j, torch.topk(x + y, 1).values",
        "torch.randperm(1300).view(20, 65)",
        "torch.randn(1)",
    ),
}


@pytest.mark.parametrize("language", ["cpp", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_rarer_operators_are_as_exact_as_in_pytorch(
    name: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fp = functional(name.replace(" ", "_"), halved(CASES[name], "float32" if language == "cpp" else "float16"))
    if language == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(fp, CpuParameters() if language == "cpp" else SMALL)
    assert plan is not None and plan.candidate.tier == "kernel"
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_a_small_batch_is_no_number(tmp_path: Path) -> None:
    """A mean over few things, as of a loss or a batch norm: how many there are is read, though the loop is short."""
    case = Case("return F.cross_entropy(x, y, label_smoothing=0.1), x.mean(0)", "torch.randn(8, 20)", "torch.arange(8)")
    plan = write(functional("few", case), CpuParameters())
    assert plan is not None
    other = functional("more", Case(case.body, "torch.randn(11, 20)", "torch.arange(11)"))
    assert worst_ratio(other, numbers.caller(plan, other, tmp_path)) <= numbers.RATIO
    assert "<= 4096" in plan.candidate.source, "that many things one thread adds up well enough"


def test_what_rows_come_to_is_added_up_by_one_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of 3000 rows: it was added up in parts, and again, and the targets that count by a third kernel."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    case = Case("return F.cross_entropy(x, y)", "torch.randn(3000, 16)", "torch.randint(0, 16, (3000,))")
    fp = functional("added", halved(case, "bfloat16"))
    plan = write(fp, SMALL)
    assert plan is not None and ": 2 fused loop nests" in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO
