"""The bottleneck of a right kernel: what the judge measured and the profiler saw, in words that ideas use.

Comes in: a verdict with the problem and the device. Goes out: a `Bottleneck`, for retrieval's query and for the one
recommendation that a writer gets. Knows nothing of archives and prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rag_kernels.eval.machine.ceilings import product_gflops, product_rate
from rag_kernels.eval.machine.device import bytes_us, floor_us
from rag_kernels.eval.records import Counters, Device, Features, Measurement, Passed

Kind = Literal["memory", "arithmetic", "library", "overhead"]
MINIMAL = 0.9  # of the DRAM traffic that was counted: then it is the unavoidable bytes, and none are left to save
SHORT_US = 20.0  # a call this short is mostly launch, threads waking up, and arguments
FAR = 0.2  # of the floor
NEAR, AT = 0.8, 0.95
BUSY = 0.6  # of a throughput: beyond, it is what holds the kernel back, and below latency is
FEW_WARPS = 0.3  # of those that fit
FILLED = 0.75  # waves of blocks

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


HOLDS: dict[str, tuple[str, str]] = {
    "registers": (
        "{registers} registers a thread",
        "keep less in registers (smaller tiles a thread, "
        "__launch_bounds__), or have more independent loads in flight in each thread",
    ),
    "shared memory": ("its shared memory", "use smaller tiles or fewer stages, so that more blocks fit on an SM"),
    "blocks": ("the number of blocks an SM takes", "use larger blocks"),
    "warps": ("blocks that end at different times", "even out the work of blocks, or let each fetch its next part"),
}
# What warps wait for: in words, what bounds it, and what to do.
WAITS: dict[str, tuple[str, Kind, str]] = {
    "long scoreboard": (
        "global memory",
        "memory",
        "have more loads in flight: unroll, load 16 bytes at a time, copy the next tile while this one is worked on",
    ),
    "lg throttle": (
        "the queue of loads and stores",
        "memory",
        "make them fewer and wider (float4), and keep what is read often in shared memory or registers",
    ),
    "drain": ("stores to finish", "memory", "store contiguous runs of 16 bytes a thread"),
    "short scoreboard": (
        "shared memory",
        "arithmetic",
        "pad or swizzle tiles against bank conflicts, and keep more of the operands in registers",
    ),
    "mio throttle": (
        "the queue of shared memory",
        "arithmetic",
        "read it 16 bytes at a time, and keep more of the operands in registers",
    ),
    "math pipe throttle": ("an arithmetic unit", "arithmetic", "use tensor cores, or cheaper operations"),
    "barrier": ("__syncthreads", "arithmetic", "use fewer barriers: warp shuffles, more stages, smaller blocks"),
    "wait": (
        "the result of the instruction before",
        "arithmetic",
        "give each thread independent work: several accumulators, unrolled loops",
    ),
    "no instruction": ("instructions to be fetched", "arithmetic", "make the loop's code shorter: unroll less"),
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Hold what limits a kernel. `ridge` is the device's operations per byte: problems above it are bound by
    arithmetic. `reached` is how much of its floor the kernel reached.
    """

    kind: Kind
    told: str
    ridge: float = 10.0
    reached: float = 0.0

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(REMEDIES[self.kind].split()))


def bottleneck_of(verdict: Passed, features: Features, device: Device, precision: str = "strict") -> Bottleneck:
    """Return the first that applies: a call too short to matter, a library that does the work, what ncu counted, or
    the ceiling that makes the floor. `precision` is the lowest that products may be computed in.
    """
    measured = verdict.measurement
    ridge = product_gflops(features, device, precision) / device.bandwidth_gbs
    share = measured.floor_fraction
    reached = f"at {share:.0%} of its floor"
    if measured.candidate_us < SHORT_US and measured.floor_fraction < FAR:
        return Bottleneck("overhead", f"a call of {measured.candidate_us:.0f} us {reached}", ridge, share)
    if verdict.label in ("library rewrite", "fused + library"):
        own = verdict.own_share
        seen = f"{own:.0%} of the time in its own code" if own is not None else verdict.label
        return Bottleneck("library", f"{seen}, {reached}", ridge, share)
    if verdict.counters is not None:
        kind, figure, _ = counted(verdict.counters)
        return Bottleneck(kind, f"{figure}, {reached}", ridge, share)
    if bound(features, device, precision) == "arithmetic":
        return Bottleneck("arithmetic", f"arithmetic, {reached}", ridge, share)
    return Bottleneck("memory", f"memory bandwidth, {reached}", ridge, share)


def bound(features: Features, device: Device, precision: str = "strict") -> str:
    """Return which ceiling of the machine makes the floor."""
    of_bytes = bytes_us(features, device) >= floor_us(features, device, precision)
    return "memory bandwidth" if of_bytes else "arithmetic"


def recommendation(verdict: Passed, features: Features, device: Device, precision: str = "strict") -> str:
    """Return what to do about the bottleneck, and only that: one figure and one direction.

    A kernel is near the floor only where it is not slower than a baseline: what PyTorch does is possible.
    """
    measured = verdict.measurement
    near = measured.floor_fraction > NEAR
    bytes_alone = near and bound(features, device, precision) == "memory bandwidth"
    if measured.speedup < 1:
        faster = "eager PyTorch" if measured.speedup == measured.speedup_eager.median else "torch.compile"
        ahead = f"{faster} is {1 / measured.speedup:.2f} times as fast, so there is more to gain. "
        return ahead + (_steadily(verdict) if bytes_alone else _direction(verdict, features, device, precision))
    if bytes_alone and measured.floor_fraction < AT:
        return _steadily(verdict)
    if near:
        return (
            f"It is near the floor that follows from measured rates ({measured.floor_fraction:.0%} of it): "
            "little is left to gain."
        )
    return _direction(verdict, features, device, precision)


