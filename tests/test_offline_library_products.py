"""Products that stay the library's on a CPU: those of fp16 in fp32, and other orders of dimensions as views."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, halved, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters

LINEAR = Case(
    "return F.relu(self.l(x * y)) + 1", "torch.randn(6, 24)", "torch.randn(24)", init="self.l = nn.Linear(24, 32)"
)
HALF = {
    "linear": LINEAR,
    "matmul": Case("return (x.relu() @ y).sigmoid(), x @ y", "torch.randn(20, 16)", "torch.randn(16, 24)"),
    "bmm": Case("return torch.bmm(x, y) * 2", "torch.randn(3, 20, 16)", "torch.randn(3, 16, 24)"),
    "einsum": Case("return torch.einsum('qc,chw->qhw', x, y).exp()", "torch.randn(9, 16)", "torch.randn(16, 5, 6)"),
    "convolution": Case(
        "return F.silu(self.c(x)) + y",
        "torch.randn(2, 16, 6, 7)",
        "torch.randn(7)",
        init="self.c = nn.Conv2d(16, 24, 3, padding=1)",
    ),
    "what a product of the library reads and another operator too": Case(
        "z = x.tanh(); return (z @ y).relu() @ y.t() + z, z", "torch.randn(20, 16)", "torch.randn(16, 24)"
    ),
}
TURNED = {
    "t": "return x.relu() @ (y * 2 + 1).t()",
    "transpose": "s = (y * 2)[None] + x[:2, None]; return torch.bmm(x[None].repeat(2, 1, 1), s.transpose(1, 2))",
    "permute": "s = (y * 2)[None] + x[:, None, :16]; return torch.matmul(x[:, None, :16], s.permute(0, 2, 1))",
    "read otherwise too": "s = y.relu(); return x @ s.t(), s * 2, s.t() + 1",
    "itself a result": "s = y.relu().t(); return x @ s, s",
}


@pytest.mark.parametrize("name", HALF)
def test_a_product_of_fp16_is_the_librarys_in_fp32(name: str, tmp_path: Path) -> None:
    fp = functional("half", halved(HALF[name], "float16"))
    plan = write(fp, CpuParameters(products=1))
    assert plan is not None and plan.library
    called = re.findall(r"= torch\.ops\.aten\.\w+\.\w+\((.*)\)", plan.candidate.source)
    assert called and all("_wide" in arguments for arguments in called)
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_a_product_of_bf16_stays_one() -> None:
    plan = write(functional("bf16", halved(LINEAR, "bfloat16")), CpuParameters(products=1))
    assert plan is not None and plan.library == ("linear",) and "_wide" not in plan.candidate.source


@pytest.mark.parametrize("products", [0, 1])
@pytest.mark.parametrize("name", TURNED)
def test_what_a_product_reads_in_another_order_is_stored_as_computed(name: str, products: int, tmp_path: Path) -> None:
    fp = functional("turned", Case(TURNED[name], "torch.randn(20, 16)", "torch.randn(24, 16)"))
    plan = write(fp, CpuParameters(products=products))
    assert plan is not None and plan.library
    assert re.search(r"= torch\.ops\.aten\.(t|transpose|permute)\.", plan.candidate.source)
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


@pytest.mark.parametrize(("width", "library"), [(20, ("conv2d",)), (96, ())])
def test_windows_over_narrow_rows_are_the_librarys(width: int, library: tuple[str, ...], tmp_path: Path) -> None:
    init = "self.c = nn.Conv2d(6, 6, 3, padding=1, groups=6)"
    fp = functional(
        "depthwise", Case("return F.relu(self.c(x)) + y", f"torch.randn(2, 6, 5, {width})", "torch.randn(1)", init=init)
    )
    plan = write(fp, CpuParameters(products=1))
    assert plan is not None and plan.library == library
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO
