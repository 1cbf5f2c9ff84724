"""What the judge asks the reference's worker, and what comes back: one record a request, one for its reply.

The worker is opened with `OpenReference`; every later request is a member of `ReferenceRequest`. `protocol.py` has the
rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rag_kernels.eval.buffers.call_content import Recipe
from rag_kernels.eval.buffers.shared_arena import ArenaLayout
from rag_kernels.eval.messages.to_both import Done, Leaf, MemoryTaken, Settle, Shared, TellMemory, TellShared
from rag_kernels.eval.records import Backend, FunctionalProblem


@dataclass(frozen=True, slots=True)
class OpenReference:
    """Load the problem's module, on the arenas whose descriptors come along (content, submitted outputs): `Opened`."""

    problem: FunctionalProblem
    device: Backend
    threads: int
    content: ArenaLayout
    outputs: ArenaLayout
    tf32: bool  # allowed in timed calls
    operands: float  # unit roundoff that operands of fp32 products may have, 0 where they may have none but fp32's
    seed: int


@dataclass(frozen=True, slots=True)
class Opened:
    """What a `ModelNew` is made with: constructor inputs as JSON (lists stay lists), and leaves of `get_inputs`."""

    init_inputs: str
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class MakeDraw:
    """Make one more draw of all tensor arguments: on a GPU there, else in the arena that comes along: `Drawn`.

    On a GPU it takes the place of the draw of a number, if one is named. `reals` and `wholes` are what a candidate
    names, for `NAMED` kinds.
    """

    seed: int
    kind: str  # of `eval.traits.input_kinds`
    layout: ArenaLayout
    again: int | None = None
    reals: tuple[float, ...] = ()
    wholes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """Of each tensor, whether its arrangement means something."""

    structured: tuple[bool, ...]
    ordered: tuple[bool, ...] = ()  # floats that ascend, and have to
    alike: bool = False  # a float input is one number throughout, as a state that has not begun
    masks: bool = False  # an input is of two values, as a mask is
    keeps: bool = False  # a buffer of the module is no number throughout, and may be another
    limited: bool = False  # a float input lies between ends, as probabilities do


@dataclass(frozen=True, slots=True)
class BringDraw:
    """GPU only: write a draw into the arena that comes along: `Done`."""

    draw: int
    layout: ArenaLayout


@dataclass(frozen=True, slots=True)
class EmptyExchange:
    """GPU only: empty the memory that is shared with a new candidate: `Exchanged`, the first time with a descriptor."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """How large the shared memory is."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class OfferDraw:
    """GPU only: lay a draw out in the shared memory, for the candidate's worker to copy: `Done`."""

    draw: int


@dataclass(frozen=True, slots=True)
class TakeOutputs:
    """GPU only: copy the outputs that the candidate's worker has handed over: `TookOutputs`.

    The copy is good until the next one, unless it is to be kept for one check.
    """

    keep: bool


@dataclass(frozen=True, slots=True)
class TookOutputs:
    """The number that the copy was taken under, and its fingerprint."""

    taken: int
    hash: str


@dataclass(frozen=True, slots=True)
class WriteContent:
    """GPU only: make the content of the next call, from the draws held there: `Done`."""

    recipe: Recipe


@dataclass(frozen=True, slots=True)
class PrepareVariant:
    """Make a baseline callable (compile, autotune, graph) and run it once, on the current content: `Done`."""

    variant: str


@dataclass(frozen=True, slots=True)
class CompileAhead:
    """Let torch.compile fill its cache for the variant of that name, computing nothing on the device: `Done`."""


@dataclass(frozen=True, slots=True)
class ReadyVariant:
    """Before so many timed calls: put state back, empty the GPU's caches if they are to be cold: `Done`."""

    cold: bool
    calls: int


@dataclass(frozen=True, slots=True)
class CallVariant:
    """The timed call of eager or of a baseline, or several with one wait at the end: `Timed`.

    GPU: with a moment of `time.monotonic` to begin at they are queued behind a delay, and timed by events.
    """

    variant: str
    calls: int
    begin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds that the device took, by events (0 where nothing was delayed), and until the host had made all calls.

    `late`: the delay was over before the host had made them, so that the device may have waited for it.
    """

    device_s: float
    host_s: float
    late: bool


@dataclass(frozen=True, slots=True)
class ComputeAnswer:
    """Compute what is right for the current content and remember it under the draw's number: `Answered`.

    `noisy` also measures what honest rounding may do there. `partly`: a few elements may be left open at which PyTorch
    itself has no digit, so that the others are compared.
    """

    draw: int
    noisy: bool
    moved: bool = False  # with inputs moved by a rounding, too
    partly: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """What the answer is like: `worst_error` is PyTorch's own error of one element, relative.

    `own_by_output`: that of each output as a whole, infinite where it, or what is right, is not finite.
    """

    oracle: Literal["fp64", "own dtype"]
    finite: bool
    worst_error: float
    own_by_output: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckOutputs:
    """Compare outputs with the answer for a draw, or (None) with one for the current content: `Checked`.

    They are those that were taken under a number, or (None) those in the arena of submitted outputs. `limits`: R_rms
    and R_max as calibrated for the problem. `near`: small elements are held to themselves, and not to their row.
    """

    draw: int | None
    taken: int | None
    limits: tuple[float, float] | None
    noisy: bool = False  # of the current content: measure what honest rounding may do there, as on special values
    # The content is there: measure that where small elements are off, and follow the order in which equals were taken.
    settle: bool = False
    near: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is the error over PyTorch's own (1.0 is as exact as PyTorch); `where` says what was wrong.

    `relative` is the worst row's RMS error over its RMS (rows far smaller than the whole: over a hundredth of it).
    """

    ok: bool
    ratio: float
    where: str
    relative: float = math.inf
    rounding: str = ""  # what is wrong with the rounding of an output of 16 bits
    zeros: str = ""  # what is wrong with the signs of its zeros
    one_apart: bool = False  # integers that are wrong, each by one
    # To be asked again, with the content there: wrong where it is small, unless honest rounding is as far off there, or
    # wrong unless equals may be taken in another order.
    unsettled: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """One comparison an output."""

    results: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True)
class ShowPrecision:
    """Name the precision that outputs show: `PrecisionShown`. `taken` as in `CheckOutputs`.

    On a probe's draw by their errors, on an `ordinary` one by whether these are of factors that were cut.
    """

    draw: int
    taken: int | None
    ordinary: bool = False


@dataclass(frozen=True, slots=True)
class PrecisionShown:
    """The class of precision, and the relative error that it was told from."""

    name: str
    error: float


@dataclass(frozen=True, slots=True)
class AskForProbes:
    """Whether the problem has products whose precision a probe can show: `Probes`."""


@dataclass(frozen=True, slots=True)
class Probes:
    """The kinds of probes that there are for the problem."""

    kinds: tuple[str, ...]


ReferenceRequest = (
    CallVariant
    | ReadyVariant
    | WriteContent
    | MakeDraw
    | BringDraw
    | EmptyExchange
    | OfferDraw
    | TakeOutputs
    | PrepareVariant
    | CompileAhead
    | ComputeAnswer
    | CheckOutputs
    | ShowPrecision
    | AskForProbes
    | Settle
    | TellMemory
    | TellShared
)
ReferenceReply = (
    Done | Timed | Drawn | Exchanged | TookOutputs | Answered | Checked | PrecisionShown | Probes | MemoryTaken | Shared
)
