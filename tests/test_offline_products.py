"""Matrix products and convolutions of the offline writer, to the end: C++ as it is, CUDA emulated on the CPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, worst_ratio
from support.product_cases import CASES

from rag_kernels.offline import compose
from rag_kernels.offline.compose import first_plans, write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.fusion.sums.parts import Split
from rag_kernels.offline.tuning import HOPPER, starting_parameters


@pytest.mark.parametrize("name", CASES)
def test_products_are_as_exact_as_pytorch(name: str, tmp_path: Path) -> None:
    fp = functional(name, CASES[name])
    plan = write(fp, CpuParameters(products=2))
    assert plan is not None and plan.candidate.tier == "kernel" and "product" in plan.schedules
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


EMULATED = (
    *(("matrices", 1, 0), ("parts", 1, 0), ("parts", 1, 128), ("filters", 1, 0)),
    *(("convolutions", 0, 0), ("batches", 0, 0), ("deep", 0, 0), ("transposed", 0, 0)),
)


@pytest.mark.parametrize("name,tensor,tile", EMULATED)
def test_cuda_products_are_as_exact_as_pytorch(
    name: str, tensor: int, tile: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    fp = functional(name, CASES[name])
    plan = write(fp, CudaParameters(products=2, tensor=tensor, tile=tile))
    assert plan is not None and plan.candidate.tier == "kernel" and "product" in plan.schedules
    assert ("multiply(part" in plan.candidate.source) == bool(tensor)
    assert ("split_depth(all" in plan.candidate.source) == (name == "deep")
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


def test_a_strided_dimension_that_is_split_has_no_table_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long mean of a transposed convolution runs in parts: a third of its results was wrong on a GPU."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    monkeypatch.setattr(compose, "split_of", lambda parameters: Split(128, length=64))
    init = "self.c = nn.ConvTranspose2d(16, 64, 3, stride=2, padding=1, output_padding=1)"
    fp = functional(
        "split", Case("return self.c(x).mean((2, 3)) * y", "torch.randn(1, 16, 68, 2)", "torch.ones(1)", init=init)
    )
    plan = write(fp, CudaParameters(products=2))
    assert plan is not None and "multiply(part" in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_no_nest_runs_over_more_than_it_computes(tmp_path: Path) -> None:
    """A product below a mean beside the input itself, one in two orders and a sum, and one with a constant row."""
    body = (
        "p = x @ y; m = F.gelu(p.mean(1, keepdim=True)) + x; r = x.exp() @ y; q = r * torch.sigmoid(r); "
        "s = x.sum(1, keepdim=True).expand(-1, 40); return m, q @ y, q.t() @ x, q.sum(0), s.t() @ x"
    )
    fp = functional("no_more", Case(body, "torch.randn(48, 64)", "torch.randn(64, 64) / 8"))
    plan = write(fp, CpuParameters(products=2))
    assert plan is not None and worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO
    notes = re.findall(r"^  // (.*): (.*)$", plan.candidate.source, re.MULTILINE)
    assert sum("products of" in what for _, what in notes) == 4, notes
    rows = re.search(r"const int64_t (n\d+) = (?:48|x\.size\(0\));", plan.candidate.source)
    assert rows and not any(what.endswith(f"x {rows[1]} elements") for _, what in notes), notes


def test_rows_behind_a_product_are_rows_as_it_is_stored() -> None:
    """Their columns lie side by side, whichever way the product's factors lie: no parts of columns are made of them."""
    case = Case("return torch.softmax(F.gelu(x @ y.T), -1)", "torch.randn(1024, 64)", "torch.randn(8192, 64)")
    plan = next(first_plans(functional("rows_behind", case), starting_parameters("cuda", HOPPER)))
    assert plan.regions == 2 and set(plan.schedules) == {"product", "row"}, plan.schedules


@pytest.mark.parametrize(("lanes", "stored"), [(256, 1), (64, 0)])
def test_a_factor_of_several_tensors_is_stored_where_many_lanes_read_it(
    lanes: int, stored: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy engine reads what lies in memory alone; a scale makes no tensor of its own."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    case = Case(
        "w = y[:, :32] * y[:, 32:]; return (x - x.mean(1, keepdim=True)) @ w.t() + (x * 2) @ y[:, :32].t()",
        f"torch.randn({lanes}, 32)",
        f"torch.randn({lanes}, 64)",
    )
    fp = functional("several", case)
    plan = write(fp, replace(numbers.SMALL, products=2))
    assert plan is not None and worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO
    heads = set(re.findall(r"^// (part\w*): .* elements$", plan.candidate.source, re.MULTILINE))
    assert len(heads) == stored, heads
