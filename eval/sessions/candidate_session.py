"""A candidate under judgement: bind it to buffers, call it, take its outputs.

Comes in: a candidate and sessions whose content it is called on. Goes out: seconds and bytes; whatever goes wrong
in the worker ends the trial as a verdict (`Stopped`). What a call is for is never said.
"""

from __future__ import annotations

import base64
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TypeVar

from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot, image
from rag_kernels.eval.buffers.shared_arena import ArenaLayout
from rag_kernels.eval.build.products import Library
from rag_kernels.eval.messages.to_both import Done, MemoryTaken, Settle, Shared, TellMemory, TellShared
from rag_kernels.eval.messages.to_candidate import (
    FORMER,
    Bind,
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
    ComposeContents,
    Counted,
    DeviceMemory,
    Hashed,
    HashInputs,
    HashOutputs,
    HoldDraw,
    JoinExchange,
    LaunchGraph,
    Profile,
    ProfileCall,
    Pull,
    Pulled,
    Ready,
    RecordCalls,
    Recorded,
    RecordGraph,
    RefusedCalls,
    Strided,
    TellDeviceMemory,
    Within,
)
from rag_kernels.eval.messages.to_reference import OfferDraw
from rag_kernels.eval.process.process_tree import Resident, grown_bytes
from rag_kernels.eval.process.workers import WorkerFailed
from rag_kernels.eval.records import Candidate, Crashed, Rejected, Wrong
from rag_kernels.eval.sessions.candidate_buffers import POISONS, BoundBuffers, Placement, binding, lay_out, poison
from rag_kernels.eval.sessions.candidate_failure import Stopped, failure_verdict
from rag_kernels.eval.sessions.candidate_worker import CandidateWorker
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.traits.steps import computes_all

S = TypeVar("S")
Shapes = tuple[tuple[int, ...], ...]
Form = Sequence[tuple[Sequence[int], str, str]]  # of each output: shape, dtype, device
EARLY_S = 3e-3  # that a call is made before its inputs come: its launches take a host less
GOES_ON_S = 2e-4  # that it is let run after a call: what takes longer is seen by `done_means_done`
MOST_READY_S = 5e-4  # what getting ready may cost a worker: what it takes beyond, both times, is for something else


@dataclass(frozen=True, slots=True)
class Account:
    """CPU seconds of a candidate's worker around one call, which took `call_s` of the judge's clock.

    `before_s`: what it took to get ready for it, beyond doing so again; `late_s`: after its answer, until it stood;
    `left_s`: what other threads took from when the call had returned, and when they were let run again, beyond another
    time; `after_s`: to hand the outputs over, beyond doing so again.
    """

    call_s: float
    before_s: float
    late_s: float
    left_s: float = 0.0
    after_s: float = 0.0
    is_exact: bool = False

    @property
    def beside_s(self) -> float:
        """What was done for the call, but not within its time: what took longer again makes good for nothing."""
        return max(0.0, self.before_s) + self.late_s + max(0.0, self.after_s)


