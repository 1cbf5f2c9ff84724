"""Two products of one factor in one kernel, and products of TF32, on emulated tensor cores."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.emulated_texts import heads
from support.generated_kernels import Case, functional, halved
from support.tensor_core_drafts import RATIO, TAIL, drafted, for_hopper, limit, ratio

from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.graph.gates import with_gates_apart


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)


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


def test_the_backward_of_a_gate_computes_each_product_once(tmp_path: Path) -> None:
    """Eight products in seven kernels: the gate's two in one, which stores both for what the gradient's product has
    behind it; what is read along its lines and across them is stored once.
    """
    body = (
        "g, u = x @ self.g.t(), x @ self.u.t(); s = torch.sigmoid(g.float()); a = (g.float() * s).to(x.dtype); "
        "dh = y @ self.d; dw = y.t() @ (a * u); du = dh * a; "
        "dg = (dh.float() * u.float() * (s * (1 + g.float() * (1 - s)))).to(x.dtype); "
        "return dg @ self.g + du @ self.u, dg.t() @ x, du.t() @ x, dw"
    )
    init = "self.g, self.u = (nn.Parameter(torch.randn(136, 264) * 264**-0.5) for _ in 'gu'); "
    init += "self.d = nn.Parameter(torch.randn(264, 136) * 136**-0.5)"
    case = halved(Case(body, "torch.randn(72, 264)", "torch.randn(72, 264)", init=init), "bfloat16")
    fp, plan = drafted("gate_backward", case, CudaParameters(products=2), "second_map", regions=7)
    assert ratio(for_hopper(plan), fp, tmp_path) < RATIO
    other = re.sub(r"if \((built && .*)\) \{", "if (false) {", plan.candidate.source)
    plan = dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=other))
    assert ratio(plan, fp, tmp_path / "other") < RATIO


def test_a_product_with_its_bias_is_stored_by_the_first_that_has_it(tmp_path: Path) -> None:
    """And what is read across its lines alone lies as it is computed: two products, and one kernel for both others."""
    body = "z, h = self.l(x), y @ self.l.weight.t(); return z.sigmoid() * h, (z.tanh() * 0.5).t() @ x, z.exp().t() @ y"
    init = "self.l = nn.Linear(264, 136)"
    case = halved(Case(body, "torch.randn(72, 264)", "torch.randn(72, 264)", init=init), "bfloat16")
    fp, plan = drafted("bias", case, CudaParameters(products=2), regions=5)
    assert sum("products" in head for head in heads(plan.candidate.source)) == 3
    assert ratio(for_hopper(plan), fp, tmp_path) < RATIO


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
def test_matrices_that_batches_look_up_are_read_where_they_lie(dtype: str, tmp_path: Path) -> None:
    """By the copy engine, whose place along the tensor each batch computes; no copy is made of them."""
    body = "i = y.long(); low = torch.bmm(x, self.a[i].transpose(1, 2)) * self.s[i][:, None, None]; "
    body += "return torch.bmm(low, self.b[i].mT) + x.sum(), torch.bmm(x, self.c[i - 1]), x[:, :8] @ self.d[i].mT"
    init = "self.a, self.b, self.c, self.d, self.s = [nn.Parameter(torch.randn(*n)) for n in "
    init += "((3, 16, 136), (3, 200, 16), (3, 136, 72), (3, 72, 136), (3,))]"
    case = Case(body, "torch.randn(5, 40, 136)", "torch.tensor([2., 0., 1., 2., 0.])", init=init)
    parameters = CudaParameters(products=2, tensor=2 if dtype == "tf32" else 1)
    case = case if dtype == "tf32" else halved(case, dtype)
    fp, plan = drafted("gathered", case, parameters, "right_place0")
    assert ("* const from_right = d_arg_p" in plan.candidate.source) == (dtype != "tf32")  # by the kernel for few rows
    made = [head for head in heads(plan.candidate.source) if "products" not in head and "rows of" not in head]
    assert made == [] and ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)
    other = re.sub(r"if \((built && .*)\) \{", "if (false) {", plan.candidate.source)
    plan = dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=other))
    assert ratio(plan, fp, tmp_path / "other") < limit(parameters)


def test_tiles_of_pairs_have_whole_lines_of_both_where_lanes_lie_side_by_side(tmp_path: Path) -> None:
    """Half a tile of 64 columns is half a line, which the copy engine brings whole."""
    case = Case("return (x @ y[0]).sigmoid() * (x @ y[1])", "torch.randn(72, 136)", "torch.randn(2, 136, 72)")
    asked = CudaParameters(products=2), CudaParameters(products=2, shape=64064, clusters=1)
    plans = [drafted("narrow", halved(case, "bfloat16"), p, "second_map", regions=1) for p in asked]
    assert all(" COLUMNS = 128, DEPTH = 64, STAGES" in plan.candidate.source for _, plan in plans)
    fp, plan = plans[0]
    assert ratio(for_hopper(plan), fp, tmp_path) < RATIO


@pytest.mark.parametrize("clusters", [1, 2])
def test_two_products_of_matrices_that_are_looked_up_are_one_kernel(clusters: int, tmp_path: Path) -> None:
    """The experts of blocks of rows; of two blocks that share rows each brings the matrices of one product."""
    case = Case(
        "i = y.long(); return F.silu(torch.bmm(x, self.g[i])) * torch.bmm(x, self.u[i + 1])",
        "torch.randn(3, 264, 72)",
        "torch.tensor([1., 0., -2.])",
        init="self.g, self.u = (nn.Parameter(torch.randn(3, 72, 136)) for _ in 'gu')",
    )
    parameters = CudaParameters(products=2, shape=128128, clusters=clusters, turns=2)
    fp, plan = drafted("experts", halved(case, "bfloat16"), parameters, "second_place0", regions=1)
    assert ratio(for_hopper(plan), fp, tmp_path) < RATIO


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


@pytest.mark.parametrize("by_registers", [False, True])
def test_tensor_cores_add_up_no_more_than_some_thousand_terms_of_tf32(by_registers: bool, tmp_path: Path) -> None:
    """What they cut off of a sum leans towards zero, and grows with its terms."""
    right = ("y", "torch.rand(16640, 40)") if by_registers else ("y.t()", "torch.rand(40, 16640)")
    case = Case(f"return x @ {right[0]}", "torch.rand(24, 16640)", right[1])
    fp, plan = drafted("long", case, CudaParameters(products=2, tensor=2, few=0), "CHAIN")
    whole = re.sub(r"const int parts = tma_\w+\(.*\);", "const int parts = 1;", for_hopper(plan).candidate.source)
    plan = dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=whole))
    x, y = torch.rand(24, 16640), torch.rand(16640, 40) if by_registers else torch.rand(40, 16640)
    exact = x.double() @ (y if by_registers else y.t()).double()
    [got] = numbers.caller(plan, fp, tmp_path)(x, y)
    assert -2e-5 < float((got / exact - 1).mean()) < -1e-6  # -4e-5 by tensor cores alone


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
