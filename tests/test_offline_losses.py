"""Losses, distances, running and k extremes, and rarer functions: in C++, and in emulated CUDA in sixteen bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import SMALL, Case, functional, halved, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters

CASES = {
    "functions": Case(
        "p = x.sigmoid(); h = y.abs() + 1; n = x / (x > 0); return torch.nan_to_num(n, 0.5, 2.0, -2.0), "
        "torch.nan_to_num(x), torch.logit(p, eps=1e-3), torch.erfc(x), torch.sinc(x), torch.heaviside(x.round(), y), "
        "torch.hypot(x, y), torch.logaddexp(x, y), torch.logaddexp2(x, y), torch.xlogy(h, h), torch.fmod(x, h), "
        "torch.fmod(x, 2.0), torch.copysign(x, y), torch.exp2(x * 20), torch.asinh(x), torch.acosh(h), "
        "torch.atanh(p * 0.9), torch.special.entr(p), torch.special.ndtr(x), torch.rad2deg(x), torch.signbit(x), "
        "torch.float_power(h, 2), torch.fmax(x, n), torch.fmin(n, x), torch.isclose(x, y, 0.5), "
        "torch.ldexp(x, y.round()), torch.lgamma(h), torch.special.gammaln(x * 5), torch.erfinv(p), "
        "torch.i0(x * 2), torch.special.i0(x), torch.special.i0e(x * 9), torch.special.i1(x * 2), "
        "torch.special.i1e(x * 9), torch.special.log_ndtr(x.float() * 9), torch.special.xlog1py(x, h), "
        "torch.special.xlogy(p, h)",
        "torch.randn(5, 33)",
        "torch.randn(33)",
    ),
    "moments and distances": Case(
        "v, m = torch.var_mean(x, -1); s, n = torch.std_mean(x, (0, 2), keepdim=True, correction=0); "
        "lo, hi = torch.aminmax(x, dim=1); return v, m, s, n, lo, hi, torch.prod(x, -1), torch.prod(y), "
        "torch.count_nonzero(x > 0, 1), torch.dist(x, y), x.norm(p=3, dim=-1), F.pairwise_distance(x, y), "
        "F.cosine_similarity(x, y, -1), torch.linalg.cross(x[..., :3], x[..., 3:6]), torch.cross(x, x * y, dim=0)",
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
    "rotary by complex numbers": Case(
        "a = y.float(); f = torch.polar(torch.ones_like(a), a)[None, :, None]; x = x.float(); "
        "p = torch.view_as_complex(x.reshape(4, 6, 3, 8, 2)); "
        "b = torch.view_as_real(p * f).flatten(3).type_as(y); "
        "c = torch.complex(x[..., :8], x[..., 8:]) * f; "
        "d = torch.view_as_complex(x.transpose(1, 2).unflatten(-1, (-1, 2))) * torch.exp(torch.complex(a * 0, a)); "
        "e = torch.view_as_real(p * f.conj() * (f * f)).reshape(x.shape); "
        "q = p * torch.complex(a.cos(), a.sin())[None, :, None]; "
        "return b, torch.cat([c.real, c.imag], -1).type_as(y), torch.view_as_real(d).flatten(-2).transpose(1, 2), e, "
        "torch.stack((q.real, q.imag), -1).flatten(3)",
        "torch.randn(4, 6, 3, 16)",
        "torch.rand(6, 8) * 6",
    ),
    "complex numbers": Case(
        "z = torch.complex(x.float(), y.float()); w = torch.complex(y.float(), 1 - x.float()); "
        "v = torch.where(x > 0, z, w) * 3; "
        "return torch.vdot(z.flatten(), w.flatten()).real, (z / w).real, (z + w - 0.5).angle(), torch.exp(z).abs(), "
        "z.sum(0).abs(), (z * w).mean(1, keepdim=True).imag, (2 - z).square().real, (z * x.float()).imag + x, "
        "torch.view_as_real(torch.cat([-v, z.conj() / 2], 1)[:, 3:].T), torch.vdot(x[0], x[1]), "
        "(torch.exp(-0.5j * x.float()) / w).real, (2 / z + 3j).imag, torch.sgn(w).real, (z**3).imag, (w @ z.mH).abs(), "
        "torch.einsum('bi,oi->bo', z, w).real, torch.log(z).real, torch.cos(w).imag, z.norm(dim=1), "
        "(y.float() + 0j).imag, torch.fft.fftshift(z).real, F.pad(z.masked_fill(x > 0, 2), (1, 0)).abs(), "
        "z.cumsum(1).imag",
        "torch.randn(5, 16)",
        "torch.randn(5, 16)",
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


def test_pairs_that_lie_beside_each_other_are_read_where_they_are_and_written_by_vectors_over_pairs() -> None:
    body = "x = x.reshape(4, 6, 8, 2); a, b = x[..., 0], x[..., 1]; return torch.stack((a * y - b, a + b * y), -1)"
    for parameters in (CpuParameters(), SMALL):
        plan = write(functional("pairs", Case(body, "torch.randn(4, 6, 16)", "torch.randn(6, 8)")), parameters)
        assert plan is not None and plan.regions == 1, "no copy of x was made"
        assert plan.candidate.backend == "cuda" or "points of n0" in plan.candidate.source


def test_complex_tensors_come_from_the_library_and_go_to_it(tmp_path: Path) -> None:
    """What the library makes is taken apart, what it takes and what a module returns is one tensor again."""
    body = "f = torch.fft.rfft(x.real) * torch.fft.rfft(y.imag).conj() * 0.5; z = x * y; "
    body += (
        "return torch.fft.irfft(f), (x / 2 - y).conj().T, torch.tanh(z @ z.mH).abs(), torch.view_as_real(x + y.real)"
    )
    given = ("torch.randn(5, 16, dtype=torch.complex64)", "torch.randn(16, dtype=torch.complex64)")
    plan = write(fp := functional("spectra", Case(body, *given)), CpuParameters())
    assert plan is not None and set(plan.library) == {"fft_rfft", "fft_irfft", "tanh"}
    scope: dict = {}
    exec(fp.problem.source, scope)
    x, y = scope["get_inputs"]()
    for ours, theirs in zip(numbers.caller(plan, fp, tmp_path)(x, y), scope["Model"]()(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_complex_number_that_is_no_operand_is_refused_with_what_to_write() -> None:
    with pytest.raises(AssertionError, match=r"the number 1j as no operand; write it with torch\.complex"):
        functional("literal", Case("return (1j**x).abs() + y", "torch.randn(5)", "torch.randn(5)"))


def test_spectra_are_filtered_by_kernels_between_transforms(tmp_path: Path) -> None:
    """A layer of a Fourier neural operator: zeros that are written to, and a product for each frequency."""
    body = "f = torch.fft.rfft2(x); o = torch.zeros(2, 6, 16, 9, dtype=torch.cfloat); t = torch.tensor([1j, 2]); "
    body += "o[:, :, :5, :5] = torch.einsum('bixy,ioxy->boxy', f[:, :, :5, :5], self.w); o[:, :, -5:, :2] *= 2j; "
    body += "return torch.fft.irfft2(o, s=(16, 16)) + y, torch.full((3,), 1j).imag, (t * f[0, 0, :, :2]).real"
    init = "torch.manual_seed(1); self.w = nn.Parameter(torch.randn(4, 6, 5, 5, dtype=torch.cfloat))"
    fp = functional("fno", Case(body, "torch.randn(2, 4, 16, 16)", "torch.randn(16)", init))
    plan = write(fp, CpuParameters())
    assert plan is not None and set(plan.library) == {"fft_rfft2", "fft_irfft2"}
    scope: dict = {}
    exec(fp.problem.source, scope)
    model, inputs = scope["Model"](), scope["get_inputs"]()
    found = numbers.caller(plan, fp, tmp_path)(*numbers.tensors_of(fp, model, inputs))
    for ours, theirs in zip(found, model(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs.detach())


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
