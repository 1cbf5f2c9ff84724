"""What isolation costs: starting a worker with each layer alone and with all, asking after it, and a build in its box.

    .venv/bin/python tests/bench/worker_costs.py [--repeats 40]

A start ends with the worker's first answer. Medians; the layers that do not work on this machine are left out.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from rag_kernels.eval import codec
from rag_kernels.eval.build.compile import build, builds_boxed, toolchain
from rag_kernels.eval.process import sandbox
from rag_kernels.eval.process.sandbox import Found, Sandbox
from rag_kernels.eval.process.workers import Workers

ROLE = "rag_kernels.eval.process.warm_parent:one_shot"
HELLO = {"target": "math:sqrt", "payload": codec.encode(4.0)}
SOURCE = '#include "rag_kernel.h"\nvoid f(int64_t n) {{ (void)(n + {number}); }}\nRK_EXPORT(forward, f)\n'


def main() -> None:
    """Print a row for each cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    found = sandbox.found()
    print(f"layers: {', '.join(sandbox.layers())}")
    row("look for the layers, once a process", [timed(sandbox.found.__wrapped__) for _ in range(5)])
    variants = {"no layer": None, "no privileges, no capabilities": Found(None, ())}
    variants |= {name.split(":")[0]: alone(found, name) for name in found.layers} | {"all layers": found}
    for name, layers in variants.items():
        with (
            mock.patch.object(sandbox, "found", lambda layers=layers: layers),
            Workers(sandbox=Sandbox() if layers else None) as workers,
        ):
            start(workers)
            row(f"start and end a worker: {name}", [timed(start, workers) for _ in range(repeats)])
    with Workers(sandbox=Sandbox()) as workers:
        for may_fork in (False, True):
            with workers.spawn(ROLE, may_fork=may_fork) as worker:
                for ask in (worker.activity, worker.freeze, worker.thaw):
                    row(f"{ask.__name__}, may_fork={may_fork}", [timed(ask) for _ in range(10 * repeats)])
    builds(max(5, repeats // 4))


def alone(found: Found, name: str) -> Found:
    return Found(found.namespaces if name.startswith("bwrap") else None, (name,))


def start(workers: Workers) -> None:
    with workers.spawn(ROLE, may_fork=False) as worker:
        worker.request(HELLO, deadline_s=60)


def builds(repeats: int) -> None:
    """The same small kernel with another constant each time, so that nothing is in the cache; in turns."""
    tools = toolchain()
    variants = {"open": False} | ({"in bwrap": True} if builds_boxed(tools) else {})
    times: dict[str, list[float]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as cache:
        build([(SOURCE.format(number=0), "cpu")], tools=tools, cache=Path(cache))  # precompiles the header
        for number in range(1, 2 * repeats, 2):
            for step, (name, boxed) in enumerate(variants.items()):
                with mock.patch("rag_kernels.eval.build.compile.builds_boxed", lambda tools, boxed=boxed: boxed):
                    source = SOURCE.format(number=number + step)
                    times[name].append(timed(build, [(source, "cpu")], tools=tools, cache=Path(cache)))
    for name, seconds in times.items():
        row(f"build a small kernel: {name}", seconds)


def timed(work: Callable[..., Any], *arguments: Any, **keywords: Any) -> float:
    begun = time.perf_counter()
    work(*arguments, **keywords)
    return time.perf_counter() - begun


def row(name: str, seconds: list[float]) -> None:
    print(f"{name:52} {statistics.median(seconds) * 1e3:9.3f} ms")


if __name__ == "__main__":
    main()
