"""Gradients of attention without its weights in memory: what is recognised, and right numbers of CUDA, emulated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.kept import kept_workers
from support.run_nodes import run_nodes

from rag_kernels.eval.build.step_form import pulled_arguments
from rag_kernels.eval.records import FunctionalProblem, Problem, Value
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.training_step import training_step
from rag_kernels.offline.compose import Plan, write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.graph.softmax_gradients import sites_by_rows, with_row_totals

Q, K = "torch.randn(2, 4, 70, 24)", "torch.randn(2, 4, 53, 24)"
# Several attentions in one module share a build.
CASES = {
    "bf16": (
        "a = F.scaled_dot_product_attention(x, y, y[..., :16]); "
        "b = F.scaled_dot_product_attention(x, z, z, is_causal=True, enable_gqa=True, scale=0.3); return a, b",
        f"{Q}.bfloat16()",
        f"{K}.bfloat16()",
        "torch.randn(2, 2, 70, 24).bfloat16()",
    ),
    "fp16, masks and a row without a key": (
        "i, j = torch.arange(70)[:, None], torch.arange(53); m = (j + 9 > i) & (j != 7); "
        "a = F.scaled_dot_product_attention(x, y, y, attn_mask=m); "
        "w = torch.softmax((x @ y.mT * 0.2).masked_fill(j > i, float('-inf')), -1); "
        "s = torch.where(i > 60, torch.finfo(x.dtype).min, x @ y.mT); return a, w @ y, torch.softmax(s, -1) @ y",
        "torch.randn(2, 2, 70, 20).half()",
        "torch.randn(2, 2, 53, 20).half()",
    ),
    "fp32, window, slopes and a cap": (
        "i, j = torch.arange(70)[:, None], torch.arange(70); s = (x @ x.mT) * 0.2; t = 2.0 ** -torch.arange(1, 3); "
        "a = torch.softmax((s + t[:, None, None] * (j - i)).masked_fill((j > i) | (j < i - 30), -torch.inf), -1) @ x; "
        "b = torch.softmax(5.0 * torch.tanh(x @ y.mT / 5.0), -1) @ y; return a, b",
        "torch.randn(1, 2, 70, 24)",
        "torch.randn(1, 2, 37, 24)",
    ),
    "bf16, wide heads": (
        "return F.scaled_dot_product_attention(x, y, y[..., :136], is_causal=True)",
        "torch.randn(1, 2, 70, 200).bfloat16()",
        "torch.randn(1, 2, 53, 200).bfloat16()",
    ),
    "bf16 in a block": (
        "q, k, v = self.l(x).chunk(3, -1); q, k, v = [t.view(2, 37, 2, 32).transpose(1, 2) for t in (q, k, v)]; "
        "o = F.scaled_dot_product_attention(q, k, v, is_causal=True); "
        "return self.o(o.transpose(1, 2).reshape(2, 37, 64)) + x",
        "torch.randn(2, 37, 64).bfloat16()",
    ),
}
# For the kernels on wgmma, from 64 rows on: rows of one and two lines in shared memory, products beside sums and not.
HOPPER = {
    "bf16, causal and grouped": (
        "a = F.scaled_dot_product_attention(x, y, y[..., :16], is_causal=True); "
        "return a, F.scaled_dot_product_attention(z, z[:, :2], z[:, 2:], is_causal=True, enable_gqa=True)",
        "torch.randn(1, 2, 150, 32).bfloat16()",
        "torch.randn(1, 2, 150, 32).bfloat16()",
        "torch.randn(1, 4, 70, 128).bfloat16()",
    ),
    "bf16, wide heads": (
        "return F.scaled_dot_product_attention(x, y, y, is_causal=True)",
        "torch.randn(1, 1, 150, 256).bfloat16()",
        "torch.randn(1, 1, 150, 256).bfloat16()",
    ),
    "fp16, a window": (
        "i, j = torch.arange(130)[:, None], torch.arange(100); s = (x @ y.mT) * 0.1 - 0.01 * (i - j); "
        "s = s.masked_fill((j > i + 9) | (j < i - 60), float('-inf')); return torch.softmax(s.float(), -1).half() @ y",
        "torch.randn(1, 2, 130, 80).half()",
        "torch.randn(1, 2, 100, 80).half()",
    ),
}
# What a module rounds on the way to a product is stored so, with numbers and repeated heads behind it.
ROTATED = (
    "t = torch.arange(37)[:, None] * 2.0 ** -torch.arange(8).repeat(2); c, s = t.cos().bfloat16(), t.sin().bfloat16(); "
    "turn = lambda z: z * c + torch.cat((-z[..., 8:], z[..., :8]), -1) * s; "
    "return F.scaled_dot_product_attention(turn(x), turn(y), y, is_causal=True, enable_gqa=True)"
)
LAYERS = "self.l = nn.Linear(64, 192).bfloat16(); self.o = nn.Linear(64, 64).bfloat16()"
ATTENTIONS = {"bf16": 2, "fp16, masks and a row without a key": 3, "fp32, window, slopes and a cap": 2}


def step_of(body: str, *inputs: str, init: str = "pass") -> FunctionalProblem:
    """Record a training step of a module with this body."""
    text = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nclass Model(nn.Module):\n"
    text += f"    def __init__(self):\n        super().__init__(); {init}\n"
    text += f"    def forward(self, {', '.join('xyz'[: len(inputs)])}):\n        {body}\n"
    text += f"def get_inputs(): return [{', '.join(inputs)}]\ndef get_init_inputs(): return []\n"
    with kept_workers() as workers:
        return functionalize(training_step(Problem("attention", text)), workers=workers)


def given_to(fp: FunctionalProblem) -> list[torch.Tensor]:
    torch.manual_seed(1)
    scale = [0.2 if a.role == "parameter" else 1.0 for a in fp.tensors]
    return [
        (torch.randn(a.spec.shape) * s).to(getattr(torch, a.spec.dtype)) for a, s in zip(fp.tensors, scale, strict=True)
    ]


def in_double(fp: FunctionalProblem, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a problem's nodes in float64 throughout."""

    def wide(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(wide, value))
        return "torch.float64" if value in ("torch.float32", "torch.bfloat16", "torch.float16") else value

    nodes = [
        replace(n, args=tuple(map(wide, n.args)), kwargs=tuple((k, wide(v)) for k, v in n.kwargs)) for n in fp.nodes
    ]
    return run_nodes(replace(fp, nodes=tuple(nodes)), [x.double() if x.is_floating_point() else x for x in given])


