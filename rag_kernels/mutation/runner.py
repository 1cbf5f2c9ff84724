"""Run mutants of honest kernels against the judge, problem by problem.

Comes in: originals, a seed, how many mutants of each. Goes out: a `Row` for each original and each mutant, as soon
as it is known. While one problem's mutants are judged the next one's are built and witnessed. The judge is an
ordinary one: a mutant that passes a judgement is confirmed too, as a winner is before it is published.
"""

from __future__ import annotations

import itertools
import logging
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.process.lockdown import Confinement
from rag_kernels.eval.process.sandbox import Sandbox
from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import (
    Backend,
    Candidate,
    FunctionalProblem,
    MachineError,
    Passed,
    Problem,
    ProblemError,
    Verdict,
)
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.ingest.functional.functionalize import functionalize, open_workers
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.mutation.mutants import Mutant, mutants
from rag_kernels.mutation.originals import Original
from rag_kernels.mutation.records import ORIGINAL, UNUSUAL, Row, State
from rag_kernels.mutation.same_code import code_digest
from rag_kernels.zoo.runner import FAST, FAULT, is_bland

log = logging.getLogger(__name__)

CHILD = "rag_kernels.mutation.witness_child:witness"
WITNESS_S = 90.0  # for the cases of a problem; each mutant may take some seconds more
MUTANT_S = 8.0
TOGETHER = 16  # mutants that are built and witnessed before the first of them is judged, or a few more
CALL_S = 2.0  # a mutant that does not end should not hold up the others
RACY = "missing or moved barrier"


@dataclass(slots=True)
class Prepared:
    """A problem with what is to be judged: rows that say so far why nothing is, and mutants with their witness."""

    fp: FunctionalProblem | None
    rows: list[Row] = field(default_factory=list)
    to_judge: list[tuple[Row, Candidate, Candidate]] = field(default_factory=list)  # and its original
    folders: list[Path] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Planned:
    """An original and the mutants of it that are still to be tried."""

    original: Original
    mutants: tuple[Mutant, ...]
    itself: bool  # it has no row yet


def key_of(problem: Problem, source: str) -> str:
    return content_id("mu", problem.source, source)


def plan(
    originals: Iterable[Original],
    *,
    seed: int,
    each: int,
    done: frozenset[str] = frozenset(),
    only: Sequence[str] = (),
    part: tuple[int, int] = (1, 1),
) -> list[list[Planned]]:
    """Draw `each` mutants of every original, by problem, in an order that the seed draws; none that has a row.

    Of problems every N-th from the I-th on, whatever the seed, for `part` (I, N). One with many mutants is several
    groups, one after another.
    """
    by_problem: dict[str, list[Planned]] = {}
    chosen = list(originals)
    number, of = part
    mine = set(sorted({original.problem.source for original in chosen})[number - 1 :: of])
    for original in chosen:
        if original.problem.source not in mine:
            continue
        source, problem = original.candidate.source, original.problem
        drawn = itertools.islice(mutants(source, seed=f"{seed} {original.name}", only=frozenset(only)), each)
        left = tuple(m for m in drawn if key_of(problem, m.source) not in done)
        itself = key_of(problem, source) not in done
        if left or itself:
            by_problem.setdefault(problem.source, []).append(Planned(original, left, itself))
    groups = [by_problem[source] for source in sorted(by_problem)]
    random.Random(seed).shuffle(groups)
    return [together for group in groups for together in _parts(group)]


def open_mutation_judge(backend: Backend, cache: Path | None = None) -> LocalJudge:
    """Open a judge with few pairs; what is confirmed is looked at thoroughly, sanitizers and all."""
    limits = replace(FAST, thorough=False, call_s=CALL_S)
    return open_judge(backend, limits=limits, cache_dir=cache, at_other_sizes=at_other_sizes)


def run(
    judge: LocalJudge,
    groups: Sequence[Sequence[Planned]],
    *,
    seed: int,
    known: Sequence[Row] = (),
    more: Callable[[], bool] = lambda: True,
) -> Iterator[Row]:
    """Try every group's mutants; stop between two when `more` says that it is enough. `known` are rows of before.

    Raises MachineError where candidates can be compiled only.
    """
    if not judge.can_run:
        raise MachineError("There is no GPU here, so no mutant can be shown to be wrong; use --device cpu.")
    judging = Judging(judge, known)
    with ExitStack() as opened:
        gpu = judge.device.backend == "cuda"
        boxed = Sandbox((judge.cache / "builds", Path(__file__).parent), gpu=gpu, own_gpu=judge.workers.own_gpu)
        witness = opened.enter_context(
            Workers(sandbox=replace(boxed, filtered=False))
        )  # its forks lock themselves down
        tracing = opened.enter_context(open_workers())
        ahead = opened.enter_context(ThreadPoolExecutor(max_workers=1))
        preparer = Preparer(judge, witness, tracing, boxed.confinement(), seed)
        waiting = iter(groups)
        first = next(waiting, None)
        coming = ahead.submit(preparer.prepare, first) if first is not None else None
        while coming is not None:
            prepared = coming.result()
            following = next(waiting, None) if more() else None
            coming = ahead.submit(preparer.prepare, following) if following is not None else None
            yield from prepared.rows
            for row, candidate, original in prepared.to_judge:
                if not more():
                    break
                assert prepared.fp is not None
                yield judging.judged(prepared.fp, row, candidate, original)
            for folder in prepared.folders:
                shutil.rmtree(folder, ignore_errors=True)


