"""Every kernel of the offline writer can be launched: no block has more threads than its registers allow."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cuda.function import CudaParameters

ANY_REGISTERS = 256  # threads that may have 255 registers each, the most that there are
ROWS = Case(
    "p = x.softmax(-1) * y; return p, x[:, 1:].amax(-1), x[:, 1:].exp().sum(-1)",
    "torch.randn(3, 4200)",
    "torch.randn(4200)",
)
CASES = {
    "rows": ROWS,
    "columns": Case("return x.sum(0) * y, x.amax(0)", "torch.randn(900, 70)", "torch.randn(70)"),
    "columns of many sums": Case(
        f"return {', '.join(f'(x + {i}.0).abs().sum(0)' for i in range(8))}, y", "torch.randn(900, 70)", "torch.ones(1)"
    ),
    "scans": Case("return x.cumsum(-1) + y, x.cumsum(0)", "torch.randn(64, 2000)", "torch.randn(2000)"),
    "points": Case("return x.exp() + y, y.sin() * 2", "torch.randn(64, 70)", "torch.randn(70)"),
    "places": Case(
        "return torch.zeros(9).index_add(0, y, x), x.topk(5).values",
        "torch.randn(4000)",
        "torch.randint(0, 9, (4000,))",
    ),
}
TUNED = (CudaParameters(sharing=0), CudaParameters(threads=1024, long_threads=512, team=32, sharing=0))


@pytest.mark.parametrize("tuned", TUNED)
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_bounded_by_what_it_is_launched_with(name: str, tuned: CudaParameters) -> None:
    """Blocks of rows are made to fit by the kernel's registers; others have their number of threads as a bound."""
    plan = write(functional(name.replace(" ", "_"), CASES[name]), tuned)
    assert plan is not None
    source = plan.candidate.source
    numbers_of = {word: int(n) for word, n in re.findall(r"\b([A-Z_]+) = (\d+)", source)}
    launches = re.findall(r"(\w+)(<\d+>)?<<<(?:.*?), (\w+|dim3\(.*?\)), \w+, stream>>>", source)
    assert launches
    for kernel, items, block in launches:
        if block == "block" and "shape.block" not in source:
            assert f"block = fitted<{kernel}{items}>(" in source
            continue
        bound = re.search(rf"__launch_bounds__\((\d+)(?:, 1)?\) {kernel}\(", source)
        if block == "threads":  # as many as an order's lanes want, up to this
            assert bound
            continue
        factors = re.findall(r"\w+", block.removeprefix("dim3"))
        threads = math.prod(numbers_of[factor] if factor in numbers_of else int(factor) for factor in factors)
        assert threads <= (int(bound[1]) if bound else ANY_REGISTERS), (kernel, block)


@pytest.mark.parametrize("columns", [4200, 4201])
def test_rows_of_many_registers_have_smaller_blocks(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of 217 registers ran in blocks of 512 threads, of which a launch is refused.

    A library loaded before has kernels of the same names, which may have more threads: what it found is its own. So is
    what it finds on a device, where another one has fewer.
    """
    monkeypatch.setattr(numbers, "build", build_emulated)
    case = dataclasses.replace(ROWS, x=f"torch.randn(3, {columns})", y=f"torch.randn({columns})")
    fp = functional("rows", case)
    plan = write(fp, CudaParameters(threads=64, long_threads=256, team=4, sharing=0))
    assert plan is not None and plan.candidate.tier == "kernel"
    calls = []
    for most in ("1024", "128"):
        monkeypatch.setenv("EMULATED_THREADS", most)
        (tmp_path / most).mkdir()
        calls.append(numbers.caller(plan, fp, tmp_path / most))
        assert worst_ratio(fp, calls[-1]) < numbers.RATIO
    monkeypatch.setenv("EMULATED_DEVICE", "1")
    assert worst_ratio(fp, calls[0]) < numbers.RATIO


def test_the_emulation_ends_where_some_threads_of_a_block_never_come_to_a_barrier(tmp_path: Path) -> None:
    source = """
#include "rag_kernel.h"
__global__ void some(float* out, int64_t come) { if (threadIdx.x < come) __syncthreads(); out[threadIdx.x] = 1; }
void forward_kernel(int64_t come, rk::Tensor<float> out) { some<<<1, 64, 0, stream>>>(out.data, come); }
RK_EXPORT(forward, forward_kernel)
"""
    forward, out = build_emulated(source, tmp_path).forward, torch.zeros(64)
    forward(64, out)
    assert out.eq(1).all()
    with pytest.raises(RuntimeError, match="the kernel threw an exception of its own"):
        forward(63, out)
