"""What a writer is shown in each round, and the proof of it on this device.

Comes in: a problem and the attempts of the run so far. Goes out: exemplars. The first round asks by function (draft);
once a kernel stands, the rounds after it ask by what holds that kernel back (optimise). A kernel that was measured on
another device is judged here before a writer sees it; one that fails here is passed over. Knows nothing of prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from archive.protocol import Archive
from archive.records import ArchivedKernel, Attempt, Run
from eval.judge import Judge
from eval.records import Candidate, Device, FunctionalProblem, Judged, Passed, Problem, ProblemError
from rag_kernels import search
from rag_kernels.bottleneck import Bottleneck, bottleneck_of
from rag_kernels.history import History
from rag_kernels.options import Options
from rag_kernels.records import Draft, Shown
from rag_kernels.retrieval import Limits, Retriever

log = logging.getLogger(__name__)

PROOFS = 2  # how often what failed here is replaced by the next best

Prove = Callable[[ArchivedKernel], bool]


@dataclass(frozen=True, slots=True)
class Exemplars:
    """Retrieval as the options say. `prove` is None for a writer that has everything judged here that it takes over,
    as the offline writer does."""

    retriever: Retriever
    options: Options
    device: Device
    prove: Prove | None = None

    def __call__(self, fp: FunctionalProblem, attempts: Sequence[Attempt]) -> list[Shown]:
        known = {attempt.candidate.id for attempt in attempts}  # the writer sees these anyway
        refused: set[str] = set()
        for _ in range(PROOFS):
            shown = self._find(fp, attempts, known | refused)
            foreign = [] if self.prove is None else [s.kernel for s in shown if not is_from(s.kernel, self.device)]
            if not foreign:
                return shown
            refused |= {kernel.id for kernel in foreign if self.prove is not None and not self.prove(kernel)}
        return [s for s in self._find(fp, attempts, known | refused) if is_from(s.kernel, self.device)]

    def _find(self, fp: FunctionalProblem, attempts: Sequence[Attempt], hidden: set[str]) -> list[Shown]:
        options = self.options
        limits = Limits(
            backend=self.device.backend,
            exclude_problem_ids=() if options.leave_out == "nothing" else (fp.problem.id,),
            exclude_kernel_ids=tuple(sorted(hidden)),
            exclude_family=options.leave_out == "family",
        )
        return self.retriever.exemplars(
            fp,
            mode=options.retrieval,
            count=options.exemplar_count,
            limits=limits,
            bottleneck=holding_back(attempts, fp),
            seed=options.seed,
        )


def holding_back(attempts: Sequence[Attempt], fp: FunctionalProblem) -> Bottleneck | None:
    """What the fastest kernel of the run so far is held back by; None as long as none passed."""
    best = max(search.standing(attempts), key=search.merit, default=None)
    if best is None or not isinstance(best.judged.verdict, Passed):
        return None
    return bottleneck_of(best.judged.verdict, fp.features, best.judged.device)


def is_from(kernel: ArchivedKernel, device: Device) -> bool:
    """Whether what the archive says of this kernel was measured here, by our own judge."""
    here = (kernel.device_name, kernel.device_arch) == (device.name, device.arch)
    return here and kernel.trust in ("verified", "confirmed")


@dataclass(slots=True)
class Prover:
    """Judges archived kernels on this device, each at most once, and archives what came of it."""

    archive: Archive
    judge: Judge
    functionalize: Callable[[Problem], FunctionalProblem]
    new_run: Callable[[str, Problem], Run]
    _known: dict[str, bool] = field(default_factory=dict)

    def __call__(self, kernel: ArchivedKernel) -> bool:
        if kernel.id not in self._known:
            self._known[kernel.id] = self._prove(kernel)
        return self._known[kernel.id]

    def _prove(self, kernel: ArchivedKernel) -> bool:
        device = self.judge.device
        earlier = next((j for j in self.archive.judgements(kernel.id) if j.device.key == device.key), None)
        if earlier is not None:
            return isinstance(earlier.verdict, Passed)
        where = kernel.device_name or "an unknown device, by its source"
        log.info("%s was measured on %s: judging it here before it is shown.", kernel.id, where)
        return any(isinstance(judged.verdict, Passed) for judged in self._judged(kernel))

    def _judged(self, kernel: ArchivedKernel) -> Iterator[Judged]:
        """Judge the kernel on its own problem, at sizes that fit this machine, and record it before it counts."""
        try:
            problem = self.functionalize(self.archive.problem(kernel.problem_id))
        except ProblemError as error:
            log.info("%s cannot be judged here: %s", kernel.id, error)
            return
        run, candidate, history = self._start(problem), Candidate(kernel.source, kernel.tier, kernel.backend), History()
        try:
            for _, judged in self.judge.judge(problem, [candidate]):
                draft = Draft(candidate, idea=kernel.idea, note=f"{kernel.device_name} measured it before")
                self.archive.record_attempt(search.as_attempt(history, run, problem, draft, judged, "import", 1))
                yield judged
        finally:
            self.archive.finish_run(run.id, "finished")

    def _start(self, problem: FunctionalProblem) -> Run:
        run = self.new_run("reverify", problem.problem)
        self.archive.start_run(run)
        return run
