"""What the judge and its two workers say to each other: one record a request, and one for what comes back.

A worker is opened with its first message; every later one is a member of `ReferenceRequest` or `CandidateRequest`, and
the child matches them all. They travel as JSON by `eval.codec`; file descriptors go beside them. A candidate's worker
may send anything: its replies are read as the one class that was asked for, with the number of the request. Where
something fails comes a `Failed` (`eval.process.channel`). Knows nothing of processes, sockets and torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import Recipe, Splice
from rag_kernels.eval.buffers.shared_arena import ArenaLayout
from rag_kernels.eval.errors import Internal
from rag_kernels.eval.records import Backend, FunctionalProblem, Role, Scalar, TensorSpec, Tier

T = TypeVar("T")


class UnknownRequest(Internal):
    """A worker was sent what it has no answer for; the message is a sentence."""


# To both workers


@dataclass(frozen=True, slots=True)
class Done:
    """It was done; nothing is to be told."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Stands for a value that JSON has no word for: no candidate can be given it. `what` describes it."""

    what: str


Leaf = Scalar | Unsupported


# To the reference worker


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
    """Make one more draw of all tensor arguments: on a GPU there, else in the arena that comes along: `Drawn`."""

    seed: int
    kind: str  # of `eval.numerics.input_draws`
    layout: ArenaLayout


@dataclass(frozen=True, slots=True)
class Drawn:
    """Of each tensor, whether its arrangement means something."""

    structured: tuple[bool, ...]
    ordered: tuple[bool, ...] = ()  # floats that ascend, and have to
    alike: bool = False  # a float input is one number throughout, as a state that has not begun
    masks: bool = False  # an input is of two values, as a mask is


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
    """Seconds that the device took, by events (0 where nothing was delayed), and until the host had made all calls."""

    device_s: float
    host_s: float


@dataclass(frozen=True, slots=True)
class ComputeAnswer:
    """Compute what is right for the current content and remember it under the draw's number: `Answered`.

    `noisy` also measures what honest rounding may do there.
    """

    draw: int
    noisy: bool
    moved: bool = False  # with inputs moved by a rounding, too


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
    and R_max as calibrated for the problem.
    """

    draw: int | None
    taken: int | None
    limits: tuple[float, float] | None
    noisy: bool = False  # of the current content: measure what honest rounding may do there, as on special values
    # The content is there: measure that where small elements are off, and follow the order in which equals were taken.
    settle: bool = False


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


@dataclass(frozen=True, slots=True)
class Settle:
    """Give memory that nothing holds back to the system, and begin to count anew (GPU): `Done`."""


@dataclass(frozen=True, slots=True)
class TellMemory:
    """Tell what was taken on the GPU since `Settle`: `MemoryTaken`."""


@dataclass(frozen=True, slots=True)
class MemoryTaken:
    """Bytes at most, by torch's allocator and by the driver's; 0 on a CPU, where the judge looks for itself."""

    peak_bytes: int


@dataclass(frozen=True, slots=True)
class TellState:
    """Tell what calls have left behind in the process: `StateLeft`."""


@dataclass(frozen=True, slots=True)
class StateLeft:
    """Whether every thread of OpenMP computes by IEEE 754, and whether its settings are as they were made."""

    arithmetic: bool
    settings: bool


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
)
ReferenceReply = (
    Done | Timed | Drawn | Exchanged | TookOutputs | Answered | Checked | PrecisionShown | Probes | MemoryTaken
)


# To a candidate's worker


@dataclass(frozen=True, slots=True)
class CandidateCode:
    """What there is to load: paths of what was built of it are empty where nothing was."""

    tier: Tier
    source: str
    library: str
    cubin: str


@dataclass(frozen=True, slots=True)
class OpenCandidate:
    """Load the candidate: `Done`."""

    device: Backend
    threads: int
    code: CandidateCode


@dataclass(frozen=True, slots=True)
class InContent:
    """An argument that is a tensor: the one at this place of the content."""

    place: int


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter or a buffer of the problem's module: where it lies in the content, and in the module."""

    place: int
    path: str
    role: Role


