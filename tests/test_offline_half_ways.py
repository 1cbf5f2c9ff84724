"""What single kernels in sixteen bits leave out, keep and load ahead, and how exact they are where that is hard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import HALF_RATIO, SMALL, Case, functional, halved, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda import region
from rag_kernels.offline.cuda.elements import multi_block_rows, turned_windows, window_rows
from rag_kernels.offline.cuda.function import CudaParameters


@pytest.mark.parametrize(("rows", "told"), [(3, "x_v[r0 * 3 + "), (9, "x_v[(r0 + v) * 3 + ")])
def test_what_lies_outside_of_an_image_is_left_out_whatever_it_is_multiplied_by(
    rows: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros stand there, which a thread adds up like the rest where weights are finite: seven rows of vectors, or ten
    for windows of four rows, the last of which overlap those before.
    """
    monkeypatch.setattr(numbers, "build", build_emulated)
    monkeypatch.setattr(region, "MANY_COLUMNS", 1)
    monkeypatch.setattr(window_rows, "LEAST_THREADS", 1)
    body, shape = "return F.conv2d(x, y, padding=3, groups=4)", (2, 4, rows, 16)
    fp = functional("outside", halved(Case(body, f"torch.randn{shape}", "torch.randn(4, 1, 7, 7)"), "bfloat16"))
    plan = write(fp, SMALL)
    assert plan is not None and "_off == 0.0f;" in plan.candidate.source and told in plan.candidate.source
    call = numbers.caller(plan, fp, tmp_path)
    assert worst_ratio(fp, call) < HALF_RATIO
    x, weights = torch.ones(shape), torch.ones(4, 1, 7, 7)
    weights[1, 0, 0, 0] = 0.0
    wanted = F.conv2d(x, weights, padding=3, groups=4)
    wanted[:, 1, 3:, 3:] = weights[1, 0, 0, 0] = float("inf")
    assert torch.equal(call(x.bfloat16(), weights.bfloat16())[0].float(), wanted)


