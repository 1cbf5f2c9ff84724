"""Graphs that the offline writer rewrites: what is exact, exact up to rounding, or falls out of fusion."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, worst_ratio
from support.kept import kept_judge
from support.offline_briefs import brief

from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.records import FunctionalProblem, Node, Passed, Ref
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.compose import Plan, write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.graph.rewrites import Rewrite, rewrites, simplified
from rag_kernels.offline.writer import OfflineWriter

NORMS = {
    "conv": ("torch.randn(2, 6, 9, 11)", "nn.Conv2d(6, 8, 3, 2, 1, groups=2)", "nn.BatchNorm2d(8)"),
    "conv without bias": ("torch.randn(2, 6, 9)", "nn.Conv1d(6, 8, 3, bias=False)", "nn.BatchNorm1d(8)"),
    "linear": ("torch.randn(7, 12)", "nn.Linear(12, 8)", "nn.BatchNorm1d(8, affine=False)"),
    "transposed": ("torch.randn(2, 6, 5, 7)", "nn.ConvTranspose2d(6, 8, 3, 2, 1, 1)", "nn.BatchNorm2d(8)"),
}
STATISTICS = "self.n.running_mean.uniform_(-1, 1); self.n.running_var.uniform_(0.2, 3)"


def norm_case(name: str, body: str = "return F.relu(self.n(self.c(x))) * y", mode: str = "eval") -> FunctionalProblem:
    x, layer, norm = NORMS[name]
    init = f"self.c = {layer}; self.n = {norm}; {STATISTICS}; self.n.{mode}()"
    return functional(name.replace(" ", "_"), Case(body, x, "torch.randn(1)", init=init))


def only(fp: FunctionalProblem) -> Rewrite:
    (made,) = rewrites(fp)
    return made


def plan_of(made: Rewrite) -> Plan:
    plan = write(made.problem, CpuParameters(products=0, attention=0), bare=True)
    assert plan is not None and made.around in plan.library
    return plan


def operators(fp: FunctionalProblem) -> list[str]:
    return [base_name(node.op) for node in fp.nodes]


@pytest.mark.parametrize("name", NORMS)
def test_a_batch_norm_with_running_statistics_is_folded(name: str, tmp_path: Path) -> None:
    fp = norm_case(name)
    made = only(fp)
    plan = plan_of(made)
    assert "batch_norm" not in operators(made.problem) and made.label.startswith("batch norm folded into ")
    assert plan.regions >= 2  # what makes weight and bias, and what follows the convolution
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


@pytest.mark.parametrize(
    "body, mode",
    [
        ("return F.relu(self.n(self.c(x))) * y", "train"),
        ("h = self.c(x); return self.n(h) * y, h", "eval"),
        ("return self.n(self.c(x).relu()) * y", "eval"),
    ],
)
def test_other_batch_norms_are_left(body: str, mode: str) -> None:
    assert list(rewrites(norm_case("conv", body, mode))) == []


def test_the_folded_draft_is_one_more_and_says_so() -> None:
    drafts = OfflineWriter().propose(brief(norm_case("conv"), width=9))
    (folded,) = [d for d in drafts if d.idea.startswith("Rewrite: ")]
    assert folded.idea.startswith("Rewrite: batch norm folded into conv2d.")
    assert folded.note.startswith("rewritten: batch norm folded into conv2d; fusion stopped at: conv2d")
    assert folded is drafts[-1] and len(drafts) > 1 and folded.candidate.tier == "composed"


ATTENTIONS = {
    "plain": "return torch.softmax(x @ y.transpose(-2, -1), -1) @ y",
    "scaled": "return torch.softmax((x @ y.mT) / 5.0, dim=2) @ y + 1",
    "masked": "m = torch.triu(x[0, :, :11], 1); "
    "return torch.softmax(torch.bmm(x, y.permute(0, 2, 1)) * 0.3 + m, -1) @ y",
    "mask first": "m = x[:, :11, :11].cos(); return torch.softmax(m + 0.3 * (x[:, :11] @ y.mT), -1) @ y",
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_becomes_one_operator(name: str, tmp_path: Path) -> None:
    fp = functional(name.replace(" ", "_"), Case(ATTENTIONS[name], "torch.randn(3, 11, 24)", "torch.randn(3, 11, 24)"))
    made = only(fp)
    assert operators(made.problem).count("scaled_dot_product_attention") == 1
    assert not {"softmax", "matmul", "bmm"} & set(operators(made.problem))
    assert worst_ratio(fp, numbers.caller(plan_of(made), fp, tmp_path)) < numbers.RATIO


@pytest.mark.parametrize(
    "body",
    [
        "s = torch.softmax(x @ y.mT, -1); return s @ y, s",
        "return torch.softmax(x @ y.mT, 1) @ y",
        "return torch.softmax(x @ y[0].mT, -1) @ y",
        "return torch.softmax((x @ y.mT).masked_fill(x[:, :, :11] > 0, -9.0), -1) @ y",
    ],
)
def test_other_products_around_a_softmax_are_left(body: str) -> None:
    fp = functional("other", Case(body, "torch.randn(3, 11, 24)", "torch.randn(3, 11, 24)"))
    assert list(rewrites(fp)) == []


def test_factors_of_one_are_dropped_where_that_is_exact(tmp_path: Path) -> None:
    body = "return (x * 1.0).t() @ (y / 1), torch.special.erfcx(x * 1) * 1, y * 1, (x > 0) * 1, (x > 0) * 1.0 * 1 + 0"
    fp = functional("ones", Case(body, "torch.randn(8, 6)", "torch.randn(8, 5)"))
    made, said = simplified(fp)
    assert said == ("factors of 1 dropped",)
    assert operators(fp).count("mul") + operators(fp).count("div") == 8
    assert operators(made).count("mul") == 4  # two are outputs and must be tensors of their own, two change the dtype
    assert operators(made).count("add") == 1  # -0 + 0 is 0
    plan = write(made, CpuParameters())
    assert plan is not None and worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO
    (first, *_) = OfflineWriter().propose(brief(fp))
    assert "rewritten: factors of 1 dropped" in first.note
    x = torch.tensor([float("nan"), -0.0, float("-inf")])
    assert torch.equal((x * 1).view(torch.int32), x.view(torch.int32))


def test_a_tensor_that_a_loop_fills_is_a_chain_of_steps(tmp_path: Path) -> None:
    """What was just written is read as it was before it was put there, and other places past the write."""
    body = (
        "h = torch.zeros_like(x); h[:, -1] = x[:, 5] * 2; h[:] = h + 0;"
        "for t in range(4, -1, -1): h[:, t] = h[:, t + 1] * 0.5 + x[:, t];"
        "h[:, 1::2] *= 3; h[:, 2:4] = h[:, ::5]; z = torch.zeros_like(y); z[2] = y[0]; z[1:3] = z[:2] + z[2];"
        "return h, h[:, 2:4] + h[:, 4:], z, z[0] * y"
    )
    fp = functional("filled", Case(body, "torch.randn(3, 6, 40)", "torch.randn(4)"))
    made, said = simplified(fp)
    assert said == ("reads of what was just written dropped",)
    writes = {node.name: node for node in made.nodes if node.op.endswith("_scatter.default")}
    reads = [n for n in made.nodes if base_name(n.op) == "select" and n.args[0] in map(Ref, writes)]
    assert "copy" not in operators(made) and "copy" in operators(fp) and reads == []
    assert len(writes) >= 9
    plan = write(made, CpuParameters())
    assert plan is not None and worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_a_tensor_that_a_loop_fills_wholly_is_a_stack(tmp_path: Path) -> None:
    """Who reads it loads an element, and does not ask of each step whether it was written there."""
    body = "h = torch.zeros_like(x);for t in range(5): h[:, t] = x[:, t] + h[:, t - 1] * 0.5;return h * y, h.sum(1)"
    fp = functional("whole", Case(body, "torch.randn(3, 5, 40)", "torch.randn(40)"))
    made, said = simplified(fp)
    assert said[-1] == "a tensor that is filled place by place stacked"
    assert "stack" in operators(made) and "select_scatter" in operators(fp) and "select_scatter" not in operators(made)
    plan = write(made, CpuParameters())
    assert plan is not None and worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_dead_code_is_never_lowered() -> None:
    """A result that nobody needs is never functionalized; and what is never asked for is never stored."""
    body = "h = torch.exp(x); torch.special.erfcx(h); return x + y"
    fp = functional("dead", Case(body, "torch.randn(8, 6)", "torch.randn(6)"))
    assert operators(fp) == ["add"]
    spec = fp.outputs[0]
    dead = Node("dead", "aten.exp.default", (Ref("x"),), (), (spec,))
    plan = write(dataclasses.replace(fp, nodes=(dead, *fp.nodes)), CpuParameters())
    assert plan is not None and "rk_exp" not in plan.candidate.source and plan == write(fp, CpuParameters())


def test_constants_become_numbers_in_the_loops() -> None:
    body = "return x * (torch.ones(6) * 3 + torch.arange(6)) + torch.tensor(2.0) * torch.full((6,), 0.5) + y"
    fp = functional("constants", Case(body, "torch.randn(8, 6)", "torch.randn(6)"))
    plan = write(fp, CpuParameters())
    assert plan is not None and plan.candidate.tier == "kernel" and plan.regions == 1
    loads = {line.split(".data[")[0].split()[-1] for line in plan.candidate.source.splitlines() if " = x.data" in line}
    assert loads == {"x"} and "new " not in plan.candidate.source  # no table of numbers in memory


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    quick = Limits(load_s=30, call_s=8, measure_compile=False, timing=TimingRule(pairs=8, max_pairs=8, timed_s=0.05))
    with kept_judge("cpu", limits=quick) as opened:
        yield opened


def test_the_judge_passes_rewritten_drafts_and_names_a_library_rewrite(judge: LocalJudge) -> None:
    attention = functional("attention", Case(ATTENTIONS["plain"], "torch.randn(4, 32, 24)", "torch.randn(4, 32, 24)"))
    for fp, label in ((norm_case("conv"), "fused + library"), (attention, "library rewrite")):
        (draft,) = [d for d in OfflineWriter().propose(brief(fp, width=9)) if d.idea.startswith("Rewrite: ")]
        ((_, judged),) = judge.judge(fp, [draft.candidate])
        assert isinstance(judged.verdict, Passed), judged.verdict
        assert judged.verdict.label == label
