"""The offline writer on the CPU, to the end: functionalize, write, compile, run, compare with the module in fp64."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels
from support.generated_kernels import CASES, RATIO, Case, caller, functional, worst_ratio

from rag_kernels.offline.codegen import cpp_functions
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters


@pytest.mark.parametrize("name", CASES)
def test_generated_kernel_is_as_exact_as_pytorch(name: str, tmp_path: Path) -> None:
    fp = functional(name, CASES[name])
    plan = write(fp, CpuParameters())
    assert plan is not None
    assert plan.candidate.tier == CASES[name].tier
    assert worst_ratio(fp, caller(plan, fp, tmp_path)) < RATIO


def test_every_tuning_parameter_keeps_the_numbers(tmp_path: Path) -> None:
    fp = functional("tuned", CASES["long_rows"])
    odd = CpuParameters(block=96, tile=33, lanes=7, keep=False, schedule="dynamic")
    plan = write(fp, odd)
    assert plan is not None
    assert worst_ratio(fp, caller(plan, fp, tmp_path)) < RATIO


def test_exponentials_that_are_put_in_order_keep_what_is_below_the_smallest_normal_number(tmp_path: Path) -> None:
    body = (
        "p = torch.softmax(x, -1); v, i = torch.topk(p, 30, -1); return i, torch.exp2(x).argsort(1), (v * y).log(), p"
    )
    rows = "torch.stack([-(torch.randperm(40) * 0.3 + 86.0) for _ in range(9)]).index_fill(1, torch.tensor([7]), 0.0)"
    fp = functional("ordered", Case(body, rows, "torch.ones(1)"))
    plan = write(fp, CpuParameters())
    assert plan is not None
    assert worst_ratio(fp, caller(plan, fp, tmp_path)) <= 1, "indices among them"
    unordered = write(
        functional("unordered", Case("return x.exp() + y", "torch.randn(9)", "torch.randn(9)")), CpuParameters()
    )
    assert unordered is not None and ", bool low" not in unordered.candidate.source


def test_a_kernel_serves_other_shapes_of_the_same_graph(tmp_path: Path) -> None:
    body = "return torch.softmax(x * 0.37, -1) + y"
    small = functional("a", Case(body, "torch.randn(5, 100)", "torch.randn(100)"))
    large = functional("b", Case(body, "torch.randn(9, 301)", "torch.randn(301)"))
    assert small.graph_key == large.graph_key
    plan = write(small, CpuParameters())
    assert plan is not None
    assert worst_ratio(large, caller(plan, large, tmp_path)) < RATIO


def test_a_composed_candidate_serves_other_sizes(tmp_path: Path) -> None:
    """Its tensors, and the shapes of what the library keeps, are told by those that it is given."""
    case = Case(
        "z = torch.fft.fft(x.flatten(1)).real.reshape(x.shape); e = torch.eye(x.shape[1], x.shape[2]); "
        "return z.softmax(1) * y, x[:, 1:] - x[:, :-1], x.flip(0) + e, F.pad(x, (2, 1))",
        "torch.randn(4, 6, 40)",
        "torch.randn(40)",
    )
    plan = write(functional("composed", case), CpuParameters(short=0))
    assert plan is not None and plan.candidate.tier == "composed" and "eye" not in plan.library
    call = caller(plan, functional("composed", case), tmp_path)
    for sizes in ((4, 6, 40), (5, 7, 33), (1, 2, 9)):
        shape = ", ".join(map(str, sizes))
        other = replace(case, x=f"torch.randn({shape})", y=f"torch.randn({sizes[-1]})")
        assert worst_ratio(functional("other", other), call) < RATIO


ONES = [
    *"exp exp2 expm1 tanh erf erfc erfinv log log1p log2 log10 tan asin acos atan sinh cosh asinh acosh atanh".split()
]
ONES += ["relu", "sigmoid", "lgamma"]
TWOS = ["pow", "atan2", "hypot"]
CALLS = [*(f"torch.{name}(x)" for name in ONES), *(f"torch.{name}(x, y)" for name in TWOS)]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[torch.Tensor]]:
    """Return a kernel of all functions that vectors take, of x in rows and y."""
    fp = functional("functions", Case(f"return {', '.join(CALLS)}, x.amax(1)", *["torch.rand(60, 512)"] * 2))
    plan = write(fp, CpuParameters())
    assert plan is not None and not plan.library
    return caller(plan, fp, tmp_path_factory.mktemp("functions"))


def test_special_values_come_through_as_in_pytorch(functions: Callable[..., list[torch.Tensor]]) -> None:
    numbers = [float("nan"), float("inf"), 0.0, 1e-45, 1e-40, 0.5, 1.0, 1.5, 2.0, 3.0, 9.5, 88.9, 100.0, 2.0**25, 3e38]
    numbers += [-x for x in numbers]
    x = torch.tensor(numbers)[:, None].repeat(2, 512)
    y = torch.zeros(60, 512)
    y[:, : len(numbers)] = torch.tensor(numbers)
    y[:, 100:] = torch.arange(412) / 16 - 9.0
    ours = functions(x, y)
    for name, a in zip([*CALLS, "x.amax(1)"], ours, strict=True):
        b = eval(name, {"torch": torch, "x": x.double(), "y": y.double()}).float()
        b = (
            torch.where(b.abs() < 1.67e-38, b * 0, b)
            if name.startswith(("torch.exp(", "torch.exp2", "torch.sig"))
            else b
        )
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1.5e-45, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
        if f"rk_{name[6:].split('(')[0]}" in cpp_functions.TEXTS:
            assert torch.equal(a.signbit()[a == 0], b.signbit()[a == 0]), name


def test_vector_math_is_within_a_few_ulp(functions: Callable[..., list[torch.Tensor]]) -> None:
    torch.manual_seed(3)
    for low, high in ((-0.9, 0.9), (-80.0, 80.0), (1e-6, 1e-3), (0.5, 2.0), (0.9, 1.1), (1e-44, 1e-37), (1e3, 1e9)):
        x, y = torch.rand(60, 512) * (high - low) + low, torch.randn(60, 512) * 3
        for name, ours in zip(CALLS, functions(x, y), strict=False):
            exact = eval(name, {"torch": torch, "x": x.double(), "y": y.double()})
            if ("lgamma" in name and low < 0) or ("exp" in name and low < -20):
                continue  # lgamma has roots below zero, and powers that are not normal numbers are zero
            ulp = torch.abs(ours.double() - exact) / (torch.abs(exact) * 2.0**-23).clamp_min(1.5e-45)
            found = exact.float().isfinite() & exact.isfinite()
            assert float(ulp[found].max()) < 4 if found.any() else True, (name, low, high)


def test_powers_that_gradients_have_need_no_logarithm(tmp_path: Path) -> None:
    body = "return x ** 1.0 * 2, x.pow(-2), x ** 3 + y ** -0.5, x.abs() ** 0.5, x.round().long() ** 1"
    fp = functional("powers", Case(body, "torch.randn(9, 40)", "torch.rand(40) + 0.5"))
    plan = write(fp, CpuParameters())
    assert plan is not None and not re.search(r"\bpow\(|rk_pow", plan.candidate.source)
    assert worst_ratio(fp, caller(plan, fp, tmp_path)) < RATIO


def test_on_a_gpu_roots_need_no_branch_and_numbers_divide_as_pytorch_does_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roots are rounded as libm's, of what is small, zero, infinite or negative too; x / 3 is x * (1 / 3)."""
    monkeypatch.setattr(generated_kernels, "build", build_emulated)
    fp = functional("roots", Case("return x.sqrt() * y, x / 3 * y", "torch.rand(9, 40)", "torch.ones(1)"))
    plan = write(fp, CudaParameters())
    assert plan is not None and "* (1.0f / float(" in plan.candidate.source
    special = [0.0, -0.0, 1e-45, 7e-39, 1.2e-38, 9e-31, 1.1e-30, 0.1, 2.0, 3.999999, 3e38]
    special += [float("inf"), -1.0, float("nan")]
    x = torch.cat([torch.tensor(special), torch.rand(346) * torch.logspace(-44, 38, 346)]).reshape(9, 40)
    roots, thirds = caller(plan, fp, tmp_path)(x, torch.ones(1))
    torch.testing.assert_close(roots, x.double().sqrt().float(), rtol=0, atol=0, equal_nan=True)
    assert roots[0, 1].signbit() and not roots[0, 0].signbit()
    torch.testing.assert_close(thirds, x * torch.tensor(1 / 3), rtol=0, atol=0, equal_nan=True)