class Preparer:
    """Build a problem's mutants and look for their witnesses, beside the judge."""

    def __init__(
        self, judge: LocalJudge, witness: Workers, tracing: Workers, confinement: Confinement, seed: int
    ) -> None:
        self._backend, self._cache = judge.device.backend, judge.cache
        self._witness, self._tracing, self._seed = witness, tracing, seed
        self._confinement = asdict(confinement)
        arch = judge.device.arch
        self._tools = toolchain(arch) if self._backend == "cuda" else toolchain()

    def prepare(self, group: Sequence[Planned]) -> Prepared:
        """Return a problem's mutants, ready to be judged; a problem that cannot be used has none."""
        problem = group[0].original.problem
        try:
            fp = functionalize(problem, workers=self._tracing)
            small, odd = at_other_sizes(fp, ("small", "odd"), self._tracing)
        except ProblemError as error:
            log.warning("%s is left out: %s", problem.name, error)
            return Prepared(None)
        prepared = Prepared(fp)
        asked, waiting = self._built(prepared, group)
        self._look(prepared, asked, waiting, {"problem": fp, "small": _other(small, fp), "odd": odd})
        return prepared

    def _built(
        self, prepared: Prepared, group: Sequence[Planned]
    ) -> tuple[list[dict[str, Any]], list[tuple[Planned, list[tuple[Row, Mutant]]]]]:
        """Build originals and mutants; return what to ask of the witness, and whom it is asked for."""
        started = perf_counter()
        texts = [s for p in group for s in (p.original.candidate.source, *(m.source for m in p.mutants))]
        libraries = iter(build([(text, self._backend) for text in texts], tools=self._tools, cache=self._cache))
        build_s = (perf_counter() - started) / len(texts)
        asked: list[dict[str, Any]] = []
        waiting: list[tuple[Planned, list[tuple[Row, Mutant]]]] = []
        for planned in group:
            own = next(libraries)
            results = [(m, next(libraries)) for m in planned.mutants]
            if not isinstance(own, Built):
                log.warning("%s does not build: %s", planned.original.name, own.reason)
                continue
            code = code_digest(own.library)
            kept: list[tuple[Row, Mutant]] = []
            paths: list[tuple[str, bool]] = []
            for mutant, built in results:
                row = _row(planned.original, mutant, build_s)
                if not isinstance(built, Built):
                    prepared.rows.append(replace(row, state="not built"))
                    continue
                prepared.folders.append(built.library.parent)
                if code_digest(built.library) == code:
                    prepared.rows.append(replace(row, state="same code"))
                    continue
                kept.append((row, mutant))
                paths.append((str(built.library), mutant.operator == RACY))
            asked.append({"library": str(own.library), "mutants": paths})
            waiting.append((planned, kept))
        return asked, waiting

    def _look(
        self,
        prepared: Prepared,
        asked: list[dict[str, Any]],
        waiting: Sequence[tuple[Planned, list[tuple[Row, Mutant]]]],
        sizes: dict[str, Any],
    ) -> None:
        """Look for witnesses; mutants that have one are to be judged, and originals that have no row."""
        started, count = perf_counter(), 1 + sum(len(kept) for _, kept in waiting)
        payload = {**sizes, "seed": self._seed, "device": self._backend, "originals": asked}
        payload |= {"confinement": self._confinement}
        try:
            found = self._witness.call(CHILD, payload, deadline_s=WITNESS_S + MUTANT_S * count)["found"]
        except WorkerFailed as failure:
            log.warning("No witnesses for %s: %s", sizes["problem"].problem.name, failure.message)
            return
        seconds = {"witness": (perf_counter() - started) / count}
        for (planned, kept), said in zip(waiting, found, strict=True):
            if planned.itself:
                own = _with(_row(planned.original, None, 0.0), said["original"], {})
                prepared.to_judge.append((own, planned.original.candidate, planned.original.candidate))
            for (row, mutant), outcome in zip(kept, said["mutants"], strict=True):
                row = _with(row, outcome, seconds)
                if row.witness:
                    candidate = replace(planned.original.candidate, source=mutant.source)
                    prepared.to_judge.append((row, candidate, planned.original.candidate))
                else:
                    prepared.rows.append(row)


