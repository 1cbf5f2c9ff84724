"""The cards of technique that a writer is shown, chosen anew for each brief.

Comes in: a problem and the attempts of the run so far. Goes out: cards, where the options ask for them. What is known
of the cards is read once: a session sees them as they were at its start. Knows nothing of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt
from rag_kernels.archive.techniques import KnownTechnique, known_techniques
from rag_kernels.eval.records import Device, FunctionalProblem
from rag_kernels.feedback.bottleneck import Bottleneck, bound
from rag_kernels.ingest.description.describe import main_family
from rag_kernels.options import Options
from rag_kernels.records import Card
from rag_kernels.retrieval.cards import cards_for
from rag_kernels.retrieval.distil import distil, uses
from rag_kernels.run.exemplars import holding_back
from rag_kernels.run.standings import merit, standing

WITH_CARDS = "hybrid+cards"


class TechniqueCards:
    """Choose cards as the options say: none but with `hybrid+cards`. What `leave_out` hides proves nothing, either."""

    def __init__(self, archive: Archive, options: Options, device: Device) -> None:
        self._archive, self._options, self._device = archive, options, device
        self._lock = Lock()
        self._known: list[KnownTechnique] | None = None

    def __call__(self, fp: FunctionalProblem, attempts: Sequence[Attempt]) -> list[Card]:
        """Return the cards for the next brief, best first."""
        if self._options.retrieval != WITH_CARDS:
            return []
        held = holding_back(attempts, fp, self._options.precision) or self._ceiling(fp)
        fastest = max(standing(attempts), key=merit, default=None)
        has = fastest.candidate.source if fastest else ""  # what it does already is no advice
        known = [one for one in self._all() if not uses(has, one.technique.signs)]
        return cards_for([self._without_hidden(one, fp) for one in known], fp, self._device, held)

    def _all(self) -> list[KnownTechnique]:
        with self._lock:
            if self._known is None:
                distil(self._archive)
                self._known = known_techniques(self._archive)
            return self._known

    def _ceiling(self, fp: FunctionalProblem) -> Bottleneck:
        memory = bound(fp.features, self._device, self._options.precision) == "memory bandwidth"
        return Bottleneck("memory" if memory else "arithmetic", "the ceiling that makes the floor")

    def _without_hidden(self, one: KnownTechnique, fp: FunctionalProblem) -> KnownTechnique:
        hidden = self._options.leave_out
        if hidden == "nothing":
            return one
        family = main_family(fp.source, fp.features.operators)
        kept = tuple(
            proof
            for proof in one.evidence
            if proof.problem_id != fp.problem.id
            and not (hidden == "family" and main_family(proof.functional_source, proof.operators) == family)
        )
        return replace(one, evidence=kept)
