"""What a module returns and takes that is more than tensors by position: kernels leave it as it is."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from factories import attempt, candidate, passed, problem
from torch import nn
from torch.utils import _pytree as pytree

from rag_kernels.archive.records import Attempt
from rag_kernels.best import Best, apply
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Contract, Problem, ServedTensor
from rag_kernels.export.drop_in import KernelNotUsed
from rag_kernels.export.forms.module_file import module_text
from rag_kernels.export.serving.layer import LayerCall
from rag_kernels.export.serving.results import results_of

SOURCE = """
from collections import namedtuple
import torch
import torch.nn as nn

Named = namedtuple("Named", ["y", "note"])
SOME = {SOME}


class Config:
    def __init__(self, factor):
        self.factor, self.names, self.more = factor, ["a", "b"], {{"rate": 0.5, "place": None}}


class Part(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, x):
        return torch.tanh(x) * self.config.factor


class Model(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.part = Part(Config(factor))

    def forward(self, pair, scale: float = 1.0, *, extra=None):
        y = self.part(pair["x"]) * scale
        return {RESULT}


def get_inputs():
    return [{{"x": torch.randn(64, 1024)}}]


def get_init_inputs():
    return [2.0]
"""
RESULTS = ["[y]", "(y,)", "{'y': y, 'none': None}", "Named(y, 'note')", "([y, True], SOME)", "{'all': [{'y': y}]}", "y"]
X = torch.randn(64, 1024)


def kernel(result: str, some: str = "None") -> Attempt:
    """Of any number of rows."""
    p = problem("tanh")
    served = Contract((ServedTensor("x", "float32", ("N", "1024")),), (), "element", (("N", "1024"),))
    source = SOURCE.format(RESULT=result, SOME=some)
    p = replace(p, problem=Problem("arranged", source))
    return attempt(p=p, candidate=candidate(p), verdict=replace(passed(), contract=served))


def module_of(made: Attempt) -> ModuleType:
    found = load_module("arranged", module_text(made))
    sys.modules[found.ModelNew.__module__] = found
    return found


def same(found: Any, wanted: Any) -> None:
    """Compare numbers, and everything around them."""
    assert pytree.tree_structure(found) == pytree.tree_structure(wanted)
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        assert type(one) is type(other)
        torch.testing.assert_close(one, other) if isinstance(other, torch.Tensor) else None


def told_of(call: Any, *given: Any, **named: Any) -> tuple[Any, str]:
    with warnings.catch_warnings(record=True) as seen, torch.no_grad():
        warnings.simplefilter("always")
        result = call(*given, **named)
    return result, " ".join(str(w.message) for w in seen if w.category is KernelNotUsed)


class Seen:
    """A backend that keeps what was recorded."""

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self.graphs.append(str(graph.graph))
        return graph.forward


@pytest.mark.parametrize("result", RESULTS)
def test_results_are_arranged_as_the_modules(result: str) -> None:
    file = module_of(kernel(result))
    module, twin = file.ModelNew(2.0), file.Model(2.0)
    for rows, one in [(64, module), (5, module), (5, copy.deepcopy(module)), (64, pickle.loads(pickle.dumps(module)))]:
        found, told = told_of(one, {"x": X[:rows]})
        same(found, twin({"x": X[:rows]}))
        assert one.kernel_used and told == "", one.kernel_reason
    torch._dynamo.reset()
    seen = Seen()
    with torch.no_grad():  # of a module that nobody called
        same(torch.compile(file.ModelNew(2.0), backend=seen, fullgraph=True)({"x": X}), twin({"x": X}))
        program = torch.export.export(file.ModelNew(2.0), ({"x": X},))
        same(program.module()({"x": X}), twin({"x": X}))
    assert file.COMPILED.name in seen.graphs[0] and file.COMPILED.name in str(program.graph)


def test_a_forward_that_returns_more_than_can_be_known_runs_itself() -> None:
    """A number may follow a free size, and an object is not known to stay."""
    for some, word in [("7", "a int"), ("object()", "a object")]:
        file = module_of(kernel("(y, SOME)", some))
        module = file.ModelNew(2.0)
        found, told = told_of(module, {"x": X})
        assert type(found[1]) is type(file.SOME) and module.kernel_used is False
        assert word in told


def test_inputs_by_keyword_and_defaults_that_are_given_take_the_kernel_in_calls_and_graphs() -> None:
    file = module_of(kernel("y"))
    module, twin = file.ModelNew(2.0), file.Model(2.0)
    calls: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"scale": 1.0, "extra": None}, True),
        ({"scale": 3.0}, False),
        ({"scale": 1}, False),
        ({"extra": X}, False),
    ]
    for named, taken in calls:
        for _ in range(2):
            found, told = told_of(module, pair={"x": X}, **named)
            same(found, twin({"x": X}, **named))
            assert module.kernel_used is taken
        torch._dynamo.reset()
        seen = Seen()
        found, told = told_of(torch.compile(module, backend=seen, fullgraph=True), pair={"x": X}, **named)
        same(found, twin({"x": X}, **named))
        assert (file.COMPILED.name in seen.graphs[0]) is taken, told


def test_graphs_have_the_kernel_of_a_module_with_a_config_until_that_changes() -> None:
    file = module_of(kernel("y"))
    for name, value in [("factor", 3.0), ("names", ["a"]), ("more", {"rate": 0.5}), ("added", 1)]:
        module, twin, seen = file.ModelNew(2.0), file.Model(2.0), Seen()
        torch._dynamo.reset()
        whole = torch.compile(module, backend=seen, fullgraph=True)
        same(told_of(whole, {"x": X})[0], twin({"x": X}))
        for one in (module, twin):
            setattr(one.part.config, name, value)
        same(told_of(whole, {"x": X})[0], twin({"x": X}))
        same(told_of(module, {"x": X})[0], twin({"x": X}))
        assert [file.COMPILED.name in graph for graph in seen.graphs] == [True, False] and not module.kernel_used


def test_script_takes_the_module_itself() -> None:
    p = problem("tanh")
    file = module_of(attempt(p=p, candidate=candidate(p), verdict=passed()))
    scripted, told = told_of(torch.jit.script, nn.Sequential(file.ModelNew(2.0)))
    same(scripted(X), torch.tanh(X) * 2.0)
    assert "use torch.export" in told


@pytest.mark.parametrize("result", ["[y]", "{'y': y, 'none': None}"])
def test_modules_of_others_keep_their_results(result: str) -> None:
    """By `apply`, and by the layer of `hf-kernels`."""
    made = kernel(result)
    file = load_module("of_others", made.problem.problem.source)
    sys.modules[file.Model.__module__] = file
    model = nn.ModuleList([file.Model(2.0), file.Model(3.0)])
    best = Best(file.Model(2.0), made.problem.problem, (made,), made)
    assert apply(model, [best]) == ["0"]
    for one in (model[0], best.optimized()):
        same(told_of(one, {"x": X})[0], file.Model(2.0)({"x": X}))
        assert one.kernel_used
    compiled = module_of(made).COMPILED
    layer = LayerCall(compiled.op, compiled.served, lambda: file.Model(2.0))
    plain = file.Model(2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            same(layer(plain, ({"x": X},)), plain({"x": X}))


def test_a_recurrent_module_sets_nothing_that_a_caller_sees() -> None:
    """Its list of its own weights would be made anew for a copy without data; every such module ran itself."""
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        module = nn.Sequential(kind(4, 3))
        before = module[0]._flat_weights
        assert results_of(module.forward, [torch.randn(2, 5, 4)], {}).set_by() == ""
        assert module[0]._flat_weights is before
