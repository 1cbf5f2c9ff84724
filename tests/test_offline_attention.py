"""Attention as one operator: which spellings are recognised, and that masks, layouts and dtypes give right numbers."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, halved, worst_ratio

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.codegen.kernel_function import whole_function
from rag_kernels.offline.compose import Plan, first_plans, kernels_source, planned, write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.fusion.regions import loops_named
from rag_kernels.offline.tuning import HOPPER, Parameters, starting_parameters

HEADS = "torch.randn(2, 4, 37, 48)"
# Several spellings in one module share a build. Each returned value is one attention.
CASES = {
    "operator": Case(
        "k = x[:, 1:3]; a = F.scaled_dot_product_attention(x, y, y); "
        "b = F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.3).transpose(1, 2).reshape(2, 37, -1); "
        "c = F.scaled_dot_product_attention(x, k, k, enable_gqa=True, is_causal=True); "
        "d = F.scaled_dot_product_attention(x, y, y, attn_mask=y[0, :1, :37, :1] > y[0, :1, :, 0]); "
        "e = F.scaled_dot_product_attention(x[:, :, :1], y, y, attn_mask=y[:, :1, :1, :1] * y[:1, :, :1, :1]); "
        "return a, b, c, d, e",
        HEADS,
        "torch.randn(2, 4, 53, 48)",
    ),
    "masks": Case(
        "s = (x @ y.transpose(-1, -2)) / 4.0; i, j = torch.arange(37), torch.arange(37)[:, None]; "
        "m = torch.ones(37, 37, dtype=torch.bool).tril(); a = F.softmax(s.masked_fill(~m, float('-inf')), dim=-1) @ y; "
        "m = torch.triu(torch.full((37, 37), float('-inf')), 1); b = torch.softmax(x * 0.3 @ y.mT + m, 3) @ y; "
        "c = torch.softmax((x @ y.mT).masked_fill((i > j) | (j - i >= 5), -1e9), -1) @ y; "
        "d = torch.softmax(torch.where((i <= j + 2) & (j < i + 9), x @ y.mT, -torch.inf), -1) @ y; "
        "g = torch.searchsorted(torch.tensor([9, 20, 31]), i, right=True); "  # of packed sequences
        "e = torch.softmax(torch.where((g == g[:, None]) & (i <= j), x @ y.mT, -torch.inf), -1) @ y; "
        "return a, b, c, d, e",
        HEADS,
        HEADS,
    ),
    "biases": Case(
        "i, j = torch.arange(37), torch.arange(37)[:, None]; slopes = 2.0 ** -torch.arange(1, 5); "
        "s = x @ x.mT * 0.25 + slopes[:, None, None] * (i - j); "
        "a = torch.softmax(s.masked_fill(i > j, torch.finfo(s.dtype).min), -1) @ x; "
        "b = torch.softmax(20.0 * torch.tanh(x @ x.mT / 20.0) + y, -1) @ x; "
        "c = torch.softmax((x @ x.mT).masked_fill(y[0] < -1, -1e9), -1) @ x; "
        "return a.transpose(1, 2).contiguous().view(2, 37, 192), b, c",
        HEADS,
        "torch.randn(37, 37)",
    ),
    "spellings": Case(
        "k = y[:, :, None].expand(2, 2, 2, 37, 48).reshape(2, 4, 37, 48); "
        "s = torch.einsum('bhqd,bhkd->bhqk', x * 0.25, k); w = torch.softmax(s, -1, dtype=torch.float32).to(x.dtype); "
        "a = torch.einsum('bhqk,bhkd->bqhd', w, k).reshape(2, 37, 192); "
        "r = y.repeat_interleave(2, dim=1); q, r = x.reshape(8, 37, 48), r.reshape(8, 37, 48); "
        "w = torch.softmax(torch.bmm(q, r.transpose(1, 2)) * 48 ** -0.5, dim=2); "
        "b = torch.bmm(w, r).view(2, 4, 37, 48).transpose(1, 2).reshape(2, 37, 192); "
        "c = torch.softmax(torch.baddbmm(q[:, :, :37], q, q.mT, alpha=0.2), -1) @ q; "
        "z = x[0, 0]; d = torch.softmax(z @ z.T / 3, -1) @ z; "
        "return a, b, c, d",
        HEADS,
        "torch.randn(2, 2, 37, 48)",
    ),
    "sixteen bits": Case(
        "a = F.scaled_dot_product_attention(x, y, y, is_causal=True); s = (x @ y.mT) * 0.2; "
        "b = torch.softmax(s.float(), -1).to(x.dtype) @ y; return a, b",
        f"{HEADS}.bfloat16()",
        f"{HEADS}.bfloat16()",
    ),
    "in a block": Case(
        "q, k, v = self.l(x).chunk(3, -1); q, k, v = [t.view(2, 19, 4, 16).transpose(1, 2) for t in (q, k, v)]; "
        "q = q * torch.cos(y) + torch.cat([-q[..., 8:], q[..., :8]], -1) * torch.sin(y); "
        "s = q @ k.transpose(-2, -1) * 0.25; "
        "return self.o((torch.softmax(s, -1) @ v).transpose(1, 2).reshape(2, 19, 64)) + x",
        "torch.randn(2, 19, 64)",
        "torch.randn(19, 16)",
        init="self.l = nn.Linear(64, 192); self.o = nn.Linear(64, 64)",
        tier="composed",
    ),
}
ATTENTIONS = {"operator": 5, "masks": 5, "biases": 3, "spellings": 4, "sixteen bits": 2, "in a block": 1}


def attention_of(name: str, case: Case) -> tuple[FunctionalProblem, Plan]:
    fp = functional(name.replace(" ", "_"), case)
    plan = write(fp, CpuParameters())
    assert plan is not None
    return fp, plan


@pytest.mark.parametrize("name", CASES)
def test_attention_is_one_operator_and_right(name: str, tmp_path: Path) -> None:
    fp, plan = attention_of(name, CASES[name])
    assert plan.candidate.tier == CASES[name].tier and "attention" in plan.schedules
    assert plan.candidate.source.count(": attention of ") == ATTENTIONS[name]
    assert not {"matmul", "bmm", "softmax"} & set(plan.library)
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


@pytest.mark.parametrize(
    "body",
    [
        "s = torch.softmax(x @ y.mT, -1); return s @ y, s",
        "s = x @ y.mT; return torch.softmax(s, -1) @ y, s",
        "return torch.softmax(x @ y.mT, -2) @ y",
        "s = x @ y.mT; return torch.softmax(s - s.mean(-1, keepdim=True), -1) @ y",
    ],
)
def test_what_is_no_attention_is_left(body: str) -> None:
    fp = functional("other", Case(body, "torch.randn(3, 24, 24)", "torch.randn(3, 24, 24)"))
    plan = write(fp, CpuParameters())
    assert plan is not None and "attention" not in plan.schedules


def test_rows_without_a_key_are_as_the_graph_has_them(tmp_path: Path) -> None:
    """NaN where the formula is written out, 0 where the library's operator is called."""
    body = "w = (x @ x.mT).masked_fill(y > 0, -torch.inf); "
    body += "return torch.softmax(w, -1) @ x, F.scaled_dot_product_attention(x, x, x, attn_mask=y <= 0)"
    fp, plan = attention_of(
        "empty", Case(body, "torch.randn(3, 9, 8)", "torch.tensor([1.0, -1.0])[torch.arange(9) // 8][:, None]")
    )
    assert plan.candidate.source.count(": attention of ") == 2
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    inputs = scope["get_inputs"]()
    written, operator = numbers.caller(plan, fp, tmp_path)(*inputs)
    for ours, eager in zip((written, operator), scope["Model"]()(*inputs), strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True)
    assert written[:, :8].isnan().all() and (operator[:, :8] == 0).all() and not written[:, 8:].isnan().any()


