"""The judge's end of a candidate's worker: load it, bind it to buffers, call it, take its outputs.

Comes in: a candidate and sessions whose content it is called on. Goes out: seconds and bytes; whatever goes wrong
in the worker ends the trial as a verdict (`Stopped`). What a call is for is never said.
"""

from __future__ import annotations

import base64
import math
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TypeVar

import numpy as np

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot, image
from rag_kernels.eval.buffers.shared_arena import Arena, ArenaLayout, anywhere, as_allocated, usual_address
from rag_kernels.eval.build.products import Library
from rag_kernels.eval.errors import Internal
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.messages.protocol import numbered, reply_to
from rag_kernels.eval.messages.to_both import Done, MemoryTaken, Settle, Shared, TellMemory, TellShared
from rag_kernels.eval.messages.to_candidate import (
    Bind,
    Binding,
    Burst,
    Call,
    CallByThreads,
    Called,
    CallHalves,
    CallOn,
    CallOnFirst,
    CallOnForms,
    CallTogether,
    CallWithin,
    CandidateCode,
    CandidateReply,
    CandidateRequest,
    ComposeContents,
    EndProcess,
    Hashed,
    HashInputs,
    HashOutputs,
    Held,
    HoldDraw,
    InContent,
    Instead,
    JoinExchange,
    Mute,
    OpenCandidate,
    Profile,
    ProfileCall,
    Pull,
    Pulled,
    Ready,
    RecordCalls,
    Recorded,
    StateLeft,
    TellState,
    UseThreads,
    Within,
)
from rag_kernels.eval.messages.to_reference import OfferDraw, Opened
from rag_kernels.eval.process.process_tree import Resident, grown_bytes
from rag_kernels.eval.process.workers import Worker, WorkerFailed
from rag_kernels.eval.records import (
    Candidate,
    Crashed,
    FunctionalProblem,
    MachineError,
    Rejected,
    ScalarArgument,
    TimedOut,
    Verdict,
    Wrong,
)
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.steps import computes_all

S = TypeVar("S")
T = TypeVar("T", bound=CandidateReply)
Shapes = tuple[tuple[int, ...], ...]
Form = Sequence[tuple[Sequence[int], str, str]]  # of each output: shape, dtype, device
_UNDEFINED = re.compile(r"undefined symbol: (\w+)")  # as the dynamic linker says it
EARLY_S = 3e-3  # that a call is made before its inputs come: its launches take a host less
END_S = 5.0  # of a process; who takes longer is not looked at
MOST_READY_S = 5e-4  # what getting ready may cost a worker: what it takes beyond, both times, is for something else
POISONS = (0xFF, 0x5A, 0x00)  # quiet NaN in every float format, a large finite number, and what a new page holds
FORMER_SHARE = (
    0.2  # of calls on a CPU whose outputs held what an earlier call made there, as memory that is used again does
)
RUBBISH_SHARE = 0.25  # of calls on a CPU whose outputs held numbers without a pattern before, as reused memory does
RUBBISH_BYTES = 1 << 16
ROOM_BYTES = 1 << 20  # beside tensors: their pages, and those between them


class Stopped(Internal):
    """Ends a trial early with its verdict; never leaves the judge. `alive`: its worker can be asked on."""

    def __init__(self, verdict: Verdict, *, alive: bool = False) -> None:
        super().__init__()
        self.verdict = verdict
        self.alive = alive


@dataclass(frozen=True, slots=True)
class Account:
    """CPU seconds of a candidate's worker around one call, which took `call_s` of the judge's clock.

    `before_s`: what it took to get ready for it, beyond doing so again; `late_s`: after its answer, until it stood;
    `after_s`: to hand the outputs over, beyond doing so again.
    """

    call_s: float
    before_s: float
    late_s: float
    after_s: float = 0.0
    is_exact: bool = False

    @property
    def beside_s(self) -> float:
        """What was done for the call, but not within its time: what took longer again makes good for nothing."""
        return max(0.0, self.before_s) + self.late_s + max(0.0, self.after_s)


