"""Modules that change their inputs or buffers in place: with a kernel they change the same, or run themselves."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from factories import attempt
from support.kept import kept_workers
from torch import nn, randn

from rag_kernels.archive.records import Attempt
from rag_kernels.best import Best, apply
from rag_kernels.eval.problem import load_module, problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Candidate, ProblemError
from rag_kernels.export.drop_in import KernelNotUsed
from rag_kernels.export.forms.module_file import module_text
from rag_kernels.export.packages import write_package
from rag_kernels.export.serving.changed import written_to
from rag_kernels.export.serving.layer import LayerCall
from rag_kernels.ingest.functional.functionalize import functionalize

HEAD = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        {init}

    def forward(self, {given}):
        {body}


def get_inputs():
    return [torch.randn(8, 16), torch.randn(8, 16)]


def get_init_inputs():
    return [0.25]
"""
STEP = HEAD.format(
    init='self.register_buffer("average", torch.zeros(8, 16))',
    given="p, g",
    body="""p.sub_(g, alpha=self.rate)
        self.average[:, :8] = self.average[:, :8].lerp(p[:, :8], 0.5)
        self.average[:, 8:].lerp_(p[:, 8:], 0.5)
        return {"norm": g.square().sum(1), "new": [self.average, p], "again": p}""",
)
STEP_CPP = """
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
typedef rk::Tensor<float> Out;
typedef int64_t Int;
void step(In p, In g, In average, double rate, double, Int, Int, Int, Int, Int,
          Out norm, Out moved, Out made, Out again) {
  for (int64_t r = 0; r < 8; ++r) {
    norm.data[r] = 0;
    for (int64_t i = r * 16; i < r * 16 + 16; ++i) {
      norm.data[r] += g.data[i] * g.data[i];
      made.data[i] = again.data[i] = p.data[i] - float(rate) * g.data[i];
      moved.data[i] = average.data[i] + 0.5f * (made.data[i] - average.data[i]);
    }
  }
}
RK_EXPORT(forward, step)
"""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as kept:
        yield kept


def made_of(source: str, kernel: str, workers: Workers) -> Attempt:
    p = functionalize(problem_from_source("in_place", source), workers=workers)
    return attempt(p=p, candidate=Candidate(kernel, "kernel", "cpu"))


@pytest.fixture(scope="module")
def step(workers: Workers) -> Attempt:
    return made_of(STEP, STEP_CPP, workers)


