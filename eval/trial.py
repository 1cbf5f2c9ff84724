"""One candidate against one session: is it right on every call, and how fast is it?

Comes in: a Session, a Candidate with its library. Goes out: `Passed` or the verdict that stopped it. There is no
phase that the candidate could tell from another: every call is the same request with new content, and which
outputs were checked is decided here, in secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval import codec
from eval.arena import Arena
from eval.baseline import Baseline
from eval.content import Recipe, plain
from eval.device import floor_us, threads
from eval.limits import Limits
from eval.records import (
    Candidate,
    Crashed,
    FunctionalProblem,
    MachineError,
    Measurement,
    Passed,
    Ratio,
    Rejected,
    ScalarArgument,
    TimedOut,
    Verdict,
    Wrong,
)
from eval.session import Session
from eval.timing import median_us, pairs_for, product, ratio_of
from eval.workers import Worker, WorkerFailed

POISONS = (0xFF, 0x5A)  # quiet NaN in every float format, and a large finite number
LABELS = {"kernel": "custom kernel", "composed": "fused + library", "module": "module (unclassified)"}


class Stopped(Exception):
    """Ends a trial early with its verdict; never leaves this module."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self.verdict = verdict


@dataclass
class _Times:
    """Paired seconds; `compiled` only in a confirmation run."""

    candidate: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)


