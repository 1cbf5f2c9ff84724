"""A run in a process of its own, to be killed and started again.

    python killed_run.py FOLDER SECONDS PLACES ROUNDS [careless]

The archive in the folder, the LLM writer and the loop are the real ones; the model is `prompted_model.py`, and the
judge decides by the candidate's id. With several places and rounds, what a prompt tells depends on which verdicts are
there by then, so that no two runs ask the same. With one place, or one round, they do.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from factories import passed, problem, wrong

from rag_kernels.archive.store import open_archive
from rag_kernels.eval.judge import More, nothing_more
from rag_kernels.eval.records import Candidate, FunctionalProblem, Judged
from rag_kernels.options import Options
from rag_kernels.run.journal import read_journal
from rag_kernels.run.session import Session
from rag_kernels.scripted import ScriptedJudge
from rag_kernels.wiring import open_writer

HERE = Path(__file__).parent
RELU = problem()
REPLIES = "replies.txt"


class DecidingJudge(ScriptedJudge):
    """A third is wrong, and the others have a speed of their own; each takes a moment."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def judge(
        self, problem: FunctionalProblem, candidates: Sequence[Candidate], more: More = nothing_more
    ) -> Iterator[tuple[Candidate, Judged]]:
        for candidate in candidates:
            time.sleep(self._seconds)
            number = int(candidate.id[2:10], 16)
            verdict = passed(1.0 + number % 97 / 50, confirmed=False) if number % 3 else wrong()
            yield candidate, self.judged_as(verdict)


def session(folder: Path, seconds: float, *, careless: bool = False, **options: object) -> Session:
    model = f"cmd:{sys.executable} -S -E {HERE / 'prompted_model.py'} {folder / REPLIES} {seconds}"
    model += " careless" * careless
    chosen = Options(models=(model,), **{"effort": 2, "rounds": 2} | options)  # type: ignore[arg-type]
    archive = open_archive(folder / "archive")
    return Session(
        options=chosen,
        archive=archive,
        judge=DecidingJudge(seconds / 4),
        functionalize=lambda given: replace(RELU, problem=given),
        retrieve=lambda functional, attempts: (),
        index=lambda attempt: None,
        make_writer=partial(open_writer, chosen, archive),
    )


def run_or_resume(folder: Path, seconds: float, places: int, rounds: int, *, careless: bool = False) -> None:
    made = session(folder, seconds, drafts=places, rounds=rounds, careless=careless)
    known = made.archive.runs()
    run = known[0] if known else made.new_run("generate", RELU.problem)
    for _ in made.generate(RELU.problem, run):
        pass


def outcome(folder: Path) -> tuple[set[str], Counter[str]]:
    """What the run judged, and what it asked, each as often as it was paid for."""
    archive = open_archive(folder / "archive")
    [run] = archive.runs()
    assert run.status == "finished"
    answered = [call for call in archive.calls(run.id) if not call.error]
    return {a.candidate.id for a in archive.attempts(run.id)}, Counter(call.prompt for call in answered)


def losses(folder: Path) -> Counter[str]:
    """What the run asked for in vain, and what it knows of that at its end."""
    archive = open_archive(folder / "archive")
    [run] = archive.runs()
    known = [told.gained.learnt for told in read_journal(archive, run.id)]
    found = Counter(f"failed: {call.prompt}" for call in archive.calls(run.id) if call.error)
    found["repeats"] = sum(len(one.repeats) for one in known)
    found["lost"] = sum(len(one.lost) for one in known)
    return found


if __name__ == "__main__":
    run_or_resume(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), careless=len(sys.argv) > 5)