# Of the CUDA text one block after the other is emulated, so tensors are small. What is on Hopper alone cannot be.
EMULATED = {
    "fp32": Case(
        "p = torch.softmax(x[0, :, None, :2] * y[0, :, :2], -1).permute(2, 0, 1); "
        "m = torch.tril(torch.ones(37, 37)); s = (x @ y.mT) / 4.0 + p; "
        "return F.softmax(s.masked_fill(m == 0, float('-inf')), -1) @ y",
        "torch.randn(2, 37, 24)",
        "torch.randn(2, 37, 24)",
    ),
    "window, slopes and packed": Case(
        "i, j = torch.arange(70), torch.arange(70)[:, None]; s = x @ x.mT * 0.25 + y[:, None, None] * (i - j); "
        "g = torch.searchsorted(torch.tensor([9, 40, 41]), i); "
        "s = s.masked_fill((i > j) | (g != g[:, None]) | (j - i > 30), -torch.inf); return torch.softmax(s, -1) @ x",
        "torch.randn(1, 2, 70, 32)",
        "torch.randn(2)",
    ),
    "bf16": Case(
        "return F.scaled_dot_product_attention(x, y, y, is_causal=True).transpose(1, 2).reshape(1, 100, 64)",
        "torch.randn(1, 2, 100, 32).bfloat16()",
        "torch.randn(1, 2, 100, 32).bfloat16()",
    ),
    "fp16, rows at odd places": Case(
        "return torch.softmax(x @ y.mT * 0.2, -1) @ y",
        "torch.randn(1, 33, 44).half()",
        "torch.randn(1, 131, 44).half()",
    ),
    "capped": Case(
        "return torch.softmax(9.0 * torch.tanh(x @ y.mT / 9.0), -1) @ y",
        "torch.randn(1, 2, 37, 32).bfloat16()",
        "torch.randn(1, 2, 70, 32).bfloat16()",
    ),
    "few queries": Case(
        "return F.scaled_dot_product_attention(x, y, y, enable_gqa=True)",
        "torch.randn(1, 8, 1, 64).half()",
        "torch.randn(1, 2, 1500, 64).half()",
    ),
}


