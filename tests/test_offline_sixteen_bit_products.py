"""Products and convolutions of sixteen bits on tensor cores: emulated to the end, and compiled for two generations.

The emulation has Hopper's copy engine, barriers, swizzled shared memory, descriptors and warpgroup products
(`hopper_emulation.h`), and the fragments of `mma.sync`.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, halved
from support.product_cases import CASES as PRODUCTS
from support.tensor_core_drafts import RATIO, TAIL, drafted, for_hopper, ratio, ratio_on_two_devices

from rag_kernels.offline.compose import first_plans, write
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.cuda.gemm.hopper.shape import Product, Shape, best_shape, parts_of
from rag_kernels.offline.tuning import neighbours, parameters_in

# Layouts of both factors, batches, split depths, edges, tails; parameters that choose tiles, clusters and turns.
HOPPER = {
    "rows and columns": (
        Case(
            TAIL,
            "torch.randn(200, 144)",
            "torch.randn(200, 272)",
            init="self.l = nn.Linear(144, 272); self.s = nn.Parameter(torch.randn(200, 1))",
        ),
        "bfloat16",
        CudaParameters(products=2, shape=128128, clusters=2, turns=2),
    ),
    "lanes side by side": (
        Case("return x.t() @ y", "torch.randn(136, 264)", "torch.randn(136, 328)"),
        "float16",
        CudaParameters(products=2, shape=256192, turns=1),
    ),
    "a third of lanes side by side": (
        Case("return x @ y", "torch.randn(400, 136)", "torch.randn(136, 392)"),
        "float16",
        CudaParameters(products=2, shape=192192, clusters=2, turns=1),
    ),
    "left alone lies by lanes": (
        Case("return x.t() @ y.t() + 1", "torch.randn(72, 160)", "torch.randn(136, 72)"),
        "bfloat16",
        CudaParameters(products=2, shape=128224, clusters=2, turns=1),
    ),
    "batches": (
        Case(
            "return torch.einsum('bqhd,bkhd->bhqk', x, y) * 0.5",
            "torch.randn(2, 40, 3, 72)",
            "torch.randn(2, 56, 3, 72)",
        ),
        "bfloat16",
        CudaParameters(products=2, shape=64064, few=0),
    ),
    "a depth in parts": (
        Case("return (x @ y).relu()", "torch.randn(24, 1096)", "torch.randn(1096, 72)"),
        "float16",
        CudaParameters(products=2),
    ),
    "parts of a wide tile": (
        Case(
            "return F.gelu(self.l(x), approximate='tanh')",
            "torch.randn(136, 840)",
            "torch.randn(1)",
            init="self.l = nn.Linear(840, 264)",
        ),
        "bfloat16",
        CudaParameters(products=2, shape=128256, clusters=1, turns=1),
    ),
    "parts of a pair": (
        Case(
            "return self.g(x).sigmoid() * self.h(x)",
            "torch.randn(72, 1096)",
            "torch.randn(1)",
            init="self.g = nn.Linear(1096, 72); self.h = nn.Linear(1096, 72)",
        ),
        "float16",
        CudaParameters(products=2, shape=128128, clusters=1, turns=1),
    ),
    "added up in memory": (
        Case("return (x @ y).relu()", "torch.randn(136, 1096)", "torch.randn(1096, 200)"),
        "bfloat16",
        CudaParameters(products=2, shape=128256, clusters=2, turns=1),
    ),
    "three groups, a bias and a residual": (
        Case(
            "return F.relu(self.l(x)) + y",
            "torch.randn(2, 200, 144)",
            "torch.randn(2, 200, 424)",
            init="self.l = nn.Linear(144, 424)",
        ),
        "bfloat16",
        CudaParameters(products=2, shape=192192, clusters=2, turns=1),
    ),
    "a convolution of one place": (
        Case(
            "return self.c(x).relu()",
            "torch.randn(3, 40, 8, 24)",
            "torch.randn(1)",
            init="self.c = nn.Conv2d(40, 72, 1)",
        ),
        "bfloat16",
        CudaParameters(products=2),
    ),
    "rows of several images": (
        Case(
            "return F.linear(F.layer_norm(x, (128,)).transpose(1, 2), y).relu()",
            "torch.randn(2, 40, 128)",
            "torch.randn(72, 40)",
        ),
        "float16",
        CudaParameters(products=2),
    ),
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)


@pytest.mark.parametrize("name", HOPPER)
def test_hopper_products(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, dtype, parameters = HOPPER[name]
    fp, plan = drafted(name, halved(case, dtype), parameters, "tma_load")
    assert "tma_window_map<" not in plan.candidate.source
    assert "cluster_pointer" in plan.candidate.source or "parts" not in name
    assert "tma_sum<8><<<" in plan.candidate.source or "added up" not in name
    assert "tma_store" in plan.candidate.source
    if name == "a depth in parts":
        assert ratio_on_two_devices(for_hopper(plan), fp, tmp_path, monkeypatch) < RATIO
    else:
        assert ratio(for_hopper(plan), fp, tmp_path) < RATIO


def test_many_parts_are_added_up_by_a_kernel_of_their_own(tmp_path: Path) -> None:
    """More than eight are many; an emulated device has room for four."""
    case, dtype, parameters = HOPPER["added up in memory"]
    fp, plan = drafted("many", halved(case, dtype), parameters, "tma_load")
    source = plan.candidate.source.replace("parts > 8", "parts > 3")
    many = for_hopper(replace(plan, candidate=replace(plan.candidate, source=source)))
    assert "parts > 3 ? 1 : parts" in source
    assert ratio(many, fp, tmp_path) < RATIO


def test_a_norm_that_a_product_reads_transposed_lies_as_its_rows_do() -> None:
    """But not where windows read it: neighbours along their lanes are to lie side by side."""
    norm = "F.layer_norm(x, (128,)).transpose(1, 2)"
    for body, schedule in ((f"{norm} @ y", "row"), (f"F.conv1d({norm}, self.w, padding=1) + y[0, 0, 0]", "column")):
        case = Case(
            f"return {body}",
            "torch.randn(2, 40, 128)",
            "torch.randn(2, 40, 72)",
            init="self.w = nn.Parameter(torch.randn(64, 128, 3))",
        )
        _, plan = drafted("norm", halved(case, "bfloat16"), CudaParameters(products=2))
        assert plan.schedules[0] == schedule


def test_a_factor_of_codes_lies_as_these_do(tmp_path: Path) -> None:
    case = Case(
        "s = self.t.float()[self.a.int()].view(4, -1) * y.float()[:4, None];"
        "i = torch.stack((self.c >> 4, self.c & 15), -1);"
        "v = self.t.float()[i.int()].view(-1, 16) * s.view(-1, 1); return x @ v.to(x.dtype).view(48, -1).t()",
        "torch.randn(64, 64)",
        "torch.randn(192)",
        init="self.register_buffer('c', torch.randint(0, 256, (48 * 32,), dtype=torch.uint8)); "
        "self.register_buffer('a', torch.randint(0, 16, (192,), dtype=torch.uint8)); "
        "self.t = nn.Parameter(torch.randn(16))",
    )
    fp, plan = drafted("codes", halved(case, "bfloat16"), CudaParameters(products=2))
    assert "*>(&part0_arg_p[" in plan.candidate.source  # terms side by side
    assert ratio(plan, fp, tmp_path) < RATIO


def test_weights_that_a_product_uses_once_are_computed_in_it(tmp_path: Path) -> None:
    """Experts of tokens, in four bits: their codes are read, and the powers of two that blocks are scaled by."""
    case = Case(
        "q = self.c[y]; v = torch.stack((self.t[(q & 15).long()], self.t[(q >> 4).long()]), -1).view(6, 2, 24, 2, 32);"
        "w = torch.ldexp(v, self.e[y].int()[..., None] - 127).view(6, 2, 24, 64);"
        "return torch.einsum('teoi,ti->teo', w, x)",
        "torch.randn(6, 64).bfloat16()",
        "torch.randint(0, 5, (6, 2))",
        init="self.register_buffer('c', torch.randint(0, 256, (5, 24, 32), dtype=torch.uint8)); "
        "self.register_buffer('e', torch.randint(120, 130, (5, 24, 2), dtype=torch.uint8)); "
        "self.register_buffer('t', torch.randn(16).bfloat16())",
    )
    fp, plan = drafted("experts", case, CudaParameters(products=2), "rk_exp2_whole", regions=2)
    assert ratio(plan, fp, tmp_path) < RATIO


@pytest.mark.parametrize(("name", "dtype"), [("filters", "bfloat16"), ("parts", "float16")])
def test_windows_and_odd_sizes(name: str, dtype: str, tmp_path: Path) -> None:
    """What the copy engine cannot read goes through registers; here by `mma.sync`, as on older GPUs."""
    fp, plan = drafted(name, halved(PRODUCTS[name], dtype), CudaParameters(products=2), "multiply_" + dtype)
    assert ratio(plan, fp, tmp_path) < RATIO


def test_one_text_serves_sizes_that_the_copy_engine_cannot_read(tmp_path: Path) -> None:
    body = "return torch.relu(x @ y) + self.b"
    even, odd = (
        functional(
            name,
            halved(
                Case(
                    body,
                    f"torch.randn({m}, {k})",
                    f"torch.randn({k}, {n})",
                    init=f"self.b = nn.Parameter(torch.randn({n}))",
                ),
                "bfloat16",
            ),
        )
        for name, m, n, k in (("even", 72, 136, 64), ("odd", 71, 135, 67))
    )
    assert even.graph_key == odd.graph_key
    plan = write(even, CudaParameters(products=2))
    assert plan is not None and "tma_load" in plan.candidate.source
    for fp in (even, odd):
        assert ratio(plan, fp, tmp_path) < RATIO


def test_factors_that_are_computed_are_rounded_as_tensors_are(tmp_path: Path) -> None:
    """Tensor cores take sixteen bits, so that what stands before a product is stored in these."""
    case = Case("return (x.relu() + 1) @ (y * 2).t()", "torch.randn(40, 72)", "torch.randn(48, 72)")
    fp, plan = drafted("computed", halved(case, "float16"), CudaParameters(products=2), "tma_load", regions=3)
    assert ratio(plan, fp, tmp_path) < RATIO


def test_sums_find_room_where_a_product_has_no_table(tmp_path: Path) -> None:
    """Of 128 rows: the sums of a block take more shared memory than the buffers of one pass."""
    case = Case(
        "return self.c(x).sigmoid()",
        "torch.randn(2, 72, 7, 9)",
        "torch.randn(1)",
        init="self.c = nn.Conv2d(72, 136, 1)",
    )
    fp, plan = drafted("pointwise", halved(case, "float16"), CudaParameters(products=2))
    assert ratio(plan, fp, tmp_path) < RATIO


# Weights of eight bits: a scale for each row, one for each block of 64 terms, and a zero point.
DEQUANTISED = {
    "rows": Case(
        "return F.linear(x, self.w.to(torch.bfloat16) * self.s) + self.b",
        "torch.randn(2, 9, 192).bfloat16()",
        "torch.randn(1)",
        init="self.register_buffer('w', torch.randint(-127, 128, (136, 192), dtype=torch.int8)); "
        "self.s = nn.Parameter(torch.rand(136, 1).bfloat16()); self.b = nn.Parameter(torch.randn(136).bfloat16())",
    ),
    "blocks": Case(
        "w = (self.w.to(torch.float16) - 128).view(72, 3, 64) * self.s; return x @ w.view(72, 192).t()",
        "torch.randn(16, 192).half()",
        "torch.randn(1)",
        init="self.register_buffer('w', torch.randint(0, 255, (72, 192), dtype=torch.uint8)); "
        "self.s = nn.Parameter(torch.rand(72, 3, 1).half())",
    ),
}


@pytest.mark.parametrize("name", DEQUANTISED)
def test_weights_of_eight_bits_are_dequantised_on_their_way(name: str, tmp_path: Path) -> None:
    fp, plan = drafted(f"eight_{name}", DEQUANTISED[name], CudaParameters(products=2, few=0), "Four<", regions=1)
    assert "multiply_" + fp.outputs[0].dtype in plan.candidate.source
    assert ratio(plan, fp, tmp_path) < RATIO


FOUR_BITS = Case(
    "q = torch.stack([self.w & 15, self.w >> 4], -1).view(75, 33, 64).half(); "
    "w = (q - self.z.half()[..., None]) * self.s[..., None]; return F.linear(x, w.view(75, -1))",
    "torch.randn(9, 2112).half()",
    "torch.randn(1)",
    init="self.register_buffer('w', torch.randint(0, 256, (75, 1056), dtype=torch.uint8)); "
    "self.register_buffer('z', torch.randint(5, 11, (75, 33), dtype=torch.uint8)); "
    "self.s = nn.Parameter(torch.rand(75, 33).half())",
)


def in_bfloat16(case: Case) -> Case:
    """The case with bfloat16 in the place of float16."""
    body, x, init = (text.replace(".half()", ".bfloat16()") for text in (case.body, case.x, case.init))
    return replace(case, body=body, x=x, init=init)


def with_zeros_of_sixteen(case: Case) -> Case:
    """The case with zeros of any number: a difference would be rounded twice in pairs of sixteen bits."""
    return replace(
        case,
        init=case.init.replace("torch.randint(5, 11, (75, 33), dtype=torch.uint8)", "torch.rand(75, 33).half() + 7"),
    )


# Few rows, whose other factor streams: a byte a term, two, half of one, odd edges, a split depth, batches; columns of
# a block.
FEW = {
    "rows": (DEQUANTISED["rows"], 64),
    "blocks": (DEQUANTISED["blocks"], 32),
    "parts": (
        halved(
            Case(
                "return F.gelu(self.l(x)) + y",
                "torch.randn(5, 3000)",
                "torch.randn(5, 75)",
                init="self.l = nn.Linear(3000, 75)",
            ),
            "bfloat16",
        ),
        64,
    ),
    "four bits": (FOUR_BITS, 40),
    "four bits of bfloat16": (in_bfloat16(FOUR_BITS), 40),
    "four bits and zeros of sixteen": (with_zeros_of_sixteen(FOUR_BITS), 40),
    "bytes and zeros": (
        Case(
            "w = (self.w.half() - self.z.half()[:, None]) * self.s[:, None]; return F.linear(x, w)",
            "torch.randn(9, 1056).half()",
            "torch.randn(1)",
            init="self.register_buffer('w', torch.randint(0, 256, (75, 1056), dtype=torch.uint8)); "
            "self.register_buffer('z', torch.randint(100, 150, (75,), dtype=torch.uint8)); "
            "self.s = nn.Parameter(torch.rand(75).half())",
        ),
        40,
    ),
    "batches": (
        halved(
            Case(
                "return torch.einsum('bqhd,bkhd->bhqk', x, y) * 0.5",
                "torch.randn(2, 24, 3, 136)",
                "torch.randn(2, 56, 3, 136)",
            ),
            "float16",
        ),
        32,
    ),
}


@pytest.mark.parametrize("name", FEW)
def test_products_of_few_rows_stream(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, columns = FEW[name]
    fp, plan = drafted(f"few_{name}", case, CudaParameters(products=2, few=columns), "_few")
    plan = for_hopper(plan, r"\w+\.numel\(\) <=[^;]*?\S+ % \d+ == 0")
    assert ratio_on_two_devices(plan, fp, tmp_path, monkeypatch) < RATIO


def test_a_round_drafts_no_text_twice() -> None:
    fp = functional("round", halved(Case("return x @ y", "torch.randn(64, 64)", "torch.randn(64, 64)"), "float16"))
    plans = list(first_plans(fp, CudaParameters()))
    assert [plan.library for plan in plans] == [()]


def test_tiles_follow_sizes_and_can_be_tuned() -> None:
    """Large products take large tiles, and few rows small ones; a text says its tile, and others are tried."""

    def best(rows: int, columns: int, depth: int, **more: Any) -> tuple[int, int]:
        shape = best_shape(Product(rows, columns, 1, depth, **({"slab": 16, "leaves": True} | more)))
        return shape.rows, shape.columns

    assert best(8192, 8192, 8192) == (128, 256)
    assert best(16, 8192, 8192)[0] == best(64, 4096, 4096)[0] == 64
    assert math.prod(best(1024, 1024, 1024)) < math.prod(best(1024, 1024, 16384))
    assert best(4096, 1152, 4608) == (192, 192)  # 132 tiles for 132 processors, not 160 or 288
    assert best(128, 28672, 8192) == (128, 224)  # 128 of 132, not 112
    assert best(4096, 1152, 4608, slab=64)[1] % 64 == 0
    wide = Shape(128, 192, alternate=True)  # sums of 384 columns leave no registers for what is made of them
    assert [Product(4096, 4608, 1, 1152, slab=16, tail=tail).fits(wide) for tail in (False, True)] == [True, False]
    deep = Product(256, 256, 1, 524288, slab=64, leaves=True)  # which clusters of eight would bring four times
    assert best_shape(deep).cluster == 2 and max(parts_of(best_shape(deep), deep)) > 8
    case, dtype, parameters = HOPPER["rows and columns"]
    plan = write(functional("tuned", halved(case, dtype)), parameters)
    assert plan is not None and parameters_in(plan.candidate.source, "cuda") == parameters
    others = list(neighbours(parameters, plan.schedules))
    assert {p.shape for p in others} > {128256, 64128} and {p.clusters for p in others} == {1, 2}


def test_the_model_of_tiles_is_fitted_to_the_rows_that_are_kept() -> None:
    """Its choice is within 2 % of the best way of each size, at the geometric mean."""
    bench = numbers.ROOT / "tests" / "bench" / "product_tiles.py"
    rows = numbers.ROOT / "docs" / "measured" / "product_tiles.jsonl.gz"
    done = subprocess.run([sys.executable, bench, "--fit", rows, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
    found = re.search(r"of the best way: geometric mean ([\d.]+)", done.stdout)
    assert found and float(found[1]) <= 1.02, done.stdout[-200:]


def test_a_text_for_many_tiles_splits_no_depth() -> None:
    """What would never run takes registers of what does."""
    few, many = (
        write(
            functional(
                name, halved(Case("return x @ y", f"torch.randn({rows}, 16)", "torch.randn(16, 2048)"), "float16")
            ),
            CudaParameters(products=2, shape=128256, clusters=1, turns=1),
        )
        for name, rows in (("few", 128), ("many", 2048))
    )
    assert few is not None and "const int parts = tma_parts(" in few.candidate.source
    assert many is not None and "parts = 1;" in many.candidate.source
    assert "const int parts = tma_parts(" not in many.candidate.source


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_sixteen_bit_products_compile(tmp_path: Path) -> None:
    """For two generations: the older one lacks the instructions of the newer one."""
    case, dtype, parameters = HOPPER["rows and columns"]
    plan = write(functional("compiled", halved(case, dtype)), parameters)
    assert plan is not None
    (tmp_path / "k.cu").write_text(plan.candidate.source)
    flags = " ".join(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("80", "90a"))
    flags += f" -O1 -std=c++17 -c -I{numbers.ROOT}/eval/include -I{numbers.FFI}/include"
    done = subprocess.run(
        ["nvcc", *flags.split(), "-o", tmp_path / "k.o", tmp_path / "k.cu"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "wgmma.mma_async instructions are serialized" not in done.stderr, done.stderr
