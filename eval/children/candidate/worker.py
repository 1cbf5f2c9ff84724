"""The candidate worker: the only place where candidate code is loaded and run.

Role of a forked child (`serve`). It holds the inputs of the current call and buffers for the outputs; never the
problem's source, a reference output, a tolerance, or word of what a call is for: every call is the same request.
All that it says is "done" (or the text of an exception); outputs are bytes that the judge reads and compares.

Covered by `process.warm_parent`: process tree, memory, processes, files, environment, and the sandbox where there is
one. Covered here: on a CPU inputs are mapped read-only and every tensor lies between guard pages; on a GPU between
bands of a known pattern; a composed forward runs without builtins.
"""

from __future__ import annotations

import base64
import ctypes
import faulthandler
import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from mmap import mmap
from threading import Barrier, Thread
from typing import Any, assert_never

import torch

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import Recipe
from rag_kernels.eval.children.candidate.bound_buffers import Bound, Crossed, FirstLines, OfForms
from rag_kernels.eval.children.candidate.candidate_code import ComposedCode, KernelCode, ModuleCode, PybindCode, load
from rag_kernels.eval.children.candidate.gpu_calls import (
    OF_CACHE,
    REFILL,
    Place,
    another_stream,
    device_settings,
    first_at_once,
    held_up,
    in_a_row,
    in_turn,
    on_stream,
    raising_what_is_left,
    recorded,
    together,
)
from rag_kernels.eval.children.candidate.other_code import without_libraries
from rag_kernels.eval.children.candidate.process_end import end_after
from rag_kernels.eval.children.candidate.profiling import loaded_libraries, profile
from rag_kernels.eval.children.candidate.recorded_calls import Recorder
from rag_kernels.eval.children.candidate.thread_state import (
    filled_memory,
    flushing,
    in_region,
    is_ieee,
    on_small_stack,
    other_team,
    team_is_ieee,
    team_settings,
    use_team,
)
from rag_kernels.eval.children.gpu.buffers import (
    Banded,
    answers,
    compose_all,
    digest,
    dirty_shared_memory,
    flush_caches,
    held_bytes,
    keep_nothing_cached,
)
from rag_kernels.eval.children.gpu.delay import delay_until, set_clock
from rag_kernels.eval.children.memory import MemoryCount, heap_bytes
from rag_kernels.eval.children.torch_switches import switches
from rag_kernels.eval.messages.protocol import candidate_opening, candidate_request, numbered
from rag_kernels.eval.messages.to_both import Done, MemoryTaken, Settle, Shared, TellMemory, TellShared
from rag_kernels.eval.messages.to_candidate import (
    FORMER,
    Bind,
    Binding,
    Burst,
    Call,
    CallByThreads,
    CallCounted,
    CallCrossed,
    Called,
    CallFirst,
    CallHalves,
    CallHeldUp,
    CallInTurn,
    CallOn,
    CallOnFirst,
    CallOnForms,
    CallTogether,
    CallWithin,
    CandidateReply,
    CandidateRequest,
    ComposeContents,
    Counted,
    DeviceMemory,
    EndProcess,
    Hashed,
    HashInputs,
    HashOutputs,
    HoldDraw,
    Instead,
    JoinExchange,
    LaunchGraph,
    Mute,
    OpenCandidate,
    Profile,
    ProfileCall,
    Pull,
    Pulled,
    Ready,
    RecordCalls,
    Recorded,
    RecordGraph,
    RefusedCalls,
    StateLeft,
    TellDeviceMemory,
    TellState,
    UseThreads,
    Within,
)
from rag_kernels.eval.numerics.common_elements import in_common
from rag_kernels.eval.process.channel import Channel, Failed

TOGETHER_S = 0.03  # at least, that two callers call at once: another thread needs some of it to begin
REFUSED_PARTS = 3  # of calls that it refuses, the first to settle
LAUNCHES = 2  # of a graph: what a call leaves for the next one shows in the second