@dataclass(frozen=True, slots=True)
class Binding:
    """What code is told of its arguments: their form, never the problem's source. What has a default is a module's."""

    arguments: tuple[InContent | Scalar, ...]
    constants: tuple[bool | int | float, ...]
    keywords: tuple[tuple[str, Scalar | tuple[Scalar, ...]], ...]
    leaves: tuple[InContent | Leaf, ...] = ()
    init_inputs: str = "[]"  # JSON, as in `Opened`
    held: tuple[Held, ...] = ()
    seed: int = 0
    beside: int | None = None  # the place whose parameters it may use too, being called in one burst with it


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind the code to one more set of buffers: `Done`. Sets are numbered as they are bound.

    Descriptors that come along: the content's, then the outputs' (CPU) or that of the shared memory (GPU, for the first
    set of a problem), which has `shared_bytes`. `like` is an earlier set of the same problem, whose draws it shares.
    """

    binding: Binding
    content: ArenaLayout
    outputs: ArenaLayout
    writable: bool
    strided: bool
    like: int | None
    shared_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HoldDraw:
    """GPU only: keep the draw that lies in the shared memory now: `Done`."""

    at: int


@dataclass(frozen=True, slots=True)
class JoinExchange:
    """GPU only: use the shared memory whose descriptor comes along, and forget the draws that are held: `Done`."""

    at: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class ComposeContents:
    """GPU only: make the contents of the next calls, poison the outputs, empty the caches if asked: `Done`.

    With `late` contents come on the stream of the next burst, behind its delay: until then there are zeros. The
    argument of that number comes last, from a kernel that lets the next one begin before it has ended. With `watched`
    such a kernel reads what stands in the outputs.
    """

    at: tuple[int, ...]
    recipes: tuple[Recipe, ...]
    poisons: tuple[int, ...]
    cold: bool
    late: int | None = None
    watched: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """Before calls: leave no result of an earlier one, put state back: `Done`."""

    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The timed call: `Done`. What it is for is never said."""

    at: int


@dataclass(frozen=True, slots=True)
class Burst:
    """Timed calls on several sets in this order, with one wait at the end: `Done`.

    GPU: with a moment of `time.monotonic` to begin at they are queued behind a delay until then.
    """

    order: tuple[int, ...]
    begin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pull:
    """Copy the outputs into the judge's memory, where they are not already: `Pulled`."""

    at: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """Of each output shape, dtype and device; whether all around the tensors is as it was, and the rounding too.

    `in_order` says that what a call left was there for who came next on the stream, `waited` that it wrote nothing
    while who came before could still read what stood there.
    """

    form: tuple[tuple[tuple[int, ...], str, str], ...]
    intact: bool
    arithmetic: bool
    in_order: bool = True
    waited: bool = True


@dataclass(frozen=True, slots=True)
class HashOutputs:
    """A fingerprint of the outputs where they are: `Hashed`."""

    at: int


@dataclass(frozen=True, slots=True)
class HashInputs:
    """GPU only: a hash of the inputs as they are on the device now: `Hashed`."""

    at: int


@dataclass(frozen=True, slots=True)
class Hashed:
    hash: str


@dataclass(frozen=True, slots=True)
class UseThreads:
    """Use another number of OpenMP threads; `alone` gives one, whatever is asked for: `Done`."""

    count: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class CallOn:
    """CPU kernels: call it so often on the same content, until outputs differ or time is over: `Called`."""

    at: int
    times: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class CallTogether:
    """CPU kernels: call it at two places from two threads, so often each, until outputs differ: `Called`."""

    first: int
    second: int
    times: int


@dataclass(frozen=True, slots=True)
class CallByThreads:
    """CPU kernels: call it once in each of so many threads, one after another, until time is over: `Called`."""

    at: int
    times: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class CallOnFirst:
    """CPU kernels: call it on the first lines of these arguments and results, as many as `counts` says, one after
    another until time is over: `Called`.
    """

    at: int
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    counts: tuple[int, ...]
    limit_s: float


@dataclass(frozen=True, slots=True)
class Called:
    """`times`: calls that were made; whether one left other outputs than the first did."""

    times: int
    differs: bool


# What a composed source's kernels do: their last tensor becomes the first, or the last, of others that are as large.
Instead = Literal["", "nothing", "the first", "the last"]


@dataclass(frozen=True, slots=True)
class Mute:
    """Composed tier: let the own kernels do nothing, or copy an argument, or ("") work again: `Done`."""

    instead: Instead


@dataclass(frozen=True, slots=True)
class CallHalves:
    """A training step: make a call in which another forward comes between its forward and its backward: `Done`."""

    at: int


