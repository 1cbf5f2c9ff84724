"""A session: writer, judge, archive and retrieval put together once, and runs made with them.

Comes in: `Options`. Goes out: a `Session` whose `generate` yields attempts. `open_session` of
`rag_kernels.wiring` makes one, around a writer, a judge or an archive of the caller's own where one is handed in; the
rest of the house sees only the protocols.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt, Run
from rag_kernels.budget import Ledger
from rag_kernels.eval.records import Candidate, FunctionalProblem, Problem, ProblemError
from rag_kernels.options import Options
from rag_kernels.records import Draft, Writer
from rag_kernels.run import generate
from rag_kernels.run.briefing import Retrieve, Techniques, Wishes, no_techniques
from rag_kernels.run.history import History
from rag_kernels.run.journal import read_journal, spent_before
from rag_kernels.run.standings import as_attempt, now

if TYPE_CHECKING:
    from rag_kernels.eval.judge import Judge


@dataclass(frozen=True, slots=True)
class Session:
    """Hold what every run of one command shares."""

    options: Options
    archive: Archive
    judge: Judge
    functionalize: generate.Functionalize
    retrieve: Retrieve
    index: generate.Index
    make_writer: Callable[[Ledger], Writer]
    functionalize_as: Callable[[FunctionalProblem], FunctionalProblem] | None = None  # at the sizes of an earlier one
    techniques: Techniques = no_techniques
    at_once: int = 1  # problems that are worked on side by side, so that no judge of several is idle

    def new_run(self, command: str, problem: Problem, **settings: Any) -> Run:
        """Return the record of a new run of a problem; `settings` are kept beside the options."""
        return new_run(self.options, command, problem, **settings)

    def promised(self, told: FunctionalProblem) -> FunctionalProblem:
        """Return a problem's functional form at the sizes that a writer was told; raises ProblemError where these
        cannot be judged here.
        """
        return self.functionalize_as(told) if self.functionalize_as else self.functionalize(told.problem)

    def old_run(self, name: str, problem: Problem) -> Run:
        """Return the run to resume, see `run_of`."""
        return run_of(self.archive, problem, name)

    def ledger(self, run: Run) -> Ledger:
        """Return what a run may spend, less what it has spent."""
        return Ledger(self.options.budget, spent=spent_before(self.archive, run.id))

    def generate(
        self,
        problem: Problem,
        run: Run,
        *,
        ledger: Ledger | None = None,
        also: Sequence[str] = (),
        confirm: bool = True,
    ) -> Generator[Attempt, None, str]:
        """Search for kernels; yield each attempt as it is judged, and return why it ended.

        A run that the archive knows is resumed, at the sizes that it began with. `also` names sizes at which the best
        will be judged besides; the writer is told.
        """
        options, told = self.options, read_journal(self.archive, run.id)
        ledger = ledger or self.ledger(run)
        parts = generate.Parts(
            functionalize=(lambda _: self.promised(told[0].brief.problem)) if told else self.functionalize,
            retrieve=self.retrieve,
            judge=self.judge,
            archive=self.archive,
            index=self.index,
            techniques=self.techniques,
        )
        return generate.generate(
            problem,
            parts,
            run=run,
            writer=self.make_writer(ledger),
            ledger=ledger,
            width=options.width,
            wishes=Wishes(options.hint, options.precision, tuple(also)),
            confirm=confirm,
        )

    def evaluate(self, problem: Problem, candidate: Candidate, *, confirm: bool) -> Iterator[Attempt]:
        """Judge a candidate from outside, archive and yield each attempt. Raises ProblemError for a random forward."""
        functional = self.functionalize(problem)
        generate.require_verifiable(functional)
        run = self.new_run("eval", problem)
        self.archive.start_run(run)
        history = History()
        status = "interrupted"
        try:
            for _, judged in self.judge.judge(functional, [candidate]):
                draft = Draft(candidate, idea="", note="judged as it was given")
                attempt = as_attempt(history, run, functional, draft, judged, "import", 1)
                self.archive.record_attempt(attempt)
                self.index(attempt)
                history.add(attempt)
                yield attempt
            if confirm:
                yield from generate.confirm_best(history, run, functional, self.judge, self.archive)
            status = "finished"
        finally:
            self.archive.finish_run(run.id, status)


def new_run(options: Options, command: str, problem: Problem, **settings: Any) -> Run:
    """Return the record of a new run of a problem with a fresh id."""
    known = asdict(options) | {"problem_id": problem.id} | settings
    return Run(
        id=f"r_{secrets.token_hex(6)}",
        command=command,
        problem_name=problem.name,
        settings=json.dumps(known, sort_keys=True),
        started_at=now(),
    )


def run_setting(run: Run, name: str) -> Any:
    """Return one of the settings that a run was started with; None when it has no such setting."""
    return json.loads(run.settings).get(name)


def run_of(archive: Archive, problem: Problem, name: str) -> Run:
    """Return the run of a problem with this id, or its newest one for `latest`; raises ProblemError without one."""
    runs = [run for run in archive.runs(limit=100_000) if run_setting(run, "problem_id") == problem.id]
    for run in runs:
        if run.id == name or (name == "latest" and run.command == "generate"):
            return run
    raise ProblemError(f"The archive has no run {name!r} of {problem.name} to resume: leave it out to start a new one.")