def serve_cuda(channel: Channel) -> None:
    """Serve as `serve`, with the GPU's context and what its own work needs of torch's libraries, made before there is a
    candidate; if that fails, it is tried again with it."""
    with suppress(Exception):
        dirty_shared_memory()
        some = Banded(torch.zeros(64), torch.device("cuda"))
        digest([some.tensor])
        some.intact()
        set_clock()
    serve(channel)


def serve_cuda_module(channel: Channel) -> None:
    """Serve with the profiler set up too, which takes seconds: what a module runs is told by its help."""
    with suppress(Exception):
        profile(lambda: torch.empty(1, device="cuda").zero_(), on_gpu=True)
    serve_cuda(channel)


def serve(channel: Channel) -> None:
    """Load the candidate, then answer calls until the judge hangs up."""
    import tvm_ffi  # noqa: F401  (installs a slow handler for SIGSEGV, which is put back here)

    faulthandler.disable()
    faulthandler.enable()
    message, _ = channel.receive_first()
    try:
        candidate = Loaded(candidate_opening(message))
        channel.send(numbered(Done(), 0))
    except Exception as error:
        channel.send(codec.encode(Failed("raised", _sentence(error), alive=False)))
        return
    while True:
        message, fds = channel.receive()
        channel.send(_answered(candidate, message, fds))


def _answered(candidate: Loaded, message: Any, fds: Sequence[int]) -> dict[str, Any]:
    """Return the answer to one message."""
    try:
        number, request = candidate_request(message)
        with torch.no_grad():
            return numbered(candidate.answer(request, fds), number)
    except torch.OutOfMemoryError as error:
        failed = Failed("memory", _sentence(error), alive=answers(candidate.device))
    except Exception as error:
        failed = Failed("raised", _sentence(error), alive=answers(candidate.device))
    encoded: dict[str, Any] = codec.encode(failed)
    return encoded


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:4000]


