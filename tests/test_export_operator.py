"""A kernel as a torch operator: torch's own tests, gradients, compilers of graphs, copies and threads."""

from __future__ import annotations

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from factories import attempt, passed, problem
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Candidate, Contract, Problem, ServedTensor, TensorArgument, TensorSpec
from rag_kernels.export.module_file import module_text
from rag_kernels.export.runtime import CompiledForward

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features, dtype=torch.float64))
        self.rate = 0.5

    def forward(self, x):
        return torch.tanh(x * self.weight) * self.rate, x + self.weight


def get_inputs():
    return [torch.randn(8, 6, dtype=torch.float64)]


def get_init_inputs():
    return [6]
"""
CPP = """
#include "rag_kernel.h"
#include <cmath>
typedef rk::Tensor<const double> In;
void scaled(In x, In weight, double rate, rk::Tensor<double> out, rk::Tensor<double> sum) {
  const int64_t n = weight.numel();
  for (int64_t i = 0; i < x.numel(); ++i) {
    out.data[i] = std::tanh(x.data[i] * weight.data[i % n]) * rate;
    sum.data[i] = x.data[i] + weight.data[i % n];
  }
}
RK_EXPORT(forward, scaled)
"""


FUNCTIONAL = """
import torch


def module_fn(x, weight, *, rate=0.5):
    return torch.tanh(x * weight) * rate, x + weight
"""


@pytest.fixture(scope="module")
def best() -> ModuleType:
    """Of any number of rows, as the judge's contracts say it."""
    x, weight = TensorSpec((8, 6), "float64"), TensorSpec((6,), "float64")
    p = replace(
        problem("tanh"),
        problem=Problem("scaled", PROBLEM),
        source=FUNCTIONAL,
        arguments=(TensorArgument("x", "input", x, "0"), TensorArgument("weight", "parameter", weight, "weight")),
        constants=(("rate", 0.5),),
        outputs=(x, x),
    )
    tensors = ServedTensor("x", "float64", ("N", "6")), ServedTensor("weight", "float64", ("6",))
    served = Contract(tensors, (), "element", (("N", "6"), ("N", "6")))
    made = attempt(p=p, candidate=Candidate(CPP, "kernel", "cpu"), verdict=replace(passed(), contract=served))
    return load_module("scaled", module_text(made))


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """What torch.compile learnt of sizes in other tests decides when it makes one free."""
    torch._dynamo.reset()


