"""Times the call of an exported module beside eager's, at a size where only the way to the kernel counts.

    python tests/bench/exported_call.py

Prints microseconds a call, the best of several repetitions on one thread: the module itself, the exported one, its
check of a call, the bare kernel, and the torch operator.
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

CALLS, REPEATS = 20_000, 7


def us(call: Callable[[], object]) -> float:
    """Return the least time of a call."""
    call()
    return min(timeit.repeat(call, number=CALLS, repeat=REPEATS)) / CALLS * 1e6


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

        rows = {
            "eager module": us(lambda: eager(x)),
            "exported module": us(lambda: module(x)),
            "check of a call": us(check),
            "bare kernel": us(lambda: compiled._forward(x, 2.0, out)),
            "torch operator": us(lambda: compiled.op(x)),
        }
    for name, time in rows.items():
        print(f"{name:16} {time:6.2f} us")


if __name__ == "__main__":
    main()
