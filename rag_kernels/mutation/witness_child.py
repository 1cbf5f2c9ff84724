"""Is a mutant a fault? Run it beside its original, in child processes only, until an input shows a difference.

Comes in: a problem, the built library of an original, those of its mutants. Goes out: for each, on which input it is
wrong by more than rounding, if on any, and which other evaluators' rules refuse it. Each library runs in a process of
its own, forked from this one and locked down there (a GPU's driver writes to its process's own entries in /proc, which
a worker that was locked down could not allow its forks), with its tensors between bands of a known pattern. On a GPU,
whose context takes longer than a mutant, a process goes on with the next library until one breaks it. Knows nothing of
the judge.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rag_kernels.eval.machine.full_memory import ran_out_of_memory
from rag_kernels.eval.process.lockdown import Confinement, lock_down
from rag_kernels.eval.records import FunctionalProblem, TensorArgument
from rag_kernels.mutation.peer_rules import RULES
from rag_kernels.mutation.witness_cases import (
    BAND,
    UNIT,
    Caller,
    Case,
    by_row,
    own_cases,
    searched_cases,
)

FACTOR = {8: 64.0, 4: 64.0, 2: 4.0}  # by bytes an element: so many times the rounding is no rounding
BIASED = 1.8  # in 16 bits: RMS error over the original's, of a thousand elements or more
EVEN = 0.4  # and over this of a unit of rounding, which rounding to nearest makes at least
LIMIT_S = {"cpu": 3.0, "cuda": 5.0}  # for a case; on a GPU that others use an allocation may wait for seconds
CONTEXT_S = 30.0  # for a GPU's context, where others make theirs
ALL_CASES = 8  # times that is what all cases may take: who is slow there is not shown to be wrong
ENDLESS, PATIENCE = "does not end", 5.0  # times as long, the second time
SLOW, FULL = "too slow to search", "no memory to search in"  # neither shows a fault
RACES = 30  # calls with four threads
Say = Callable[[str, Any], Any]
Work = Callable[[Say], None]
BEGIN = ("begun", True)
BEGUN = (json.dumps(BEGIN) + "\n").encode()
PERTURB = -6  # mallopt: memory that was never written is not zero


def witness(payload: dict[str, Any]) -> dict[str, Any]:
    """Look at every library of `payload`: `originals` are lists of the original's path and pairs of path and `racy`."""
    import tvm_ffi  # noqa: F401  (before the forks)

    torch.set_num_threads(1)
    torch.manual_seed(payload["seed"])
    with torch.no_grad():
        own = Caller(payload["problem"], payload["seed"])
        searched = Caller(payload["small"], payload["seed"]) if payload["small"] is not None else own
        cases = [*own_cases(own), *searched_cases(searched, "own" if searched is own else "small")]
        subjects = {"own": own.fp, "small": searched.fp}
        if payload["odd"] is not None:
            odd = Caller(payload["odd"], payload["seed"])
            subjects["odd"] = odd.fp
            cases += searched_cases(odd, "odd")
        kept = [[_shared(t) for t in case.reference] for case in cases]
        confinement = Confinement(**payload["confinement"]) if payload["confinement"] else None
        bench = Bench(subjects, cases, kept, payload["device"], confinement)
        return {"found": [bench.look(original) for original in payload["originals"]], "cases": len(cases)}