def test_windows_whose_results_are_turned_are_read_along_and_stored_across(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warp's lanes are channels, 33 of them two warps, and each takes 16 windows.

    What lies outside of a signal is left out whatever its weight.
    """
    monkeypatch.setattr(numbers, "build", build_emulated)
    monkeypatch.setattr(region, "MANY_COLUMNS", 1)
    monkeypatch.setattr(turned_windows, "LEAST_THREADS", 1)
    body = "return (x * F.conv1d(x, y, padding=2, groups=33)[..., :48]).transpose(1, 2).contiguous()"
    fp = functional("turned", halved(Case(body, "torch.randn(2, 33, 48)", "torch.randn(33, 1, 3)"), "bfloat16"))
    plan = write(fp, SMALL)
    assert plan is not None and "+ threadIdx.x % 32;" in plan.candidate.source
    call = numbers.caller(plan, fp, tmp_path)
    assert worst_ratio(fp, call) < HALF_RATIO
    x, weights = torch.ones(2, 33, 48).bfloat16(), torch.ones(33, 1, 3).bfloat16()
    weights[32, 0, 0] = float("inf")
    wanted = F.conv1d(x, weights, padding=2, groups=33)[..., :48].transpose(1, 2)
    assert wanted[:, :2].isfinite().all() and torch.equal(call(x, weights)[0], wanted)


def test_four_vectors_of_a_thread_are_loaded_before_the_first_is_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel like it took 12.3 us for 4096 rows of 4096 in bf16 with 256 threads and 10.9 with 128, on an H200.

    All four vectors of a thread are loaded before the first is summed.
    """
    monkeypatch.setattr(numbers, "build", build_emulated)
    fp = functional("once", halved(Case("return x.sum(-1) + y", "torch.randn(3, 4096)", "torch.randn(1)"), "bfloat16"))
    plan = write(fp, CudaParameters())
    assert plan is not None and "quad_block(quads, n0, 4)" in plan.candidate.source
    assert "if (quads <= 4 * int64_t(block.x))" in plan.candidate.source
    assert 0 < plan.candidate.source.index("x_v_kept[ITEMS ? j : 0] = ") < plan.candidate.source.index("auto sweep")
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < HALF_RATIO


def test_lanes_whose_elements_lie_apart_are_few(tmp_path: Path) -> None:
    """No instruction gathers sixteen bits: g++ took over three minutes to make vectors of 32 lanes of such a stack."""
    body = "c = x.unbind(1); return torch.stack([c[0] + y, c[1] * c[0], c[2] - c[0], c[3] * y, c[4] + c[1]], 1)"
    case = Case(body, "torch.randn(64, 5)", "torch.randn(1)")
    half, whole = functional("apart", halved(case, "bfloat16")), functional("whole", case)
    few = [
        plan and "simdlen(4)" in plan.candidate.source
        for plan in (write(half, CpuParameters()), write(whole, CpuParameters()))
    ]
    plan = write(half, CpuParameters())
    assert plan is not None and few == [True, False]
    assert worst_ratio(half, numbers.caller(plan, half, tmp_path)) < HALF_RATIO


def test_bounds_are_an_instruction_each_and_keep_what_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    case = Case("return (x * y).clamp(-0.5, 1.5), x.clamp_min(0.25)", "torch.randn(6, 40)", "torch.randn(40)")
    fp = functional("bounds", halved(case, "bfloat16"))
    plan = write(fp, SMALL)
    assert plan is not None and plan.candidate.source.count("= extreme<") >= 3
    x, y = torch.randn(6, 40).bfloat16(), torch.ones(40).bfloat16()
    x[2, 5], x[3, 6], x[4, 7] = torch.nan, torch.inf, -torch.inf
    found = numbers.caller(plan, fp, tmp_path)(x, y)
    for mine, right in zip(found, (x.clamp(-0.5, 1.5), x.clamp_min(0.25)), strict=True):
        torch.testing.assert_close(mine, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_a_zero_keeps_its_sign_in_a_choice_and_a_bound_is_none(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU zero wins over -0.0 in PyTorch's clamp, by the same instruction, and on a CPU what is bounded stays."""
    if backend == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)
    parameters = SMALL if backend == "cuda" else CpuParameters()
    chosen = functional(
        "chosen", Case("return torch.where(x < 0, 0.0, x) * y", "torch.randn(6, 40)", "torch.randn(40)")
    )
    bounded = functional("bounded", Case("return x.relu() * y.clamp(min=0)", "torch.randn(6, 40)", "torch.randn(40)"))
    plans = [write(fp, parameters) for fp in (chosen, bounded)]
    assert None not in plans
    counts = [plan.candidate.source.count("= extreme<") for plan in plans if plan]
    assert counts == ([0, 2] if backend == "cuda" else [0, 0])
    x, y = torch.full((6, 40), -0.0), torch.ones(40)
    for plan, fp in zip(plans if backend == "cpu" else plans[:1], (chosen, bounded), strict=False):
        (found,) = numbers.caller(plan, fp, tmp_path)(x, y)
        assert torch.signbit(found).all()


def test_a_tanh_of_sixteen_bits_is_exact_for_small_numbers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no branch, in which a difference of numbers near one would keep nothing of them."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    fp = functional(
        "tanh", halved(Case("return x.tanh(), y * 2", "torch.randn(6, 40)", "torch.randn(6, 40)"), "float16")
    )
    plan = write(fp, SMALL)
    assert plan is not None and "= rk_tanh_near(" in plan.candidate.source
    x = torch.logspace(-6, 1.5, 240).view(6, 40).half()
    x[::2] *= -1
    x[0, 0], x[1, 0], x[2, 0], x[3, 0] = 0.0, torch.inf, -torch.inf, torch.nan
    found, _ = numbers.caller(plan, fp, tmp_path)(x, x)
    right = x.double().tanh()
    torch.testing.assert_close(found.double(), right, rtol=2**-11 + 2**-16, atol=2**-25, equal_nan=True)


NEAR: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "rk_erf_near(": ("torch.erf(x)", torch.erf),
    "rk_expm1_near(": ("torch.expm1(x)", torch.expm1),
    "rk_log1p_near(": ("torch.log1p(x)", torch.log1p),
    "rk_softplus_near(": ("F.softplus(x, threshold=1e9)", lambda x: F.softplus(x, threshold=1e9)),
}


