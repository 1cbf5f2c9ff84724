"""What is computed once: states between library calls, few costly elements, costly values below windows.

And products of few columns, einsums with dimensions that are not named, sines of every number.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import SMALL, Case, functional, worst_ratio

from rag_kernels.offline.codegen.math_prelude import CPP, used
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.tuning import Parameters

CELL = "z = h @ self.w; a, b = (z + x).chunk(2, -1); c = c * torch.sigmoid(a) + torch.tanh(b) * y; h = torch.tanh(c); "
RECURRENT = Case(
    f"h, c = y, y; {CELL * 4}return h, c",
    "torch.randn(6, 64)",
    "torch.randn(6, 32)",
    init="self.w = nn.Parameter(torch.randn(32, 64) * 0.2)",
    tier="composed",
)
THIN = {
    "no named rest": "torch.einsum('...ij,...jk->...ik', x, y), torch.einsum('...j,jk', x, y)",
    "broadcast rest": "torch.einsum('...ij,jk->k...i', x, y), torch.einsum('bij,bij->bi', x, x * 2), "
    "torch.einsum('bij,bj->b', x, x[:, 0])",
    "float64": "x.double() @ y[:, :2].double(), torch.einsum('bij,bij->j', x.double(), x.double())",
    "logarithms of a sigmoid": "*torch.ops.aten.log_sigmoid_forward(x * 20), F.logsigmoid(y)",
    "few columns": "x @ y[:, :2], F.linear(x, y[:, :3].t()), torch.matmul(x[..., :3], y[:3])",
}


def test_a_state_is_stored_and_not_computed_from_the_first_step_on(tmp_path: Path) -> None:
    fp = functional("recurrent", RECURRENT)
    plan = write(fp, CpuParameters(products=0))
    assert plan is not None and plan.candidate.tier == "composed"
    calls = [line for line in plan.candidate.source.splitlines() if line.strip().startswith("kernels.part_")]
    assert max(line.count(",") for line in calls[1:]) <= calls[1].count(",") + 1
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


@pytest.mark.parametrize("parameters", [CpuParameters(), SMALL])
def test_what_rows_come_to_is_stored_once_whoever_reads_it(
    parameters: Parameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        "p = torch.softmax(x * y, -1); a = p >= 0.1 * p.amax(-1, keepdim=True); n = a.sum(-1, keepdim=True);"
        "least = torch.where(a, p, p + 2).amin(-1, keepdim=True);"
        "k = torch.where(a & (p > least) & (n > 1), torch.zeros_like(p), p); k = k / k.sum(-1, keepdim=True);"
        "return k.argmax(-1), k.amax(-1)"
    )
    fp = functional("sampler", Case(body, "torch.randn(2, 40000)", "torch.rand(40000)"))
    plan = write(fp, parameters)
    assert plan is not None and plan.regions <= 14
    if parameters is SMALL:
        monkeypatch.setattr(numbers, "build", build_emulated)
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


def test_what_windows_come_to_is_read_across_by_the_nest_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The windows' nest stores along their images, where each thread has sixteen bytes."""
    case = Case(
        "c = self.c(F.pad(x, (3, 0))); a, b = (x + c).transpose(1, 2).chunk(2, -1); return F.silu(a) * b * y, c",
        "torch.randn(2, 48, 64)",
        "torch.randn(24)",
        init="self.c = nn.Conv1d(48, 48, 4, groups=48)",
    )
    fp = functional("windows", case)
    plan = write(fp, replace(SMALL, products=2))
    assert plan is not None and plan.schedules[0] == "column" and "arg_tile[" in plan.candidate.source
    monkeypatch.setattr(numbers, "build", build_emulated)
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


def test_a_shift_in_time_is_read_where_it_lies(tmp_path: Path) -> None:
    body = "p = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1); e = torch.cat([x, torch.ones(3, 2, 8)], 1); "
    fp = functional(
        "shift", Case(f"{body}return x * y + p * (1 - y) + e[:, 2:]", "torch.randn(3, 7, 8)", "torch.rand(8)")
    )
    plan = write(fp, CpuParameters())
    assert plan is not None and plan.regions == 1
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


