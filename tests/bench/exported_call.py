"""Times the call of an exported module beside eager's, at a size where only the way to the kernel counts.

    python tests/bench/exported_call.py [PARTS]

Prints microseconds a call, on one thread, and how much that is beside the module's own, for a module without state and
for one that gives its kernel two parameters of each of six parts, or of so many: the exported module, its check of a
call (`closely` is what is asked where the quick one says no), the bare kernel, and the torch operator. The rows take
turns, and the least of many short runs counts.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from factories import attempt, candidate, problem

from rag_kernels.eval.problem import load_module, problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Candidate
from rag_kernels.export.out_file import write_kernel
from rag_kernels.ingest.functional.functionalize import functionalize

CALLS, TURNS = 50, 600
PARTS = int(sys.argv[1]) if len(sys.argv) > 1 else 6
MANY = f"""
import torch
import torch.nn as nn


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(16)), nn.Parameter(torch.rand(16))
        self.features, self.rate = 16, 0.5

    def forward(self, x):
        return x * self.weight + self.bias


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(*[Part() for _ in range({PARTS})])

    def forward(self, x):
        return self.parts(x)


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""
STATE = [f"w{i}, In b{i}" for i in range(PARTS)]
MANY_CPP = f"""
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
void parts(In x, In {", In ".join(STATE)}, rk::Tensor<float> out) {{
  for (int64_t i = 0; i < x.numel(); ++i) {{
    float v = x.data[i];
    {" ".join(f"v = v * w{i}.data[i % 16] + b{i}.data[i % 16];" for i in range(PARTS))}
    out.data[i] = v;
  }}
}}
RK_EXPORT(forward, parts)
"""


def us(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least time of each call."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(TURNS):
        for name, call in calls.items():
            least[name] = min(least[name], timeit.timeit(call, number=CALLS) / CALLS * 1e6)
    return least


def rows_of(best: ModuleType, *init: float) -> dict[str, float]:
    """Return the times of an exported file's ways to be called."""
    x, out = torch.randn(8, 16), torch.empty(8, 16)
    module, eager, compiled = best.ModelNew(*init), best.Model(*init), best.COMPILED
    eager.load_state_dict(module.state_dict())
    served = compiled.served
    torch.testing.assert_close(module(x), eager(x))
    assert module.kernel_used
    values, guard, constants = served.values(module, [x]), module._guard, tuple(compiled.constants.values())
    kernel = compiled._forward

    def closely() -> object:
        return module._changed(), served.mode(), served.other(served.values(module, [x]))

    return us(
        {
            "eager module": lambda: eager(x),
            "exported module": lambda: module(x),
            "check of a call": lambda: guard(x),
            "  closely": closely,
            "bare kernel": lambda: kernel(*values, *constants, out),
            "torch operator": lambda: compiled.op(*values),
        }
    )


def main() -> None:
    torch.set_num_threads(1)
    tanh = problem("tanh", 2.0, (8, 16))
    with TemporaryDirectory() as folder, Workers() as workers, torch.no_grad():
        many = functionalize(problem_from_source("parts", MANY), workers=workers)
        made = [(tanh, candidate(tanh), (2.0,)), (many, Candidate(MANY_CPP, "kernel", "cpu"), ())]
        times = []
        for i, (fp, kernel, init) in enumerate(made):
            written = write_kernel(attempt(p=fp, candidate=kernel), Path(folder) / f"best{i}.py")
            times.append(rows_of(load_module(f"best{i}", written.read_text()), *init))
    print(f"{'':16}   one input         12 parameters too")
    for name in times[0]:
        told = [f"{t[name]:6.2f} us {_beside(name, t):6}" for t in times]
        print(f"{name:16} {'      '.join(told)}".rstrip())


def _beside(name: str, times: dict[str, float]) -> str:
    return f"{times[name] - times['eager module']:+6.2f}" if name in ("exported module", "torch operator") else ""


if __name__ == "__main__":
    main()
