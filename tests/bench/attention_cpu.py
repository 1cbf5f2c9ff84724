"""Attention in C++ by the offline writer beside PyTorch's, on this machine.

    python tests/bench/attention_cpu.py

Prints a table of Markdown: milliseconds of processor time on one thread, the least of twelve calls of each, which take
turns. So other work on the machine counts little.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, tensors_of

from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters

CALLS = 12
OPERATOR = "return F.scaled_dot_product_attention"
CASES = {
    "written out, (1, 8, 1024, 64)": ("return torch.softmax(x @ y.mT * 0.125, -1) @ y", *["1, 8, 1024, 64"] * 2),
    "operator, (1, 8, 1024, 64)": (f"{OPERATOR}(x, y, y)", *["1, 8, 1024, 64"] * 2),
    "operator, causal, (1, 4, 2048, 128)": (f"{OPERATOR}(x, y, y, is_causal=True)", *["1, 4, 2048, 128"] * 2),
    "operator, mask, (4, 4, 512, 64)": (f"{OPERATOR}(x, x, x, attn_mask=y)", "4, 4, 512, 64", "512, 512"),
    "decoding, 2048 keys": (f"{OPERATOR}(x, y, y, enable_gqa=True)", "4, 16, 1, 128", "4, 4, 2048, 128"),
}


def least_ms(calls: list[Callable[[], Any]]) -> list[float]:
    """Return the least time of each function."""
    best = [float("inf")] * len(calls)
    for _ in range(CALLS + 1):
        for place, call in enumerate(calls):
            start = time.thread_time()
            call()
            best[place] = min(best[place], (time.thread_time() - start) * 1e3)
    return best


def main() -> None:
    torch.set_num_threads(1)
    print("| attention | dtype | ours | eager | eager over ours |\n|---|---|---:|---:|---:|")
    for name, (body, *shapes) in CASES.items():
        for dtype in ("float32", "bfloat16"):
            x, y = (f"torch.randn({shape}, dtype=torch.{dtype})" for shape in shapes)
            fp = functional("attention", Case(body, x, y))
            plan = write(fp, CpuParameters())
            assert plan is not None and "attention" in plan.schedules
            scope: dict[str, Any] = {}
            exec(fp.problem.source, scope)
            model, inputs = scope["Model"](), scope["get_inputs"]()
            with tempfile.TemporaryDirectory() as folder:
                call, tensors = numbers.caller(plan, fp, Path(folder)), tensors_of(fp, model, inputs)
                ours, eager = least_ms([lambda c=call, t=tensors: c(*t), lambda m=model, i=inputs: m(*i)])
            print(f"| {name} | {dtype} | {ours:.1f} | {eager:.1f} | {eager / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
