"""Sampling apart from judging: candidates are written where a model is reachable, and judged where the device is.

Comes in: problems and a `Sampler`, which has no judge and needs no compiler; later, elsewhere, the file that it wrote
and a `Session`. Goes out: a `Sampled` for each problem, a line of the file each, then attempts. A line holds all that
an archive keeps of a run but its verdicts: prompts, replies, exemplars, drafts. Knows nothing of terminals.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rag_kernels.archive.claims import take, written_for
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt, BriefRecord, Claim, Imported, LLMCall, Run
from rag_kernels.budget import Ledger
from rag_kernels.eval import codec
from rag_kernels.eval.judge import Judge
from rag_kernels.eval.records import BaselineTimes, Device, FunctionalProblem, Problem, ProblemError
from rag_kernels.ingest.functional.functionalize import SCALED
from rag_kernels.long_runs.side_by_side import Ended, run_side_by_side
from rag_kernels.options import Options
from rag_kernels.records import Brief, Budget, Draft, Gained, Learnt, Shown, StreamingWriter, Writer
from rag_kernels.run import generate
from rag_kernels.run.briefing import Retrieve, Techniques, no_techniques
from rag_kernels.run.history import new_drafts
from rag_kernels.run.journal import Answer, Journal, Told, read_journal, spent_before
from rag_kernels.run.session import Session, new_run, run_setting

log = logging.getLogger(__name__)

COMMAND = "sample"
IMPORTER = "sample"
BUILDS = 4  # at once
LINE_BEGINS = '{"problem": '  # each line of a batch, and of its verdicts


@dataclass(frozen=True, slots=True)
class Sampled:
    """Hold what was asked and said for one problem. `exemplars` are the kernels that the writer was shown."""

    run: Run
    told: tuple[Told, ...]
    calls: tuple[LLMCall, ...]
    exemplars: tuple[Imported, ...]

    @property
    def problem(self) -> Problem:
        return self.told[0].brief.problem.problem

    @property
    def problem_id(self) -> str:
        """Return the id of the problem that was asked for, which the judged one is a smaller version of at times."""
        return str(run_setting(self.run, "problem_id"))

    @property
    def notice(self) -> str:
        """Return in which way the sizes are not those of the file; empty where they are."""
        told = self.told[0].brief.problem.notice
        return told if told.startswith(SCALED) else ""

    @property
    def drafts(self) -> list[Draft]:
        return [draft for told in self.told for draft in told.drafts or ()]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Hold what a judge elsewhere said of a sampled run, with the run: all that its writer needs to go on."""

    sampled: Sampled
    attempts: tuple[Attempt, ...]


