"""One problem, ready to judge candidates against: its reference worker, draws, oracle answers and baselines.

Comes in: a FunctionalProblem. Goes out: expected outputs for any content, timed reference calls, baselines.
Seeds come from the operating system and stay here. Nothing of a candidate is known in this module.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval import codec
from eval.arena import Arena, tensor_bytes
from eval.content import Recipe, compose, is_structured, plain, random_recipe, rows_of, whole_draw
from eval.device import threads
from eval.limits import Limits
from eval.records import Device, FunctionalProblem, ProblemError, TensorArgument, TensorSpec
from eval.workers import Worker, WorkerFailed, Workers

LARGE_BYTES = 6 << 30  # content beyond this is drawn once only


class Session:
    """Open with a problem, close when done; a context manager. `rng` is seeded from the operating system."""

    def __init__(
        self, fp: FunctionalProblem, *, workers: Workers, candidate_workers: Workers, device: Device, limits: Limits
    ) -> None:
        if fp.uses_random:
            raise ProblemError(
                f"{fp.problem.name} draws random numbers in its forward (dropout in train mode?), so no kernel can be "
                "compared with it; set p=0 or leave the random operator out."
            )
        self.fp, self.device, self.limits = fp, device, limits
        self.workers, self.candidate_workers = workers, candidate_workers
        self.rng = random.SystemRandom()
        self.specs = [a.spec for a in fp.tensors]
        self.content = Arena(self.specs, readers_only=True)
        self.submitted = Arena(fp.outputs, readers_only=True)
        self.content_bytes = sum(tensor_bytes(s) for s in self.specs)
        self.output_bytes = sum(tensor_bytes(s) for s in fp.outputs)
        self.draws: list[Arena] = []
        self.own_draws = 0
        self.answered: set[int] = set()
        self.oracle_kind = "fp64"
        self.eager_s: list[float] = []
        self.compile_note = "torch.compile was not asked for"
        self.worker = self._open_worker()
        self._make_draws()

    @property
    def on_gpu(self) -> bool:
        return self.device.backend == "cuda"

    @property
    def memory_bytes(self) -> int:
        return self.limits.memory_bytes + 4 * (self.content_bytes + 4 * self.output_bytes)

    @property
    def call_limit_s(self) -> float:
        return max(self.limits.call_s, 30 * min(self.eager_s, default=0.0))

    def _open_worker(self) -> Worker:
        memory = None if self.on_gpu else 3 * self.memory_bytes
        worker = self.workers.spawn("eval.reference:serve", memory_bytes=memory, limit_address_space=False)
        message = {
            "problem": codec.encode(self.fp), "device": self.device.backend, "threads": threads(),
            "content": self.content.describe(), "outputs": self.submitted.describe(),
            "seed": self.rng.getrandbits(40),
        }  # fmt: skip
        fds = [self.content.fd, self.submitted.fd]
        try:
            self.reply = worker.request(message, deadline_s=self.limits.open_s, fds=fds)
        except WorkerFailed as failure:
            worker.close()
            raise self._problem_error("could not be set up", failure) from failure
        return worker

    def _problem_error(self, what: str, failure: WorkerFailed) -> ProblemError:
        return ProblemError(f"The problem {self.fp.problem.name} {what}: {failure.message}.")

    def ask(self, do: str, *, deadline_s: float | None = None, fds: tuple[int, ...] = (), **arguments: Any) -> Any:
        """One request to the reference worker; its failure is the problem's fault, not a candidate's."""
        try:
            return self.worker.request({"do": do, **arguments}, deadline_s=deadline_s or self.limits.open_s, fds=fds)
        except WorkerFailed as failure:
            raise self._problem_error(f"failed in `{do}`", failure) from failure

    # Content

    def _make_draws(self) -> None:
        """Own draws first, then one with zero-mean inputs if the module can take it."""
        self.own_draws = self.limits.draws if self.content_bytes < LARGE_BYTES else 1
        for _ in range(self.own_draws):
            self._draw("own")
        self.movable = [self._movable(i, a) for i, a in enumerate(self.fp.tensors)]
        self.normal: int | None = None
        if self.content_bytes < LARGE_BYTES and self._accepts_normal():
            self.normal = len(self.draws) - 1

    def _draw(self, kind: str) -> None:
        arena = Arena(self.specs)
        self.ask("draw", seed=self.rng.getrandbits(40), kind=kind, layout=arena.describe(), fds=(arena.fd,))
        self.draws.append(arena)

    def _movable(self, index: int, argument: TensorArgument) -> bool:
        if argument.role != "input":
            return False
        return not is_structured(_numbers(self.draws[0].bytes(index), argument.spec))

    def _accepts_normal(self) -> bool:
        """Zero-mean inputs are used only where the module stays finite on them (a logarithm would not)."""
        self._draw("normal")
        try:
            return self._answer(len(self.draws) - 1)
        except ProblemError:
            self._restart()
            return False

    def _restart(self) -> None:
        """After a failure on unusual inputs: a new reference worker, and own draws only."""
        self.worker.close()
        for arena in self.draws:
            arena.close()
        self.draws, self.answered = [], set()
        self.worker = self._open_worker()
        for _ in range(self.own_draws):
            self._draw("own")

    def write(self, recipe: Recipe) -> None:
        """CPU: lay out the content of the next call in the memory that both workers read. GPU: tell the worker."""
        if self.on_gpu:
            self.ask("load", recipe=codec.encode(recipe))
            return
        for index, (spec, part) in enumerate(zip(self.specs, recipe, strict=True)):
            draws = [draw.bytes(index) for draw in self.draws]
            compose(self.content.bytes(index), draws, part, rows_of(spec)[0])

    def random_recipe(self) -> Recipe:
        return random_recipe(self.specs, self.movable, self.own_draws, self.rng)

    # Answers

    def _answer(self, draw: int) -> bool:
        """Have the answer for a whole draw computed and remembered; False if it is not finite."""
        self.write(plain(draw, len(self.specs)))
        reply = self.ask("answer", key=draw, deadline_s=max(self.limits.open_s, self.call_limit_s))
        self.answered.add(draw)
        self.oracle_kind = reply["kind"]
        return bool(reply["finite"])

    def require_answer(self, recipe: Recipe) -> None:
        """Compute a whole draw's answer now, so that it is not computed between a call and its check."""
        draw = whole_draw(recipe)
        if draw is not None and draw not in self.answered:
            self._answer(draw)

    def check(self, outputs: Sequence[NDArray[np.uint8]], recipe: Recipe) -> list[dict[str, Any]]:
        """Compare a call's outputs (the judge's copies) with the answer; a row `ok, ratio, where` for each."""
        self.require_answer(recipe)
        draw = whole_draw(recipe)
        if draw is None:
            self.write(recipe)
        for index, raw in enumerate(outputs):
            self.submitted.bytes(index)[:] = raw
        reply = self.ask("check", key=draw, deadline_s=max(self.limits.open_s, self.call_limit_s))
        return list(reply["results"])

    def depends_on_input(self) -> bool:
        """False for a degenerate problem: two draws whose outputs are the same within 1 %."""
        if self.own_draws < 2 or not any(a.role == "input" for a in self.fp.tensors):
            return True
        for draw in (0, 1):
            self.require_answer(plain(draw, len(self.specs)))
        return bool(self.ask("varies", first=0, second=1)["varies"])

    # Reference times

    def timed_call(self, variant: str) -> float:
        """Seconds of one reference call on the current content, on the judge's clock."""
        self.ask("ready")
        limit = max(self.limits.open_s, self.call_limit_s)
        start = time.perf_counter()
        self.ask("call", variant=variant, deadline_s=limit)
        return time.perf_counter() - start

    def eager_estimate_s(self) -> float:
        """The best of three eager calls, measured once per session."""
        if not self.eager_s:
            self.write(self.random_recipe())
            self.eager_s = [self.timed_call("eager") for _ in range(3)]
        return min(self.eager_s)

    def prepare_compile(self) -> None:
        """Compile the module in the reference worker; `compile_note` then is "" or the reason why it cannot be."""
        try:
            self.worker.request({"do": "prepare", "variant": "compile"}, deadline_s=self.limits.compile_s)
            self.compile_note = ""
        except WorkerFailed as failure:
            if failure.kind != "raised":
                raise self._problem_error("broke off under torch.compile", failure) from failure
            self.compile_note = f"torch.compile failed: {failure.message}"[:300]

    def close(self) -> None:
        self.worker.close()
        for arena in [self.content, self.submitted, *self.draws]:
            arena.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()



def _numbers(raw: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """Bytes as numbers, to look at their arrangement (numpy has no bfloat16: its bits serve)."""
    kind = "uint16" if spec.dtype == "bfloat16" else spec.dtype
    return raw.view(np.dtype(kind)).reshape(spec.shape)
