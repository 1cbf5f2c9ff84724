"""A live module trains with a kernel: an MLP with RMSNorm and SwiGLU, and a loss over a vocabulary."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from cli_home import LEFT_OUT
from support.kept import kept_judge
from torch import Tensor, nn
from torch.nn import functional as F

import rag_kernels
from rag_kernels.best import Best
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import ProblemError
from rag_kernels.eval.timing_rule import TimingRule

WIDTH, HIDDEN, WORDS, ROWS = 16, 24, 40, 12


class Block(nn.Module):
    """A gated MLP behind a norm, and what the loss needs: two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH), requires_grad=False)
        self.register_buffer("shift", torch.rand(WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = x * inverse * self.weight
        mixed = self.down(F.silu(self.gate(y)) * self.up(y)) * self.scale + self.get_buffer("shift")
        return x + mixed, inverse


class Head(nn.Module):
    """Scores of words, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.words(x), target)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.first, self.second, self.head = Block(), Block(), Head()

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        x, one = self.first(self.embed(ids))
        x, other = self.second(x)
        found: Tensor = self.head(x, target) + 1e-3 * (one.mean() + other.sum())
        return found


QUICK = Limits(
    measure_compile=False,
    without=LEFT_OUT | {"looks", "special values"},  # `test_training_step.py` is about judging them
    timing=TimingRule(pairs=7, max_pairs=7, timed_s=0.02, few_pairs=3),
)


def optimize(module: nn.Module, inputs: Sequence[Tensor]) -> Best:
    with kept_judge("cpu", limits=QUICK) as judge:
        return rag_kernels.optimize(
            module, inputs, training=True, judge=judge, device="cpu", effort=1, rounds=1, drafts=1, archive=":memory:",
            retrieval="off",
        )  # fmt: skip


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


@pytest.fixture(scope="module")
def block(net: Net) -> Best:
    return optimize(net.first, [torch.randn(ROWS, WIDTH)])


@pytest.fixture(scope="module")
def head(net: Net) -> Best:
    given = [torch.randn(ROWS, WIDTH), torch.randint(0, WORDS, (ROWS,))]
    return optimize(net.head, given)


def trained(net: nn.Module, steps: int = 3) -> list[Tensor]:
    """Train some steps and return the parameters."""
    draws = torch.Generator().manual_seed(7)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        ids, target = (torch.randint(0, WORDS, (ROWS,), generator=draws) for _ in range(2))
        optimizer.zero_grad()
        net(ids, target).backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def test_a_model_trains_with_the_kernels_as_without(net: Net, block: Best, head: Best) -> None:
    assert block.attempt is not None and head.attempt is not None
    fast, plain = copy.deepcopy(net), copy.deepcopy(net)
    assert rag_kernels.apply(fast, [block, head]) == ["first", "second", "head"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = copy.deepcopy(fast)
        for mine, theirs, before in zip(trained(fast), trained(plain), net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
            assert torch.equal(theirs, before) != before.requires_grad
        torch.testing.assert_close(trained(again), trained(copy.deepcopy(net)), rtol=1e-4, atol=1e-5)
        fast.eval(), plain.eval()
        with torch.no_grad():
            ids = torch.arange(ROWS)
            torch.testing.assert_close(fast(ids, ids), plain(ids, ids), rtol=1e-4, atol=1e-5)
    assert all(not calls.fallbacks and calls.kernel == 4 for calls in rag_kernels.apply.report(fast))  # type: ignore[attr-defined]


def test_it_is_saved_and_told(net: Net, block: Best, tmp_path: Path) -> None:
    told = block.explain()
    assert "one step of training" in told and ("saved between them: " in told or "nothing is saved" in told)
    text = load_module("best", block.save(tmp_path / "best.py").read_text())
    made, plain = text.ModelNew(), copy.deepcopy(net.second)
    made.load_state_dict(plain.state_dict())
    given, pulls = torch.randn(ROWS, WIDTH), (torch.randn(ROWS, WIDTH), torch.randn(ROWS, 1))
    found = []
    for module in (made, plain):
        x = given.clone().requires_grad_()
        outputs = module(x)
        torch.autograd.backward(outputs, pulls)
        found.append([*outputs, x.grad, *(module.get_parameter(n).grad for n in ("weight", "up.weight", "down.bias"))])
    assert made.kernel_used, made.kernel_reason
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_compiled_and_with_one_output_unused(net: Net, block: Best) -> None:
    fast, plain = block.optimized(), copy.deepcopy(net.first)
    whole = torch.compile(fast, backend="aot_eager", fullgraph=True)
    given = torch.randn(ROWS, WIDTH)
    found = []
    for module in (fast, whole, plain):
        x = given.clone().requires_grad_()
        module(x)[0].square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], found[2], rtol=1e-4, atol=1e-5)


def test_a_gradient_that_was_not_asked_runs_the_module(net: Net) -> None:
    """A frozen parameter that wants a gradient later, and an input of a first layer that wants none."""
    x, target = torch.randn(ROWS, WIDTH), torch.randint(0, WORDS, (ROWS,))
    head = copy.deepcopy(net.head).requires_grad_(False)
    best = optimize(head, [x.requires_grad_(), target])
    assert best.attempt is not None and best.attempt.problem.step is not None
    assert best.attempt.problem.step.gradients == ("0",) and best.attempt.problem.step.fixed == ("words.weight",)
    fast = best.optimized()
    fast(x, target).backward()
    assert fast.kernel_used and x.grad is not None
    fast.requires_grad_(True)
    with pytest.warns(UserWarning, match="a gradient is wanted of words.weight"):
        fast(x, target).backward()
    assert not fast.kernel_used and fast.get_parameter("words.weight").grad is not None


def test_what_a_kernel_cannot_train_is_told() -> None:
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ProblemError, match=r"changes 1\.running_mean, 1\.running_var, 1\.num_batches"):
        optimize(norm, [torch.randn(3, 4)])
    with pytest.raises(ProblemError, match="random"):
        optimize(nn.Dropout(0.5), [torch.randn(3, 4)])
    with pytest.raises(ProblemError, match="no output of the forward has a gradient"):
        optimize(nn.Softmax(0).double(), [torch.ones(3).long()])


def test_gradients_of_gradients_are_refused_with_what_to_do(head: Best) -> None:
    fast = head.optimized()
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    loss = fast(x, torch.randint(0, WORDS, (ROWS,)))
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(ValueError, match="leave this module as it is, out of `apply`"):
        first.square().sum().backward()