@dataclass(frozen=True, slots=True)
class RecordCalls:
    """Composed tier: make one call and record what its kernels are called with: `Recorded`."""

    at: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The calls as a checked program reads them, in base64, or why they are left out."""

    calls: str
    left_out: str


@dataclass(frozen=True, slots=True)
class ProfileCall:
    """Make one call under a profiler: `Profile`."""

    at: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Microseconds by kernel (GPU) or operator (CPU), and what the candidate changed.

    `native`: native libraries that it loaded; `flags`: switches of torch that it moved.
    """

    kernels: dict[str, float]
    native: tuple[str, ...]
    flags: tuple[str, ...]


CandidateRequest = (
    Call
    | Ready
    | Burst
    | Bind
    | HoldDraw
    | JoinExchange
    | ComposeContents
    | Pull
    | HashOutputs
    | HashInputs
    | UseThreads
    | CallOn
    | CallTogether
    | CallByThreads
    | CallOnFirst
    | Mute
    | CallHalves
    | RecordCalls
    | ProfileCall
    | Settle
    | TellMemory
    | TellState
)
CandidateReply = Done | Pulled | Hashed | Recorded | Profile | MemoryTaken | StateLeft | Called


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """A tensor's content in base64."""

    spec: TensorSpec
    content: str


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module in a program of its own, in a file (`eval.children.module_program`)."""

    device: Backend
    code: CandidateCode
    binding: Binding
    tensors: tuple[GivenTensor, ...]


# To JSON and back


def _names(*kinds: type) -> dict[str, type]:
    return {kind.__name__: kind for kind in kinds}


_REFERENCE, _CANDIDATE = _names(*get_args(ReferenceRequest)), _names(*get_args(CandidateRequest))
_CANDIDATE_PARTS = _names(Binding, InContent, Unsupported, Held, CandidateCode, ArenaLayout, TensorSpec, Splice)
_CALL_PARTS = _names(ModuleCall, GivenTensor) | _CANDIDATE_PARTS
_PARTS: dict[str, Mapping[str, type]] = {
    "the reference worker": {**codec.RECORDS, **_names(ArenaLayout, Splice, OpenReference), **_REFERENCE},
    "a candidate's worker": {**_CANDIDATE_PARTS, **_names(OpenCandidate), **_CANDIDATE},
}


def reference_opening(message: Any) -> OpenReference:
    """Read the first message to the reference worker."""
    return cast(OpenReference, _request(message, "the reference worker", {"OpenReference"}))


def opens_reference(message: Any) -> bool:
    """Return whether it is such a message: a worker that is done with one problem may be given another."""
    return isinstance(message, dict) and message.get("_") == OpenReference.__name__


def reference_request(message: Any) -> ReferenceRequest:
    """Read any other message to it."""
    return cast(ReferenceRequest, _request(message, "the reference worker", _REFERENCE))


def candidate_opening(message: Any) -> OpenCandidate:
    """Read the first message to a candidate's worker; its number is 0."""
    message.pop("number", None)
    return cast(OpenCandidate, _request(message, "a candidate's worker", {"OpenCandidate"}))


def candidate_request(message: Any) -> tuple[int, CandidateRequest]:
    """Read any later message to it, with its number."""
    number = message.pop("number", 0)
    return number, cast(CandidateRequest, _request(message, "a candidate's worker", _CANDIDATE))


def module_call(text: str) -> ModuleCall:
    """Read a call that `codec.dumps` has written."""
    return cast(ModuleCall, codec.decode(json.loads(text), _CALL_PARTS))


def _request(message: Any, whose: str, known: Mapping[str, type] | set[str]) -> Any:
    name = message.get("_")
    if name not in known:
        raise UnknownRequest(
            f"`{name}` is no request to {whose}: the judge and its workers are of different versions, so start it again"
        )
    return codec.decode(message, _PARTS[whose])


def numbered(message: OpenCandidate | CandidateRequest | CandidateReply, number: int) -> dict[str, Any]:
    """Return it as it goes to a candidate's worker and back: with the number of the request."""
    encoded: dict[str, Any] = codec.encode(message)
    encoded["number"] = number
    return encoded


def reply_to(number: int, kind: type[T], reply: Any) -> T:
    """Read a candidate's answer to this request; raises `codec.Malformed` where it is another one's or none at all."""
    if not isinstance(reply, dict) or reply.pop("number", None) != number:
        raise codec.Malformed("another number than the request's")
    return codec.decode_as(kind, reply)
