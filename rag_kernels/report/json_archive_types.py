"""The objects that `rag-kernels archive` prints with `--json`, but for a kernel's: rows of `json_types.TYPES`.

Comes in: nothing. Goes out: records whose fields are the keys. Nothing here runs when a command runs.
"""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict


class StatsRow(TypedDict):
    """How much an archive holds. A candidate counts as one attempt, however often it was judged in its run."""

    problems: int
    kernels: int
    verified: int
    confirmed: int
    retracted: int
    evaluations: int
    claims: int
    edges: int
    runs: int
    attempts: int
    passed_attempts: int
    llm_calls: int
    tokens: int
    cost_usd: float
    calls_of_unknown_cost: int
    embeddings: int


class RetractedRow(TypedDict):
    """A kernel that nobody is to see again, and why."""

    kernel_id: str
    retracted: str


class ReindexedRow(TypedDict):
    """How many vectors are indexed, and how many of them are new."""

    indexed: int
    embedded: int


class ProofRow(TypedDict):
    """A kernel that uses a technique, and what it gained over the one that it was made from."""

    child: str
    parent: str
    gain: float
    problem: str
    device: str
    shapes: list[list[int]]


class CardRow(TypedDict):
    """A card of technique with its weight, its evidence, and how attempts fared that were shown it."""

    id: str
    title: str
    advice: str
    bottlenecks: list[str]
    backends: list[str]
    operators: list[str]
    dtypes: list[str]
    architectures: list[str]
    sizes: str
    signs: list[str]
    origin: str
    row_sizes: list[int]
    tensor_sizes: list[int]
    shown: int
    won: int
    weight: float
    evidence: list[ProofRow]
    created_at: str


class BundleRow(TypedDict):
    """How many rows of each table a bundle took along (`archive export`, with `out`) or brought (`archive import`)."""

    candidates: int
    kernels: int
    ideas: int
    functionals: int
    problems: int
    evaluations: int
    claims: int
    edges: int
    retractions: int
    out: NotRequired[str]
    techniques: NotRequired[int]  # of bundles that hold cards
    technique_evidence: NotRequired[int]


class ImportedRow(TypedDict):
    """How many rows of a foreign archive were read, what is new of each table, and what was left out and why."""

    read: int
    skipped: list[dict[str, str]]
    problems: NotRequired[int]
    functionals: NotRequired[int]
    candidates: NotRequired[int]
    ideas: NotRequired[int]
    kernels: NotRequired[int]
    edges: NotRequired[int]
    claims: NotRequired[int]


class FormRow(TypedDict):
    """An imported problem whose functional form was worked out, or why not."""

    problem: str
    ok: bool
    reason: str
    seconds: float


class AuditRow(TypedDict):
    """Whether an archive is what it says it is, with a sentence for each fault."""

    ok: bool
    wrong: list[str]


class ReverifiedRow(TypedDict):
    """A kernel that was judged again; `was` is what the archive said before."""

    kernel_id: str
    problem: str
    verdict: str | None
    speedup: float | None
    at_least: bool | None
    was: dict[str, Any]
    state: str
    reason: str


class ServerRow(TypedDict):
    """An archive that is served."""

    archive: str
    address: str
    token: bool
