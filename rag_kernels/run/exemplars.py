"""The exemplars that a writer is shown in each round, judged on this device before they are shown.

Comes in: a problem and the attempts of the run so far. Goes out: exemplars. The first round asks by function (draft);
once a kernel stands, the rounds after it ask by what holds that kernel back (optimise). A kernel that was measured on
another device is judged here before a writer sees it; one that fails here is passed over. Knows nothing of prompts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from rag_kernels.archive.claims import claims_of, written_for
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.recheck import due
from rag_kernels.archive.records import ArchivedKernel, Attempt, Claim
from rag_kernels.eval.judge import JUDGE_VERSION, Judge
from rag_kernels.eval.machine.ceilings import product_gflops
from rag_kernels.eval.records import Device, FunctionalProblem, Passed, Problem
from rag_kernels.feedback.bottleneck import Bottleneck, bottleneck_of
from rag_kernels.options import Options
from rag_kernels.records import Shown
from rag_kernels.retrieval.retriever import RetrievalLimits, Retriever
from rag_kernels.run.lessons import counted_of, lesson_of
from rag_kernels.run.reverify import reverify
from rag_kernels.run.standings import merit, standing

log = logging.getLogger(__name__)

PROOFS = 2  # how often what failed here is replaced by the next best
PROVE_S = 30.0  # after so long no further proof is begun for a request: what is left waits for the next

Prove = Callable[[ArchivedKernel], bool]


@dataclass(frozen=True, slots=True)
class Exemplars:
    """Retrieve exemplars as the options say.

    `prove` is None for a writer that has everything judged here that it takes over, as the offline writer does.
    `for_reading` says that the writer learns from texts: then near-copies and what is hardly relevant are left out.
    """

    retriever: Retriever
    options: Options
    device: Device
    prove: Prove | None = None
    for_reading: bool = True
    clock: Callable[[], float] = time.monotonic
    alone: Lock = field(default_factory=Lock)  # problems that are worked on at once ask one after the other

    def __call__(self, fp: FunctionalProblem, attempts: Sequence[Attempt]) -> list[Shown]:
        """Return the exemplars for the next brief, best first."""
        with self.alone:
            return self._told(self._shown(fp, attempts))

    def _told(self, shown: list[Shown]) -> list[Shown]:
        """Return the exemplars with what a writer that learns from them is told beside their texts."""
        if not self.for_reading:
            return shown
        archive = self.retriever.archive
        return [
            replace(
                s,
                lesson=lesson_of(s.kernel, archive),
                claim=claim_on(s.kernel, archive),
                counted=counted_of(s.kernel.id, archive),
            )
            for s in shown
        ]

    def _shown(self, fp: FunctionalProblem, attempts: Sequence[Attempt]) -> list[Shown]:
        known = {attempt.candidate.id for attempt in attempts}  # the writer sees these anyway
        refused: set[str] = set()
        begun = self.clock()
        for _ in range(PROOFS):
            shown = self._find(fp, attempts, known | refused)
            foreign = [] if self.prove is None else [s.kernel for s in shown if not is_from(s.kernel, self.device)]
            if not foreign:
                return shown if self.prove else [self._with_problem(s, fp) for s in shown]
            for kernel in foreign:
                if self.prove is not None and self.clock() - begun < PROVE_S and not self.prove(kernel):
                    refused.add(kernel.id)
            self.retriever.look_again()  # what was proved is in the archive
        return [s for s in self._find(fp, attempts, known | refused) if is_from(s.kernel, self.device)]

    def _with_problem(self, shown: Shown, fp: FunctionalProblem) -> Shown:
        """Add the problem and the calls that are served, with which the offline writer compares graphs and sizes."""
        archive = self.retriever.archive
        if shown.kernel.graph_key != fp.graph_key and shown.kernel.tier != "kernel":
            return shown
        if shown.kernel.trust == "claimed":
            return replace(shown, problem=written_for(archive, shown.kernel.id))
        problem, judged = archive.evaluation(shown.kernel.id)
        contract = judged.verdict.contract if isinstance(judged.verdict, Passed) else None
        return replace(shown, problem=problem, contract=contract)

    def _find(self, fp: FunctionalProblem, attempts: Sequence[Attempt], hidden: set[str]) -> list[Shown]:
        options = self.options
        limits = RetrievalLimits(
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
            bottleneck=holding_back(attempts, fp, options.precision),
            for_reading=self.for_reading,
            ridge=product_gflops(fp.features, self.device, options.precision) / self.device.bandwidth_gbs,
            seed=options.seed,
        )


def holding_back(attempts: Sequence[Attempt], fp: FunctionalProblem, precision: str = "strict") -> Bottleneck | None:
    """Return the bottleneck of the fastest kernel of the run so far; None as long as none passed."""
    best = max(standing(attempts), key=merit, default=None)
    if best is None or not isinstance(best.judged.verdict, Passed):
        return None
    return bottleneck_of(best.judged.verdict, fp.features, best.judged.device, precision)


def claim_on(kernel: ArchivedKernel, archive: Archive) -> Claim | None:
    """Return what its maker says of a kernel that has no time of its own here; None where no time is claimed."""
    if kernel.candidate_us is not None:
        return None
    return next((claim for claim in claims_of(archive, kernel.id) if claim.candidate_us is not None), None)


def is_from(kernel: ArchivedKernel, device: Device) -> bool:
    """Return whether what the archive says of this kernel was measured on this device by our own judge."""
    here = (kernel.device_name, kernel.device_arch) == (device.name, device.arch)
    return here and kernel.trust in ("verified", "confirmed")


@dataclass(frozen=True, slots=True)
class Prover:
    """Judge an archived kernel again on this device, as `archive reverify` does.

    The result is kept in the archive, so that no kernel is judged twice by the same version of the judge.
    """

    archive: Archive
    judge: Judge
    functionalize: Callable[[Problem], FunctionalProblem]
    judge_version: str = JUDGE_VERSION

    def __call__(self, kernel: ArchivedKernel) -> bool:
        """Return whether the kernel holds here; False also when it failed here before, or cannot be judged here."""
        left = due(self.archive, self.judge.device, self.judge_version, kernel_ids=[kernel.id])
        if left:
            where = kernel.device_name or "an unknown device, by its source"
            log.info("%s was measured on %s: judging it here before it is shown.", kernel.id, where)
        found = reverify(left, archive=self.archive, judge=self.judge, functionalize=self.functionalize)
        return any([result.state == "holds" for result in found])