def emulated(
    plan: Plan, fp: FunctionalProblem, given: Sequence[torch.Tensor], folder: Path, *, top: float = 1.0
) -> list[torch.Tensor]:
    """Run both functions of a composed step, with its kernels emulated and the saved maxima times `top`."""
    assert fp.step is not None
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec(plan.candidate.source, names)
    names["kernels"] = build_emulated(names["KERNELS"], folder)
    pulled, constants = pulled_arguments(fp.arguments, fp.step), dict(fp.constants)
    outputs, saved = names["forward"](*given[pulled:], **constants)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    order = re.findall(r"\w+", next(line for line in plan.candidate.source.splitlines() if line.endswith(" = saved")))
    saved = tuple(x * top if "_top" in name else x for name, x in zip(order, saved, strict=False))
    found = names["backward"](tuple(given[:pulled]), saved, *given[pulled:], **constants)
    return [*outputs, *(found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_attention_are_right_and_no_weights_are_stored(name: str, tmp_path: Path) -> None:
    body, *inputs = CASES[name]
    fp = step_of(body, *inputs, init=LAYERS if "block" in name else "pass")
    plan = write(fp, CudaParameters(attention=1, products=2))
    assert plan is not None and not plan.library and "attention" in plan.schedules
    many = ATTENTIONS.get(name, 1)
    assert plan.candidate.source.count(": attention of ") == many, "the backward does without"
    kernels = 3 if "wide" in name else 2 * many
    assert plan.candidate.source.count(": sums along ") == kernels, "keys and values in one kernel, queries in another"
    given = given_to(fp)
    assert_right(fp, emulated(plan, fp, given, tmp_path), given)


def test_queries_that_are_saved_and_rotated_are_multiplied_once(tmp_path: Path) -> None:
    """Heads are read where the product for the gradients lies."""
    body = "t = torch.arange(37)[:, None] * 2.0 ** -torch.arange(32).repeat(2); "
    body += "q = (x @ self.w).view(1, 37, 2, 64).transpose(1, 2); "
    body += "turned = q * t.cos() + torch.cat((-q[..., 32:], q[..., :32]), -1) * t.sin(); "
    body += "return turned.sigmoid() @ turned.mT"
    fp = step_of(body, "torch.randn(37, 72)", init="self.w = nn.Parameter(torch.randn(72, 128))")
    plan = write(fp, CudaParameters(products=2))
    assert plan is not None and not plan.library
    forward = plan.candidate.source.partition("void part_0_kernel")[0]
    assert re.findall(r"// (\w+): products of", forward) == ["mm"]
    given = given_to(fp)
    assert_right(fp, emulated(plan, fp, given, tmp_path), given)


def test_factors_behind_rotations_are_multiplied_as_the_module_rounds_them(tmp_path: Path) -> None:
    fp = step_of(ROTATED, "torch.randn(2, 4, 37, 16).bfloat16()", "torch.randn(2, 2, 37, 16).bfloat16()")
    plan = write(fp, CudaParameters(attention=1, products=2))
    assert plan is not None and not plan.library
    source = plan.candidate.source
    assert source.count("using Number = __nv_bfloat16;") == 2 and "attend::run<__nv_bfloat16" in source
    assert_right(fp, emulated(plan, fp, given := given_to(fp), tmp_path), given)


@pytest.mark.parametrize("name", HOPPER)
def test_gradients_by_the_products_of_warpgroups_are_right(name: str, tmp_path: Path) -> None:
    body, *inputs = HOPPER[name]
    fp = step_of(body, *inputs)
    plan = write(fp, CudaParameters(attention=2, products=2))
    assert plan is not None and not plan.library
    made = re.findall(r"\w+_hopper\(const", plan.candidate.source)
    kernels = 4 if "wide" in name else 3
    assert len(made) == kernels * sum(len(spec.shape) == 4 for spec in fp.outputs[: fp.step.outputs if fp.step else 0])
    assert all(f"{name.partition('(')[0]}<<<" in plan.candidate.source for name in made)
    assert_right(fp, emulated(plan, fp, given := given_to(fp), tmp_path), given)


def assert_right(fp: FunctionalProblem, ours: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
    """Check results against float64: their errors are about those of eager."""
    for mine, theirs, right in zip(ours, run_nodes(fp, given), in_double(fp, given), strict=True):
        allowed = numbers.RATIO * (theirs.double() - right).square().mean().sqrt() + 1e-7 * right.abs().max()
        assert (mine.double() - right).square().mean().sqrt() <= allowed


@pytest.mark.parametrize("top", [1 + 2**-22, 1 - 2**-22])
def test_scores_of_another_rounding_have_the_weights_of_the_forward(top: float, tmp_path: Path) -> None:
    """Where scores are 1e26 large the backward's, added up in another order, are far from the forward's maxima."""
    fp = step_of("return F.scaled_dot_product_attention(x, y, y)", *["torch.randn(1, 1, 19, 16).bfloat16()"] * 2)
    plan = write(fp, CudaParameters(attention=1, products=2))
    assert plan is not None
    pulled, *inputs = given_to(fp)
    given = [pulled, *(1e13 * x for x in inputs)]
    exact = in_double(fp, given)
    for mine, right in zip(emulated(plan, fp, given, tmp_path, top=top), exact, strict=True):
        assert (
            mine.double() - right
        ).abs().max() <= 0.02 * right.abs().max() + 1e-3 * 1e13 * pulled.abs().max().double()


@pytest.mark.parametrize(
    "body",
    [
        "return F.scaled_dot_product_attention(x, x, x, is_causal=True)",
        "i = torch.arange(70); s = (x @ x.mT).masked_fill(i > i[:, None], float('-inf')); "
        "return torch.softmax(s, -1) @ x.masked_fill(x > 9, 0)",  # a number of the problem, as a score's gradient has
    ],
)
def test_rows_that_masks_leave_out_are_not_walked(body: str) -> None:
    """From either side: queries begin with their key, keys end with their query."""
    plan = write(step_of(body, Q), CudaParameters(attention=1, products=2))
    assert plan is not None
    of_keys, of_queries = plan.candidate.source.split(": sums along ")[1:]
    assert "most_of(int64_t(r0 - (0))" in of_keys.partition("of_end")[0]
    assert "least_of(int64_t(r0 + 0 + 1)" in of_queries.partition("of_weights")[0]


def test_rows_are_told_by_one_number_each() -> None:
    """The graph itself stays right: a number for each row is saved, and neither scores nor weights."""
    body, *inputs = CASES["fp32, window, slopes and a cap"]
    fp = step_of(body, *inputs)
    apart = with_row_totals(fp)
    assert sites_by_rows(apart) == 2 and sites_by_rows(fp) == 0
    given = given_to(fp)
    for ours, theirs in zip(run_nodes(apart, given), run_nodes(fp, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "w = torch.softmax(x @ x.mT, -1); return w @ x, w",  # somebody wants the weights
        "return torch.softmax(x @ x.mT, -2) @ x",
        "w = torch.softmax(x @ x.mT, -1); return w @ x + w.sum()",
    ],
)
def test_what_needs_the_weights_keeps_them(body: str) -> None:
    fp = step_of(body, "torch.randn(2, 24, 24)")
    plan = write(fp, CudaParameters(attention=1, products=2))
    assert plan is not None and ": sums along " not in plan.candidate.source
    cpu = write(fp, CpuParameters())
    assert cpu is not None and ": sums along " not in cpu.candidate.source


def test_a_loss_and_its_gradients_in_one_graph(tmp_path: Path) -> None:
    """As a training step is written whose module calls autograd itself."""
    text = "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
    text += "    def forward(self, q, k, v):\n"
    text += (
        "        with torch.enable_grad():\n            q, k, v = (t.detach().requires_grad_() for t in (q, k, v))\n"
    )
    text += "            loss = F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()\n"
    text += "            return loss.detach(), *torch.autograd.grad(loss, [q, k, v])\n"
    text += "def get_inputs(): return [torch.randn(1, 2, 37, 16) for _ in range(3)]\ndef get_init_inputs(): return []\n"
    with kept_workers() as workers:
        fp = functionalize(Problem("loss", text), workers=workers)
    plan = write(fp, CudaParameters(attention=1, products=2))
    assert plan is not None and plan.candidate.tier == "kernel" and plan.candidate.source.count(": sums along ") == 2
    given, outputs = given_to(fp), numbers.empty_outputs(fp)
    module = build_emulated(plan.candidate.source, tmp_path)
    module.forward(*given, *(value for _, value in fp.abi_constants), *outputs)
    for ours, right in zip(outputs, in_double(fp, given), strict=True):
        torch.testing.assert_close(ours, right.float(), rtol=1e-4, atol=1e-6)