def test_what_a_max_pool_gives_back_is_written_where_the_result_lies(tmp_path: Path) -> None:
    back = "torch.ops.aten.max_pool2d_with_indices_backward(p * y, x, [3, 3], [2, 1], [1, 1], [1, 1], False, i)"
    body = f"p, i = F.max_pool2d(x, 3, (2, 1), 1, return_indices=True); return {back}"
    fp = functional("back", Case(body, "torch.randn(2, 3, 8, 10)", "torch.randn(10)"))
    plan = write(fp, CpuParameters())
    assert plan is not None and plan.regions == 3, "the pool, zeros, and what joins them"
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


def test_pieces_of_a_stack_are_one_nest_in_which_each_state_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "h = y; out = [h := torch.tanh(h * 0.5 + x[:, t].sum(1)) for t in range(9)]; return torch.stack(out, 1), h"
    fp = functional("states", Case(body, "torch.randn(4, 9, 3, 16)", "torch.randn(4, 16)"))
    for parameters in (CpuParameters(), SMALL):
        if parameters is SMALL:
            monkeypatch.setattr(numbers, "build", build_emulated)
        plan = write(fp, parameters)
        assert plan is not None and plan.regions == 1 and "stack, " in plan.candidate.source
        if parameters is SMALL:
            source = plan.candidate.source
            assert source.count(" = rk_tanh(") == 9 * source.count("__global__"), "once in each kernel"
        assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


@pytest.mark.parametrize("name", THIN)
def test_thin_products_and_pairs_of_results_are_ours(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fp = functional(name.replace(" ", "_"), Case(f"return {THIN[name]}", "torch.randn(5, 3, 7)", "torch.randn(7, 3)"))
    for parameters in (CpuParameters(), SMALL):
        if parameters is SMALL:
            monkeypatch.setattr(numbers, "build", build_emulated)
        plan = write(fp, parameters)
        assert plan is not None and not plan.library
        assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO


@pytest.mark.parametrize("parameters", [CpuParameters(), SMALL], ids=["cpp", "cuda"])
def test_few_costly_elements_and_values_below_windows_are_computed_once(parameters: Parameters) -> None:
    table = Case("return x * torch.cos(2.0 ** torch.arange(64)) + y", "torch.randn(2048, 64)", "torch.randn(64)")
    body = "return F.avg_pool1d(x.exp(), 5, 1), x.log1p().unfold(1, 4, 1).amax(-1) + y"
    below = Case(body, "torch.rand(6, 40)", "torch.rand(6, 37)")
    for case, name, regions in ((table, "pow", 1 if parameters is SMALL else 2), (below, "exp", 3)):
        plan = write(functional(name, case), parameters)
        assert plan is not None and plan.regions == regions
        if parameters is not SMALL:  # a launch costs more than so few powers; and there is a second kernel, of vectors
            assert plan.candidate.source.partition("tuning parameters")[2].count(f"rk_{name}(") == 1


def test_sines_of_every_number(tmp_path: Path) -> None:
    body = "return torch.sin(x), torch.cos(x), torch.sin(y) * 2"
    case = Case(body, "torch.randn(64, 33) * 2.0 ** torch.arange(-120, 124, 4)[:33]", "torch.randn(1001) * 3")
    fp = functional("waves", case)
    plan = write(fp, CpuParameters())
    assert plan is not None
    call = numbers.caller(plan, fp, tmp_path)
    assert worst_ratio(fp, call) <= numbers.RATIO
    ends = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, 3.4e38, -9810.68]
    x = torch.tensor(ends).repeat(64, 5)[:, :33].contiguous()
    sine, cosine, _ = call(x, torch.zeros(1001))
    assert torch.equal(sine.isnan(), x.sin().isnan()) and torch.equal(sine.signbit()[:, :2], x.signbit()[:, :2])
    assert torch.allclose(sine, x.double().sin().float(), equal_nan=True, rtol=3e-7)
    assert torch.allclose(cosine, x.double().cos().float(), equal_nan=True, rtol=3e-7)


