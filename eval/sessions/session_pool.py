"""Opens sessions for problems, with all that is found out about a problem once; the last one is kept warm.

Comes in: a FunctionalProblem. Goes out: a `ProblemKnowledge`: its session, its admission, its reference's times and
the same problem at other sizes (small for special values, odd for tails). On a GPU's host, which has cores to spare,
these come about side by side.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Protocol

from rag_kernels.eval.admission_records import Admission
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.ceilings import higher
from rag_kernels.eval.machine.device import keep_device, threads
from rag_kernels.eval.machine.device_lock import DeviceLock
from rag_kernels.eval.process.workers import Worker, WorkerFailed, Workers
from rag_kernels.eval.records import Device, FunctionalProblem, ProblemError
from rag_kernels.eval.sessions.admission import admission_file, open_admission
from rag_kernels.eval.sessions.problem_contents import bytes_of, takes_special
from rag_kernels.eval.sessions.problem_knowledge import FoundSizes, ProblemKnowledge
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.sessions.reference_worker import Resources
from rag_kernels.eval.sizes.text_sizes import REACHES, Reach
from rag_kernels.eval.sizes.tried_sizes import (
    FIRST_TIMES,
    MOST_GROWN,
    MOST_SQUARES,
    MOST_TILED,
    NARROWER,
    OF_THESE,
    OTHER_TIMES,
    RUNGS,
    TILE,
    UNITS,
    Between,
    Grown,
    Rest,
    Sizes,
    Tiled,
    Within,
    drawn,
    exactly,
    fewest,
    multiples,
    opened_sizes,
    packed,
    pairs,
    rests,
    tiles,
)

log = logging.getLogger(__name__)
AT_ONCE = 5  # sizes: a candidate that is wrong at one of them needs no further ones
AHEAD_BYTES = 4 << 30  # of `bytes_of`
COMPILER = "rag_kernels.eval.children.reference.compile_problem:compile_problem"


class AtOtherSizes(Protocol):
    """How the same problem at other sizes is found, several at a time: `ingest.functional.sizes`."""

    def __call__(
        self, fp: FunctionalProblem, sizes: Sequence[Sizes], workers: Workers, *, small: FunctionalProblem | None = None
    ) -> list[FunctionalProblem | None]: ...


@dataclass
class Sessions:
    """What every session of one judge has in common. `workers` are the reference's, `candidate_workers` not."""

    device: Device
    limits: Limits
    workers: Workers
    candidate_workers: Workers
    cache: Path
    device_lock: DeviceLock
    at_other_sizes: AtOtherSizes | None
    _kept: ProblemKnowledge | None = None
    _other_sizes: dict[tuple[str, Sizes], FunctionalProblem | None] = field(default_factory=dict)
    _one_at_a_time: defaultdict[str, Lock] = field(default_factory=lambda: defaultdict(Lock))

    def new(
        self,
        fp: FunctionalProblem,
        *,
        limits: Limits | None = None,
        device_lock: DeviceLock | None = None,
        idle: list[Worker] | None = None,
    ) -> ProblemSession:
        """Open a session of its own, to be closed by who asked for it; with a worker that is `idle`, if any."""
        resources = Resources(
            workers=self.workers,
            candidate_workers=self.candidate_workers,
            device=self.device,
            limits=limits or self.limits,
            device_lock=device_lock or self.device_lock,
            keep=self.keep,
            idle=idle,
        )
        return ProblemSession(fp, resources)

    def keep(self, device: Device) -> Device:
        """Take the device with the greatest ceilings that were seen of it, and keep it in the cache."""
        self.take(keep_device(higher(device, self.device), self.cache))
        return self.device

    def take(self, device: Device) -> None:
        """Judge by this device's ceilings from now on."""
        self.device = device
        if self._kept is not None:
            self._kept.session.device = device

    def for_baselines(self, fp: FunctionalProblem) -> ProblemSession:
        """Open a session for baselines: one draw will do, since no answer is checked.

        It is not opened beside others, because torch.compile times kernels to choose among them.
        """
        limits = replace(self.limits, draws=1, without=self.limits.without | {"zero-mean draw"})
        return self.new(fp, limits=limits)

    def open(self, fp: FunctionalProblem) -> ProblemKnowledge:
        """Return what is known of this problem, kept from the last candidate if it was for the same one."""
        if self._kept is not None and self._kept.session.fp.problem.id != fp.problem.id:
            self.close()
        if self._kept is None:
            with ExitStack() as opened:
                if self.device.backend == "cuda":
                    session, small = self._open_beside(fp, opened)
                else:
                    session, small = opened.enter_context(self.new(fp)), None
                self._kept = self._know(session, small, opened, thorough=self.limits.thorough)
                opened.pop_all()  # all went well: nothing is closed again
        elif self.device.backend == "cuda":  # for the next problem, whose two sessions find a GPU's context made
            self.workers.spare(
                "rag_kernels.eval.children.reference.worker:serve_cuda", limit_address_space=False, count=2
            )
        return self._kept

    def open_fresh(self, fp: FunctionalProblem) -> ProblemKnowledge:
        """Open sessions that no candidate has been near, to be closed by who asked for them.

        Others at other sizes follow, one after the other in a worker where they may.
        """
        with ExitStack() as opened:
            session = opened.enter_context(self.new(fp))
            known = self._know(session, None, opened, thorough=True, idle=[])
            opened.pop_all()
        return known

    def _open_beside(self, fp: FunctionalProblem, opened: ExitStack) -> tuple[ProblemSession, ProblemSession | None]:
        """Open the session; meanwhile examine the problem, and open a session for it at small sizes. Return both."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            examined = pool.submit(self._examine, fp)
            small = pool.submit(self._small_beside, fp, opened)
            try:
                session = opened.enter_context(self.new(fp))
            finally:
                with self.device_lock.away():
                    wait([examined])
                    wait([small])
            return session, small.result()

    def close(self) -> None:
        """Give up the warm sessions: the next judgement starts with fresh processes."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def admission(self, fp: FunctionalProblem) -> Admission:
        """Return what is known of the problem itself: examined once, kept in the cache."""
        file = admission_file(fp, self.device, cache=self.cache)
        with self._one_at_a_time[fp.problem.id]:
            return open_admission(
                file, fp, self.device, self.workers, units=self.device_lock.names, locks=self.device_lock.cache
            )

    def examine_ahead(self, fp: FunctionalProblem) -> None:
        """Find out what `open` will want to know of the problem; from any thread.

        What is wrong with it shows again there.

        Large problems wait for their turn: an examination holds several times their memory on the device.
        """
        if bytes_of(fp) <= AHEAD_BYTES:
            with self._one_at_a_time["ahead"], suppress(ProblemError):
                self._examine(fp)
                self._find(fp, ["small"])

    def find_sizes(self, fp: FunctionalProblem, *, thorough: bool) -> tuple[FunctionalProblem | None, ...]:
        """Return the problem at the sizes that a judgement opens, or a confirmation: each takes up to a second."""
        small = self._find(fp, ["small"])
        return (*small, *self._find(fp, opened_sizes(thorough=thorough)[1:]))

    def know_sizes(self, fp: FunctionalProblem, found: Sequence[FunctionalProblem | None], *, thorough: bool) -> None:
        """Take what `find_sizes` of another process has found."""
        for sizes, other in zip(opened_sizes(thorough=thorough), found, strict=True):
            self._other_sizes[fp.problem.id, sizes] = other

    def compile_ahead(self, fp: FunctionalProblem) -> None:
        """Let torch.compile compile the problem into its cache on disk, in a child; from any thread.

        A failure comes again when the baseline is timed.
        """
        payload = {
            "problem": fp,
            "device": self.device.backend,
            "threads": threads(),
            "tf32": self.device.backend == "cuda" and self.limits.precision != "strict",
            "lock": (list(self.device_lock.names), str(self.device_lock.cache)),
        }
        try:
            self.workers.call(COMPILER, payload, deadline_s=self.limits.compile_s)
        except WorkerFailed as failure:
            log.info("%s is not compiled ahead: %s", fp.problem.name, failure.message[:300])

    def _examine(self, fp: FunctionalProblem) -> None:
        if "admission" not in self.limits.without:
            self.admission(fp)

    def _know(
        self,
        session: ProblemSession,
        small: ProblemSession | None,
        opened: ExitStack,
        *,
        thorough: bool,
        idle: list[Worker] | None = None,
    ) -> ProblemKnowledge:
        """Add the problem's admission, and the problem at other sizes; `opened` closes them if one cannot be opened."""
        fp, admission = session.fp, self.compare_as_admitted(session)
        if small is None:
            # On a CPU its worker has more to do when the sanitizers have ended.
            small = session if takes_special(fp) else self._small(fp, opened, idle if session.on_gpu else None)
        if small is not None and small is not session:
            self._compared(small)

        def at(found: Iterable[FunctionalProblem | None]) -> FoundSizes:
            return FoundSizes(iter(found), lambda one: self._compared(self.new(one, idle=idle)))

        further = self._further if thorough else []
        others = dict(zip(further, self._find(fp, further), strict=True)) if further else {}
        known = ProblemKnowledge(
            session,
            ReferenceTimes(session),
            admission,
            small,
            odd=at([others.get("odd")]),
            large=FoundSizes(iter([others.get("large")]), lambda one: self._compared(self._of_one_draw(one, idle))),
            larger=at(self._lazily(fp, RUNGS)),  # when a kernel needs them
            idle=idle if idle is not None else [],
        )
        if not thorough:
            return known
        known = self._with_changed_sizes(known, session, idle)
        return known if session.on_gpu else self._with_tiles(known, session, idle)

    def compare_as_admitted(self, session: ProblemSession) -> Admission | None:
        """Return what is known of the problem itself; outputs are compared by it from now on."""
        admission = None
        if "admission" not in self.limits.without:
            with self.device_lock.away():  # it takes its own
                admission = self.admission(session.fp)
        session.compare_by(admission)
        calibrated = admission is not None and admission.limits(self.limits.precision) is not None
        if self.limits.precision != "strict" and not calibrated:  # fixed limits are those of strict results
            session.compare_by_noise()
        return admission

    def _with_changed_sizes(
        self, known: ProblemKnowledge, session: ProblemSession, idle: list[Worker] | None
    ) -> ProblemKnowledge:
        """Add sizes of a confirmation: one that has grown, has few elements, or hangs together with another."""
        fp, rng = session.fp, session.rng
        alike = filter(None, self._lazily(fp, pairs(rng)))
        few = {reach: fewest(rng, reach, on_gpu=session.on_gpu) for reach in REACHES}
        return replace(
            known,
            grown=self._gross_at(fp, tuple(map(Grown, range(MOST_GROWN))), idle),
            few={reach: self._gross_at(fp, sizes, idle) for reach, sizes in few.items()},
            square=FoundSizes(islice(alike, MOST_SQUARES), partial(self._gross, idle=idle)),
            multiples=self._gross_at(fp, multiples(rng), idle),
            packed=self._gross_at(fp, packed(rng), idle),
            within={reach: self._within(fp, reach, idle) for reach in NARROWER},
        )

    def _with_tiles(
        self, known: ProblemKnowledge, session: ProblemSession, idle: list[Worker] | None
    ) -> ProblemKnowledge:
        """Add the further sizes of a confirmation on a CPU, where opening a session takes less."""
        fp, rng = session.fp, session.rng
        left = self._lazily(fp, [Rest(rest, TILE) for rest in rests(rng)])
        return replace(
            known,
            least=FoundSizes(chain(self._lazily(fp, ["tiny"]), left), partial(self._small_or_gross, idle=idle)),
            between=self._gross_at(fp, (Between(3, 2),), idle),
            tiles=self._gross_at(fp, tiles(rng), idle),
            tiled=[[self._of_tiles(session, number, of, idle) for of in UNITS] for number in range(MOST_TILED)],
            drawn=self._gross_at(fp, drawn(rng), idle),
            at_named=lambda wholes: self._gross_at(fp, exactly(rng, wholes), idle),
        )

    def _gross_at(self, fp: FunctionalProblem, sizes: Sequence[Sizes], idle: list[Worker] | None) -> FoundSizes:
        """Find the problem at these sizes, in turn, when a kernel needs them."""
        return FoundSizes(self._lazily(fp, sizes), partial(self._gross, idle=idle))

    def _of_tiles(self, session: ProblemSession, number: int, of: int, idle: list[Worker] | None) -> FoundSizes:
        """Find the problem with one size of several numbers of tiles, when a kernel that refuses others needs them."""
        others = [Tiled(number, times, of) for times in session.rng.sample(OTHER_TIMES, len(OTHER_TIMES))]
        found = (self._lazily(session.fp, some) for some in ([Tiled(number, FIRST_TIMES, of)], others))
        return FoundSizes(chain.from_iterable(found), partial(self._gross, idle=idle))

    @property
    def _further(self) -> list[Sizes]:
        """Return at which sizes a confirmation is opened, whatever its candidate is."""
        without = self.limits.without
        odd: list[Sizes] = [] if without >= {"odd shapes", "sanitizers"} else ["odd"]
        large: list[Sizes] = [] if "odd shapes" in without else ["large"]
        return odd + large

    def _within(self, fp: FunctionalProblem, reach: Reach, idle: list[Worker] | None) -> FoundSizes:
        """Find the problem at other sizes of its inputs, when a kernel needs them."""
        return self._gross_at(fp, [Within(reach, sizes) for sizes in OF_THESE], idle)

    def _gross(self, fp: FunctionalProblem, idle: list[Worker] | None = None) -> ProblemSession:
        """Open a session in which a fault has to exceed what any order of operations does: sums are longer there."""
        session = self._of_one_draw(fp, idle)
        session.compare_by_noise()
        return session

    def _of_one_draw(self, fp: FunctionalProblem, idle: list[Worker] | None) -> ProblemSession:
        """Open a session of one own draw: rows of several kinds are the second content."""
        limits = replace(self.limits, draws=1, without=self.limits.without | {"zero-mean draw"})
        return self.new(fp, limits=limits, idle=idle)

    def _small_or_gross(self, fp: FunctionalProblem, idle: list[Worker] | None) -> ProblemSession:
        """Open a session at the least sizes: all but the first of them have longer rows."""
        first = any(fp is other for (_, sizes), other in self._other_sizes.items() if sizes == "tiny")
        return self._compared(self.new(fp, idle=idle)) if first else self._gross(fp, idle)

    def _compared(self, session: ProblemSession) -> ProblemSession:
        """Compare at another size by the noise there where a lower precision is allowed."""
        if self.limits.precision != "strict":
            session.compare_by_noise()
        return session

    def _small(self, fp: FunctionalProblem, opened: ExitStack, idle: list[Worker] | None) -> ProblemSession | None:
        """Open a session at small sizes, if there are any."""
        (other,) = self._find(fp, ["small"])
        return opened.enter_context(self.new(other, idle=idle)) if other is not None else None

    def _small_beside(self, fp: FunctionalProblem, opened: ExitStack) -> ProblemSession | None:
        """Return a session at small sizes, opened in a thread with its own lock; None where its own size will do."""
        if takes_special(fp) or (found := self._find(fp, ["small"])[0]) is None:
            return None
        device_lock = DeviceLock(self.device_lock.names, self.device_lock.cache)
        with device_lock.shared():
            session = opened.enter_context(self.new(found, device_lock=device_lock))
        session.device_lock = self.device_lock
        return session

    def _lazily(self, fp: FunctionalProblem, sizes: Sequence[Sizes]) -> Iterator[FunctionalProblem | None]:
        """Yield the problem at one size after the other, which are looked for a few at a time."""
        for start in range(0, len(sizes), AT_ONCE):
            yield from self._find(fp, sizes[start : start + AT_ONCE])

    def _find(self, fp: FunctionalProblem, sizes: Sequence[Sizes]) -> list[FunctionalProblem | None]:
        """Return the problem at these sizes; None where there is none. Each is looked for once."""
        known, rests = self._other_sizes, any(isinstance(one, Rest) for one in sizes)
        with self._one_at_a_time[f"{fp.problem.id} sizes"]:
            others: list[Sizes] = [one for one in sizes if one != "small"]
            wanted: Sequence[Sizes] = sizes if rests else ["small", *others]  # the others follow from it
            missing = [one for one in wanted if (fp.problem.id, one) not in known]
            if missing and self.at_other_sizes is not None:
                small = known.get((fp.problem.id, "tiny" if rests else "small"))
                found = self.at_other_sizes(fp, missing, self.workers, small=small)
                known |= {(fp.problem.id, one): other for one, other in zip(missing, found, strict=True)}
        return [known.get((fp.problem.id, one)) for one in sizes]

    def share_sizes(self, other: Sessions) -> None:
        """Have sizes that one judge finds known to both, which look for them in the same way."""
        self._other_sizes = other._other_sizes
