"""Times the call of an exported module beside eager's, at a size where only the way to the kernel counts.

    python tests/bench/exported_call.py

Prints microseconds a call, on one thread, and how much that is beside the module's own: the exported module, its check
of a call, the bare kernel, and the torch operator. The rows take turns, and the least of many short runs counts.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from factories import attempt, candidate, problem

from rag_kernels.eval.problem import load_module
from rag_kernels.export.formats import write_kernel

CALLS, TURNS = 1_000, 60


def us(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least time of each call."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(TURNS):
        for name, call in calls.items():
            least[name] = min(least[name], timeit.timeit(call, number=CALLS) / CALLS * 1e6)
    return least


def main() -> None:
    torch.set_num_threads(1)
    fp = problem("tanh", 2.0, (8, 16))
    with TemporaryDirectory() as folder, torch.no_grad():
        written = write_kernel(attempt(p=fp, candidate=candidate(fp)), Path(folder) / "best.py")
        best = load_module("best", written.read_text())
        x, out = torch.randn(8, 16), torch.empty(8, 16)
        module, eager, compiled = best.ModelNew(2.0), best.Model(2.0), best.COMPILED
        served = compiled.served
        module(x)
        assert module.kernel_used

        def check() -> object:
            return (module._changed(), served.mode(), served.outputs_of(served.values(module, [x]), module._agrees))

        constants = compiled.constants.values()
        rows = us(
            {
                "eager module": lambda: eager(x),
                "exported module": lambda: module(x),
                "check of a call": check,
                "bare kernel": lambda: compiled._forward(x, *constants, out),
                "torch operator": lambda: compiled.op(x),
            }
        )
    for name, time in rows.items():
        beside = f" {time - rows['eager module']:+6.2f}" if name in ("exported module", "torch operator") else ""
        print(f"{name:16} {time:6.2f} us{beside}")


if __name__ == "__main__":
    main()
