"""Opens sessions for problems, with all that is found out about a problem once; the last one is kept warm.

Comes in: a FunctionalProblem. Goes out: a `Session` with the problem's admission and the same problem at other sizes
(small for special values, odd for tails). On a GPU's host, which has cores to spare, these come about side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Literal

from rag_kernels.eval.admission_records import Admission
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.ceilings import higher
from rag_kernels.eval.machine.device import keep_device
from rag_kernels.eval.machine.device_lock import Turns
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Device, FunctionalProblem, ProblemError
from rag_kernels.eval.sessions.admission import admission_file, open_admission
from rag_kernels.eval.sessions.problem_session import Session, bytes_of, takes_special

AHEAD_BYTES = 4 << 30  # of `bytes_of`
Sizes = Literal["small", "odd"]
AtOtherSizes = Callable[[FunctionalProblem, Sizes, Workers], FunctionalProblem | None]


@dataclass
class Sessions:
    """What every session of one judge has in common. `workers` are the reference's, `candidate_workers` not."""

    device: Device
    limits: Limits
    workers: Workers
    candidate_workers: Workers
    cache: Path
    turns: Turns
    at_other_sizes: AtOtherSizes | None
    _kept: Session | None = None
    _other_sizes: dict[tuple[str, Sizes], FunctionalProblem | None] = field(default_factory=dict)
    _one_at_a_time: defaultdict[str, Lock] = field(default_factory=lambda: defaultdict(Lock))

    def new(
        self,
        fp: FunctionalProblem,
        *,
        workers: Workers | None = None,
        limits: Limits | None = None,
        turns: Turns | None = None,
    ) -> Session:
        """A session of its own, to be closed by who asked for it."""
        return Session(
            fp,
            workers=workers or self.workers,
            candidate_workers=self.candidate_workers,
            device=self.device,
            limits=limits or self.limits,
            turns=turns or self.turns,
            keep=self.keep,
        )

    def keep(self, device: Device) -> Device:
        """Take the device with the greatest ceilings that were seen of it, and keep it in the cache."""
        self.take(keep_device(higher(device, self.device), self.cache))
        return self.device

    def take(self, device: Device) -> None:
        """Judge by this device's ceilings from now on."""
        self.device = device
        if self._kept is not None:
            self._kept.device = device

    def for_baselines(self, fp: FunctionalProblem, workers: Workers) -> Session:
        """One draw will do: no answer is checked. Not opened beside others: torch.compile times kernels to choose."""
        limits = replace(self.limits, draws=1, without=self.limits.without | {"zero-mean draw"})
        return self.new(fp, workers=workers, limits=limits)

    def open(self, fp: FunctionalProblem) -> Session:
        """The session for this problem, kept from the last candidate if it was for the same one."""
        if self._kept is not None and self._kept.fp.problem.id != fp.problem.id:
            self.close()
        if self._kept is None:
            with ExitStack() as opened:
                made = opened.enter_context(self._open_beside(fp) if self.device.backend == "cuda" else self.new(fp))
                self.complete(made, thorough=self.limits.thorough)
                self._kept = made
                opened.pop_all()
        elif self.device.backend == "cuda":  # for the next problem, whose two sessions find a GPU's context made
            self.workers.spare("rag_kernels.eval.children.reference:serve_cuda", limit_address_space=False, count=2)
        return self._kept

    def _open_beside(self, fp: FunctionalProblem) -> Session:
        """While the session is opened, the problem is examined, and a session for it at small sizes opened too."""
        with ThreadPoolExecutor(max_workers=2) as pool, ExitStack() as opened:
            examined = pool.submit(self._examine, fp)
            small = pool.submit(self._small_beside, fp, opened)
            try:
                session = opened.enter_context(self.new(fp))
            finally:
                with self.turns.away():
                    wait([examined])
                    wait([small])
            session.small = small.result()
            opened.pop_all()  # all went well: nothing is closed again
        return session

    def close(self) -> None:
        """Give up the warm session: the next judgement starts with fresh processes."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def admission(self, fp: FunctionalProblem) -> Admission:
        """What is known of the problem itself: examined once, kept in the cache."""
        file = admission_file(fp, self.device, cache=self.cache)
        with self._one_at_a_time[fp.problem.id]:
            return open_admission(file, fp, self.device, self.workers, units=self.turns.names, locks=self.turns.cache)

    def examine_ahead(self, fp: FunctionalProblem) -> None:
        """What `open` will want to know of the problem; from any thread. What is wrong with it shows again there.

        Large problems wait for their turn: an examination holds several times their memory on the device.
        """
        if bytes_of(fp) <= AHEAD_BYTES:
            with self._one_at_a_time["ahead"], suppress(ProblemError):
                self._examine(fp)
                self._other_size(fp, "small")

    def _examine(self, fp: FunctionalProblem) -> None:
        if "admission" not in self.limits.without:
            self.admission(fp)

    def complete(self, session: Session, *, thorough: bool) -> None:
        """The problem's admission, and the problem at other sizes: small for special values, odd for tails."""
        if session.admission is None and "admission" not in self.limits.without:
            with self.turns.away():  # it takes its own
                session.admission = self.admission(session.fp)
        if takes_special(session.fp):
            session.small = session
        elif session.small is None:
            session.small = self._at(session.fp, "small", self.turns)
        if thorough and session.odd is None:
            session.odd = self._at(session.fp, "odd", self.turns)
        for other in (session.small, session.odd):
            if other is not None and self.limits.precision != "strict":
                other.admission = session.admission  # how far off a lower precision may be is known at the own sizes

    def _at(self, fp: FunctionalProblem, sizes: Sizes, turns: Turns) -> Session | None:
        found = self._other_size(fp, sizes)
        return self.new(found, turns=turns) if found is not None else None

    def _small_beside(self, fp: FunctionalProblem, opened: ExitStack) -> Session | None:
        """The problem at small sizes, opened in a thread with turns of its own; None where its own size will do."""
        if takes_special(fp) or self._other_size(fp, "small") is None:
            return None
        turns = Turns(self.turns.names, self.turns.cache)
        with turns.shared():
            session = self._at(fp, "small", turns)
        if session is not None:
            opened.enter_context(session).turns = self.turns
        return session

    def _other_size(self, fp: FunctionalProblem, sizes: Sizes) -> FunctionalProblem | None:
        key = (fp.problem.id, sizes)
        with self._one_at_a_time[f"{fp.problem.id} {sizes}"]:
            if key not in self._other_sizes:
                find = self.at_other_sizes
                self._other_sizes[key] = find(fp, sizes, self.workers) if find is not None else None
        return self._other_sizes[key]
