"""Problems as short cases, and what the offline writer makes of them: built, called, compared with PyTorch in fp64."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")

import torch
import torch.nn.functional as F
import tvm_ffi

from rag_kernels.eval.build.candidate_form import check_composed, kernels_text
from rag_kernels.eval.build.compile import Built, toolchain
from rag_kernels.eval.build.compile import build as compiled
from rag_kernels.eval.records import FunctionalProblem, Problem, TensorArgument
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.offline.compose import Plan
from rag_kernels.offline.cuda.function import CudaParameters

ROOT = Path(__file__).parent.parent.parent
FFI = Path(tvm_ffi.__file__).parent
SMALL = CudaParameters(threads=64, long_threads=128, team=4, sharing=0)  # blocks whose threads emulation runs quickly
RATIO = 8.0  # the judge allows 64; generated kernels are to be about as exact as PyTorch
HALF_RATIO = 1.1  # of PyTorch's own error in sixteen bits, which rounds after every operator
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, y):
        {body}


def get_inputs():
    return [{x}, {y}]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A module: what it makes, what it returns, its two inputs; and the tier that it must reach."""

    body: str
    x: str
    y: str
    init: str = "pass"
    tier: str = "kernel"


CASES = {
    "softmax_scale": Case(
        "return torch.softmax(x * 0.37, -1) + y",
        "torch.randn(37, 501)",
        "torch.randn(501)",
    ),
    "norms": Case(
        "return F.gelu(self.ln(x)), self.gn(y) + y, y / torch.sqrt(torch.mean(y ** 2, 1, keepdim=True) + 1e-5)",
        "torch.randn(33, 5, 70)",
        "torch.randn(3, 12, 9, 10)",
        init="self.ln = nn.LayerNorm(70); self.gn = nn.GroupNorm(4, 12)",
    ),
    "batch_norm_train": Case(
        "return F.leaky_relu(self.bn(x), 0.1) * y",
        "torch.randn(8, 6, 11, 13)",
        "torch.randn(13)",
        init="self.bn = nn.BatchNorm2d(6)",
    ),
    "swiglu": Case(
        "a, b = x.chunk(2, -1); return F.silu(a) * b, F.glu(y, 1)",
        "torch.randn(65, 130)",
        "torch.randn(4, 6, 5)",
    ),
    "linear_mish": Case(
        "return torch.tanh(F.mish(self.l(x))) * y",
        "torch.randn(20, 40)",
        "torch.randn(30)",
        init="self.l = nn.Linear(40, 30)",
        tier="composed",
    ),
    "conv_relu_pool": Case(
        "return F.max_pool2d(F.relu(self.c(x)), 3, 2, 1) + y",
        "torch.randn(4, 3, 31, 33)",
        "torch.randn(16)",
        init="self.c = nn.Conv2d(3, 8, 3)",
        tier="composed",
    ),
    "inception": Case(
        "x = F.max_pool2d(x.relu(), 3, 2, 1); "
        "x = torch.cat([self.a(x), self.c(self.b(x)), self.d(F.max_pool2d(x, 3, 1, 1))], 1); "
        "return self.f(self.e(x)) + y, x",
        "torch.randn(2, 24, 56, 56)",
        "torch.randn(28)",
        tier="composed",
        init="self.a, self.b, self.c = nn.Conv2d(24, 16, 1), nn.Conv2d(24, 8, 1), nn.Conv2d(8, 16, 3, padding=1); "
        "self.d, self.e, self.f = nn.Conv2d(24, 8, 1), nn.Conv2d(40, 16, 1), nn.Conv2d(16, 7, 3, padding=1)",
    ),
    "dense_block": Case(
        "x = F.max_pool2d(F.batch_norm(self.c(x), None, None, training=True).relu(), 3, 2, 1); "
        "return torch.cat([x, self.d((x * 2).sigmoid())], 1) + y",
        "torch.randn(2, 3, 14, 15)",
        "torch.randn(8)",
        init="self.c, self.d = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)",
        tier="composed",
    ),
    "sums": Case(
        "return x.sum(-1), x.mean(0), x.std(1), x.amax((0, 2)), x.argmax(1), torch.logsumexp(x, 2) + y",
        "torch.randn(6, 20, 30)",
        "torch.randn(20)",
    ),
    "cross_entropy": Case(
        "return F.cross_entropy(x, y)",
        "torch.randn(29, 13)",
        "torch.randint(0, 13, (29,))",
    ),
    "joined": Case(
        "return torch.cat([x, y.relu(), x[:, :2]], 1), torch.stack([x, x * 2], -1), "
        "torch.cat([torch.zeros_like(x[:, :, :1]), torch.cumsum(x[:, :, :-1], 2)], 2), "
        "torch.cat([x.transpose(0, 1).reshape(-1, 9), x[0]]).softmax(0)",
        "torch.randn(4, 7, 9)",
        "torch.randn(4, 3, 9)",
    ),
    "scans": Case(
        "return torch.cumsum(x, 1) + y, torch.cumprod(x * 0.5, 0), torch.cumsum(x.flip(1), 1).flip(1)",
        "torch.randn(50, 133)",
        "torch.randn(133)",
    ),
    "chain": Case(
        "return torch.sigmoid(torch.exp(x) * y + torch.erf(x)) - F.softplus(y) / F.hardswish(x + "
        "10), F.elu(x), F.logsigmoid(x)",
        "torch.randn(60, 37)",
        "torch.randn(37)",
    ),
    "column_softmax": Case(
        "return torch.softmax(x, 1), torch.log_softmax(x + y, 0)",
        "torch.randn(12, 17, 40)",
        "torch.randn(40)",
    ),
    "long_rows": Case(
        "return torch.softmax(x, -1), x.mean(), ((x - 3) ** 2).mean(), F.layer_norm(x, (100000,)) * y",
        "torch.randn(2, 100000) + 3",
        "torch.randn(1)",
    ),
    "pools": Case(
        "return F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, (5, 4)), F.max_pool2d(x, 2) * y",
        "torch.randn(2, 3, 20, 24)",
        "torch.randn(12)",
    ),
    "one_loop_twice": Case(
        "s = x.sum(1); return x / s[None, :] + s[:, None], F.relu(x) + F.relu(x).t() + y",
        "torch.rand(16, 16) + 1",
        "torch.randn(16)",
    ),
    "views": Case(
        "return (x + y.t()).transpose(0, 1).reshape(4, 8, 32)[:, ::2, 3:9] * 2, torch.triu(y)",
        "torch.randn(32, 32)",
        "torch.randn(32, 32)",
    ),
}


