"""Trials of the archive with real processes: growth jobs that are killed, many processes at once, a full disk.

A growth job here is `long_runs.growth.grow` over a real archive (DuckDB and Chroma) with the built-in embedder and
hybrid retrieval; only the writer and the judge are scripted. Every attempt that the job reports is written to a file,
so that a kill cannot unsay it. Used by tests/test_archive_durability.py and tests/bench/archive_durability.py.

Processes are forked from a server that has imported everything: a job is at work a few milliseconds after its start.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from unittest import mock

import factories as f

from rag_kernels.archive import queries
from rag_kernels.archive.audit import verify
from rag_kernels.archive.records import Attempt, KernelFilter
from rag_kernels.archive.store import FileArchive
from rag_kernels.eval.judge import More, nothing_more
from rag_kernels.eval.records import Candidate, FunctionalProblem, Judged, Verdict, verdict_name
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import index_attempt, reindex
from rag_kernels.long_runs.growth import grow, open_growth_run
from rag_kernels.options import Options
from rag_kernels.records import Brief, Draft
from rag_kernels.retrieval.retriever import RetrievalLimits, Retriever
from rag_kernels.run.session import Session

log = logging.getLogger(__name__)
PROCESSES = multiprocessing.get_context("forkserver")
# Once, in the server that jobs are forked from; pandas is what DuckDB looks at parameters by.
PROCESSES.set_forkserver_preload(["archive_trials", "chromadb", "duckdb", "pandas"])
OPERATORS = ("relu", "abs", "tanh", "sigmoid", "exp", "neg")
LIMITS = RetrievalLimits(backend="cpu")
ANY = KernelFilter(include_retracted=True)
WIDTH = 2  # candidates a round at effort 1


def problems(count: int, first: int = 0) -> list[FunctionalProblem]:
    """Different problems; every sixth has the same operator, so kernels and graph keys are shared among them."""
    return [f.problem(OPERATORS[n % 6], float(n), (8, 8 + n), name=f"p{n}") for n in range(first, first + count)]


def write_problems(folder: Path, made: Sequence[FunctionalProblem]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{p.problem.name}.py" for p in made]
    for path, p in zip(paths, made, strict=True):
        path.write_text(p.problem.source)
    return paths


class ScriptedJudge:
    """Most candidates pass, some fail, and some of those that passed fail when they are confirmed."""

    device = f.device()

    def judge(
        self, fp: FunctionalProblem, candidates: Sequence[Candidate], more: More = nothing_more
    ) -> Iterator[tuple[Candidate, Judged]]:
        failures: dict[int, Verdict] = {0: f.wrong(), 1: f.crashed(), 2: f.build_failed()}
        for candidate in candidates:
            number = int(candidate.id[2:6], 16)
            yield candidate, f.judged(failures.get(number % 12, f.passed(1 + number % 7, confirmed=False)))

    def build_ahead(self, candidate: Candidate) -> None:
        """Nothing is built."""

    def examine_ahead(self, fp: FunctionalProblem) -> None:
        """Nothing is examined."""

    def confirm(self, fp: FunctionalProblem, candidate: Candidate) -> Judged:
        return f.judged(f.wrong() if int(candidate.id[6:8], 16) % 5 == 0 else f.passed(2.0))


class ScriptedWriter:
    """Rounds of candidates, each with its LLM call, its exemplars and the last attempt as parent."""

    name = "scripted"

    def __init__(self, archive: FileArchive) -> None:
        self.archive = archive

    def propose(self, brief: Brief) -> list[Draft]:
        call = f.llm_call(brief.run_id, f"c-{brief.run_id}-{brief.round}-{len(brief.attempts)}")
        self.archive.record_call(call)
        return [
            Draft(
                f.candidate(brief.problem, variant=10 * brief.round + n),
                f"idea {n}",
                parents=tuple((a.candidate.id, "parent") for a in brief.attempts[-1:]),
                exemplars=tuple(shown.exemplar for shown in brief.exemplars),
                call_ids=(call.id,),
            )
            for n in range(brief.width)
        ]


def session(root: Path, known: Sequence[FunctionalProblem], rounds: int) -> Session:
    archive, embedder = FileArchive(root), load_embedder("builtin")
    reindex(archive, embedder)
    retriever = Retriever(archive, embedder)
    by_id = {p.problem.id: p for p in known}
    return Session(
        options=Options(effort=1, rounds=rounds),
        archive=archive,
        judge=ScriptedJudge(),
        functionalize=lambda problem: by_id[problem.id],
        retrieve=lambda fp, attempts: retriever.exemplars(fp, mode="hybrid", count=3, limits=LIMITS),
        index=lambda attempt: index_attempt(archive, attempt, embedder),
        make_writer=lambda ledger: ScriptedWriter(archive),
    )


def growth_job(root: Path, folder: Path, told: Path, count: int, rounds: int = 2, first: int = 0) -> None:
    """Grow over the problems, going on where an earlier job stopped, and tell every attempt."""
    made = problems(count, first)
    file = os.open(told, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        paths, work = write_problems(folder, made), session(root, made, rounds)
        for event in grow(paths, work, open_growth_run(paths, work, resume=True)):
            if isinstance(event, Attempt):
                line = f"{event.id} {event.candidate.id} {verdict_name(event.judged.verdict)}\n"
                os.write(file, line.encode())
    finally:
        os.close(file)


def reading_job(root: Path, kernels: int) -> None:
    """Read in all ways until so many kernels are there; what was there must never be gone again."""
    archive, last, asked = FileArchive(root), 0, problems(1)[0]
    retriever = Retriever(archive, load_embedder("builtin"))
    while last < kernels:
        seen = len(archive.kernels(ANY))
        assert seen >= last, (seen, last)
        last = seen
        time.sleep(0.1)  # as a person would
        queries.leaderboard(archive)
        for shown in retriever.exemplars(asked, mode="hybrid", count=3, limits=LIMITS):
            assert archive.kernel(shown.kernel.id) is not None
            archive.lineage(shown.kernel.id)


def start(target: object, *arguments: object) -> BaseProcess:
    process = PROCESSES.Process(target=target, args=arguments)  # type: ignore[arg-type]
    # A child runs its parent's main module first, and that may be anything: Streamlit's tests put a page there. The
    # server looks for what it is to import along the environment's path alone, and says nothing where it is not there.
    with (
        mock.patch.dict(sys.modules, {"__main__": ModuleType("__main__")}),
        mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    ):
        ensure_running()
        process.start()
    return process


def finish(process: BaseProcess, limit_s: float = 240) -> None:
    process.join(limit_s)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, f"a job ended with {process.exitcode}"


@dataclass
class Losses:
    """What a look into the archive after a kill found; everything but the counts of work must stay at zero."""

    told: int = 0
    lost_attempts: int = 0
    lost_kernels: int = 0
    faults: list[str] = field(default_factory=list)
    index_behind: int = 0  # kills after which Chroma differed from DuckDB, before it repaired itself
    unindexed: int = 0  # kills after which a kernel had no vector yet: the next job embeds it
    index_faults: list[str] = field(default_factory=list)  # what was still wrong after one query


def look(root: Path, told: Path, losses: Losses) -> None:
    """Compare the archive with what was told, check all of it, and let the index repair itself by one query."""
    archive = FileArchive(root)
    behind = archive.index_faults()
    faults = [fault for fault in verify(archive) if fault not in behind]
    lines = [line.split() for line in told.read_text().splitlines()] if told.exists() else []
    with archive.database.read() as con:
        kept = {name for (name,) in con.execute("SELECT id FROM attempts").fetchall()}
    kernels = {kernel.id for kernel in archive.kernels(ANY)}
    losses.told = len(lines)
    losses.lost_attempts += len({attempt_id for attempt_id, _, _ in lines} - kept)
    losses.lost_kernels += len({candidate_id for _, candidate_id, verdict in lines if verdict == "passed"} - kernels)
    losses.faults += faults
    losses.index_behind += bool(behind)
    losses.unindexed += any(True for _ in archive.missing_embeddings(load_embedder("builtin").name))
    vector = load_embedder("builtin").embed(["relu"])[0].tolist()
    archive.nearest(vector, 3, KernelFilter())
    losses.index_faults += archive.index_faults()


def kill_growth(root: Path, kills: int, *, count: int, longest_s: float, to_the_end: bool, seed: int = 1) -> Losses:
    """Start a growth job again and again, kill each at a random moment, and look; let the last one finish.

    Every second one is killed at any moment from its start on, the others some time after they told something new.
    """
    draw, losses, told = random.Random(seed), Losses(), root / "told"
    root.mkdir(parents=True, exist_ok=True)
    job = (growth_job, root / "archive", root / "problems", told, count)
    for number in range(kills):
        process = start(*job)
        if number % 2:
            wait_for_news(process, told)
        time.sleep(draw.uniform(0, longest_s))
        process.kill()  # it may have ended by itself
        process.join()
        look(root / "archive", told, losses)
        log.info("kill %d of %d: %s", number + 1, kills, losses)
    if to_the_end:
        finish(start(*job))
        look(root / "archive", told, losses)
    return losses


def wait_for_news(process: BaseProcess, told: Path) -> None:
    """Until the job reports an attempt or ends, however slow the machine is."""
    before = told.stat().st_size if told.exists() else 0
    while process.is_alive() and (told.stat().st_size if told.exists() else 0) == before:
        time.sleep(0.005)


def crowd(root: Path, *, writers: int, readers: int, count: int, rounds: int) -> Losses:
    """Writers and readers at once over one archive."""
    root.mkdir(parents=True, exist_ok=True)
    folders = [root / f"w{n}" for n in range(writers)]
    jobs = [
        start(growth_job, root / "archive", folder, root / f"{folder.name}.told", count, rounds, 6 * count * n)
        for n, folder in enumerate(folders)
    ]
    jobs += [start(reading_job, root / "archive", count) for _ in range(readers)]
    try:
        for job in jobs:
            finish(job)
    finally:
        for job in jobs:
            job.kill()
    told = root / "told"
    told.write_text("".join((root / f"{folder.name}.told").read_text() for folder in folders))
    losses = Losses()
    look(root / "archive", told, losses)
    return losses
