"""Rows of odd lengths, rows that lie anywhere, few columns, short scans: by the text, which is right, emulated."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.emulated_texts import SMALL, heads, right_text
from support.generated_kernels import Case, functional, worst_ratio

from rag_kernels.offline import compose
from rag_kernels.offline.compose import split_of, write
from rag_kernels.offline.cuda import region
from rag_kernels.offline.cuda.elements import staged_rows, wide_columns, window_rows
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.cuda.scans import tiled_scans
from rag_kernels.offline.fusion import planner

IMAGES = "torch.randn(8, 16, 64, 64)"
MASK = "torch.rand(3, 1032) > 0.5"


def test_rows_of_an_odd_length_are_read_in_vectors(tmp_path: Path) -> None:
    body = "a = x.float(); s = torch.softmax(a, -1); b, i = a.max(-1); "
    body += "return s, torch.logsumexp(a, -1), b, i, (a * y).sum(1)"
    text = right_text(Case(body, "torch.randn(7, 1043).bfloat16()", "torch.randn(1043)"), tmp_path)
    assert "Pack<__nv_bfloat16, 8> x_v" in text and "part_of<" in text


def test_columns_of_few_are_cut_where_all_have_a_factor_in_common(tmp_path: Path) -> None:
    text = right_text(Case("return y.t() @ x", "torch.randn(4096, 40)", "torch.randn(4096, 1)"), tmp_path)
    assert sum(" columns of " in head for head in heads(text)) == 2


def test_rows_that_lie_anywhere_are_added_up_in_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_columns, "FULL", 0)
    body = "e = x[(y * 2654435761 + 5) % 50]; return e.float().sum(1), e.float().pow(2).sum((1, 2))"
    text = right_text(Case(body, "torch.randn(50, 64).half()", "torch.randint(0, 1 << 30, (20, 6))"), tmp_path)
    assert len(re.findall(r"const Pack<__half, 8> x_v\d? = .*v\d+", text)) == 2


def test_places_of_64_bits_are_divided_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "USED_OFTEN", 4)
    monkeypatch.setattr(compose, "split_of", lambda p: replace(split_of(p), costly=1))
    body = "return x[(y * 2654435761 + 5) % 50].sum(1)"
    text = right_text(Case(body, "torch.randn(50, 64)", "torch.randint(0, 1 << 30, (20, 6))"), tmp_path)
    assert len(heads(text)) == 2


def test_components_of_a_sum_over_pairs_share_the_pairs(tmp_path: Path) -> None:
    body = "d = x[:, None] - x[None]; f = torch.exp(-d.pow(2).sum(-1)); return (f[..., None] * d).sum(1), f.sum(1) + y"
    text = right_text(Case(body, "torch.randn(70, 3)", "torch.randn(1)"), tmp_path)
    assert text.count("rk_exp(-") == 1 and len(heads(text)) == 1


def test_columns_of_which_nothing_is_shared_stay_one_result(tmp_path: Path) -> None:
    assert "pieces" not in right_text(
        Case("return (x * 2).sum(1) + y", "torch.randn(40, 33, 3)", "torch.randn(3)"), tmp_path
    )


def test_each_warp_scans_a_short_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "MANY_SCANS", 8)
    monkeypatch.setattr(tiled_scans, "MANY_ROWS", 8)
    body = "c = torch.cumprod(torch.cat([torch.ones_like(x[:, :1]), 1 - torch.sigmoid(x)], 1), 1)[:, :-1]; "
    body += "return torch.cumsum(x, 1) + y, c"
    text = right_text(Case(body, "torch.randn(9, 131)", "torch.randn(1)"), tmp_path)
    assert text.count("dim3(32, 2)") == 2


def test_truths_lie_in_vectors_beside_what_tiles_of_a_scan_take(tmp_path: Path) -> None:
    text = right_text(Case("return torch.cumsum(x * y, 1)", "torch.randn(3, 1032)", MASK), tmp_path)
    assert "truth_at(y" in text.partition("_wide(")[2]


def test_windows_of_neighbouring_rows_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last four rows of seven and of nine overlap those before."""
    monkeypatch.setattr(region, "MANY_COLUMNS", 1)
    monkeypatch.setattr(window_rows, "LEAST_THREADS", 1)
    body = "w = y[..., 0]; return F.conv2d(x[:, :, 0], w, groups=3), F.conv2d(x[:, :, 0], w, padding=1, groups=3) * 2, "
    body += "F.conv3d(x, y, padding=1, groups=3)"
    text = right_text(Case(body, "torch.randn(2, 3, 3, 9, 18)", "torch.randn(3, 1, 3, 3, 3)"), tmp_path)
    assert text.count("for (int v = 0; v < 4; ++v)") == 3


