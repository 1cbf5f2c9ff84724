"""What the judge allows and how hard it looks: one small record, set up by whoever opens a judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.eval.timing_rule import TimingRule

# What may be left out of a judgement, to measure what it is worth (`Limits.without`).
DEFENCES = (
    "fresh content",
    "poison",
    "own draws",
    "zero-mean draw",
    "mixed draw",
    "special values",
    "guard pages",
    "rechecks",
    "fingerprints",
    "late-write check",
    "activity check",
    "looks",
    "unrelated content",
    "exactness probe",
    "read-only inputs",
    "sandbox",
    "odd shapes",
    "squares and tiles",
    "strides",
    "sanitizers",
    "repeats",
    "physical floor",
    "admission",
)


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
    timing: TimingRule = field(default_factory=TimingRule)  # all numbers of the clock
    measure_compile: bool = True
    max_autotune: bool = False  # also race torch.compile(mode="max-autotune"): minutes on a CPU
    precision: str = "strict"  # the lowest class that products may be computed in: strict, tf32, any
    thorough: bool = False  # every check also outside confirmations
    repeats: int = 10  # thorough: calls on the same content
    sanitizers_in_turn: bool = True  # GPU: False where kernels are known to end, and others may time meanwhile
    every_gpu: bool = False  # its processes may open the files of all GPUs: it takes them longer to start
    ncu: bool = False  # ask Nsight Compute about the kernels that lead
    without: frozenset[str] = frozenset()  # defences left out, to see what each is worth (`rag-kernels zoo --ablate`)
