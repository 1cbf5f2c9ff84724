"""What texts do at sizes other than those they were written for: right, or refused in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional
from support.kept import kept_workers

from rag_kernels.eval.records import FunctionalProblem, Problem
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters

TEXT = """
import torch
import torch.nn as nn
import torch.nn.functional as F
K = {k}
G = {g}
class Model(nn.Module):
    def __init__(self, k=K, g=G):
        super().__init__()
        self.k, self.g = k, g
    def forward(self, x):
        {body}
def get_inputs():
    return [torch.randn(4, 6, K)]
def get_init_inputs():
    return [K, G]
"""
SERVED = {
    "parts of a width": "a, b = x.view(4, 6, 2, 4, self.k // 8).unbind(2); return torch.softmax(a, -1) * b",
    "halves": "a, b = x.split(self.k // 2, -1); c, d = x.chunk(2, -1); return F.silu(a) * b + c * d",
    "a sum of half": "return x.view(4, 6, 2, self.k // 2).sum(-1) * x[..., :2]",
}
HELD = {
    "groups": ("return F.group_norm(x, self.g).sigmoid()", 24, 6),
    "where a slice begins": ("return x[..., self.k // 4 : self.k // 4 + 4] * 2", 48, 2),
    "heads": (
        "q, k, v = x.view(4, 6, 3, 2, -1).permute(2, 0, 3, 1, 4); return F.scaled_dot_product_attention(q, k, v)",
        48,
        2,
    ),
    "made beside the library": (
        "h = torch.fft.rfft(x).real[..., : self.k // 2].reshape(24, 2, -1); return torch.linalg.cholesky(h @ h.mT + 9)",
        48,
        2,
    ),
}

SHORT = {  # reduced loops that are short where the text is written, at two sizes
    "rows": (Case("return torch.softmax(x, -1) + y", "torch.randn(7, {n})", "torch.randn({n})"), 8, 700),
    "channels beside pixels": (
        Case("return F.silu(F.group_norm(x, 3)) * y", "torch.randn(2, {n}, 9, 9)", "torch.randn(9)"),
        12,
        24,
    ),
    "columns": (Case("return torch.softmax(x, 1) + y", "torch.randn(3, {n}, 40)", "torch.randn(40)"), 8, 100),
    "channels last": (
        Case("return (x - x.mean((1, 3), keepdim=True)) * y", "torch.randn(2, 30, 3, {n})", "torch.randn({n})"),
        4,
        90,
    ),
}


def form(body: str, k: int, g: int) -> FunctionalProblem:
    with kept_workers() as workers:
        return functionalize(Problem("sized", TEXT.format(body=body, k=k, g=g)), workers=workers)


@pytest.mark.parametrize("name", SERVED)
def test_a_dimension_that_follows_the_modules_sizes_does_so_in_the_kernel(name: str, tmp_path: Path) -> None:
    plan = write(form(SERVED[name], 24, 2), CpuParameters(short=0))
    assert plan is not None and plan.candidate.tier == "kernel", plan and plan.stopped
    other = form(SERVED[name], 48, 2)
    assert numbers.worst_ratio(other, numbers.caller(plan, other, tmp_path)) <= numbers.RATIO


def of_size(case: Case, n: int) -> FunctionalProblem:
    return functional("short", replace(case, x=case.x.format(n=n), y=case.y.format(n=n)))


@pytest.mark.parametrize("name", SHORT)
def test_short_reduced_loops_are_no_numbers_in_cpp(name: str, tmp_path: Path) -> None:
    """A text has both loops of as many steps as it was written for, which g++ unrolls, and of others."""
    case, first, second = SHORT[name]
    plan = write(of_size(case, first), CpuParameters())
    assert plan is not None
    for size in (first, second):
        fp = of_size(case, size)
        assert numbers.worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


def test_channels_of_a_group_beside_pixels_are_no_number_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    case, first, second = SHORT["channels beside pixels"]
    plan = write(of_size(case, first), numbers.SMALL)
    assert plan is not None
    other = of_size(case, second)
    assert numbers.worst_ratio(other, numbers.caller(plan, other, tmp_path)) <= numbers.RATIO


def test_a_short_column_is_not_as_long_as_its_type_cannot_add_up(tmp_path: Path) -> None:
    case = Case("return x.sum(1) + y", "torch.randn(2, {n}, 20)", "torch.randn(20)")
    plan = write(of_size(case, 8), CpuParameters())
    assert plan is not None
    other = of_size(case, 5000)
    with pytest.raises(ValueError, match="<= 4096"):
        numbers.worst_ratio(other, numbers.caller(plan, other, tmp_path))


@pytest.mark.parametrize("name", HELD)
def test_numbers_that_follow_sizes_are_compared_with_those_of_the_call(name: str, tmp_path: Path) -> None:
    body, k, g = HELD[name]
    plan = write(form(body, 24, 2), CpuParameters(attention=1))
    assert plan is not None
    other = form(body, k, g)
    with pytest.raises((RuntimeError, ValueError), match="this kernel needs"):
        numbers.worst_ratio(other, numbers.caller(plan, other, tmp_path))


def test_halves_begin_where_the_width_says_on_a_gpu_too() -> None:
    plan = write(form("a, b = x.chunk(2, -1); return F.silu(a) * b", 64, 2), CudaParameters())
    assert plan is not None and "needs n2 * 2 == n3" in plan.candidate.source
    assert "_wide<<<" in plan.candidate.source, "and in vectors"


IMAGES = """
import torch
import torch.nn as nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.{conv}
    def forward(self, x):
        {body}
def get_inputs():
    return [torch.randn({shape})]
def get_init_inputs():
    return []
"""
IMAGE_CASES = {
    "group norm behind a convolution": (
        "Conv2d({c}, {f}, 3, padding=1)",
        "return F.group_norm(F.hardswish(self.conv(x)), 4).mean((2, 3))",
    ),
    "pools of a softmax": (
        "Conv2d({c}, {f}, 3)",
        "return F.max_pool2d(F.max_pool2d(torch.softmax(self.conv(x), 1), 2), 2)",
    ),
    "a pool behind a transposed convolution": (
        "ConvTranspose2d({c}, {f}, 3, stride=2, padding=1, output_padding=1)",
        "return F.max_pool2d(self.conv(x), 2).clamp(-1, 1).mean((2, 3), keepdim=True).tanh()",
    ),
}


def images(name: str, batch: int, channels: int, filters: int, height: int) -> FunctionalProblem:
    conv, body = IMAGE_CASES[name]
    conv = conv.format(c=channels, f=filters)
    text = IMAGES.format(conv=conv, body=body, shape=f"{batch}, {channels}, {height}, 10")
    with kept_workers() as workers:
        return functionalize(Problem("images", text), workers=workers)


@pytest.mark.parametrize("name", IMAGE_CASES)
def test_on_a_gpu_convolutions_serve_other_batches_and_channels_and_name_other_images(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(images(name, 2, 8, 16, 12), CudaParameters(products=2))
    assert plan is not None and plan.candidate.tier == "kernel", plan and plan.stopped
    filters = 24 if "transposed" in name else 16  # few that are added up are a number
    other = images(name, 5, 12, filters, 12)
    assert numbers.worst_ratio(other, numbers.caller(plan, other, tmp_path)) <= numbers.RATIO
    taller = images(name, 2, 8, 16, 20)
    with pytest.raises((RuntimeError, ValueError), match="this kernel needs"):
        numbers.worst_ratio(taller, numbers.caller(plan, taller, tmp_path))