def test_long_windows_are_rows(tmp_path: Path) -> None:
    body = "return (x.unfold(1, 100, 40) * y).pow(2).sum(-1), x.unfold(1, 8, 4).amax(-1)"
    text = right_text(Case(body, "torch.randn(3, 420)", "torch.randn(100)"), tmp_path)
    assert [head.partition(" of ")[0].split()[-1] for head in heads(text)] == ["rows", "columns"]


def test_columns_that_are_read_again_are_cut_all_the_same(tmp_path: Path) -> None:
    """Rows of that length stay whole where blocks may share them: a second pass has them at hand."""
    body = "c = x - x.mean(0); return c, c.pow(3).mean(0) + y"
    text = right_text(Case(body, "torch.randn(4096, 40)", "torch.zeros(1)"), tmp_path, replace(SMALL, sharing=1024))
    assert sum(" columns of " in head for head in heads(text)) == 4  # parts and the whole, of each sum


def test_rows_that_another_pass_has_not_at_hand_are_cut() -> None:
    """A batch norm below a mean of each image: one region stores both, over rows that are not the norm's."""
    body = "z = F.batch_norm(x, None, None, training=True); return z - z.mean((2, 3), True) + y"
    plan = write(functional("norms", Case(body, "torch.randn(16, 8, 255, 255)", "torch.ones(1)")), CudaParameters())
    assert plan is not None and len(heads(plan.candidate.source)) == 3  # parts of the sums, the sums, the rest


def test_rows_are_cut_of_which_not_all_tensors_fit() -> None:
    """A step of an optimizer, whose rows are layers: blocks that share a row keep one tensor of it, not two."""
    for body, kernels in (("x / x.norm(dim=1, keepdim=True)", 1), ("x * y / (x * y).norm(dim=1, keepdim=True)", 3)):
        case = Case(f"return {body}", *["torch.randn(2, 2000000)"] * 2)
        plan = write(functional("layers", case), CudaParameters())
        assert plan is not None and len(heads(plan.candidate.source)) == kernels


def test_unrolled_steps_keep_to_the_registers_of_a_thread() -> None:
    body = "o = [y]; [o.append(x[i] + 0.5 * o[-1]) for i in range({})]; return torch.stack(o)"
    for steps, width in ((20, 4), (60, 2)):
        case = Case(body.format(steps), f"torch.randn({steps}, 65536)", "torch.randn(65536)")
        plan = write(functional("steps", case), CudaParameters())
        assert plan is not None and f"Pack<float, {width}> x_v" in plan.candidate.source


