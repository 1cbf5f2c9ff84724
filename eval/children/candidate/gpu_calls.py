"""Calls on a GPU as programs make them: on streams of their own, by several threads, beside other work, from a graph.

Runs in candidate workers only.

Comes in: what calls the candidate at a place, and what its results there are. Goes out: whether a call left others than
the first one, which then lie in the place of the last one's. What is wrong with them the judge says.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from threading import Barrier, Event, Thread

import torch

from rag_kernels.eval.children.gpu.buffers import clear_error, driver
from rag_kernels.eval.messages.to_candidate import Called

REFILL = 0x5A  # bytes of outputs between calls in a row: a large finite number of every format
LOOKED_AT = 64  # of so many calls in a row the last one is looked at
WAITED_FOR = 8  # of so many calls of a thread, or in turn
AT_ONCE_S = 0.03  # at least, that threads call at once
OTHER_WORK_BYTES, OTHER_WORK = 64 << 20, 4  # more than caches hold; how many pieces are queued at a time
URGENT = -5  # a priority of streams, the highest
HELD_NS, HELD = 4_000_000, 3  # how long multiprocessors are held, and how often
# `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`, `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`
SHARED_MEMORY, MOST_SHARED_MEMORY = 8, 97
# Takes a multiprocessor, by all of its shared memory, for so many nanoseconds.
HOLD = """
.version 7.8
.target sm_75
.address_size 64
.visible .entry hold(.param .u64 pause) {
  .reg .pred %p;
  .reg .b64 %pause, %begun, %now;
  ld.param.u64 %pause, [pause];
  mov.u64 %begun, %globaltimer;
waiting:
  mov.u64 %now, %globaltimer;
  sub.s64 %now, %now, %begun;
  setp.lt.u64 %p, %now, %pause;
  @%p bra waiting;
  ret;
}
"""
LIMITS, OF_CACHE = range(7), 6  # of `CUlimit`: stacks, what device code prints and allocates; what stays in L2

Results = Callable[[], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a candidate is called: the call, its results, those of them that each call writes anew, its arguments."""

    call: Callable[[], object]
    results: Results
    refilled: Sequence[torch.Tensor] = ()
    arguments: Sequence[torch.Tensor] = ()


class Watched:
    """Results of calls at one place, held against those that are there now; all of it is queued on the stream."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._first = [_bytes(t).clone() for t in results()]
        self._other = [t.clone() for t in self._first]
        self.differ_so_far = torch.zeros((), dtype=torch.bool, device="cuda" if torch.cuda.is_available() else "cpu")

    def look(self) -> None:
        """Queue a comparison of what the last call left; of what differs the last is kept."""
        for now, first, other in zip(map(_bytes, self._results()), self._first, self._other, strict=True):
            differs = (now != first).any()
            other.copy_(torch.where(differs, now, other))
            self.differ_so_far.logical_or_(differs)

    def differ(self) -> bool:
        """Wait, and return whether a call left others than the first; these are then put where results lie."""
        found = bool(self.differ_so_far)
        for now, other in zip(map(_bytes, self._results()), self._other, strict=True):
            if found:
                now.copy_(other)
        return found


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def a_stream(priority: int = 0) -> torch.cuda.Stream:
    """Return a stream that does not wait for the default one."""
    return torch.cuda.Stream(priority=priority)  # type: ignore[no-untyped-call]


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Have this thread's work on a stream meanwhile: PyTorch's, and that of kernels which ask the contract for it."""
    import tvm_ffi  # not before the worker is forked

    here = tvm_ffi.device("cuda", torch.cuda.current_device())
    with torch.cuda.stream(stream), tvm_ffi.use_raw_stream(here, stream.cuda_stream):
        yield


@cache
def another_stream() -> torch.cuda.Stream:
    """Return one stream beside the default one, the same each time, whose work comes before that of a kernel's own."""
    return a_stream(URGENT)