def emulated(plan: Plan, fp: FunctionalProblem, folder: Path) -> Callable[..., list[torch.Tensor]]:
    module = build_emulated(plan.candidate.source, folder)

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        outputs = numbers.empty_outputs(fp)
        module.forward(*tensors, *(value for _, value in fp.abi_constants), *outputs)
        return outputs

    return call


def test_a_width_is_cut_into_as_many_heads_as_the_module_has(tmp_path: Path) -> None:
    """At another width that would be heads of another length, for which the kernel is not: it refuses."""
    body = "q = torch.tanh(x + y).view(2, 24, 4, 16).transpose(1, 2); "
    body += "return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)"
    fp = functional("heads", Case(body, "torch.randn(2, 24, 64)", "torch.randn(64)"))
    plan = write(fp, CpuParameters())
    assert plan is not None and "attention" in plan.schedules
    forward = numbers.build(plan.candidate.source, tmp_path).forward
    x, y = torch.randn(3, 24, 64), torch.randn(64)
    forward(x, y, out := torch.full((3, 24, 64), math.nan))
    q = torch.tanh(x + y).view(3, 24, 4, 16).transpose(1, 2)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2))
    with pytest.raises(ValueError, match="this kernel needs"):
        forward(x[..., :32].contiguous(), y[:32], torch.empty(3, 24, 32))


@pytest.mark.parametrize("parameters", [CpuParameters(), CudaParameters()])
def test_what_is_a_number_is_known_before_a_kernel_is_printed(parameters: Parameters) -> None:
    """Texts are of loops as the planner leaves them: printing one changes nothing that another one reads."""
    body = "q = torch.tanh(x + y).view(2, 24, 4, 16).transpose(1, 2); return F.scaled_dot_product_attention(q, q, q)"
    fp = functional("heads", Case(body, "torch.randn(2, 24, 64)", "torch.randn(64)"))
    made = planned(fp, parameters)
    loops = [loop for region in made.regions for loop in loops_named(region)]
    assert {loop.size for loop in loops if loop.fixed} == {4, 16}
    before = [(loop, loop.leaves(), loop.fixed, loop.head, loop.along) for loop in loops]
    kernels_source([whole_function(fp, made.regions, made.lowered.results, made.specs)], parameters, "heads")
    assert [(loop, loop.leaves(), loop.fixed, loop.head, loop.along) for loop in loops] == before


@pytest.mark.parametrize("name", EMULATED)
def test_cuda_attention_is_right(name: str, tmp_path: Path) -> None:
    fp = functional(name.replace(" ", "_").replace(",", ""), EMULATED[name])
    plan = write(fp, CudaParameters(attention=1))
    assert plan is not None and plan.candidate.tier == "kernel"
    assert "attention" in plan.schedules and "product" not in plan.schedules
    assert worst_ratio(fp, emulated(plan, fp, tmp_path)) < numbers.RATIO


WIDE = Case("return torch.softmax(x @ y.mT / 12, -1) @ y", "torch.randn(1, 20, 144)", "torch.randn(1, 37, 144)")


@pytest.mark.parametrize("case", [EMULATED["fp32"], WIDE], ids=["queries kept", "queries in shared memory"])
def test_one_product_of_tf32_will_do_where_it_is_allowed(case: Case, tmp_path: Path) -> None:
    """Errors are those of factors with eleven bits, and of no fewer; PyTorch's own operator is exact even then."""
    for body, least, most in (
        (case.body, 2**6, 2**12),
        ("return F.scaled_dot_product_attention(x, y, y)", 0, numbers.RATIO),
    ):
        fp = functional("once", replace(case, body=body))
        plan = write(fp, CudaParameters(attention=1, tensor=2))
        assert plan is not None and "attention" in plan.schedules
        (folder := tmp_path / str(least)).mkdir()
        assert least < worst_ratio(fp, emulated(plan, fp, folder)) < most