@pytest.fixture(scope="module", params=["module", "standalone"])
def file(step: Attempt, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    place = write_package(step, request.param, tmp_path_factory.mktemp("in_place") / "best.py")
    return loaded(f"in_place_{request.param}", place.read_text())


def loaded(name: str, text: str) -> ModuleType:
    found = load_module(name, text)
    sys.modules[found.Model.__module__] = found
    return found


def drawn() -> list[torch.Tensor]:
    return [randn(8, 16), randn(8, 16)]


def told_of(call: Any, *given: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = call(*given)
    return result, [str(w.message) for w in seen if w.category.__name__ == KernelNotUsed.__name__]


def same_in_both(module: Any, twin: nn.Module, *given: torch.Tensor) -> str:
    """Call both twice with the same; compare results, inputs and buffers; return what the first warns of."""
    copies, told = copy.deepcopy(given), []
    kept = []
    for _ in range(2):
        with torch.no_grad():
            found, said = told_of(module, *given)
            kept.append((found, twin(*copies)))
        told += said
        for one, other in kept:  # what the first call returned is changed by the second
            torch.testing.assert_close(one, other)
        torch.testing.assert_close(given, copies)
        torch.testing.assert_close(dict(module.named_buffers()), dict(twin.named_buffers()))
    assert len(told) == (not module.kernel_used)
    return told[0] if told else ""


def test_inputs_and_buffers_change_as_the_modules(file: ModuleType) -> None:
    module, twin, given = file.ModelNew(0.25), file.Model(0.25), drawn()
    before = given[0].clone()
    same_in_both(module, twin, *given)
    assert module.kernel_used and not torch.equal(before, given[0])
    version = given[0]._version
    result = module(*given)
    assert result["new"][1] is given[0] is result["again"] and result["new"][0] is module.average
    assert given[0]._version > version and given[1]._version == 0


def test_what_may_change_otherwise_runs_the_module(step: Attempt) -> None:
    file = loaded("in_place", module_text(step))
    flat = randn(2, 8, 16)
    cases = [
        ([*flat], ""),  # parts of one tensor that do not meet
        ([randn(16, 8).T, randn(8, 16)], "not contiguous"),
        ([randn(8, 16), randn(16, 8).T], ""),
    ]
    for given, word in cases:
        told = same_in_both(file.ModelNew(0.25), file.Model(0.25), *given)
        assert word in told and bool(word) is bool(told)
    module, p = file.ModelNew(0.25), flat.view(-1)
    with torch.no_grad(), pytest.raises(RuntimeError, match="single memory location"):
        told_of(module, p[:128].view(8, 16), p[64:192].view(8, 16))  # by the module's own step
    assert "shares its memory" in module.kernel_reason
    p = randn(8, 16, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        told_of(module, p, randn(8, 16))
    told_of(module, p * 1, randn(8, 16))[0]["again"].sum().backward()
    assert p.grad is not None and not module.kernel_used


def test_in_graphs_the_module_changes_them(file: ModuleType) -> None:
    torch._dynamo.reset()
    module, twin = file.ModelNew(0.25), file.Model(0.25)
    whole = torch.compile(module, backend="aot_eager", fullgraph=True)
    given = drawn()
    copies = copy.deepcopy(given)
    said = []
    with torch.no_grad():
        for _ in range(2):
            found, told = told_of(whole, *given)
            torch.testing.assert_close(found, twin(*copies))
            torch.testing.assert_close(given, copies)
            said += told
    torch.testing.assert_close(module.average, twin.average)
    assert len(said) == 1 and "changes tensors in place" in said[0]


def test_modules_of_others_change_them_too(step: Attempt) -> None:
    file = loaded("in_place_of_others", step.problem.problem.source)
    model = nn.ModuleList([file.Model(0.25), file.Model(0.5)])
    twin = copy.deepcopy(model)
    best = Best(file.Model(0.25), step.problem.problem, (step,), step)
    assert apply(model, [best]) == ["0"]
    for one, other in [(model, twin), (copy.deepcopy(model), copy.deepcopy(twin))]:
        same_in_both(one[0], other[0], *drawn())
        assert one[0].kernel_used


NOT_MADE = {
    "running statistics": (
        "self.norm = nn.BatchNorm1d(16)",
        "return self.norm(p) * self.rate",
        "changes norm.num_batches_tracked, norm.running_mean, norm.running_var in place, and does not return it",
    ),
    "a cache": (
        'self.register_buffer("cache", torch.zeros(8, 32))',
        "self.cache[:, 16:] = g\n        return self.cache.sum(1, keepdim=True) * p",
        "changes cache in place, and does not return it",
    ),
    "a part": ("pass", "g.mul_(self.rate)\n        return p * 1, g[:4]", "returns a part of input 1"),
    "a new tensor": (
        'self.register_buffer("hidden", torch.zeros(8, 16))',
        "self.hidden = torch.tanh(p + self.hidden)\n        return self.hidden",
        "changes hidden in place, and does not return it",
    ),
    "a count": (
        "self.calls = nn.Identity()\n        self.calls.many = 0",
        "self.calls.many += 1\n        return p * self.rate",
        "the module sets calls.many when it is called",
    ),
    "what it made": (
        "pass",
        "self.last = p * self.rate\n        return self.last + 1",
        "the module sets last when it is called",
    ),
    "what it gathers": (
        "self.calls = nn.Identity()\n        self.calls.many = [0]",
        "self.calls.many.append(1)\n        return p * self.rate",
        "the module sets calls.many when it is called",
    ),
    "what it gathers deeper": (
        "self.calls = nn.Identity()\n        self.calls.many = ({'of': [0]},)",
        "self.calls.many[0]['of'].append(1)\n        return p * self.rate",
        "the module sets calls.many when it is called",
    ),
    "what its objects gather": (
        "self.calls = __import__('types').SimpleNamespace(many=[0])",
        "self.calls.many = [*self.calls.many, 1]\n        return p * self.rate",
        "the module sets calls when it is called",
    ),
}


def source_of(case: str) -> str:
    init, body, _ = NOT_MADE[case]
    return HEAD.format(init=init, given="p, g", body=body)


@pytest.mark.parametrize("case", NOT_MADE)
def test_what_the_kernel_does_not_make_is_changed_by_the_module(case: str, workers: Workers) -> None:
    file = loaded("in_place_not_made", module_text(made_of(source_of(case), STEP_CPP, workers)))
    module, twin = file.ModelNew(0.25), file.Model(0.25)
    assert NOT_MADE[case][2] in same_in_both(module, twin, *drawn())
    assert module.kernel_used is False
    if "calls" in source_of(case):
        assert module.calls.many == twin.calls.many in (2, [0, 1, 1], ({"of": [0, 1, 1]},))


@pytest.mark.parametrize("case", [case for case in NOT_MADE if case.startswith(("a count", "what"))])
def test_forms_for_other_loaders_leave_a_module_that_sets_attributes_to_itself(
    case: str, workers: Workers, tmp_path: Path
) -> None:
    """The layer of `hf-kernels`, and the ModelNew of `kernelbench`: asked without data, modules stay what they were."""
    made = made_of(source_of(case), STEP_CPP, workers)
    file = loaded("in_place_layer", module_text(made))
    layer, replaced = LayerCall(file.COMPILED.op, file.COMPILED.served, lambda: file.Model(0.25)), file.Model(0.25)
    bench = loaded("in_place_bench", without_build(write_package(made, "kernelbench", tmp_path / "bench.py")))
    other = bench.ModelNew(0.25)
    for call, module in [(lambda *given: layer(replaced, given), replaced), (other, other)]:
        twin, given, said = file.Model(0.25), drawn(), list[str]()
        for _ in range(2):
            with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                torch.testing.assert_close(call(*given), twin(*given))
            said += [str(w.message) for w in seen]
        assert "when it is called, and a kernel sets nothing." in said[0]
        if "calls" in source_of(case):
            assert module.calls.many == twin.calls.many
        else:
            torch.testing.assert_close(module.last, twin.last)


def without_build(file: Path) -> str:
    """The text of a file for KernelBench, whose kernel is not built: no call is to come to it."""
    build, text = "from torch.utils.cpp_extension import load_inline", file.read_text()
    assert build in text
    return text.replace(build, "load_inline = __import__('unittest.mock').mock.Mock()")


def test_results_that_are_of_what_is_changed_stay_what_they_were() -> None:
    """A composed kernel may return a part of what it was given."""
    p = randn(8, 16)
    wanted, old = p * 2, p[:4].clone()
    (first, second), reason = written_to({"input 0": p}, [(0, "input 0")], (p * 2, p[:4]))
    assert first is p and not reason.text
    torch.testing.assert_close([p, second], [wanted, old])
    assert written_to({"input 0": p}, [(0, "input 0")], p[:4])[1].what == "input 0"


ROWS = {
    "inputs and buffers that are changed in place, and returned": (STEP, [randn(8, 16), randn(8, 16)]),
    "parts of one tensor that do not meet, of which one is changed": (STEP, [*randn(2, 8, 16)]),
    "a strided input that is changed": (STEP, [randn(16, 8).T, randn(8, 16)]),
    "running statistics": (source_of("running statistics"), [randn(8, 16), randn(8, 16)]),
    "a buffer that is changed in place, and not returned": (source_of("a cache"), [randn(8, 16), randn(8, 16)]),
}


def test_the_table_of_what_is_changed_is_what_happens(workers: Workers) -> None:
    made = []
    for row, (source, given) in ROWS.items():
        file = loaded("in_place_row", module_text(made_of(source, STEP_CPP, workers)))
        module, twin = file.ModelNew(0.25), file.Model(0.25)
        told = same_in_both(module, twin, *given)
        made.append(f"| {row} | {'kernel' if module.kernel_used else 'module'} |")
        assert bool(told) is not module.kernel_used
    text = "\n".join(made)
    page = (Path(__file__).parents[1] / "docs" / "exports.md").read_text()
    assert text in page, f"docs/exports.md has another table than:\n{text}"


@pytest.mark.parametrize("form", ["torch-op", "wheel", "hf-kernels", "flashinfer-bench", "gpu-mode", "kernelbench"])
def test_forms_without_the_module_are_not_written(step: Attempt, form: str, tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="export it as module"):
        write_package(step, form, tmp_path / "made")
    assert not list(tmp_path.iterdir())
