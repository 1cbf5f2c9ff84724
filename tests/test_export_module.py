"""The module that `--out best.py` writes, called in every way that users call modules, and its torch operator."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
import torch
from factories import attempt, candidate, problem
from torch import nn

from rag_kernels.eval.build import compile as compiling
from rag_kernels.export.drop_in import KernelNotUsed
from rag_kernels.export.formats import write_kernel


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """`relu(x) * factor` over 64 by 1024, factor 2."""
    folder = tmp_path_factory.mktemp("exported")
    p = problem("tanh")
    write_kernel(attempt(p=p, candidate=candidate(p)), folder / "exported_tanh.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("exported_tanh")


def called(module: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = module(*args, **kwargs)
    return result, [str(w.message) for w in seen if w.category is KernelNotUsed]


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


def test_a_replaced_submodule_or_hook_is_seen(best: ModuleType) -> None:
    module = best.ModelNew(2.0)
    module.register_forward_hook(lambda *_: None)  # run around it, so it takes nothing from the kernel
    called(module, X)
    assert module.kernel_used
    module.extra = nn.Identity()
    assert "modules changed" in called(module, X)[1][0]
