"""Exported modules in all ways to call them: the kernel runs where it holds, else the module, which says why."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from factories import attempt, candidate, problem
from judging import OF_SIZES, verdict
from support.exported_calls import called
from support.kept import kept_judge
from torch import nn

import rag_kernels
from rag_kernels.archive.records import Attempt
from rag_kernels.best import Best
from rag_kernels.eval.build import compile as compiling
from rag_kernels.eval.problem import load_module, problem_from_source
from rag_kernels.eval.records import Candidate, Passed
from rag_kernels.export.drop_in import KernelNotUsed
from rag_kernels.export.out_file import write_kernel
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

NORM = """
import torch
import torch.nn as nn

SHIFT = 0.25


class Model(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.rand(features))
        self.register_buffer("gain", torch.ones(features))

    def forward(self, x, power: int = 2, mask=None):
        scale = torch.rsqrt(x.pow(power).mean(-1, keepdim=True) + self.eps)
        y = x * scale * self.weight * self.gain
        if self.training:
            y = y + SHIFT
        return y if mask is None else y * mask


def get_inputs():
    return [torch.randn(16, 64), 2]


def get_init_inputs():
    return [64, 1e-6]
"""


NORM_CPP = """
#include "rag_kernel.h"
#include <cmath>
typedef rk::Tensor<const float> In;
void norm(In x, int64_t power, In weight, In gain, int64_t dim, double eps, double shift, rk::Tensor<float> out) {
  const int64_t n = weight.numel(), rows = x.numel() / n;
  RK_CHECK(rows != 301, "301 rows are too odd");  // a check that its contract does not know
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += double(x.data[r * n + i]) * x.data[r * n + i];
    const float scale = float(1.0 / std::sqrt(sum / n + eps));
    for (int64_t i = 0; i < n; ++i)
      out.data[r * n + i] = x.data[r * n + i] * scale * weight.data[i] * gain.data[i] + float(shift);
  }
}
RK_EXPORT(forward, norm)
"""


@pytest.fixture(scope="module")
def norm_attempt() -> Attempt:
    """Scaled rows, as the judge passed them, with its contract: an attribute, a global, a mode, and a number."""
    with kept_judge("cpu", limits=OF_SIZES, at_other_sizes=at_other_sizes) as judge:
        p = functionalize(problem_from_source("norm", NORM), workers=judge.workers)
        passed = verdict(judge, p, NORM_CPP)
    assert isinstance(passed, Passed), passed
    return attempt(p=p, candidate=Candidate(NORM_CPP, "kernel", "cpu"), verdict=passed)


@pytest.fixture
def norm(norm_attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    write_kernel(norm_attempt, tmp_path / "exported_norm.py")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("exported_norm", None)
    return importlib.import_module("exported_norm")


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """`relu(x) * factor` over 64 by 1024, factor 2."""
    folder = tmp_path_factory.mktemp("exported")
    p = problem("tanh")
    write_kernel(attempt(p=p, candidate=candidate(p)), folder / "exported_tanh.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("exported_tanh")


X = torch.randn(64, 1024)


@pytest.mark.parametrize("how", ["position", "keyword"])
def test_it_is_used_however_the_same_values_are_given(best: ModuleType, how: str) -> None:
    module = best.ModelNew(2.0) if how == "position" else best.ModelNew(factor=2.0)
    result, told = called(module, X) if how == "position" else called(module, x=X)
    torch.testing.assert_close(result, torch.tanh(X) * 2.0)
    assert module.kernel_used and told == [] and module.kernel_calls == 1


def test_what_was_not_verified_falls_back_with_one_warning_that_names_it(best: ModuleType) -> None:
    other = best.ModelNew(3.0)
    assert "factor=3.0" in called(other, X)[1][0] and called(other, X)[1] == []
    changed = best.ModelNew(2.0)
    changed.factor = 0.5
    result, [told] = called(changed, X)
    torch.testing.assert_close(result, torch.tanh(X) * 0.5)
    assert "factor is 0.5, and was 2.0" in told and changed.kernel_used is False
    changed.factor = 2.0
    called(changed, X)
    assert changed.kernel_used
    for given, word in [(X[:3], "[3, 1024]"), (X.double(), "float64"), (X.bfloat16(), "bfloat16")]:
        result, [told] = called(changed, given)
        torch.testing.assert_close(result, torch.tanh(given) * 2.0)
        assert word in told
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in called(changed, X)[1][0]
    leaf = X.clone().requires_grad_()
    result, [told] = called(changed, leaf)
    result.sum().backward()
    assert leaf.grad is not None and "gradients" in told


def test_strided_inputs_eval_copies_threads_and_pickles_take_the_kernel(best: ModuleType) -> None:
    module = best.ModelNew(2.0).eval()
    for given in (torch.randn(1024, 64).T, torch.randn(64, 2048)[:, ::2]):
        torch.testing.assert_close(called(module, given)[0], torch.tanh(given) * 2.0)
        assert module.kernel_used
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(called(twin, X)[0], torch.tanh(X) * 2.0)
        assert twin.kernel_used
        twin.factor = 1.0
        assert "factor is 1.0" in called(twin, X)[1][0]
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(module, [X] * 16):
            torch.testing.assert_close(result, torch.tanh(X) * 2.0)


def test_without_a_compiler_it_falls_back(best: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    unbuilt = copy.copy(best.COMPILED)
    unbuilt.__dict__.pop("_forward", None)
    monkeypatch.setattr(best.ModelNew, "COMPILED", unbuilt)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    compiling.toolchain.cache_clear()
    try:
        module = best.ModelNew(2.0)
        result, [told] = called(module, X)
        torch.testing.assert_close(result, torch.tanh(X) * 2.0)
        assert "compiler" in told and called(module, X)[1] == []
    finally:
        compiling.toolchain.cache_clear()


def test_the_operator_passes_torchs_own_tests(best: ModuleType) -> None:
    torch.library.opcheck(best.COMPILED.op, (X,))
    torch.library.opcheck(best.COMPILED.op, (X.clone().requires_grad_(),))
    leaf = X.clone().requires_grad_()
    best.COMPILED.op(leaf).sum().backward()
    twin = X.clone().requires_grad_()
    (torch.tanh(twin) * 2.0).sum().backward()
    torch.testing.assert_close(leaf.grad, twin.grad)


def test_it_compiles_whole_at_two_shapes_and_exports(best: ModuleType) -> None:
    module = best.ModelNew(2.0)
    with torch.no_grad():
        whole = torch.compile(module, fullgraph=True, backend="aot_eager")
        for given in (X, X[:3], X):
            torch.testing.assert_close(whole(given), torch.tanh(given) * 2.0)
        module.factor = 0.5
        torch.testing.assert_close(whole(X), torch.tanh(X) * 0.5)
        module.factor = 2.0
        exported = torch.export.export(best.ModelNew(2.0), (X,))
        assert best.COMPILED.name in str(exported.graph)
        torch.testing.assert_close(exported.module()(X), torch.tanh(X) * 2.0)
        traced = torch.jit.trace(best.ModelNew(2.0), X)
        torch.testing.assert_close(traced(X * 3.0), torch.tanh(X * 3.0) * 2.0)


def test_what_is_recorded_without_the_operator_says_why(norm: ModuleType) -> None:
    """And is recorded: a free size is not made one that stays by asking whether it is the verified one."""
    module = norm.ModelNew(64)
    for wanted, grad, inputs, free in [
        ("gradients are wanted", True, (ROWS, 2), {"x": {0: torch.export.Dim("rows", min=2, max=4096)}, "power": None}),
        ("Free sizes need bounds", False, (ROWS, 2), {"x": {0: torch.export.Dim.AUTO}, "power": None}),
        ("mask is given", False, (ROWS, 2, torch.ones(64)), None),
    ]:
        with torch.set_grad_enabled(grad), pytest.warns(KernelNotUsed, match=wanted):
            torch.export.export(module, inputs, dynamic_shapes=free)


def test_a_replaced_submodule_or_hook_is_seen(best: ModuleType) -> None:
    module = best.ModelNew(2.0)
    module.register_forward_hook(lambda *_: None)  # run around it, so it takes nothing from the kernel
    called(module, X)
    assert module.kernel_used
    module.extra = nn.Identity()
    assert "modules changed" in called(module, X)[1][0]


ROWS = torch.randn(16, 64)


def same(module: Any, twin: nn.Module, *args: Any, used: bool, **kwargs: Any) -> str:
    """Call both and compare; return what was warned of."""
    twin.load_state_dict(module.state_dict())
    with torch.no_grad():
        result, told = called(module, *args, **kwargs)
        torch.testing.assert_close(result, twin(*args, **kwargs))
    assert module.kernel_used is used, module.kernel_reason
    assert len(told) < 2
    return "".join(told)


@pytest.mark.parametrize(("args", "kwargs"), [((64,), {}), ((64, 1e-6), {}), ((), {"features": 64, "eps": 1e-6})])
def test_constructor_arguments_are_compared_by_name(norm: ModuleType, args: Any, kwargs: Any) -> None:
    module, twin = norm.ModelNew(*args, **kwargs), norm.Model(64)
    for call in [{"x": ROWS}, {"power": 2, "x": ROWS}, {"x": ROWS, "mask": None}]:
        assert same(module, twin, used=True, **call) == ""
    assert same(module, twin, ROWS, 2, used=True) == "" and module.kernel_calls == 4
    assert same(module, twin, ROWS, mask=torch.ones(64), used=False)
    assert "eps=0.1" in same(norm.ModelNew(64, eps=0.1), norm.Model(64, 0.1), ROWS, used=False)
    assert "features=32" in same(norm.ModelNew(32), norm.Model(32), torch.randn(3, 32), used=False)


def test_every_value_that_the_forward_reads_is_compared_at_each_call(
    norm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, twin = norm.ModelNew(64), norm.Model(64)
    assert same(module, twin, ROWS, used=True) == ""
    module.eps = twin.eps = 0.5
    assert "eps is 0.5, and was 1e-06" in same(module, twin, ROWS, used=False)
    assert same(module, twin, ROWS, used=False) == "", "one warning a value"
    module.eps = twin.eps = 1e-6
    assert same(module, twin, ROWS, used=True) == ""
    assert "training is False" in same(module.eval(), twin.eval(), ROWS, used=False)
    assert same(module.train(), twin.train(), ROWS, used=True) == ""
    assert "input 1 is 4, and was verified as 2" in same(module, twin, ROWS, 4, used=False)
    monkeypatch.setattr(norm, "SHIFT", 7.0)
    assert "SHIFT is 7.0, and was 0.25" in same(module, twin, ROWS, used=False)
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(norm.Model, "forward", lambda module, x: x * 2.0)
        assert "Model.forward is" in same(module, twin, ROWS, used=False)
    norm = sys.modules["exported_norm"]
    with torch.no_grad():
        module.weight.mul_(3.0), module.gain.add_(1.0)  # tensors are given at each call: their content may change
    assert same(module, twin, ROWS, used=True) == ""
    module.weight = twin.weight = nn.Parameter(torch.rand(64))
    assert same(module, twin, ROWS, used=True) == ""
    reasons = module.kernel_fallbacks
    assert reasons["eps"].calls == 2 and "0.5" in reasons["eps"].reason


def test_free_sizes_of_the_contract_are_served_and_others_are_not(norm: ModuleType) -> None:
    module, twin = norm.ModelNew(64), norm.Model(64)
    for rows in (1, 7, 300, 7):
        assert same(module, twin, torch.randn(rows, 64), used=True) == ""
    assert "[2, 16, 64]" in same(module, twin, torch.randn(2, 16, 64), used=False)
    assert same(module, twin, torch.randn(0, 64), used=False) == "", "one warning an input"
    assert "[0, 64]" in module.kernel_reason
    with pytest.raises(RuntimeError, match="size of tensor"), pytest.warns(KernelNotUsed):
        module(torch.randn(16, 3))  # as the module says it


def test_what_the_kernel_itself_refuses_falls_back_with_its_words(norm: ModuleType) -> None:
    module, twin, odd = norm.ModelNew(64), norm.Model(64), torch.randn(301, 64)
    told = same(module, twin, odd, used=False)
    assert "301 rows are too odd" in told and "input 0 is float32[301, 64]" in told
    assert same(module, twin, odd, used=False) == "" and module.kernel_fallbacks["kernel"].calls == 2
    assert same(module, twin, odd[:300], used=True) == "", "the kernel is taken again"
    with pytest.raises(ValueError, match="301 rows are too odd"):  # an operator has no module
        norm.COMPILED.op(odd, 2, module.weight.detach(), module.gain)


def test_half_precisions_devices_and_frozen_parameters(norm: ModuleType) -> None:
    module, twin = norm.ModelNew(64), norm.Model(64)
    assert "bfloat16" in same(module.bfloat16(), twin.bfloat16(), ROWS.bfloat16(), used=False)
    module = norm.ModelNew(64)
    result, [told] = called(module, ROWS)
    assert "gradients are wanted of weight" in told and result.requires_grad
    module.requires_grad_(False)
    assert not called(module, ROWS)[1] and module.kernel_used, "frozen, so no gradients are wanted"
    meta, [told] = called(norm.ModelNew(64).to("meta"), ROWS.to("meta"))
    assert meta.device.type == "meta" and "is on meta, and the kernel is for cpu" in told
    one = torch.randn(16 * 64 + 1)[1:].view(16, 64)  # begins at an odd element
    assert same(norm.ModelNew(64), norm.Model(64), one, used=True) == ""


def test_modules_of_a_model_are_replaced_copied_pickled_and_reported(norm_attempt: Attempt) -> None:
    text = load_module("norms_of_a_user", norm_attempt.problem.problem.source)
    sys.modules[text.Model.__module__] = text
    model = nn.Sequential(text.Model(64, 1e-6), nn.ReLU(), text.Model(64, 1e-6), text.Model(64, 0.1))
    state = model.state_dict().keys()
    best = Best(text.Model(64, 1e-6), norm_attempt.problem.problem, (norm_attempt,), norm_attempt)
    with torch.no_grad():
        before = model(ROWS)
        assert rag_kernels.apply(model, [best]) == ["0", "2"]
        assert model.state_dict().keys() == state and isinstance(model[0], text.Model)
        for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(twin(ROWS), before)
            assert twin[0].kernel_used and twin[2].kernel_used
        model[2].eps = 0.5
        with pytest.warns(KernelNotUsed, match="eps is 0.5"):
            model(ROWS)
    first, second = rag_kernels.apply.report(model)  # type: ignore[attr-defined]
    assert (first.module, first.kernel, first.fallbacks) == ("0", 2, ())
    assert (second.module, second.kernel) == ("2", 1) and "eps is 0.5" in second.fallbacks[0].reason
    assert rag_kernels.apply(model, [best]) == [], "none is replaced twice"


def answer(module: Any, twin: nn.Module, *args: Any, **kwargs: Any) -> str:
    """Call an exported module and the original; return what ran, once their numbers agree."""
    twin.load_state_dict(module.state_dict())
    result, _ = called(module, *args, **kwargs)
    torch.testing.assert_close(result, twin(*args, **kwargs))
    return "kernel" if module.kernel_used else "module"


def strided(norm: ModuleType) -> str:
    """The module's result lies as its input does; the kernel's is contiguous, as the page says."""
    rows = torch.randn(64, 16).T
    assert not norm.Model(64)(rows).is_contiguous() and called(norm.ModelNew(64), rows)[0].is_contiguous()
    return answer(norm.ModelNew(64), norm.Model(64), rows)


def frozen(norm: ModuleType) -> str:
    module = norm.ModelNew(64).requires_grad_(False)
    return answer(module, norm.Model(64).requires_grad_(False), ROWS)


def changed(norm: ModuleType) -> str:
    module, twin = norm.ModelNew(64), norm.Model(64)
    module.eps = twin.eps = 0.5
    return answer(module, twin, ROWS)


def under_autocast(norm: ModuleType) -> str:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return answer(norm.ModelNew(64), norm.Model(64), ROWS)


def written_to(norm: ModuleType) -> str:
    module = norm.ModelNew(64)
    module.weight.mul_(3.0)
    return answer(module, norm.Model(64), ROWS)


def recorded(norm: ModuleType, *more: Any, named: bool = False, **how: Any) -> str:
    """What torch.compile records."""
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(str(graph.graph))
        return graph.forward

    torch._dynamo.reset()
    module, twin = norm.ModelNew(64), norm.Model(64)
    twin.load_state_dict(module.state_dict())
    module.eps = twin.eps = how.pop("eps", 1e-6)
    whole = torch.compile(module, backend=backend, **how)
    torch.testing.assert_close(whole(power=2, x=ROWS) if named else whole(ROWS, *more), twin(ROWS, *more))
    return "operator" if norm.COMPILED.name in seen[0] else "module"


def exported(norm: ModuleType, **bounds: int) -> str:
    module, twin = norm.ModelNew(64), norm.Model(64)
    twin.load_state_dict(module.state_dict())
    free = {"x": {0: torch.export.Dim("rows", **bounds)}, "power": None} if bounds else None
    program = torch.export.export(module, (ROWS, 2), dynamic_shapes=free)
    given = ROWS[:7] if bounds else ROWS
    torch.testing.assert_close(program.module()(given, 2), twin(given))
    return "operator" if norm.COMPILED.name in str(program.graph) else "module"


def recorded_changed(norm: ModuleType, what: str) -> str:
    """What torch.compile records once this was changed, in a module that was right before."""
    with pytest.MonkeyPatch.context() as patch:
        if what == "global":
            patch.setattr(norm, "SHIFT", 7.0)
        elif what == "forward":
            patch.setattr(norm.Model, "forward", lambda module, x, power: x * module.gain)
        return recorded(norm, 2, **({"eps": 0.5} if what == "attribute" else {}))


def jit_traced(norm: ModuleType) -> str:
    module = norm.ModelNew(64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.jit.trace(module, ROWS)(ROWS * 2.0), module(ROWS * 2.0))
    return "module" if module.kernel_fallbacks else "kernel"


def without_compiler(norm: ModuleType) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norm.ModelNew, "COMPILED", copy.copy(norm.COMPILED))
        patch.setenv("CXX", "/no/such/compiler")
        compiling.toolchain.cache_clear()
        try:
            return answer(norm.ModelNew(64), norm.Model(64), ROWS)
        finally:
            compiling.toolchain.cache_clear()


def graded(norm: ModuleType) -> str:
    with torch.enable_grad():
        return answer(norm.ModelNew(64), norm.Model(64), ROWS)


WAYS: dict[str, Any] = {
    "constructor arguments by position": lambda n: answer(n.ModelNew(64, 1e-6), n.Model(64), ROWS),
    "constructor arguments by keyword, inputs by keyword": lambda n: answer(
        n.ModelNew(eps=1e-6, features=64), n.Model(64), x=ROWS
    ),
    "another constant at construction": lambda n: answer(n.ModelNew(64, eps=0.1), n.Model(64, 0.1), ROWS),
    "other sizes at construction": lambda n: answer(n.ModelNew(32), n.Model(32), torch.randn(4, 32)),
    "a size that the contract leaves free": lambda n: answer(n.ModelNew(64), n.Model(64), ROWS[:7]),
    "a size that the kernel's own checks refuse": lambda n: answer(n.ModelNew(64), n.Model(64), torch.randn(301, 64)),
    "another rank": lambda n: answer(n.ModelNew(64), n.Model(64), ROWS[None]),
    "another number among the inputs": lambda n: answer(n.ModelNew(64), n.Model(64), ROWS, 4),
    "a changed attribute": changed,
    "parameters of other content": written_to,
    "eval() where the forward reads `training`": lambda n: answer(n.ModelNew(64).eval(), n.Model(64).eval(), ROWS),
    "gradients wanted": graded,
    "frozen parameters, without no_grad": frozen,
    "half precision": lambda n: answer(n.ModelNew(64).bfloat16(), n.Model(64).bfloat16(), ROWS.bfloat16()),
    "autocast": under_autocast,
    "strided inputs": strided,
    "copy.deepcopy": lambda n: answer(copy.deepcopy(n.ModelNew(64)), n.Model(64), ROWS),
    "pickle": lambda n: answer(pickle.loads(pickle.dumps(n.ModelNew(64))), n.Model(64), ROWS),
    "torch.compile": lambda n: recorded(n, 2),
    "torch.compile(fullgraph=True)": lambda n: recorded(n, 2, fullgraph=True),
    "torch.compile, inputs by keyword": lambda n: recorded(n, named=True),
    "torch.compile, with an input's default left out": recorded,
    "torch.compile, a changed attribute": lambda n: recorded_changed(n, "attribute"),
    "torch.compile, a changed global that the forward reads": lambda n: recorded_changed(n, "global"),
    "torch.compile, a forward replaced in the class": lambda n: recorded_changed(n, "forward"),
    "torch.export": exported,
    "torch.export, free sizes with bounds, without gradients": lambda n: exported(n, min=2, max=4096),
    "torch.export, free sizes without bounds": lambda n: exported(n, min=2),
    "torch.jit.trace": jit_traced,
    "no compiler on the machine": without_compiler,
}


def test_the_table_of_ways_to_call_is_what_happens(norm: ModuleType) -> None:
    made = []
    for way, call in WAYS.items():
        with torch.set_grad_enabled(call is frozen):
            made.append(f"| {way} | {call(norm)} |")
    text = "\n".join(made)
    page = (Path(__file__).parents[1] / "docs" / "exports.md").read_text()
    assert text in page, f"docs/exports.md has another table than:\n{text}"
