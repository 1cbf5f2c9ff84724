"""Small hand-made records for tests; no torch, no compiler, nothing runs.

Use it as a plain module (pytest puts `tests/` on the path): `from factories import attempt, problem`.

    p = problem()                          # scaled_relu: y = relu(x) * 2.0 over (64, 1024)
    p = problem("tanh", 0.5, (8, 16))      # another pointwise problem; its graph key does not depend on sizes
    p = linear_problem()                   # has two parameters: y = relu(F.linear(x, weight, bias))
    c = candidate(p)                       # real, right C++ for `problem()`; `variant=1` gives another source
    a = attempt("run1", 1, p)              # a confirmed pass; `verdict=wrong()` and the like for others
    r = run("run1")                        # a Run; start it before recording attempts
    call = llm_call("run1", "call1")

Every function takes keywords to override what matters to the test. Problem sources are valid KernelBench files
and functional sources define `module_fn`, so tests that do run torch can use them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rag_kernels.archive.records import Attempt, Edge, Exemplar, LLMCall, Relation, Run
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import (
    Backend,
    BuildFailed,
    Candidate,
    Compiled,
    Crashed,
    Features,
    FunctionalProblem,
    Node,
    Problem,
    Ref,
    Rejected,
    TensorArgument,
    TensorSpec,
    Tier,
    TimedOut,
    Verdict,
    Wrong,
)
from rag_kernels.scripted import device, environment, judged, measurement, passed

__all__ = ["device", "environment", "judged", "measurement", "passed"]  # and all that is defined here
CREATED_AT = "2026-01-02T03:04:05+00:00"

CPP = {
    "relu": "v > 0.0f ? v : 0.0f",
    "abs": "std::fabs(v)",
    "tanh": "std::tanh(v)",
    "sigmoid": "1.0f / (1.0f + std::exp(-v))",
    "exp": "std::exp(v)",
    "neg": "-v",
}


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def problem(
    op: str = "relu", factor: float = 2.0, shape: tuple[int, ...] = (64, 1024), *, name: str = ""
) -> FunctionalProblem:
    """A pointwise problem: `torch.<op>(x) * factor`, with `op` one of the keys of `CPP`."""
    source = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
        "    def __init__(self, factor):\n        super().__init__()\n        self.factor = factor\n\n"
        f"    def forward(self, x):\n        return torch.{op}(x) * self.factor\n\n\n"
        f"def get_inputs():\n    return [torch.randn({', '.join(map(str, shape))})]\n\n\n"
        f"def get_init_inputs():\n    return [{factor!r}]\n"
    )
    spec = TensorSpec(shape, "float32")
    n = _numel(shape)
    return FunctionalProblem(
        problem=Problem(name or f"scaled_{op}", source),
        source=f"import torch\n\n\ndef module_fn(x, *, factor={factor!r}):\n    return torch.{op}(x) * factor\n",
        arguments=(TensorArgument("x", "input", spec, "0"),),
        constants=(("factor", factor),),
        outputs=(spec,),
        nodes=(
            Node(op, f"aten.{op}.default", (Ref("x"),), (), (spec,)),
            Node("mul", "aten.mul.Tensor", (Ref(op), factor), (), (spec,)),
        ),
        results=("mul",),
        mutated=(),
        uses_random=False,
        graph_key=content_id("g", op, "mul", str(len(shape))),
        features=Features(
            operators=tuple(sorted((op, "mul"))),
            ranks=(len(shape),),
            dtypes=("float32",),
            parameter_count=0,
            flops=0,
            pointwise_flops=2 * n,
            bytes_moved=8 * n,
        ),
        verified=True,
    )


def linear_problem(
    batch: int = 32, features_in: int = 64, features_out: int = 48, *, name: str = "linear_relu"
) -> FunctionalProblem:
    """A problem with parameters: `relu(F.linear(x, weight, bias))`."""
    source = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
        "    def __init__(self, a, b):\n        super().__init__()\n        self.linear = nn.Linear(a, b)\n\n"
        "    def forward(self, x):\n        return torch.relu(self.linear(x))\n\n\n"
        f"def get_inputs():\n    return [torch.randn({batch}, {features_in})]\n\n\n"
        f"def get_init_inputs():\n    return [{features_in}, {features_out}]\n"
    )
    x = TensorSpec((batch, features_in), "float32")
    w = TensorSpec((features_out, features_in), "float32")
    b = TensorSpec((features_out,), "float32")
    y = TensorSpec((batch, features_out), "float32")
    functional = (
        "import torch\nimport torch.nn.functional as F\n\n\n"
        "def module_fn(x, linear_weight, linear_bias):\n"
        "    return torch.relu(F.linear(x, linear_weight, linear_bias))\n"
    )
    return FunctionalProblem(
        problem=Problem(name, source),
        source=functional,
        arguments=(
            TensorArgument("x", "input", x, "0"),
            TensorArgument("linear_weight", "parameter", w, "linear.weight"),
            TensorArgument("linear_bias", "parameter", b, "linear.bias"),
        ),
        constants=(),
        outputs=(y,),
        nodes=(
            Node("linear", "aten.linear.default", (Ref("x"), Ref("linear_weight"), Ref("linear_bias")), (), (y,)),
            Node("relu", "aten.relu.default", (Ref("linear"),), (), (y,)),
        ),
        results=("relu",),
        mutated=(),
        uses_random=False,
        graph_key=content_id("g", "linear", "relu", "2"),
        features=Features(
            operators=("linear", "relu"),
            ranks=(2,),
            dtypes=("float32",),
            parameter_count=features_out * (features_in + 1),
            flops=2 * batch * features_in * features_out,
            pointwise_flops=batch * features_out,
            bytes_moved=4 * (batch * features_in + features_out * (features_in + 1) + batch * features_out),
        ),
        verified=True,
    )


def candidate(
    p: FunctionalProblem | None = None,
    *,
    variant: int = 0,
    tier: Tier = "kernel",
    backend: Backend = "cpu",
) -> Candidate:
    """C++ for a problem of `problem()`: builds and is right. `variant` changes the text, so also the id."""
    op = (p or problem()).features.operators
    body = next((CPP[o] for o in op if o in CPP), "v")
    source = (
        f'#include "rag_kernel.h"\n#include <cmath>\nconstexpr int variant = {variant};\n'
        "void scaled(rk::Tensor<const float> x, double factor, rk::Tensor<float> out) {\n"
        "  const float f = float(factor);\n"
        "  #pragma omp parallel for\n"
        "  for (int64_t i = 0; i < x.numel(); ++i) {\n"
        f"    const float v = x.data[i];\n    out.data[i] = ({body}) * f;\n  }}\n}}\n"
        "RK_EXPORT(forward, scaled)\n"
    )
    return Candidate(source, tier, backend)


def compiled() -> Compiled:
    return Compiled("there is no NVIDIA GPU here, so the kernel was built for sm_90 but not run")


def wrong() -> Wrong:
    return Wrong("output 0 differs from the fp64 oracle", "normal", 512.0, "index (3, 17)")


def build_failed() -> BuildFailed:
    return BuildFailed("the compiler refused the source", "kernel.cpp:3:1: error: expected ';'")


def crashed() -> Crashed:
    return Crashed("the candidate ended with SIGSEGV", "")


def timed_out() -> TimedOut:
    return TimedOut("check", 10.0, "no answer within 10 s")


def rejected() -> Rejected:
    return Rejected("mutated_input", "the candidate wrote to its input x")


def exemplar(kernel_id: str, rank: int = 1, score: float = 0.9) -> Exemplar:
    return Exemplar(kernel_id, rank, score, ("same graph key", "won 2.0x"))


def edge(child: str, source: str, relation: Relation = "parent") -> Edge:
    return Edge(child, source, relation)


def attempt(
    run_id: str = "run1",
    number: int = 1,
    p: FunctionalProblem | None = None,
    *,
    verdict: Verdict | None = None,
    variant: int = 0,
    **changes: Any,
) -> Attempt:
    """A judged candidate. `parents` may be kernel ids: they become `parent` edges of this candidate."""
    p = p or problem()
    made = changes.pop("candidate", None) or candidate(p, variant=variant)
    parents = changes.pop("parents", ())
    known: dict[str, Any] = {
        "round": 1,
        "judged": judged(verdict),
        "writer": "scripted",
        "model": "",
        "idea": f"write {p.problem.name} as one fused loop",
        "exemplars": (),
        "call_ids": (),
        "cost_usd": 0.0,
        "seconds": 1.5,
        "created_at": CREATED_AT,
    }
    edges = tuple(Edge(made.id, e, "parent") if isinstance(e, str) else e for e in parents)
    return Attempt(run_id=run_id, number=number, problem=p, candidate=made, parents=edges, **{**known, **changes})


def run(run_id: str = "run1", **changes: Any) -> Run:
    known: dict[str, Any] = {
        "command": "generate",
        "problem_name": "scaled_relu",
        "settings": '{"rounds": 2}',
        "started_at": CREATED_AT,
    }
    return Run(id=run_id, **{**known, **changes})


def llm_call(run_id: str = "run1", call_id: str = "call1", **changes: Any) -> LLMCall:
    known: dict[str, Any] = {
        "model": "openai/test-model",
        "purpose": "implement",
        "prompt": "Write a faster kernel.",
        "reply": "```cpp\n...\n```",
        "prompt_tokens": 120,
        "completion_tokens": 80,
        "cost_usd": 0.002,
        "seconds": 1.0,
        "error": "",
        "created_at": CREATED_AT,
    }
    return LLMCall(id=call_id, run_id=run_id, **{**known, **changes})