@pytest.mark.parametrize("dtype", ["bfloat16", "half"])
def test_heads_too_wide_and_two_keys_are_products_around_a_softmax(dtype: str, tmp_path: Path) -> None:
    """Weights of wide heads are stored in sixteen bits, so that both products are the tensor cores'."""
    body = "z = x[..., :2, :24]; wide = F.scaled_dot_product_attention(x, y, y); "
    body += "return wide, F.scaled_dot_product_attention(z, z, z)"
    fp = functional("wide", Case(body, *[f"torch.randn(1, 2, 19, 264).{dtype}()"] * 2))
    plan = next(first_plans(fp, starting_parameters("cuda", HOPPER)))
    assert plan.candidate.tier == "kernel" and "attention" not in plan.schedules
    assert plan.candidate.source.count("rk::built_for_hopper(") == 2, plan.schedules
    assert worst_ratio(fp, emulated(plan, fp, tmp_path)) < numbers.RATIO


def test_a_mask_of_more_than_places_still_leaves_tiles_out_and_looks_up_once_for_a_row() -> None:
    fp = functional("packed", EMULATED["window, slopes and packed"])
    plan = write(fp, CudaParameters(attention=1))
    assert plan is not None and plan.schedules == ("attention", "point")
    score = plan.candidate.source.partition("const auto of_score")[2].partition("};")[0]
    ends = plan.candidate.source.partition("const auto of_first")[2].partition("const auto of_score")[0]
    assert score.count("!=") == 1 and ends.count("r0 +") == 1 and ends.count("r0 -") == 1, (ends, score)
    assert "* float(int(k0) - int(r0))" in score, score


@pytest.mark.parametrize("cuda", [False, True])
def test_numbers_of_a_batch_leave_tiles_of_keys_out(cuda: bool, tmp_path: Path) -> None:
    """Lengths of padded rows, from either end, beside other masks; one that stands for a large number is a score's."""
    case = Case(
        "j, i = torch.arange(141), torch.arange(37)[:, None]; n = y[:, None, None, None]; d = j < n - 2; "
        "a = F.scaled_dot_product_attention(x, self.k, self.k, attn_mask=d.expand(2, 1, 37, 141)); "
        "t = self.k.mT; b = torch.softmax((x @ t * 0.2).masked_fill((j >= n) | (j > i + 4), -torch.inf), -1) @ self.k; "
        "e = torch.softmax(torch.where((n - 30 <= j) & (i > -1), x @ t, -torch.inf), -1) @ self.k; "
        "w = torch.softmax((x @ t).masked_fill(j >= n, -1e9), -1) @ self.k; return a, b, e, w",
        "torch.randn(2, 4, 37, 48)",
        "torch.tensor([131, 1])",
        init="self.k = nn.Parameter(torch.randn(2, 4, 141, 48))",
    )
    fp = functional("lengths", case)
    plan = write(fp, CudaParameters(attention=1) if cuda else CpuParameters())
    assert plan is not None and plan.schedules == ("attention",)
    assert plan.candidate.source.count("int64_t limit0 = ") == (3 if cuda else 6)
    call = emulated(plan, fp, tmp_path) if cuda else numbers.caller(plan, fp, tmp_path)
    assert worst_ratio(fp, call) < numbers.RATIO


def test_a_bias_of_pairs_that_is_computed_for_all_heads_lies_keys_side_by_side() -> None:
    """Heads lay so, and of each sector that attention read it used one number of eight."""
    fp = functional("pairs", EMULATED["fp32"])
    plan = write(fp, CudaParameters(attention=1))
    score = plan.candidate.source.partition("const auto of_score")[2].partition("};")[0] if plan else ""
    assert " + k0];" in score and "k0 * " not in score


