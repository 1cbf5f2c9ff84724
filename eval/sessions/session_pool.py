"""Opens sessions for problems, with all that is found out about a problem once; the last one is kept warm.

Comes in: a FunctionalProblem. Goes out: a `ProblemKnowledge`: its session, its admission, its reference's times and
the same problem at other sizes (small for special values, odd for tails). On a GPU's host, which has cores to spare,
these come about side by side.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple, Protocol

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

log = logging.getLogger(__name__)
AHEAD_BYTES = 4 << 30  # of `bytes_of`
COMPILER = "rag_kernels.eval.children.compile_problem:compile_problem"


class Rung(NamedTuple):
    """Sizes for kernels that refuse small ones: all within `reach` are halved as long as they stay at least `least`."""

    reach: Reach
    least: int


class Grown(NamedTuple):
    """One size, by its number, grown several times beyond the problem's own: the others stay, or shrink for room."""

    number: int


class Few(NamedTuple):
    """One size, by its number, at a value that is smaller than any other that is tried: a batch of one.

    The others may be so many times as large, and one more.
    """

    reach: Reach
    number: int
    value: int
    times: int = 1


class Rest(NamedTuple):
    """The least sizes, grown until they leave this rest of so many."""

    rest: int
    of: int
    sizes: Literal["tiny"] = "tiny"  # without which it would be equal to a `Between`


class Between(NamedTuple):
    """So many parts of the problem's own sizes, each of which is divided into so many."""

    times: int
    parts: int


class Square(NamedTuple):
    """Two sizes, by their numbers, that are as large as each other where the problem's differ; others make room."""

    first: int
    second: int
    sizes: Literal["square"] = "square"  # without which it could be equal to a `Between`


class Multiple(NamedTuple):
    """One size that is so many times another one, by their numbers from the last; others make room."""

    larger: int
    smaller: int
    times: int
    sizes: Literal["multiple"] = "multiple"  # without which it could be equal to a `Tiled`


class Tiled(NamedTuple):
    """One size, by its number from the last, which are the module's, that is so many tiles of a length; others make
    room.

    Where these are too many there are fewer, or they are `shorter`.
    """

    number: int
    times: int
    of: int
    shorter: bool = False


class Drawn(NamedTuple):
    """One size, by its number, at about so many times its own, as a whole multiple of so many; others make room."""

    number: int
    times: float
    of: int


class Within(NamedTuple):
    """Sizes of the inputs, or of the batch, alone: for kernels that refuse what the module was not made with."""

    reach: Reach
    sizes: Literal["odd", "large"] | Between | Grown


