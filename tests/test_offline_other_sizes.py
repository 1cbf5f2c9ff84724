"""What texts do at sizes other than those they were written for: right, or refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
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


def form(body: str, k: int, g: int) -> FunctionalProblem:
    with kept_workers() as workers:
        return functionalize(Problem("sized", TEXT.format(body=body, k=k, g=g)), workers=workers)


@pytest.mark.parametrize("name", SERVED)
def test_a_dimension_that_follows_the_modules_sizes_does_so_in_the_kernel(name: str, tmp_path: Path) -> None:
    plan = write(form(SERVED[name], 24, 2), CpuParameters(short=0))
    assert plan is not None and plan.candidate.tier == "kernel", plan and plan.stopped
    other = form(SERVED[name], 48, 2)
    assert numbers.worst_ratio(other, numbers.caller(plan, other, tmp_path)) <= numbers.RATIO


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