def masked(dtype: str, share: str) -> Case:
    """Of three rows one has this share of the least number at every key, as masks that are added leave it."""
    mask = f"torch.finfo(torch.{dtype}).min * {share}, torch.randn(20, 20)"
    return Case(
        "return torch.softmax((x @ x.mT) * 0.5 + y, -1) @ x",
        f"torch.randn(1, 20, 32).to(torch.{dtype})",
        f"torch.where(torch.arange(20)[:, None] % 3 == 0, {mask}).to(torch.{dtype})",
    )


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize(
    ("dtype", "share"), [("float32", "1"), ("float32", "(0.9 + 0.1 * torch.rand(20, 20))"), ("bfloat16", "1")]
)
def test_rows_of_the_least_number_are_as_the_graph_has_them(dtype: str, share: str, cuda: bool, tmp_path: Path) -> None:
    """Where all are alike weights are equal, else the largest has all: no score may become infinite on the way."""
    fp = functional("least", masked(dtype, share))
    plan = write(fp, CudaParameters(attention=1) if cuda else CpuParameters())
    assert plan is not None and plan.schedules == ("attention",)
    call = emulated(plan, fp, tmp_path) if cuda else numbers.caller(plan, fp, tmp_path)
    assert worst_ratio(fp, call) < numbers.RATIO


def test_the_text_for_hopper_is_written_where_it_serves() -> None:
    """Keys and values have widths of their own: a tile has as many keys as fit beside both."""
    body = "return F.scaled_dot_product_attention(x, x, y, is_causal=True)"
    for rows, wide, values, keys in (
        (256, 128, 128, 128),
        (256, 192, 128, 128),
        (256, 192, 192, 96),
        (256, 64, 256, 64),
    ):
        fp = functional("hopper", Case(body, *(f"torch.randn(2, 4, {rows}, {n}).half()" for n in (wide, values))))
        plan = write(fp, CudaParameters(attention=2))
        assert plan is not None and f"D = {wide}, E = {values}, KEYS = {keys}," in plan.candidate.source
    for rows, wide, values in ((256, 36, 36), (16, 128, 128), (256, 128, 36)):
        fp = functional("elsewhere", Case(body, *(f"torch.randn(2, 4, {rows}, {n}).half()" for n in (wide, values))))
        plan = write(fp, CudaParameters(attention=2))
        assert plan is not None and "_hopper<<<" not in plan.candidate.source


def test_a_linear_layer_reads_heads_side_by_side() -> None:
    """So that the copy engine brings it attention's result; eager would copy it for that."""
    case = CASES["in a block"]
    fp = functional("block", halved(case, "bfloat16"))
    plan = write(fp, CudaParameters(products=2))
    assert plan is not None and plan.candidate.source.count(" return rk::built_for_hopper(") == 2


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")
def test_the_text_compiles(tmp_path: Path) -> None:
    """For two generations: the older one lacks the instructions of the newer one."""
    body = "i = torch.arange(256); s = (x @ x.mT).masked_fill(i > i[:, None], -torch.inf); "
    body += "return torch.softmax(s * y, -1) @ x"
    fp = functional("compiled", Case(body, "torch.randn(2, 4, 256, 64).bfloat16()", "torch.randn(4, 1, 1).bfloat16()"))
    plan = write(fp, CudaParameters(attention=2))
    assert plan is not None and "_hopper<<<" in plan.candidate.source
    source = tmp_path / "k.cu"
    source.write_text(plan.candidate.source)
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("80", "90a")]
    include = [f"-I{numbers.ROOT}/eval/include", f"-I{numbers.FFI}/include"]
    command = ["nvcc", "-std=c++17", *targets, *include, "-c", source, "-o", tmp_path / "k.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_queries_of_another_type_leave_keys_to_be_copied(tmp_path: Path) -> None:
    """Keys and values come by sixteen bytes where queries are rounded to fewer, as over a cache that was widened."""
    body = "return torch.softmax((x.to(y.dtype) @ y.mT) * 0.5, -1) @ y"
    fp = functional("widened", Case(body, "torch.randn(2, 5, 32).bfloat16()", "torch.randn(2, 70, 32)"))
    plan = write(fp, CudaParameters(attention=1))
    assert plan is not None and plan.schedules == ("attention",) and "if (false)" not in plan.candidate.source
    assert worst_ratio(fp, emulated(plan, fp, tmp_path)) < numbers.RATIO


@pytest.mark.parametrize("parameters", [CpuParameters(), numbers.SMALL], ids=["cpp", "cuda"])
def test_two_softmaxes_of_one_product_are_drafted(
    parameters: Parameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soft mixture of experts: only one of them is behind the product, and no draft was made."""
    if isinstance(parameters, CudaParameters):
        monkeypatch.setattr(numbers, "build", build_emulated)
    body = "s = torch.einsum('bnd,dk->bnk', x, y); a = torch.einsum('bnd,bnk->bkd', x, s.softmax(1)); "
    fp = functional("soft", Case(body + "return s.softmax(-1) @ a", "torch.randn(2, 24, 16)", "torch.randn(16, 8)"))
    plan = write(fp, parameters)
    assert plan is not None
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) <= numbers.RATIO