@dataclass(slots=True)
class Bench:
    """The cases of a problem, with room for what an original computes on them."""

    subjects: dict[str, FunctionalProblem]
    cases: list[Case]
    kept: list[list[torch.Tensor]]
    device: str
    confinement: Confinement | None

    def look(self, original: dict[str, Any]) -> dict[str, Any]:
        """Run the original on every case, then its mutants."""
        started, least_s = time.perf_counter(), LIMIT_S[self.device]
        (first,) = self._forked([lambda say: self._run_original(original["library"], say)], 10 * least_s)
        limit_s = least_s + 3 * (time.perf_counter() - started) / len(self.cases)
        sound = [bool(first.get(f"right {i}")) for i in range(len(self.cases))]
        mutants = [functools.partial(self._run_mutant, library, sound, racy) for library, racy in original["mutants"]]
        found: list[dict[str, Any]] = []
        while len(found) < len(mutants):
            left = mutants[len(found) :]
            found += map(_outcome, _patiently(self._forked, left if self.device != "cpu" else left[:1], limit_s))
        told = _outcome(first)
        if not any(sound):  # then no mutant of it is shown to be wrong either, and a reader wants to know why
            told["how"] = told["how"] or first.get("error", "right nowhere")
        return {"original": told, "mutants": found}

    def _forked(self, works: Sequence[Work], limit_s: float) -> list[dict[str, Any]]:
        """Fork with what belongs to a device: a fork is locked down by itself, and a GPU's makes its context first."""

        def begin() -> None:
            if self.confinement is not None:
                lock_down(self.confinement, os.getcwd(), may_fork=False)
            if self.device == "cpu":
                ctypes.CDLL(None).mallopt(PERTURB, 165)
            else:
                torch.zeros(1, device=self.device)

        return _forked(works, limit_s, begin=begin, begin_s=CONTEXT_S if self.device != "cpu" else 0.0)

    def _run_original(self, path: str, say: Say) -> None:
        """Keep its outputs, and say where it is right itself: elsewhere it can be no measure of others."""
        library = Library(path, self.subjects, device=self.device)
        for number, (case, places) in enumerate(zip(self.cases, self.kept, strict=True)):
            say("at", (case.kind, case.sizes))
            try:
                outputs, _ = library.call(case)
            except Exception as error:  # it takes its own sizes only, say
                say("error", f"{type(error).__name__}: {error}"[:200])
                continue
            for place, output in zip(places, outputs, strict=True):
                place.copy_(output)
            wrong = next((why for i, o in enumerate(outputs) if (why := _differs(o, o, case, i))), "")
            say(f"right {number}", not wrong)
            _peers(library, case, outputs, say)

    def _run_mutant(self, path: str, sound: list[bool], racy: bool, say: Say) -> None:
        """Say where it differs first, and which evaluators refuse it; search on only until it has differed.

        Where the original is not right itself, a mutant shows nothing.
        """
        library = Library(path, self.subjects, device=self.device, threads=4 if racy else 2)
        is_witnessed = False
        refused: set[str] = set()
        for case, originals, right in zip(self.cases, self.kept, sound, strict=True):
            peers = case.kind.startswith("own")
            asked = len(refused) < len(RULES) if peers else not is_witnessed
            if not right or not asked:
                continue
            say("at", (case.kind, case.sizes))
            outputs, intact = library.call(case)
            if peers:
                refused |= _peers(library, case, outputs, say)
            if is_witnessed:
                continue
            why = _how(outputs, originals, case)
            if why or not intact:
                say("witness", (case.kind, case.sizes, why or "writes beside its outputs"))
                is_witnessed = True
        if not is_witnessed and racy:
            _races(library, self.cases[0], self.kept[0], say)


def _outcome(said: dict[str, Any]) -> dict[str, Any]:
    """Return what a child said, with what its end says: a crash is a difference, and no evaluator accepts it."""
    peers = {name: bool(said.get(f"refused by {name}")) for name in RULES}
    kind, sizes = said.get("at", ("", ""))
    if said["end"] not in ("done", SLOW, FULL):
        for name, rule in RULES.items():
            peers[name] |= kind == "own" or (rule.scaled and kind.startswith("own "))
        if kind:
            return {"witness": kind, "sizes": sizes, "how": said["end"], "peers": peers}
    witness, sizes, how = said.get("witness", ("", "", said["end"] if said["end"] != "done" else ""))
    return {"witness": witness, "sizes": sizes, "how": how, "peers": peers}


