"""What holds a right kernel back, as a query: what the judge measured and the profiler saw, in words that ideas use.

Comes in: a verdict with the problem and the device. Goes out: a `Bottleneck`. Knows nothing of archives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from eval.records import Device, Features, Passed
from rag_kernels.feedback import bound

Kind = Literal["memory", "arithmetic", "library", "overhead"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SHORT_US = 20.0  # a call this short is mostly launch, threads waking up, and arguments
FAR = 0.2  # of the floor

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