def test_many_short_rows_have_a_thread_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a block lie in shared memory, of two tensors and of what is stored along them; the last block has few."""
    monkeypatch.setattr(staged_rows, "LEAST_ROWS", 1)
    body = "a = x.float(); b, i = a.max(-1); p = F.log_softmax(a, -1); "
    body += "return p.bfloat16(), b, i, (p * y).sum(-1), a.var(-1)"
    text = right_text(Case(body, "torch.randn(3, 67, 18).bfloat16()", "torch.randn(3, 67, 18)"), tmp_path)
    assert "_rows[threadIdx.x * 18 + r0]" in text and "_out[threadIdx.x * 18 + r0] = " in text


def test_what_is_summed_behind_a_convolution_is_summed_as_of_a_tensor() -> None:
    """Its window had made sums columns, which are cut from a length on: batch norms, instance norms, means of a map."""
    body = "F.instance_norm({0}) + F.batch_norm({0}, None, None, training=True), {0}.relu().mean((2, 3)), "
    body += "{0}.sum((0, 2, 3))"
    init = "self.c = nn.Conv2d(16, 16, 3, padding=1, groups=16)"
    cases = [
        Case(f"t = {made}; return {body.format('t')}, y", IMAGES, "torch.ones(1)", init=init)
        for made in ("x", "self.c(x)")
    ]
    plans = [write(functional("summed", case), CudaParameters()) for case in cases]
    plain, behind = (heads(plan.candidate.source) if plan else [] for plan in plans)
    assert plain and len(behind) == len(plain) + 1  # the convolution itself


def test_rows_of_many_reads_have_launch_bounds(tmp_path: Path) -> None:
    body = "p = F.pad(x, (4, 4)); q = F.pad(y, (4, 4)); "
    body += "return (sum(p.narrow(1, i, 1040) * q.narrow(1, i, 1040) for i in range(9))).exp().sum(1)"
    text = right_text(Case(body, "torch.randn(9, 1040) / 9", "torch.randn(9, 1040)"), tmp_path)
    assert "__launch_bounds__(ROW_THREADS, 1)" in text


def test_pairs_that_few_long_rows_came_to_join_beside_vectors(tmp_path: Path) -> None:
    body = "k = x > -2; v = torch.where(k, x, -1e9); p = torch.softmax(v, -1).gather(1, y[:, None]).squeeze(1); "
    body += "return p, k.sum(-1), torch.logsumexp(v, -1)"
    right_text(Case(body, "torch.randn(4, 65536)", "torch.randint(0, 65536, (4,))"), tmp_path)


def test_of_many_columns_each_has_a_thread_that_reads_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exponential's sum and its maximum too, whatever is infinite or no number among what they are of."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    monkeypatch.setattr(region, "WALKERS", 1)
    monkeypatch.setattr(wide_columns, "FULL", 0)
    body = "z = torch.tanh(x) + x; e = torch.log_softmax(z, 1)[:, 3]; "
    body += "return x.amin(1), torch.logsumexp(z, 1), (x * y.float()[:, :1]).mean(1), e, y.amax(1), y.logsumexp(1)"
    fp = functional("columns", Case(body, "torch.randn(3, 36, 4, 6)", "torch.randn(3, 33, 4, 6).bfloat16()"))
    plan = write(fp, SMALL)
    assert plan is not None
    text = plan.candidate.source
    wide = [body for body in text.split("__global__")[1:] if "_wide(" in body.split("{")[0]]
    assert len(wide) == len(heads(text)) == 2 and "column_reduce" not in text and text.count("take_columns(top") == 3
    call = numbers.caller(plan, fp, tmp_path)
    assert worst_ratio(fp, call) < numbers.RATIO
    x, y = torch.randn(3, 36, 4, 6), torch.randn(3, 33, 4, 6).bfloat16()
    x[0, 5, 0], y[0, 3, 0] = torch.inf, -torch.inf
    x[0, 7, 0, 1], y[1, 0, 0], y[1, 0, 0, 1] = torch.nan, torch.inf, torch.nan
    x[1, :, 1], y[2, :, 1] = -torch.inf, -torch.inf
    x[1, 9, 1, 2], x[2, :, 2] = torch.inf, torch.inf
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    for ours, wanted in zip(call(x, y), scope["Model"]()(x, y), strict=True):
        near = 1e-5 if wanted.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(ours, wanted, equal_nan=True, rtol=near, atol=1e-5)
