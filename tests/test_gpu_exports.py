"""An exported module where there are GPUs: the ways to call it that take several of them, and its operator on one.

python -m pytest --noconftest tests/test_gpu_exports.py
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from factories import attempt, passed, problem
from torch import nn

from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Candidate, Problem, TensorArgument, TensorSpec
from rag_kernels.export.forms.module_file import module_text
from rag_kernels.export.serving import served

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features))
        self.rate = 0.5

    def forward(self, x):
        return torch.tanh(x * self.weight) * self.rate


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return [1024]
"""
FUNCTIONAL = "import torch\n\n\ndef module_fn(x, weight, *, rate=0.5):\n    return torch.tanh(x * weight) * rate\n"
KERNEL = """
#include "rag_kernel.h"
__global__ void scaled(const float* x, const float* w, float* out, int64_t n, int64_t columns, float rate) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = tanhf(x[i] * w[i % columns]) * rate;
}
void run(rk::Tensor<const float> x, rk::Tensor<const float> w, double rate, rk::Tensor<float> out) {
  const int64_t n = x.numel();
  RK_LAUNCH(scaled, dim3((n + 255) / 256), dim3(256), 0, out, x.data, w.data, out.data, n, w.numel(), float(rate));
}
RK_EXPORT(forward, run)
"""
SHAPE = (64, 1024)


@pytest.fixture(scope="module", params=[1, 99])
def best(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """An exported file, whose tensors are asked by torch's own check of all, and one by one."""
    p = replace(
        problem("tanh"),
        problem=Problem("scaled", SOURCE),
        source=FUNCTIONAL,
        arguments=(
            TensorArgument("x", "input", TensorSpec(SHAPE, "float32"), "0"),
            TensorArgument("weight", "parameter", TensorSpec(SHAPE[1:], "float32"), "weight"),
        ),
        constants=(("rate", 0.5),),
    )
    made = attempt(p=p, candidate=Candidate(KERNEL, "kernel", "cuda"), verdict=passed())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served, "MANY", request.param)
        yield load_module("scaled", module_text(made))


def pair(best: ModuleType, device: str) -> tuple[Any, nn.Module]:
    """The exported module and the original, of the same parameters."""
    module, twin = best.ModelNew(1024).to(device), best.Model(1024).to(device)
    twin.load_state_dict(module.state_dict())
    return module, twin


def answer(module: Any, twin: nn.Module, x: torch.Tensor) -> str:
    """Call both; return what ran, once numbers and places agree and the current GPU is the one it was."""
    before = torch.cuda.current_device()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = twin(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                module(x)
            assert str(raised.value) == str(error) and " is on " in module.kernel_reason
            return "module, which raises"
        made = module(x)
    assert made.device == x.device and torch.cuda.current_device() == before
    torch.testing.assert_close(made, wanted)
    return "kernel" if module.kernel_used else "module"


def drawn(device: str) -> torch.Tensor:
    return torch.randn(SHAPE, device=device)


def moved(best: ModuleType) -> str:
    module, twin = pair(best, "cuda:0")
    assert answer(module, twin, drawn("cuda:0")) == "kernel"
    return answer(module.to("cuda:1"), twin.to("cuda:1"), drawn("cuda:1"))


def copied(best: ModuleType) -> str:
    module, twin = pair(best, "cuda:0")
    return answer(copy.deepcopy(module).to("cuda:1"), twin.to("cuda:1"), drawn("cuda:1"))


def at_once(best: ModuleType) -> str:
    """A thread for each GPU."""
    pairs = [pair(best, f"cuda:{i % 2}") for i in range(8)]

    def several(i: int) -> str:
        with torch.no_grad():
            [told] = {answer(*pairs[i], drawn(f"cuda:{i % 2}")) for _ in range(50)}
        return told

    with ThreadPoolExecutor(4) as pool:
        [told] = set(pool.map(several, range(8)))
    return told


def on_a_stream(best: ModuleType) -> str:
    """Behind work of a stream of the other GPU."""
    module, twin = pair(best, "cuda:1")
    x, other = drawn("cuda:1"), drawn("cuda:1")
    with torch.cuda.stream(torch.cuda.Stream("cuda:1")):
        torch.cuda._sleep(50_000_000)
        x.copy_(other)
        made = module(x).clone()
    torch.cuda.synchronize("cuda:1")
    torch.testing.assert_close(made, twin(other))
    return "kernel" if module.kernel_used else "module"


def recorded(best: ModuleType) -> str:
    module, twin = pair(best, "cuda:1")
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(str(graph.graph))
        return graph.forward

    x = drawn("cuda:1")
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, backend=backend, fullgraph=True)(x), twin(x))
    return "operator" if best.COMPILED.name in seen[0] else "module"


WAYS: dict[str, Any] = {
    "everything on another GPU than the current one": lambda b: answer(*pair(b, "cuda:1"), drawn("cuda:1")),
    "moved to another GPU after calls on the first": moved,
    "a deep copy on another GPU": copied,
    "two GPUs at once, from several threads": at_once,
    "on a stream of another GPU": on_a_stream,
    "torch.compile(fullgraph=True) on another GPU": recorded,
    "parameters on one GPU, inputs on another": lambda b: answer(*pair(b, "cuda:0"), drawn("cuda:1")),
    "parameters on a GPU, inputs on the CPU": lambda b: answer(*pair(b, "cuda:0"), torch.randn(SHAPE)),
}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
def test_the_table_of_several_gpus_is_what_happens(best: ModuleType) -> None:
    torch.cuda.set_device(0)
    with torch.no_grad():
        text = "\n".join(f"| {way} | {call(best)} |" for way, call in WAYS.items())
    page = (Path(__file__).parents[1] / "docs" / "exports.md").read_text()
    assert text in page, f"docs/exports.md has another table than:\n{text}"


def test_the_operator_on_a_gpu_by_torchs_own_tests(best: ModuleType) -> None:
    x, weight = drawn("cuda"), torch.rand(SHAPE[1], device="cuda")
    torch.library.opcheck(best.COMPILED.op, (x, weight))
    torch.library.opcheck(best.COMPILED.op, (x.requires_grad_(), weight.requires_grad_()))
    best.COMPILED.op(x, weight).sum().backward()
    found = x.grad, weight.grad
    x.grad = weight.grad = None
    (torch.tanh(x * weight) * 0.5).sum().backward()
    torch.testing.assert_close(found, (x.grad, weight.grad))


def test_a_cuda_graph_of_the_module_is_played_on_other_inputs(best: ModuleType) -> None:
    module, twin = pair(best, "cuda")
    with torch.no_grad():
        x = drawn("cuda")
        module(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = module(x)
        x.copy_(drawn("cuda"))
        graph.replay()
        torch.testing.assert_close(made, twin(x))
    assert module.kernel_used
