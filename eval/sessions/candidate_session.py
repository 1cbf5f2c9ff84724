"""The judge's end of a candidate's worker: load it, bind it to buffers, call it, take its outputs.

Comes in: a candidate and sessions whose content it is called on. Goes out: seconds and bytes; whatever goes wrong
in the worker ends the trial as a verdict (`Stopped`). What a call is for is never said.
"""

from __future__ import annotations

import base64
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import Recipe, plain
from rag_kernels.eval.buffers.output_snapshot import Taken, image
from rag_kernels.eval.buffers.shared_arena import Arena, describe
from rag_kernels.eval.build.products import Library
from rag_kernels.eval.errors import Internal
from rag_kernels.eval.machine.device import threads
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
from rag_kernels.eval.sessions.problem_session import Session

POISONS = (0xFF, 0x5A)  # quiet NaN in every float format, and a large finite number


class Stopped(Internal):
    """Ends a trial early with its verdict; never leaves the judge."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class Profile:
    """One call under a profiler: microseconds by kernel (GPU) or operator (CPU), and what the candidate changed.

    `native`: native libraries that it loaded; `flags`: switches of torch that it moved.
    """

    kernels: Mapping[str, float]
    native: Sequence[str]
    flags: Sequence[str]


@dataclass
class Place:
    """Buffers that the candidate is bound to, for one session's problem."""

    session: Session
    number: int
    content: Arena
    outputs: Arena | None  # on a GPU they come through the session's shared memory
    held: int = 0  # draws that the worker has on its GPU
    restarts: int = 0  # of the session, when its memory was shared
    poison: int = POISONS[0]


