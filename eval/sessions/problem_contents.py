"""What calls on a problem are made of: draws of its inputs from secret seeds, and contents put together of them.

Comes in: a FunctionalProblem, whose reference worker makes draws. Goes out: the content of each call, laid out where
workers read it. Seeds come from the operating system and stay here. Which special kinds of inputs the module takes is
found in `SpecialDraws`; nothing of a candidate is known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rag_kernels.eval.buffers.call_content import (
    Recipe,
    compose,
    moved_together,
    plain,
    random_recipe,
    with_parameters_changed,
)
from rag_kernels.eval.buffers.shared_arena import Arena, ArenaLayout, tensor_bytes
from rag_kernels.eval.machine.device import cache_bytes
from rag_kernels.eval.messages.to_both import Done
from rag_kernels.eval.messages.to_reference import Answered, BringDraw, ComputeAnswer, Drawn, MakeDraw, WriteContent
from rag_kernels.eval.process.workers import WorkerFailed
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.eval.sessions.reference_worker import ReferenceWorker, Resources
from rag_kernels.eval.sessions.remembered_contents import RememberedContents
from rag_kernels.eval.traits.named_numbers import NOTHING_NAMED, NamedNumbers

LARGE_BYTES = 6 << 30  # content beyond this is drawn once only
SPECIAL_BYTES = 24 << 20  # special values are tried where arguments and answers take no more than this
MOST_DRAWS = 32
DRAWS_BYTES, DRAWS_GPU_BYTES = 256 << 20, 6 << 30
ANSWERS_BYTES = 1 << 30  # of contents that are looked at


class ProblemContents(ReferenceWorker):
    """A reference worker with its draws."""

    def __init__(self, fp: FunctionalProblem, resources: Resources) -> None:
        self.died = 0  # of contents: how often the reference worker did
        self.restarts = 0  # of the reference worker: its draws and its shared memory are others then
        self.draws: list[Arena] = []  # CPU; on a GPU the reference worker has them
        self.made: list[int] = []  # of each draw, by which number of seeds: it may have been made again
        self._seeds = 0
        self.drawn = self.own_draws = 0
        self.answered: set[int] = set()
        self.own = Drawn((), ordered=(False,) * len(fp.tensors))  # what the last draw of the problem's own looked like
        self._fresh: list[int] | None = None
        self.after_restart: list[Callable[[], None]] = []  # done in this order when a new worker has its draws
        super().__init__(fp, resources)
        self.remembered = self._nothing_remembered()
        try:
            self._make_draws()
        except BaseException:
            self.close()
            raise

    def _make_draws(self) -> None:
        """Own draws first, then one with zero-mean inputs if the module can take it."""
        self.own_draws = self.limits.draws if self.content_bytes < LARGE_BYTES else 1
        structured = self.structured = self.make_draw("own")
        for _ in range(self.own_draws - 1):
            self.make_draw("own")
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

        They move together; those of other shapes cannot, and stay where they are. So does a mask that is counted.
        """
        computed = [i for i, a in enumerate(self.fp.tensors) if a.role == "input" and a.path in self.fp.as_drawn]
        counted = any(self.specs[i].dtype == "bool" for i in computed)
        if len(computed) < 2 and not counted:
            return ()
        if not counted and len({self.specs[i].shape for i in computed}) == 1 and all(self.movable[i] for i in computed):
            return tuple(computed)
        self.movable = [may and i not in computed for i, may in enumerate(self.movable)]
        return ()

    def make_draw(self, kind: str, named: NamedNumbers = NOTHING_NAMED, *, again: int | None = None) -> list[bool]:
        """Make one more draw, or one in the place of a draw (`again`); return for each tensor whether the arrangement
        of its elements means something. `named` are numbers that it is to have something of.
        """
        at = self.drawn if again is None else again
        if not self.on_gpu and again is None:
            self.draws.append(Arena(self.specs))
        fds = () if self.on_gpu else (self.draws[at].fd,)
        layout, seed = ArenaLayout(tuple(self.specs)), self.rng.getrandbits(40)
        reply = self.ask(MakeDraw(seed, kind, layout, again, named.reals, named.wholes), Drawn, fds=fds)
        self.drawn += again is None
        self._seeds += 1
        self.made[at : at + 1] = [self._seeds]
        self.answered.discard(at)
        if kind == "own":
            self.own = reply
        return list(reply.structured)

    @property
    def comes_from_before(self) -> list[int]:
        """Return the numbers of arguments that a kernel right before a call may have written.

        Inputs, and buffers that a forward updates; the module's other tensors no forward writes.
        """
        named = self.fp.tensors
        return [i for i, a in enumerate(named) if a.role == "input" or a.path in self.fp.mutated]

    @contextmanager
    def in_memory(self, draw: int = 0) -> Iterator[Arena]:
        """Open a draw, or the first one, in the host's memory, brought there from a GPU."""
        arena = Arena(self.specs) if self.on_gpu else self.draws[draw]
        try:
            if self.on_gpu:
                self.ask(BringDraw(draw, arena.describe()), Done, fds=(arena.fd,))
            yield arena
        finally:
            if self.on_gpu:
                arena.close()

    def _accepts_normal(self) -> bool:
        """Use zero-mean inputs only where the module stays finite on them (a logarithm would not)."""
        self.make_draw("normal")
        reply = self.try_answer(self.drawn - 1, noisy=False)
        return reply is not None and reply.finite

    def try_answer(self, draw: int, *, noisy: bool, moved: bool = False, partly: bool = False) -> Answered | None:
        """Return the answer to inputs that may be too much for the module; None if it raises."""
        self.write(plain(draw, len(self.specs)))
        try:
            limit_s = max(self.limits.open_s, self.call_limit_s)
            reply = self.send(ComputeAnswer(draw, noisy, moved, partly), Answered, deadline_s=limit_s)
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
        self.unshare()
        self.restarts += 1
        self.draws, self.made, self.drawn, self.answered, self.normal = [], [], 0, set(), None
        self._fresh, self.remembered = None, self._nothing_remembered()
        self.worker = self.open_worker()
        for _ in range(self.own_draws):
            self.make_draw("own")
        if had_normal and self._accepts_normal():
            self.normal = self.drawn - 1
        self.write(plain(0, len(self.specs)))  # not what the module died of
        for then in self.after_restart:
            then()

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
        parameters = [a.role == "parameter" and not o for a, o in zip(self.fp.tensors, self.own.ordered, strict=True)]
        return with_parameters_changed(recipe, self.specs, parameters, self.rng)

    def with_parameters_of(self, one: Recipe, recipes: Sequence[Recipe]) -> list[Recipe]:
        """Return the recipes, with what is no input as in this one: a module has its parameters once for all calls."""
        inputs = [a.role == "input" for a in self.fp.tensors]
        return [
            tuple(own if moves else shared for own, shared, moves in zip(recipe, one, inputs, strict=True))
            for recipe in recipes
        ]

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
                self.make_draw("own")
                self._fresh.append(self.drawn - 1)
        return self._fresh

    def forget_fresh(self) -> None:
        """Have other such draws made, in the place of these."""
        again, self._fresh = self._fresh or [], None
        if self.on_gpu:  # where it holds the old ones until it ends
            return
        for draw in again:
            self.make_draw("own", again=draw)
        self._fresh = again

    @property
    def exceeds_cache(self) -> bool:
        """Whether arguments and outputs are several times the last-level cache (a GPU's L2 is taken as 64 MiB)."""
        cache = 64 << 20 if self.on_gpu else cache_bytes()
        return self.content_bytes + self.output_bytes > 4 * cache

    def empty_caches(self) -> None:
        """Write through more memory than the CPU's last-level cache holds, where the content might be in it."""
        if not self.exceeds_cache:
            _flush_buffer(2 * cache_bytes()).fill(1)

    def close(self) -> None:
        super().close()
        for arena in self.draws:
            arena.close()


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
