"""The nouns of judging: what is judged, what came of it, and how fast it ran.

Frozen records only; no torch. Units are in the names (`_us`, `_s`, `_bytes`). Each step of the line takes one
of these and returns the next: file -> Problem -> FunctionalProblem; text -> Candidate -> Verdict.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Literal

from rag_kernels.eval.errors import MachineError as MachineError
from rag_kernels.eval.errors import ProblemError as ProblemError
from rag_kernels.eval.ids import content_id

Backend = Literal["cpu", "cuda"]
Tier = Literal["kernel", "composed", "module"]
Role = Literal["input", "parameter", "buffer"]
Scalar = bool | int | float | str | None

LATER = {"later": True}  # for fields that old archives do not have (`eval.codec`)
HEADLINE_LABELS = frozenset({"custom kernel", "fused + library"})
# By the precision that the baselines were allowed: the classes whose speed-up over them compares like with like.
COMPARABLE = {"strict": ("strict",), "tf32": ("strict", "split-precision", "tf32")}
UNCHECKED = "unchecked"  # begins a label: what could not be tried, which lowers the trust in a result
MORE_MEMORY = "more memory than the module"
SPECIALISED = "shape-specialised"  # a label: right at its own sizes, and not at others
ALIGNED = "aligned-only"  # a label: right where tensors begin as PyTorch allocates them, and not at any element
OTHER_PROCESSORS = "fragile: built for other processors"  # a label: wrong where it is compiled for older ones
STATIC_ROOM = "fragile: static room of threads"  # a label: few such libraries can be loaded together
ONE_CALLER = "one caller at a time"  # a label: wrong where several threads call it at once
LEAKS = "leaks memory"  # a label: each call keeps some, which bars a claim
ENDS_BADLY = "fragile: end of its process"  # a label: a fault as a program ends that has called it
PROCESS_WIDE = "fragile: variables of the whole process"  # a label: other kernels may have some of the same names
SHARED = "fragile: results share memory"  # a label: with arguments or each other, where the module's do not
GENERATOR = "draws random numbers"  # a label: who comes next has others of PyTorch's generator
SETTINGS = "changes settings of OpenMP"  # a label: what it sets for itself holds for who comes next
GPU_SETTINGS = "changes settings of the GPU"  # a label: limits, or caches, of whoever uses it next in the process
NO_GRAPH = "not in CUDA graphs"  # a label: a call cannot be recorded, or is wrong on what comes when that is launched
FIRST_DEVICE = "first device alone"  # a label: what it sets up once in a process is not there on another GPU
KEEPS_CACHE = "suspicious: keeps a part of the cache"  # a label: of a GPU's, for what it asks to stay there
SLOWER = "suspicious: slower on unrelated contents"  # a label
SLOWER_ELSEWHERE = "suspicious: slower on other contents"  # a label: such as the problem does not draw
UNRELATED = "unrelated contents"  # a check: as fast on these as on others
# Labels that say what a kernel does, by what was seen: to see it once is enough. Others say how it went this time.
LASTING_LABELS = (
    "near-copy",
    "fragile",
    SLOWER,
    SLOWER_ELSEWHERE,
    "suspicious: rounding leans",
    "suspicious: looks around",
    KEEPS_CACHE,
    "rounds in between",
    SPECIALISED,
    "contiguous-only",
    ALIGNED,
    ONE_CALLER,
    LEAKS,
    SETTINGS,
    GPU_SETTINGS,
    NO_GRAPH,
    FIRST_DEVICE,
    GENERATOR,
    "finite-only",
    "nondeterministic",
)
# What keeps a speed-up out of headlines: also less accuracy than PyTorch's on finite inputs, unless these are subnormal
# numbers, integers beyond those that the problem draws, masks of which nothing is left, other buffers than the
# module's, or padding that is read and thrown away.
BARRED_LABELS = ("degenerate problem", "suspicious", "fragile", LEAKS)
FORGIVEN = tuple(
    f"fragile: {kind}"
    for kind in (
        "tiny",
        "fading",
        "masked rows",
        "huge",
        "factors far together",
        "angles far from zero",
        "brink",
        "results close to an overflow",
        "wide integers",
        "widest integers",
        "no truth at all",
        "ignored targets",
        "indices from the end",
        "buffers nearly as they are",
        "after a burst",
        "after a far burst",
        "initcheck",
        "signs of zeros",
    )
)


def bars(label: str) -> bool:
    """Return whether a label keeps a kernel's speed-up out of headlines and rankings."""
    return label.startswith(BARRED_LABELS) and label not in FORGIVEN