def test_remainders_are_exact(tmp_path: Path) -> None:
    """By powers of two and other numbers, with quotients of every size; of 32 bits too, computed in double."""
    body = "return *(torch.fmod(x, by) for by in (1.0, 0.5, y)), torch.remainder(x, 0.3), torch.fmod(x, 2**-140)"
    fp = functional("rests", Case(body, "torch.randn(40, 40)", "torch.rand(40) + 1"))
    plan = write(fp, CpuParameters())
    assert plan is not None and plan.candidate.tier == "kernel"
    ends = [0.0, -0.0, float("inf"), float("nan"), 1e-45, 1.2e-38, 3.4e38, 2.0**27 + 1, 2.0**23 - 0.5, 7.0]
    row = torch.tensor([*ends, *(-e for e in ends), *(torch.randn(20) * 2.0 ** torch.arange(-100, 100, 10))])
    x = row[:, None].expand(40, 40).contiguous()
    found = numbers.caller(plan, fp, tmp_path)(x, row)
    wanted = [torch.fmod(x.double(), by).float() for by in (1.0, 0.5, row.double())]
    for got, exact in zip((*found[:3], found[4]), (*wanted, torch.fmod(x.double(), 2.0**-140).float()), strict=True):
        assert torch.equal(got.nan_to_num(7.0), exact.nan_to_num(7.0)) and torch.equal(got.isnan(), exact.isnan())
        assert torch.equal(got.signbit()[~got.isnan()], exact.signbit()[~exact.isnan()])
    places = Case(
        "return torch.remainder(x, y), torch.div(x, y, rounding_mode='trunc'), torch.div(x, 9, rounding_mode='trunc')",
        "torch.randint(-9, 9, (5, 40), dtype=torch.int32)",
        "torch.randint(1, 9, (40,), dtype=torch.int32)",
    )
    fp = functional("places", places)
    plan = write(fp, CpuParameters())
    assert plan is not None and {"rk_rest(", "rk_quotient("} <= set(re.findall(r"rk_\w+\(", plan.candidate.source))
    least = torch.iinfo(torch.int32).min
    numerators = torch.tensor([least, least + 1, -least - 1, 7, -7] * 8, dtype=torch.int32).repeat(5, 1)
    divisors = torch.tensor([1, 3, -3, least, -least - 1, 2, 46341, 7] * 5, dtype=torch.int32)
    rests, *quotients = numbers.caller(plan, fp, tmp_path)(numerators, divisors)
    assert torch.equal(rests, numerators % divisors)
    for found, by in zip(quotients, (divisors, 9), strict=True):
        assert torch.equal(found, torch.div(numerators, by, rounding_mode="trunc"))


def test_functions_of_every_number_have_no_undefined_behaviour(tmp_path: Path) -> None:
    """Bit patterns of every sign and exponent, by the sanitizer that the judge takes."""
    names = [name for name in CPP if "(float x)" in CPP[name][0] and not name.endswith(("float16", "e4m3", "e5m2"))]
    text = used(CPP, names)
    sums = " + ".join(f"{name}(x)" for name in names if not name.endswith(("_log_normal", "_abs")))
    loop = "for (uint32_t bits = 0; bits < 0xffff0000u; bits += 30011) { float x; __builtin_memcpy(&x, &bits, 4); "
    source = f"#include <cmath>\n#include <cstdint>\n{text}int main() {{ volatile double y; {loop}y = {sums}; }} }}\n"
    (tmp_path / "all.cpp").write_text(source)
    flags = "-O1 -std=c++20 -fsanitize=undefined -fno-sanitize=shift-base -fno-sanitize-recover=all".split()
    subprocess.run(["g++", *flags, tmp_path / "all.cpp", "-o", tmp_path / "all"], check=True)
    done = subprocess.run([tmp_path / "all"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