MOST_GROWN, MOST_FEW = 4, 3
FEWEST = range(2, 16)  # of which one is drawn for each size, beside one
LONE, LONG = range(1, 4), 4  # of few rows that are so many times as long
VECTOR, UNROLLED, TILE = 16, 32, 128  # elements
# What sizes of models leave of a tile: vocabularies of 50257, 32001 and 30522, 577 and 197 patches, 1000 classes.
USUAL_RESTS = (81, 1, 58, 65, 69, 104)
AT_ONCE = 5  # sizes: a candidate that is wrong at one of them needs no further ones
MOST_SQUARES, MOST_TILED = 3, 3  # pairs of sizes, and sizes
UNITS = (32, 64, 128, 256, 512)  # lengths of tiles, of which the least is looked for that a kernel takes
FIRST_TIMES, OTHER_TIMES = 3, (1, 2, *range(4, 17))  # of these: no power of two at first
SOME_TIMES, SOME = range(3, 49), 2  # of the least tiles of UNITS but one, for kernels that take all sizes
# Tiles of hidden layers of models (2560 and 5120, 1536, 3584, 4608, 5632), and how many; then one number of others.
WIDE_TILES, WIDE_TIMES, OTHER_WIDE_TIMES = (512, 1024), 5, (3, 7, 9, 11)
FEED_FORWARD = 4  # times as wide are hidden layers of it, the first that is tried
OTHER_MULTIPLES = (2, 3, 8)
MOST_DRAWN, DRAWN_TIMES = 3, 8.0  # sizes, and by how much they are less or more at most
USUAL = 4096  # of which hidden layers and contexts are multiples
RUNGS = (*(Rung(reach, least) for reach in reversed(REACHES) for least in (64, 128, 256)), Rung("batch", 2))
NARROWER: tuple[Reach, ...] = ("inputs", "batch")
OF_THESE: tuple[Literal["odd", "large"] | Between | Grown, ...] = ("odd", Between(3, 2), "large", Grown(0), Grown(1))
Sizes = (
    Literal["small", "odd", "large", "tiny"]
    | Rung
    | Grown
    | Few
    | Rest
    | Between
    | Square
    | Multiple
    | Tiled
    | Drawn
    | Within
)


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
        """Open a session of its own, to be closed by who asked for it; on a GPU with a worker that is `idle`."""
        resources = Resources(
            workers=self.workers,
            candidate_workers=self.candidate_workers,
            device=self.device,
            limits=limits or self.limits,
            device_lock=device_lock or self.device_lock,
            keep=self.keep,
            idle=idle if self.device.backend == "cuda" else None,
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
            self.workers.spare("rag_kernels.eval.children.reference:serve_cuda", limit_address_space=False, count=2)
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
        return (*small, *self._find(fp, _opened_sizes(thorough=thorough)[1:]))

    def know_sizes(self, fp: FunctionalProblem, found: Sequence[FunctionalProblem | None], *, thorough: bool) -> None:
        """Take what `find_sizes` of another process has found."""
        for sizes, other in zip(_opened_sizes(thorough=thorough), found, strict=True):
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
        admission = None
        if "admission" not in self.limits.without:
            with self.device_lock.away():  # it takes its own
                admission = self.admission(session.fp)
        session.compare_by(admission)
        calibrated = admission is not None and admission.limits(self.limits.precision) is not None
        if self.limits.precision != "strict" and not calibrated:  # fixed limits are those of strict results
            session.compare_by_noise()
        if small is None:
            small = session if takes_special(session.fp) else self._small(session.fp, opened, idle)
        if small is not None and small is not session:
            self._compared(small)

        def at(found: Iterable[FunctionalProblem | None]) -> FoundSizes:
            return FoundSizes(iter(found), lambda fp: self._compared(self.new(fp, idle=idle)))

        further = self._further if thorough else []
        others = dict(zip(further, self._find(session.fp, further), strict=True)) if further else {}
        odd = at([others.get("odd")])
        large = FoundSizes(iter([others.get("large")]), lambda fp: self._compared(self._of_one_draw(fp, idle)))
        larger = at(self._lazily(session.fp, RUNGS))  # when a kernel needs them
        grown = self._lazily(session.fp, tuple(map(Grown, range(MOST_GROWN)))) if thorough else iter(())
        many = FoundSizes(grown, lambda fp: self._gross(fp, idle))
        few = {
            reach: FoundSizes(self._lazily(session.fp, _fewest(session, reach)), lambda fp: self._gross(fp, idle))
            for reach in REACHES
            if thorough
        }
        alike = self._lazily(session.fp, _pairs(session.rng)) if thorough else iter(())
        square = FoundSizes(islice(filter(None, alike), MOST_SQUARES), lambda fp: self._gross(fp, idle))
        times_each = self._lazily(session.fp, _multiples(session.rng)) if thorough else iter(())
        multiples = FoundSizes(times_each, lambda fp: self._gross(fp, idle))
        within = {reach: self._within(session.fp, reach, idle) for reach in NARROWER if thorough}
        times, kept = ReferenceTimes(session), idle if idle is not None else []
        known = ProblemKnowledge(
            session,
            times,
            admission,
            small,
            odd,
            large,
            larger,
            many,
            within=within,
            few=few,
            square=square,
            multiples=multiples,
            idle=kept,
        )
        if not thorough or session.on_gpu:
            return known
        rests = [Rest(rest, TILE) for rest in _rests(session.rng)]
        least = FoundSizes(
            chain(self._lazily(session.fp, ["tiny"]), self._lazily(session.fp, rests)), self._small_or_gross
        )
        parts = FoundSizes(self._lazily(session.fp, (Between(3, 2),)), lambda fp: self._gross(fp, idle))
        tiles = FoundSizes(self._lazily(session.fp, _tiles(session.rng)), lambda fp: self._gross(fp, idle))
        tiled = [[self._of_tiles(session, number, of, idle) for of in UNITS] for number in range(MOST_TILED)]
        drawn = FoundSizes(self._lazily(session.fp, _drawn(session.rng)), lambda fp: self._gross(fp, idle))
        return replace(known, least=least, between=parts, tiles=tiles, tiled=tiled, drawn=drawn)

    def _of_tiles(self, session: ProblemSession, number: int, of: int, idle: list[Worker] | None) -> FoundSizes:
        """Find the problem with one size of several numbers of tiles, when a kernel that refuses others needs them."""
        others = [Tiled(number, times, of) for times in session.rng.sample(OTHER_TIMES, len(OTHER_TIMES))]
        found = (self._lazily(session.fp, some) for some in ([Tiled(number, FIRST_TIMES, of)], others))
        return FoundSizes(chain.from_iterable(found), lambda fp: self._gross(fp, idle))

    @property
    def _further(self) -> list[Sizes]:
        """Return at which sizes a confirmation is opened, whatever its candidate is."""
        without = self.limits.without
        odd: list[Sizes] = [] if without >= {"odd shapes", "sanitizers"} else ["odd"]
        large: list[Sizes] = [] if "odd shapes" in without else ["large"]
        return odd + large

    def _within(self, fp: FunctionalProblem, reach: Reach, idle: list[Worker] | None) -> FoundSizes:
        """Find the problem at other sizes of its inputs, when a kernel needs them."""
        return FoundSizes(
            self._lazily(fp, [Within(reach, sizes) for sizes in OF_THESE]), lambda one: self._gross(one, idle)
        )

    def _gross(self, fp: FunctionalProblem, idle: list[Worker] | None = None) -> ProblemSession:
        """Open a session in which a fault has to exceed what any order of operations does: sums are longer there."""
        session = self._of_one_draw(fp, idle)
        session.compare_by_noise()
        return session

    def _of_one_draw(self, fp: FunctionalProblem, idle: list[Worker] | None) -> ProblemSession:
        """Open a session of one own draw: rows of several kinds are the second content."""
        limits = replace(self.limits, draws=1, without=self.limits.without | {"zero-mean draw"})
        return self.new(fp, limits=limits, idle=idle)

    def _small_or_gross(self, fp: FunctionalProblem) -> ProblemSession:
        """Open a session at the least sizes: all but the first of them have longer rows."""
        first = any(fp is other for (_, sizes), other in self._other_sizes.items() if sizes == "tiny")
        return self._compared(self.new(fp)) if first else self._gross(fp)

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


def _fewest(session: ProblemSession, reach: Reach) -> list[Few]:
    """Return at what few elements each size is tried: one, and on a CPU, where opening a session takes less, more."""
    drawn = [Few(reach, number, session.rng.choice(FEWEST)) for number in range(MOST_FEW) if not session.on_gpu]
    lone = [Few(reach, number, session.rng.choice(LONE), LONG) for number in range(MOST_FEW) if not session.on_gpu]
    return [*(Few(reach, number, 1) for number in range(MOST_FEW)), *lone, *drawn]


def _pairs(rng: random.Random) -> list[Square]:
    """Return which sizes are tried as large as each other, in drawn order."""
    pairs = [Square(*pair) for pair in combinations(range(MOST_GROWN), 2)]
    return rng.sample(pairs, len(pairs))


def _multiples(rng: random.Random) -> list[Multiple]:
    """Return how many times as large as the other one each of the last two sizes is tried."""
    both = rng.sample(((0, 1), (1, 0)), 2)
    return [*(Multiple(*two, FEED_FORWARD) for two in both), Multiple(*both[0], rng.choice(OTHER_MULTIPLES))]


def _tiles(rng: random.Random) -> list[Tiled]:
    """Return of how many tiles each size is tried: of long ones first, as the hidden layers of models have."""
    wide = [(times, rng.choice(WIDE_TILES), True) for times in (WIDE_TIMES, rng.choice(OTHER_WIDE_TIMES))]
    some = [*wide, *((times, UNITS[1], False) for times in rng.sample(SOME_TIMES, SOME))]
    return [Tiled(number, *tiles) for tiles in some for number in range(MOST_TILED)]


def _drawn(rng: random.Random) -> list[Drawn]:
    """Return about how many times its own each size is tried at: multiples of thousands first."""
    usual = [Drawn(number, DRAWN_TIMES ** rng.random(), USUAL) for number in range(MOST_DRAWN)]
    drawn = [Drawn(number, DRAWN_TIMES ** rng.uniform(-1, 1), 1) for number in range(MOST_DRAWN)]
    return [*rng.sample(usual, len(usual)), *rng.sample(drawn, len(drawn))]


def _rests(rng: random.Random) -> list[int]:
    """Return rests of a tile: the usual ones, then one for each rest of two vectors that these do not leave."""
    others = [rest for rest in range(1, UNROLLED) if rest not in {usual % UNROLLED for usual in USUAL_RESTS}]
    drawn = [rest + UNROLLED * rng.randrange(TILE // UNROLLED) for rest in others]
    return [*rng.sample(USUAL_RESTS, len(USUAL_RESTS)), *rng.sample(drawn, len(drawn))]


def _opened_sizes(*, thorough: bool) -> tuple[Sizes, ...]:
    return ("small", "odd", "large", "tiny", *map(Grown, range(MOST_GROWN))) if thorough else ("small",)
