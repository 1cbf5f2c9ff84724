"""A problem's backward as a problem of its own: recorded, run against autograd, judged, and made smaller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.kept import kept_workers

from rag_kernels.eval.problem import load_module
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Problem, ProblemError
from rag_kernels.eval.sizes.resizing import odd_sizes
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.gradients import backward_problem
from rag_kernels.ingest.functional.verify import Disagrees, compare, run_module

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
NORM = Problem(
    "norm",
    HEAD
    + '''
ROWS = 6
FEATURES = 8


class Model(nn.Module):
    """A Model with a parameter that wants no gradient."""

    def __init__(self, features):
        super(Model, self).__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.fixed = nn.Parameter(torch.rand(features), requires_grad=False)

    def forward(self, x, residual):
        return F.gelu(self.norm(self.linear(x)) * self.fixed) + residual


def get_inputs():
    return [torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
''',
)
TWO = Problem(
    "two",
    HEAD
    + """
class Model(nn.Module):
    def forward(self, scores, target):
        return F.cross_entropy(scores, target), scores.argmax(1), scores.exp()


def get_inputs():
    return [torch.randn(5, 7), torch.randint(0, 7, (5,))]


def get_init_inputs():
    return []
""",
)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as started:
        yield started


def test_the_backward_of_a_module_is_recorded_as_plain_operators(workers: Workers) -> None:
    done = functionalize(backward_problem(NORM), workers=workers)
    assert done.verified and not done.uses_random and not done.mutated
    assert [a.name for a in done.arguments if a.path.isdigit()] == ["grad_output", "x", "residual"]
    shapes = [spec.shape for spec in done.outputs]
    assert shapes == [(6, 8), (6, 8), (8, 8), (8,), (8,), (8,)]  # of both inputs, then of the parameters but the fixed
    assert not [node.op for node in done.nodes if "backward" in node.op]


def test_gradients_are_those_of_autograd() -> None:
    module = load_module("norm", backward_problem(NORM).source)
    model = module.Model(*module.get_init_inputs()).requires_grad_(False)  # as the judge holds it
    gradient, x, residual = module.get_inputs()
    found = model(gradient, x, residual)
    own = model.forward_model.requires_grad_(True)
    own.fixed.requires_grad_(False)
    x.requires_grad_(True), residual.requires_grad_(True)
    wanted = [x, residual, *(p for p in own.parameters() if p.requires_grad)]
    for mine, theirs in zip(found, torch.autograd.grad(own(x, residual), wanted, gradient), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_outputs_without_a_gradient_take_none(workers: Workers) -> None:
    problem = backward_problem(TWO)
    module = load_module("two", problem.source)
    gradients, scores, target = module.get_inputs()
    assert [g.shape for g in gradients] == [(), (5, 7)]
    [found] = module.Model()(gradients, scores, target)
    expected = (
        gradients[0] * (scores.softmax(1) - torch.nn.functional.one_hot(target, 7)) / 5 + gradients[1] * scores.exp()
    )
    torch.testing.assert_close(found, expected)
    assert functionalize(problem, workers=workers).verified


def test_what_cancels_out_is_held_to_the_error_of_the_module(workers: Workers) -> None:
    forward = "F.gelu(self.norm(self.linear(x)) * self.fixed) + residual"
    problem = Problem("cancels", NORM.source.replace(forward, "self.norm(residual + x.sum(1, keepdim=True))"))
    done = functionalize(backward_problem(problem), workers=workers)
    ran = run_module(backward_problem(problem), done.arguments)
    assert done.verified and float(ran.outputs[0].abs().max()) < 1e-4 < float(ran.outputs[1].abs().max())
    for wrong in ("made[0], 1.001 * made[1]", "1e-3 + made[0], made[1]", "made[0].double(), made[1]"):
        changed = f"def module_fn(*x):\n    made = right(*x)\n    return {wrong}, *made[2:]\n"
        given = f"{done.source}\nright = module_fn\n\n{changed}"
        with pytest.raises(Disagrees):
            compare(ran, given)


def test_a_forward_without_gradients_says_so(workers: Workers) -> None:
    problem = Problem("p", NORM.source.replace("+ residual", "+ residual > 0"))
    with pytest.raises(ProblemError, match="no output of the forward has a gradient"):
        functionalize(backward_problem(problem), workers=workers)


def test_draws_follow_the_seed() -> None:
    module = load_module("norm", backward_problem(NORM).source)

    def draw() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(module.get_inputs())

    first, second = draw(), draw()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])


def test_a_backward_has_the_sizes_of_its_forward(workers: Workers) -> None:
    changed = odd_sizes(backward_problem(NORM), reach="all")
    assert changed is not None
    assert functionalize(changed, workers=workers).outputs[0].shape == (7, 9)
