"""One problem, ready to judge candidates against: its reference worker, draws and oracle answers.

Comes in: a FunctionalProblem. Goes out: contents of calls, and how outputs compare with what is right for any of them,
which the reference worker works out and keeps. Seeds come from the operating system and stay here. Nothing of a
candidate is known in this module. How long the reference takes is told by `ReferenceTimes`, made beside it; what else
is known of the problem stands in a `ProblemKnowledge`.
"""

from __future__ import annotations

import functools
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rag_kernels.eval import codec
from rag_kernels.eval.admission_records import Admission
from rag_kernels.eval.aten import operator
from rag_kernels.eval.buffers.call_content import (
    Recipe,
    compose,
    moved_together,
    plain,
    random_recipe,
    whole_draw,
    with_parameters_changed,
)
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot
from rag_kernels.eval.buffers.parallel_copy import copied, copy_bytes
from rag_kernels.eval.buffers.shared_arena import Arena, ArenaLayout, tensor_bytes
from rag_kernels.eval.input_kinds import (
    AT_CONSTANTS,
    BURST,
    CONSTANT_ROWS,
    DISORDER,
    EDGES,
    ENDS,
    INFINITE,
    INTEGER_KINDS,
    INTEGERS,
    IRREGULAR,
    KEPT,
    LINES,
    MIXED,
    NEARLY,
    NON_FINITE,
    OF_ITS_SIDE,
    ONE_END,
    OUT_OF_RANGE,
    OVERFLOW,
    PROBES,
    SEARCHED,
    SMALL_WHOLE,
    SPECIAL,
    STRICT,
    TWICE,
    UNEVEN,
)
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import cache_bytes, measured, threads
from rag_kernels.eval.machine.device_lock import DeviceLock
from rag_kernels.eval.messages.to_both import Done
from rag_kernels.eval.messages.to_reference import (
    Answered,
    AskForProbes,
    BringDraw,
    Checked,
    CheckOutputs,
    Comparison,
    ComputeAnswer,
    Drawn,
    EmptyExchange,
    Exchanged,
    MakeDraw,
    Opened,
    OpenReference,
    PrecisionShown,
    Probes,
    ReferenceRequest,
    ShowPrecision,
    TakeOutputs,
    TookOutputs,
    WriteContent,
)
from rag_kernels.eval.process.workers import Worker, WorkerFailed, Workers
from rag_kernels.eval.records import Device, FunctionalProblem, MachineError, ProblemError
from rag_kernels.eval.sessions.remembered_contents import RememberedContents
from rag_kernels.eval.sessions.suitable_kinds import may_be_given
from rag_kernels.eval.steps import has_steps

T = TypeVar("T")
LARGE_BYTES = 6 << 30  # content beyond this is drawn once only
MOST_DIED = 3  # contents of which the module's process dies: each costs a new one
SPECIAL_BYTES = 24 << 20  # special values are tried where arguments and answers take no more than this
MAX_OWN_ERROR = 1e-3  # relative; where PyTorch itself is worse than this, nobody can be judged
EIGHT_BITS = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, **EIGHT_BITS}
OPERAND_ROUNDOFF = {"strict": 0.0, "tf32": 2.0**-11, "any": 2.0**-8}  # of fp32 products, by the precision allowed
OWN_UNITS = 4.0  # of rounding, in sixteen bits
MOST_DRAWS = 32
DRAWS_BYTES, DRAWS_GPU_BYTES = 256 << 20, 6 << 30
ANSWERS_BYTES = 1 << 30  # of contents that are looked at
ILL_CONDITIONED = frozenset({CONSTANT_ROWS, "far"})  # where rows differ by little of what they are