@pytest.mark.parametrize("called", NEAR)
def test_functions_of_sixteen_bits_are_exact_near_zero_and_far_from_it(
    called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The polynomials and the exponent unit have each their range, and meet."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    body, exact = NEAR[called]
    case = Case(f"return {body}, y * 2", "torch.rand(6, 80)", "torch.randn(6, 80)")
    fp = functional("near", halved(case, "float16"))
    plan = write(fp, SMALL)
    assert plan is not None and f"= {called}" in plan.candidate.source
    x = torch.logspace(-4, 1, 480).view(6, 80).half()
    x[::2] *= -1
    x[0, 0], x[1, 0], x[2, 0], x[3, 0] = 0.0, torch.inf, -torch.inf, torch.nan
    found, _ = numbers.caller(plan, fp, tmp_path)(x, x)
    torch.testing.assert_close(found.double(), exact(x.double()), rtol=2**-11 + 2**-16, atol=2**-25, equal_nan=True)


def test_a_softplus_of_single_precision_has_its_last_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    fp = functional(
        "softplus", Case("return F.softplus(x, threshold=1e9), y * 2", "torch.rand(6, 800)", "torch.rand(3)")
    )
    plan = write(fp, SMALL)
    assert plan is not None and "= rk_softplus(" in plan.candidate.source
    x = torch.logspace(-6, 1.9, 4800).view(6, 800)
    x[::2] *= -1
    x[0, 0], x[1, 0], x[2, 0], x[3, 0] = 0.0, torch.inf, -torch.inf, torch.nan
    found, _ = numbers.caller(plan, fp, tmp_path)(x, torch.ones(3))
    right = F.softplus(x.double(), threshold=1e9)
    torch.testing.assert_close(found.double(), right, rtol=4 * 2**-24, atol=1e-38, equal_nan=True)


def test_rows_that_are_masked_throughout_are_uniform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's are: the least number times log2(e) is infinite, the difference of two of them is not. Of numbers so
    large that such a product has no fraction the greatest still gives 1.
    """
    monkeypatch.setattr(numbers, "build", build_emulated)
    rows = "torch.full((204,), torch.finfo(torch.bfloat16).min), torch.randn(204), torch.randn(204) * 1e7"
    masked = f"torch.stack([{rows}, {rows}])"
    fp = functional("masked", halved(Case("return x.softmax(-1) + y", masked, "torch.randn(204)"), "bfloat16"))
    plan = write(fp, SMALL)
    assert plan is not None and "rk_exp_below(" in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < HALF_RATIO


def test_exponentials_of_products_of_sixteen_bits_are_of_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The greatest of such scores has more bits than one of bfloat16: its product with log2(e) would be rounded, by
    hundreds where scores are of 1e12.
    """
    monkeypatch.setattr(numbers, "build", build_emulated)
    scores = "(x.float() * y.float()).softmax(-1).to(x.dtype)"
    case = Case(f"return {scores}, x.softmax(-1)", "torch.randn(6, 204) * 1e6", "torch.randn(204) * 1e6")
    fp = functional("scores", halved(case, "bfloat16"))
    plan = write(fp, SMALL)
    assert plan is not None and "rk_exp_below(" in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < HALF_RATIO


@pytest.mark.parametrize(("dtype", "name"), [("bfloat16", "__nv_bfloat16"), ("float16", "__half")])
def test_blocks_share_long_rows_of_sixteen_bits(
    dtype: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    case = Case(
        "return x.softmax(-1), F.rms_norm(x, (40960,)) * y, F.layer_norm(x, (40960,))",
        "torch.randn(3, 40960)",
        "torch.randn(40960)",
    )
    fp = functional("shared", halved(case, dtype))
    monkeypatch.setattr(multi_block_rows, "KEPT_BYTES", 4096)
    plan = write(fp, CudaParameters(threads=64, long_threads=128, team=4, sharing=128))
    assert plan is not None and f"Ring<{name}, " in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < HALF_RATIO


def test_a_reduction_wanted_whole_by_one_result_stays_whole_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting it for the other result split the loops of a kernel that was planned before, which then was wrong."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    case = Case(
        "s = x.abs().amax(-1, keepdim=True) / 127; return (x / s).round(), s * y",
        "torch.randn(3, 66560)",
        "torch.randn(1)",
    )
    fp = functional("whole", case)
    for parameters in (CudaParameters(threads=64, long_threads=128, team=4), SMALL):
        plan = write(fp, parameters)
        assert plan is not None and worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_few_long_running_sums_run_in_tiles_or_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles alone, which look back; in parts beside what is reduced."""
    body = "return x.cumsum(-1) * y, (x > 0).float().cumsum(1) / x.abs().amax(1, keepdim=True)"
    case = Case(body, "torch.randn(2, 1 << 16)", "torch.randn(1)")
    fp = functional("parts", case)
    monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(fp, SMALL)
    assert plan is not None and "scratch<double>" in plan.candidate.source
    assert "of_earlier<0>" in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO
