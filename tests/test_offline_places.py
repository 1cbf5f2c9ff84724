"""Padding, rolling, resizing, advanced indexing and partial writes: elements that are read at computed places.

Each case is built in both languages (CUDA emulated), compared with PyTorch in fp64, and called at other sizes, "
"where it
must be right or refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, worst_ratio

from rag_kernels.eval.records import FunctionalProblem, MadeSize
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.tuning import Parameters

LANGUAGES: dict[str, Parameters] = {
    "cpp": CpuParameters(),
    "cuda": CudaParameters(threads=64, long_threads=128, team=4, sharing=0),
}
CASES = {
    "borders": Case(
        "a = F.pad(x, (1, 2, 3, 0)), F.pad(x, (2, 1), value=-1.5), F.pad(x.relu(), (-1, 2, 0, -2)); "
        "b = F.pad(x, (2, 3), mode='reflect'), F.pad(x * y, (3, 1), mode='circular'), F.pad(x.exp(), (1, 4), "
        "mode='replicate'); "
        "return *a, *b, F.pad(x.softmax(-1), (0, 1)).sum(-1)",
        "torch.randn(3, 5, 9)",
        "torch.randn(9)",
    ),
    "rolled": Case(
        "return x.roll(2, 1) + y, x.roll((1, -3), (0, 1)), x.roll(4), (x + y).roll(-1, -1).softmax(-1), "
        "torch.diff(x), torch.diff(x, n=2, dim=0), torch.diff(x, prepend=x[:, -1:], append=y.expand(6, 9))",
        "torch.randn(6, 9)",
        "torch.randn(9)",
    ),
    "repeated": Case(
        "return x.repeat(2, 1, 3) * 2, x.repeat(2, 1, 1, 1), y.tile(4), x.repeat_interleave(3, 1), "
        "y.repeat_interleave(2), "
        "x.unfold(2, 4, 2).sum(-1), x.swapaxes(0, 2) * 2, torch.movedim(x, 0, -1) + 1, x.reshape_as(x[None]).relu()",
        "torch.randn(3, 4, 9)",
        "torch.randn(9)",
    ),
    "resized": Case(
        "a = F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 5)), F.interpolate(x.relu(), size=(3, 16)); "
        "b = F.interpolate(x, scale_factor=1.7, recompute_scale_factor=False); "
        "c = [F.interpolate(x, size=(9, 13), mode='bilinear', align_corners=k) * y for k in (True, False)]; "
        "d = F.interpolate(x, scale_factor=0.6, mode='bilinear'), F.interpolate(x.exp(), scale_factor=2, "
        "mode='bicubic'); "
        "return *a, b, *c, *d, F.interpolate(x[0], size=11, mode='linear')",
        "torch.randn(2, 3, 6, 8)",
        "torch.randn(13)",
    ),
    "windows of unequal counts": Case(
        "return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True) * y, "
        "F.avg_pool1d(x[0], 4, 3, 2, True, False), F.avg_pool2d(x, 2, 2, 0, True, False), "
        "F.avg_pool2d(x, (2, 3), divisor_override=5), F.adaptive_avg_pool2d(x, (8, 36)), F.max_pool2d(x, 3, 2, "
        "1, ceil_mode=True)",
        "torch.randn(2, 3, 8, 12)",
        "torch.randn(7)",
    ),
    "indexed": Case(
        "i = y[:, :1]; "
        "return x[y], x[:, y], x[y[0], y[1]], x[i, y], x[:, :, y[:, 0]], x[y[0], :, y[1]] * 2, (x * "
        "2).index_select(1, y[0]), "
        "x.exp()[:, y[0] - 4].sum(-1), F.one_hot(y, 5).float(), x[torch.arange(0, 4, 3, device=x.device)]",
        "torch.randn(4, 4, 5)",
        "torch.randint(0, 4, (3, 6))",
    ),
    "written in part": Case(
        "a = x.clone(); a[:, 2] = 0; a[1:4] *= 2; b = x * 1; b[:, -3:] = y[None, -3:]; b[::2, 1::3] = 7.0; "
        "c = torch.zeros_like(x); c[0] = y; c[-1].copy_(y * 2); d = x.new_ones(3, 7); d[:, 5:].zero_(); "
        "d[1].fill_(2.5); "
        "return a, b, c.cumsum(0), d",
        "torch.randn(6, 9)",
        "torch.randn(9)",
    ),
    "made from nothing": Case(
        "a = torch.arange(0, 27, 3, device=x.device), torch.arange(5, 0.5, -0.5, device=x.device); "
        "b = torch.linspace(-1, 2, 9, device=x.device) * x, torch.tensor([1.5, 2.0, 4.0], device=x.device)[:, "
        "None] + y; "
        "c = x.new_full((4, 9), 3.5) + x.new_ones(9), torch.outer(y, x[0]), torch.meshgrid(y, x[:, 0], "
        "indexing='xy'); "
        "return x * a[0], a[1] * y, *b, *c[:2], c[2][0] * c[2][1]",
        "torch.randn(6, 9)",
        "torch.randn(9)",
    ),
    "pieces": Case(
        "q, k, v = x.view(4, 3, 6, 2).unbind(1); a, b = x.unbind(-1)[:2]; "
        "return q * k + v, a - b, F.pixel_shuffle(y, 2) * 2, F.pixel_unshuffle(y, 3), torch.diagonal(x, 1).exp(), "
        "torch.einsum('bhw->whb', y[0]) + 1, torch.einsum('bhw->w', y[0]), torch.floor_divide(x, 0.3), "
        "torch.remainder(x, -0.7)",
        "torch.randn(4, 36)",
        "torch.randn(2, 4, 6, 9)",
    ),
    "bits": Case(
        "return (x ^ y) + (x >> 2) + (y << 1), ~x, ((x > 3) ^ (y > 2)).int(), (~(x > 1)).int(), x // 3, x % -5, "
        "(-x) // 4, torch.remainder(-x, y + 1)",
        "torch.randint(0, 100, (5, 9))",
        "torch.randint(0, 100, (9,))",
    ),
    "norms of weights": Case(
        "w = torch._weight_norm(x, x.norm(dim=(1, 2), keepdim=True) * 2, 0); return w * y, w.sum()",
        "torch.randn(4, 5, 6)",
        "torch.randn(6)",
    ),
    "padding by name": Case(
        "return F.conv2d(x, self.w, padding='same', groups=3), F.conv2d(x, self.w, padding='valid', groups=3), "
        "F.conv1d(y, self.v, padding='same', dilation=3)",
        "torch.randn(2, 3, 8, 9)",
        "torch.randn(2, 3, 20)",
        init="self.w, self.v = nn.Parameter(torch.randn(3, 1, 3, 4)), nn.Parameter(torch.randn(4, 3, 4))",
    ),
    "large windows": Case(
        "a = F.avg_pool2d(x, 9, 1, 4, count_include_pad=False), F.max_pool2d(x, 9, 2, 4); "
        "return *a, F.avg_pool2d(y, (3, 7), (2, 1), (1, 3), ceil_mode=True), F.max_pool1d(y[0], 5, 2, 1, 2) * 2",
        "torch.randn(2, 3, 20, 37)",
        "torch.randn(2, 3, 17, 70)",
    ),
    "windows of several sizes": Case(
        "return F.adaptive_avg_pool2d(x, (7, 5)) + 1, F.adaptive_avg_pool2d(y, (3, 4)), F.adaptive_avg_pool1d(x[0], 8)",
        "torch.randn(2, 3, 20, 12)",
        "torch.randn(2, 3, 9, 6)",
    ),
    "what average pools give back": Case(
        "back = torch.ops.aten.avg_pool2d_backward; "
        "a = back(x, y, [3, 3], [1, 1], [1, 1], False, True, None), back(x, y, [7, 7], [1, 1], [3, 3], False, False, "
        "None); "
        "b = back(x[:, :, :10, :9], y, [3, 4], [2, 2], [1, 1], False, False, None); "
        "c = back(x[:, :, :6, :6], y, [3, 3], [3, 3], [0, 0], False, True, None); "
        "return *a, b, c, torch.ops.aten._adaptive_avg_pool2d_backward(x[:, :, :7, :5], y)",
        "torch.randn(2, 3, 20, 18)",
        "torch.randn(2, 3, 20, 18)",
    ),
    "one filter for two images": Case(  # sums of one nest whose guards differ, as raft_small has them
        "return F.conv2d(x, self.w, padding=1, groups=3) + F.conv2d(y, self.w, padding=1, groups=3)",
        "torch.randn(2, 3, 8, 9)",
        "torch.randn(2, 3, 8, 9)",
        init="self.w = nn.Parameter(torch.randn(3, 1, 3, 3))",
    ),
}
Made = Callable[[str, Case], tuple[FunctionalProblem, Callable[..., list[torch.Tensor]]]]


@pytest.fixture(params=LANGUAGES)
def called(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return what writes a case's kernel in this language, and builds it."""
    if request.param == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)

    def made(name: str, case: Case) -> tuple[FunctionalProblem, Callable[..., list[torch.Tensor]]]:
        fp = functional(name.replace(" ", "_"), case)
        parameters = LANGUAGES[request.param]
        if "conv" in case.body:
            parameters = replace(parameters, products=2)
        plan = write(fp, parameters)
        assert plan is not None and plan.candidate.tier == "kernel", plan and plan.stopped
        return fp, numbers.caller(plan, fp, tmp_path)

    return made


@pytest.mark.parametrize("name", CASES)
def test_elements_at_computed_places(name: str, called: Made) -> None:
    assert worst_ratio(*called(name, CASES[name])) <= numbers.RATIO


@pytest.mark.parametrize(
    "body",
    [
        "F.pad(x, (1, 2), mode='reflect') * 2, F.pad(x, (-2, 1)), F.pad(x, (0, 0, 2, 2), value=3.0)",
        "x.roll(2, 1), x.roll(-1, 0) * 2, x.repeat(2, 1).relu(), x.repeat_interleave(2, 1).exp()",
        "x[:, -3:] * 2, x[-2:].exp(), x[:, :-2] + x[:, 2:], x[1:-1], x[:, -1] * 3",
        "F.interpolate(x[None], scale_factor=2), F.interpolate(x[None], scale_factor=1.5, mode='linear')",
        "x[:, y.long() % x.shape[1]], x.clone().index_fill_(1, y.long()[:1] % 4, 0.0)",
        "torch.slice_scatter(x, x[:, -2:] * 2, 1, -2), torch.select_scatter(x, x[0] * 3, 0, -1), torch.diff(x, "
        "prepend=x)",
        "F.avg_pool1d(x[None], 3, 2, 1, count_include_pad=False), F.avg_pool1d(x[None], 3, 2, 0, ceil_mode=True)",
        "F.avg_pool2d(x[None], 5, 1, 2), F.max_pool2d(x[None], 5, 1, 2), F.adaptive_avg_pool1d(x, 3) + 1",
        "x.flip(1) * 2, torch.arange(0, x.shape[1], 2, device=x.device) * 2.0, torch.linspace(0, 1, x.shape[1], "
        "device=x.device) * x",
    ],
)
def test_other_sizes_are_right_or_refused(body: str, tmp_path: Path) -> None:
    case = Case(f"return {body}", "torch.randn(6, 8)", "torch.arange(5.0)")
    plan = write(functional("small", case), CpuParameters())
    assert plan is not None
    for rows, columns in ((9, 12), (6, 11)):
        other = functional("large", Case(case.body, f"torch.randn({rows}, {columns})", "torch.arange(5.0)"))
        try:
            ratio = worst_ratio(other, numbers.caller(plan, other, tmp_path))
        except (RuntimeError, ValueError) as refused:
            assert "this kernel needs" in str(refused)
            continue
        assert ratio <= numbers.RATIO


PIECES = """a, b, c = x.chunk(3, 1); u, v = x.chunk(2, 0)
        return F.silu(a) * b + c, F.glu(x, 1) * 2, torch.cat((-v, u), 0) * x"""
SIDE_BY_SIDE = """total = x.sum(1, keepdim=True); parts = [x * 2, x.exp(), total, x[:, 1:], x]
        few, same = torch.cat([x, total], 1).softmax(1), torch.stack([x.exp(), *[x.tanh()] * 4], 1)
        return torch.cat(parts, 1), few, same, torch.cat([x[1:], x.flip(0)]) * 2"""


WINDOWS = """z = F.conv2d(x[None, None], self.w, padding=1)
        return F.max_pool2d(z, 2).relu(), F.avg_pool1d(x, 3, 2, 1).sum(1), F.conv2d(z.relu(), self.v, stride=2)"""


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("body", [PIECES, SIDE_BY_SIDE, WINDOWS], ids=["pieces", "side by side", "windows"])
def test_pieces_concatenations_and_windows_are_served_at_other_sizes(
    body: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a piece begins is told by sizes; CUDA has numbers there unless other sizes are to be served."""
    weights = "self.w = nn.Parameter(torch.rand(3, 1, 3, 3)); self.v = nn.Parameter(torch.rand(2, 3, 2, 2))"
    case = Case(body, "torch.randn(8, 12)", "torch.arange(5.0)", init=weights if body is WINDOWS else "pass")
    if language == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(functional("pieces", case), replace(LANGUAGES[language], short=0, products=2))
    assert plan is not None and plan.candidate.tier == "kernel", plan and plan.stopped
    for rows, columns in ((8, 12), (10, 18), (16, 30)):
        other = functional("other", replace(case, x=f"torch.randn({rows}, {columns})"))
        assert worst_ratio(other, numbers.caller(plan, other, tmp_path)) <= numbers.RATIO


def test_what_is_made_of_nothing_and_factors_read_twice_are_as_long_as_at_the_call(tmp_path: Path) -> None:
    """Sums over edges begin with as many zeros as there are nodes; a Gram matrix reads one tensor as both factors."""
    body = "z = torch.zeros(*x.shape, dtype=x.dtype).index_add(0, y, x[y] * 2); "
    body += "c = torch.cat((x[:, None], x[:, None] * 2), 1); "
    case = Case(
        f"{body}c = c.tanh(); g = c @ c.mT; return z.exp(), g[:, y % 2, y % 2]", "torch.randn(9, 72)", "torch.arange(5)"
    )
    fp = functional("edges", case)
    [zeros] = [node.name for node in fp.nodes if node.op.startswith("aten.zeros")]
    fp = replace(fp, made=(MadeSize(zeros, 0, "x", 0), MadeSize(zeros, 1, "x", 1)))
    plan = write(fp, CpuParameters(products=2, short=0))
    assert plan is not None and plan.candidate.tier == "kernel", plan and plan.stopped
    other = functional("other", replace(case, x="torch.randn(14, 80)", y="torch.arange(11)"))
    assert worst_ratio(other, numbers.caller(plan, other, tmp_path)) <= numbers.RATIO


def test_a_loop_along_two_inputs_windows_is_checked_against_both() -> None:
    """At other sizes of one of them it would read beyond the end."""
    body = "return F.avg_pool1d(x, 2) + F.avg_pool1d(y, 3)"
    fp = functional("windows", Case(body, "torch.randn(8, 4, 64)", "torch.randn(8, 4, 96)"))
    for parameters in (CpuParameters(), CudaParameters(short=0)):
        written = write(fp, parameters)
        assert written is not None
        found = re.findall(r"needs (n\d+) == \((n\d+) - (\d)\) / (\d) \+ 1", written.candidate.source)
        assert len({loop for loop, *_ in found}) == 1 and sorted(size for *_, size in found) == ["2", "3"], found


def test_a_running_sum_by_doubling_computes_what_is_costly_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decay that each round reads where it lies and shifted would be computed twice as often in the next."""
    rounds = "h, a = h + a * F.pad(h, (s, 0))[:, :64], a * F.pad(a, (s, 0), value=1.0)[:, :64]"
    body = f"a, h = torch.exp(-x.abs()), y\n        for s in (1, 2, 4, 8, 16, 32): {rounds}\n        return h"
    case = Case(body, *["torch.randn(3, 64)"] * 2)
    fp = functional("doubling", case)
    monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(fp, LANGUAGES["cuda"])
    assert plan is not None
    assert plan.candidate.source.count("rk_exp") < 40
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO
