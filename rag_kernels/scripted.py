"""The scripted stand-ins for the seams: a writer that replays sources, a model that replays replies, and a judge whose
verdicts are given. No network, no compiler, no GPU, no cost: for tests of whatever takes one of them.

    from rag_kernels import MemoryArchive, ScriptedJudge, ScriptedWriter, generate
    writer, judge, archive = ScriptedWriter([source]), ScriptedJudge(), MemoryArchive()
    attempts = list(generate("problem.py", writer=writer, judge=judge, archive=archive))

Comes in: a list, or verdicts by candidate id. Goes out: drafts or replies in the order of the list, or judgements.
`passed`, `judged`, `device` and `environment` make records as a judge would, with numbers that nobody measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_kernels.archive.records import LLMCall
from rag_kernels.eval.judge import More, nothing_more
from rag_kernels.eval.records import (
    Backend,
    Candidate,
    Device,
    Environment,
    FunctionalProblem,
    Judged,
    Measurement,
    Passed,
    Ratio,
    Verdict,
)
from rag_kernels.eval.source_form import source_form
from rag_kernels.llm import reply as llm_reply
from rag_kernels.llm.client import Reply
from rag_kernels.llm.recorded import Recorded
from rag_kernels.llm.request import Message, prompt_text
from rag_kernels.records import Brief, Draft, WriterError


@dataclass(frozen=True, slots=True)
class Scripted:
    """One recorded draft: a bare `source`, or a model's whole `reply` with the code in a fenced block."""

    source: str = ""
    reply: str = ""
    idea: str = ""
    note: str = ""


class ScriptedWriter:
    """Hands out what was recorded, `brief.width` a round, until nothing is left."""

    name = "scripted"

    def __init__(self, script: Iterable[Scripted | str]) -> None:
        self._left = [Scripted(source=s) if isinstance(s, str) else s for s in script]

    def propose(self, brief: Brief) -> list[Draft]:
        """Return the next drafts. A recorded reply without code is passed over, as the LLM writer does."""
        drafts: list[Draft] = []
        while self._left and len(drafts) < brief.width:
            scripted = self._left.pop(0)
            candidate = _candidate(scripted, brief.device.backend)
            if candidate is not None:
                idea = scripted.idea or llm_reply.stated_idea(scripted.reply)
                exemplars = tuple(s.exemplar for s in brief.exemplars)
                drafts.append(Draft(candidate, idea, exemplars=exemplars, note=scripted.note))
        return drafts


class ScriptedLLM:
    """Answers with the call recorded for this very prompt and model, else with the next text for the purpose.

    Purposes are "ideas", "implement", "repair", "improve" and "recombine". Each reply is used once. Requests are
    kept in `prompts`.
    """

    def __init__(self, recorded: Iterable[LLMCall] = (), *, texts: Mapping[str, Sequence[str]] | None = None) -> None:
        self._recorded = Recorded(recorded)
        self._texts = {purpose: list(replies) for purpose, replies in (texts or {}).items()}
        self._lock = threading.Lock()
        self.prompts: list[str] = []

    def complete(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        run_id: str,
        purpose: str,
        temperature: float | None,
        timeout_s: float,
    ) -> Reply:
        with self._lock:
            self.prompts.append(prompt_text(messages, model))
            known = self._recorded.take(model, messages)
            if known is not None:
                return known
            if self._texts.get(purpose):
                return Reply(self._texts[purpose].pop(0), 0, 0, 0.0, 0.0)
        raise WriterError(f"The script holds no further reply for {model} ({purpose}); record more, or ask for less.")