class Subject:
    """One candidate in one worker; a context manager. `session` is the problem it is for."""

    def __init__(self, session: Session, candidate: Candidate, library: Library | None) -> None:
        self.session, self.candidate, self.limits = session, candidate, session.limits
        self.places: list[Place] = []
        self.unbound: list[Place] = []  # where binding has not come to its end
        self.is_module = candidate.tier == "module"
        self._requests = 0
        self.round_trips: list[float] = []  # seconds of requests for no call
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
            message = {
                "device": session.device.backend,
                "threads": threads(),
                "tier": candidate.tier,
                "source": candidate.source,
                "library": str(library.path) if library else "",
                "cubin": str(library.cubin or "") if library else "",
            }
            self._ask(message, stage="load", deadline_s=self._load_limit_s)
        except Stopped:
            self.close()
            raise

    @property
    def _load_limit_s(self) -> float:
        return self.limits.module_load_s if self.is_module else self.limits.load_s

    def _ask(self, message: dict[str, Any], *, stage: str, deadline_s: float, fds: Sequence[int] = ()) -> Any:
        try:
            return self.worker.request(message, deadline_s=deadline_s, fds=fds)
        except WorkerFailed as failure:
            raise Stopped(_failed(failure, stage, deadline_s)) from failure

    def _do(
        self,
        do: str,
        answer: dict[str, type] | None = None,
        *,
        stage: str = "call",
        deadline_s: float | None = None,
        fds: Sequence[int] = (),
        **arguments: Any,
    ) -> Any:
        """One numbered request; its reply has this number and the keys of `answer`, or it is not our worker's."""
        self.session.turns.give_way()
        self._requests += 1
        message = {"do": do, "number": self._requests, **arguments}
        reply = self._ask(message, stage=stage, deadline_s=deadline_s or self.limits.open_s, fds=fds)
        answer = {"number": int} | (answer or {})
        sound = isinstance(reply, dict) and all(isinstance(reply.get(k), t) for k, t in answer.items())
        if not sound or reply["number"] != self._requests:
            why = "The candidate's process gave an answer that was not asked for: something else writes to its channel."
            raise Stopped(Rejected("forged_answer", why))
        return reply

    def bind(
        self, session: Session, *, tight: bool = False, strided: bool = False, beside: Place | None = None
    ) -> Place:
        """Bind to buffers of their own; `tight` puts every tensor's end right before a guard page (CPU).

        `strided` binds to copies of the first draw, laid out in memory with the last two dimensions exchanged. A place
        `beside` another is called in one burst with it, on the same parameters: a module may serve both.
        """
        content = session.content
        if tight:
            content = Arena(session.specs, readers_only="read-only inputs" not in self.limits.without, tight=True)
        like = next((p for p in self.places if p.session is session), None)
        outputs = None if session.on_gpu else Arena(session.fp.outputs, tight=tight)
        place = Place(session, len(self.places), content, outputs, restarts=session.restarts)
        session.write(plain(0, len(session.specs)), place.content)  # a constructor sees inputs that no call will use
        message = binding(session.fp, self.candidate, session.reply) | {
            "content": content.describe(),
            "seed": session.rng.getrandbits(40),
            "outputs": describe(session.fp.outputs, tight=tight and not session.on_gpu),
            "writable": "read-only inputs" in self.limits.without,
            "like": like.number if like else None,
            "strided": strided,
            "beside": beside.number if beside else None,
        }
        fds = [content.fd, outputs.fd] if outputs else [content.fd]
        if session.on_gpu and like is None:
            fd, message["shared"] = session.share()
            fds.append(fd)
        self.unbound.append(place)
        self._do("bind", stage="load", deadline_s=self._load_limit_s, fds=fds, **message)
        self.places.append(self.unbound.pop())
        if session.on_gpu and len(self.places) == 1:  # what it builds for itself has been built
            self.worker.keep_to([self.session.core])
        return place

    def _hold_draws(self, place: Place) -> None:
        """GPU only: whole draws on the device, put there by our own code: a failure is not the candidate's."""
        place = next(p for p in self.places if p.session is place.session)  # the others share what the first one holds
        if place.restarts != place.session.restarts:
            fd, size = place.session.share()
            self._do("share", at=place.number, shared=size, fds=[fd])
            place.held, place.restarts = 0, place.session.restarts
        for draw in range(place.held, place.session.drawn):
            place.session.ask("offer", draw=draw)
            self._requests += 1
            request = {"do": "hold", "number": self._requests, "at": place.number}
            try:
                self.worker.request(request, deadline_s=self.limits.open_s)
            except WorkerFailed as failure:
                if failure.kind == "memory":
                    raise MachineError(
                        f"The GPU has too little free memory to judge {self.session.fp.problem.name}: "
                        "stop other programs on it, or make the problem smaller."
                    ) from failure
                raise Stopped(_failed(failure, "load", self.limits.open_s)) from failure
            place.held += 1

    def prepare(self, place: Place, recipe: Recipe, *, cold: bool = False, written: bool = False) -> None:
        """Lay out the content of the next call, poison the outputs, and leave nothing of the call before.

        `written` says that the session has this content in place already (CPU); `cold` empties the caches.
        """
        self.prepare_all([place], [recipe], cold=cold, written=written)

    def prepare_all(
        self, places: Sequence[Place], recipes: Sequence[Recipe], *, cold: bool = False, written: bool = False
    ) -> None:
        """The same for a burst of calls, in one request: of places that share a content (CPU) the last recipe holds."""
        session, numbers = places[0].session, [place.number for place in places]
        for place in places:
            place.poison = POISONS[place.poison == POISONS[0]]
        if session.on_gpu:
            self._hold_draws(places[0])
            poisons = [place.poison for place in places]
            self._do("load", at=numbers, recipes=codec.encode(list(recipes)), poisons=poisons, cold=cold)
        else:
            for place, recipe in zip(places, recipes, strict=True):
                if not written or place.content is not session.content:
                    session.write(recipe, place.content)
                if place.outputs and "poison" not in self.limits.without:
                    place.outputs.whole()[:] = place.poison
            if cold:
                session.timed.empty_caches()
        self._do("ready", at=numbers)

    def call(self, place: Place) -> float:
        """One timed call: seconds on the judge's clock."""
        limit_s = place.session.call_limit_s
        start = perf_counter()
        self._do("call", at=place.number, deadline_s=limit_s)
        return perf_counter() - start

    def call_all(self, places: Sequence[Place]) -> float:
        """One timed burst of calls, with one wait at the end: seconds in all, without the way there and back.

        That takes as long as in a request for no call, and at most as long as the reference's: a candidate that makes
        its answers slow does not become the faster for it.
        """
        self.round_trips.append(self._burst_s([]))
        seconds = self._burst_s(places)
        return seconds - min(statistics.median(self.round_trips), places[0].session.timed.round_trip_s(seconds))

    def _burst_s(self, places: Sequence[Place]) -> float:
        limit_s = self.session.call_limit_s * max(1, len(places))
        start = perf_counter()
        self._do("burst", order=[p.number for p in places], deadline_s=limit_s)
        return perf_counter() - start

    def outputs(self, place: Place, *, keep: bool = False) -> Taken:
        """A copy of what the last call wrote, after its form and surroundings were checked.

        On a GPU it is good until the next one, unless it is to be kept.
        """
        reply = self._do("pull", {"form": list, "intact": bool, "arithmetic": bool}, at=place.number)
        expected = [[list(s.shape), s.dtype, place.session.device.backend] for s in place.session.fp.outputs]
        if reply["form"] != expected:
            raise Stopped(
                Wrong(
                    "The outputs have another form than the problem's.",
                    "own draw",
                    math.inf,
                    f"returned {reply['form']}, expected {expected}",
                )
            )
        if not reply["arithmetic"]:
            why = "The candidate left the thread flushing subnormals or rounding in another direction."
            raise Stopped(Rejected("floating_point_state", why))
        with self.frozen():
            taken = place.session.take(place.outputs, keep=keep)
        if not reply["intact"] or self._wrote_beside(place):
            raise Stopped(Crashed("The candidate wrote beyond the end of a tensor.", ""))
        return taken

    def _wrote_beside(self, place: Place) -> bool:
        """CPU, kernel tier: whether the rest of the outputs' pages is not the poison any more."""
        outputs = place.outputs
        if self.candidate.tier != "kernel" or outputs is None or "poison" in self.limits.without:
            return False
        return any(bool((outputs.slack(i) != place.poison).any()) for i in range(len(outputs.specs)))

    def input_hash(self, place: Place) -> str:
        """GPU only: on a CPU the inputs are mapped read-only."""
        return str(self._do("input_hash", {"hash": str}, at=place.number)["hash"]) if place.session.on_gpu else ""

    def fingerprint(self, place: Place) -> bytes:
        """A short image of the outputs: the judge's own reading where they lie in shared memory."""
        if self.candidate.tier != "kernel" or place.outputs is None:
            return str(self._do("digest", {"hash": str}, at=place.number)["hash"]).encode()
        return b"".join(image(place.outputs.bytes(i)) for i in range(len(place.outputs.specs)))

    def handed_over(self, place: Place, outputs: Taken, fingerprint: bytes) -> bool:
        """Whether outputs are what the fingerprint was taken of: no other tensors, made when they were collected."""
        in_place = self.candidate.tier == "kernel" and not place.session.on_gpu
        return in_place or outputs.digest() == fingerprint

    def use_threads(self, count: int) -> None:
        self._do("threads", count=count)

    def mute(self, muted: bool) -> None:
        """Composed tier: its own kernels do nothing from now on."""
        self._do("mute", muted=muted)

    def recorded(self, place: Place) -> tuple[bytes, str]:
        """Composed tier: the calls of its kernels in one call, for a checked program, or why there are none."""
        reply = self._do("record", {"calls": str, "left_out": str}, at=place.number)
        try:
            return base64.b64decode(reply["calls"], validate=True), reply["left_out"][:200]
        except ValueError:
            raise Stopped(Rejected("forged_answer", "The candidate's process sent calls that are none.")) from None

    def profile(self, place: Place) -> Profile:
        """One call under a profiler."""
        reply = self._do("profile", {"kernels": dict, "native": list, "flags": list}, at=place.number)
        return Profile(
            {str(k): float(v) for k, v in reply["kernels"].items()},
            [str(name) for name in reply["native"]],
            [str(flag) for flag in reply["flags"]],
        )

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No process of the worker runs meanwhile; work on a GPU goes on."""
        stopped = self.worker.freeze()
        try:
            yield
        finally:
            self.worker.thaw()
        if not stopped:
            raise Stopped(Rejected("background_work", "A thread of the candidate's process could not be stopped."))

    def used_s(self) -> float:
        """CPU seconds that the worker's processes have used so far."""
        return self.worker.activity().cpu_s

    def busy_s(self, seconds: float) -> float:
        """CPU seconds that they use while nothing is asked of them."""
        before = self.used_s()
        time.sleep(seconds)
        return self.used_s() - before

    def close(self) -> None:
        self.worker.close()
        for place in (*self.places, *self.unbound):
            if place.outputs is not None:
                place.outputs.close()
            if place.content is not place.session.content:
                place.content.close()

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def binding(fp: FunctionalProblem, candidate: Candidate, reply: dict[str, Any]) -> dict[str, Any]:
    """What a candidate's worker is told of its arguments: their form, never the problem's source."""
    position = {a.name: i for i, a in enumerate(fp.tensors)}
    arguments = [a.value if isinstance(a, ScalarArgument) else {"content": position[a.name]} for a in fp.arguments]
    message = {
        "arguments": arguments,
        "constants": [v for _, v in fp.abi_constants],
        "keywords": codec.encode(dict(fp.constants)),
    }
    if candidate.tier != "module":
        return message
    by_leaf = {a.path: {"content": position[a.name]} for a in fp.tensors if a.role == "input"}
    return message | {
        "leaves": [by_leaf.get(str(i), leaf) for i, leaf in enumerate(reply["leaves"])],
        "init_inputs": reply["init_inputs"],
        "held": [
            {"content": position[a.name], "path": a.path, "role": a.role} for a in fp.tensors if a.role != "input"
        ],
    }


def _failed(failure: WorkerFailed, stage: str, deadline_s: float) -> Verdict:
    """How a worker's end reads as a verdict."""
    during = "while it was loaded" if stage == "load" else "during a call"
    if failure.kind == "timed_out":
        return TimedOut(stage, deadline_s, f"The candidate did not finish within {deadline_s:g} s {during}.")
    if "SIGSYS" in failure.message:
        return Rejected("sandbox_violation", f"The candidate made a system call that the sandbox forbids, {during}.")
    hint = ""
    if "SIGSEGV" in failure.message or "SIGBUS" in failure.message:
        hint = " (a read or write out of bounds, or a write to a read-only input)"
    if "SIGILL" in failure.message:
        hint = " (an instruction this CPU does not have)"
    subject = "The candidate failed" if failure.kind == "raised" else "The candidate's process ended"
    return Crashed(f"{subject} {during}: {failure.message}{hint}", failure.log)
