"""The problems in `examples/` are in KernelBench form, deterministic, and depend on all that they are given."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.examples_sizes import EXAMPLES, load

FILES = sorted(EXAMPLES.glob("*.py"))
SEED = 7

pytestmark = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def setup(path: Path) -> tuple[torch.nn.Module, list[Any]]:
    torch.manual_seed(SEED)
    module = load(path)
    return module.Model(*module.get_init_inputs()), module.get_inputs()


def run(model: torch.nn.Module, inputs: list[Any]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        out = model(*inputs)
    return out if isinstance(out, tuple) else (out,)


def same(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def changed(value: Any) -> Any:
    """Another value of the same kind, valid wherever the first one was."""
    if not isinstance(value, torch.Tensor):
        return value + 1
    if value.dtype == torch.bool:
        return ~value
    return value.flip(0)


def test_form(path: Path) -> None:
    tree = ast.parse(path.read_text())
    doc = ast.get_docstring(tree)
    assert doc and "\n" not in doc
    kinds = {type(node) for node in tree.body}
    assert kinds <= {ast.Expr, ast.Import, ast.Assign, ast.ClassDef, ast.FunctionDef}, "no work at import"
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert names == {"Model", "get_inputs", "get_init_inputs"}
    sizes = {name.id for node in tree.body if isinstance(node, ast.Assign) for name in node.targets}
    assert sizes and all(re.fullmatch(r"[A-Z][A-Z0-9_]*", name) for name in sizes)
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {"torch", "torch.nn", "torch.nn.functional"}


def test_output_is_finite_and_not_degenerate(path: Path) -> None:
    model, inputs = setup(path)
    for out in run(model, inputs):
        assert torch.isfinite(out).all()
        assert out.numel() == 1 or out.double().std() > 1e-4
    again, inputs_again = setup(path)
    assert same(run(model, inputs), run(again, inputs_again)), "the same seed gives the same output"


def test_output_depends_on_each_input_and_parameter(path: Path) -> None:
    model, inputs = setup(path)
    before = run(model, inputs)
    for place, value in enumerate(inputs):
        others = [*inputs[:place], changed(value), *inputs[place + 1 :]]
        assert not same(before, run(model, others)), f"input {place} has no effect"
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            original = parameter.clone()
            parameter.mul_(1.5).add_(0.1)
            assert not same(before, run(model, inputs)), f"parameter {name} has no effect"
            parameter.copy_(original)
