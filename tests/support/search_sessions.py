"""Sessions over the in-memory archive and a scripted judge, around a writer of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from factories import candidate, problem

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import FunctionalProblem, Problem, Verdict
from rag_kernels.options import Options
from rag_kernels.records import Brief, Draft, Writer
from rag_kernels.run.session import Session
from rag_kernels.scripted import ScriptedJudge

RELU = problem()


def draft(variant: int, **changes: object) -> Draft:
    return Draft(candidate(RELU, variant=variant), f"idea {variant}", **changes)  # type: ignore[arg-type]


class Rounds:
    """A writer with prepared rounds; it notes the briefs that it got."""

    name = "scripted"

    def __init__(self, *rounds: Sequence[Draft] | Exception) -> None:
        self.rounds = list(rounds)
        self.briefs: list[Brief] = []

    def propose(self, brief: Brief) -> Sequence[Draft]:
        self.briefs.append(brief)
        now = self.rounds[brief.round - 1] if brief.round <= len(self.rounds) else []
        if isinstance(now, Exception):
            raise now
        return now


def session(
    writer: Writer,
    judge: ScriptedJudge | None = None,
    *,
    archive: MemoryArchive | None = None,
    functionalize: Callable[[Problem], FunctionalProblem] = lambda p: replace(RELU, problem=p),
    **options: object,
) -> Session:
    return Session(
        options=Options(**options),  # type: ignore[arg-type]
        archive=archive or MemoryArchive(),
        judge=judge or ScriptedJudge(),
        functionalize=functionalize,
        retrieve=lambda functional, attempts: (),
        index=lambda attempt: None,
        make_writer=lambda ledger: writer,
    )


def run_all(made: Session) -> list[Attempt]:
    return list(made.generate(RELU.problem, made.new_run("generate", RELU.problem)))


def verdicts(*pairs: tuple[int, Verdict]) -> dict[str, Verdict]:
    return {candidate(RELU, variant=v).id: verdict for v, verdict in pairs}
