"""Products and convolutions of sixteen bits on tensor cores: emulated to the end, and compiled for two generations.

The emulation has Hopper's copy engine, barriers, swizzled shared memory, descriptors and warpgroup products
(`hopper_emulation.h`), and the fragments of `mma.sync`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, halved, worst_ratio
from support.product_cases import CASES as PRODUCTS

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.compose import Plan, first_plans, write
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.cuda.gemm.wgmma_shape import SHAPES, best_shape, time_of
from rag_kernels.offline.graph.gates import with_gates_apart
from rag_kernels.offline.tuning import neighbours, parameters_in

RATIO = 1.1  # of PyTorch's own error, which rounds after every operator
TAIL = "return F.gelu(self.l(x)) * self.s + y, self.l(x).sigmoid()"

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


def drafted(
    name: str, case: Case, parameters: CudaParameters, *words: str, tier: str = "kernel", regions: int | None = None
) -> tuple[FunctionalProblem, Plan]:
    """Return a problem and its plan, a text of this tier with these words and so many regions."""
    fp = functional(name.replace(" ", "_"), case)
    plan = write(fp, parameters)
    assert plan is not None and plan.candidate.tier == tier and regions in (None, plan.regions)
    assert [word for word in words if word not in plan.candidate.source] == []
    return fp, plan


def ratio(plan: Plan, fp: FunctionalProblem, folder: Path) -> float:
    folder.mkdir(exist_ok=True)
    return worst_ratio(fp, numbers.caller(plan, fp, folder))


def ratio_on_two_devices(plan: Plan, fp: FunctionalProblem, folder: Path, patch: pytest.MonkeyPatch) -> float:
    """The same where a library runs on two devices: what was set on one is not set on the other."""
    call, found = numbers.caller(plan, fp, folder), list[float]()
    for device in ("0", "1"):
        patch.setenv("EMULATED_DEVICE", device)
        found.append(worst_ratio(fp, call))
    return max(found)


def limit(parameters: CudaParameters) -> float:
    """Return how far off PyTorch in fp32 a product may be: TF32 rounds both factors to eleven bits."""
    return 2**12 if parameters.tensor == 2 else RATIO


def for_hopper(plan: Plan, condition: str = "built") -> Plan:
    """The plan with a source that fails where the copy engine (or another kernel of this condition) cannot serve."""
    must = r'RK_CHECK(\1, "another kernel would serve"); if (\1) {'
    source, count = re.subn(rf"if \(({condition} && .*)\) \{{", must, plan.candidate.source)
    assert count
    return dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=source))


@pytest.mark.parametrize("name", HOPPER)
def test_hopper_products(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, dtype, parameters = HOPPER[name]
    fp, plan = drafted(name, halved(case, dtype), parameters, "tma_load")
    assert "tma_window_map<" not in plan.candidate.source
    if name == "a depth in parts":
        assert ratio_on_two_devices(for_hopper(plan), fp, tmp_path, monkeypatch) < RATIO
    else:
        assert ratio(for_hopper(plan), fp, tmp_path) < RATIO


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


# Factors whose rows begin anywhere, and two of TF32 whose lanes lie side by side: the copy engine gets copies.
COPIED = {
    "odd": (
        halved(
            Case(
                "return F.relu(self.l(x))", "torch.randn(131, 67)", "torch.randn(1)", init="self.l = nn.Linear(67, 133)"
            ),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "odd batches": (
        halved(Case("return x @ y", "torch.randn(2, 130, 35)", "torch.randn(2, 35, 129)"), "float16"),
        CudaParameters(products=2),
    ),
    "both by lanes, in batches": (
        Case("return x.transpose(1, 2) @ y", "torch.randn(3, 70, 130)", "torch.randn(3, 70, 137)"),
        CudaParameters(products=2, tensor=2),
    ),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_the_copy_engine_cannot_read_is_copied_for_it(name: str, tmp_path: Path) -> None:
    case, parameters = COPIED[name]
    fp, plan = drafted(name, case, parameters, regions=1)
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


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


# Few rows, whose other factor streams: a byte a term, two, odd edges, a split depth, batches; columns of a block.
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
    "batches": (
        halved(
            Case(
                "return torch.einsum('bqhd,bkhd->bhqk', x, y) * 0.5",
                "torch.randn(2, 24, 3, 72)",
                "torch.randn(2, 56, 3, 72)",
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


# Two products of one factor in one kernel: gate and up, alone and behind a split depth, in batches, in TF32.
PAIRS = {
    "gated": (
        halved(
            Case(
                "return F.silu(self.g(x)) * self.u(x) + y",
                "torch.randn(200, 144)",
                "torch.randn(200, 272)",
                init="self.g = nn.Linear(144, 272); self.u = nn.Linear(144, 272, bias=False)",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2, shape=128256, clusters=2, turns=1),
    ),
    "by lanes": (
        halved(
            Case("return (x @ y[0]).sigmoid() * (x @ y[1])", "torch.randn(72, 136)", "torch.randn(2, 136, 200)"),
            "float16",
        ),
        CudaParameters(products=2, shape=128128, clusters=1, turns=2),
    ),
    "few rows": (
        halved(
            Case(
                "return self.g(x).relu() * self.u(x)",
                "torch.randn(16, 1096)",
                "torch.randn(1)",
                init="self.g = nn.Linear(1096, 72); self.u = nn.Linear(1096, 72)",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "halves of one": (
        halved(
            Case(
                "g, u = self.l(x).chunk(2, -1); return F.gelu(g) * u + y",
                "torch.randn(72, 144)",
                "torch.randn(72, 200)",
                init="self.l = nn.Linear(144, 400)",
            ),
            "float16",
        ),
        CudaParameters(products=2, shape=128128, clusters=1, turns=2),
    ),
    "its own gate": (
        halved(
            Case("return F.glu(F.linear(x, y), -1)", "torch.randn(3, 40, 136)", "torch.randn(272, 136)"),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "tf32": (
        Case(
            "g, u = self.g(x), self.u(x); return torch.tanh(g) * u, g - u",
            "torch.randn(2, 70, 100)",
            "torch.randn(1)",
            init="self.g = nn.Linear(100, 136); self.u = nn.Linear(100, 136)",
        ),
        CudaParameters(products=2, tensor=2, clusters=2, shape=128128),
    ),
}


OTHERWISE = ("gated", "halves of one", "tf32")  # also without the copy engine: each type, and a factor in two halves


@pytest.mark.parametrize("name", PAIRS)
def test_two_products_of_one_factor_are_one_kernel(name: str, tmp_path: Path) -> None:
    case, parameters = PAIRS[name]
    fp, plan = drafted(name, case, parameters, "second_map", regions=1)
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)
    if name not in OTHERWISE:
        return
    other = re.sub(r"if \((built && .*)\) \{", "if (false) {", plan.candidate.source)
    plan = dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=other))
    assert ratio(plan, fp, tmp_path / "other") < limit(parameters)  # as at sizes that the copy engine cannot read


def test_a_product_in_pieces_that_are_no_gate_stays_one() -> None:
    no_gates = ("q, k = self.l(x).chunk(2, -1); return q.sin() + k", "z = self.l(x); return F.glu(z, -1), z.sum()")
    for body in (*no_gates, "return F.glu(self.l(x[:16]), -1)"):
        case = Case(f"{body}, y", "torch.randn(72, 144)", "torch.randn(1)", init="self.l = nn.Linear(144, 400)")
        fp = functional("pieces", case)
        assert with_gates_apart(fp) is fp


def test_products_that_share_nothing_have_kernels_of_their_own(tmp_path: Path) -> None:
    case = Case(
        "return self.a(x) * self.b(y) + self.b(x)",
        "torch.randn(72, 80)",
        "torch.randn(72, 80)",
        init="self.a = nn.Linear(80, 88); self.b = nn.Linear(80, 88)",
    )
    fp, plan = drafted("apart", case, CudaParameters(products=2), regions=3)
    assert plan.schedules == ("product",) and ratio(plan, fp, tmp_path) < 4


# Layouts of fp32 factors: terms side by side; lanes of the right factor, of the left one; edges, tails. Batches and
# depths in parts are what they are of sixteen bits.
TF32 = {
    "rows and columns": (
        Case(TAIL, "torch.randn(200, 144)", "torch.randn(200, 272)", init="self.l = nn.Linear(144, 272); self.s = 0.5"),
        CudaParameters(products=2, tensor=2, shape=256160, clusters=2, turns=1),
    ),
    "right lies by lanes": (
        Case(
            "return (x @ y).relu() + self.b",
            "torch.randn(150, 100)",
            "torch.randn(100, 328)",
            init="self.b = nn.Parameter(torch.randn(328))",
        ),
        CudaParameters(products=2, tensor=2, shape=128160, clusters=2, turns=1),
    ),
    "left lies by lanes": (
        Case("return x.t() @ y.t() + 1", "torch.randn(72, 160)", "torch.randn(136, 72)"),
        CudaParameters(products=2, tensor=2, shape=256128, turns=1),
    ),
}


@pytest.mark.parametrize("name", TF32)
def test_hopper_products_of_tf32(name: str, tmp_path: Path) -> None:
    case, parameters = TF32[name]
    fp, plan = drafted(name, case, parameters, "tma_load")
    assert 2**8 < ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


def test_one_product_of_tf32_is_rounded_to_nearest(tmp_path: Path) -> None:
    case = Case(
        "return x @ y.t(), self.c(x[:, :72].reshape(2, 8, 17, 9))",
        "torch.randn(34, 96)",
        "torch.randn(40, 96)",
        init="self.c = nn.Conv2d(8, 40, 3)",
    )
    parameters = CudaParameters(products=2, tensor=2)
    fp, plan = drafted("tf32", case, parameters, "multiply_tf32", tier="composed")
    # Rounding both factors to eleven bits: 2^-12 / sqrt(3) each at random, over fp32's error of a sum.
    assert 2**8 < ratio(plan, fp, tmp_path) < limit(parameters)


# Windows in one, two and three dimensions: strides, paddings and dilations that are not alike, tiles that span images,
# lines of 128, 64 and 32 bytes, pairs of blocks, a split depth, a filter that is turned around, fp32 as TF32.
WINDOWS = {
    "a tail": (
        halved(
            Case(
                "return F.gelu(self.c(x)) + y",
                "torch.randn(3, 72, 9, 7)",
                "torch.randn(3, 35, 4, 7)",
                init="self.c = nn.Conv2d(72, 35, (3, 5), (2, 1), (1, 2), (2, 1))",
            ),
            "float16",
        ),
        CudaParameters(products=2, shape=128128, clusters=2, turns=2),
    ),
    "eight places at once": (
        halved(
            Case(
                "return self.c(x).relu() * y",
                "torch.randn(2, 16, 6, 12)",
                "torch.randn(2, 72, 6, 12)",
                init="self.c = nn.ConvTranspose2d(16, 72, 3, padding=1)",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "three dimensions": (
        halved(
            Case(
                "return self.c(x)",
                "torch.randn(2, 32, 5, 6, 7)",
                "torch.randn(1)",
                init="self.c = nn.Conv3d(32, 40, 3, (1, 2, 1), (0, 1, 2))",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "one dimension": (
        halved(
            Case(
                "return self.c(x).sigmoid()",
                "torch.randn(2, 20, 70)",
                "torch.randn(1)",
                init="self.c = nn.Conv1d(20, 40, 5, 3, 2, 2)",
            ),
            "float16",
        ),
        CudaParameters(products=2, shape=128256, clusters=2, turns=1),
    ),
    "tf32": (
        Case(
            "return self.c(x)",
            "torch.randn(2, 24, 9, 11)",
            "torch.randn(1)",
            init="self.c = nn.Conv2d(24, 40, 3, padding=2)",
        ),
        CudaParameters(products=2, tensor=2),
    ),
    "phases": (
        Case(
            "return F.gelu(self.c(x) - y)",
            "torch.randn(3, 20, 5, 9)",
            "torch.randn(36, 1, 1)",
            init="self.c = nn.ConvTranspose2d(20, 36, (5, 3), (3, 2), (1, 2), (1, 1), dilation=(2, 1))",
        ),
        CudaParameters(products=2, tensor=2),
    ),
    "phases of one dimension of three": (
        halved(
            Case(
                "return self.c(x)",
                "torch.randn(2, 16, 3, 5, 4)",
                "torch.randn(1)",
                init="self.c = nn.ConvTranspose3d(16, 33, (2, 4, 3), (1, 2, 1), (0, 1, 1))",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2, shape=128128, clusters=2),
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_copy_engine_reads_windows(name: str, tmp_path: Path) -> None:
    case, parameters = WINDOWS[name]
    fp, plan = drafted(name, case, parameters, "tma_load_window", regions=1)
    beside = name in ("a tail", "eight places at once")  # a tensor as the result's, of which rows are loaded early
    assert ("const float* ahead" in plan.candidate.source) == beside
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


# The same over pieces of images, each loaded once for all places of the window: edges, dilation, phases of which a
# piece has both, slices of three dimensions with a stride, results stored one by one and several together.
PIECES = {
    "a piece and its surroundings": (
        Case(
            "return self.c(x)",
            "torch.randn(1, 12, 13, 35)",
            "torch.randn(1)",
            init="self.c = nn.Conv2d(12, 40, (5, 3), padding=(1, 2), dilation=(1, 2))",
        ),
        CudaParameters(products=2, tensor=2, turns=3),
    ),
    "both phases": (
        Case(
            "return F.gelu(self.c(x) - y)",
            "torch.randn(2, 20, 5, 19)",
            "torch.randn(70, 1, 1)",
            init="self.c = nn.ConvTranspose2d(20, 70, (5, 3), (3, 2), (1, 1), (1, 0), dilation=(2, 1))",
        ),
        CudaParameters(products=2, tensor=2, turns=3),
    ),
    "slices": (
        halved(
            Case(
                "return self.c(x).relu() * y",
                "torch.randn(2, 8, 5, 9, 16)",
                "torch.randn(2, 20, 2, 9, 16)",
                init="self.c = nn.Conv3d(8, 20, 3, (2, 1, 1), (0, 1, 1))",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2, turns=3),
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_images_come_with_their_surroundings(name: str, tmp_path: Path) -> None:
    case, parameters = PIECES[name]
    fp, plan = drafted(name, case, parameters, "tma_chunks", regions=1)
    assert ("wide_tail" in plan.candidate.source) == (name == "slices")
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


def test_a_round_drafts_no_text_twice() -> None:
    fp = functional("round", halved(Case("return x @ y", "torch.randn(64, 64)", "torch.randn(64, 64)"), "float16"))
    plans = list(first_plans(fp, CudaParameters()))
    assert [plan.library for plan in plans] == [()]


def test_tiles_follow_sizes_and_can_be_tuned() -> None:
    """Large products take large tiles, and few rows small ones; a text says its tile, and others are tried."""

    def best(rows: int, columns: int, depth: int) -> tuple[int, int]:
        shape = min(SHAPES, key=lambda shape: time_of(shape, rows, columns, 1, depth))
        return shape.rows, shape.columns

    assert best(8192, 8192, 8192) == (128, 256)
    assert best(16, 8192, 8192)[0] == 64
    assert math.prod(best(1024, 1024, 1024)) < math.prod(best(1024, 1024, 16384))
    filled = best_shape(4096, 1152, 1, 4608, slab=16)
    assert (filled.rows, filled.columns) == (256, 160)  # 128 tiles for 132 processors, not 160 or 288
    assert best_shape(4096, 1152, 1, 4608, slab=64).columns % 64 == 0
    assert best_shape(8192, 8192, 1, 8192, slab=16) == best_shape(8192, 8192, 1, 8192)
    case, dtype, parameters = HOPPER["rows and columns"]
    plan = write(functional("tuned", halved(case, dtype)), parameters)
    assert plan is not None and parameters_in(plan.candidate.source, "cuda") == parameters
    others = list(neighbours(parameters, plan.schedules))
    assert {p.shape for p in others} > {128256, 64128} and {p.clusters for p in others} == {1, 2}


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