def _steadily(verdict: Passed) -> str:
    """Return what to look at where all bytes that are moved have to be."""
    return (
        f"The unavoidable bytes need {verdict.measurement.floor_fraction:.0%} of its time, so none are left to save; "
        "what is left is how steadily they flow: loads in flight while others reduce and store, barriers, the order of "
        "reads and writes, the first and the last wave of blocks, further launches and allocations."
        + (f" ncu counted {told_counters(verdict.counters)}." if verdict.counters else "")
    )


def _direction(verdict: Passed, features: Features, device: Device, precision: str) -> str:
    measured = verdict.measurement
    held = bottleneck_of(verdict, features, device, precision)
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
    if verdict.counters is not None:
        _, figure, direction = counted(verdict.counters, moved=measured.floor_fraction)
        return f"ncu, {_kernel(verdict.counters)}: {figure}: {direction}."
    if held.kind == "arithmetic":
        return _arithmetic(measured, features, device, precision)
    moved = measured.candidate_us * device.bandwidth_gbs * 1e3 / max(features.bytes_moved, 1)
    look = "repeated passes over the data, strided or scalar access, and idle cores"
    if device.backend == "cpu":
        look += (
            "; results larger than the last cache that are read before they are written (non-temporal stores are not), "
            "and what is walked in steps of a power of two (4 KiB and more), which share a few sets of the cache"
        )
    return (
        f"Memory bandwidth is the ceiling; in its time the machine could move the unavoidable bytes {moved:.1f} "
        f"times, so look for {look}."
    )


def told_counters(c: Counters) -> str:
    """Return what was counted of the longest kernel, in a line."""
    awaited, _, _ = WAITS[c.stall]
    return (
        f"of {_kernel(c)} {c.dram:.0%} of DRAM throughput, {c.sm:.0%} of SM throughput, occupancy {c.occupancy:.0%} "
        f"held by {HOLDS[c.held_by][0].format(registers=c.registers)}, and {c.stall_share:.0%} of waiting warps wait "
        f"for {awaited}"
    )


def counted(c: Counters, *, moved: float = 0.0) -> tuple[Kind, str, str]:
    """Return what the GPU's counters point at: its kind, the figure, and what to do.

    `moved` is the share of the time that the unavoidable bytes need: where DRAM was no busier, there are no others.
    """
    if c.dram >= BUSY and c.dram >= c.sm and moved >= MINIMAL * c.dram and c.dram < NEAR:
        awaited, _, direction = WAITS[c.stall]
        return (
            "memory",
            f"{c.dram:.0%} of DRAM throughput with the unavoidable bytes, and {c.stall_share:.0%} of waiting warps "
            f"wait for {awaited}",
            f"no bytes are left to save, but memory is idle for a part of the time: {direction}",
        )
    if c.dram >= BUSY and c.dram >= c.sm:
        again = f"; {c.l2_hits:.0%} of accesses hit the L2 cache" if c.l2_hits >= 0.1 else ""
        return (
            "memory",
            f"{c.dram:.0%} of DRAM throughput{again}",
            ("memory is busy, so that only fewer bytes help: fuse passes, and keep on the chip what is read twice"),
        )
    if c.sm >= BUSY:
        return (
            "arithmetic",
            f"{c.sm:.0%} of SM throughput",
            (
                "the SMs are busy, so that only fewer instructions an element help: tensor cores, wider loads, cheaper "
                "functions, no index arithmetic in the loop"
            ),
        )
    reached = f"{c.dram:.0%} of DRAM throughput, {c.sm:.0%} of SM throughput"
    if 0 < c.waves < FILLED:
        return (
            "memory",
            f"{reached}, and its blocks fill {c.waves:.0%} of their places",
            ("split the work over more blocks (parts of rows or of the inner dimension, put together at the end)"),
        )
    if c.occupancy < FEW_WARPS:
        by, direction = HOLDS[c.held_by]
        kind: Kind = "memory" if c.dram >= c.sm else "arithmetic"
        return kind, f"{reached}, occupancy {c.occupancy:.0%} held by {by.format(registers=c.registers)}", direction
    awaited, kind, direction = WAITS[c.stall]
    return kind, f"{reached}, and {c.stall_share:.0%} of waiting warps wait for {awaited}", direction


def _kernel(c: Counters) -> str:
    return c.kernel if c.kernels == 1 else f"{c.kernel} ({c.time_share:.0%} of the time of {c.kernels} kernels)"


def _arithmetic(measured: Measurement, features: Features, device: Device, precision: str) -> str:
    reached = (features.flops + features.pointwise_flops) / (measured.candidate_us * 1e3)
    name, rate = product_rate(features, device, precision)
    did = f"does {reached:.3g} of the {rate:.0f} GFLOP/s that products in {name} reached here"
    if device.backend == "cuda":
        return (
            f"Arithmetic is the ceiling, and it {did}; look for products that do not run on tensor cores, operands "
            "that are not there in time (tiles that are copied ahead, more stages, larger tiles a block), and idle SMs."
        )
    return (
        f"Arithmetic is the ceiling, and it {did}; look for scalar code where SIMD fits, missing register and cache "
        "blocking, and idle cores."
    )