def _forked(
    works: Sequence[Work], limit_s: float, *, begin: Callable[[], None] = lambda: None, begin_s: float = 0.0
) -> list[dict[str, Any]]:
    """Run `work(say)` after `work(say)` in a fork until one breaks it; one dictionary for each that was begun.

    It holds what was said, the last word under each name, and how it ended. Each may take `limit_s` from one word to
    the next, and what comes before them all `begin_s` more.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os._exit(
            _worked(works, begin, lambda name, value: os.write(writer, (json.dumps([name, value]) + "\n").encode()))
        )
    os.close(writer)
    text, whole_s, end = b"", ALL_CASES * limit_s, "done"
    last_s = time.monotonic() + whole_s + begin_s
    waiting_s, begun = limit_s + begin_s, 0
    heard = select.poll()  # select() takes no more than 1,024 open files
    heard.register(reader, select.POLLIN)
    while True:
        ready = heard.poll(1000 * max(0.0, min(waiting_s, last_s - time.monotonic())))
        part = os.read(reader, 65536) if ready else b""
        if not part:
            if not ready:
                os.kill(pid, signal.SIGKILL)
                end = ENDLESS if time.monotonic() < last_s else SLOW
            break
        text += part
        waiting_s = limit_s
        if (now := text.count(BEGUN)) > begun:
            begun, last_s = now, time.monotonic() + whole_s
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    parts = text.split(BEGUN)
    said = [
        dict(json.loads(line) for line in p.decode().splitlines(keepends=True) if line.endswith("\n")) for p in parts
    ]
    before, of_each = said[0], said[1:] or [{}]
    if end == "done" and os.WIFSIGNALED(status):
        end = f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    elif end == "done" and status != 0:
        end = str(of_each[-1].get("end", before.get("end", "failed")))
    ends = ["done"] * (len(of_each) - 1) + [end]
    return [words | {"end": how} for words, how in zip(of_each, ends, strict=True)]


def _patiently(
    forked: Callable[[Sequence[Work], float], list[dict[str, Any]]], works: Sequence[Work], limit_s: float
) -> list[dict[str, Any]]:
    """Fork with these; what does not end is tried again for longer: on a machine at work a call may wait for a core."""
    done = forked(works, limit_s)
    if done[-1]["end"] == ENDLESS:
        done[-1:] = forked(works[len(done) - 1 : len(done)], PATIENCE * limit_s)
    return done


def _worked(works: Sequence[Work], begin: Callable[[], None], say: Say) -> int:
    """Do the work in a fork; return its exit code."""
    try:
        begin()
        for work in works:
            say(*BEGIN)
            work(say)
    except BaseException as error:
        say("end", FULL if ran_out_of_memory(error) else f"{type(error).__name__}: {error}"[:200])
        return 1
    return 0


def _shared(like: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor that forks write for this process to read."""
    memory = mmap.mmap(-1, max(1, like.numel() * like.element_size()))
    return torch.frombuffer(memory, dtype=like.dtype, count=like.numel()).reshape(like.shape) if like.numel() else like


class Library:
    """A built kernel, called on cases."""

    def __init__(self, path: str, subjects: dict[str, FunctionalProblem], *, device: str, threads: int = 2) -> None:
        import tvm_ffi

        os.environ["OMP_NUM_THREADS"] = str(threads)
        self._ffi, self._subjects, self._device = tvm_ffi, subjects, device
        self._forward = tvm_ffi.load_module(path).get_function("forward")

    def call(self, case: Case, *, poison: int = 0xFF) -> tuple[list[torch.Tensor], bool]:
        """Return the outputs, and whether what lies around them is as it was."""
        fp = self._subjects[case.sizes]
        places = {a.name: self._placed(t) for a, t in zip(fp.tensors, case.tensors, strict=True)}
        given = [places[a.name] if isinstance(a, TensorArgument) else a.value for a in fp.arguments]
        sizes = [_bytes(t) + 128 * BAND for t in case.reference]
        wholes = [torch.full((size,), 0x5A, dtype=torch.uint8, device=self._device) for size in sizes]
        outputs = []
        for whole, like in zip(wholes, case.reference, strict=True):
            inner = whole[64 * BAND : 64 * BAND + _bytes(like)].fill_(poison)
            outputs.append(inner.view(like.dtype).reshape(like.shape))
        values = [*given, *(value for _, value in fp.abi_constants), *outputs]
        self._forward(*(self._ffi.from_dlpack(v) if isinstance(v, torch.Tensor) else v for v in values))
        if self._device != "cpu":
            torch.cuda.synchronize()
        intact = all(
            bool((whole[: 64 * BAND] == 0x5A).all()) and bool((whole[64 * BAND + _bytes(like) :] == 0x5A).all())
            for whole, like in zip(wholes, case.reference, strict=True)
        )
        return [output.cpu() for output in outputs], intact

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        """Place a tensor between bands, on a CPU only.

        There the judge's own and its sanitizers look at what is beside.
        """
        return value if self._device == "cpu" else value.to(self._device)


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()


