"""Kernels for the gradients beside a forward: in files and packages, by name, and only where they are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest
import torch
import tvm_ffi
from factories import attempt, passed
from support.processes import alone
from support.scaled_pair import BACKWARD, drawn, expected, scaled_pair

from rag_kernels.archive.records import Attempt
from rag_kernels.cli.verify import _Judging
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Candidate, Problem, TensorArgument, TensorSpec
from rag_kernels.export.backward import pulled_of
from rag_kernels.export.check import Checked, check_package
from rag_kernels.export.evidence import Pulled
from rag_kernels.export.forms.module_file import module_text
from rag_kernels.export.packages import write_package
from rag_kernels.ingest.functional.gradients import GradientNames, backward_problem


@pytest.fixture(scope="module")
def forward_and_backward() -> tuple[Attempt, Attempt]:
    return scaled_pair()


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """What torch.compile learnt of sizes in other tests decides when it makes one free."""
    torch._dynamo.reset()


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


CUDA = """
#include "rag_kernel.h"
typedef rk::Tensor<const double> In;
__global__ void each(const double* x, const double* w, double rate, int64_t n, int64_t all, double* out, double* sum) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < all) out[i] = tanh(x[i] * w[i % n]) * rate, sum[i] = x[i] + w[i % n];
}
void scaled(In x, In weight, double rate, rk::Tensor<double> out, rk::Tensor<double> sum) {
  const int64_t all = x.numel(), n = weight.numel();
  RK_LAUNCH(each, dim3((all + 255) / 256), dim3(256), 0, out, x.data, weight.data, rate, n, all, out.data, sum.data);
}
RK_EXPORT(forward, scaled)
"""
BACKWARD_CUDA = """
#include "rag_kernel.h"
typedef rk::Tensor<const double> In;
__global__ void each(const double* g, const double* h, const double* x, const double* w, double rate, int64_t n,
                     int64_t rows, double* dx, double* dw) {
  const int64_t c = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (c >= n) return;
  double sum = 0;
  for (int64_t i = c; i < rows * n; i += n) {
    const double t = tanh(x[i] * w[c]), slope = rate * g[i] * (1 - t * t);
    dx[i] = slope * w[c] + h[i], sum += slope * x[i] + h[i];
  }
  dw[c] = sum;
}
void pulled(In g, In h, In x, In weight, double rate, rk::Tensor<double> dx, rk::Tensor<double> dweight) {
  const int64_t n = weight.numel();
  RK_LAUNCH(each, dim3((n + 255) / 256), dim3(256), 0, dx, g.data, h.data, x.data, weight.data, rate, n, x.numel() / n,
            dx.data, dweight.data);
}
RK_EXPORT(forward, pulled)
"""


@pytest.mark.skipif(not shutil.which("nvcc"), reason="builds for a GPU")
def test_packages_for_a_gpu_hold_both_kernels(forward_and_backward: tuple[Attempt, Attempt], tmp_path: Path) -> None:
    """Form and build; they are trained with in tests/bench/exported_gradients.py, where a GPU is."""
    forward, backward = (
        replace(one, candidate=Candidate(source, "kernel", "cuda"))
        for one, source in zip(forward_and_backward, (CUDA, BACKWARD_CUDA), strict=True)
    )
    pulled = Pulled(backward, GradientNames((0, 1), ("0", "weight")))
    for form in ("torch-op", "wheel", "hf-kernels"):
        written = write_package(forward, form, tmp_path / form, backward=pulled)
        checked = check_package(written)
        assert (checked.attempt, checked.backwards) == (forward, {forward.candidate.id: pulled})
        assert (checked.other_texts, checked.other_libraries) == ((), ())
        place = tmp_path / f"unpacked-{form}"
        ZipFile(written).extractall(place) if form == "wheel" else shutil.copytree(written, place)
        built = {file.name: file.read_bytes() for file in place.rglob("*.so")}
        assert sorted(built) == ["backward.so", "kernel.so"]
        assert all(b"__tvm_ffi_forward" in library for library in built.values())
        assert {file.name for file in place.rglob("*.cu")} == {"backward.cu", "kernel.cu"}
    sources = tmp_path / "hf-kernels" / "scaled_cuda"
    includes = [f"-I{place}" for place in (sources, *map(str, tvm_ffi.libinfo.include_paths()))]
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", *includes]
    subprocess.run([*command, *map(str, sources.glob("*.cu")), "-o", str(tmp_path / "both.so")], check=True)
    both = (tmp_path / "both.so").read_bytes()  # as kernel-builder links it
    assert b"__tvm_ffi_forward" in both and b"__tvm_ffi_backward" in both


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
