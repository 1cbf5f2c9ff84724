"""A candidate under sanitizers, in a confirmation: at which sizes, by which tools, and what their findings mean.

Comes in: what is known of the problem, a candidate, and its functions as programs. Goes out: labels and notes in the
trial's `Findings`; what a hard tool finds at the problem's sizes ends the trial (`Stopped`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import tee

from rag_kernels.eval.buffers.call_content import whole_draw
from rag_kernels.eval.build.products import Programs
from rag_kernels.eval.instruments.module_sanitizers import builds_its_own, sanitize_module
from rag_kernels.eval.instruments.sanitizers import (
    ANEW,
    CPU_TOOLS,
    GPU_TOOLS,
    SOFT_TOOLS,
    Report,
    call_file,
    sanitize,
    takes,
)
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import FIRST_DEVICE, SPECIALISED, Candidate, Rejected, unchecked
from rag_kernels.eval.sessions.candidate_failure import Stopped
from rag_kernels.eval.sessions.candidate_session import LoadedCandidate
from rag_kernels.eval.sessions.problem_knowledge import ProblemKnowledge
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.trial.checks import Findings
from rag_kernels.eval.trial.other_sizes import OtherSizes
from rag_kernels.eval.trial.recorder import Recorder

SANITIZED_BYTES = 32 << 20  # of arguments: sanitizers are ten times as slow, or more
# Where a kernel takes no smaller sizes, its own are tried up to these, on arguments that repeat their first bytes.
MOST_SANITIZED_BYTES, MOST_SANITIZED_S = 1 << 30, 0.1
UNUSUAL_GPU_BYTES = 8 << 20  # of arguments, for such a call beside the other one on a GPU
UNUSUAL = " on rows of several special kinds"
OF_NUMBERS = re.compile("representable|represented|signed integer overflow")  # as large as that: of them it is a label


class UnderSanitizers:
    """Of one trial. `opened` gives a new worker that has loaded the candidate; `call_s` is what one call takes."""

    def __init__(
        self,
        known: ProblemKnowledge,
        candidate: Candidate,
        found: Findings,
        others: OtherSizes,
        opened: Callable[[], LoadedCandidate],
        *,
        call_s: float,
    ) -> None:
        self.known, self.session = known, known.session
        self.candidate, self.found, self.others = candidate, found, others
        self._open, self.call_s = opened, call_s

    def run(self, checked: Callable[[], tuple[Programs, Workers]], baselines: Callable[[], None]) -> None:
        """Run programs around its functions, at small sizes and at odd ones, or the whole of a module; `baselines` are
        prepared meanwhile.

        What goes wrong at other sizes than the problem's is a label here too.
        """
        native = self.candidate.tier != "module" or builds_its_own(self.candidate)
        ran = self._at(self._sizes_to_run(), *checked(), baselines) if native else ()
        wanted = GPU_TOOLS if self.session.on_gpu else (*CPU_TOOLS, "thread")
        if left_out := [tool for tool in wanted if tool not in ran and native]:
            self.found.label(unchecked(f"sanitizers: {', '.join(left_out)}"))

    def _sizes_to_run(self) -> Iterator[ProblemSession]:
        """Yield the problem at the sizes for sanitizers: what is done with one may be what the next one needs."""
        small, any_other = self.known.small, False
        if self.session.content_bytes <= SANITIZED_BYTES:  # what it does at the timed sizes alone shows nowhere else
            yield self.session
        fails, odd = self.others.fails_somewhere, self.known.odd
        if (first := self.others.smallest if fails else small) is not None and first is not self.session:
            any_other = True
            yield first
            if first is small:
                first.rest()
        if not fails and odd is not None and (session := odd.first()) is not None:
            any_other = True
            yield session
        if not any_other and self.session.content_bytes > SANITIZED_BYTES:
            yield self.session

    def _at(
        self, sessions: Iterator[ProblemSession], programs: Programs, workers: Workers, baselines: Callable[[], None]
    ) -> Sequence[str]:
        """Return the tools that ran at these sizes; what they found is labelled, or ends the trial."""
        if self.candidate.tier == "module":
            ask, keep = tee(sessions)  # in turn: the next session may take over a worker of the one before
            reports = sanitize_module(self.candidate, ask, workers)
            return self._take_reports([(session, self._sizes(session)) for session in keep], reports, [])
        left_out = [] if programs.checked else ["not run under sanitizers: it does not build with them"]
        left_out += [f"not run under ThreadSanitizer: {programs.why_not_raced}"] * bool(programs.why_not_raced)
        recorded = self.candidate.tier == "composed"
        made: list[tuple[ProblemSession, str, bytes]] = []
        with Recorder(self._open) as recorder:
            for session in sessions if programs.checked or programs.raced else ():
                if session is self.session and session.content_bytes > SANITIZED_BYTES and self._is_slow:
                    why = "its sizes are too large for them, and it takes no smaller ones"
                    left_out.append(f"not run under sanitizers: {why}")
                elif takes(session.fp):
                    calls = self._recorded(recorder, session) if recorded else self._call_on(session)
                    made += [(session, self._sizes(session), calls)] * bool(calls)
                    made += [] if recorded else self._on_unusual(session)
        calls_of = [calls for *_, calls in made]
        run = partial(sanitize, programs, workers, calls_of, on_gpu=self.session.on_gpu, recorded=recorded)
        reports = self._meanwhile(run) if self.session.limits.sanitizers_in_turn else self._beside(baselines, run)
        return self._take_reports([(session, where) for session, where, _ in made], reports, left_out)

    def _on_unusual(self, session: ProblemSession) -> list[tuple[ProblemSession, str, bytes]]:
        """Return a call on rows of several kinds, for which some kernels take another path; at odd sizes none, and on a
        GPU at its own sizes alone, where these are not large: at others such a call is all there is.
        """
        takes_long = self.session.on_gpu and session.content_bytes > UNUSUAL_GPU_BYTES
        left_out = self._is_odd(session) or takes_long or (self.session.on_gpu and session is not self.session)
        mixed = None if left_out else session.specials.mixed
        if mixed is None or (draw := whole_draw(mixed)) is None:
            return []
        return [(session, UNUSUAL, call_file(session, SANITIZED_BYTES, draw))]

    def _call_on(self, session: ProblemSession) -> bytes:
        """Return a call on the problem's own content, or on a GPU, where each call takes seconds, at other sizes on
        rows of several kinds.
        """
        mixed = session.specials.mixed if self.session.on_gpu and session is not self.session else None
        return call_file(session, SANITIZED_BYTES, (whole_draw(mixed) or 0) if mixed else 0)

    def _meanwhile(self, run: Callable[[], list[Report]]) -> list[Report]:
        """Run the tools while it is found how the problem is written at sizes that come later."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            running = pool.submit(run)
            self.known.find_ahead(running.done)
            return running.result()

    def _beside(self, baselines: Callable[[], None], run: Callable[[], list[Report]]) -> list[Report]:
        """Run the tools while the baselines are prepared, and others may compute and time."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            running = pool.submit(run)
            baselines()
            with self.session.device_lock.away():
                return running.result()

    @property
    def _is_slow(self) -> bool:
        """Whether a call at the problem's own sizes would not end under sanitizers, or not fit into memory."""
        whole = self.session.content_bytes + self.session.output_bytes
        return whole > MOST_SANITIZED_BYTES or self.call_s > MOST_SANITIZED_S

    def _take_reports(
        self, ran_at: Sequence[tuple[ProblemSession, str]], reports: Sequence[Report], left_out: list[str]
    ) -> list[str]:
        ran: list[str] = []
        for (session, where), report in zip(ran_at, reports, strict=False):
            ran += [tool for tool in report.ran if tool not in ran]
            left_out += [f"not run under every sanitizer: {why}" for why in report.left_out]
            for tool, what in report.found:
                if tool == ANEW:
                    self.found.label(FIRST_DEVICE)
                elif self._is_odd(session):
                    self.found.label(SPECIALISED)
                elif tool not in SOFT_TOOLS and not (where == UNUSUAL and OF_NUMBERS.search(what)):
                    raise Stopped(Rejected("sanitizer", f"The {tool} sanitizer found an error{where}: {what}."))
                else:
                    self.found.label(f"fragile: {tool}")
                self.found.notes.append(f"{tool}{where}: {what}")
        self.found.notes += dict.fromkeys(left_out)
        if ran:
            self.found.checks.append(f"sanitizers: {', '.join(ran)}")
        return ran

    def _sizes(self, session: ProblemSession) -> str:
        return " at odd sizes" if self._is_odd(session) else ""

    def _is_odd(self, session: ProblemSession) -> bool:
        return self.known.odd is not None and self.known.odd.has(session)

    def _recorded(self, recorder: Recorder, session: ProblemSession) -> bytes:
        """Return what a composed forward calls its kernels with; nothing, with a note, where that cannot be had."""
        calls, left_out = recorder.calls(session)
        if not calls:
            self.found.notes.append(f"not run under sanitizers{self._sizes(session)}: {left_out}"[:300])
        return calls
