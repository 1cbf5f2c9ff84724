"""The options of a session: one record, made by the CLI from flags and environment, or by a Python caller.

Knows nothing of where its values come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.choices import DeviceChoice, LeaveOut, Precision, ReasoningEffort, RetrievalMode
from rag_kernels.records import Budget


@dataclass(frozen=True, slots=True)
class Options:
    """Configure a session. `effort` is the one dial; `rounds`, `drafts` and `examples` override what follows from
    it.
    """

    models: tuple[str, ...] = ()  # empty: the offline writer
    api_base: str = ""
    device: DeviceChoice = "auto"
    archive: str = ""  # a folder, ":memory:", or "" for the default place
    effort: int = 2
    rounds: int | None = None
    drafts: int | None = None
    examples: int | None = None
    retrieval: RetrievalMode = "hybrid"
    leave_out: LeaveOut = "nothing"  # what retrieval hides, to measure what it is worth
    hint: str = ""
    temperatures: tuple[float, ...] = ()  # go round the branches; none: as the provider has it
    reasoning_effort: ReasoningEffort | None = None
    budget_seconds: float | None = None
    budget_tokens: int | None = None
    budget_usd: float | None = None
    precision: Precision = "strict"  # the lowest class that products may be computed in
    max_autotune: bool = False  # torch.compile(mode="max-autotune") is a baseline too
    seed: int = 0
    embedder: str = "builtin"  # or a sentence-transformers model by name or path
    cache: str = ""  # empty: the default place
    cluster: str = ""  # judges on this Ray cluster; empty: here
    judge_cpus: int = 0  # cores of a judge there; 0: an equal share for each GPU of a host, or all

    @property
    def budget(self) -> Budget:
        return Budget(self.rounds or self.effort, self.budget_seconds, self.budget_tokens, self.budget_usd)

    @property
    def width(self) -> int:
        """Return the drafts in a round at most, and with a model the requests under way at once."""
        return self.drafts or 2 * self.effort

    @property
    def implementations(self) -> int:
        """Return how many drafts are written of each new idea."""
        return 1 if self.width < 4 else 2

    @property
    def exemplar_count(self) -> int:
        return self.effort + 1 if self.examples is None else self.examples
