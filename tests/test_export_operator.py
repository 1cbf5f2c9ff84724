"""A kernel as a torch operator: torch's own tests, gradients, compilers of graphs, copies and threads."""

from __future__ import annotations

import copy
import gc
import io
import json
import re
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
import torch
import tvm_ffi
from factories import attempt, passed, problem
from support.processes import alone
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rag_kernels.archive.records import Attempt
from rag_kernels.cli.verify import _Judging
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Candidate, Contract, Problem, ServedTensor, TensorArgument, TensorSpec
from rag_kernels.export.backward import pulled_of
from rag_kernels.export.check import Checked, check_package
from rag_kernels.export.evidence import Pulled
from rag_kernels.export.forms.module_file import module_text
from rag_kernels.export.packages import write_package
from rag_kernels.export.runtime import CompiledForward
from rag_kernels.export.serving import torch_operator
from rag_kernels.export.serving.launch import KernelRefused
from rag_kernels.ingest.functional.gradients import GradientNames, backward_problem

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


BACKWARD = """
import torch


def module_fn(g, h, x, weight, *, rate=0.5):
    slope = rate * g * (1 - torch.tanh(x * weight) ** 2)
    return slope * weight + h, (slope * x + h).sum(0)
"""
BACKWARD_CPP = """
#include "rag_kernel.h"
#include <cmath>
typedef rk::Tensor<const double> In;
void pulled(In g, In h, In x, In weight, double rate, rk::Tensor<double> dx, rk::Tensor<double> dweight) {
  RK_CHECK(x.data[0] != 77.0, "no 77");
  const int64_t n = weight.numel();
  for (int64_t i = 0; i < n; ++i) dweight.data[i] = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double t = std::tanh(x.data[i] * weight.data[i % n]), slope = rate * g.data[i] * (1 - t * t);
    dx.data[i] = slope * weight.data[i % n] + h.data[i];
    dweight.data[i % n] += slope * x.data[i] + h.data[i];
  }
}
RK_EXPORT(forward, pulled)
"""


@pytest.fixture(scope="module")
def forward_and_backward() -> tuple[Attempt, Attempt]:
    """Of any number of rows, as the judge's contracts say it; the backward of the verified ones."""
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
    pulled = replace(
        p,
        problem=backward_problem(p.problem),
        source=BACKWARD,
        arguments=(
            *(TensorArgument(name, "input", x, str(i)) for i, name in enumerate(["g", "h", "x"])),
            TensorArgument("weight", "parameter", weight, "forward_model.weight"),
        ),
        outputs=(x, weight),
    )
    return made, attempt(p=pulled, candidate=Candidate(BACKWARD_CPP, "kernel", "cpu"), verdict=passed())


@pytest.fixture(scope="module")
def best(forward_and_backward: tuple[Attempt, Attempt]) -> ModuleType:
    return load_module("scaled", module_text(forward_and_backward[0]))


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
    kernel = replace(best.COMPILED, name=f"scaled_{'directly' if direct else 'by_torch'}")
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