class Trial:
    """A candidate's worker and what has been seen of it; a context manager."""

    def __init__(self, session: Session, candidate: Candidate, library: Path | None) -> None:
        self.session, self.candidate, self.library = session, candidate, library
        self.outputs = Arena(session.fp.outputs)
        self.worst_ratio = 0.0
        self.poison = 0
        self.stage_s: dict[str, float] = {}
        self.worker: Worker | None = None

    def run(self, baseline: Baseline | None) -> Verdict:
        """Load, check, time, check again. `baseline` None means that compile is timed live (a confirmation)."""
        try:
            self._stage("load", self._load)
            self._stage("check", self._check_draws)
            times = _Times()
            live_compile = baseline is None and not self.session.compile_note
            self._stage("time", lambda: self._time(times, live_compile=live_compile))
            return self._passed(times, baseline)
        except Stopped as stopped:
            return stopped.verdict

    def _stage(self, name: str, work: Callable[[], None]) -> None:
        start = perf_counter()
        try:
            work()
        finally:
            self.stage_s[name] = perf_counter() - start

    # Talking to the worker: every failure becomes a verdict here.

    def _ask(self, message: dict[str, Any], *, stage: str, deadline_s: float, fds: Sequence[int] = ()) -> Any:
        assert self.worker is not None
        try:
            return self.worker.request(message, deadline_s=deadline_s, fds=fds)
        except WorkerFailed as failure:
            raise Stopped(_failed(failure, stage, deadline_s)) from failure

    def _load(self) -> None:
        session, limits = self.session, self.session.limits
        memory = None if session.on_gpu else session.memory_bytes
        is_module = self.candidate.tier == "module"
        self.worker = session.candidate_workers.spawn(
            "eval.candidate:serve", memory_bytes=memory, limit_address_space=not (session.on_gpu or is_module)
        )
        message = opening(session.fp, self.candidate, session.reply) | {
            "device": session.device.backend, "threads": threads(), "library": str(self.library),
            "content": session.content.describe(), "outputs": self.outputs.describe(),
            "seed": session.rng.getrandbits(40),
        }  # fmt: skip
        deadline_s = limits.module_load_s if is_module else limits.load_s
        session.write(plain(0, len(session.specs)))  # a constructor sees inputs that no call will use
        self._ask(message, stage="load", deadline_s=deadline_s, fds=[session.content.fd, self.outputs.fd])
        if session.on_gpu:
            self._hold_draws()

    def _hold_draws(self) -> None:
        """GPU only: whole draws on the device, put there by our own code: a failure is not the candidate's."""
        assert self.worker is not None
        for draw in self.session.draws:
            request = {"do": "hold", "layout": draw.describe()}
            try:
                self.worker.request(request, deadline_s=self.session.limits.open_s, fds=[draw.fd])
            except WorkerFailed as failure:
                if failure.kind == "memory":
                    raise MachineError(
                        f"The GPU has too little free memory to judge {self.session.fp.problem.name}: "
                        "stop other programs on it, or make the problem smaller."
                    ) from failure
                raise Stopped(_failed(failure, "load", self.session.limits.open_s)) from failure

    def _prepare(self, recipe: Recipe) -> None:
        """Poisoned outputs and nothing left of the call before; the content is laid out by the caller on a CPU."""
        self.poison = POISONS[self.poison == POISONS[0]]
        if not self.session.on_gpu:
            self.outputs.whole()[:] = self.poison
        else:
            request = {"do": "load", "recipe": codec.encode(recipe), "poison": self.poison}
            self._ask(request, stage="call", deadline_s=self.session.limits.open_s)
        self._ask({"do": "ready"}, stage="call", deadline_s=self.session.limits.open_s)

    def _timed_call(self) -> float:
        limit_s = self.session.call_limit_s
        start = perf_counter()
        self._ask({"do": "call"}, stage="call", deadline_s=limit_s)
        return perf_counter() - start

    def _outputs(self) -> list[NDArray[np.uint8]]:
        """The judge's own copy of what the last call wrote, after its form was checked."""
        reply = self._ask({"do": "pull"}, stage="call", deadline_s=self.session.limits.open_s)
        expected = [[list(s.shape), s.dtype, self.session.device.backend] for s in self.session.fp.outputs]
        if reply["form"] != expected:
            raise Stopped(Wrong(
                "The outputs have another form than the problem's.", "own draw", math.inf,
                f"returned {reply['form']}, expected {expected}",
            ))  # fmt: skip
        return [self.outputs.bytes(i).copy() for i in range(len(expected))]

    # Checking

    def _check(self, outputs: Sequence[NDArray[np.uint8]], recipe: Recipe, input_class: str) -> None:
        for number, result in enumerate(self.session.check(outputs, recipe)):
            self.worst_ratio = max(self.worst_ratio, result["ratio"])
            if not result["ok"]:
                where = (f"output {number}: " if len(outputs) > 1 else "") + result["where"]
                raise Stopped(Wrong("The numbers are not the problem's.", input_class, result["ratio"], where))

    def _check_draws(self) -> None:
        """The whole draws (zero-mean ones too) and one fresh mixture, in random order, under both poisons."""
        session = self.session
        recipes = [(plain(k, len(session.specs)), "own draw") for k in range(session.own_draws)]
        if session.normal is not None:
            recipes.append((plain(session.normal, len(session.specs)), "zero-mean draw"))
        recipes.append((session.random_recipe(), "mixed draw"))
        for recipe, input_class in session.rng.sample(recipes, len(recipes)):
            session.require_answer(recipe)
            session.write(recipe)
            before = self._input_hash(recipe)
            self._prepare(recipe)
            self._timed_call()
            self._check(self._outputs(), recipe, input_class)
            if before != self._input_hash(None):
                raise Stopped(Rejected("input_mutated", "The candidate changed its inputs."))

    def _input_hash(self, recipe: Recipe | None) -> str:
        """GPU only: on a CPU the inputs are mapped read-only. With a recipe, the inputs are made first."""
        if not self.session.on_gpu:
            return ""
        if recipe is not None:
            request = {"do": "load", "recipe": codec.encode(recipe), "poison": 0}
            self._ask(request, stage="call", deadline_s=self.session.limits.open_s)
        return str(self._ask({"do": "input_hash"}, stage="call", deadline_s=self.session.limits.open_s)["hash"])

    # Timing

    def _time(self, times: _Times, *, live_compile: bool) -> None:
        session, limits = self.session, self.session.limits
        eager_s = session.eager_estimate_s()
        pairs = self._pairs(eager_s, limits)
        kept: list[tuple[Recipe, list[NDArray[np.uint8]]]] = []
        chosen = set(session.rng.sample(range(pairs), min(limits.rechecked, pairs)))
        seen: dict[bytes, Recipe] = {}
        variants = ["eager", "candidate"] + (["compile"] if live_compile else [])
        for number in range(pairs):
            recipe = session.random_recipe()
            session.write(recipe)
            for variant in session.rng.sample(variants, len(variants)):
                if variant != "candidate":
                    (times.eager if variant == "eager" else times.compiled).append(session.timed_call(variant))
                    continue
                self._prepare(recipe)
                times.candidate.append(self._timed_call())
                repeated = self._repeats(recipe, seen)
                if number in chosen or (repeated and len(kept) < 2 * limits.rechecked):
                    kept.append((recipe, self._outputs()))
        for recipe, outputs in kept:
            self._check(outputs, recipe, "timed call")

    def _pairs(self, eager_s: float, limits: Limits) -> int:
        """The number of pairs follows from the reference's time, but a clearly slow candidate gets few."""
        self.session.write(recipe := self.session.random_recipe())
        self._prepare(recipe)
        first_s = self._timed_call()
        if first_s > limits.slow_factor * eager_s:
            return limits.few_pairs
        return pairs_for(
            2 * eager_s, least=limits.pairs, most=limits.max_pairs, target_s=limits.timed_s, limit_s=limits.max_timed_s
        )

    def _repeats(self, recipe: Recipe, seen: dict[bytes, Recipe]) -> bool:
        """Fingerprint of what a kernel wrote: the same bytes for other content deserve a full check."""
        if self.candidate.tier != "kernel" or self.session.on_gpu:
            return False
        words = self.outputs.whole().view(np.uint64)
        fingerprint = int(words.sum()).to_bytes(8, "little") + words[:: max(1, len(words) // 64)].tobytes()
        known = seen.setdefault(fingerprint, recipe)
        return known != recipe

    def _passed(self, times: _Times, baseline: Baseline | None) -> Passed:
        session = self.session
        against_eager = ratio_of(times.eager, times.candidate)
        against_compile, compile_us, note = _against_compile(times, baseline, against_eager)
        note = note or session.compile_note
        measurement = Measurement(
            candidate_us=median_us(times.candidate), eager_us=median_us(times.eager), compile_us=compile_us,
            speedup_eager=against_eager, speedup_compile=against_compile, pairs=len(times.candidate),
            floor_us=floor_us(session.fp.features, session.device), confirmed=baseline is None, compile_note=note,
        )  # fmt: skip
        rechecked = f"{session.limits.rechecked} timed calls"
        checks = [f"{session.own_draws} own draws", "mixed draw", rechecked, "two poisons"]
        if session.normal is not None:
            checks.insert(1, "zero-mean draw")
        checks.append("inputs hashed" if session.on_gpu else "inputs read-only")
        return Passed(
            label=LABELS[self.candidate.tier], precision="strict", error_ratio=self.worst_ratio,
            measurement=measurement, checks=tuple(checks), notes=tuple(_notes(session, measurement)),
        )  # fmt: skip

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.outputs.close()

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opening(fp: FunctionalProblem, candidate: Candidate, reply: dict[str, Any]) -> dict[str, Any]:
    """What a candidate's worker is told: the form of its arguments, never the problem's source."""
    position = {a.name: i for i, a in enumerate(fp.tensors)}
    arguments = [a.value if isinstance(a, ScalarArgument) else {"content": position[a.name]} for a in fp.arguments]
    message = {
        "tier": candidate.tier, "source": candidate.source, "arguments": arguments,
        "constants": [v for _, v in fp.abi_constants], "keywords": codec.encode(dict(fp.constants)),
    }  # fmt: skip
    if candidate.tier != "module":
        return message
    by_leaf = {a.path: {"content": position[a.name]} for a in fp.tensors if a.role == "input"}
    return message | {
        "leaves": [by_leaf.get(str(i), leaf) for i, leaf in enumerate(reply["leaves"])],
        "init_inputs": reply["init_inputs"],
        "held": [
            {"content": position[a.name], "path": a.path, "role": a.role} for a in fp.tensors if a.role != "input"
        ],
    }  # fmt: skip


def _failed(failure: WorkerFailed, stage: str, deadline_s: float) -> Verdict:
    """How a worker's end reads as a verdict."""
    during = "while it was loaded" if stage == "load" else "during a call"
    if failure.kind == "timed_out":
        return TimedOut(stage, deadline_s, f"The candidate did not finish within {deadline_s:g} s {during}.")
    hint = ""
    if "SIGSEGV" in failure.message or "SIGBUS" in failure.message:
        hint = " (a read or write out of bounds, or a write to a read-only input)"
    if "SIGILL" in failure.message:
        hint = " (an instruction this CPU does not have)"
    subject = "The candidate failed" if failure.kind == "raised" else "The candidate's process ended"
    return Crashed(f"{subject} {during}: {failure.message}{hint}", failure.log)


def _against_compile(
    times: _Times, baseline: Baseline | None, against_eager: Ratio
) -> tuple[Ratio | None, float | None, str]:
    """Speed-up over torch.compile: live pairs in a confirmation, else eager's ratio times the cached one."""
    if baseline is None:
        if not times.compiled:
            return None, None, ""
        return ratio_of(times.compiled, times.candidate), median_us(times.compiled), ""
    if baseline.compile_over_eager is None:
        return None, None, baseline.note
    return product(against_eager, baseline.compile_over_eager), baseline.compile_us, "compile baseline from the cache"


def _notes(session: Session, measurement: Measurement) -> list[str]:
    notes = []
    if session.oracle_kind != "fp64":
        notes.append("the module does not run in fp64: compared with its own dtype")
    if not session.depends_on_input():
        notes.append("degenerate problem: the output hardly depends on the input; no speed claim")
    if session.fp.mutated:
        notes.append(f"updates of {', '.join(session.fp.mutated)} are not part of the call")
    if measurement.floor_fraction > 1.05:
        notes.append("faster than a copy from main memory: the data stays in the cache")
    if session.fp.notice:
        notes.append(session.fp.notice)
    return notes