def halved(case: Case, dtype: str) -> Case:
    """The same case in another dtype: inputs and the module, but for indices."""
    x, y = (t if "randint" in t else f"({t}).to(torch.{dtype})" for t in (case.x, case.y))
    return dataclasses.replace(case, x=x, y=y, init=f"{case.init}; self.to(torch.{dtype})")


def functional(name: str, case: Case) -> FunctionalProblem:
    def lines(text: str) -> str:
        return "\n        ".join(part.strip() for part in text.split(";"))

    source = MODEL.format(init=lines(case.init), body=lines(case.body), x=case.x, y=case.y)
    found = functionalize_here({"problem": Problem(name, source), "threads": 2})
    assert isinstance(found, FunctionalProblem), found
    return found


def build(source: str, folder: Path) -> Any:
    """Compile C++ with the judge's compiler, but in less than half its time, and load it.

    Loops that are marked are made into vectors here too, and what may alias is what `-O3` goes by.
    """
    tools = dataclasses.replace(toolchain(), optimizing="-O1 -fstrict-aliasing")
    [built] = compiled([(source, "cpu")], tools=tools, cache=folder)
    assert isinstance(built, Built), built
    return tvm_ffi.load_module(str(built.library))


def empty_outputs(fp: FunctionalProblem) -> list[torch.Tensor]:
    """Poisoned, as the judge hands them out."""
    poison = [float("nan") if spec.dtype.startswith("float") else 99 for spec in fp.outputs]
    return [torch.full(s.shape, p, dtype=getattr(torch, s.dtype)) for s, p in zip(fp.outputs, poison, strict=True)]


def caller(plan: Plan, fp: FunctionalProblem, folder: Path) -> Callable[..., list[torch.Tensor]]:
    if plan.candidate.tier == "kernel":
        module = build(plan.candidate.source, folder)

        def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
            outputs = empty_outputs(fp)
            module.forward(*tensors, *(v for _, v in fp.abi_constants), *outputs)
            return outputs

        return call
    check_composed(plan.candidate.source)
    scope: dict[str, Any] = {"torch": torch, "F": F, "kernels": build(kernels_text(plan.candidate.source), folder)}
    exec(plan.candidate.source, scope)

    def compose(*tensors: torch.Tensor) -> list[torch.Tensor]:
        out = scope["forward"](*tensors, **dict(fp.constants))
        return list(out) if isinstance(out, tuple) else [out]

    return compose


def tensors_of(fp: FunctionalProblem, model: torch.nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    return [
        (inputs[int(a.path)] if a.role == "input" else state[a.path]).detach().clone()
        for a in fp.arguments
        if isinstance(a, TensorArgument)
    ]


def error_ratio(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> float:
    """RMS error against fp64, over PyTorch's own (with the rounding of the result as a floor)."""

    def rms(value: torch.Tensor) -> float:
        return float(value.double().pow(2).mean().sqrt())

    floor = 2.0**-25 * rms(exact)
    return rms(ours.double() - exact.double()) / max(rms(eager.double() - exact.double()), floor, 1e-300)


def worst_ratio(fp: FunctionalProblem, call: Callable[..., list[torch.Tensor]]) -> float:
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    torch.manual_seed(7)
    model, inputs = scope["Model"](), scope["get_inputs"]()
    ours = call(*tensors_of(fp, model, inputs))
    eager = model(*inputs)
    exact = model.double()(*(t.double() if t.is_floating_point() else t for t in inputs))
    every = [v if isinstance(v, tuple) else (v,) for v in (eager, exact)]
    for a, b in zip(ours, every[1], strict=True):
        assert a.shape == b.shape
    return max(error_ratio(a, b.detach(), c.detach()) for a, b, c in zip(ours, *every, strict=True))