class ScriptedJudge:
    """Everything passes twice as fast, unless `verdicts` or `confirmations` (by candidate id) say otherwise."""

    def __init__(
        self,
        verdicts: dict[str, Verdict] | None = None,
        confirmations: dict[str, Verdict] | None = None,
        *,
        on: Device | None = None,
        before: Callable[[Candidate], None] = lambda candidate: None,
    ) -> None:
        self.device = on or device()
        self.asked: list[str] = []
        self.built: list[str] = []
        self.examined: list[str] = []
        self.confirmed: list[str] = []
        self._verdicts = verdicts or {}
        self._confirmations = confirmations or {}
        self._before = before

    def judge(
        self, problem: FunctionalProblem, candidates: Sequence[Candidate], more: More = nothing_more
    ) -> Iterator[tuple[Candidate, Judged]]:
        for candidate in candidates:
            self._before(candidate)
            self.asked.append(candidate.id)
            yield candidate, self.judged_as(self._verdicts.get(candidate.id, passed(2.0, confirmed=False)))

    def build_ahead(self, candidate: Candidate) -> None:
        self.built.append(candidate.id)

    def examine_ahead(self, problem: FunctionalProblem) -> None:
        self.examined.append(problem.problem.id)

    def confirm(self, problem: FunctionalProblem, candidate: Candidate) -> Judged:
        self.confirmed.append(candidate.id)
        return self.judged_as(self._confirmations.get(candidate.id, passed(2.0, confirmed=True)))

    def judged_as(self, verdict: Verdict) -> Judged:
        """Return a verdict as this judge gives it; a subclass may be of another version or device."""
        return judged(verdict, on=self.device)


def device(backend: Backend = "cpu", **changes: Any) -> Device:
    """Return a device that does not exist."""
    known: dict[str, Any] = (
        {"name": "Test CPU (2 threads)", "arch": "x86-64-v3", "bandwidth_gbs": 20.0, "fp32_gflops": 100.0}
        if backend == "cpu"
        else {"name": "Test GPU", "arch": "sm_90", "bandwidth_gbs": 4000.0, "fp32_gflops": 60000.0}
    )
    return Device(backend=backend, **{**known, **changes})


def environment(**changes: Any) -> Environment:
    """Return what a judge says of the software around it."""
    known: dict[str, Any] = {
        "python": "3.11.9",
        "torch": "2.13.0",
        "compiler": "g++ 12.2",
        "threads": 2,
        "sandbox": ("rlimits", "process group"),
        "judge_version": "1",
    }
    return Environment(**{**known, **changes})


def measurement(speedup: float = 2.0, *, confirmed: bool = True, candidate_us: float = 100.0) -> Measurement:
    """Return times for a speed-up over eager; torch.compile is put at 80 % of eager's time."""
    over_compile = 0.8 * speedup
    return Measurement(
        candidate_us=candidate_us,
        eager_us=candidate_us * speedup,
        compile_us=candidate_us * over_compile,
        speedup_eager=Ratio(speedup, 0.95 * speedup, 1.05 * speedup),
        speedup_compile=Ratio(over_compile, 0.95 * over_compile, 1.05 * over_compile),
        pairs=50,
        floor_us=candidate_us / 2,
        confirmed=confirmed,
    )


def passed(
    speedup: float = 2.0, *, confirmed: bool = True, label: str = "custom kernel", labels: tuple[str, ...] = ()
) -> Passed:
    """Return the verdict on a kernel that is right and this many times as fast as eager."""
    return Passed(
        label=label,
        precision="strict",
        error_ratio=1.25,
        measurement=measurement(speedup, confirmed=confirmed),
        checks=("normal", "zeros", "large"),
        labels=labels,
    )


def judged(verdict: Verdict | None = None, *, on: Device | None = None, env: Environment | None = None) -> Judged:
    """Return a verdict as a judge gives it."""
    return Judged(verdict or passed(), on or device(), env or environment(), {"build": 0.07, "check": 0.2, "time": 0.9})


def _candidate(scripted: Scripted, backend: Backend) -> Candidate | None:
    if scripted.reply:
        return llm_reply.candidate(scripted.reply, backend)
    return Candidate(scripted.source, source_form(scripted.source).tier, backend)