class LoadedCandidate(CandidateWorker):
    """A candidate that is bound to buffers, called and looked at."""

    def __init__(self, session: ProblemSession, candidate: Candidate, library: Library | None) -> None:
        self.places: list[BoundBuffers] = []
        self.unbound: list[BoundBuffers] = []  # where binding has not come to its end
        self.round_trips: list[float] = []  # seconds of requests for no call
        self.asking_s = 0.0  # what was subtracted from the last burst for asking
        self.accounts: list[Account] = []  # of single calls, in order
        self.met: set[Recipe] = set()  # remembered contents that it was called on
        self._before_s = 0.0
        self._others_s = 0.0  # CPU seconds of other threads until the call had returned that was looked at closely
        self.at_rest: Resident | None = None  # its memory before its first call
        self._called: list[ProblemSession] = []
        self._exactly = False
        super().__init__(session, candidate, library)

    def bind(
        self,
        session: ProblemSession,
        *,
        tight: bool = False,
        strided: Strided = "",
        step: int | None = None,
        low: bool | None = None,
        mapped: bool = False,
        same: Sequence[int] = (),
        alone: int | None = None,
        beside: BoundBuffers | None = None,
    ) -> BoundBuffers:
        """Bind to buffers of their own; `tight` puts every tensor's end right before a guard page (CPU).

        `step` puts tensors within their pages (CPU), at multiples of so many bytes, or (0) at any odd element; `low`
        maps them (CPU) where a heap may be, within 4 GiB or beyond; `mapped` has them begin where PyTorch allocates
        them (CPU), large ones all at one place in their pages. `same` gives one for several arguments (CPU).
        Of arguments and then outputs `alone` is the number of the one that `step` holds for: others begin at pages.
        `strided` binds to copies of the first draw, whose elements lie otherwise in memory. A place `beside` another is
        called in one burst with it, on the same parameters: a module may serve both.
        """
        where = Placement(tight, step, low, mapped, tuple(same), alone)
        read_only = "read-only inputs" not in self.limits.without
        place = lay_out(session, len(self.places), where, read_only=read_only)
        content, outputs = place.content, place.outputs
        like = next((p for p in self.places if p.session is session), None)
        session.write(plain(0, len(session.specs)), content)  # a constructor sees inputs that no call will use
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
            writable=not read_only,
            strided=strided,
            like=like.number if like else None,
            shared_bytes=shared_bytes,
        )
        self.unbound.append(place)
        before = self.worker.resident() if self.at_rest else None
        self.ask(request, Done, stage="load", deadline_s=self._load_limit_s, fds=fds)
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
            self.ask(JoinExchange(place.number, size_bytes), Done, fds=[fd])
            place.held, place.restarts = [], place.session.restarts
        for draw, made in enumerate(place.session.made):
            if place.held[draw : draw + 1] == [made]:
                continue
            place.session.ask(OfferDraw(draw), Done)
            try:
                self.send(HoldDraw(place.number, draw), Done, deadline_s=self.limits.open_s)
            except WorkerFailed as failure:
                if failure.kind == "memory":
                    raise self.no_room() from failure
                raise Stopped(failure_verdict(failure, "load", self.limits.open_s), alive=failure.alive) from failure
            place.held[draw : draw + 1] = [made]

    def prepare(
        self, place: BoundBuffers, recipe: Recipe, *, cold: bool = False, written: bool = False, former: bool = False
    ) -> None:
        """Lay out the content of the next call, poison the outputs, and leave nothing of the call before.

        `written` says that the session has this content in place already (CPU); `cold` empties the caches; `former`
        leaves in outputs what the call before left there (GPU).
        """
        self.prepare_all([place], [recipe], cold=cold, written=written, former=former)

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
        former: bool = False,
    ) -> None:
        """Prepare a burst of calls in one request: of places that share a content (CPU) the last recipe holds."""
        session, numbers = places[0].session, tuple(place.number for place in places)
        if self._exactly:  # what the call before has left is let go of before there is anything to begin with
            self.ask(Ready(numbers), Done)
        for place in places:
            place.poison, place.seen = session.rng.choice([p for p in POISONS if p != place.poison]), b""
        if session.on_gpu:
            self._hold_draws(places[0])
            poisons = tuple(FORMER if former else place.poison for place in places)
            self.ask(ComposeContents(numbers, tuple(recipes), poisons, cold, late, watched), Done)
        else:
            for place, recipe in zip(places, recipes, strict=True):
                if not written or place.content is not session.content:
                    session.write(recipe, place.content)
                if place.outputs and "poison" not in self.limits.without:
                    poison(place.outputs, place.poison, session.rng)
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
            self.ask(Ready(numbers), Done)
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
        if self._exactly:
            self._others_s = self.ask(CallCounted(place.number), Counted, deadline_s=limit_s).others_s
        else:
            self.ask(Call(place.number), Done, deadline_s=limit_s)
        seconds = perf_counter() - start
        late_s = self._late_s() if stand else 0.0
        self.accounts.append(Account(seconds, self._before_s, late_s, is_exact=self._exactly))
        return seconds

    def call_halves(self, place: BoundBuffers, recipe: Recipe) -> OutputSnapshot:
        """Return what a training step leaves where another forward comes between its forward and its backward."""
        self.prepare(place, recipe)
        self.ask(CallHalves(place.number), Done, deadline_s=2 * place.session.call_limit_s)
        self.stand()
        return self.outputs(place, keep=True)

    def call_within(self, place: BoundBuffers, within: Within) -> None:
        """Make a call where subnormals are flushed, within a parallel region, by a thread of a small stack, or where
        memory that is taken is not zero (CPU, kernels).
        """
        self.ask(CallWithin(place.number, within), Done, deadline_s=place.session.call_limit_s)
        self.stand()

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
            if not self._exactly:
                return self.outputs(place, keep=True)
            if self.candidate.tier == "kernel":  # its outputs were there when it stood
                outputs = self.outputs(place, keep=True)
                self._let_go_on()
                return outputs
            self._let_go_on()
            spent = [self._spent_s()]
            for _ in range(2):  # with caches as cold
                self._give_others(place, recipe)
                outputs = self.outputs(place, keep=True)
                spent.append(self._spent_s())
        finally:
            self._exactly = False
        self.accounts[-1] = replace(self.accounts[-1], after_s=(spent[1] - spent[0]) - (spent[2] - spent[1]))
        return outputs

    def _let_go_on(self) -> None:
        """Let a worker that stands run twice without asking it for anything: what its other threads have computed since
        the call had returned, but for what they compute the second time, was left of the call.
        """
        spent = [self._others_s]
        for _ in range(2):
            self.worker.thaw()
            time.sleep(GOES_ON_S)
            self.stand()
            if (others_s := self.worker.others_s()) is None:
                return
            spent.append(others_s)
        left_s = (spent[1] - spent[0]) - (spent[2] - spent[1])
        self.accounts[-1] = replace(self.accounts[-1], left_s=max(0.0, left_s))

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
        self.ask(Burst(tuple(p.number for p in places), begin_s), Done, deadline_s=limit_s, spin=bool(delay_s))
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
        reply = self.ask(Pull(place.number), Pulled)
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
        return self.ask(HashInputs(place.number), Hashed).hash if place.session.on_gpu else ""

    def fingerprint(self, place: BoundBuffers) -> bytes:
        """Return a short image of the outputs: the judge's own reading where they lie in shared memory."""
        if self.candidate.tier != "kernel" or place.outputs is None:
            return self.ask(HashOutputs(place.number), Hashed).hash.encode()
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
                self.ask(Settle(), Done)
                before = self.at_rest = self.worker.resident()
                self.worker.forget_peak()
            self.call(place)
        if session.on_gpu:
            taken: int | None = self.ask(TellMemory(), MemoryTaken).peak_bytes
        else:
            taken = grown_bytes(before, self.worker.resident())
        return taken if taken is None or kernel else max(0, taken - session.output_bytes)

    def peak_since(self) -> int | None:
        """Return what calls have taken at most since `worker.forget_peak`, of a kernel on a CPU; else None."""
        if self.session.on_gpu or self.candidate.tier != "kernel":
            return None
        return grown_bytes(self.at_rest, self.worker.resident())

    def memory_now(self) -> Resident | None:
        """Return what its process has in memory, on a GPU what is taken there: by all programs, which a driver does not
        tell apart in a sandbox.
        """
        if not self.session.on_gpu:
            return self.worker.resident()
        held_bytes = self.ask(TellDeviceMemory(), DeviceMemory).held_bytes
        return Resident(held_bytes, 0, held_bytes)

    def shared(self, place: BoundBuffers) -> tuple[str, ...]:
        """Return which results of the last call there share elements, with each other or with arguments."""
        return self.ask(TellShared(place.number), Shared).found

    def call_on(self, place: BoundBuffers, times: int, limit_s: float) -> Called:
        """Call it so often on what is there, by one thread, or until the outputs are others."""
        return self.ask(CallOn(place.number, times, limit_s), Called, deadline_s=limit_s + place.session.call_limit_s)

    def call_together(self, places: Sequence[BoundBuffers], times: int, limit_s: float) -> Called:
        """Call it at places from a thread each, which may wait for each other for ever."""
        return self.ask(CallTogether(tuple(p.number for p in places), times), Called, deadline_s=limit_s)

    def call_in_turn(self, places: Sequence[BoundBuffers], times: int) -> Called:
        """Call it (GPU) at places in turn, so often each, beside other work."""
        limit_s = times * len(places) * places[0].session.call_limit_s
        return self.ask(CallInTurn(tuple(p.number for p in places), times), Called, deadline_s=limit_s)

    def call_held_up(self, first: BoundBuffers, second: BoundBuffers, limit_s: float) -> None:
        """Call it (GPU) at two places while half of the multiprocessors are held, where it may wait for ever."""
        self.ask(CallHeldUp(first.number, second.number), Done, deadline_s=limit_s + 2 * first.session.call_limit_s)

    def call_crossed(self, place: BoundBuffers, argument: int, other: BoundBuffers) -> None:
        """Call it at a place with one argument from another one."""
        request = CallCrossed(place.number, argument, other.number)
        self.ask(request, Done, deadline_s=place.session.call_limit_s)
        self.stand()

    def record_graph(self, place: BoundBuffers) -> None:
        """Have a call there recorded as a graph (GPU)."""
        self.ask(RecordGraph(place.number), Done, deadline_s=2 * place.session.call_limit_s)

    def launch_graph(self, place: BoundBuffers) -> None:
        """Launch the graph of a call there that was recorded last (GPU)."""
        self.ask(LaunchGraph(), Done, deadline_s=place.session.call_limit_s)

    def call_first(self, first: BoundBuffers, second: BoundBuffers, limit_s: float) -> None:
        """Make its first call at two places at once, from two threads, which may wait for each other for ever."""
        self.ask(CallFirst(first.number, second.number), Done, deadline_s=limit_s)
        self.stand()

    def call_by_threads(self, place: BoundBuffers, times: int, limit_s: float) -> Called:
        """Call it once in each of so many threads, one after another."""
        request = CallByThreads(place.number, times, limit_s)
        return self.ask(request, Called, deadline_s=limit_s + 2 * place.session.call_limit_s)

    def call_on_first(self, place: BoundBuffers, counts: Sequence[int], limit_s: float) -> Called:
        """Call it on the first lines of its tensors, as many as is said: of inputs and outputs that have as many as the
        first output.
        """
        fp = place.session.fp
        lines = fp.outputs[0].shape[:1]
        arguments = tuple(i for i, a in enumerate(fp.tensors) if a.role == "input" and a.spec.shape[:1] == lines)
        results = tuple(i for i, spec in enumerate(fp.outputs) if spec.shape[:1] == lines)
        request = CallOnFirst(place.number, arguments, results, tuple(counts), limit_s)
        return self.ask(request, Called, deadline_s=limit_s + 2 * place.session.call_limit_s)

    def call_on_forms(self, place: BoundBuffers, arguments: Shapes, results: Shapes, limit_s: float) -> None:
        """Call it on tensors of zeros of these shapes, in which few elements are, or none."""
        self.ask(CallOnForms(place.number, arguments, results), Done, deadline_s=limit_s)

    def call_refused(self, place: BoundBuffers, arguments: Shapes, results: Shapes, times: int, limit_s: float) -> int:
        """Call it so often on tensors of zeros of these shapes, which it refuses; return how many bytes of its heap
        each of these calls keeps.
        """
        request = CallOnForms(place.number, arguments, results, times, limit_s)
        return self.ask(request, RefusedCalls, deadline_s=limit_s + 2 * place.session.call_limit_s).kept_bytes

    def recorded(self, place: BoundBuffers) -> tuple[bytes, str]:
        """Return the calls of a composed source's kernels in one call, for a checked program, or why there are none."""
        reply = self.ask(RecordCalls(place.number), Recorded)
        try:
            return base64.b64decode(reply.calls, validate=True), reply.left_out[:200]
        except ValueError:
            raise Stopped(Rejected("forged_answer", "The candidate's process sent calls that are none.")) from None

    def profile(self, place: BoundBuffers) -> Profile:
        """Make one call under a profiler and return what it saw."""
        return self.ask(ProfileCall(place.number), Profile)

    def close(self) -> None:
        super().close()
        for place in (*self.places, *self.unbound):
            place.close()


def _shown(form: Form) -> list[list[object]]:
    """Return it as a reader knows it."""
    return [[list(shape), dtype, device] for shape, dtype, device in form]