class ProblemSession:
    """Open with a problem, close when done; a context manager. `rng` is seeded from the operating system."""

    def __init__(
        self,
        fp: FunctionalProblem,
        *,
        workers: Workers,
        candidate_workers: Workers,
        device: Device,
        limits: Limits,
        device_lock: DeviceLock | None = None,
        keep: Callable[[Device], Device] = lambda device: device,
        idle: list[Worker] | None = None,
    ) -> None:
        if fp.uses_random:
            raise ProblemError(
                f"{fp.problem.name} draws random numbers in its forward (dropout in train mode?), so no kernel can be "
                "compared with it; set p=0 or leave the random operator out."
            )
        self.fp, self.device, self.limits = fp, device, limits
        self._keep, self._measured_again = keep, False  # ceilings that turned out higher
        self.workers, self.candidate_workers = workers, candidate_workers
        self._idle, self._rests = idle, False  # see `rest`
        self.device_lock = device_lock or DeviceLock((), Path())  # without names everything is one's own
        self.rng = random.SystemRandom()
        self.specs = [a.spec for a in fp.tensors]
        self.content = Arena(self.specs, readers_only="read-only inputs" not in limits.without)
        self.submitted = Arena(fp.outputs, readers_only=True)
        self._taken: OutputSnapshot | None = None  # which lies there now
        self._shared: tuple[int, int] | None = None  # see `share`
        self.died = 0  # of contents: how often the reference worker did
        self.restarts = 0  # of the reference worker: its draws and its shared memory are others then
        self.content_bytes = sum(tensor_bytes(s) for s in self.specs)
        self.output_bytes = sum(tensor_bytes(s) for s in fp.outputs)
        self.draws: list[Arena] = []  # CPU; on a GPU the reference worker has them
        self.drawn = self.own_draws = 0
        self.answered: set[int] = set()
        self.kinds: dict[str, int | None] = {}
        self.ordered = [False] * len(self.specs)  # tensors whose elements ascend, and have to
        self.keeps = False  # whether a buffer may be another one
        self.limited = False  # whether a float input lies between ends, as probabilities do
        self.masks = False  # whether an input is of two values, as masks are
        self.alike = False  # whether a float input is one number throughout
        self.unsound: dict[int, set[int]] = {}  # by draw, outputs for which the module has no sound answer
        self._fresh: list[int] | None = None
        self.remembered = self._nothing_remembered()
        self._own_kinds: list[str] | None = None
        self.by_noise = False  # see `compare_by_noise`
        self.admission: Admission | None = None  # by whose limits outputs are compared; see `compare_by`
        self.oracle_kind = "fp64"
        self.core = self.rng.choice(sorted(os.sched_getaffinity(0)))  # from which work is sent to a GPU, on either side
        self.call_s = 0.0  # of an eager call, once one has been timed
        self.after_restart: Callable[[], None] = lambda: None  # prepares in a new worker what the old one had prepared
        self.worker = self._open_worker()
        try:
            self._make_draws()
        except BaseException:
            self.close()
            raise

    @property
    def on_gpu(self) -> bool:
        return self.device.backend == "cuda"

    @property
    def memory_bytes(self) -> int:
        return self.limits.memory_bytes + 4 * (self.content_bytes + 4 * self.output_bytes)

    @property
    def reads_in_part(self) -> bool:
        """Whether the problem may be right without reading all of its inputs, so that bytes are no bound."""
        return any(operator(name).reads_in_part for name in self.fp.features.operators)

    @property
    def decided_on_content(self) -> bool:
        """Whether rounding may decide on outputs by a step, as on integers and 8-bit floats: seen on their content."""
        few = {*INTEGERS, *EIGHT_BITS, "bool"}
        return any(s.dtype in few for s in self.fp.outputs) or has_steps(self.fp)

    @property
    def exceeds_cache(self) -> bool:
        """Whether arguments and outputs are several times the last-level cache (a GPU's L2 is taken as 64 MiB)."""
        cache = 64 << 20 if self.on_gpu else cache_bytes()
        return self.content_bytes + self.output_bytes > 4 * cache

    def empty_caches(self) -> None:
        """Write through more memory than the CPU's last-level cache holds, where the content might be in it."""
        if not self.exceeds_cache:
            _flush_buffer(2 * cache_bytes()).fill(1)

    @property
    def call_limit_s(self) -> float:
        return max(self.limits.call_s, 30 * self.call_s)

    @property
    def baseline_precision(self) -> str:
        """Of fp32 products of eager and compile: TF32 where a lower precision is allowed, on a GPU alone."""
        return "tf32" if self.on_gpu and self.limits.precision != "strict" else "strict"

    def _open_worker(self) -> Worker:
        message = OpenReference(
            problem=self.fp,
            device=self.device.backend,
            threads=threads(),
            content=self.content.describe(),
            outputs=self.submitted.describe(),
            tf32=self.baseline_precision == "tf32",
            operands=OPERAND_ROUNDOFF[self.limits.precision],
            seed=self.rng.getrandbits(40),
        )
        fds = [self.content.fd, self.submitted.fd]
        worker = self._idle.pop() if self._idle else self._new_worker()
        try:
            self.opened, _ = _exchange(worker, message, Opened, deadline_s=self.limits.open_s, fds=fds)
        except WorkerFailed as failure:
            worker.close()
            raise self.problem_error("could not be set up", failure) from failure
        return worker

    def _new_worker(self) -> Worker:
        memory = None if self.on_gpu else 3 * self.memory_bytes
        role = "rag_kernels.eval.children.reference:serve" + "_cuda" * self.on_gpu
        worker = self.workers.spawn(role, memory_bytes=memory, limit_address_space=False)
        if self.on_gpu:  # the next session, of another size perhaps, finds a GPU's context made
            self.workers.spare(role, limit_address_space=False)
            try:  # a context takes seconds where many are made, and no turn
                with self.device_lock.away():
                    worker.wait_until_ready(deadline_s=self.limits.open_s)
            except WorkerFailed as failure:
                worker.close()
                raise self.problem_error("could not be set up", failure) from failure
        return worker

    def rest(self) -> None:
        """Let another session have the worker, whose context on a GPU takes seconds to make: nothing more is asked."""
        if self._idle is not None and not self._rests:
            self._rests = True
            self._idle.append(self.worker)

    def problem_error(self, what: str, failure: WorkerFailed) -> ProblemError:
        return ProblemError(f"The problem {self.fp.problem.name} {what}: {failure.message}.")

    def ask(
        self,
        request: ReferenceRequest,
        kind: type[T],
        *,
        deadline_s: float | None = None,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        """Send one request to the reference worker and return its reply.

        Raises ProblemError where it fails: that is the problem's fault, not a candidate's.
        """
        self.device_lock.give_way()
        try:
            return self.send(request, kind, deadline_s=deadline_s or self.limits.open_s, fds=fds, spin=spin)
        except WorkerFailed as failure:
            raise self.problem_error(f"failed in `{type(request).__name__}`", failure) from failure

    def send(
        self,
        request: ReferenceRequest,
        kind: type[T],
        *,
        deadline_s: float,
        fds: Sequence[int] = (),
        spin: bool = False,
    ) -> T:
        """Send one request and return its reply; raises WorkerFailed, which is the caller's to judge."""
        reply, unasked = _exchange(self.worker, request, kind, deadline_s=deadline_s, fds=fds, spin=spin)
        for fd in unasked:
            os.close(fd)
        return reply

    # Content

    def _make_draws(self) -> None:
        """Own draws first, then one with zero-mean inputs if the module can take it."""
        self.own_draws = self.limits.draws if self.content_bytes < LARGE_BYTES else 1
        structured = self.structured = self._draw("own")
        for _ in range(self.own_draws - 1):
            self._draw("own")
        pairs = zip(self.fp.tensors, structured, strict=True)
        self.movable = [argument.role == "input" and not fixed for argument, fixed in pairs]
        self.together = self._together()
        self.normal: int | None = None
        wanted = self.content_bytes < LARGE_BYTES and "zero-mean draw" not in self.limits.without
        if wanted and self._accepts_normal():
            self.normal = self.drawn - 1
        self.on_one_side = wanted and self.normal is None  # as a logarithm's inputs are

    def _together(self) -> tuple[int, ...]:
        """Return the integers that something computes places from, where they are several: `ends - starts`.

        They move together; those of other shapes cannot, and stay where they are.
        """
        computed = [i for i, a in enumerate(self.fp.tensors) if a.role == "input" and a.path in self.fp.as_drawn]
        if len(computed) < 2:
            return ()
        if len({self.specs[i].shape for i in computed}) == 1 and all(self.movable[i] for i in computed):
            return tuple(computed)
        self.movable = [may and i not in computed for i, may in enumerate(self.movable)]
        return ()

    def _draw(self, kind: str) -> list[bool]:
        """Make one more draw; return for each tensor whether the arrangement of its elements means something."""
        if not self.on_gpu:
            self.draws.append(Arena(self.specs))
        fds = () if self.on_gpu else (self.draws[-1].fd,)
        seed = self.rng.getrandbits(40)
        reply = self.ask(MakeDraw(seed, kind, ArenaLayout(tuple(self.specs))), Drawn, fds=fds)
        self.drawn += 1
        self.ordered = list(reply.ordered) if kind == "own" else self.ordered
        self.alike = reply.alike if kind == "own" else self.alike
        self.keeps = reply.keeps if kind == "own" else self.keeps
        self.limited = reply.limited if kind == "own" else self.limited
        self.masks = reply.masks if kind == "own" else self.masks
        return list(reply.structured)

    @property
    def comes_from_before(self) -> list[int]:
        """Return the numbers of arguments that a kernel right before a call may have written.

        Inputs, and buffers that a forward updates; the module's other tensors no forward writes.
        """
        named = self.fp.tensors
        return [i for i, a in enumerate(named) if a.role == "input" or a.path in self.fp.mutated]

    @contextmanager
    def first_draw(self) -> Iterator[Arena]:
        """Open the first draw in the host's memory, brought there from a GPU."""
        arena = Arena(self.specs) if self.on_gpu else self.draws[0]
        try:
            if self.on_gpu:
                self.ask(BringDraw(0, arena.describe()), Done, fds=(arena.fd,))
            yield arena
        finally:
            if self.on_gpu:
                arena.close()

    def _accepts_normal(self) -> bool:
        """Use zero-mean inputs only where the module stays finite on them (a logarithm would not)."""
        self._draw("normal")
        reply = self._try_answer(self.drawn - 1, noisy=False)
        return reply is not None and reply.finite

    def special(self, kind: str) -> int | None:
        """Return the draw of a kind of `input_draws`, or None where the problem gives no sound answer to it."""
        if kind not in self.kinds:
            self.kinds[kind] = self._special(kind)
        return self.kinds[kind]

    def _special(self, kind: str) -> int | None:
        looks = {"masks": self.masks, "structured": any(self.structured), "ordered": any(self.ordered)}
        if (kind == KEPT and not self.keeps) or (kind == ENDS and not (self.limited and self.on_one_side)):
            return None
        if not may_be_given(self.fp, kind, on_gpu=self.on_gpu, **looks):
            return None
        if kind in (INFINITE, OUT_OF_RANGE):
            self._draw(kind)
            return self.drawn - 1
        if kind in PROBES and kind not in self.ask(AskForProbes(), Probes).kinds:
            return None
        sided = (
            self.on_one_side
            and kind in SPECIAL
            and kind not in (*SEARCHED, AT_CONSTANTS, IRREGULAR, DISORDER, NEARLY, UNEVEN, KEPT)
        )
        if kind == ENDS:
            return next((draw for end in ("", *ONE_END) if (draw := self._sound_draw(kind, end)) is not None), None)
        if sided and kind == SMALL_WHOLE and (draw := self._sound_draw(kind)) is not None:
            return draw  # whole exponents take both sides, where others do not
        return self._sound_draw(kind, OF_ITS_SIDE if sided else "")

    @property
    def mixed(self) -> Recipe | None:
        """Rows of several special kinds, of the problem's own sign where the module does not take both; None where it
        is sound on none, or where there is no room for one more draw.
        """
        if "special values" in self.limits.without or not self.room_for_draws:
            return None
        for kind in (f"{MIXED}{OF_ITS_SIDE}",) if self.on_one_side else (MIXED, f"{MIXED}{OF_ITS_SIDE}"):
            if (draw := self.special(kind)) is not None and not self.unsound.get(draw):
                return plain(draw, len(self.specs))
        return None

    def is_mixed(self, recipe: Recipe) -> bool:
        """Return whether a content is such, on which a mere loss of accuracy is no matter."""
        draw = whole_draw(recipe)
        return draw is not None and draw in {self.kinds.get(MIXED), self.kinds.get(f"{MIXED}{OF_ITS_SIDE}")}

    def _sound_draw(self, kind: str, side: str = "") -> int | None:
        """Make a draw of a kind; return its number, or None where the module gives no sound answer to it."""
        self._draw(f"{kind}{side}")
        draw = self.drawn - 1
        reply = self._try_answer(draw, noisy=kind not in PROBES, moved=kind in ILL_CONDITIONED)
        if kind in (NON_FINITE, OVERFLOW):
            return draw if reply is not None and not reply.finite and reply.oracle == "fp64" else None
        if reply is None or reply.oracle != "fp64":
            return None
        # One output without a sound answer takes a kind of inputs away from itself, not from the others.
        unsound = {i for i, error in enumerate(reply.own_by_output) if not error <= self._most_own_error}
        if len(unsound) == len(reply.own_by_output) or (unsound and kind in PROBES):
            return None
        self.unsound[draw] = unsound
        return None if kind in PROBES and reply.worst_error > STRICT / 2 else draw

    @property
    def _most_own_error(self) -> float:
        """Where PyTorch's own relative error is greater than this, nobody can be judged."""
        sixteen = [UNIT_ROUNDOFF[s.dtype] for s in self.fp.outputs if s.dtype in UNIT_ROUNDOFF]
        return max(MAX_OWN_ERROR, OWN_UNITS * max(sixteen, default=0.0))

    @property
    def room_for_draws(self) -> int:
        """How many further draws, with their answers, are worth their memory."""
        most = (DRAWS_GPU_BYTES if self.on_gpu else DRAWS_BYTES) // max(1, self.content_bytes + answer_bytes(self.fp))
        return min(most, MOST_DRAWS)

    def _nothing_remembered(self) -> RememberedContents:
        return RememberedContents(self.rng, ANSWERS_BYTES // max(1, answer_bytes(self.fp)))

    @property
    def fresh(self) -> list[int]:
        """Draws that share nothing with any other, for one call each of a candidate's process; made when first asked
        for."""
        if self._fresh is None:
            self._fresh = []
            for _ in range(min(self.limits.timing.unrelated_draws, self.room_for_draws)):
                self._draw("own")
                self._fresh.append(self.drawn - 1)
        return self._fresh

    @property
    def elsewhere(self) -> list[tuple[str, int, float]]:
        """Contents that the problem does not draw, on which its time is as good: in words, with their draws, and how
        many times as slow a kernel may be there.
        """
        rule, special = self.limits.timing, dict(self.own_specials)
        found = [("zero-mean", self.normal, rule.elsewhere_not_alike)] if self.alike else []
        found += [
            (kind, special.get(kind), most)
            for kind, most in (("shifted", rule.elsewhere_shifted), ("spread", rule.elsewhere_spread))
        ]
        return [(kind, draw, most) for kind, draw, most in found if draw is not None]

    def forget_fresh(self) -> None:
        """Have other such draws made, in the place of these."""
        again, self._fresh = self._fresh or [], None
        if self.on_gpu:  # where it holds the old ones until it ends
            return
        for draw in again:
            fds = (self.draws[draw].fd,)
            self.ask(MakeDraw(self.rng.getrandbits(40), "own", ArenaLayout(tuple(self.specs))), Drawn, fds=fds)
            self.answered.discard(draw)
        self._fresh = again

    @property
    def own_specials(self) -> list[tuple[str, int]]:
        """Special kinds at the problem's own sizes, with their draws: all, or of a large problem `EDGES` and a few by
        chance.
        """
        if self._own_kinds is None:
            others = [kind for kind in SPECIAL if kind != EDGES]  # these are not the same at other sizes
            drawn = self.rng.sample(others, max(0, min(len(others), self.room_for_draws - 1)))
            self._own_kinds = [EDGES, *drawn] if self.room_for_draws else []
        restarts = -1
        while restarts != self.restarts:  # a kind of which the module died takes the draws of others with it
            restarts = self.restarts
            found = [(kind, self.special(kind)) for kind in self._own_kinds]
        return [(kind, draw) for kind, draw in found if draw is not None and not self.unsound.get(draw)]

    def _try_answer(self, draw: int, *, noisy: bool, moved: bool = False) -> Answered | None:
        """Return the answer to inputs that may be too much for the module; None if it raises."""
        self.write(plain(draw, len(self.specs)))
        try:
            limit_s = max(self.limits.open_s, self.call_limit_s)
            reply = self.send(ComputeAnswer(draw, noisy, moved), Answered, deadline_s=limit_s)
        except WorkerFailed as failure:
            if not failure.alive:
                self.restart()
            return None
        self.answered.add(draw)
        return reply

    def restart(self, *, by_content: bool = True) -> None:
        """Start a new reference worker after the module's process died, with own draws and a zero-mean one it had.

        Other kinds are drawn again when they are asked for, but for one that it died of, `by_content`: after a few such
        none is tried any more.
        """
        had_normal = self.normal is not None
        self.died += by_content
        self.worker.close()
        for arena in self.draws:
            arena.close()
        self._unshare()
        self.restarts += 1
        self.draws, self.drawn, self.answered, self.normal = [], 0, set(), None
        if self.died >= MOST_DIED:
            others = (INFINITE, OUT_OF_RANGE, NON_FINITE, OVERFLOW, *LINES, *TWICE)
            self.kinds = dict.fromkeys((*PROBES, *INTEGER_KINDS, *SPECIAL, *others))
        else:
            self.kinds = {kind: None for kind, draw in self.kinds.items() if draw is None}
        self._fresh, self.unsound, self.remembered = None, {}, self._nothing_remembered()
        self.worker = self._open_worker()
        for _ in range(self.own_draws):
            self._draw("own")
        if had_normal and self._accepts_normal():
            self.normal = self.drawn - 1
        self.write(plain(0, len(self.specs)))  # not what the module died of
        self.after_restart()

    def write(self, recipe: Recipe, target: Arena | None = None) -> None:
        """Lay out the content of the next call in memory that workers read; on a GPU tell the reference worker."""
        if self.on_gpu:
            self.ask(WriteContent(recipe), Done)
            return
        target = target or self.content
        for index, (spec, part) in enumerate(zip(self.specs, recipe, strict=True)):
            draws = [draw.bytes(index) for draw in self.draws]
            compose(target.bytes(index), draws, part, spec)

    def random_recipe(self, draws: Sequence[int] = ()) -> Recipe:
        """Return a secret content made of these draws, or of the first ones."""
        if "fresh content" in self.limits.without:
            return plain(0, len(self.specs))
        recipe = random_recipe(self.specs, self.movable, draws or range(self.own_draws), self.rng)
        recipe = moved_together(recipe, self.together)
        parameters = [a.role == "parameter" and not o for a, o in zip(self.fp.tensors, self.ordered, strict=True)]
        return with_parameters_changed(recipe, self.specs, parameters, self.rng)

    def with_parameters_of(self, one: Recipe, recipes: Sequence[Recipe]) -> list[Recipe]:
        """Return the recipes, with what is no input as in this one: a module has its parameters once for all calls."""
        inputs = [a.role == "input" for a in self.fp.tensors]
        return [
            tuple(own if moves else shared for own, shared, moves in zip(recipe, one, inputs, strict=True))
            for recipe in recipes
        ]

    # Answers

    def compare_by(self, admission: Admission | None) -> None:
        """Compare outputs from now on by the limits that were calibrated for the problem; None: those of the dtype."""
        self.admission = admission

    def compare_by_noise(self) -> None:
        """Compare outputs from now on by what rounding as it is allowed does to each draw.

        At other sizes than the problem's a lower precision is farther from fp32, or less far, than its limits say.
        """
        self.by_noise = True

    def _answer(self, draw: int) -> None:
        """Have the answer for a whole draw computed and remembered."""
        self.write(plain(draw, len(self.specs)))
        limit_s = max(self.limits.open_s, self.call_limit_s)
        reply = self.ask(ComputeAnswer(draw, noisy=self.by_noise), Answered, deadline_s=limit_s)
        self.answered.add(draw)
        self.oracle_kind = reply.oracle

    def require_answer(self, recipe: Recipe) -> None:
        """Compute a whole draw's answer now, so that it is not computed between a call and its check."""
        draw = whole_draw(recipe)
        if draw is not None and draw not in self.answered:
            self._answer(draw)

    def check(self, outputs: OutputSnapshot, recipe: Recipe, *, noisy: bool = False) -> tuple[Comparison, ...]:
        """Compare a call's outputs with the answer, one by one; `noisy` where rows of special kinds are among them."""
        self.require_answer(recipe)
        draw, a = whole_draw(recipe), self.admission
        noisy = noisy or self.by_noise
        special = noisy if draw is None else self.by_noise or draw in self.kinds.values()
        ordinary = not special  # else the noise there sets the limit
        limits = a.limits(self.limits.precision) if a and ordinary else None
        limit_s = max(self.limits.open_s, self.call_limit_s)
        answer = self.remembered.number(recipe) if draw is None else draw
        if answer is None or answer not in self.answered or self.decided_on_content:
            self.write(recipe)
        if answer is not None and answer not in self.answered:
            self.ask(ComputeAnswer(answer, noisy), Answered, deadline_s=limit_s)
            self.answered.add(answer)
        self._submit(outputs)
        near = draw is not None and draw == self.kinds.get(BURST)
        request = CheckOutputs(answer, outputs.number, limits, noisy, near=near)
        results = self.ask(request, Checked, deadline_s=limit_s).results
        if any(result.unsettled for result in results):
            self.write(recipe)
            results = self.ask(replace(request, settle=True), Checked, deadline_s=limit_s).results
        unsound = self.unsound.get(draw, set()) if draw is not None else set()
        return tuple(Comparison(True, 0.0, "") if i in unsound else result for i, result in enumerate(results))

    def _submit(self, outputs: OutputSnapshot) -> None:
        if outputs is not self._taken:
            if outputs.lent:
                raise RuntimeError("Outputs are compared after others took their place: they should have been kept.")
            self._taken = None
            for index, raw in enumerate(outputs.copies):
                copy_bytes(self.submitted.bytes(index), raw)

    def take(self, outputs: Arena | None, *, keep: bool) -> OutputSnapshot:
        """Return a copy of what a candidate wrote: to `outputs`, or (GPU) to the shared memory.

        It is good until the next one is taken or another one compared, unless it is to be kept: on a CPU it lies where
        the reference worker reads it.
        """
        if outputs is not None and keep:
            return OutputSnapshot(tuple(copied(outputs.bytes(index)) for index in range(len(self.fp.outputs))))
        if outputs is not None:
            places = tuple(self.submitted.bytes(index) for index in range(len(self.fp.outputs)))
            for index, place in enumerate(places):
                copy_bytes(place, outputs.bytes(index))
            self._taken = OutputSnapshot(places, lent=True)
            return self._taken
        reply = self.ask(TakeOutputs(keep), TookOutputs)
        return OutputSnapshot(number=reply.taken, hash=reply.hash)

    def share(self) -> tuple[int, int]:
        """Empty the memory through which a new candidate gets draws and hands its outputs over, and return its
        descriptor and bytes (GPU only). Raises MachineError where this GPU's memory cannot be shared.
        """
        self.device_lock.give_way()
        try:
            reply, made = _exchange(self.worker, EmptyExchange(), Exchanged, deadline_s=self.limits.open_s)
        except WorkerFailed as failure:
            if failure.kind == "not_shared":
                raise MachineError(f"{failure.message}. Ask `rag-kernels doctor` what to do.") from failure
            raise self.problem_error("failed in `EmptyExchange`", failure) from failure
        if self._shared is None:
            self._shared = made[0], reply.size_bytes
        return self._shared

    def _unshare(self) -> None:
        if self._shared is not None:
            os.close(self._shared[0])
            self._shared = None

    def precision(self, outputs: OutputSnapshot, draw: int, *, ordinary: bool = False) -> tuple[str, float]:
        """Return the precision class that the outputs on a probe's draw, or on an `ordinary` one, show, and the
        relative error that goes with it.
        """
        self._submit(outputs)
        self.write(plain(draw, len(self.specs)))
        limit_s = max(self.limits.open_s, 4 * self.call_limit_s)
        reply = self.ask(ShowPrecision(draw, outputs.number, ordinary), PrecisionShown, deadline_s=limit_s)
        return reply.name, reply.error

    def raise_ceilings(self, device: Device) -> None:
        """Take the device with ceilings that are higher than was known, and have it kept."""
        if device != self.device:
            self.device = self._keep(device)

    def measure_again(self) -> None:
        """Measure the device's ceilings again, once a session; where that fails they stay as they are."""
        if not self._measured_again:
            self._measured_again = True
            with suppress(WorkerFailed), self.device_lock.alone():
                self.raise_ceilings(measured(self.device, self.workers))

    def close(self) -> None:
        if not self._rests:
            self.worker.close()
        self._unshare()
        for arena in [self.content, self.submitted, *self.draws]:
            arena.close()

    def __enter__(self) -> ProblemSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _exchange(
    worker: Worker,
    request: OpenReference | ReferenceRequest,
    kind: type[T],
    *,
    deadline_s: float,
    fds: Sequence[int] = (),
    spin: bool = False,
) -> tuple[T, list[int]]:
    """Send a request and wait; return the reply, and the descriptors that came with it.

    Raises WorkerFailed, also where the reply is not of this kind.
    """
    reply, received = worker.exchange(codec.encode(request), deadline_s=deadline_s, fds=fds, spin=spin)
    try:
        return codec.decode_as(kind, reply), received
    except codec.Malformed as malformed:
        for fd in received:
            os.close(fd)
        raise WorkerFailed("crashed", f"its answer was not what was asked for ({malformed})", worker.log()) from None


@functools.cache
def _flush_buffer(size: int) -> NDArray[np.uint8]:
    return np.zeros(size, np.uint8)


def bytes_of(fp: FunctionalProblem) -> int:
    """Return the bytes of its tensors, outputs with what the judge keeps beside them."""
    return sum(tensor_bytes(a.spec) for a in fp.tensors) + 4 * sum(tensor_bytes(s) for s in fp.outputs)


def answer_bytes(fp: FunctionalProblem) -> int:
    """Return the bytes of an answer that is kept: the module's own outputs, what is right in fp64, and the noise."""
    return sum(tensor_bytes(s) + 16 * math.prod(s.shape) for s in fp.outputs)


def takes_special(fp: FunctionalProblem) -> bool:
    """Return whether it is small enough for special values at its own sizes."""
    return bytes_of(fp) <= SPECIAL_BYTES
