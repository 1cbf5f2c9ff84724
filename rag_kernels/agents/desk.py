"""What agents may ask for, apart from any protocol: describe, search, judge, compare, generate, and texts to read.

Comes in: paths below a root, kernel ids, sources. Goes out: records of `agents.records`, jobs, and texts. Raises
`Refused`, with a sentence that says what to do next. Verdicts come from the judge's own processes: nothing that is
asked here reaches tolerances, seeds or expected values. Knows nothing of transports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from rag_kernels.agents.jobs import Job, Jobs
from rag_kernels.agents.records import (
    DescribedProblem,
    FoundKernel,
    JudgedKernel,
    described,
    found_kernel,
    judged_kernel,
)
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import ArchivedKernel
from rag_kernels.archive.store import open_archive
from rag_kernels.budget import Ledger
from rag_kernels.eval.build.candidate_form import candidate_from_file
from rag_kernels.eval.errors import RagKernelsError
from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import Backend, Candidate, Device, FunctionalProblem, Passed, Problem, Verdict
from rag_kernels.eval.sessions.admission import admission_file, open_admission
from rag_kernels.eval.source_form import form_of, is_whole, source_form
from rag_kernels.feedback.bottleneck import Bottleneck, Kind
from rag_kernels.feedback.explain import explain
from rag_kernels.ingest.description.embedder import Embedder, load_embedder
from rag_kernels.llm.prompt_values import contract_values, problem_values
from rag_kernels.llm.templates import render
from rag_kernels.options import Options
from rag_kernels.records import Brief, Budget
from rag_kernels.retrieval.find import remedies
from rag_kernels.retrieval.retriever import RetrievalLimits, Retriever
from rag_kernels.retrieval.starter import stock
from rag_kernels.run.session import Session
from rag_kernels.wiring import open_session, target_backend

Found = TypeVar("Found")


class Refused(RagKernelsError):
    """A request that cannot be met; the message says what to ask instead."""


class Desk:
    """Answer what agents ask, with files below `root`. What is judged goes into the archive, and is found there."""

    def __init__(self, root: Path, options: Options, archive: Archive, embedder: Embedder, backend: Backend) -> None:
        self.root, self.options, self.backend = root.resolve(), options, backend
        self.archive = archive
        self.retriever = Retriever(archive, embedder)
        self.jobs = Jobs(lambda: open_session(options, archive=archive, backend=backend))
        self._device: Device | None = None

    def path_in_root(self, name: str) -> Path:
        """Return a file below the root; raises Refused for one that is elsewhere, also through a link."""
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root):
            raise Refused(f"{name} lies outside of {self.root}: name a file below it.")
        if not path.is_file():
            raise Refused(f"There is no file {name} below {self.root}: check the path.")
        return path

    def load(self, problem: str) -> Problem:
        """Return the problem in a file below the root."""
        return load_problem(self.path_in_root(problem))

    def device(self) -> Device:
        """Return the device of this server, measured when it is first asked for."""
        if self._device is None:
            self._device = self._now("look at the device", lambda session: session.judge.device)
        return self._device

    def describe(self, problem: str) -> DescribedProblem:
        """Return a problem as a call, with its floor here and what the judge's examination says of it."""
        loaded = self.load(problem)
        return self._now(f"describe {loaded.name}", lambda session: _describe(session, loaded, problem))

    def search(
        self, words: str = "", *, problem: str = "", kernel: str = "", bottleneck: Kind | None = None, count: int = 5
    ) -> list[FoundKernel]:
        """Return archived kernels that words name or describe, that solve problems like one, or that may teach how to
        speed up a kernel.
        """
        if sum(map(bool, (words, problem, kernel))) != 1:
            raise Refused("Say what to look for by one of these: words, a problem's path, or a kernel's id.")
        if kernel:
            hits = remedies(self.retriever, kernel, count=count, precision=self.options.precision)
        else:
            held = Bottleneck(bottleneck, bottleneck) if bottleneck else None
            limits = RetrievalLimits(backend=self.backend)
            asked = words or self._functional(problem)
            hits = self.retriever.search(asked, count=count, limits=limits, bottleneck=held)
        return [found_kernel(hit) for hit in hits]

    def candidate(self, kernel: str = "", source: str = "") -> Candidate:
        """Return a candidate from a source, a file below the root, or the archive (`k_...`); raises Refused when it is
        for another device.
        """
        if bool(kernel) == bool(source):
            raise Refused("Give `kernel` (a path below the root, or an archived id) or `source` (the whole text).")
        made = self._from_text(source) if source else self._named(kernel)
        if made.backend != self.backend:
            raise Refused(
                f"This is {made.backend} code, and kernels are judged on {self.backend} here: write it for "
                f"{self.backend}, or have the server started with --device {made.backend}."
            )
        return made

    def _from_text(self, source: str) -> Candidate:
        form = source_form(source, default=self.backend)
        if not is_whole(source):
            raise Refused("A source has RK_EXPORT(forward, ...), or KERNELS with `forward`: read contract://kernel.")
        return Candidate(source, form.tier, form.backend)

    def _named(self, kernel: str) -> Candidate:
        if kernel.startswith("k_"):
            return self._archived(kernel).candidate
        return candidate_from_file(self.path_in_root(kernel), self.backend)

    def _archived(self, kernel_id: str) -> ArchivedKernel:
        kernel = self.archive.kernel(kernel_id)
        if kernel is None:
            raise Refused(f"There is no kernel {kernel_id!r} in this archive: find one with search_kernels.")
        return kernel

    def _functional(self, problem: str) -> FunctionalProblem:
        loaded = self.load(problem)
        return self._now(f"trace {loaded.name}", lambda session: session.functionalize(loaded))

    def _now(self, what: str, ask: Callable[[Session], Found]) -> Found:
        """Return what a function finds in the session, after what was asked for before; raises Refused."""
        found: list[Found] = []

        def work(session: Session) -> Generator[JudgedKernel, None, str]:
            found.append(ask(session))
            yield from ()
            return ""

        job = self.jobs.add(what, work)
        job.ended.wait()
        if not found:
            raise Refused(job.message)
        return found[0]

    def judge(self, problem: str, candidate: Candidate, *, confirm: bool) -> Job:
        """Queue the judgement of a kernel, with a confirmation in a fresh process if it passes and that is asked."""
        loaded = self.load(problem)

        def work(session: Session) -> Generator[JudgedKernel, None, str]:
            for attempt in session.evaluate(loaded, candidate, confirm=confirm):
                yield judged_kernel(attempt, precision=self.options.precision)
            return "The last result is the verdict."

        return self.jobs.add(f"judge {candidate.id} on {loaded.name}", work)

    def compare(self, problem: str, one: Candidate, other: Candidate) -> Job:
        """Queue a comparison: both are raced against eager in pairs, one after the other."""
        loaded = self.load(problem)

        def work(session: Session) -> Generator[JudgedKernel, None, str]:
            measured = []
            for candidate in (one, other):
                for attempt in session.evaluate(loaded, candidate, confirm=False):
                    measured.append(attempt.judged.verdict)
                    yield judged_kernel(attempt, precision=self.options.precision)
            return _comparison(measured)

        return self.jobs.add(f"compare {one.id} with {other.id} on {loaded.name}", work)

    def generate(self, problem: str, *, rounds: int, seconds: float) -> Job:
        """Queue a search by the writer of this server: the offline one, unless it was started with a model."""
        loaded = self.load(problem)

        def work(session: Session) -> Generator[JudgedKernel, None, str]:
            run, budget = session.new_run("generate", loaded), Budget(rounds, seconds, None, None)
            searching = session.generate(loaded, run, ledger=Ledger(budget))
            try:
                while True:
                    yield judged_kernel(next(searching), precision=self.options.precision)
            except StopIteration as end:
                return f"{end.value} Run {run.id}; the kernel is the fastest confirmed result."
            finally:
                searching.close()

        return self.jobs.add(f"generate for {loaded.name}", work)

    def job(self, job_id: str) -> Job:
        """Return a job that was begun here."""
        job = self.jobs.find(job_id)
        if job is None:
            raise Refused(f"There is no job {job_id!r}: only those of this server's last hours are known.")
        return job

    def kernel_text(self, kernel_id: str) -> str:
        """Return an archived kernel: its source under lines of comment that say what it is."""
        kernel = self._archived(kernel_id)
        mark = "#" if form_of(kernel.candidate).language == "python" else "//"
        at_least = "at least " if kernel.at_least else ""
        speed = (
            f"{at_least}{kernel.speedup:.2f}x over the better of eager and compile" if kernel.speedup else "not timed"
        )
        where = f"{speed}, on {kernel.device_name or 'an unknown device'}"
        lines = [f"{kernel.id} for {kernel.problem_name}: {kernel.trust}, {where}"]
        lines += [f"licence {kernel.licence}; {kernel.attribution}"] if kernel.licence else []
        lines += [
            f"made from {e.source} ({e.relation})" for e in self.archive.lineage(kernel.id) if e.child == kernel.id
        ]
        lines += [f"idea: {' '.join(kernel.idea.split())}"] if kernel.idea else []
        return "".join(f"{mark} {line}\n" for line in lines) + f"\n{kernel.source}"

    def problem_text(self, kernel_id: str) -> str:
        """Return the problem that a kernel was written for, as a call of PyTorch."""
        return self._archived(kernel_id).functional_source

    def contract(self) -> str:
        """Return the contract of kernels as writers are told it, for the device of this server."""
        return render("system", **contract_values(self.device(), self.options.precision))

    def device_text(self) -> str:
        """Return the device with its measured rates, as JSON."""
        return json.dumps(asdict(self.device()), indent=2)

    def speed_up(self, kernel_id: str) -> str:
        """Return what writers are told who are to improve an archived kernel: its problem, its verdict, its source."""
        kernel = self._archived(kernel_id)
        problem, judged = self.archive.evaluation(kernel.id)
        feedback = explain(
            judged.verdict, device=judged.device, features=problem.features, precision=self.options.precision
        )
        parent = {
            "title": kernel.id,
            "idea": kernel.idea,
            "language": form_of(kernel.candidate).language,
            "source": kernel.source.strip(),
            "feedback": feedback,
        }
        brief = Brief("", problem, self.device(), (), (), "", 1, 1)
        values = problem_values(brief, precision=self.options.precision)
        return render("improve", **values, exemplars=[], task="improve", parents=[parent])

    def close(self) -> None:
        """End with the verdict that is under way."""
        self.jobs.close()


