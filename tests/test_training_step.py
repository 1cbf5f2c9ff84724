"""A forward and its gradients as one problem: recorded, written in two functions, judged; other forms are refused."""

from __future__ import annotations

import ast
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from factories import attempt, passed
from support.kept import kept_judge, kept_workers
from support.run_nodes import run_nodes
from torch.utils._pytree import tree_leaves

from rag_kernels.eval.build.candidate_form import Forbidden, check_composed
from rag_kernels.eval.build.composed_forward import composed_forward
from rag_kernels.eval.build.step_form import apart, backward_alone, fault, forward_alone, joined, results_of
from rag_kernels.eval.children.reference.baseline_variants import compiled_step
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import (
    Candidate,
    Contract,
    FunctionalProblem,
    Node,
    Passed,
    Problem,
    ProblemError,
    Ref,
    Rejected,
    ServedTensor,
    TensorSpec,
    Wrong,
)
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.export.drop_in import with_kernel
from rag_kernels.export.forms.module_file import compiled_of
from rag_kernels.export.packages import write_package
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.gradients import backward_problem
from rag_kernels.ingest.functional.training_step import training_step
from rag_kernels.llm.prompt_values import step_signatures
from rag_kernels.offline.compose import first_plans, library_call, write
from rag_kernels.offline.graph.row_statistics import with_row_statistics
from rag_kernels.offline.graph.training_step import DEAR, EVERYTHING, NOTHING, halves
from rag_kernels.offline.lowering.coverage import RULES
from rag_kernels.offline.lowering.steps import Library
from rag_kernels.offline.tuning import neighbours, parameters_in, starting_parameters

QUICK = Limits(
    measure_compile=False,
    without=frozenset({"sanitizers", "looks"}),
    timing=TimingRule(pairs=7, max_pairs=7, timed_s=0.02, few_pairs=3),
)
NORMED = Problem(
    "normed",
    """
import torch

ROWS = 12


class Model(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = torch.nn.Linear(features, features, bias=False)
        self.weight = torch.nn.Parameter(torch.rand(features))
        self.fixed = torch.nn.Parameter(torch.rand(features), requires_grad=False)

    def forward(self, x, place):
        y = self.linear(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight
        return torch.nn.functional.silu(y) * self.fixed, y.argmax(1), x[place]


def get_inputs():
    return [torch.randn(ROWS, 16), torch.randint(0, ROWS, (3,))]


def get_init_inputs():
    return [16]
""",
)


@pytest.fixture(scope="module")
def step() -> FunctionalProblem:
    with kept_workers() as workers:
        return functionalize(training_step(NORMED), workers=workers)


def test_a_step_is_the_forward_and_the_gradients_of_what_wants_one(step: FunctionalProblem) -> None:
    assert step.verified and step.step is not None
    assert step.step.outputs == 3 and step.step.pulled == (0, 2)
    assert step.step.gradients == ("0", "weight", "linear.weight") and step.step.fixed == ("fixed",)
    assert [spec.shape for spec in step.outputs] == [(12, 16), (12,), (3, 16), (12, 16), (16,), (16, 16)]
    module = load_module("normed", training_step(NORMED).source)
    model = module.Model(*module.get_init_inputs())
    (first, third), x, place = module.get_inputs()
    outputs, found = model((first, third), x, place)
    own, leaf = model.forward_model, x.clone().requires_grad_()
    made = own(leaf, place)
    wanted = [leaf, own.weight, own.linear.weight]
    expected = torch.autograd.grad([made[0], made[2]], wanted, [first, third])
    for mine, theirs in zip([*outputs, *found], [*made, *expected], strict=True):
        torch.testing.assert_close(mine, theirs.detach())
    without = load_module("fixed", training_step(NORMED, fixed=[0]).source)
    assert len(without.Model(16)((first, third), x, place)[1]) == 2