@contextmanager
def other_work(places: Sequence[Place]) -> Iterator[Callable[[], bool]]:
    """Have other work take multiprocessors and memory meanwhile, on a stream of its own, as other programs' does, and
    read arguments again and again; give what tells whether they ever were others.
    """
    ends = Event()
    stream, some = a_stream(), torch.zeros(OTHER_WORK_BYTES // 4, device="cuda")
    more, watched = torch.empty_like(some), [Watched(partial(tuple, place.arguments)) for place in places]
    torch.cuda.synchronize()

    def work() -> None:
        with torch.cuda.stream(stream):
            while not ends.is_set():
                for _ in range(OTHER_WORK):
                    torch.add(some, 1.0, out=more)
                    for one in watched:
                        one.look()
                stream.synchronize()

    thread = Thread(target=work)
    thread.start()
    try:
        yield lambda: any([bool(one.differ_so_far) for one in watched])
    finally:
        ends.set()
        thread.join()


def in_a_row(place: Place, times: int, limit_s: float) -> Called:
    """Call it again and again; what a call counts to, or keeps, shows in the end."""
    end_s, made = time.monotonic() + limit_s, 0
    place.call()
    watched = Watched(place.results)
    while made < times and time.monotonic() < end_s:
        for _ in range(some := min(LOOKED_AT, times - made)):
            if made == some - 1:
                _refill(place)
            place.call()
            made += 1
        watched.look()
        if watched.differ():
            return Called(made, True)
    return Called(made, False)


def _refill(place: Place) -> None:
    for tensor in place.refilled:
        _bytes(tensor).fill_(REFILL)


def in_turn(places: Sequence[Place], times: int) -> Called:
    """Call it at places in turn, each on another content, beside other work: who takes what an earlier block or call
    left for what another one is still to leave finds another content's.
    """
    with other_work(places) as changed, on_stream(a_stream()):
        for place in places:
            place.call()
        watched, made, differs = [Watched(place.results) for place in places], 0, False
        while made < times and not differs:
            for place, one in zip(places, watched, strict=True):
                _refill(place)
                place.call()
                one.look()
            made += 1
            if made % WAITED_FOR == 0 or made == times:
                differs = any([one.differ() for one in watched])
        torch.cuda.synchronize()
        return Called(made, differs, changed())


def together(places: Sequence[Place], times: int) -> Called:
    """Call it from a thread for each place at once, each on a stream of its own, beside other work: so often each, and
    until they have been at it together for some time.
    """
    for place in places:
        place.call()
    torch.cuda.synchronize()
    begin = Barrier(len(places))

    def some(place: Place) -> tuple[int, bool]:
        begin.wait()
        with torch.no_grad(), on_stream(a_stream()):
            watched, made, end_s = Watched(place.results), 0, time.monotonic() + AT_ONCE_S
            while made < times or time.monotonic() < end_s:
                place.call()
                watched.look()
                made += 1
                if made % WAITED_FOR == 0 and watched.differ():
                    return made, True
            return made, watched.differ()

    with other_work(places) as changed, ThreadPoolExecutor(len(places)) as threads:
        found = [one.result() for one in [threads.submit(some, place) for place in places]]
        torch.cuda.synchronize()
        return Called(found[0][0], any(differs for _, differs in found), changed())


def held_up(first: Place, second: Place) -> None:
    """Call it twice while half of the multiprocessors are held, the second time on a more urgent stream: where blocks
    of a call wait for all others of it, each call gets a part of its blocks, and both wait for ever.
    """
    held, plain, urgent = a_stream(), a_stream(), a_stream(URGENT)
    for _ in range(HELD):
        with torch.cuda.stream(held):
            _hold_half()
        for place, stream in ((first, plain), (second, urgent)):
            with on_stream(stream):
                place.call()
        torch.cuda.synchronize()


def _hold_half() -> None:
    """Queue a kernel that takes half of the multiprocessors for a while on the current stream."""
    kernel, device = _holder(), torch.cuda.get_device_properties(torch.cuda.current_device())
    if kernel is None:
        return
    pause = ctypes.c_uint64(HELD_NS)
    given = (ctypes.c_void_p * 1)(ctypes.addressof(pause))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    driver().cuLaunchKernel(
        kernel, device.multi_processor_count // 2, 1, 1, 32, 1, 1, _most_shared_memory(), stream, given, None
    )


def _most_shared_memory() -> int:
    """Return how many bytes of it a block may have."""
    found = ctypes.c_int()
    driver().cuDeviceGetAttribute(ctypes.byref(found), MOST_SHARED_MEMORY, torch.cuda.current_device())
    return found.value


@cache
def _holder() -> ctypes.c_void_p | None:
    """Return `hold` on this GPU; nothing where it cannot be loaded."""
    cuda, module, kernel = driver(), ctypes.c_void_p(), ctypes.c_void_p()
    failed = cuda.cuModuleLoadData(ctypes.byref(module), HOLD.encode())
    failed = failed or cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"hold")
    failed = failed or cuda.cuFuncSetAttribute(kernel, SHARED_MEMORY, _most_shared_memory())
    return None if failed else kernel


def first_at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Make each call once, from threads that begin at once, each on a stream of its own."""
    begin = Barrier(len(calls))

    def once(call: Callable[[], object]) -> None:
        begin.wait()
        with torch.no_grad(), on_stream(a_stream()):
            call()

    with ThreadPoolExecutor(len(calls)) as threads:
        for one in [threads.submit(once, call) for call in calls]:
            one.result()
    torch.cuda.synchronize()


def recorded(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a call as a graph that can be launched again; raises where it cannot be recorded."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with on_stream(a_stream()):
        call()  # what a first call sets up is none of a graph's
        torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            call()
        finally:
            graph.capture_end()
    return graph


def raising_what_is_left(call: Callable[[], object]) -> Callable[[], None]:
    """Return a call that raises an error of the runtime that it has left behind, and clears it."""

    def checked() -> None:
        clear_error()
        call()
        torch.cuda.synchronize()
        if error := clear_error():
            raise RuntimeError(f"it leaves error {error} of the CUDA runtime behind")

    return checked


def device_settings() -> tuple[int, ...]:
    """Return settings of the GPU's context, which hold for whoever uses it next: limits, caches, which device."""
    found: list[int] = []  # `OF_CACHE` among them
    with suppress(OSError, AttributeError):
        cuda = driver()
        for limit in LIMITS:
            size = ctypes.c_size_t()
            cuda.cuCtxGetLimit(ctypes.byref(size), limit)
            found.append(size.value)
        for ask in (cuda.cuCtxGetCacheConfig, cuda.cuCtxGetDevice):
            number = ctypes.c_int()
            ask(ctypes.byref(number))
            found.append(number.value)
    return tuple(found)
