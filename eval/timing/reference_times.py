"""How long one problem's reference takes, on the judge's clock: eager, and the baselines beside it.

Comes in: a Session, whose reference worker makes the calls. Goes out: seconds of a call, or of each of a burst.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rag_kernels.eval.machine.device import cache_bytes, floor_us
from rag_kernels.eval.process.workers import WorkerFailed

if TYPE_CHECKING:
    from rag_kernels.eval.sessions.problem_session import Session

VARIANTS = {
    "eager": "eager",
    "compile": "torch.compile",
    "graph": "a CUDA graph of eager",
    "autotune": 'torch.compile(mode="max-autotune")',
}


class ReferenceTimes:
    """Of one session. `variants` are the baselines beside eager that have been prepared."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.eager_s: list[float] = []
        self.round_trips: list[float] = []  # seconds of requests for no call, beside bursts
        self.compile_note = "torch.compile was not asked for"
        self.variants: list[str] = []

    def call(self, variant: str, *, cold: bool = False, calls: int = 1) -> float:
        """Seconds of one reference call on the current content, on the judge's clock; the mean of several in a row."""
        session = self._session
        if cold and not session.on_gpu:
            self.empty_caches()
        # After it, as for a candidate: it wakes the worker.
        session.ask("ready", cold=cold and session.on_gpu, calls=calls)
        if calls > 1:
            self.round_trips.append(self._asked_s(variant, 0))
        seconds = self._asked_s(variant, calls)
        return (seconds - self.round_trip_s(seconds) if calls > 1 else seconds) / calls

    @contextmanager
    def on_one_core(self) -> Iterator[None]:
        """GPU: the reference sends its work from the candidate's core, since one core may be a fifth faster."""
        if not self._session.on_gpu:
            yield
            return
        self._session.worker.keep_to([self._session.core])
        try:
            yield
        finally:
            self._session.worker.keep_to(os.sched_getaffinity(0))

    def _asked_s(self, variant: str, calls: int) -> float:
        session, start = self._session, time.perf_counter()
        limit_s = max(session.limits.open_s, session.call_limit_s)
        session.ask("call", variant=variant, calls=calls, deadline_s=limit_s)
        return time.perf_counter() - start

    def round_trip_s(self, burst_s: float) -> float:
        """Of a burst's seconds, what asking and answering took: the median of requests for no call at all."""
        return min(statistics.median(self.round_trips), burst_s / 2) if self.round_trips else 0.0

    def empty_caches(self) -> None:
        """CPU: write through more memory than the last-level cache holds, where the content might be in it."""
        if not self.exceeds_cache:
            _flush_buffer(2 * cache_bytes()).fill(1)

    @property
    def exceeds_cache(self) -> bool:
        """Whether arguments and outputs are several times the last-level cache (a GPU's L2 is taken as 64 MiB)."""
        cache = 64 << 20 if self._session.on_gpu else cache_bytes()
        return self._session.content_bytes + self._session.output_bytes > 4 * cache

    def calls_for(self, call_s: float) -> int:
        """How many calls to time together where one takes so long by itself: waiting for a GPU takes some 100 us."""
        session, rule = self._session, self._session.limits.timing
        alone_s = max(call_s - rule.asking_s, floor_us(session.fp.features, session.device) * 1e-6)
        if not session.on_gpu or alone_s > rule.single_s:
            return 1
        room = rule.burst_bytes // (session.content_bytes + session.output_bytes)
        return max(1, min(rule.burst_calls, max(2, math.ceil(rule.burst_s / alone_s)), room))

    def eager_estimate_s(self) -> float:
        """The best of three eager calls, measured once per session."""
        if not self.eager_s:
            with self._session.turns.alone():
                self._session.write(self._session.random_recipe())
                self.eager_s = [self.call("eager") for _ in range(3)]
        return min(self.eager_s)

    def prepare_baselines(self) -> None:
        """Prepare what candidates race beside eager; `compile_note` says why torch.compile is not among it."""
        self.compile_note = self._prepare("compile")
        if self._session.on_gpu:
            self._prepare("graph")
        if self._session.limits.max_autotune and not self.compile_note:
            self._prepare("autotune")

    def prepare_again(self) -> None:
        """In a new reference worker, what had been prepared in the one before."""
        had, self.variants = self.variants, []
        if had:
            self._session.write(self._session.random_recipe())
        for variant in had:
            self._prepare(variant)

    def _prepare(self, variant: str) -> str:
        """Make a variant callable; returns "" or why it is not."""
        request, limit_s = {"do": "prepare", "variant": variant}, self._session.limits.compile_s
        try:
            self._session.worker.request(request, deadline_s=limit_s)
        except WorkerFailed as failure:
            if failure.kind != "raised":
                raise self._session.problem_error(f"broke off under {VARIANTS[variant]}", failure) from failure
            return f"{VARIANTS[variant]} failed: {failure.message}"[:300]
        self.variants.append(variant)
        return ""


@functools.cache
def _flush_buffer(size: int) -> NDArray[np.uint8]:
    return np.zeros(size, np.uint8)