def _describe(session: Session, loaded: Problem, path: str) -> DescribedProblem:
    problem, judge = session.functionalize(loaded), session.judge
    degenerate, notes = "", list[str]()
    if isinstance(judge, LocalJudge) and judge.can_run:
        file = admission_file(problem, judge.device, cache=judge.cache)
        admission = open_admission(file, problem, judge.device, judge.workers)
        degenerate, notes = admission.degenerate, list(admission.notes)
    precision = session.options.precision
    return described(problem, path, judge.device, precision=precision, degenerate=degenerate, notes=notes)


def _comparison(verdicts: Sequence[Verdict]) -> str:
    """Return which of two kernels is faster, by what each wins over eager."""
    one, other = verdicts
    if not isinstance(one, Passed) or not isinstance(other, Passed):
        return "They cannot be compared: one of them did not pass."
    a, b = one.measurement.speedup_eager, other.measurement.speedup_eager
    ratio, low, high = a.median / b.median, a.low / b.high, a.high / b.low
    said = f"The first is {ratio:.3f} times as fast as the second ({low:.3f} to {high:.3f}; both raced against eager)"
    return f"{said}." if low > 1 or high < 1 else f"{said}: no difference was shown."


def open_desk(root: Path, options: Options) -> Desk:
    """Open the archive and the embedder; the judge is opened by the first request that needs it."""
    archive, embedder = open_archive(options.archive or None), load_embedder(options.embedder)
    stock(archive, embedder)
    return Desk(root, options, archive, embedder, target_backend(options))
