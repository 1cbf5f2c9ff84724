"""What the judge allows and how hard it looks: one small record, set up by whoever opens a judge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, bytes and counts. The defaults suit problems of 1 to 15 ms."""

    open_s: float = 120.0  # the problem's module is built and its inputs are made
    load_s: float = 20.0  # a kernel or composed candidate is loaded
    module_load_s: float = 300.0  # a module candidate compiles itself with torch's extension loader
    call_s: float = 10.0  # one call, at least; slow problems get 30 times the eager time
    compile_s: float = 240.0  # torch.compile of the baseline
    memory_bytes: int = 4 << 30  # of a worker's own, beside the shared inputs and outputs
    draws: int = 2  # whole draws of inputs and parameters, beside one of zero-mean inputs
    pairs: int = 30  # timed pairs at least
    max_pairs: int = 60
    timed_s: float = 0.5  # aim for this much time in pairs
    max_timed_s: float = 20.0
    rechecked: int = 2  # timed calls whose whole output the oracle checks, chosen in secret
    slow_factor: float = 4.0  # a candidate this much slower than eager is timed with few pairs
    few_pairs: int = 7
    measure_compile: bool = True
