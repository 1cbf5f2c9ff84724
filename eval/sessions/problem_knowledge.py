"""What is known of a problem once, whatever its candidates: sessions at several sizes, the admission, times.

Comes in: what `session_pool.Sessions` found out. Goes out: one record for the trials of all candidates of a problem.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rag_kernels.eval.admission_records import Admission
from rag_kernels.eval.machine.device import bytes_us
from rag_kernels.eval.process.workers import Worker
from rag_kernels.eval.records import FunctionalProblem, Measurement, ScalarArgument
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.sessions.reference_times import ReferenceTimes
from rag_kernels.eval.sizes.text_sizes import Reach


@dataclass
class Leader:
    """Remembers the best candidate so far: its speed-up over eager, the lower end of the interval; 0 before the first.

    A candidate under suspicion is none: it is no bar for others.
    """

    speedup: float = 0.0

    def note(self, speedup: float) -> None:
        self.speedup = max(self.speedup, speedup)


class FoundSizes:
    """The problem at other sizes, each of which is found and opened when first asked for.

    `found` gives None where there is no such size, and may give one several times. One that rests is opened anew where
    it is asked for again.
    """

    def __init__(
        self, found: Iterator[FunctionalProblem | None], open_session: Callable[[FunctionalProblem], ProblemSession]
    ) -> None:
        self._found, self._open = found, open_session
        self._opened: list[ProblemSession] = []
        self._waiting: deque[FunctionalProblem | None] = deque()  # found, and not asked for yet

    def find_next(self) -> bool:
        """Find the next one without opening it; return False if there is none."""
        for fp in self._found:
            self._waiting.append(fp)
            return True
        return False

    def __iter__(self) -> Iterator[ProblemSession]:
        for at, session in enumerate(self._opened):
            if session.rests:
                self._opened[at] = self._open(session.fp)
                session.close()
            yield self._opened[at]
        while self._waiting or self.find_next():
            fp = self._waiting.popleft()
            if fp is not None and all(fp.problem.id != s.fp.problem.id for s in self._opened):
                self._opened.append(self._open(fp))
                yield self._opened[-1]

    def first(self) -> ProblemSession | None:
        """Return the problem at the first of them; None where there is none."""
        return next(iter(self), None)

    def has(self, session: ProblemSession) -> bool:
        """Return whether it is one of those that were opened here."""
        return any(session is one for one in self._opened)

    def close(self) -> None:
        for session in self._opened:
            session.close()


@dataclass(frozen=True)
class ProblemKnowledge:
    """Holds what trials on one problem share; a context manager that closes its sessions.

    `session` is the problem at its own sizes and `times` its reference's clock; `small` the problem where special
    values are cheap (it may be `session` itself), None where there is no such size; `odd` where no tile divides it,
    `large` beyond its own. `larger` are sizes between `small` and its own, for kernels that refuse those; in `grown`
    one size at a time is several times its own. Thousands of calls at the first of the `least` sizes take a second; the
    others are these with each rest that a vector leaves. `between` are odd multiples of parts of its own; `within`
    other sizes of the inputs, or of the batch, alone, for kernels that refuse others of the module. In `few` one size
    is one, or less than sixteen; in `square` two sizes are alike that differ elsewhere, in `multiples` one is four
    times another, or as many as were drawn; in `packed` two are what one number of both may take for those of the next.
    `tiles` have one size of several numbers of tiles; `tiled` the same by size and by the tile's length, for kernels
    that refuse what no tile divides. In `drawn` one size is any from an eighth to eight times its own, or a multiple of
    thousands. `idle` are reference workers that sessions have done with.
    """

    session: ProblemSession
    times: ReferenceTimes
    admission: Admission | None = None
    small: ProblemSession | None = None
    odd: FoundSizes | None = None
    large: FoundSizes | None = None
    larger: FoundSizes | None = None
    grown: FoundSizes | None = None
    least: FoundSizes | None = None
    between: FoundSizes | None = None
    within: Mapping[Reach, FoundSizes] = field(default_factory=dict)
    few: Mapping[Reach, FoundSizes] = field(default_factory=dict)
    square: FoundSizes | None = None
    multiples: FoundSizes | None = None
    packed: FoundSizes | None = None
    tiles: FoundSizes | None = None
    tiled: Sequence[Sequence[FoundSizes]] = ()
    drawn: FoundSizes | None = None
    at_named: Callable[[Sequence[int]], FoundSizes] | None = None
    named: list[FoundSizes] = field(default_factory=list)
    leader: Leader = field(default_factory=Leader)
    idle: list[Worker] = field(default_factory=list)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels that every candidate of this problem bears."""
        return self.admission.labels if self.admission else ()

    def notes(self, measurement: Measurement) -> list[str]:
        """Return what a reader of a result on this problem should know."""
        fp, notes = self.session.fp, []
        if self.session.oracle_kind != "fp64":
            notes.append("the module does not run in fp64: compared with its own dtype")
        if self.admission and self.admission.degenerate:
            notes.append(f"degenerate problem, no speed claim: {self.admission.degenerate}")
        numbers = [f"{a.name}={a.value}" for a in fp.arguments if isinstance(a, ScalarArgument)]
        if numbers:
            notes.append(f"for {', '.join(numbers)} alone: numbers among the inputs are part of the graph")
        if fp.mutated:
            notes.append(f"updates of {', '.join(fp.mutated)} are not part of the call")
        if bytes_us(fp.features, self.session.device) > 1.05 * measurement.candidate_us:
            notes.append("faster than a copy from main memory: the data stays in the cache")
        if fp.notice:
            notes.append(fp.notice)
        return notes

    def sizes_named(self, wholes: Sequence[int]) -> FoundSizes | tuple[()]:
        """Return the problem at sizes that a candidate names; none where such are not tried."""
        if self.at_named is None:
            return ()
        self.named.append(self.at_named(wholes))
        return self.named[-1]

    def find_ahead(self, until: Callable[[], bool]) -> None:
        """Find the problem at sizes at which a kernel will be tried that refuses none, until something has ended."""
        alike = (self.square, self.multiples, self.packed)
        sizes = (self.least, self.between, *alike, self.tiles, self.drawn, self.few.get("all"), self.grown)
        for some in sizes:
            while some is not None and not until() and some.find_next():
                pass

    def close(self) -> None:
        opened = (self.small, self.session)
        for session in {id(s): s for s in opened if s is not None}.values():
            session.close()
        found = (
            self.odd,
            self.large,
            self.larger,
            self.grown,
            self.least,
            self.between,
            *self.within.values(),
            *self.few.values(),
            self.square,
            self.multiples,
            self.packed,
            self.tiles,
            self.drawn,
            *self.named,
            *(sizes for lengths in self.tiled for sizes in lengths),
        )
        for sizes in found:
            if sizes is not None:
                sizes.close()
        for worker in self.idle:
            worker.close()

    def __enter__(self) -> ProblemKnowledge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
