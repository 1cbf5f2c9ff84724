"""What the judge asks a candidate's worker, and what comes back: one record a request, one for its reply.

The worker is opened with `OpenCandidate`; every later request is a member of `CandidateRequest`. None says what a call
is for. `protocol.py` has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rag_kernels.eval.buffers.call_content import Recipe
from rag_kernels.eval.buffers.shared_arena import ArenaLayout
from rag_kernels.eval.messages.to_both import Done, Leaf, MemoryTaken, Settle, Shared, TellMemory, TellShared
from rag_kernels.eval.records import Backend, Role, Scalar, TensorSpec, Tier


@dataclass(frozen=True, slots=True)
class CandidateCode:
    """What there is to load: paths of what was built of it are empty where nothing was."""

    tier: Tier
    source: str
    library: str
    cubin: str


@dataclass(frozen=True, slots=True)
class OpenCandidate:
    """Load the candidate: `Done`. `tf32`: library calls may take it for products of fp32, as the module's may."""

    device: Backend
    threads: int
    code: CandidateCode
    tf32: bool


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


# How tensors of two dimensions or more lie in memory, if not in order: with the last two exchanged, or with something
# between their rows.
Strided = Literal["", "exchanged", "with gaps"]


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
    strided: Strided
    like: int | None
    shared_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HoldDraw:
    """GPU only: keep the draw that lies in the shared memory now, in the place of the one of that number: `Done`."""

    at: int
    draw: int


@dataclass(frozen=True, slots=True)
class JoinExchange:
    """GPU only: use the shared memory whose descriptor comes along, and forget the draws that are held: `Done`."""

    at: int
    shared_bytes: int


FORMER = -1  # in the place of a poison


@dataclass(frozen=True, slots=True)
class ComposeContents:
    """GPU only: make the contents of the next calls, poison the outputs, empty the caches if asked: `Done`.

    A poison of `FORMER` leaves what the call before left there. With `late` contents come on the stream of the next
    burst, behind its delay: until then there are zeros. The argument of that number comes last, from a kernel that lets
    the next one begin before it has ended. With `watched` such a kernel reads what stands in the outputs.
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
class CallCounted:
    """A call that is looked at closely: `Counted`."""

    at: int


@dataclass(frozen=True, slots=True)
class Counted:
    """`others_s`: CPU seconds of all threads but the one that was asked, so far, when the call had returned."""

    others_s: float


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
    """Use another number of OpenMP threads, in so many levels of teams; 0 give one, whatever is asked for: `Done`."""

    count: int
    levels: int = 1


@dataclass(frozen=True, slots=True)
class CallOn:
    """Call it so often on the same content, until outputs differ or time is over: `Called`."""

    at: int
    times: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class CallTogether:
    """Call it at places from a thread each, so often each, until outputs differ: `Called`. On a GPU each has a stream
    of its own, and other work goes on beside them.
    """

    places: tuple[int, ...]
    times: int


@dataclass(frozen=True, slots=True)
class CallInTurn:
    """GPU only: call it at places in turn, so often each, beside other work, until outputs differ: `Called`."""

    places: tuple[int, ...]
    times: int


@dataclass(frozen=True, slots=True)
class CallHeldUp:
    """GPU only: call it at two places, on streams of which one is more urgent, while half of the multiprocessors are
    held: `Done`.
    """

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class CallCrossed:
    """Kernels: call it at a place with one argument, of this number, from another place: `Done`."""

    at: int
    argument: int
    other: int


@dataclass(frozen=True, slots=True)
class RecordGraph:
    """GPU only: make a call that is recorded as a graph: `Done`."""

    at: int


@dataclass(frozen=True, slots=True)
class LaunchGraph:
    """GPU only: launch the graph of the call that was recorded last: `Done`."""


@dataclass(frozen=True, slots=True)
class CallFirst:
    """Kernels: call it once at each of two places from two threads at once, on a CPU where memory is filled: `Done`."""

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class CallByThreads:
    """Kernels: call it once in each of so many threads, one after another, until time is over: `Called`."""

    at: int
    times: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class CallOnFirst:
    """Kernels: call it on the first lines of these arguments and results, as many as `counts` says, one after
    another until time is over: `Called`.
    """

    at: int
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    counts: tuple[int, ...]
    limit_s: float


@dataclass(frozen=True, slots=True)
class CallOnForms:
    """Kernels: call it once on tensors of zeros of these shapes, in which few elements are, or none: `Done`. Or so
    often, and at most so long, as far as it refuses them: `RefusedCalls`.
    """

    at: int
    arguments: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    refused: int = 0
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Called:
    """`times`: calls that were made; whether one left other outputs than the first did, and (GPU, several places)
    whether inputs were others while calls ran.
    """

    times: int
    differs: bool
    writes_inputs: bool = False


@dataclass(frozen=True, slots=True)
class RefusedCalls:
    """`kept_bytes`: of the process's heap, that each of them keeps."""

    kept_bytes: int


@dataclass(frozen=True, slots=True)
class TellState:
    """Tell what calls have left behind in the process: `StateLeft`."""


@dataclass(frozen=True, slots=True)
class StateLeft:
    """Whether every thread of OpenMP computes by IEEE 754, whether its settings, on a GPU those of its context, are as
    they were made, and whether PyTorch's generator is as it was before any call; whether none of a GPU's cache is kept.
    """

    arithmetic: bool
    settings: bool
    generator: bool
    cache: bool = True


@dataclass(frozen=True, slots=True)
class TellDeviceMemory:
    """GPU only: tell how much of the device's memory is taken when all work has ended: `DeviceMemory`."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """`held_bytes`: by all programs together, as the driver has it."""

    held_bytes: int


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


Within = Literal["flushing", "a region", "a small stack", "filled memory", "no libraries"]


@dataclass(frozen=True, slots=True)
class CallWithin:
    """CPU kernels: make a call where subnormals are flushed, within a parallel region, by a thread of a small stack,
    where memory that is taken is not zero, as in a program, or where no numerical library's code can be run: `Done`.
    """

    at: int
    within: Within


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End the process as a program's ends, with what is left to do then, by this code: there is no `Done`."""

    code: int


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
    | CallCounted
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
    | CallInTurn
    | CallHeldUp
    | CallCrossed
    | RecordGraph
    | LaunchGraph
    | CallFirst
    | CallByThreads
    | CallOnFirst
    | CallOnForms
    | Mute
    | CallHalves
    | CallWithin
    | EndProcess
    | RecordCalls
    | ProfileCall
    | Settle
    | TellMemory
    | TellState
    | TellDeviceMemory
    | TellShared
)
CandidateReply = (
    Done
    | Counted
    | Pulled
    | Hashed
    | Recorded
    | Profile
    | MemoryTaken
    | DeviceMemory
    | StateLeft
    | Called
    | RefusedCalls
    | Shared
)


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """A tensor's content in base64."""

    spec: TensorSpec
    content: str


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module in a program of its own, in a file (`eval.children.candidate.module_program`)."""

    device: Backend
    code: CandidateCode
    binding: Binding
    tensors: tuple[GivenTensor, ...]
