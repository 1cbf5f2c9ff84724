"""Buffers that a candidate is bound to: where they lie, what stands in outputs before a call, and what is told of them.

Comes in: a problem's session, and where tensors are to lie. Goes out: shared memory for arguments and outputs, and the
form of the arguments as a candidate's worker hears it. Knows nothing of that worker.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

import numpy as np

from rag_kernels.eval.buffers.shared_arena import Arena, anywhere, as_allocated, usual_address
from rag_kernels.eval.messages.to_candidate import Binding, Held, InContent
from rag_kernels.eval.messages.to_reference import Opened
from rag_kernels.eval.records import Candidate, FunctionalProblem, ScalarArgument
from rag_kernels.eval.sessions.problem_session import ProblemSession

POISONS = (0xFF, 0x5A, 0x00)  # quiet NaN in every float format, a large finite number, and what a new page holds
FORMER_SHARE = 0.2  # of calls on a CPU whose outputs held what an earlier call made there, as reused memory does
RUBBISH_SHARE = 0.25  # of calls on a CPU whose outputs held numbers without a pattern before, as reused memory does
RUBBISH_BYTES = 1 << 16
ROOM_BYTES = 1 << 20  # beside tensors: their pages, and those between them


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tensors lie in memory (CPU): as `LoadedCandidate.bind` says."""

    tight: bool = False
    step: int | None = None
    low: bool | None = None
    mapped: bool = False
    same: tuple[int, ...] = ()
    alone: int | None = None

    @property
    def is_within_pages(self) -> bool:
        return self.mapped or self.step is not None


@dataclass
class BoundBuffers:
    """Buffers that the candidate is bound to, for one session's problem."""

    session: ProblemSession
    number: int
    content: Arena
    outputs: Arena | None  # on a GPU they come through the session's shared memory
    held: list[int] = field(default_factory=list)  # draws that the worker has on its GPU, as they were made
    restarts: int = 0  # of the session, when its memory was shared
    poison: int = POISONS[0]
    seen: bytes = b""  # fingerprint of what the last call left, if it was compared and no call came since

    def close(self) -> None:
        if self.outputs is not None:
            self.outputs.close()
        if self.content is not self.session.content:
            self.content.close()


def lay_out(session: ProblemSession, number: int, where: Placement, *, read_only: bool) -> BoundBuffers:
    """Return buffers for a session's problem, of their own where their place matters; `read_only` seals the inputs."""
    content, forms = session.content, (session.specs, session.fp.outputs)
    begins: list[tuple[int, ...]] = [(), ()]
    if where.is_within_pages:
        step, rng = where.step or 0, session.rng
        begins = [as_allocated(s, rng) if where.mapped else anywhere(s, step, rng) for s in forms]
        if where.alone is not None:
            kept = [at * (n == where.alone) for n, at in enumerate(chain.from_iterable(begins))]
            begins = [tuple(kept[: len(session.specs)]), tuple(kept[len(session.specs) :])]
    at = [0, 0]
    if where.low is not None:
        sizes = session.content_bytes, session.output_bytes
        at = [usual_address(size + ROOM_BYTES, session.rng, low=where.low) for size in sizes]
    if where.tight or where.is_within_pages or where.same:
        how = {"tight": where.tight, "readers_only": read_only}
        apart = where.low is False
        content = Arena(session.specs, begins=begins[0], same=where.same, address=at[0], apart=apart, **how)
    if where.is_within_pages:
        content.whole()[:] = POISONS[0]  # around the tensors: what nobody may use, not even times zero
    outputs = None
    if not session.on_gpu:
        outputs = Arena(session.fp.outputs, tight=where.tight, begins=begins[1], address=at[1])
    return BoundBuffers(session, number, content, outputs, restarts=session.restarts)


def poison(outputs: Arena, pattern: int, rng: Random) -> None:
    """Leave in outputs what shows that they were not written: a pattern, what an earlier call made, or rubbish.

    Around them stands the pattern in any case.
    """
    held = rng.random()
    former = [outputs.bytes(i).copy() for i in range(len(outputs.specs))] if held < FORMER_SHARE else []
    outputs.whole()[:] = pattern
    for index, content in enumerate(former):
        outputs.bytes(index)[:] = content
    if FORMER_SHARE <= held < FORMER_SHARE + RUBBISH_SHARE:
        _fill_with_rubbish(outputs)


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
