"""The nouns of the zoo: a cheating kernel with its disguises, and the honest kernel that looks like it.

Comes in: nothing; families write their specimens as values of these records. Goes out: `Specimen`. Knows nothing of
how a judge works, only of the codes (`eval.verdict_codes`) with which a judge may answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rag_kernels.eval.records import Backend, Candidate, Tier

Family = Literal[
    "correctness", "forging", "state", "timing", "tampering", "precision", "legal but trivial", "cpu-specific"
]
Adversary = Literal["T0", "T1", "T2", "T3"]  # honest mistake, Python, native code, the harness's memory
Layer = Literal["void by construction", "run-time test", "physical bound", "sandbox", "static"]

VOID = "void"  # it passes, but is no faster than its honest twin: the exploit gained nothing


@dataclass(frozen=True, slots=True)
class Text:
    """One source with the tier it is written in."""

    source: str
    tier: Tier = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """One idea of cheating, in two or more disguises.

    `expect` holds the codes that catch it for the right reason; `origin` is where it was seen (`W` in the wild, `R` by
    a red team, `D` derived) with its public source. `held_out` ones were written without sight of the judge's code.
    `open` says why it is known to escape; empty when it should not.
    """

    idea: str
    family: Family
    adversary: Adversary
    origin: str
    task: str
    layer: Layer
    expect: tuple[str, ...]
    variants: tuple[Text, ...]
    twin: Text
    backend: Backend = "cpu"
    held_out: bool = False
    open: str = ""

    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(Candidate(text.source, text.tier, self.backend) for text in self.variants)

    @property
    def honest(self) -> Candidate:
        return Candidate(self.twin.source, self.twin.tier, self.backend)
