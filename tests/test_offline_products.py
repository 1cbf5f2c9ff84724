"""Matrix products and convolutions of the offline writer, to the end: C++ as it is, CUDA emulated on the CPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import test_offline_numbers as numbers
from emulated_cuda import build_emulated
from test_offline_numbers import Case, functional, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters

# Odd sizes and ones that allow sixteen-byte loads; strides, paddings, dilations and groups that are not alike.
CASES = {
    "matrices": Case(
        "return x @ y, x.t() @ self.w, torch.relu(self.l(x)) * 0.5 + x, x @ x, y.t() @ x.t()",
        "torch.randn(36, 36)",
        "torch.randn(36, 53)",
        init="self.l = nn.Linear(36, 36); self.w = nn.Parameter(torch.randn(36, 132))",
    ),
    "batches": Case(
        "return torch.bmm(x, y), torch.baddbmm(x[:, :, :19], x, y, beta=0.5), x @ y[0], "
        "torch.einsum('bmk,bnk->mbn', x, x), torch.einsum('bmk,bnk,bm,bkp->bnp', x, x, x[:, :, 0], y), "
        "torch.einsum('ai,bj,c->ij', x[0], y[1], x[2, 3])",
        "torch.randn(3, 17, 40)",
        "torch.randn(3, 40, 19)",
    ),
    "deep": Case("return x.t() @ y * 2", "torch.randn(2304, 12)", "torch.randn(2304, 12)"),
    "parts": Case("return x.t() @ y * 2", "torch.randn(560, 36)", "torch.randn(560, 34)"),
    "filters": Case(
        "return F.relu(self.a(x)) + y, self.b(x), self.c(x), self.d(x)",
        "torch.randn(2, 12, 9, 7)",
        "torch.randn(1)",
        init="self.a = nn.Conv2d(12, 70, 3, padding=1); self.b = nn.Conv2d(12, 80, (3, 2), (2, 1), (1, 2), 2, 2); "
        "self.c = nn.Conv2d(12, 36, 7, 3, 6); self.d = nn.ConvTranspose2d(12, 35, 3, stride=2, padding=1)",
    ),
    "rows": Case(
        "return F.scaled_dot_product_attention(x, y, y), (x @ y.mT).softmax(-1), x @ y[0, 0], torch.triu(x) @ y[0, 0]",
        "torch.randn(3, 20, 24)",
        "torch.randn(3, 28, 24)",
    ),
    "convolutions": Case(
        "return F.relu(self.a(x)) + y, self.b(x), self.c(x), self.d(x), self.e(x[0]), self.f(x[:, :, None])",
        "torch.randn(2, 6, 19, 23)",
        "torch.randn(1)",
        init="self.a = nn.Conv2d(6, 12, 3, padding=1); self.c = nn.Conv2d(6, 9, 1); "
        "self.b = nn.Conv2d(6, 10, (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=2); "
        "self.d = nn.Conv2d(6, 6, (3, 5), groups=6, padding=1, bias=False); "
        "self.e = nn.Conv1d(19, 8, 3, stride=2, dilation=4); self.f = nn.Conv3d(6, 8, (1, 3, 2), padding=(0, 1, 2))",
    ),
    "transposed": Case(
        "return F.gelu(self.a(x)) * y, self.b(x), self.c(x), self.d(x[0]), self.e(x[:, :, None])",
        "torch.randn(2, 6, 7, 9)",
        "torch.randn(1)",
        init="self.a = nn.ConvTranspose2d(6, 12, 3, padding=1); "
        "self.b = nn.ConvTranspose2d(6, 10, (3, 5), (2, 3), (1, 2), (1, 0), groups=2, dilation=(2, 1)); "
        "self.c = nn.ConvTranspose2d(6, 9, 3, stride=5, padding=1, dilation=2); "
        "self.d = nn.ConvTranspose1d(7, 8, 5, stride=2); self.e = nn.ConvTranspose3d(6, 8, 3, stride=2, padding=1)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products_are_as_exact_as_pytorch(name: str, tmp_path: Path) -> None:
    fp = functional(name, CASES[name])
    plan = write(fp, CpuParameters(products=2))
    assert plan is not None and plan.candidate.tier == "kernel" and "product" in plan.schedules
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


EMULATED = (
    *(("matrices", 1), ("parts", 1), ("filters", 1)),
    *(("convolutions", 0), ("batches", 0), ("deep", 0), ("transposed", 0)),
)


@pytest.mark.parametrize("name,tensor", EMULATED)
def test_cuda_products_are_as_exact_as_pytorch(
    name: str, tensor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    fp = functional(name, CASES[name])
    plan = write(fp, CudaParameters(products=2, tensor=tensor))
    assert plan is not None and plan.candidate.tier == "kernel" and "product" in plan.schedules
    assert ("multiply(part" in plan.candidate.source) == bool(tensor)
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_cuda_products_compile(tmp_path: Path) -> None:
    plan = write(functional("filters", CASES["filters"]), CudaParameters(products=2))
    assert plan is not None
    (tmp_path / "k.cu").write_text(plan.candidate.source)
    flags = "-O1 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -c"
    flags += f" -I{numbers.ROOT}/eval/include -I{numbers.FFI}/include"
    command = ["nvcc", *flags.split(), "-o", tmp_path / "k.o", tmp_path / "k.cu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("channels,tables", [(64, 2), (320, 1)])
def test_tables_of_steps_have_room_beside_the_tiles(channels: int, tables: int) -> None:
    """Two of a deep convolution over joined tensors (DenseNet) took more shared memory than a block may have."""
    made = f"torch.randn(1, {channels}, 12, 12)"
    init = f"self.c = nn.Conv2d({2 * channels}, 32, 3, padding=1)"
    fp = functional("joined", Case("return self.c(torch.cat([x, y], 1))", made, made, init=init))
    plan = write(fp, CudaParameters(products=2))
    assert plan is not None
    found = re.search(r"bytes = (\d+) \+ (\d+) \* \(\((\w+ \* n2 \* n3) \+ 31\) / 32 \* 32\);", plan.candidate.source)
    assert found and int(found[2]) == 8 * tables
    assert int(found[1]) + int(found[2]) * (2 * channels * 9) <= 227 * 1024


@pytest.mark.parametrize("tensor", [0, 1])
def test_a_cuda_product_serves_sizes_that_are_not_aligned(
    tensor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    body = "return torch.relu(x @ y), x.t() @ y"
    even = functional("even", Case(body, "torch.randn(36, 36)", "torch.randn(36, 72)"))
    odd = functional("odd", Case(body, "torch.randn(35, 35)", "torch.randn(35, 71)"))
    assert even.graph_key == odd.graph_key
    plan = write(even, CudaParameters(products=2, tensor=tensor))
    assert plan is not None and "float4*>" in plan.candidate.source
    assert ("multiply(part" in plan.candidate.source) == bool(tensor)
    assert worst_ratio(odd, numbers.caller(plan, odd, tmp_path)) < numbers.RATIO
