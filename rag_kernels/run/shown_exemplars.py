"""The exemplars that the writer of one run is shown, kept current between judgements.

Comes in: a function that retrieves exemplars. Goes out: those of the next brief, and the sources of all that were
shown in this run, for the label of a near-copy. Knows nothing of retrieval and writers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rag_kernels.eval.records import Candidate
from rag_kernels.records import Shown


class ShownExemplars:
    """Hold the exemplars of the next brief. Refresh them between judgements only: they may have to be judged first."""

    def __init__(self, retrieve: Callable[[], Sequence[Shown]]) -> None:
        self._retrieve = retrieve
        self._sources: dict[str, str] = {}
        self.shown: tuple[Shown, ...] = ()

    def refresh(self) -> None:
        """Retrieve the exemplars of the next brief."""
        self.shown = tuple(self._retrieve())
        self.remember(self.shown)

    def remember(self, shown: Sequence[Shown]) -> None:
        """Note the sources of exemplars that were shown, also before the run was resumed."""
        self._sources |= {s.kernel.id: s.kernel.source for s in shown}

    def others(self, candidate: Candidate) -> list[tuple[str, str]]:
        """Return (kernel id, source) of all that was shown in this run, but the candidate itself."""
        return [(name, source) for name, source in self._sources.items() if name != candidate.id]