def _how(outputs: list[torch.Tensor], originals: list[torch.Tensor], case: Case) -> str:
    pairs = enumerate(zip(outputs, originals, strict=True))
    return next((why for i, (o, c) in pairs if (why := _differs(o, c, case, i))), "")


def _races(library: Library, case: Case, originals: list[torch.Tensor], say: Say) -> None:
    for _ in range(RACES):
        outputs, _ = library.call(case)
        if why := _how(outputs, originals, case):
            say("witness", (case.kind, case.sizes, f"now and then: {why}"))
            return


def _peers(library: Library, case: Case, outputs: list[torch.Tensor], say: Say) -> set[str]:
    """Say which rules refuse these outputs. Memory that a kernel leaves as it was holds zeros there, not NaN."""
    if not case.kind.startswith("own"):
        return set()
    clean, _ = library.call(case, poison=0)
    refused = set()
    for name, rule in RULES.items():
        if rule.scaled == (case.kind != "own"):
            looked_at = [clean, outputs] if rule.twice and not _poisoned(outputs) else [clean]
            if not all(rule.accepts(got, case.reference) for got in looked_at):
                say(f"refused by {name}", True)
                refused.add(name)
    return refused


def _poisoned(outputs: list[torch.Tensor]) -> bool:
    return any(t.is_floating_point() and bool(torch.isnan(t).any()) for t in outputs)


def _differs(got: torch.Tensor, original: torch.Tensor, case: Case, number: int) -> str:
    """Return how an output is wrong by more than rounding, or ""; the original's own error counts as rounding too."""
    reference, oracle = case.reference[number], case.oracle[number]
    if not got.is_floating_point():
        same = (got == original) | ((original != reference) & (original != oracle.to(original.dtype)))
        same |= got == reference
        return "" if bool(same.all()) else f"{float((~same).double().mean()):.2%} of the elements differ"
    special = ~(torch.isfinite(oracle) & torch.isfinite(reference) & torch.isfinite(original))
    agreed = special & ((original == reference) | (torch.isnan(original) & torch.isnan(reference)))
    lost = agreed & ~((got == reference) | (torch.isnan(got) & torch.isnan(reference)))
    if bool(lost.any()):
        return "another value where PyTorch's is not finite"
    finite = ~special
    if bool((finite & ~torch.isfinite(got)).any()):
        return "not finite"
    bound = case.rounding[number]
    assert bound is not None
    keep = by_row(finite)
    exact = by_row(oracle.double())
    error = torch.where(keep, (by_row(got.double()) - exact).abs(), 0.0)
    own = torch.where(keep, (by_row(original.double()) - exact).abs(), 0.0)
    factor = FACTOR[got.element_size()]
    allowed = bound if got is original else torch.maximum(bound, own.amax(1, keepdim=True))
    worst = float((error / allowed).max()) if error.numel() else 0.0
    if worst > factor:
        return f"{worst:.3g} times the rounding there"
    if got.element_size() == 2 and got is not original and error.numel() >= 1000:
        least = EVEN * UNIT[got.dtype] * torch.where(keep, exact, 0.0).norm()
        ratio = float(error.norm() / torch.maximum(own.norm(), least).clamp(min=1e-300))
        if ratio > BIASED:
            return f"an RMS error of {ratio:.3g} times the original's"
    return ""