def _parts(group: Sequence[Planned]) -> Iterator[list[Planned]]:
    """Yield the originals of a problem a few together, so that the judge does not wait long for the first.

    One with many mutants comes several times, with some of them each.
    """
    part: list[Planned] = []
    for planned in group:
        for first in range(0, max(1, len(planned.mutants)), TOGETHER):
            some = planned.mutants[first : first + TOGETHER]
            part.append(replace(planned, mutants=some, itself=planned.itself and first == 0))
            if sum(len(p.mutants) for p in part) >= TOGETHER:
                yield part
                part = []
    if part:
        yield part


def _other(small: FunctionalProblem | None, fp: FunctionalProblem) -> FunctionalProblem | None:
    return None if small is None or small.problem.id == fp.problem.id else small


def _row(original: Original, mutant: Mutant | None, build_s: float) -> Row:
    source = mutant.source if mutant else original.candidate.source
    return Row(
        key=key_of(original.problem, source),
        original=original.name,
        family=original.family,
        stock=original.stock,
        operator=mutant.operator if mutant else ORIGINAL,
        state="no witness",
        change=mutant.change if mutant else "",
        seconds={"build": build_s},
    )


def _with(row: Row, outcome: dict[str, Any], seconds: dict[str, float]) -> Row:
    refused = tuple(sorted(name for name, refused in outcome["peers"].items() if refused))
    return replace(
        row,
        witness=outcome["witness"],
        sizes=outcome["sizes"],
        how=outcome["how"],
        refused_by=refused,
        seconds=row.seconds | seconds,
    )


class Judging:
    """Judge originals and mutants. Labels that an original has as well say nothing against its mutants."""

    def __init__(self, judge: LocalJudge, known: Iterable[Row]) -> None:
        self._judge = judge
        self._labels = {row.original: _labels(row.codes) for row in known if row.operator == ORIGINAL}
        self._confirmed: dict[str, frozenset[str]] = {}

    def judged(self, fp: FunctionalProblem, row: Row, candidate: Candidate, original: Candidate) -> Row:
        """Judge a mutant or an original; a mutant that passes without a label of its own is confirmed too."""
        started = perf_counter()
        verdict = self._verdict(fp, candidate, confirm=False)
        state = _state(verdict, self._labels.get(row.original, frozenset()))
        seconds = row.seconds | {"judge": perf_counter() - started}
        if row.operator == ORIGINAL:
            self._labels[row.original] = _labels(_codes(verdict))
        elif state == "survived" and row.witness not in UNUSUAL:  # which a confirmation does not look at either
            started = perf_counter()
            verdict = self._verdict(fp, candidate, confirm=True)
            state = _state(verdict, frozenset())
            if state in ("killed", "labelled"):  # by what the original has too?
                state = _state(verdict, self._of_original(fp, row.original, original))
                state = "killed when confirmed" if state in ("killed", "labelled") else state
            seconds["confirm"] = perf_counter() - started
        return replace(row, state=state, codes=_codes(verdict), reason=_reason(verdict), seconds=seconds)

    def _of_original(self, fp: FunctionalProblem, name: str, original: Candidate) -> frozenset[str]:
        """Return the labels of the original's own confirmation."""
        if name not in self._confirmed:
            self._confirmed[name] = _labels(_codes(self._verdict(fp, original, confirm=True)))
        return self._confirmed[name] | self._labels.get(name, frozenset())

    def _verdict(self, fp: FunctionalProblem, candidate: Candidate, *, confirm: bool) -> Verdict | str:
        """Return the verdict, or the text of an exception of the judge, whose session is then opened anew."""
        try:
            if confirm:
                return self._judge.confirm(fp, candidate).verdict
            ((_, one),) = self._judge.judge(fp, [candidate])
            return one.verdict
        except MachineError:
            raise
        except Exception as fault:  # that a mutant can bring the judge down is a finding
            self._judge.sessions.close()
            return f"{type(fault).__name__}: {fault}"


def _codes(verdict: Verdict | str) -> tuple[str, ...]:
    return (FAULT,) if isinstance(verdict, str) else tuple(sorted(codes(verdict)))


def _labels(found: Iterable[str]) -> frozenset[str]:
    """Return the codes that are doubts about a result: neither its class nor how it was measured."""
    labels = {code.removeprefix("label:") for code in found if code.startswith("label:")}
    return frozenset(label for label in labels - {"custom kernel"} if not is_bland(label))


def _state(verdict: Verdict | str, of_original: frozenset[str]) -> State:
    if isinstance(verdict, str):
        return "judge fault"
    if not isinstance(verdict, Passed):
        return "killed"
    return "labelled" if _labels(_codes(verdict)) - of_original else "survived"


def _reason(verdict: Verdict | str) -> str:
    if isinstance(verdict, str):
        return verdict[:300]
    if isinstance(verdict, Passed):
        return ", ".join((verdict.label, verdict.precision, *verdict.labels, *verdict.notes))[:300]
    return f"{verdict.reason} {getattr(verdict, 'where', '')}".strip()[:300]
