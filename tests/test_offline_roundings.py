"""What a module rounds to sixteen bits by its own words is rounded in kernels too, in C++ and in emulated CUDA.

Each case subtracts what it rounded from something near, so that a rounding left out is far beyond PyTorch's error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated_cuda
import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import RATIO, Case, functional, halved, worst_ratio

from rag_kernels.eval.records import FunctionalProblem, Problem
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.tuning import Parameters

CASES = {
    "points": Case(
        "a = x.to(torch.bfloat16).float(); b = (x * y).half().float(); return a - x, (b - x * y).abs() + 1e-6",
        "torch.randn(9, 64)",
        "torch.randn(64)",
    ),
    "round trips": Case(
        "return (x * 1000).to(torch.bfloat16).to(torch.int32), (x * 1e5).half().float(), (x > 0).half() - y, "
        "(x * 300).long().to(torch.bfloat16).float() - y, x.bfloat16().bool(), x.bfloat16().half().float() - x",
        "torch.randn(9, 65)",
        "torch.randn(65)",
    ),
    "numbers": Case(
        "return torch.full((7,), 0.1).to(torch.bfloat16).float() * x, torch.zeros(7).half().float() + y",
        "torch.randn(5, 7)",
        "torch.randn(7)",
    ),
    "rows": Case(
        "w = x.softmax(-1).to(torch.bfloat16).float(); return w.sum(-1) - 1, (w - x.softmax(-1)).square().sum(-1)",
        "torch.randn(6, 208)",
        "torch.randn(1)",
    ),
    "norms": Case(
        "n = (x * torch.rsqrt(x.square().mean(-1, True) + 1e-6)).to(torch.bfloat16); return n.float() * y - x * y",
        "torch.randn(6, 208)",
        "torch.randn(208)",
    ),
    "columns": Case(
        "return (x.half().float() - x).sum(0) + y * 1e-4, x.bfloat16().float().amax(0)",
        "torch.randn(130, 40)",
        "torch.randn(40)",
    ),
    "joined": Case(
        "a = torch.cat([x.bfloat16(), y.bfloat16()], 1); return a, a.float() - torch.cat([x, y], 1)",
        "torch.randn(6, 40)",
        "torch.randn(6, 24)",
    ),
    "sums by index": Case(
        "w = x.softmax(0).to(torch.bfloat16).float(); "
        "return x.new_zeros(5, 40).index_add(0, y, w - x.softmax(0)), w[y] - x.softmax(0)[y]",
        "torch.randn(64, 40)",
        "torch.randint(0, 5, (64,))",
    ),
    "scans": Case(
        "return (x.bfloat16().float() - x).cumsum(-1) + y * 1e-3",
        "torch.randn(4, 640)",
        "torch.randn(640)",
    ),
    "products": Case(
        "return (x.half() @ y.half().t()).float(), x.bfloat16().to(x.dtype) @ y.t() - x @ y.t()",
        "torch.randn(24, 64)",
        "torch.randn(40, 64)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_explicit_casts_round(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fp = functional(name.replace(" ", "_"), CASES[name])
    for build, parameters in ((numbers.build, CpuParameters()), (build_emulated, CudaParameters(threads=64))):
        monkeypatch.setattr(numbers, "build", build)
        plan = write(fp, parameters)
        assert plan is not None
        assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < RATIO


def test_operators_on_sixteen_bits_do_not_round() -> None:
    case = halved(Case("return (x * y - x) * 3", "torch.randn(8, 64)", "torch.randn(64)"), "bfloat16")
    plan = write(functional("implicit", case), CpuParameters())
    assert plan is not None and "rk_bfloat16" not in plan.candidate.source


OF_PRODUCTS = halved(  # whole numbers, so that every order of a sum gives the same
    Case(
        "a = x @ y; b = self.l(x); c = F.linear(x, self.l.weight * 3, self.l.bias); "
        "return (a + b).float(), (a - 0.7 * b).float(), torch.add(a, b, alpha=3).float(), (a + b - c).float().sum(1), "
        "torch.addmm(a, x, y.flip(0)).float()",
        "(5 * torch.randn(24, 64)).round()",
        "(5 * torch.randn(64, 40)).round()",
        init="self.l = nn.Linear(64, 40); nn.init.uniform_(self.l.weight, -9, 9); "
        "nn.init.uniform_(self.l.bias, -99, 99); [p.data.round_() for p in self.parameters()]",
    ),
    "bfloat16",
)


@pytest.mark.parametrize(
    ("build", "parameters"),
    [(numbers.build, CpuParameters(products=0)), (build_emulated, CudaParameters(products=2, tensor=0))],
    ids=["behind the library", "generated"],
)
def test_sums_of_products_round_as_the_graph_does(
    build: Callable[[str, Path], Any], parameters: Parameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of two products chose another key: both were rounded where they were stored, and their sum was not."""
    monkeypatch.setattr(numbers, "build", build)
    fp = functional("of_products", OF_PRODUCTS)
    plan = write(fp, parameters)
    assert plan is not None
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    torch.manual_seed(7)
    model, inputs = scope["Model"](), scope["get_inputs"]()
    ours = numbers.caller(plan, fp, tmp_path)(*numbers.tensors_of(fp, model, inputs))
    assert [torch.equal(a, b) for a, b in zip(ours, model(*inputs), strict=True)] == [True] * 5


COMPARED = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        one, other = x[:, :40] * x[:, 40:], y[:, :40] * y[:, 40:]
        mixed = one * 0.3 + other
        return torch.where(one - other == 0, 1.0, one), (mixed == mixed.amax(-1, keepdim=True)).float().sum(-1)

def get_inputs():
    return [torch.randn(64, 80), torch.randn(64, 80)]

def get_init_inputs():
    return []
"""


@pytest.mark.skipif(
    " fma " not in Path("/proc/cpuinfo").read_text(), reason="no fused multiply and add on this machine"
)
def test_what_is_compared_is_rounded_where_a_compiler_fuses_products_and_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nvcc does, and g++ without `-ffp-contract=off`."""
    monkeypatch.setattr(emulated_cuda, "FLAGS", emulated_cuda.FLAGS.replace("-O0", "-O2 -mfma -ffp-contract=fast"))
    fp = functionalize_here({"problem": Problem("compared", COMPARED), "threads": 2})
    assert isinstance(fp, FunctionalProblem)
    plan = write(fp, replace(numbers.SMALL, products=2))
    assert plan is not None and plan.candidate.tier == "kernel"
    module, outputs = build_emulated(plan.candidate.source, tmp_path), numbers.empty_outputs(fp)
    torch.manual_seed(5)
    x = torch.randn(64, 80)
    module.forward(x, x.clone(), *(v for _, v in fp.abi_constants), *outputs)
    assert outputs[0].eq(1).all() and outputs[1].eq(1).all()
    assert "__fmul_rn" in plan.candidate.source
