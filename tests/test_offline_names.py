"""Names of arguments stay clear of those that generated kernels declare."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import deep_cases as deep
from support import generated_kernels as numbers
from support import product_cases as products
from support.generated_kernels import Case, functional, halved, worst_ratio

from rag_kernels.eval import codec
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.ir.parameters import c_name

SHARED = {
    "long": Case("return (x * y).softmax(-1)", "torch.randn(4, 40000)", "torch.randn(40000)"),
    "odd": Case("return x.softmax(-1) + y", "torch.randn(4, 40001)", "torch.randn(1)"),
}
SIXTEEN = ("torch.randn(2, 2, 128, 64).half()", "torch.randn(2, 2, 128, 64).half()")
MANY = {"sums": deep.MANY_SUMS, "residual": deep.RESIDUAL, "bottlenecks": deep.BOTTLENECKS, **SHARED}
HALVES = {"matrices_16": halved(products.CASES["matrices"], "bfloat16")}
PARAMETERS = (
    CpuParameters(products=2),
    CudaParameters(products=2),
    CudaParameters(products=2, tensor=0),
    CudaParameters(products=2, sharing=0),
    CudaParameters(products=2, tensor=2),
    CudaParameters(attention=2),
)
ATTENTION = {  # in one of which no number is but scale and mask, and in the other an expression of indices
    "attention": Case("return F.scaled_dot_product_attention(x, x, x, is_causal=True) + y", *SIXTEEN),
    "gradients of attention": Case(
        "with torch.enable_grad():\n            x = x.detach().requires_grad_()\n"
        "            a = F.scaled_dot_product_attention(x, x, x, is_causal=True)\n"
        "            return torch.autograd.grad(a.float().square().sum(), x)[0] + y",
        *SIXTEEN,
    ),
    "biased attention": Case("return torch.softmax(x @ x.mT + torch.arange(128) * y[:, :, :1, :1], -1) @ x", *SIXTEEN),
}
PAIR = Case(
    "return self.g(x).sigmoid() * self.h(x)",
    "torch.randn(64, 64)",
    "torch.randn(1)",
    init="self.g = nn.Linear(64, 64); self.h = nn.Linear(64, 64)",
)
ROWS = Case(
    "s = self.l(x); return s.logsumexp(1), s.amax(1)",
    "torch.randn(64, 64)",
    "torch.randn(1)",
    init="self.l = nn.Linear(64, 64)",
)
PAIRS = {"pair": PAIR, "pair_16": halved(PAIR, "bfloat16"), "rows_16": halved(ROWS, "bfloat16")}
PIECES = Case(
    "return self.c(x)", "torch.randn(1, 24, 9, 12)", "torch.randn(1)", init="self.c = nn.ConvTranspose2d(24, 8, 4, 2)"
)
BY_REGISTERS = CudaParameters(products=2, tensor=2, turns=4)
JOINED = Case(
    "return self.c(x).amax((2, 3)).tanh(), self.d(x).sum(1).tanh()",
    "torch.randn(64, 24, 9, 12)",
    "torch.randn(1)",
    init="self.c = nn.Conv2d(24, 20, 3); self.d = nn.ConvTranspose2d(24, 8, 4, 2)",
)
FURTHER_PARAMETERS = {
    "pieces": (CudaParameters(products=2, tensor=2, turns=3), BY_REGISTERS),
    "joined": (BY_REGISTERS,),
}
CASES = {"pieces": PIECES, "joined": JOINED} | PAIRS | numbers.CASES | products.CASES | MANY | HALVES | ATTENTION
TYPE = (
    r"(?:bool|int|unsigned|CUtensorMap|uint64_t|int64_t|uint32_t|float|double|float4|dim3|auto|MaxSum|Place|Team|Cluster|Quotient|"
    r"Pack<\w+, \d>)"
)
FIRST = re.compile(rf"\b{TYPE}(?:\s*[*&]\s*|\s+)(?:const\s+)?(?:__restrict__\s+)?(\w+)(?=\s*[=\[;(,){{])")
STATEMENT = re.compile(rf"\s*(?:const |constexpr |extern |__shared__ |__align__\(\d+\) )*{TYPE}\b")
FURTHER = re.compile(r", \*?(?:const )?(\w+)(?: =|\[|;)")
FUNCTION = re.compile(r"__device__ (?:inline |__forceinline__ )?\w+ (\w+)\(|^inline \w+ (\w+)\(", re.MULTILINE)
OWN_SPACE = re.compile(r"^namespace attend \{.*?^\}  // namespace attend", re.MULTILINE | re.DOTALL)
BODIES = re.compile(r"^// [^\n]* (?:rows|columns|elements|products)\b.*", re.MULTILINE | re.DOTALL)


def declared(source: str) -> set[str]:
    """Names of variables in generated kernels and launches, and of the functions that they may call."""
    source = OWN_SPACE.sub("", source)
    found = {name for both in FUNCTION.findall(source) for name in both if name}
    bodies = BODIES.search(source)
    text = bodies[0] if bodies else ""
    further = [FURTHER.findall(line) for line in text.splitlines() if STATEMENT.match(line)]
    return found | set(FIRST.findall(text)) | {name for names in further for name in names}


@pytest.mark.parametrize("name", CASES)
def test_no_argument_keeps_a_name_that_generated_code_declares(name: str) -> None:
    fp = functional(name, CASES[name])
    known = {a.name for a in fp.arguments} | {node.name for node in fp.nodes}
    constants = tuple(constant for constant, _ in fp.constants)
    found = set()
    for parameters in (*PARAMETERS, *FURTHER_PARAMETERS.get(name, ())):
        plan = write(fp, parameters)
        found |= declared(plan.candidate.source) if plan else set()
    assert not {n for n in found - known if c_name(n) == n and not n.startswith(constants)}


@pytest.mark.parametrize("names", ["grid quads team", "parts partial ring", "met elements items"])
def test_arguments_may_have_any_names(names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix, a vector and a number, in tiles and in rows that blocks share; most of these names broke the build."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    matrix, vector, number = names.split()
    case = Case(
        f"return x @ self.{matrix} + self.{vector}, (y * self.{number}).softmax(-1)",
        "torch.randn(64, 64)",
        "torch.randn(2, 40000)",
        init=f"self.{matrix}, self.{vector}, self.{number} = nn.Parameter(torch.randn(64, 64)), "
        f"nn.Parameter(torch.randn(64)), 2.5",
    )
    fp = functional("names", case)
    plan = write(fp, CudaParameters(products=2, tensor=0))
    assert plan is not None and all(f"{name}_arg" in plan.candidate.source for name in names.split())
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_a_dimension_is_no_operand() -> None:
    """A number of the graph is passed under the name of its constant, unless that says where or how many."""
    case = Case(
        "return x.cumsum(dim=0).masked_fill(y > 3, 0) + 3, x.new_zeros(4, 5)", "torch.randn(4, 5)", "torch.randn(5)"
    )
    for parameters in (CpuParameters(), CudaParameters()):
        plan = write(functional("fill", case), parameters)
        assert plan is not None and not re.search(r"\(dim\w*\)", plan.candidate.source)


TEXT_OF = """
import sys
from rag_kernels.eval import codec
from rag_kernels.offline.compose import write
from rag_kernels.offline.cuda.function import CudaParameters
print(write(codec.loads(sys.stdin.read()), CudaParameters()).candidate.source)
"""


def test_a_text_is_the_same_in_every_process() -> None:
    """Sets of names come in another order in each, and nothing may follow it."""
    case = Case(
        "low, high = x[:, :2], x[:, 2:]; b = torch.stack((low - high, low + high), 1); return b, b * 2",
        "torch.randn(64, 4)",
        "torch.randn(1)",
    )
    told = codec.dumps(functional("corners", case))
    texts = set[str]()
    for seed in "1234":
        command = [sys.executable, "-c", TEXT_OF]
        done = subprocess.run(
            command, input=told, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1 and "_wide" in texts.pop()