@dataclass
class BoundBuffers:
    """Buffers that the candidate is bound to, for one session's problem."""

    session: ProblemSession
    number: int
    content: Arena
    outputs: Arena | None  # on a GPU they come through the session's shared memory
    held: int = 0  # draws that the worker has on its GPU
    restarts: int = 0  # of the session, when its memory was shared
    poison: int = POISONS[0]
    seen: bytes = b""  # fingerprint of what the last call left, if it was compared and no call came since


class LoadedCandidate:
    """One candidate in one worker; a context manager. `session` is the problem it is for."""

    def __init__(self, session: ProblemSession, candidate: Candidate, library: Library | None) -> None:
        self.session, self.candidate, self.limits = session, candidate, session.limits
        self.places: list[BoundBuffers] = []
        self.unbound: list[BoundBuffers] = []  # where binding has not come to its end
        self.is_module = candidate.tier == "module"
        self._requests = 0
        self.round_trips: list[float] = []  # seconds of requests for no call
        self.asking_s = 0.0  # what was subtracted from the last burst for asking
        self.accounts: list[Account] = []  # of single calls, in order
        self.met: set[Recipe] = set()  # remembered contents that it was called on
        self._before_s = 0.0
        self.at_rest: Resident | None = None  # its memory before its first call
        self._called: list[ProblemSession] = []
        self._exactly = False
        role = "rag_kernels.eval.children.candidate:serve"
        if session.on_gpu:
            role += "_cuda_module" if self.is_module else "_cuda"
        memory = None if session.on_gpu else session.memory_bytes
        limited, workers = not (session.on_gpu or self.is_module), session.candidate_workers
        self.worker: Worker = workers.spawn(
            role, memory_bytes=memory, limit_address_space=limited, may_fork=self.is_module
        )
        if session.on_gpu:  # the next candidate's GPU context is made while this one is checked
            workers.spare(role, memory_bytes=memory, limit_address_space=limited, may_fork=self.is_module)
        try:
            code = CandidateCode(
                candidate.tier,
                candidate.source,
                library=str(library.path) if library else "",
                cubin=str(library.cubin or "") if library else "",
            )
            message = OpenCandidate(session.device.backend, threads(), code)
            if session.on_gpu and not self.is_module:  # modules are loaded in threads, and turns belong to one
                with session.device_lock.away():
                    self._wait_until_ready()
            self._send_or_stop(message, Done, stage="load", deadline_s=self._load_limit_s, fds=())
        except Stopped:
            self.close()
            raise

    def _wait_until_ready(self) -> None:
        """Wait for the GPU's context, which its worker makes before it hears of a candidate."""
        try:
            self.worker.wait_until_ready(deadline_s=self.limits.open_s)
        except WorkerFailed as failure:
            raise Stopped(_failed(failure, "load", self.limits.open_s), alive=failure.alive) from failure

    @property
    def _load_limit_s(self) -> float:
        return self.limits.module_load_s if self.is_module else self.limits.load_s

    def _ask(
        self,
        request: CandidateRequest,
        kind: type[T],
        *,
        stage: str = "call",
        deadline_s: float | None = None,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        """Send one request and return its reply; whatever goes wrong with it ends the trial (raises Stopped)."""
        self.session.device_lock.give_way()
        deadline_s = deadline_s or self.limits.open_s
        return self._send_or_stop(request, kind, stage=stage, deadline_s=deadline_s, fds=fds, spin=spin)

    def _send_or_stop(
        self,
        request: OpenCandidate | CandidateRequest,
        kind: type[T],
        *,
        stage: str,
        deadline_s: float,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        try:
            return self._send(request, kind, deadline_s=deadline_s, fds=fds, spin=spin)
        except WorkerFailed as failure:
            if room_is_ours(failure, stage, self.candidate.tier):
                raise self._no_room() from failure
            raise Stopped(_failed(failure, stage, deadline_s), alive=failure.alive) from failure

    def _send(
        self,
        request: OpenCandidate | CandidateRequest,
        kind: type[T],
        *,
        deadline_s: float,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        """Send one numbered request and return its reply, which has this number and is of this kind, or is not our
        worker's.

        Raises WorkerFailed, and Stopped (`forged_answer`) for another reply.
        """
        number, self._requests = self._requests, self._requests + 1
        reply = self.worker.request(numbered(request, number), deadline_s=deadline_s, fds=fds, spin=spin)
        try:
            return reply_to(number, kind, reply)
        except codec.Malformed:
            why = "The candidate's process gave an answer that was not asked for: something else writes to its channel."
            raise Stopped(Rejected("forged_answer", why)) from None

    def bind(
        self,
        session: ProblemSession,
        *,
        tight: bool = False,
        strided: bool = False,
        step: int | None = None,
        low: bool | None = None,
        mapped: bool = False,
        same: Sequence[int] = (),
        beside: BoundBuffers | None = None,
    ) -> BoundBuffers:
        """Bind to buffers of their own; `tight` puts every tensor's end right before a guard page (CPU).

        `step` puts tensors within their pages (CPU), at multiples of so many bytes, or (0) at any odd element; `low`
        maps them (CPU) where a heap may be, within 4 GiB or beyond; `mapped` has them begin where PyTorch allocates
        them (CPU), large ones all at one place in their pages. `same` gives one for several arguments (CPU).
        `strided` binds to copies of the first draw, laid out in memory with the last two dimensions exchanged. A place
        `beside` another is called in one burst with it, on the same parameters: a module may serve both.
        """
        content, forms = session.content, (session.specs, session.fp.outputs)
        within = mapped or step is not None  # their pages
        begins: list[tuple[int, ...]] = [(), ()]
        if within:
            begins = [as_allocated(s, session.rng) if mapped else anywhere(s, step or 0, session.rng) for s in forms]
        at = [0, 0]
        if low is not None:
            sizes = session.content_bytes, session.output_bytes
            at = [usual_address(size + ROOM_BYTES, session.rng, low=low) for size in sizes]
        if tight or within or same:
            readers_only = "read-only inputs" not in self.limits.without
            content = Arena(
                session.specs, readers_only=readers_only, tight=tight, begins=begins[0], same=same, address=at[0]
            )
        if within:
            content.whole()[:] = POISONS[0]  # around the tensors: what nobody may use, not even times zero
        like = next((p for p in self.places if p.session is session), None)
        outputs = None if session.on_gpu else Arena(session.fp.outputs, tight=tight, begins=begins[1], address=at[1])
        place = BoundBuffers(session, len(self.places), content, outputs, restarts=session.restarts)
        session.write(plain(0, len(session.specs)), place.content)  # a constructor sees inputs that no call will use
        told = binding(session.fp, self.candidate, session.opened)
        told = replace(told, seed=session.rng.getrandbits(40), beside=beside.number if beside else None)
        fds = [content.fd, outputs.fd] if outputs else [content.fd]
        shared_bytes = None
        if session.on_gpu and like is None:
            fd, shared_bytes = session.share()
            fds.append(fd)
        request = Bind(
            told,
            content=content.describe(),
            outputs=outputs.describe() if outputs else ArenaLayout(session.fp.outputs),
            writable="read-only inputs" in self.limits.without,
            strided=strided,
            like=like.number if like else None,
            shared_bytes=shared_bytes,
        )
        self.unbound.append(place)
        before = self.worker.resident() if self.at_rest else None
        self._ask(request, Done, stage="load", deadline_s=self._load_limit_s, fds=fds)
        self.places.append(self.unbound.pop())
        if self.at_rest and before and (after := self.worker.resident()):  # what binding takes is ours
            self.at_rest = replace(self.at_rest, own=self.at_rest.own + max(0, after.own - before.own))
        if session.on_gpu and len(self.places) == 1:  # what it builds for itself has been built
            self.worker.keep_to([self.session.core])
        return place

    def _hold_draws(self, place: BoundBuffers) -> None:
        """Hold whole draws on the GPU, put there by our own code: a failure is not the candidate's."""
        place = next(p for p in self.places if p.session is place.session)  # the others share what the first one holds
        if place.restarts != place.session.restarts:
            fd, size_bytes = place.session.share()
            self._ask(JoinExchange(place.number, size_bytes), Done, fds=[fd])
            place.held, place.restarts = 0, place.session.restarts
        for draw in range(place.held, place.session.drawn):
            place.session.ask(OfferDraw(draw), Done)
            try:
                self._send(HoldDraw(place.number), Done, deadline_s=self.limits.open_s)
            except WorkerFailed as failure:
                if failure.kind == "memory":
                    raise self._no_room() from failure
                raise Stopped(_failed(failure, "load", self.limits.open_s), alive=failure.alive) from failure
            place.held += 1

    def _no_room(self) -> MachineError:
        return MachineError(
            f"The GPU has too little free memory to judge {self.session.fp.problem.name}: "
            "stop other programs on it, or make the problem smaller."
        )

    def prepare(self, place: BoundBuffers, recipe: Recipe, *, cold: bool = False, written: bool = False) -> None:
        """Lay out the content of the next call, poison the outputs, and leave nothing of the call before.

        `written` says that the session has this content in place already (CPU); `cold` empties the caches.
        """
        self.prepare_all([place], [recipe], cold=cold, written=written)

    def call_early(self, place: BoundBuffers, recipe: Recipe, last: int) -> None:
        """Call it (GPU) when its inputs are still to come, on the stream that it is called on, this argument last."""
        self.prepare_all([place], [recipe], late=last)
        self._burst_s([place], EARLY_S)

    def call_watched(self, place: BoundBuffers, recipe: Recipe) -> None:
        """Call it (GPU) when what stands in an output is still read, on the stream that it is called on."""
        self.prepare_all([place], [recipe], watched=True)
        self._burst_s([place], EARLY_S)

    def prepare_all(
        self,
        places: Sequence[BoundBuffers],
        recipes: Sequence[Recipe],
        *,
        cold: bool = False,
        written: bool = False,
        late: int | None = None,
        watched: bool = False,
    ) -> None:
        """Prepare a burst of calls in one request: of places that share a content (CPU) the last recipe holds."""
        session, numbers = places[0].session, tuple(place.number for place in places)
        if self._exactly:  # what the call before has left is let go of before there is anything to begin with
            self._ask(Ready(numbers), Done)
        for place in places:
            place.poison, place.seen = session.rng.choice([p for p in POISONS if p != place.poison]), b""
        if session.on_gpu:
            self._hold_draws(places[0])
            poisons = tuple(place.poison for place in places)
            self._ask(ComposeContents(numbers, tuple(recipes), poisons, cold, late, watched), Done)
        else:
            for place, recipe in zip(places, recipes, strict=True):
                if not written or place.content is not session.content:
                    session.write(recipe, place.content)
                if place.outputs and "poison" not in self.limits.without:
                    held = session.rng.random()
                    former = _contents(place.outputs) if held < FORMER_SHARE else []
                    place.outputs.whole()[:] = place.poison
                    for index, content in enumerate(former):
                        place.outputs.bytes(index)[:] = content
                    if FORMER_SHARE <= held < FORMER_SHARE + RUBBISH_SHARE:
                        _fill_with_rubbish(place.outputs)
            if cold:
                session.empty_caches()
        self._get_ready(places, recipes)

    def _get_ready(self, places: Sequence[BoundBuffers], recipes: Sequence[Recipe]) -> None:
        """Get ready twice, since the second time shows what the first one should have cost: with caches as cold, where
        that is looked at closely.
        """
        numbers, spent = tuple(place.number for place in places), [self._spent_s()]
        for again in (False, True):
            if again and self._exactly:
                for place, recipe in zip(places, recipes, strict=True):
                    place.session.write(recipe, place.content)
            self._ask(Ready(numbers), Done)
            spent.append(self._spent_s())
        self._before_s = (spent[1] - spent[0]) - min(spent[2] - spent[1], MOST_READY_S)

    def _spent_s(self) -> float:
        """Return CPU seconds so far, exact in a call that is looked at closely, since the worker stands then."""
        if self._exactly:
            self.stand()
        return self.worker.cpu_s()

    def call(self, place: BoundBuffers, *, stand: bool = True) -> float:
        """Make the timed call and return its seconds on the judge's clock. A module may compile in its first call of a
        form.

        The worker stands still afterwards until it is asked for something, unless what it does of its own accord is
        to be seen (`stand` False): to let many threads run again costs each of them some time.
        """
        first = self.is_module and place.session not in self._called
        limit_s = max(place.session.call_limit_s, self.limits.module_load_s if first else 0.0)
        if first:
            self._called.append(place.session)
        start = perf_counter()
        self._ask(Call(place.number), Done, deadline_s=limit_s)
        seconds = perf_counter() - start
        late_s = self._late_s() if stand else 0.0
        self.accounts.append(Account(seconds, self._before_s, late_s, is_exact=self._exactly))
        return seconds

    def call_halves(self, place: BoundBuffers, recipe: Recipe) -> OutputSnapshot:
        """Return what a training step leaves where another forward comes between its forward and its backward."""
        self.prepare(place, recipe)
        self._ask(CallHalves(place.number), Done, deadline_s=2 * place.session.call_limit_s)
        self.stand()
        return self.outputs(place, keep=True)

    def call_within(self, place: BoundBuffers, within: Within) -> None:
        """Make a call where subnormals are flushed, within a parallel region, by a thread of a small stack, or where
        memory that is taken is not zero (CPU, kernels).
        """
        self._ask(CallWithin(place.number, within), Done, deadline_s=place.session.call_limit_s)
        self.stand()

    def stand(self) -> None:
        """Stop its processes until it is asked for something; work on a GPU goes on."""
        if not self.worker.freeze():
            raise Stopped(Rejected("background_work", "A thread of the candidate's process could not be stopped."))

    def _late_s(self) -> float:
        """Stop it after an answer; CPU seconds that it has used since then."""
        answered_s = self.worker.cpu_s()
        self.stand()
        return self.worker.cpu_s() - answered_s

    def watched(self, place: BoundBuffers, recipe: Recipe) -> OutputSnapshot:
        """Make a call like any other whose account is exact, and return what it left.

        A worker that begins before it is asked, answers before it is done, or computes when its outputs are
        collected has it in its account: `accounts[-1]`. What computes so little then that it is not seen has other
        inputs than were there when it was asked.
        """
        self._exactly = not place.session.on_gpu
        try:
            self.prepare(place, recipe)
            self.call(place)
            if not self._exactly or self.candidate.tier == "kernel":  # its outputs were there when it stood
                return self.outputs(place, keep=True)
            spent = [self._spent_s()]
            for _ in range(2):  # with caches as cold
                self._give_others(place, recipe)
                outputs = self.outputs(place, keep=True)
                spent.append(self._spent_s())
        finally:
            self._exactly = False
        self.accounts[-1] = replace(self.accounts[-1], after_s=(spent[1] - spent[0]) - (spent[2] - spent[1]))
        return outputs

    def _give_others(self, place: BoundBuffers, recipe: Recipe) -> None:
        """Put other inputs where those of the last call were, unless an output may lie there."""
        session = place.session
        others = [other for d in range(session.own_draws) if (other := plain(d, len(session.specs))) != recipe]
        if others and computes_all(session.fp):
            session.write(session.rng.choice(others), place.content)

    def call_all(self, places: Sequence[BoundBuffers], reference: ReferenceTimes, *, delay_s: float = 0.0) -> float:
        """Make a timed burst of calls, with one wait at the end; return its seconds without the way there and back.

        That takes as long as in a request for no call behind the same delay, and at most as long as the reference's: a
        candidate that makes its answers slow does not become the faster for it. Behind a delay both begin at a moment
        that the judge names, and the clock begins then.
        """
        self.round_trips.append(self._burst_s([], delay_s))
        seconds = self._burst_s(places, delay_s)
        own_s = self.round_trips[-1] if delay_s else statistics.median(self.round_trips)
        least_s = self.limits.timing.least_s
        self.asking_s = min(own_s, reference.round_trip_s(seconds), max(seconds - least_s, 0.0))
        return max(seconds - self.asking_s, least_s)

    def _burst_s(self, places: Sequence[BoundBuffers], delay_s: float) -> float:
        limit_s = self.session.call_limit_s * max(1, len(places))
        begin_s = time.monotonic() + delay_s if delay_s else 0.0
        start = perf_counter() + delay_s
        self._ask(Burst(tuple(p.number for p in places), begin_s), Done, deadline_s=limit_s, spin=bool(delay_s))
        seconds = perf_counter() - start
        if places:
            self.stand()
        return seconds

    def outputs(self, place: BoundBuffers, *, keep: bool = False) -> OutputSnapshot:
        """Return a copy of what the last call wrote, after its form and surroundings were checked.

        It is good until the next one of this problem, unless it is to be kept.
        """
        return self._collected(place, lambda: place.session.take(place.outputs, keep=keep))

    def still_has(self, place: BoundBuffers, outputs: OutputSnapshot) -> bool:
        """Return whether outputs that are collected now are these (CPU)."""
        assert place.outputs is not None
        return self._collected(place, partial(outputs.is_in, place.outputs))

    def _collected(self, place: BoundBuffers, look: Callable[[], S]) -> S:
        """Look at the outputs when they have been collected, or have been where they are: of a kernel that stands."""
        in_place = self.candidate.tier == "kernel" and place.outputs is not None and self.worker.stands
        seen = look() if in_place else None  # before it is asked for anything
        reply = self._ask(Pull(place.number), Pulled)
        expected = tuple((s.shape, s.dtype, place.session.device.backend) for s in place.session.fp.outputs)
        if reply.form != expected:
            where = f"returned {_shown(reply.form)}, expected {_shown(expected)}"
            wrong = Wrong("The outputs have another form than the problem's.", "own draw", math.inf, where)
            raise Stopped(wrong, alive=True)
        if not reply.arithmetic:
            why = "The candidate left the thread flushing subnormals, rounding in another direction, or no long double."
            raise Stopped(Rejected("floating_point_state", why))
        if not reply.in_order:
            why = "The outputs were not there when the stream was done that the candidate was called on."
            raise Stopped(Rejected("late_write", why))
        if not reply.waited:
            why = (
                "It writes to its outputs before what was queued there before it has ended, which may still read what "
                "that memory held: let a programmatic dependent launch wait (griddepcontrol.wait) before it writes."
            )
            raise Stopped(Rejected("early_write", why))
        if seen is None:
            self.stand()
            seen = look()
        if not reply.intact or self._wrote_beside(place):
            raise Stopped(Crashed("The candidate wrote beyond the end of a tensor, or into its sizes and strides.", ""))
        return seen

    def _wrote_beside(self, place: BoundBuffers) -> bool:
        """Return whether the rest of the outputs' pages is not the poison any more (CPU, kernel tier)."""
        outputs = place.outputs
        if self.candidate.tier != "kernel" or outputs is None or "poison" in self.limits.without:
            return False
        return any(bool((outputs.slack(i) != place.poison).any()) for i in range(len(outputs.specs)))

    def input_hash(self, place: BoundBuffers) -> str:
        """Return the inputs' fingerprint on a GPU: on a CPU they are mapped read-only."""
        return self._ask(HashInputs(place.number), Hashed).hash if place.session.on_gpu else ""

    def fingerprint(self, place: BoundBuffers) -> bytes:
        """Return a short image of the outputs: the judge's own reading where they lie in shared memory."""
        if self.candidate.tier != "kernel" or place.outputs is None:
            return self._ask(HashOutputs(place.number), Hashed).hash.encode()
        return b"".join(image(place.outputs.bytes(i)) for i in range(len(place.outputs.specs)))

    def handed_over(self, place: BoundBuffers, outputs: OutputSnapshot, fingerprint: bytes) -> bool:
        """Return whether outputs are what the fingerprint was taken of, and no other tensors that were made since."""
        in_place = self.candidate.tier == "kernel" and not place.session.on_gpu
        return in_place or outputs.digest() == fingerprint

    def peak_bytes(self, place: BoundBuffers) -> int | None:
        """Return what a call takes at most beside its arguments and outputs; None where nothing tells.

        A kernel's are counted with what its first call keeps; what PyTorch makes once in a process is none of a call's.
        Meant for a worker that has made no call yet.
        """
        session, kernel = place.session, self.candidate.tier == "kernel"
        before: Resident | None = None
        for number in range(2):
            self.prepare(place, session.random_recipe())
            if number == 0 or not kernel:
                self._ask(Settle(), Done)
                before = self.at_rest = self.worker.resident()
                self.worker.forget_peak()
            self.call(place)
        if session.on_gpu:
            taken: int | None = self._ask(TellMemory(), MemoryTaken).peak_bytes
        else:
            taken = grown_bytes(before, self.worker.resident())
        return taken if taken is None or kernel else max(0, taken - session.output_bytes)

    def peak_since(self) -> int | None:
        """Return what calls have taken at most since `worker.forget_peak`, of a kernel on a CPU; else None."""
        if self.session.on_gpu or self.candidate.tier != "kernel":
            return None
        return grown_bytes(self.at_rest, self.worker.resident())

    def state(self) -> StateLeft:
        """Return what calls have left behind in the process, but for memory."""
        return self._ask(TellState(), StateLeft)

    def end(self) -> str:
        """Let its process end as a program's does; return what goes wrong then, or nothing. It is gone afterwards."""
        code = self.session.rng.randrange(3, 120)
        try:
            self._send(EndProcess(code), Done, deadline_s=END_S)
        except WorkerFailed as failure:
            ended = failure.code == code or failure.kind == "timed_out"  # a machine at work is no fault
            return "" if ended else failure.message
        return "it answered where it was to end"

    def shared(self, place: BoundBuffers) -> tuple[str, ...]:
        """Return which results of the last call there share elements, with each other or with arguments."""
        return self._ask(TellShared(place.number), Shared).found

    def use_threads(self, count: int, *, levels: int = 1) -> None:
        self._ask(UseThreads(count, levels), Done)

    def call_on(self, place: BoundBuffers, times: int, limit_s: float) -> Called:
        """Call it so often on what is there, by one thread, or until the outputs are others."""
        return self._ask(CallOn(place.number, times, limit_s), Called, deadline_s=limit_s + place.session.call_limit_s)

    def call_together(self, first: BoundBuffers, second: BoundBuffers, times: int, limit_s: float) -> Called:
        """Call it at two places from two threads, which may wait for each other for ever."""
        limit_s += 2 * first.session.call_limit_s
        return self._ask(CallTogether(first.number, second.number, times), Called, deadline_s=limit_s)

    def call_by_threads(self, place: BoundBuffers, times: int, limit_s: float) -> Called:
        """Call it once in each of so many threads, one after another."""
        request = CallByThreads(place.number, times, limit_s)
        return self._ask(request, Called, deadline_s=limit_s + 2 * place.session.call_limit_s)

    def call_on_first(self, place: BoundBuffers, counts: Sequence[int], limit_s: float) -> Called:
        """Call it on the first lines of its tensors, as many as is said: of inputs and outputs that have as many as the
        first output.
        """
        fp = place.session.fp
        lines = fp.outputs[0].shape[:1]
        arguments = tuple(i for i, a in enumerate(fp.tensors) if a.role == "input" and a.spec.shape[:1] == lines)
        results = tuple(i for i, spec in enumerate(fp.outputs) if spec.shape[:1] == lines)
        request = CallOnFirst(place.number, arguments, results, tuple(counts), limit_s)
        return self._ask(request, Called, deadline_s=limit_s + 2 * place.session.call_limit_s)

    def call_on_forms(self, place: BoundBuffers, arguments: Shapes, results: Shapes, limit_s: float) -> None:
        """Call it on tensors of zeros of these shapes, in which few elements are, or none."""
        self._ask(CallOnForms(place.number, arguments, results), Done, deadline_s=limit_s)

    def mute(self, instead: Instead) -> None:
        """Let the kernels of a composed source do something else from now on, or work again."""
        self._ask(Mute(instead), Done)

    def recorded(self, place: BoundBuffers) -> tuple[bytes, str]:
        """Return the calls of a composed source's kernels in one call, for a checked program, or why there are none."""
        reply = self._ask(RecordCalls(place.number), Recorded)
        try:
            return base64.b64decode(reply.calls, validate=True), reply.left_out[:200]
        except ValueError:
            raise Stopped(Rejected("forged_answer", "The candidate's process sent calls that are none.")) from None

    def profile(self, place: BoundBuffers) -> Profile:
        """Make one call under a profiler and return what it saw."""
        return self._ask(ProfileCall(place.number), Profile)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the worker meanwhile, and until it is asked for something; work on a GPU goes on."""
        self.stand()
        yield

    def used_s(self) -> float:
        """Return CPU seconds that the worker's processes have used so far."""
        return self.worker.cpu_s()

    def busy_s(self, seconds: float) -> float:
        """Let the worker run without asking it for anything, and return the CPU seconds that its processes use
        meanwhile.
        """
        before = self.used_s()
        self.worker.thaw()
        time.sleep(seconds)
        return self.used_s() - before

    def close(self) -> None:
        self.worker.close()
        for place in (*self.places, *self.unbound):
            if place.outputs is not None:
                place.outputs.close()
            if place.content is not place.session.content:
                place.content.close()

    def __enter__(self) -> LoadedCandidate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _contents(outputs: Arena) -> list[np.ndarray]:
    """Return what the outputs hold, without what lies around them."""
    return [outputs.bytes(index).copy() for index in range(len(outputs.specs))]


def _fill_with_rubbish(outputs: Arena) -> None:
    """Leave numbers of no pattern where outputs are to come; around them stays what was there."""
    rubbish = np.frombuffer(os.urandom(RUBBISH_BYTES), np.uint8)
    for index in range(len(outputs.specs)):
        place = outputs.bytes(index)
        for start in range(0, len(place), RUBBISH_BYTES):
            piece = place[start : start + RUBBISH_BYTES]
            piece[:] = rubbish[: len(piece)]


def binding(fp: FunctionalProblem, candidate: Candidate, opened: Opened) -> Binding:
    """Return what a candidate's worker is told of its arguments: their form, never the problem's source."""
    position = {a.name: i for i, a in enumerate(fp.tensors)}
    told = Binding(
        arguments=tuple(
            a.value if isinstance(a, ScalarArgument) else InContent(position[a.name]) for a in fp.arguments
        ),
        constants=tuple(v for _, v in fp.abi_constants),
        keywords=fp.constants,
    )
    if candidate.tier != "module":
        return told
    by_leaf = {a.path: InContent(position[a.name]) for a in fp.tensors if a.role == "input"}
    return replace(
        told,
        leaves=tuple(by_leaf.get(str(i), leaf) for i, leaf in enumerate(opened.leaves)),
        init_inputs=opened.init_inputs,
        held=tuple(Held(position[a.name], a.path, a.role) for a in fp.tensors if a.role != "input"),
    )


def room_is_ours(failure: WorkerFailed, stage: str, tier: str) -> bool:
    """Return whether memory ran out for what the judge lays out: until its first call a kernel's code takes none by
    PyTorch; a module builds itself while it is loaded."""
    return failure.kind == "memory" and stage == "load" and tier != "module"


def _failed(failure: WorkerFailed, stage: str, deadline_s: float) -> Verdict:
    """Return the verdict that a worker's failure is, at the stage `load` or `call`."""
    during = "while it was loaded" if stage == "load" else "during a call"
    if failure.kind == "timed_out":
        return TimedOut(stage, deadline_s, f"The candidate did not finish within {deadline_s:g} s {during}.")
    hint = ""
    match failure.signal:
        case signal.SIGSYS:
            why = f"The candidate made a system call that the sandbox forbids, {during}."
            return Rejected("sandbox_violation", why)
        case signal.SIGSEGV | signal.SIGBUS:
            hint = " (a read or write out of bounds, or a write to a read-only input)"
        case signal.SIGILL:
            hint = " (an instruction this CPU does not have)"
    if undefined := _UNDEFINED.search(failure.log):
        name = undefined.group(1)
        hint = f" (`{name}` is declared and nowhere defined: define it in the source)"
    raised = failure.kind == "raised"
    subject = "The candidate failed" if raised else "The candidate's process ended"
    return Crashed(f"{subject} {during}: {failure.message}{hint}", failure.log, raised=raised)


def _shown(form: Form) -> list[list[object]]:
    """Return it as a reader knows it."""
    return [[list(shape), dtype, device] for shape, dtype, device in form]
