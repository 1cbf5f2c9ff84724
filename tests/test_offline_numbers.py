"""The offline writer on the CPU, to the end: functionalize, write, compile, run, compare with the module in fp64."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.generated_kernels import CASES, RATIO, Case, caller, functional, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters


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


def test_special_values_come_through_as_in_pytorch(tmp_path: Path) -> None:
    calls = "torch.relu(x), x.amax(1), torch.exp(x), torch.tanh(x), torch.erf(x), torch.log(x), torch.sigmoid(x)"
    fp = functional("special", Case(f"return {calls}, y * 2", "torch.randn(6, 8)", "torch.randn(8)"))
    plan = write(fp, CpuParameters())
    assert plan is not None
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, 1e-40, 100.0, -100.0, -1.0]).repeat(6, 1)
    x[1:] = x[1:].nan_to_num(nan=2.0)
    x[2:] = x[2:].clamp(-90, 88)
    ours = caller(plan, fp, tmp_path)(x, torch.zeros(8))
    theirs = [torch.relu(x), x.amax(1), torch.exp(x), torch.tanh(x), torch.erf(x), torch.log(x), torch.sigmoid(x)]
    for a, b in zip(ours, theirs, strict=False):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-30, equal_nan=True)


def test_vector_math_is_within_a_few_ulp(tmp_path: Path) -> None:
    names = ["exp", "tanh", "erf", "log", "log1p", "expm1"]
    body = "return " + ", ".join(f"torch.{name}(x)" for name in names) + ", y * 2"
    fp = functional("ulps", Case(body, "torch.rand(200, 500)", "torch.randn(3)"))
    plan = write(fp, CpuParameters())
    assert plan is not None
    call = caller(plan, fp, tmp_path)
    for low, high in ((-0.9, 0.9), (-80.0, 80.0), (1e-6, 1e-3), (0.5, 2.0)):
        x = torch.rand(200, 500) * (high - low) + low
        for name, ours in zip(names, call(x, torch.zeros(3)), strict=False):
            exact = getattr(torch, name)(x.double())
            ulp = torch.abs(ours.double() - exact) / (torch.abs(exact) * 2.0**-23).clamp_min(1e-45)
            assert float(ulp[exact.isfinite()].max()) < 4, (name, low, high)


def test_powers_that_gradients_have_need_no_logarithm(tmp_path: Path) -> None:
    body = "return x ** 1.0 * 2, x.pow(-2), x ** 3 + y ** -0.5, x.abs() ** 0.5, x.round().long() ** 1"
    fp = functional("powers", Case(body, "torch.randn(9, 40)", "torch.rand(40) + 0.5"))
    plan = write(fp, CpuParameters())
    assert plan is not None and not re.search(r"\bpow\(|rk_pow", plan.candidate.source)
    assert worst_ratio(fp, caller(plan, fp, tmp_path)) < RATIO
