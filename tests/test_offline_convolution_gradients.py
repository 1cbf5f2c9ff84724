"""Gradients of convolutions in parts: what products and sums they are, and that others stay whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, worst_ratio
from support.run_nodes import run_nodes

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.compose import write
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.graph.convolution_gradients import with_convolution_gradients


def gradients(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> FunctionalProblem:
    """Return the gradients of a convolution as a problem, by the library's operator."""
    places = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x[2:], weight[2:], strict=True)]
    each = [[n] * len(places) for n in (stride, padding, dilation)]
    told = f"[{weight[0]}], {each[0]}, {each[1]}, {each[2]}, False, {[0] * len(places)}, {groups}, [True] * 3"
    body = f"return torch.ops.aten.convolution_backward(y, x, self.w, {told})"
    grad = (x[0], weight[0], *places)
    init = f"self.w = nn.Parameter(torch.randn{weight})"
    return functional("gradients", Case(body, f"torch.randn{x}", f"torch.randn{grad}", init=init))


# Recorded by whoever asks: every process that collects tests would.
APART = {
    "pixels": partial(gradients, (3, 4, 6, 7), (5, 4, 1, 1)),
    "a line": partial(gradients, (2, 3, 8), (6, 3, 1)),
    "a filter for each channel": partial(gradients, (3, 6, 5, 9), (6, 1, 3, 3), padding=1, groups=6),
    "far apart": partial(gradients, (2, 5, 20), (5, 1, 4), padding=2, dilation=3, groups=5),
    "three dimensions": partial(gradients, (2, 4, 4, 5, 6), (4, 1, 3, 3, 3), padding=1, groups=4),
}


@pytest.mark.parametrize("name", APART)
def test_these_are_products_and_sums(name: str) -> None:
    fp = APART[name]()
    apart = with_convolution_gradients(fp)
    assert not any(base_name(node.op) == "convolution_backward" for node in apart.nodes)
    given = [torch.randn(a.spec.shape, dtype=torch.float64) for a in fp.tensors]
    for theirs, ours in zip(run_nodes(fp, given), run_nodes(apart, given), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_others_stay_whole() -> None:
    strided = gradients((2, 4, 9, 9), (4, 1, 3, 3), stride=2, groups=4)
    wide = gradients((2, 4, 9, 9), (5, 4, 3, 3))
    few = gradients((2, 64, 3, 3), (5, 64, 1, 1))
    assert [with_convolution_gradients(fp) for fp in (strided, wide, few)] == [strided, wide, few]


def test_a_kernel_has_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    fp = APART["a filter for each channel"]()
    plan = write(fp, CudaParameters(products=2))
    assert plan is not None and plan.candidate.tier == "kernel" and plan.regions <= 3
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO
