"""What holds a right kernel back: what the judge measured and the profiler saw, in words that ideas use.

Comes in: a verdict with the problem and the device. Goes out: a `Bottleneck`, for retrieval's query and for the one
recommendation that a writer gets. Knows nothing of archives and prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eval.device import floor_us
from eval.records import Device, Features, Measurement, Passed

Kind = Literal["memory", "arithmetic", "library", "overhead"]
SHORT_US = 20.0  # a call this short is mostly launch, threads waking up, and arguments
FAR = 0.2  # of the floor
NEAR = 0.8

# What people write about the remedies, in ideas and labels.
REMEDIES: dict[Kind, str] = {
    "memory": "fuse fused fusion single one pass passes vectorize vectorized vectorised float4 vector loads coalesced"
    " contiguous streaming cache blocked tile tiled shared memory online reuse prefetch bandwidth temporaries traffic",
    "arithmetic": "simd avx fma unroll unrolled register registers blocking tile tiled tensor core cores wmma mma wgmma"
    " tf32 bf16 pipeline double buffer accumulators algebra factor",
    "library": "own kernel replace gemm implicit im2col winograd direct epilogue fuse fused tensor core tile tiled"
    " custom kernel",
    "overhead": "launch launches single kernel persistent fuse fused batch threads overhead graph cooperative one call",
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`ridge` is the device's floating-point operations per byte: problems above it are bound by arithmetic."""

    kind: Kind
    told: str
    ridge: float = 10.0

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(REMEDIES[self.kind].split()))


def bottleneck_of(verdict: Passed, features: Features, device: Device) -> Bottleneck:
    """The first of: a call too short to matter, a library that does the work, and the ceiling that makes the floor."""
    measured = verdict.measurement
    ridge = device.fp32_gflops / device.bandwidth_gbs
    reached = f"at {measured.floor_fraction:.0%} of its floor"
    if measured.candidate_us < SHORT_US and measured.floor_fraction < FAR:
        return Bottleneck("overhead", f"a call of {measured.candidate_us:.0f} us {reached}", ridge)
    if verdict.label in ("library rewrite", "fused + library"):
        seen = next((note for note in verdict.notes if "of the time in its own code" in note), verdict.label)
        return Bottleneck("library", f"{seen}, {reached}", ridge)
    if bound(features, device) == "arithmetic":
        return Bottleneck("arithmetic", f"arithmetic, {reached}", ridge)
    return Bottleneck("memory", f"memory bandwidth, {reached}", ridge)


def bound(features: Features, device: Device) -> str:
    """Which ceiling of the machine makes the floor."""
    memory_us = features.bytes_moved / (device.bandwidth_gbs * 1e3)
    return "memory bandwidth" if memory_us >= floor_us(features, device) else "arithmetic"


def recommendation(verdict: Passed, features: Features, device: Device) -> str:
    """What to do about the bottleneck, and only that: one figure and one direction."""
    measured = verdict.measurement
    if measured.floor_fraction > NEAR:
        return "It is near the floor of this machine; little is left to gain."
    held = bottleneck_of(verdict, features, device)
    if held.kind == "overhead":
        return (
            f"A call of {measured.candidate_us:.0f} us is mostly launching, waking threads and arguments: do all of it "
            "in one launch or one parallel region, and on fewer threads where the work is small."
        )
    if held.kind == "library":
        return (
            f"The profiler: {held.told}. What is left to the library is the bottleneck: fuse more around it, save the "
            "passes over its inputs and outputs, or replace it where its shape is an unusual one."
        )
    if held.kind == "arithmetic":
        return _arithmetic(measured, features, device)
    moved = measured.candidate_us * device.bandwidth_gbs * 1e3 / max(features.bytes_moved, 1)
    return (
        f"Memory bandwidth is the ceiling; in its time the machine could move the unavoidable bytes {moved:.1f} "
        "times, so look for repeated passes over the data, strided or scalar access, and idle cores."
    )


def _arithmetic(measured: Measurement, features: Features, device: Device) -> str:
    reached = (features.flops + features.pointwise_flops) / (measured.candidate_us * 1e3)
    return (
        f"Arithmetic is the ceiling, and it does {reached:.3g} of the {device.fp32_gflops:.0f} GFLOP/s that were "
        "measured here; look for scalar code where SIMD or tensor instructions fit, missing register and cache "
        "blocking, and idle cores."
    )
