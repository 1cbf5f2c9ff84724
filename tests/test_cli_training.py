"""A step of training on the command line: written, judged, told, exported and judged again, as Python does it."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from cli_home import BRIEF, Done, inside

from rag_kernels.archive.store import open_archive
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import ProblemError
from rag_kernels.export.drop_in import DropIn
from rag_kernels.ingest.functional.passes import pass_of

NORM = """\
import torch

ROWS = 32


class Model(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(features))
        self.fixed = torch.nn.Parameter(torch.rand(features), requires_grad=False)

    def forward(self, x, y):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.fixed * torch.tanh(y)


def get_inputs():
    return [torch.randn(ROWS, 64), torch.randn(ROWS, 64)]


def get_init_inputs():
    return [64]
"""
TOLD = "one step of training: a forward, and a backward for "


@pytest.fixture(scope="module")
def written(home: Path) -> Done:
    (home / "norm.py").write_text(NORM)
    return inside(home, "generate", "norm.py", "--training", *BRIEF, "--out", "best.py", "--json", quick=True)


def test_it_is_written_and_trains(written: Done, home: Path) -> None:
    assert written.code == 0, written.err
    result = written.rows[-1]
    assert result["problem"] == "norm_training" and result["confirmed"] and result["step"].startswith(f"{TOLD}3 grad")
    text = load_module("best", (home / "best.py").read_text())
    made, plain = text.ModelNew(64), copy.deepcopy(text.ForwardModel(64))
    assert isinstance(made, DropIn)
    made.load_state_dict(plain.state_dict())
    found = []
    for module in (made, plain):
        x, y = (torch.ones(32, 64).mul(0.5 * n).requires_grad_() for n in (1, 2))
        out = module(x, y)
        out.square().sum().backward()
        found.append([out, x.grad, y.grad, module.get_parameter("weight").grad])
    assert made.kernel_used, made.kernel_reason
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_it_is_told_exported_and_judged_again(written: Done, home: Path) -> None:
    kernel = written.rows[-1]["kernel_id"]
    again = inside(home, "generate", "norm.py", "--training", *BRIEF, "--resume", "latest", quick=True)
    assert again.code == 0 and TOLD in again.out
    assert inside(home, "export", kernel, "--as", "source", "--out", "step.py").code == 0
    judged = inside(home, "eval", "norm.py", "step.py", "--training", "--no-confirm", quick=True)
    assert judged.code == 0 and TOLD in judged.out and "for 3 gradients" in judged.out, judged.out
    other = inside(home, "eval", "norm.py", "step.py", "--archive", ":memory:", quick=True)
    assert other.code == 1 and "REJECTED" in other.out
    assert "norm_training" in inside(home, "report", "latest").out
    assert inside(home, "export", kernel, "--standalone", "--out", "alone.py").code == 0
    assert "import rag_kernels" not in (home / "alone.py").read_text()
    store = open_archive(home / ".local" / "share" / "rag-kernels" / "archive")
    assert store.kernel(kernel) is not None


def test_what_a_step_is_called_with_is_told(home: Path) -> None:
    (home / "norm.py").write_text(NORM)
    told = inside(home, "functionalize", "norm.py", "--training")
    assert "def forward(x, y, " in told.out and "def backward(grads, saved, x, y, " in told.out
    both = inside(home, "check", "norm.py", "--training", "--backward")
    assert both.code == 2 and "take `training` or `backward`, not both" in both.err
    with pytest.raises(ProblemError, match="not both"):
        pass_of(backward=True, training=True)


def test_a_step_of_a_module_of_a_file_has_the_inputs_that_want_a_gradient(home: Path) -> None:
    (home / "mine.py").write_text(NORM.replace("class Model", "class Block").replace("def get_", "def other_"))
    inputs = "torch.randn(32, 64).requires_grad_(), torch.randn(32, 64)"
    done = inside(home, "functionalize", "mine.py:Block", "--init", "64", "--inputs", inputs, "--training")
    assert done.code == 0 and "def backward(grads, saved, x, y, " in done.out, done.err
    [returned] = re.findall(r"^    return (.*)$", done.out, re.MULTILINE)
    assert len(returned.split(", ")) == 1 + 2, "the result, and gradients of x and of the weight"
