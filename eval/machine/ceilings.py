"""The greatest rates that a device was measured at, and which of them a problem's products may run at.

Comes in: a backend, or a Device with the Features of a problem. Goes out: rates in GFLOP/s and GB/s. A rate is the
maximum of all measurements: a busy machine measures too little, and none measures too much. A rate of 0 is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rag_kernels.eval.records import Device, Features

PARTS = 8  # measurements of one rate, at most
PART_S = 1.0  # about what they take together, at most
SIXTEEN_BITS = frozenset({"float16", "bfloat16"})
EIGHT_BITS = frozenset({"int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"})
CONVOLUTIONS = ("conv", "lstm", "gru", "rnn")  # fewer products than are counted may do (Winograd), or none are counted
RATES = ("bandwidth_gbs", "fp32_gflops", "tf32_gflops", "fp16_gflops", "bf16_gflops", "fp8_gflops", "int8_gflops")


def higher(one: Device, other: Device) -> Device:
    """Return the first device with the greater of each of both's rates."""
    return replace(one, **{name: max(getattr(one, name), getattr(other, name)) for name in RATES})


def product_gflops(features: Features, device: Device, precision: str = "strict", *, generous: bool = False) -> float:
    """Return the rate of a problem's products: the fastest of those that are as precise as is asked for.

    `generous` is for bounds that bar a kernel: it counts ways that need a special case to be right, too.
    """
    return product_rate(features, device, precision, generous=generous)[1]


def product_rate(
    features: Features, device: Device, precision: str = "strict", *, generous: bool = False
) -> tuple[str, float]:
    """Return the same with the name of the ceiling that it follows from: "fp32", "tf32", "fp16"..."""
    ways = _ways(features, device, precision, generous=generous)
    name = max(ways, key=ways.__getitem__)
    return name.removesuffix("_gflops"), ways[name]


def _ways(features: Features, device: Device, precision: str, *, generous: bool) -> dict[str, float]:
    """Return rates by which the products may be computed, by the name of the ceiling that each follows from."""
    dtypes = {*features.dtypes, *features.product_dtypes}
    narrow = bool(dtypes & (SIXTEEN_BITS | EIGHT_BITS)) or precision == "any"
    ways = {"fp32_gflops": device.fp32_gflops}
    if generous:  # fp32's accuracy of three fp16 products (numbers in its range) or of six bf16 ones
        ways |= {"fp16_gflops": device.fp16_gflops / 3, "bf16_gflops": device.bf16_gflops / 6}
    if narrow or precision == "tf32":
        ways["tf32_gflops"] = device.tf32_gflops
    if narrow:
        ways |= {"fp16_gflops": device.fp16_gflops, "bf16_gflops": device.bf16_gflops}
    exact = dtypes if generous else set(features.product_dtypes)  # both operands may have been of eight bits
    if "int8" in exact:
        ways["int8_gflops"] = device.int8_gflops
    if any(name.startswith("float8") for name in exact):
        ways["fp8_gflops"] = device.fp8_gflops
    return ways


def raised(device: Device, features: Features, seconds: float, *, precision: str, by: float, memory: bool) -> Device:
    """Return the device with the rates at which a baseline ran, where those are above its ceilings.

    A baseline that is more than `by` times as fast as a ceiling shows that the problem needs less than was counted, and
    nothing of the machine. Without `memory` the data may have stayed in the cache.
    """
    shown = {"bandwidth_gbs": features.bytes_moved / seconds / 1e9} if memory else {}
    if not any(part in name for name in features.operators for part in CONVOLUTIONS):
        ways = _ways(features, device, precision, generous=False)
        shown[max(ways, key=ways.__getitem__)] = features.flops / seconds / 1e9
    above: dict[str, Any] = {
        name: rate for name, rate in shown.items() if 1 < rate / max(getattr(device, name), 1e-9) <= by
    }
    return replace(device, **above) if above else device


def measure(payload: dict[str, Any]) -> dict[str, float]:
    """Measure in a child.

    Bandwidth of a copy (bytes read plus written) in GB/s, and GFLOP/s of square products by dtype.

    `fp32_gflops` is of fp32's accuracy: of fp32 numbers, or of three TF32 products on a GPU's tensor cores (each number
    is the sum of two TF32 numbers), whichever is faster. A dtype that the device or this torch cannot multiply has 0.
    """
    import torch

    device = torch.device(payload["backend"])
    torch.set_num_threads(payload["threads"])
    torch.backends.cuda.matmul.allow_tf32 = False
    found = {"bandwidth_gbs": _copy_gbs(device), "fp32_gflops": _rate("float32", device)}
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        found["tf32_gflops"] = _rate("float32", device)
        found["fp32_gflops"] = max(found["fp32_gflops"], found["tf32_gflops"] / 3)
    for name, dtype in (("fp16", "float16"), ("bf16", "bfloat16"), ("fp8", "float8_e4m3fn"), ("int8", "int8")):
        found[f"{name}_gflops"] = _rate(dtype, device)
    return found


def _copy_gbs(device: Any) -> float:
    import torch

    on_gpu = device.type == "cuda"
    source = torch.ones((1 << 30 if on_gpu else 1 << 26), dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return float(2 * source.nbytes / _best_s(lambda: target.copy_(source), on_gpu=on_gpu) / 1e9)


def _rate(dtype: str, device: Any) -> float:
    """Return GFLOP/s of a square product; of a small one where that shows that a large one would take long."""
    small, large = (1024, 8192) if device.type == "cuda" else (256, 1536)
    try:
        small_s = _product_s(dtype, device, small)
        slow = small_s * (large / small) ** 3 > PART_S
        taken = (small, small_s) if slow else (large, _product_s(dtype, device, large))
    except (RuntimeError, NotImplementedError, AttributeError, ValueError):  # as different torches say it
        return 0.0
    return float(2 * taken[0] ** 3 / taken[1] / 1e9)


def _product_s(dtype: str, device: Any, n: int) -> float:
    import torch

    if dtype == "int8":
        a, b = (torch.randint(-8, 8, (n, n), dtype=torch.int8, device=device) for _ in range(2))
        return _best_s(lambda: torch._int_mm(a, b.t()), on_gpu=device.type == "cuda")
    a, b = (torch.randn(n, n, device=device).to(getattr(torch, dtype)) for _ in range(2))
    if dtype.startswith("float8"):
        one, columns = torch.ones((), device=device), b.t()  # which is what the library takes
        run = lambda: torch._scaled_mm(a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: E731
        return _best_s(run, on_gpu=device.type == "cuda")
    return _best_s(lambda: torch.mm(a, b), on_gpu=device.type == "cuda")


def _best_s(run: Callable[[], Any], *, on_gpu: bool) -> float:
    import time

    import torch

    taken: list[float] = []
    while len(taken) < PARTS and (len(taken) < 2 or sum(taken) < PART_S):
        start = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return min(taken)