def test_an_operator_is_registered_once_and_the_last_kernel_of_its_name_answers(best: ModuleType) -> None:
    """Also in graphs that were recorded before; torch would free an operator of which another has the name."""
    kernel = replace(best.COMPILED, name="scaled_twice")
    op, (x, weight) = kernel.op, drawn()
    whole = torch.compile(lambda x, weight: op(x, weight), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close((op(x, weight), whole(x, weight)), (expected(x, weight), expected(x, weight)))
    again = replace(best.COMPILED, name="scaled_twice", constants={"rate": 3.0})
    wanted = expected(x, weight, 3.0)
    assert again.op is op and torch.ops.rag_kernels.scaled_twice.default is not None
    gc.collect()
    for call in (op, whole, torch.ops.rag_kernels.scaled_twice, kernel.op):
        torch.testing.assert_close(call(x, weight), wanted)
    assert torch.library.opcheck(op, drawn(graded=True))
    other = replace(kernel, arguments=kernel.arguments[:1], outputs=kernel.outputs[:1]).op
    assert other is not op and torch.ops.rag_kernels.scaled_twice_.default is not None, "another schema, another name"
    torch.testing.assert_close(op(x, weight), wanted)


def test_copies_of_the_file_share_what_is_registered(best: ModuleType) -> None:
    """As exported packages have it, also where one is imported twice."""
    copied = ModuleType("copied_operator")
    sys.modules["copied_operator"] = copied  # as dataclasses ask
    exec(compile(Path(str(torch_operator.__file__)).read_text(), "<copied>", "exec"), vars(copied))
    kernel = replace(best.COMPILED, name="scaled_copied")
    x, weight = drawn()
    first, second = kernel.op, copied.operator_of(kernel)
    del sys.modules["copied_operator"]
    assert first is second
    torch.testing.assert_close(first(x, weight), expected(x, weight))


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


@pytest.mark.parametrize("form", ["module", "standalone"])
def test_a_kernel_for_the_gradients_is_taken_where_it_serves(
    forward_and_backward: tuple[Attempt, Attempt], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, backward = forward_and_backward
    pulled = Pulled(backward, GradientNames((0, 1), ("0", "weight")))
    written = write_package(forward, form, tmp_path / "made.py", backward=pulled)
    checked = check_package(written)
    backwards = {forward.candidate.id: pulled}
    assert (checked.attempt, checked.backwards, checked.other_texts) == (forward, backwards, ())
    assert "Backward" not in write_package(forward, "module", tmp_path / "own.py").read_text(), "unknown to older ones"
    made = load_module(f"pulled_{form}", written.read_text())
    module, twin = made.ModelNew(6), made.Model(6)
    twin.load_state_dict(module.state_dict())
    recomputed: list[int] = []
    operators = sys.modules[made.Backward.__module__]
    usual = operators.functional_gradients
    monkeypatch.setattr(operators, "functional_gradients", lambda *given: recomputed.append(1) or usual(*given))
    for first, rows, used, again in [(0.5, 8, True, 0), (77.0, 8, True, 1), (0.5, 5, False, 0)]:
        recomputed.clear()
        x = torch.randn(rows, 6, dtype=torch.float64)
        x[0, 0] = first
        for m in (module, twin):
            m.weight.grad = None
        given = [x.clone().requires_grad_() for _ in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = module(given[0]), twin(given[1])
        for result in results:
            (result[0].cos().sum() + result[1].exp().sum()).backward()
        torch.testing.assert_close((given[0].grad, module.weight.grad), (given[1].grad, twin.weight.grad))
        assert (module.kernel_used, len(recomputed)) == (used, again), module.kernel_reason
    assert torch.library.opcheck(made.COMPILED.op, drawn(graded=True))


PULLED_CALLS = """
import sys, warnings, torch
recomputed = []
operators = sys.modules[k.__name__ + "._torch_operator"] if k.__name__ + "._torch_operator" in sys.modules else None
operators = operators or next(m for name, m in sys.modules.items() if name.endswith("._torch_operator"))
usual = operators.functional_gradients
operators.functional_gradients = lambda *given: recomputed.append(1) or usual(*given)


def leaves(first=0.5):
    x, weight = torch.randn(8, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    x[0, 0] = first
    return x.requires_grad_(), weight.requires_grad_()


def call(x, weight):
    return k.scaled(x, weight)


torch.autograd.gradcheck(call, leaves(), fast_mode=True)
operator = getattr(getattr(torch.ops, OPERATOR or "scaled"), "scaled")
torch.library.opcheck(operator, leaves())
whole = torch.compile(call, fullgraph=True, backend="aot_eager")
for first, again in [(0.5, 0), (77.0, 1)]:
    recomputed.clear()
    x, weight = leaves(first)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        out, total = call(x, weight)
        (out.cos().sum() + total.exp().sum()).backward()
    found = x.grad.clone(), weight.grad.clone()
    x.grad = weight.grad = None
    (torch.tanh(x * weight).mul(0.5).cos().sum() + (x + weight).exp().sum()).backward()
    torch.testing.assert_close(found, (x.grad, weight.grad))
    assert len(recomputed) == again, (first, recomputed)
    assert bool(again) is any("no 77" in str(w.message) for w in told)
recomputed.clear()
x, weight = leaves()
whole(x, weight)[0].sum().backward()
assert not recomputed and x.grad is not None
"""


@pytest.mark.parametrize("form", ["torch-op", "wheel", "hf-kernels"])
def test_packages_take_the_kernel_for_the_gradients(
    forward_and_backward: tuple[Attempt, Attempt], form: str, tmp_path: Path
) -> None:
    forward, backward = forward_and_backward
    pulled = Pulled(backward, GradientNames((0, 1), ("0", "weight")))
    written = write_package(forward, form, tmp_path / "made", backward=pulled)
    checked = check_package(written)
    assert (checked.backwards, checked.other_texts) == ({forward.candidate.id: pulled}, ())
    if form == "hf-kernels":
        pytest.importorskip("kernels")
        load = "from pathlib import Path\nfrom kernels import get_local_kernel\n"
        load += f"k = get_local_kernel(Path({str(written)!r}), backend='cpu')\n"
        linked(written / "scaled_cpu", tmp_path)
    else:
        load = "import scaled as k\n"
    place = tmp_path / "unpacked"
    if form == "wheel":
        ZipFile(written).extractall(place)
    elif form == "torch-op":
        shutil.copytree(written, place)
        load += f"import pytest\nassert not pytest.main(['-q', '-p', 'no:cacheprovider', {str(place / 'tests')!r}])\n"
    alone(f"{load}OPERATOR = k.__name__.rpartition('.')[2]\n{PULLED_CALLS}", place)
    [text] = {p.read_text() for p in (place if place.exists() else written / "build").rglob("CARD.md")} or {
        (written / "CARD.md").read_text()
    }
    for one in (forward, backward):
        assert f"# {one.problem.problem.name}: kernel {one.candidate.id}" in text
    [card] = {p.read_text() for p in (place if place.exists() else written).rglob("backward.json")}
    assert json.loads(card)["forward"] == forward.candidate.id and json.loads(card)["verdict"] == "Passed"


def linked(sources: Path, folder: Path) -> None:
    """Compile the sources into one library, as kernel-builder does, which has both under their names."""
    includes = [f"-I{place}" for place in (sources, *map(str, tvm_ffi.libinfo.include_paths()))]
    made = folder / "both.so"
    command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", *includes, *map(str, sources.glob("*.cpp"))]
    subprocess.run([*command, "-o", str(made)], check=True)
    library = tvm_ffi.load_module(str(made))
    x, weight = drawn()
    out, total = torch.empty_like(x), torch.empty_like(x)
    library.forward(x, weight, 0.5, out, total)
    torch.testing.assert_close((out, total), expected(x, weight))
    library.backward(out, total, x, weight, 0.5, torch.empty_like(x), torch.empty_like(weight))


def test_what_is_no_backward_of_a_kernel_says_why(
    forward_and_backward: tuple[Attempt, Attempt], tmp_path: Path
) -> None:
    forward, backward = forward_and_backward
    with pytest.raises(ProblemError, match="is not the backward of scaled"):
        pulled_of(forward, forward)
    other = replace(
        backward, problem=replace(backward.problem, source=BACKWARD.replace("* weight + h", "* weight - h"))
    )
    with pytest.raises(ProblemError, match="does not give the gradients of 0, weight, in this order"):
        pulled_of(forward, other)
    with pytest.raises(ProblemError, match="goes with the form module, hf-kernels, standalone, torch-op or wheel"):
        write_package(forward, "kernelbench", tmp_path / "made", backward=Pulled(backward, GradientNames((), ())))
    for names in [GradientNames((0, 1), ("weight", "0")), GradientNames((0, 7), ("0", "weight"))]:
        with pytest.raises(ProblemError, match="not those of its sizes"):
            write_package(forward, "module", tmp_path / "made.py", backward=Pulled(backward, names))
    assert list(tmp_path.iterdir()) == []


FROZEN = """
import torch


class Model(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.frozen = torch.nn.Parameter(torch.rand(features), requires_grad=False)
        self.learnt = torch.nn.Parameter(torch.rand(features))

    def forward(self, x):
        return x.argmax(1), torch.relu(x) * 2 + self.frozen + self.learnt


def get_inputs():
    return [torch.randn(8, 6)]


def get_init_inputs():
    return [6]
"""
FROZEN_CPP = """
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
void f(In x, In frozen, In learnt, rk::Tensor<int64_t> top, rk::Tensor<float> out) {
  const int64_t n = learnt.numel();
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t& best = top.data[i / n];
    if (i % n == 0 || x.data[i] > x.data[i - i % n + best]) best = i % n;
    out.data[i] = (x.data[i] > 0 ? x.data[i] : 0) * 2 + frozen.data[i % n] + learnt.data[i % n];
  }
}
RK_EXPORT(forward, f)
"""
FROZEN_BACKWARD_CPP = """
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
void f(In g, In x, rk::Tensor<float> dx, rk::Tensor<float> dlearnt) {
  const int64_t n = dlearnt.numel();
  for (int64_t i = 0; i < n; ++i) dlearnt.data[i] = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    dx.data[i] = x.data[i] > 0 ? 2 * g.data[i] : 0;
    dlearnt.data[i % n] += g.data[i];
  }
}
RK_EXPORT(forward, f)
"""


def test_gradients_are_those_of_the_arguments_that_want_one(
    forward_and_backward: tuple[Attempt, Attempt], tmp_path: Path
) -> None:
    """Two parameters of the same gradient, of which one is frozen, and an output that has none."""
    x, weight, top = TensorSpec((8, 6), "float32"), TensorSpec((6,), "float32"), TensorSpec((8,), "int64")
    p = replace(
        forward_and_backward[0].problem,
        problem=Problem("frozen", FROZEN),
        source="import torch\n\n\ndef module_fn(x, frozen, learnt):\n"
        "    return x.argmax(1), torch.relu(x) * 2 + frozen + learnt\n",
        arguments=(
            TensorArgument("x", "input", x, "0"),
            TensorArgument("frozen", "parameter", weight, "frozen"),
            TensorArgument("learnt", "parameter", weight, "learnt"),
        ),
        constants=(),
        outputs=(top, x),
    )
    pulled = replace(
        p,
        problem=backward_problem(p.problem),
        source="def module_fn(g, x):\n    return g * 2 * (x > 0), g.sum(0)\n",
        arguments=(TensorArgument("g", "input", x, "0"), TensorArgument("x", "input", x, "1")),
        outputs=(x, weight),
    )
    forward = attempt(p=p, candidate=Candidate(FROZEN_CPP, "kernel", "cpu"), verdict=passed())
    backward = attempt(p=pulled, candidate=Candidate(FROZEN_BACKWARD_CPP, "kernel", "cpu"), verdict=passed())
    found = pulled_of(forward, backward)
    assert found.names == GradientNames((1,), ("0", "learnt"))
    judging = _Judging(SimpleNamespace(), confirm=False, as_json=False)  # type: ignore[arg-type]
    judging.judged = {(a.problem.problem.id, a.candidate.id): [a] for a in (forward, backward)}
    for arguments in [("0", "learnt"), ("0", "frozen")]:
        checked = Checked(
            "module", (forward,), (), (), {forward.candidate.id: Pulled(backward, GradientNames((1,), arguments))}
        )
        assert judging.holds(Path("frozen.py"), checked) == (arguments == found.names.arguments)
    made = load_module("frozen", module_text(forward, found))
    module, twin = made.ModelNew(6), made.Model(6)
    twin.load_state_dict(module.state_dict())
    given = torch.randn(8, 6)
    for wants in (False, True):
        results = []
        for m in (module, twin):
            m.frozen.requires_grad_(wants)
            m.zero_grad()
            leaf = given.clone().requires_grad_()
            m(leaf)[1].cos().sum().backward()
            results.append((leaf.grad, m.learnt.grad, m.frozen.grad if wants else torch.zeros(6)))
        torch.testing.assert_close(*results)
        assert module.kernel_used, module.kernel_reason


def test_checking_a_file_runs_nothing_of_it(forward_and_backward: tuple[Attempt, Attempt], tmp_path: Path) -> None:
    """The functional forms of the evidence are those of a stranger."""
    forward, backward = forward_and_backward
    ran = tmp_path / "ran"
    planted = f"open({str(ran)!r}, 'w').close()\n"
    both = [replace(a, problem=replace(a.problem, source=planted + a.problem.source)) for a in (forward, backward)]
    pulled = Pulled(both[1], GradientNames((0, 1), ("0", "weight")))
    written = write_package(both[0], "module", tmp_path / "made.py", backward=pulled)
    assert check_package(written).backwards == {both[0].candidate.id: pulled} and not ran.exists()
    with pytest.raises(ProblemError, match="names of gradients cannot be read"):
        written.write_text(re.sub(r"evidence: gradients .*", "", written.read_text()))
        check_package(written)


def test_sizes_that_hang_together_are_served_as_verified_alone() -> None:
    """`y` must be two shorter than `x`, which free sizes do not say: another pair would be read out of bounds."""
    kernel = CompiledForward(
        "", "kernel", "cpu", [("input", "0", (8,), "float32", ("N",)), ("input", "1", (6,), "float32", ("M",))],
        {}, [((6,), "float32", ("M",))], name="trimmed", functional="def module_fn(x, y):\n    return x[1:-1] + y\n",
    )  # fmt: skip
    with pytest.raises(ValueError, match="hang together"):
        kernel.op(torch.ones(9), torch.ones(4))
    assert kernel.served.related


@pytest.mark.parametrize("tier", ["kernel", "composed"])
@pytest.mark.parametrize(
    ("backend", "raised", "falls_back"),
    [
        ("cuda", ValueError("too odd"), True),
        ("cuda", TypeError("a number was expected here"), True),
        ("cuda", RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        ("cuda", torch.OutOfMemoryError("CUDA out of memory"), False),
        ("cpu", RuntimeError("the kernel threw an exception of its own"), True),
        ("cpu", MemoryError(), False),
    ],
)
def test_only_a_kernels_own_checks_are_refusals(
    tier: Any, backend: Any, raised: Exception, falls_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the GPU is told, and nothing runs after it."""

    def forward(*given: Any) -> None:
        raise raised

    kernel = CompiledForward("", tier, backend, [("input", "0", (8,), "float32")], {}, [((8,), "float32")])
    monkeypatch.setattr(CompiledForward, "_arch", lambda self: "sm_90")
    monkeypatch.setitem(kernel._forwards, "sm_90", forward)
    with pytest.raises(KernelRefused if falls_back else type(raised)) as seen:
        kernel.run([torch.ones(8)], [(8,)])
    assert falls_back == isinstance(seen.value, KernelRefused) and str(raised) in str(seen.value)