def unchecked(what: str) -> str:
    """Return the label of what could not be tried."""
    return f"{UNCHECKED}: {what}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A KernelBench file as it is: `Model`, `get_inputs`, `get_init_inputs`."""

    name: str
    source: str

    @property
    def id(self) -> str:
        return content_id("p", self.source)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype (`float32`, `int64`, `bool`...) of one tensor."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """One tensor argument of the functional call.

    `path` says where it comes from: the leaf number of `get_inputs()` (`"0"`) for an input, the dotted
    attribute (`"conv.weight"`) for a parameter or buffer.
    """

    name: str
    role: Role
    spec: TensorSpec
    path: str


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A Python number among the inputs (`get_inputs` may return ints and bools); `path` is its leaf number."""

    name: str
    value: Scalar
    path: str


Argument = TensorArgument | ScalarArgument


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to an argument or an earlier node, by name."""

    name: str


Value = Scalar | Ref | tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the graph. `op` is the ATen overload (`aten.add.Tensor`) or `getitem`.

    Dtypes, memory formats and devices among the arguments are strings (`"torch.float32"`). `outputs` has one
    spec for each tensor that the operator returns.
    """

    name: str
    op: str
    args: tuple[Value, ...]
    kwargs: tuple[tuple[str, Value], ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """What retrieval and reports need to know of a problem; counts are for one forward call."""

    operators: tuple[str, ...]  # ATen names without overloads, sorted, with repeats
    ranks: tuple[int, ...]  # ranks of the tensor inputs, in order
    dtypes: tuple[str, ...]  # distinct dtypes of arguments and outputs, sorted
    parameter_count: int
    flops: int  # torch.utils.flop_counter: matmul-like operators only
    pointwise_flops: int  # one per output element of every other arithmetic operator
    bytes_moved: int  # arguments read once plus outputs written once
    # of operands of products, sorted, where there is one that `dtypes` does not have
    product_dtypes: tuple[str, ...] = field(default=(), metadata=LATER)


@dataclass(frozen=True, slots=True)
class IndexBound:
    """An integer input, by its leaf number, that something reads as indices: in `[low, high)`, or from the end too."""

    path: str
    low: int
    high: int
    wraps: bool


@dataclass(frozen=True, slots=True)
class MadeSize:
    """A size of a tensor that a node makes of nothing, which is that of an argument's dimension at all sizes."""

    node: str
    dim: int
    argument: str
    of: int  # the argument's dimension


@dataclass(frozen=True, slots=True)
class MadeShape:
    """What a reshape makes at all sizes: for each dimension a number, or Python of arguments' shapes.

    A text is "" where nothing is known.
    """

    node: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """How a problem is a forward and its gradients: the first inputs are gradients of outputs, then come the forward's.

    Outputs are the forward's, then gradients.
    """

    outputs: int  # so many are the forward's
    pulled: tuple[int, ...]  # numbers of those whose gradients the first inputs are
    gradients: tuple[
        str, ...
    ]  # paths, as in `TensorArgument`, of the forward's arguments that the rest are gradients of
    fixed: tuple[str, ...]  # paths of those of which none are computed though they could be


@dataclass(frozen=True, slots=True)
class FunctionalProblem:
    """A problem as a parameterized call: `module_fn(inputs..., parameters..., buffers..., *, constants...)`.

    `source` is readable Python that defines `module_fn`. `constants` are its keyword defaults, in order.
    `mutated` names the buffers that the module updates in place (running statistics): the functional call
    does not return them, and kernels are not asked to reproduce them.
    `uses_random` says that the forward draws random numbers (dropout), so no kernel can be verified.
    """

    problem: Problem
    source: str
    arguments: tuple[Argument, ...]
    constants: tuple[tuple[str, Scalar | tuple[Scalar, ...]], ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    results: tuple[str, ...]  # node or argument names of the outputs, in order
    mutated: tuple[str, ...]
    uses_random: bool
    graph_key: str  # the same for the same graph at other sizes
    features: Features
    verified: bool  # run against the module, and it agreed
    notice: str = ""  # for example: "verified at batch_size=16 instead of 4096"
    # leaves of the inputs that the module changes in place; kernels get them as they were, and leave them so
    written: tuple[str, ...] = field(default=(), metadata=LATER)
    bounds: tuple[IndexBound, ...] = field(default=(), metadata=LATER)  # of other integers no bound is known
    as_drawn: tuple[str, ...] = field(default=(), metadata=LATER)  # which index something once computed with, by leaf
    step: TrainingStep | None = field(default=None, metadata=LATER)
    made: tuple[MadeSize, ...] = field(default=(), metadata=LATER)  # of other sizes that a node names none is known
    shapes: tuple[MadeShape, ...] = field(default=(), metadata=LATER)  # of other reshapes nothing is known
    # nodes, each with an argument whose numbers are others at other sizes
    follows: tuple[tuple[str, str], ...] = field(default=(), metadata=LATER)

    @property
    def tensors(self) -> tuple[TensorArgument, ...]:
        return tuple(a for a in self.arguments if isinstance(a, TensorArgument))

    @property
    def abi_constants(self) -> tuple[tuple[str, bool | int | float], ...]:
        """Constants as a kernel receives them: numbers only, of tuples `stride_0, stride_1`; no name twice."""
        flat: dict[str, bool | int | float] = {}
        for name, value in self.constants:
            items = [(f"{name}_{i}", v) for i, v in enumerate(value)] if isinstance(value, tuple) else [(name, value)]
            for known, number in items:
                while known in flat:  # `dim_1` is a constant's own name, and one of the numbers of `dim`
                    known += "_"
                if isinstance(number, bool | int | float):
                    flat[known] = number
        return tuple(flat.items())


@dataclass(frozen=True, slots=True)
class Candidate:
    """One source text that claims to compute a problem."""

    source: str
    tier: Tier
    backend: Backend

    @property
    def id(self) -> str:
        return _kernel_id(self.backend, self.tier, self.source)


@functools.lru_cache(maxsize=1024)
def _kernel_id(backend: Backend, tier: Tier, source: str) -> str:
    """Return an id that is asked for again and again."""
    return content_id("k", backend, tier, source)


@dataclass(frozen=True, slots=True)
class Device:
    """Where a measurement was made. Ceilings are measured on it, not read from a datasheet."""

    backend: Backend
    name: str  # "Intel Xeon ... (2 threads)", "NVIDIA H200"
    arch: str  # "x86-64-v4", "sm_90"
    bandwidth_gbs: float
    fp32_gflops: float  # of fp32's accuracy: of fp32 numbers, or a third of TF32's rate
    # Of square products of these dtypes; 0: not measured, or the device cannot.
    tf32_gflops: float = field(default=0.0, metadata=LATER)
    fp16_gflops: float = field(default=0.0, metadata=LATER)
    bf16_gflops: float = field(default=0.0, metadata=LATER)
    fp8_gflops: float = field(default=0.0, metadata=LATER)
    int8_gflops: float = field(default=0.0, metadata=LATER)
    machine: str = field(default="", metadata=LATER)  # what tells it from others of its name: "24 GiB, ..."

    @property
    def key(self) -> str:
        return content_id("d", self.backend, self.name, self.arch, *([self.machine] if self.machine else []))


@dataclass(frozen=True, slots=True)
class Environment:
    """Software that a measurement depends on, and the sandbox layers that held."""

    python: str
    torch: str
    compiler: str
    threads: int
    sandbox: tuple[str, ...]
    judge_version: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speed-up: median of pair ratios (baseline over candidate) and its order-statistic interval (about 95 %)."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BaselineTimes:
    """What PyTorch takes for a call, timed without a kernel beside it.

    `note` says why `compile_us` is None, or of what it is.
    """

    eager_us: float
    compile_us: float | None
    note: str = field(default="", metadata=LATER)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Interleaved timing of one candidate. `confirmed` is set by a second run in a fresh process."""

    candidate_us: float
    eager_us: float
    compile_us: float | None  # None: torch.compile failed on this problem, see `compile_note`
    speedup_eager: Ratio
    speedup_compile: Ratio | None
    pairs: int
    floor_us: float
    confirmed: bool
    compile_note: str = ""
    cold: bool = field(default=False, metadata=LATER)  # caches were emptied before every timed call of both sides
    speedup_warm: Ratio | None = field(default=None, metadata=LATER)  # over eager, inputs left in the cache
    # GPU, in a confirmation: microseconds of a call as a program sees it that calls and waits, with the host's time.
    candidate_host_us: float | None = field(default=None, metadata=LATER)
    eager_host_us: float | None = field(default=None, metadata=LATER)
    compile_host_us: float | None = field(default=None, metadata=LATER)
    # Bytes of a call at most beside arguments and outputs; None: nothing tells.
    candidate_extra_bytes: int | None = field(default=None, metadata=LATER)
    eager_extra_bytes: int | None = field(default=None, metadata=LATER)
    # Microseconds of each pair by variant ("candidate", "eager", "compile"), in order; of many, some evenly spread.
    paired_us: tuple[tuple[str, tuple[float, ...]], ...] = field(default=(), metadata=LATER)

    @property
    def floor_fraction(self) -> float:
        """Physical floor over measured time: 1.0 is the speed of light for this problem on this device."""
        return self.floor_us / self.candidate_us

    @property
    def speedup(self) -> float:
        """Speed-up over the better baseline."""
        return self.over_better.median

    @property
    def over_better(self) -> Ratio:
        """The same with its interval."""
        ratios = [r for r in (self.speedup_eager, self.speedup_compile) if r is not None]
        return min(ratios, key=lambda ratio: ratio.median)


@dataclass(frozen=True, slots=True)
class Counters:
    """What ncu counted of the longest kernel of a call. Shares, of what the device can do, are from 0 to 1."""

    kernel: str
    kernels: int  # launches of the call
    time_share: float  # of theirs
    dram: float  # throughput
    sm: float  # throughput
    occupancy: float
    held_by: str  # what lets no more blocks on a multiprocessor: "registers", "shared memory", "warps" or "blocks"
    registers: int  # a thread
    l2_hits: float
    waves: float  # of blocks: below 1 there are places without any
    stall: str  # what most warps wait for when none is issued: "long scoreboard"...
    stall_share: float  # of all that wait


@dataclass(frozen=True, slots=True)
class ServedTensor:
    """One argument of a contract; a dimension is a number that stays, or the name of a free size ("N", "2*N")."""

    name: str
    dtype: str
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contract:
    """The calls that a kernel was seen to be right for: sizes that were judged at several values are free."""

    tensors: tuple[ServedTensor, ...]
    following: tuple[str, ...]  # constants that had other values at the other sizes
    alignment: Literal["element", "allocation"]  # of contiguous tensors: any, or as PyTorch allocates
    outputs: tuple[tuple[str, ...], ...] = field(default=(), metadata=LATER)  # shapes, by the names of the arguments'
    # What the named sizes may be together, where a kernel was judged at these alone; empty: they are free.
    only: tuple[tuple[tuple[str, int], ...], ...] = field(default=(), metadata=LATER)


@dataclass(frozen=True, slots=True)
class Passed:
    """Right on every check, and timed."""

    label: str  # "custom kernel", "fused + library", "library rewrite", "module"
    precision: str  # "strict" or the named lower class
    error_ratio: float  # worst R_rms over the checked calls; 1 is as exact as PyTorch itself
    measurement: Measurement
    checks: tuple[str, ...]
    notes: tuple[str, ...] = ()
    # beside `label`: "shape-specialised", "fragile: shifted", "degenerate problem"...
    labels: tuple[str, ...] = field(default=(), metadata=LATER)
    counters: Counters | None = field(default=None, metadata=LATER)
    own_share: float | None = field(
        default=None, metadata=LATER
    )  # of a call's time, in its own code; None: not profiled
    contract: Contract | None = field(default=None, metadata=LATER)
    baseline_precision: str = field(default="strict", metadata=LATER)  # a key of COMPARABLE: of products in fp32

    @property
    def like_with_like(self) -> bool:
        """Whether it is as exact as what the baselines were allowed to be."""
        return self.precision in COMPARABLE[self.baseline_precision]

    @property
    def claims_speed(self) -> bool:
        """Whether its speed-up may stand in a headline: an own kernel, as exact as its baselines, beyond suspicion."""
        barred = any(map(bars, self.labels))
        return self.label in HEADLINE_LABELS and self.like_with_like and not barred

    @property
    def trust(self) -> str:
        """How far to trust it: all was tried twice, part of it could not be, or it was judged once only."""
        if not self.measurement.confirmed:
            return "verified"
        left_out = any(label.startswith(UNCHECKED) for label in self.labels)
        return "confirmed in part" if left_out else "confirmed"


def with_labels_of(passed: Passed, before: Passed) -> Passed:
    """Return a confirmation with what was seen of the kernel before and is not disproved: labels, a lower precision."""
    disproved = {SLOWER} if UNRELATED in passed.checks else set()
    kept = [s for s in before.labels if s.startswith(LASTING_LABELS) and s not in disproved and s not in passed.labels]
    if SPECIALISED in kept and passed.contract is not None:
        passed = replace(passed, contract=before.contract)
    precision = passed.precision if passed.precision != "strict" else before.precision
    return replace(passed, labels=(*passed.labels, *kept), precision=precision)


@dataclass(frozen=True, slots=True)
class Compiled:
    """Built, but the device it is for is not here: never archived as verified."""

    reason: str


@dataclass(frozen=True, slots=True)
class BuildFailed:
    reason: str
    log: str


@dataclass(frozen=True, slots=True)
class Wrong:
    """Ran, but its result is wrong. `input_class` names the draw on which it failed."""

    reason: str
    input_class: str
    error_ratio: float
    where: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """Failed in a call or while it was loaded: `raised` says that it raised an exception, and no signal ended it."""

    reason: str
    log: str
    raised: bool = field(default=False, metadata=LATER)


@dataclass(frozen=True, slots=True)
class TimedOut:
    stage: str
    limit_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not a fair candidate: a forbidden construct, a mutated input, an impossible time..."""

    code: str
    reason: str


Verdict = Passed | Compiled | BuildFailed | Wrong | Crashed | TimedOut | Rejected

VERDICT_NAMES: dict[type, str] = {
    Passed: "passed",
    Compiled: "compiled",
    BuildFailed: "build_failed",
    Wrong: "wrong",
    Crashed: "crashed",
    TimedOut: "timed_out",
    Rejected: "rejected",
}


def verdict_name(verdict: Verdict) -> str:
    """Return the stable lower-case name that JSON output and the archive use."""
    return VERDICT_NAMES[type(verdict)]


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with where and how it was reached; `stage_s` maps build, load, check, time... to seconds."""

    verdict: Verdict
    device: Device
    environment: Environment
    stage_s: dict[str, float] = field(default_factory=dict)