def drawn(rows: int = 8, graded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x, weight = torch.randn(rows, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    return x.requires_grad_(graded), weight.requires_grad_(graded)


def expected(x: torch.Tensor, weight: torch.Tensor, rate: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tanh(x * weight) * rate, x + weight


@pytest.mark.parametrize("graded", [False, True])
def test_torchs_own_tests_of_operators_and_of_gradients(best: ModuleType, graded: bool) -> None:
    op = best.COMPILED.op
    torch.testing.assert_close(op(*drawn(graded=graded)), op(*drawn(graded=graded)), rtol=9, atol=9)
    assert torch.library.opcheck(op, drawn(graded=graded)).keys() == {
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    }
    if graded:
        assert torch.autograd.gradcheck(op, drawn(graded=True))
        x, weight = drawn(graded=True)
        assert torch.autograd.gradcheck(lambda weight: op(x.detach(), weight), (weight,)), "of one argument alone"


def test_it_has_a_typed_schema_and_refuses_what_was_not_verified(best: ModuleType) -> None:
    op = best.COMPILED.op
    assert str(op._opoverload._schema).endswith("(Tensor a0, Tensor a1) -> (Tensor, Tensor)")
    x, weight = drawn()
    assert getattr(torch.ops.rag_kernels, best.COMPILED.name)(x, weight)[0].shape == (8, 6)
    for wrong in [x.float(), x[0], torch.empty(0, 6, dtype=torch.float64)]:
        with pytest.raises(ValueError, match="input 0 is float"):
            op(wrong, weight)
    with pytest.raises(NotImplementedError, match="SparseCPU"):
        op(x.to_sparse(), weight)


class Seen(TorchDispatchMode):
    """Notes the operators that are called below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("direct", [True, False])
def test_modes_of_torch_see_it_whichever_way_it_was_registered(
    best: ModuleType, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a torch keeps the parts elsewhere, by which it is registered without `custom_op`'s wrappers."""
    if not direct:
        monkeypatch.delattr(torch._C, "_after_autograd_keyset")
    kernel = copy.deepcopy(best.COMPILED)
    op, (x, weight) = kernel.op, drawn()
    monkeypatch.undo()
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with context, Seen() as seen:
            torch.testing.assert_close(op(x, weight), expected(x, weight))
        assert f"rag_kernels::{kernel.name}" in seen.names
    imaginary = torch.complex(x, x).conj().imag
    assert imaginary.is_neg()
    torch.testing.assert_close(op(imaginary, weight), expected(-x, weight))
    with FakeTensorMode() as mode:
        assert op(mode.from_tensor(x), mode.from_tensor(weight))[0].shape == x.shape
    assert torch.library.opcheck(op, drawn(graded=True)) and torch.autograd.gradcheck(op, drawn(graded=True))


class Counted:
    """A backend for torch.compile that keeps the graphs."""

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs.append(str(module.graph))
        return module.forward


def test_fullgraph_compile_records_it_at_several_sizes(best: ModuleType) -> None:
    module, seen = best.ModelNew(6), Counted()
    whole = torch.compile(module, fullgraph=True, backend=seen)
    with torch.no_grad():
        for rows in (8, 3, 5):
            x, _ = drawn(rows)
            torch.testing.assert_close(whole(x), expected(x, module.weight))
        assert len(seen.graphs) == 2 and all(best.COMPILED.name in graph for graph in seen.graphs), "fixed, then free"
        module.rate = 3.0
        torch.testing.assert_close(whole(x), expected(x, module.weight, 3.0))
        assert best.COMPILED.name not in seen.graphs[-1]


def test_compiled_gradients_are_the_modules(best: ModuleType) -> None:
    module = best.ModelNew(6)
    whole = torch.compile(module, fullgraph=True, backend="aot_eager")
    for rows in (8, 3):  # at other sizes than the verified ones the module itself is compiled
        x, _ = drawn(rows, graded=True)
        module.weight.grad = None
        sum(map(torch.sum, whole(x))).backward()  # type: ignore[arg-type, union-attr, no-untyped-call]
        twin, weight = x.detach().clone().requires_grad_(), module.weight.detach().clone().requires_grad_()
        sum(map(torch.sum, expected(twin, weight))).backward()  # type: ignore[arg-type, union-attr, no-untyped-call]
        torch.testing.assert_close((x.grad, module.weight.grad), (twin.grad, weight.grad))


def test_inductor_runs_it(best: ModuleType) -> None:
    module = best.ModelNew(6).requires_grad_(False)
    whole = torch.compile(torch.nn.Sequential(module), fullgraph=True, dynamic=True)
    for rows in (8, 3):
        x, _ = drawn(rows)
        torch.testing.assert_close(whole(x), expected(x, module.weight))


def test_export_of_fixed_and_free_sizes_saved_and_loaded(best: ModuleType) -> None:
    module = best.ModelNew(6)
    for dynamic in (None, {"x": {0: torch.export.Dim("rows", min=2, max=1000)}}):
        with torch.no_grad():
            program = torch.export.export(module, drawn()[:1], dynamic_shapes=dynamic)
        assert best.COMPILED.name in str(program.graph)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
        x, _ = drawn(8 if dynamic is None else 13)
        torch.testing.assert_close(tuple(loaded(x)), expected(x, module.weight))


def test_copies_and_threads(best: ModuleType) -> None:
    op, calls = best.COMPILED.op, [drawn(rows) for rows in range(1, 33)]
    twin = copy.deepcopy(best.COMPILED)
    assert "served" not in vars(twin) and twin == best.COMPILED
    with ThreadPoolExecutor(4) as pool:
        for given, made in zip(calls, pool.map(lambda given: op(*given), calls), strict=True):
            torch.testing.assert_close(made, expected(*given))


def test_sizes_that_hang_together_are_served_as_verified_alone() -> None:
    """`y` must be two shorter than `x`, which free sizes do not say: another pair would be read out of bounds."""
    kernel = CompiledForward(
        "", "kernel", "cpu", [("input", "0", (8,), "float32", ("N",)), ("input", "1", (6,), "float32", ("M",))],
        {}, [((6,), "float32", ("M",))], name="trimmed", functional="def module_fn(x, y):\n    return x[1:-1] + y\n",
    )  # fmt: skip
    with pytest.raises(ValueError, match="hang together"):
        kernel.op(torch.ones(9), torch.ones(4))
    assert kernel.served.related