class Loaded:
    """A candidate's code and the buffers that it is bound to, by number. `call` is the timed path."""

    def __init__(self, message: OpenCandidate) -> None:
        self.device = torch.device(message.device)
        self.on_cpu = self.device.type == "cpu"
        torch.set_num_threads(message.threads)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = message.tf32
        self.flags = switches()
        if not self.on_cpu:
            keep_nothing_cached()
        self.settings = self.settings_now()
        self.moved = False  # settings, at any time
        self.keeps_cache = False
        self.in_order = self.waited = True
        self.brought = loaded_libraries()  # by whoever serves candidates
        if self.on_cpu and message.code.library:
            end_after(message.code.library)
        self.code = load(message.code, self.device)
        self.memory = MemoryCount(self.device)
        self.bound: list[Bound] = []
        self.runs: list[Any] = []
        self.bindings: list[Binding] = []
        self.generator, self.draws = self.generators(), False
        self.graph: tuple[torch.cuda.CUDAGraph, int, list[Any]] | None = None  # where it was recorded, and its results

    def answer(self, request: CandidateRequest, fds: Sequence[int]) -> CandidateReply:
        """Do what is asked; those that are timed come first."""
        reply: CandidateReply = Done()
        match request:
            case Call(at):
                self.call(at)
            case CallCounted(at):
                self.call(at)
                reply = Counted(time.process_time() - time.thread_time())
            case Ready(at):
                self.ready(at)
            case Burst(order, begin_s):
                self.burst(order, begin_s)
            case ComposeContents(at, recipes, poisons, cold, late, watched):
                self.compose(at, recipes, poisons, cold=cold, late=late, watched=watched)
            case Pull(at):
                reply = self.pull(at)
            case HashOutputs(at):
                reply = Hashed(digest(self.bound[at].results))
            case HashInputs(at):
                reply = Hashed(digest(self.bound[at].tensors))
            case Bind():
                self.bind(request, fds)
            case HoldDraw(at, draw):
                self.hold(at, draw)
            case JoinExchange(at, size):
                self.join(at, size, fds[0])
            case UseThreads(count, levels):
                self.threads(count, levels)
            case CallOn(at, times, limit_s):
                reply = self.call_on(at, times, limit_s)
            case CallTogether(places, times):
                reply = self.call_together(places, times)
            case CallInTurn(places, times):
                reply = in_turn([self.place(at) for at in places], times)
            case CallHeldUp(first, second):
                held_up(self.place(first), self.place(second))
            case CallCrossed(at, argument, other):
                self.call_crossed(at, argument, other)
            case RecordGraph(at):
                self.graph = recorded(self.runs[at]), at, self.bound[at].results
            case LaunchGraph():
                self.launch_graph()
            case CallFirst(first, second):
                self.call_first(first, second)
            case CallByThreads(at, times, limit_s):
                reply = self.call_by_threads(at, times, limit_s)
            case CallOnFirst():
                reply = self.call_on_first(request)
            case CallOnForms(refused=0):
                self.on_forms(request)()
            case CallOnForms():
                reply = self.call_refused(request)
            case Mute(instead):
                self.mute(instead)
            case CallHalves(at):
                self.call_halves(at)
            case CallWithin(at, within):
                self.call_within(at, within)
            case EndProcess(code):
                ctypes.CDLL(None).exit(code)
            case RecordCalls(at):
                reply = self.record(at)
            case ProfileCall(at):
                reply = self.profile(at)
            case Settle():
                self.memory.settle()
            case TellMemory():
                reply = MemoryTaken(self.memory.peak_bytes())
            case TellState():
                self.look_at_generator()
                self.look_at_settings()
                reply = StateLeft(team_is_ieee(), not self.moved, not self.draws, not self.keeps_cache)
            case TellDeviceMemory():
                reply = DeviceMemory(held_bytes())
            case TellShared(at):
                reply = Shared(in_common(self.bound[at].results, self.bound[at].tensors))
            case _ as never:
                assert_never(never)
        return reply

    def bind(self, request: Bind, fds: Sequence[int]) -> None:
        """Bind the code to one more set of buffers."""
        self.look_at_generator()
        like = None if request.like is None else self.bound[request.like]
        bound = Bound(request, fds, self.device, writes=isinstance(self.code, KernelCode), like=like)
        self.runs.append(self.code.bind(bound, request.binding))
        self.bindings.append(request.binding)
        self.bound.append(bound)
        self.generator = self.generators()

    def look_at_generator(self) -> None:
        """Note whether calls since the code was bound, which may draw parameters, have drawn random numbers."""
        self.draws |= bool(self.bound) and not torch.equal(self.generator, self.generators())

    def generators(self) -> torch.Tensor:
        """Return the state of PyTorch's generators of random numbers."""
        host = torch.get_rng_state()
        return host if self.on_cpu else torch.cat([host, torch.cuda.get_rng_state()])

    def look_at_settings(self) -> None:
        """Note whether calls have changed settings; what they keep of a GPU's cache is emptied with it."""
        now = self.settings_now()
        if self.on_cpu or now == self.settings:
            self.moved |= now != self.settings
            return
        kept, before = now[OF_CACHE], self.settings[OF_CACHE]
        self.keeps_cache |= kept > before
        self.moved |= any(a != b for i, (a, b) in enumerate(zip(now, self.settings, strict=True)) if i != OF_CACHE)

    def settings_now(self) -> tuple[int, ...]:
        """Return settings of OpenMP, and on a GPU of its context."""
        return team_settings() if self.on_cpu else device_settings()

    def place(self, at: int) -> Place:
        """Return what is called there, for many calls on a GPU."""
        bound = self.bound[at]
        refilled = [] if bound.keeps else bound.results
        return Place(self.runs[at], lambda: bound.results, refilled, bound.contents)

    def hold(self, at: int, draw: int) -> None:
        """Keep the whole draw that lies in the shared memory now, under its number (GPU only)."""
        bound = self.bound[at]
        bound.draws[draw : draw + 1] = [bound.exchange.offered()]
        torch.cuda.synchronize()

    def join(self, at: int, size_bytes: int, fd: int) -> None:
        """Join another reference worker, with other memory and other draws (GPU only)."""
        exchange, draws = self.bound[at].exchange, self.bound[at].draws
        exchange.join(fd, size_bytes)
        draws.clear()
        for bound in self.bound:
            if bound.exchange is exchange:
                bound.outputs = exchange.handed()

    def compose(
        self,
        at: Sequence[int],
        recipes: Sequence[Recipe],
        poisons: Sequence[int],
        *,
        cold: bool,
        late: int | None,
        watched: bool,
    ) -> None:
        """Compose the content of the next calls on the device, poison the outputs, empty the caches (GPU only)."""
        self.look_back()
        self.look_at_settings()  # before the caches are emptied
        places = [self.bound[place] for place in at]
        pairs = zip(places, recipes, strict=True)
        compose_all(job for bound, recipe in pairs for job in bound.jobs(recipe))
        for bound, poison in zip(places, poisons, strict=True):
            bound.lay_out()
            for result in bound.results:
                if poison != FORMER and type(result) is torch.Tensor and result.is_contiguous():
                    result.reshape(-1).view(torch.uint8).fill_(poison)
            if late is not None:
                bound.keep_back(late)
            if watched:
                bound.watch()
        dirty_shared_memory()
        if cold:
            flush_caches()
        torch.cuda.synchronize()

    def ready(self, at: Sequence[int]) -> None:
        """Let go of results of earlier calls, before calls and outside the clock."""
        self.look_back()
        for place in at:
            bound = self.bound[place]
            bound.fresh()
            if bound.keeps:
                bound.results = []
        if not self.on_cpu:
            set_clock()

    def call(self, at: int) -> None:
        """Make the timed call."""
        self.runs[at]()
        if not self.on_cpu:
            self.bound[at].finish()

    def burst(self, order: Sequence[int], begin_s: float) -> None:
        """Make several timed calls, each on buffers of its own, with one wait at the end; on a GPU from a moment on.

        Where inputs come late, or outputs are still read, all of it is on another stream than the default one, which
        does not wait for it; a module of others may launch on that one.
        """
        apart = any(self.bound[at].comes_on_stream for at in order) and not isinstance(
            self.code, ModuleCode | PybindCode
        )
        with on_stream(another_stream()) if apart else nullcontext():
            self._burst(order, begin_s)

    def _burst(self, order: Sequence[int], begin_s: float) -> None:
        delay_until(begin_s)
        for at in order:
            self.bound[at].arrive()
        for at in order:
            self.runs[at]()
        if order and not self.on_cpu:
            self.bound[order[-1]].finish()
        elif not self.on_cpu:
            torch.cuda.synchronize()

    def look_back(self) -> None:
        """See whether what the calls before left was there for who came next on the stream, at all places.

        A burst samples its last place, which need not be the one that is pulled.
        """
        for bound in self.bound:
            self.in_order = bound.in_order() and self.in_order
            self.waited = bound.has_waited() and self.waited

    def pull(self, at: int) -> Pulled:
        """Copy the outputs into the judge's memory (where they are not already) and say what form they have."""
        bound = self.bound[at]
        self.look_back()
        if not all(type(t) is torch.Tensor or type(t) is torch.nn.Parameter for t in bound.results):
            raise TypeError("the candidate returned something that is not a plain tensor")
        form = tuple(_form(t, t.device.type) for t in bound.results)
        expected = tuple(_form(t, self.device.type) for t in bound.outputs)
        if form == expected and bound.results is not bound.outputs:
            for source, place in zip(bound.results, bound.outputs, strict=True):
                place.copy_(source)
            if not self.on_cpu:
                torch.cuda.synchronize()
        return Pulled(form, bound.intact(), is_ieee(), self.in_order, self.waited)

    def threads(self, count: int, levels: int) -> None:
        """Use another number of OpenMP threads, in torch and in the kernel's own runtime.

        Without `levels` a thread is told of so many, and gets none: as where a limit is reached, or within a region.
        With two of them each thread of a team may have a team. What PyTorch computes beside the kernels of a composed
        source rests on the team that it is told of: these alone have other levels.
        """
        if isinstance(self.code, ComposedCode):
            self.code.kernels._within = partial(other_team, count, levels) if levels != 1 else None
            if levels != 1:
                return
        if self.on_cpu:
            self.look_at_settings()  # what calls up to now have changed is no longer seen then
        use_team(count, levels)
        if self.on_cpu:
            self.settings = team_settings()

    def call_on(self, at: int, times: int, limit_s: float) -> Called:
        """Call it again and again into refilled outputs, or new ones of its own; what a call counts to, or keeps, shows
        in the end.
        """
        if not self.on_cpu:
            return in_a_row(self.place(at), times, limit_s)
        self.runs[at]()
        refilled = list(self.bound[at].results) if isinstance(self.code, KernelCode) else []
        same, end_s = _as_now(partial(self._results, at)), time.monotonic() + limit_s
        for made in range(times):
            if time.monotonic() > end_s:
                return Called(made, False)
            for tensor in refilled:
                ctypes.memset(tensor.data_ptr(), REFILL, tensor.nbytes)
            self.runs[at]()
            if not same():
                return Called(made + 1, True)
        return Called(times, False)

    def call_together(self, places: Sequence[int], times: int) -> Called:
        """Call it from a thread for each place at once, as a program does that serves several requests.

        So often each, and until they have been at it together for some time.
        """
        if not self.on_cpu:
            return together([self.place(at) for at in places], times)
        for at in places:
            self.runs[at]()
        same = {at: _as_now(partial(self._results, at)) for at in places}
        begin, count = Barrier(len(places)), torch.get_num_threads()

        def some(at: int) -> tuple[int, bool]:
            begin.wait()
            end_s, made = time.monotonic() + TOGETHER_S, 0
            while made < times or time.monotonic() < end_s:
                self.runs[at]()
                made += 1
                if not same[at]():
                    return made, True
            return made, False

        with ThreadPoolExecutor(len(places) - 1, initializer=partial(use_team, count)) as others:
            there = [others.submit(some, at) for at in places[1:]]
            made, differs = some(places[0])
        return Called(made, any([differs, *(one.result()[1] for one in there)]))

    def call_first(self, first: int, second: int) -> None:
        """Call it once at each of two places, from two threads that begin at once, on a CPU where memory is filled."""
        if not self.on_cpu:
            first_at_once([self.runs[first], self.runs[second]])
            return
        begin, count = Barrier(2), torch.get_num_threads()

        def once(at: int) -> None:
            begin.wait()
            self.runs[at]()

        with filled_memory(), ThreadPoolExecutor(1, initializer=partial(use_team, count)) as other:
            there = other.submit(once, second)
            once(first)
            there.result()

    def _results(self, at: int) -> Sequence[torch.Tensor]:
        return self.bound[at].results

    def call_by_threads(self, at: int, times: int, limit_s: float) -> Called:
        """Call it once in each of several threads that end: what it keeps for a thread then stays."""
        end_s, failed = time.monotonic() + limit_s, list[Exception]()

        def once() -> None:
            use_team(1)
            try:
                self.runs[at]()
            except Exception as error:
                failed.append(error)

        for made in range(times):
            if time.monotonic() > end_s:
                return Called(made, False)
            thread = Thread(target=once)
            thread.start()
            thread.join()
            if failed:
                raise failed[0]
        return Called(times, False)

    def call_on_first(self, asked: CallOnFirst) -> Called:
        """Call it on some of the first lines of what it is bound to, of other numbers each time: what it keeps for a
        size then stays.
        """
        bound, end_s = self.bound[asked.at], time.monotonic() + asked.limit_s
        for made, count in enumerate(asked.counts):
            if time.monotonic() > end_s:
                return Called(made, False)
            self.code.bind(FirstLines(bound, asked, count), self.bindings[asked.at])()
        return Called(len(asked.counts), False)

    def call_crossed(self, at: int, argument: int, other: int) -> None:
        """Call it where one argument lies elsewhere, and all others where they lay before."""
        self.code.bind(Crossed(self.bound[at], argument, self.bound[other]), self.bindings[at])()
        if not self.on_cpu:
            self.bound[at].finish()

    def on_forms(self, asked: CallOnForms) -> Callable[[], None]:
        """Return a call of it on tensors of zeros of other shapes."""
        call = self.code.bind(OfForms(self.bound[asked.at], asked), self.bindings[asked.at])
        return call if self.on_cpu else raising_what_is_left(call)

    def call_refused(self, asked: CallOnForms) -> RefusedCalls:
        """Call it many times on what it refuses, until it takes one, and see what is left of the later ones: in each of
        two parts of them, or it is none of these calls'.
        """
        call, parts = self.on_forms(asked), list[float]()
        for _ in range(REFUSED_PARTS):
            gc.collect()  # exceptions hold on to each other
            held, made, end_s = heap_bytes(), 0, time.monotonic() + asked.limit_s / REFUSED_PARTS
            while made < asked.refused // REFUSED_PARTS and time.monotonic() < end_s:
                try:
                    call()
                except Exception:
                    made += 1
                    continue
                return RefusedCalls(0)
            gc.collect()
            parts.append((heap_bytes() - held) / max(1, made))
        return RefusedCalls(max(0, int(min(parts[1:]))))

    def mute(self, instead: Instead) -> None:
        """Let the own kernels of a composed source do nothing, or copy, to see whether the result needs them."""
        self.code.kernels._instead = instead  # type: ignore[attr-defined]

    def call_halves(self, at: int) -> None:
        """Make a call of a training step with another forward between its forward and its backward."""
        assert isinstance(self.code, ComposedCode)
        self.code.halves(self.bound[at], self.bindings[at])()
        if not self.on_cpu:
            self.bound[at].finish()

    def call_within(self, at: int, within: Within) -> None:
        """Make a call where subnormals are flushed, by the threads of a team too, or by a thread of a team or of
        a small stack, or where memory is filled, or libraries are out of reach.
        """
        if within in ("a region", "a small stack"):
            (in_region if within == "a region" else on_small_stack)(self.runs[at])
            return
        ways = {"flushing": flushing, "filled memory": filled_memory, "no libraries": without_libraries}
        with ways[within]():
            self.runs[at]()

    def launch_graph(self) -> None:
        """Launch what was recorded, whose results lie where they lay then."""
        assert self.graph is not None, "the judge has one recorded first"
        graph, at, results = self.graph
        self.bound[at].results = results
        for _ in range(LAUNCHES):
            graph.replay()
        self.bound[at].finish()

    def record(self, at: int) -> Recorded:
        """Return what kernels of a composed source are called with in one call, as a checked program reads it, or why
        not.
        """
        self.look_back()
        recorder = Recorder()
        self.code.kernels._recorder = recorder  # type: ignore[attr-defined]
        try:
            self.runs[at]()
        finally:
            self.code.kernels._recorder = None  # type: ignore[attr-defined]
        return Recorded(base64.b64encode(b"".join(recorder.parts)).decode(), recorder.left_out)

    def profile(self, at: int) -> Profile:
        """Make one call under torch's profiler and return what it saw."""
        self.look_back()
        kernels = profile(self.runs[at], on_gpu=not self.on_cpu)
        flags = [f"{name} = {value}" for name, value in switches().items() if value != self.flags[name]]
        return Profile(kernels, tuple(sorted(loaded_libraries() - self.brought)), tuple(flags))


def _as_now(results: Callable[[], Sequence[torch.Tensor]]) -> Callable[[], bool]:
    """Return a function that says whether results, those of a last call each time, hold the same bytes as now.

    By the C library: torch compares 8 MB of bytes in 6 ms and few in 4 us, which is more than what calls of it take.
    What is kept lies in memory of its own: of a heap that torch's aligned pieces come from some is left each time, and
    looks as if the calls had kept it.
    """
    differ = ctypes.CDLL(None).memcmp
    differ.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    first = [t.contiguous() for t in results()]
    places = [(ctypes.c_char * t.nbytes).from_buffer(mmap(-1, max(1, t.nbytes))) for t in first]
    for t, kept in zip(first, places, strict=True):
        ctypes.memmove(kept, t.data_ptr(), t.nbytes)

    def same() -> bool:
        now = [t.contiguous() for t in results()]
        there = zip(now, places, strict=True)
        return not any(differ(t.data_ptr(), ctypes.addressof(kept), t.nbytes) for t, kept in there)

    return same


def _form(tensor: torch.Tensor, device: str) -> tuple[tuple[int, ...], str, str]:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), device