def test_its_gradients_are_derivatives() -> None:
    """`gradcheck`, of the functional form in double."""
    changes = {"torch.randn(ROWS, 16)": "torch.randn(ROWS, 4).double()", "[16]": "[4]", "ROWS = 12": "ROWS = 5"}
    changes["requires_grad=False)\n"] = "requires_grad=False)\n        self.double()\n"
    source = NORMED.source
    for old, new in changes.items():
        source = source.replace(old, new)
    with kept_workers() as workers:
        step = functionalize(training_step(Problem("double", source)), workers=workers)
    names: dict[str, object] = {}
    exec(step.source, names)
    function, pulled = names["module_fn"], 2
    values = [torch.randn(a.spec.shape, dtype=torch.float64) for a in step.tensors[pulled:] if a.name != "place"]
    place = torch.tensor([0, 3, 3])

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, fixed, weight, linear):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x, fixed, weight, linear)
            zeros = torch.zeros(5, 4, dtype=x.dtype), torch.zeros(3, 4, dtype=x.dtype)
            made = function(*zeros, x, place, *_ordered(step, fixed, weight, linear))  # type: ignore[operator]
            return made[0], made[2]

        @staticmethod
        def backward(ctx, *grads):  # type: ignore[no-untyped-def]
            x, *held = ctx.saved_tensors
            found = function(*grads, x, place, *_ordered(step, *held))[3:]  # type: ignore[operator]
            return found[0], None, found[1], found[2]

    by_name = {a.name: v for a, v in zip([a for a in step.tensors[pulled:] if a.name != "place"], values, strict=True)}
    given = [by_name[n] for n in ("x", "forward_model_fixed", "forward_model_weight", "forward_model_linear_weight")]
    given = [v.requires_grad_(i != 1) for i, v in enumerate(given)]
    assert torch.autograd.gradcheck(Whole.apply, given)


def _ordered(
    step: FunctionalProblem, fixed: torch.Tensor, weight: torch.Tensor, linear: torch.Tensor
) -> list[torch.Tensor]:
    held = {"fixed": fixed, "linear.weight": linear, "weight": weight}
    return [held[a.path.removeprefix("forward_model.")] for a in step.tensors if a.role == "parameter"]


def test_places_of_what_a_reduction_chose_are_saved_though_the_forward_returns_none() -> None:
    """The backward of a maximum would look for it again."""
    text = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x.max(1).values * 2\n"
    text += "def get_inputs(): return [torch.randn(5, 7, requires_grad=True)]\ndef get_init_inputs(): return []\n"
    with kept_workers() as workers:
        found = functionalize(training_step(Problem("most", text)), workers=workers)
    half = halves(found, DEAR)
    (places,) = (argument.spec for argument in half.backward.tensors if argument.name in half.saved)
    assert places == TensorSpec((5,), "int64") and not any("max" in node.op for node in half.backward.nodes)
    assert half.forward.results[1:] == half.saved


def test_what_is_multiplied_by_weights_is_saved_and_not_what_it_is_made_of() -> None:
    """It is stored for the product anyway; attention's weights, which no parameter meets, are not."""
    text = "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n"
    text += "    def __init__(self):\n        super().__init__()\n"
    text += "        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)\n"
    text += "    def forward(self, x):\n        y = self.b(torch.relu(self.a(x)))\n"
    text += "        return torch.exp(y @ y.t()) @ y\n"
    text += "def get_inputs(): return [torch.randn(5, 8)]\ndef get_init_inputs(): return []\n"
    with kept_workers() as workers:
        step = functionalize(training_step(Problem("layers", text)), workers=workers)
    half = halves(step, DEAR)
    saved = {base_name(node.op) for node in half.forward.nodes if node.name in half.saved}
    assert "relu" in saved and "exp" not in saved, saved
    assert len([node for node in half.forward.nodes if base_name(node.op) == "addmm" and node.name in half.saved]) == 1