codec.register(Told, Sampled, Imported, Problem, Verdicts)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Hold what writing candidates takes. `device` is the one that they are for, which need not be here."""

    options: Options
    archive: Archive
    device: Device
    functionalize: generate.Functionalize
    retrieve: Retrieve
    make_writer: Callable[[Ledger], Writer]
    techniques: Techniques = no_techniques
    baselines: Mapping[str, BaselineTimes] = field(default_factory=dict)  # measured where it is judged, by problem id

    def sample(self, problem: Problem, count: int, ledger: Ledger, *, batch: str = "") -> Sampled:
        """Write up to `count` candidates; raises WriterError when none came. A killed run keeps what it has."""
        functional = self.functionalize(problem)
        generate.require_verifiable(functional)
        run = self._cut_short(problem, count) or new_run(self.options, COMMAND, problem, samples=count, batch=batch)
        self.archive.start_run(run)
        return self._written(run, functional, count, ledger)

    def go_on(self, verdicts: Verdicts, count: int, ledger: Ledger) -> Sampled:
        """Write up to `count` more candidates of a run by what came of the earlier ones: repair, improve, recombine.

        The attempts are taken into the archive. A run some of whose drafts nobody has judged is returned as it is.
        Raises WriterError when nothing came.
        """
        merge(verdicts.sampled, self.archive)
        for attempt in verdicts.attempts:
            self.archive.record_attempt(attempt)
        run = verdicts.sampled.run
        return self._written(run, verdicts.sampled.told[0].brief.problem, count, ledger)

    def _written(self, run: Run, functional: FunctionalProblem, count: int, ledger: Ledger) -> Sampled:
        """Ask for drafts, unless a brief was left open or unjudged, and return the run with all that it has."""
        journal, status = Journal(self.archive, run.id), "interrupted"
        try:
            left = journal.left()
            if not left:
                left = [journal.number(self._brief(run, functional, journal, count))]
                journal.ask(left[0])
            for told in left:
                if told.drafts is None:
                    writer = self.make_writer(ledger)
                    if isinstance(writer, StreamingWriter):
                        writer.go_on(journal.past())
                    drafts = new_drafts(writer.propose(told.brief), told.brief)
                    gained = writer.gained(told.brief) if isinstance(writer, StreamingWriter) else Gained()
                    journal.answer(told, drafts, gained)
            status = "finished"
        finally:
            self.archive.finish_run(run.id, status)
        return self._sampled(run)

    def _brief(self, run: Run, functional: FunctionalProblem, journal: Journal, count: int) -> Brief:
        attempts, past = tuple(self.archive.attempts(run.id)), journal.past()
        number = 1 + max((told.brief.round for told in journal.told), default=0)
        shown = tuple(self.retrieve(functional, attempts))
        learnt = told_where(past.gained.learnt, journal.told, self.device)
        told_before = journal.told[0].brief.baselines if journal.told else None
        return Brief(
            run.id,
            functional,
            self.device,
            shown,
            attempts,
            self.options.hint,
            number,
            count,
            asked=journal.asked,
            learnt=learnt,
            baselines=self.baselines.get(str(run_setting(run, "problem_id"))) or told_before,
            cards=tuple(self.techniques(functional, attempts)),
            precision=self.options.precision,
        )

    def _cut_short(self, problem: Problem, count: int) -> Run | None:
        for run in self.archive.runs(limit=1000):
            asked = (run_setting(run, "problem_id"), run_setting(run, "samples"))
            if run.command == COMMAND and run.status != "finished" and asked == (problem.id, count):
                return run
        return None

    def _sampled(self, run: Run) -> Sampled:
        told = tuple(read_journal(self.archive, run.id))
        shown = {s.kernel.id: s for one in told for s in one.brief.exemplars}
        exemplars = tuple(carried(self.archive, s) for s in shown.values())
        return Sampled(run, told, tuple(self.archive.calls(run.id)), exemplars)


def told_where(learnt: Learnt, told: Sequence[Told], device: Device) -> Learnt:
    """Return what was learnt, with the device that its times are of where that is another one."""
    heard = next((one.brief.device for one in reversed(told) if one.gained.learnt.lessons), device)
    return learnt if heard.name == device.name else replace(learnt, lessons=f"(on {heard.name}) {learnt.lessons}")


def carried(archive: Archive, shown: Shown) -> Imported:
    """Return an exemplar as another archive may take it in: a claim, until it is judged there."""
    kernel = shown.kernel
    claim = Claim(
        importer=IMPORTER,
        origin=kernel.id,
        licence=kernel.licence,
        attribution=kernel.attribution,
        correct=True,
        device_name=kernel.device_name,
        candidate_us=kernel.candidate_us,
        eager_us=kernel.eager_us,
        compile_us=kernel.compile_us,
        speedup_eager=kernel.speedup_eager,
        speedup_compile=kernel.speedup_compile,
        notes=("It was shown to a writer elsewhere.",),
    )
    candidate = kernel.candidate
    return Imported(written_for(archive, kernel.id), candidate, claim, kernel.idea, kernel.model)


def write_line(path: Path, sampled: Sampled) -> None:
    """Append a line so that a reader sees it whole or not at all."""
    head = {"problem": sampled.problem.name, "candidates": len(sampled.drafts)}
    with path.open("a") as file:
        file.write(json.dumps({**head, "sampled": codec.encode(sampled)}) + "\n")


def read_lines(path: Path) -> list[Sampled]:
    """Return what `write_line` wrote, without a last line that a kill cut short.

    Raises ProblemError when the file cannot be read, or a line is not one of `rag-kernels sample`.
    """
    return _decoded(path, "sampled", "sample")


def _decoded(path: Path, key: str, command: str) -> list[Any]:
    try:
        *lines, rest = path.read_text().split("\n")  # behind the last newline is nothing, or what a kill left of a line
    except OSError as error:
        raise ProblemError(f"The batch {path} cannot be read ({error.strerror}); check the path.") from None
    except UnicodeDecodeError:
        raise ProblemError(_foreign_line(1, path, command)) from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(codec.decode(json.loads(line)[key]))
        except (ValueError, KeyError, TypeError):
            raise ProblemError(_foreign_line(number, path, command)) from None
    if not (rest.startswith(LINE_BEGINS) or LINE_BEGINS.startswith(rest)):
        raise ProblemError(_foreign_line(len(lines) + 1, path, command))
    return found


def _foreign_line(number: int, path: Path, command: str) -> str:
    return f"Line {number} of {path} is not what `rag-kernels {command}` of this version writes."


def write_verdicts(path: Path, sampled: Sampled, attempts: Sequence[Attempt]) -> None:
    """Append what came of a sampled run, for `sample --after`."""
    line = {"problem": sampled.problem.name, "verdicts": codec.encode(Verdicts(sampled, tuple(attempts)))}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_verdicts(path: Path) -> list[Verdicts]:
    """Return what `write_verdicts` wrote; raises ProblemError as `read_lines` does."""
    return _decoded(path, "verdicts", "eval --batch --verdicts")


def read_baselines(path: Path) -> dict[str, BaselineTimes]:
    """Return times by the problem's id, from the rows of `check --baselines --json`.

    Raises ProblemError when the file cannot be read, or holds no such rows.
    """
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        timed = [row for row in rows if row.get("eager_us")]  # not what could not be used
        return {row["problem_id"]: BaselineTimes(row["eager_us"], row["compile_us"]) for row in timed}
    except OSError as error:
        raise ProblemError(f"The times {path} cannot be read ({error.strerror}); check the path.") from None
    except (ValueError, KeyError, TypeError):
        raise ProblemError(f"{path} is not what `rag-kernels check --baselines --json` writes.") from None


def mend(path: Path) -> list[Sampled]:
    """Return the lines of a file that is to be resumed, and cut off what a kill left of a last one."""
    if not path.is_file():
        return []
    found, text = read_lines(path), path.read_text()
    path.write_text(text[: text.rfind("\n") + 1])
    return found


def batch_id(found: Sequence[Sampled]) -> str:
    """Return the id that all runs of a file share, so that they can be reported together."""
    return str(run_setting(found[0].run, "batch")) if found else f"b_{secrets.token_hex(6)}"


class SilentWriter:
    """Stand in for the writer of a run that has no drafts left."""

    def __init__(self, name: str) -> None:
        self.name = name

    def propose(self, brief: Brief) -> list[Draft]:
        return []


def merge(sampled: Sampled, archive: Archive) -> None:
    """Store a run with its prompts, replies, drafts and exemplars; what is there stays as it is."""
    take(archive, [e for e in sampled.exemplars if e.candidate and archive.kernel(e.candidate.id) is None])
    archive.start_run(sampled.run)
    for call in sampled.calls:
        archive.record_call(call)
    for told in sampled.told:
        text = codec.dumps(replace(told.brief, attempts=()))
        archive.record_brief(BriefRecord(sampled.run.id, told.number, text, len(told.brief.attempts)))
        archive.record_drafts(sampled.run.id, told.number, codec.dumps(Answer(told.drafts or (), told.gained)))


def judge_sampled(sampled: Sampled, session: Session, *, confirm: bool = True) -> Iterator[Attempt]:
    """Merge a run and judge its drafts, at the sizes that their prompts named; what was judged before is not judged
    again. Raises ProblemError where these sizes cannot be judged here.
    """
    archive = session.archive
    merge(sampled, archive)
    spent = spent_before(archive, sampled.run.id)
    said_all = Ledger(Budget(rounds=spent.rounds), spent=spent)
    parts = generate.Parts(
        functionalize=lambda _: session.promised(sampled.told[0].brief.problem),
        retrieve=lambda fp, attempts: [],  # nobody writes here
        judge=session.judge,
        archive=archive,
        index=session.index,
    )
    return generate.generate(
        sampled.problem,
        parts,
        run=sampled.run,
        writer=SilentWriter("llm" if run_setting(sampled.run, "models") else "offline"),
        ledger=said_all,
        width=sum(told.brief.width for told in sampled.told),
        confirm=confirm,
    )


@contextmanager
def built_ahead(sampled: Sequence[Sampled], judge: Judge) -> Iterator[None]:
    """Examine later problems and build their drafts meanwhile, a few at a time, where that disturbs no measurement."""
    with ThreadPoolExecutor(BUILDS, "building") as pool:
        for one in sampled[1:]:
            for told in one.told[:1]:
                pool.submit(judge.examine_ahead, told.brief.problem)
            for candidate in (d.candidate for told in one.told for d in told.drafts or ()):
                pool.submit(judge.build_ahead, candidate)
        try:
            yield
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def judge_side_by_side(sampled: Sequence[Sampled], session: Session, *, confirm: bool = True) -> Iterator[Attempt]:
    """Judge several sampled runs, as many at once as the session has judges."""
    waiting = list(sampled)

    def begin() -> tuple[str, Generator[Attempt, None, None]] | None:
        if not waiting:
            return None
        one = waiting.pop(0)
        return one.run.id, judge_what_fits(one, session, confirm=confirm)

    for event in run_side_by_side(begin, lambda: session.at_once):
        if not isinstance(event, Ended):
            yield event


def judge_what_fits(sampled: Sampled, session: Session, *, confirm: bool = True) -> Generator[Attempt, None, None]:
    """Judge a sampled run, and say at which sizes where they are not the file's; one that cannot be judged here is
    passed over with a warning.
    """
    if sampled.notice:
        log.warning("%s was %s; it is judged at these sizes.", sampled.problem.name, sampled.notice)
    try:
        yield from judge_sampled(sampled, session, confirm=confirm)
    except ProblemError as error:
        session.archive.finish_run(sampled.run.id, "interrupted")
        log.warning("%s", error)