def test_what_an_output_shows_in_another_shape_is_saved_as_the_output() -> None:
    """No second tensor of the same elements is stored for the gradients."""
    text = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x, y):\n"
    text += "        m = x @ y\n        return m.view(2, 3, 4), m.exp().sum()\ndef get_init_inputs(): return []\n"
    text += "def get_inputs(): return [torch.randn(6, 5), torch.randn(5, 4)]\n"
    with kept_workers() as workers:
        step = functionalize(training_step(Problem("shown", text)), workers=workers)
    half = halves(step, DEAR)
    assert half.saved == half.forward.results[:1] and len(half.forward.results) == 3
    given = [torch.randn(a.spec.shape) for a in step.tensors]
    outputs = run_nodes(half.forward, given[2:])
    gradients = run_nodes(half.backward, [*given[:2], *outputs[2:], *given[2:]])
    for theirs, ours in zip(run_nodes(step, given), [*outputs[:2], *gradients], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_loss_by_classes_saves_what_its_rows_come_to() -> None:
    """And not a tensor as large as its input; classes that are left out, numbers far from zero, and a few rows."""
    text = "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
    text += "    def forward(self, x, t):\n"
    text += "        few = x.log_softmax(0).gather(0, t[None, :2].clamp(0, 5)).sum()\n"
    text += "        return F.cross_entropy(x, t) + few\ndef get_init_inputs(): return []\n"
    text += "def get_inputs(): return [torch.randn(6, 9, requires_grad=True), torch.randint(0, 9, (6,))]\n"
    with kept_workers() as workers:
        step = functionalize(training_step(Problem("loss", text)), workers=workers)
    apart = with_row_statistics(step)
    (few,) = (node for node in apart.nodes if "gather" in node.op and node.outputs[0].shape == (1, 2))
    assert few.args[0] in [Ref(node.name) for node in step.nodes if "log_softmax" in node.op]
    half = halves(apart, DEAR)
    assert all(a.spec.shape in {(6, 1), (1, 9), ()} for a in half.backward.tensors if a.name in half.saved)
    x, t = torch.randn(6, 9) * 30 + 1000, torch.tensor([0, 8, -100, 3, 3, 1])
    given = [torch.tensor(0.7), x, t]
    assert len(step.nodes) != len(apart.nodes)
    for theirs, ours in zip(run_nodes(step, given), run_nodes(apart, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_what_is_saved_is_a_parameter_of_the_writer(step: FunctionalProblem) -> None:
    saved = {saving: halves(step, saving) for saving in (NOTHING, DEAR, EVERYTHING)}
    assert saved[NOTHING].saved == () and len(saved[DEAR].saved) == 2  # the product, and the mean of each row
    assert len(saved[EVERYTHING].saved) > 2
    for half in saved.values():
        pulled = set(half.grads)
        assert not pulled & {a.name for a in half.forward.arguments}
        assert half.forward.results[3:] == half.saved and half.backward.results == step.results[3:]
    sources = [plan.candidate.source for plan in first_plans(step, starting_parameters("cpu"))]
    assert len({results_of(source)[1] for source in sources[:3]}) == 3
    base = parameters_in(sources[1], "cpu")
    assert base is not None and base.saving == NOTHING
    assert {p.saving for p in neighbours(base, ("step",))} == {NOTHING, EVERYTHING}
    assert {p.saving for p in neighbours(base, ("row",))} == {NOTHING}


def test_it_is_judged_as_one_call_and_each_half_runs_alone(step: FunctionalProblem) -> None:
    plan = write(step, starting_parameters("cpu"))
    assert plan is not None
    right = plan.candidate
    head, _, gradients = right.source.rpartition("return ")
    wrong = [
        right.source.replace("return (", "return (1.5 * ", 1),  # an output
        f"{head}return 1.5 * {gradients}",  # a gradient
    ]
    with kept_judge("cpu", limits=QUICK) as judge:
        found = dict(judge.judge(step, [right, *(replace(right, source=text) for text in wrong)]))
    verdicts = [judged.verdict for judged in found.values()]
    assert isinstance(verdicts[0], Passed), verdicts[0]
    assert all(isinstance(verdict, Wrong) for verdict in verdicts[1:]), verdicts


def test_a_backward_that_changes_an_output_is_refused() -> None:
    def forward(x: torch.Tensor) -> tuple[tuple[torch.Tensor], tuple[torch.Tensor]]:
        y = x.clone()
        return (y,), (y,)

    def late(grads: tuple[torch.Tensor], saved: tuple[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        saved[0].mul_(2.0)
        return grads[0] * x

    x, grad = torch.randn(3), torch.ones(3)
    with pytest.raises(ValueError, match="changes output 0 of `forward`"):
        apart(forward, late)(grad, x)
    outputs = apart(forward, lambda grads, saved, x: grads[0] * saved[0])(grad, x)
    assert all(torch.equal(output, x) for output in outputs)


COUNTED = """KERNELS = r'''
#include "rag_kernel.h"
static float kept[1 << 16];
static long calls = 0;
static void ahead(rk::Tensor<const float> x, rk::Tensor<float> y, rk::Tensor<float> s) {
  FORWARD
  for (long i = 0; i < x.numel(); ++i) { y.data[i] = x.data[i] * x.data[i]; s.data[i] = SAVED; kept[i] = x.data[i]; }
}
static void back(rk::Tensor<const float> g, rk::Tensor<const float> s, rk::Tensor<float> y, rk::Tensor<float> d) {
  BACKWARD
  for (long i = 0; i < g.numel(); ++i) d.data[i] = 2 * g.data[i] * READ;
}
RK_EXPORT(ahead, ahead)
RK_EXPORT(back, back)
'''


def forward(x):
    y = torch.empty_like(x)
    s = torch.empty_like(x)
    kernels.ahead(x, y, s)
    return (y,), (y, s)


def backward(grads, saved, x):
    y, s = saved
    d = torch.empty_like(x)
    kernels.back(grads[0], s, y, d)
    return d
"""
LATER = (
    "if (++calls > 9) { for (long i = 0; i < x.numel(); ++i) s.data[i] = x.data[i], y.data[i] = 0; return; }",
    "if (calls > 9) for (long i = 0; i < g.numel(); ++i) y.data[i] = s.data[i] * s.data[i];",
)
RING = (
    "const long slot = (1 + ++calls % 3) * x.numel(); for (long i = 0; i < x.numel(); ++i) kept[slot + i] = x.data[i];"
)
TAKE = "const auto take = [](const float& v) { const float was = v; const_cast<float&>(v) = 0; return was; };"
HALVES = {  # what is saved, what the backward reads, what either does beside; whether that is right
    "honest": ("x.data[i]", "s.data[i]", "", "", True),
    "what it keeps for itself it does not read": ("x.data[i]", "s.data[i]", "++calls;", "++calls;", True),
    "a static of both": ("0", "kept[i]", "", "", False),
    "a static later": ("x.data[i]", "(calls > 9 ? kept[i] : s.data[i])", "++calls;", "", False),
    "an output that it finishes, later": ("x.data[i]", "s.data[i]", *LATER, False),
    "one of three, by a ticket": ("slot", "kept[long(s.data[i]) + i]", RING, "", False),
    "used up by the first backward": ("x.data[i]", "take(s.data[i])", "", TAKE, False),
}
SQUARES = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * x


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""


def test_halves_that_need_each_other_beyond_what_is_saved_are_refused() -> None:
    """Also where they behave in the first calls."""
    with kept_workers() as workers:
        problem = functionalize(training_step(Problem("squares", SQUARES)), workers=workers)
    sources = []
    for saved, read, ahead, back, _ in HALVES.values():
        source = COUNTED.replace("SAVED", saved).replace("READ", read).replace("FORWARD", ahead)
        sources.append(source.replace("BACKWARD", back))
    candidates = [Candidate(source, "composed", "cpu") for source in sources]
    with kept_judge("cpu", limits=replace(QUICK, without=frozenset({"sanitizers"}))) as judge:
        found = dict(judge.judge(problem, candidates))
    for candidate, (name, (*_, right)) in zip(candidates, HALVES.items(), strict=True):
        verdict = found[candidate].verdict
        assert isinstance(verdict, Passed) == right, (name, verdict)


def test_a_source_is_split_where_it_is_two_functions() -> None:
    source = (
        "KERNELS = r'''\nint x;\n'''\n\n\n"
        "def forward(x, w, *, k):\n    y = x * w\n    s = y + k\n    return (y,), (s, y)\n\n\n"
        "def backward(grads, saved, x, w, *, k):\n    s, y = saved\n    (g,) = grads\n"
        "    return g * w + 0 * s, g * x + 0 * y\n"
    )
    check_composed(source, step=True)
    with pytest.raises(Forbidden, match="exactly one function"):
        check_composed(source)
    with pytest.raises(Forbidden, match="two functions"):
        check_composed(source[: source.index("\n\ndef backward")], step=True)
    x, w, g = torch.randn(3), torch.randn(3), torch.randn(3)
    y, dx, dw = composed_forward(source, None)(g, x, w, k=2)  # type: ignore[arg-type]
    assert torch.equal(y, x * w) and torch.equal(dx, g * w) and torch.equal(dw, g * x)
    assert results_of(source) == (("y",), ("s", "y"))
    alone = composed_forward(forward_alone(source), None)  # type: ignore[arg-type]
    y, s = alone(x, w, k=2)  # what is an output is not returned twice
    gradients = composed_forward(backward_alone(source, 1), None)(g, s, y, x, w, k=2)  # type: ignore[arg-type]
    assert torch.equal(gradients[0], dx) and torch.equal(gradients[1], dw)
    assert joined(lambda x: ((x,), ()), lambda grads, saved, x: grads[0])(g, x) == (x, g)
    ast.parse(forward_alone(source))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"def backward": "def sideways"}, "no `forward` and `backward`"),
        ({"return (": "return [", "), (": "], ("}, "does not end with two tuples"),
        ({"def backward(grads, saved, ": "def backward(grads, "}, "two more"),
        ({"    return (": "    return (x, "}, "returns 4 outputs, and there are 3"),
    ],
)
def test_another_form_is_refused_with_what_it_should_be(
    step: FunctionalProblem, changes: dict[str, str], said: str
) -> None:
    plan = write(step, starting_parameters("cpu"))
    assert plan is not None and not fault(plan.candidate.source, step)
    source = plan.candidate.source
    for old, new in changes.items():
        at = source.index("def forward")
        source = source[:at] + source[at:].replace(old, new, 1)
    assert said in fault(source, step)


def test_a_kernel_of_one_function_is_no_step(step: FunctionalProblem) -> None:
    with kept_judge("cpu", limits=QUICK) as judge:
        [(_, judged)] = judge.judge(step, [Candidate("RK_EXPORT(forward, f)", "kernel", "cpu")])
    assert (
        isinstance(judged.verdict, Rejected) and "composed source with `forward(arguments...)`" in judged.verdict.reason
    )


def test_a_model_is_told_the_two_functions(step: FunctionalProblem) -> None:
    lines = step_signatures(step).splitlines()
    assert lines[0].startswith("def forward(x, place, ") and lines[1].startswith(
        "def backward(grads, saved, x, place, "
    )
    assert step_signatures(replace(step, step=None)) == ""


def test_what_is_made_from_nothing_lies_on_the_device(step: FunctionalProblem) -> None:
    """A number that the library makes on the CPU would be read by a GPU's kernel as memory of its own."""
    node = Node("n", "aten.tril_indices.default", (3, 3), (), (TensorSpec((2, 6), "int64"),))
    assert (
        library_call(Library(node), step, {})
        == "torch.ops.aten.tril_indices.default(3, 3, device=grad_output_0.device)"
    )
    clamped = Problem("clamped", NORMED.source.replace("y.argmax(1), x[place]", "y.clamp(-1, 1), x[place].relu()"))
    with kept_workers() as workers:
        made = functionalize(training_step(clamped), workers=workers)
    assert any("scalar_tensor" in node.op for node in made.nodes)
    for backend in ("cpu", "cuda"):
        plan = write(made, starting_parameters(backend))  # type: ignore[arg-type]
        assert plan is not None and "scalar_tensor" not in plan.candidate.source.split("def forward")[1]


def test_gradients_of_means_of_windows_and_of_signs_are_fused() -> None:
    text = ATTENDING.source.replace("self.norm(x)", "x / (1 + x.abs())")
    cut = text.index("        return F.scaled"), text.index("def get_inputs")
    text = text[: cut[0]] + "        return F.logsigmoid(F.avg_pool2d(y, (2, 3)))\n\n\n" + text[cut[1] :]
    with kept_workers() as workers:
        step = functionalize(training_step(Problem("pooled", text)), workers=workers)
    plan = write(step, starting_parameters("cpu"))
    assert step.verified and plan is not None and not plan.stopped and not plan.library


def test_what_pieces_are_of_is_saved_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated functions of the backward take what is saved for contiguous, as every argument; pieces cost nothing."""
    monkeypatch.delitem(RULES, "split")
    text = "import torch\nModel = torch.nn.GRUCell\ndef get_init_inputs(): return [4, 6]\n"
    text += "def get_inputs(): return [torch.randn(5, 4), torch.randn(5, 6)]\n"
    with kept_workers() as workers:
        step = functionalize(training_step(Problem("gru", text)), workers=workers)
    plan = write(step, starting_parameters("cpu"))
    assert plan is not None and "split" in plan.library
    names: dict[str, Any] = {"torch": torch, "kernels": MagicMock()}
    exec(plan.candidate.source.split("'''")[2], names)
    given = [torch.randn(a.spec.shape) for a in step.tensors[1:]]
    _, saved = names["forward"](*given, **dict(step.constants))
    assert len(saved) == 2 and all(one.is_contiguous() for one in saved)


def test_an_argument_may_be_called_as_the_gradient_is() -> None:
    text = NORMED.source.replace("self, x, place", "self, x, grad_output").replace("x[place]", "x[grad_output]")
    with kept_workers() as workers:
        for made in (training_step(Problem("named", text)), backward_problem(Problem("named", text))):
            names = [a.name for a in functionalize(made, workers=workers).arguments]
            assert names[:4] == ["grad_output__0", "grad_output__1", "x", "grad_output"]


ATTENDING = Problem(
    "attending",
    """
import torch
from torch.nn import functional as F


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(2, 4)

    def forward(self, x, mask):
        y = self.norm(x)
        return F.scaled_dot_product_attention(y, x, y, attn_mask=mask)


def get_inputs():
    mask = torch.rand(6, 6) < 0.7
    mask[3] = False
    return [torch.randn(2, 4, 6, 8), mask]


def get_init_inputs():
    return []
""",
)


def test_attention_and_its_gradients_are_of_no_device() -> None:
    """Rows that are masked throughout are zeros, and give no gradient; a norm of groups is no view by strides."""
    with kept_workers() as workers:
        step = functionalize(training_step(ATTENDING), workers=workers)
    assert step.verified
    names = {base_name(node.op) for node in step.nodes}
    assert not [name for name in names if "attention" in name or name in ("as_strided", "_safe_softmax")], names
    plan = write(step, starting_parameters("cuda"))
    assert plan is not None and set(plan.stopped) <= {"bmm (left to the library)"}


def test_what_a_forward_makes_of_nothing_has_sizes_of_its_own_arguments() -> None:
    """The mask of causal attention is as long as the output, of which only the backward has a gradient."""
    text = "import torch\nfrom torch.nn import functional as F\nROWS = 12\nclass Model(torch.nn.Module):\n"
    text += "    def forward(self, x): return F.scaled_dot_product_attention(x, x, x, is_causal=True)\n"
    text += "def get_init_inputs(): return []\n"
    text += "def get_inputs(): return [torch.randn(2, 3, ROWS, 8, dtype=torch.bfloat16)]\n"
    with kept_workers() as workers:
        step = functionalize(training_step(Problem("causal", text)), workers=workers)
    assert step.made and {size.argument for size in step.made} == {"x"}
    assert write(step, starting_parameters("cuda", "sm_90")) is not None
    gone = replace(step, made=tuple(replace(size, argument="grad_output") for size in step.made))
    half = halves(gone, DEAR)
    assert not half.forward.made and half.backward.made == gone.made
    assert write(gone, starting_parameters("cuda", "sm_90")) is not None


def test_a_baseline_is_compiled_as_a_loop_of_training_has_it() -> None:
    """The gradients of a step come of autograd, so that a compiler has the forward and the backward as two graphs."""
    seen: list[int] = []

    def compiler(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> torch.fx.GraphModule:
        seen.append(sum(x.requires_grad for x in examples))
        return graph

    module = load_module("normed", training_step(NORMED).source)
    model = module.Model(*module.get_init_inputs()).requires_grad_(False)
    step, inputs = compiled_step(model, backend=compiler, fullgraph=True), module.get_inputs()
    with torch.no_grad():
        for mine, theirs in zip(tree_leaves(step(*inputs)), tree_leaves(model(*inputs)), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert seen == [3]  # an input and two parameters; the module beside it is not compiled


OF_TORCH = """\
KERNELS = '''
#include "rag_kernel.h"
'''


def forward(x, place, weight, fixed, linear, *, {keywords}):
    y = torch.matmul(x, linear.t())
    inverse = torch.rsqrt(torch.mean(y * y, -1, keepdim=True) + 1e-5)
    return (F.silu(y * inverse * weight) * fixed,), (y, inverse)


def backward(grads, saved, x, place, weight, fixed, linear, *, {keywords}):
    (y, inverse) = saved
    normed = y * inverse
    inner = normed * weight
    open = torch.sigmoid(inner)
    of_inner = grads[0] * fixed * (open + inner * open * (1 - open))
    of_normed = of_inner * weight
    of_y = inverse * (of_normed - normed * torch.mean(of_normed * normed, -1, keepdim=True))
    return torch.matmul(of_y, linear), torch.sum(of_inner * normed, 0), torch.matmul(of_y.t(), x)
"""


def test_an_export_serves_the_sizes_that_the_step_serves() -> None:
    """Sizes of what is saved follow those of the arguments: known by running the forward without data."""
    plain_problem = Problem(
        "alone", NORMED.source.replace(", y.argmax(1), x[place]", "").replace("ROWS = 12", "ROWS = 80")
    )
    with kept_workers() as workers:
        step = functionalize(training_step(plain_problem), workers=workers)
    shapes = {"grad_output": ("N", "16"), "x": ("N", "16")}
    tensors = [
        ServedTensor(a.name, a.spec.dtype, shapes.get(a.name, tuple(map(str, a.spec.shape)))) for a in step.tensors
    ]
    outputs = (("N", "16"), ("N", "16"), ("16",), ("16", "16"))
    contract = Contract(tuple(tensors), (), "element", outputs)
    source = OF_TORCH.format(keywords=", ".join(name for name, _ in step.constants))
    judged = attempt(
        p=step, candidate=Candidate(source, "composed", "cpu"), verdict=replace(passed(), contract=contract)
    )
    compiled = compiled_of(judged, listed=True)
    saved = compiled.outputs[1:]
    assert compiled.backward is not None and compiled.backward.saved == len(saved) > 0
    assert {one[2][0] for one in saved} == {"N"}
    module = load_module("alone", plain_problem.source)
    plain = module.Model(16)
    fast = with_kernel(copy.deepcopy(plain), compiled)
    for rows in (12, 5):
        given, place, found = torch.randn(rows, 16), torch.zeros(3, dtype=torch.long), []
        for one in (fast, plain):
            x = given.clone().requires_grad_()
            made = one(x, place)
            one.zero_grad()
            made.cos().sum().backward()
            found.append([made, x.grad, one.weight.grad, one.linear.weight.grad])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert fast.kernel_calls == 2, fast.kernel_reason
    for form in ("flashinfer-bench", "kernelbench", "torch-op"):
        with pytest.raises(ProblemError, match="goes as module or standalone, and not"):
            write_package(judged, form, Path("nowhere"))
