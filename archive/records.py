"""The records of the archive: attempts, kernels, lineage, runs and LLM calls.

The archive only appends. Times are ISO 8601 in UTC; money is in US dollars; `None` for a cost means that the
price is unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rag_kernels.eval import codec
from rag_kernels.eval.errors import RagKernelsError
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import LATER, Backend, Candidate, FunctionalProblem, Judged, Tier, verdict_name
from rag_kernels.eval.told import told

Trust = Literal["claimed", "compiled", "verified", "confirmed"]
Relation = Literal["parent", "crossover", "retrieved", "transplanted", "imported"]

GIVEN_UP = " (given up)"

# Licences of texts that may be used here and are not handed on: bundles leave their kernels out.
KEPT_AT_HOME = ("LicenseRef-June-9-Researcher-Reciprocity-1.0", "LicenseRef-unstated")


@dataclass(frozen=True, slots=True)
class Edge:
    """Hold a line of descent: `child` came from `source` (both kernel ids) by `relation`."""

    child: str
    source: str
    relation: Relation


@dataclass(frozen=True, slots=True)
class Exemplar:
    """Hold a kernel that was shown to a writer, with its rank and why it was chosen."""

    kernel_id: str
    rank: int
    score: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LLMCall:
    """Hold one request to a model, prompt and reply exactly as sent.

    `error` is empty when it succeeded, and ends in GIVEN_UP when it failed and was not tried again.
    """

    id: str
    run_id: str
    model: str
    purpose: str  # "ideas", "implement", "repair"
    prompt: str
    reply: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    seconds: float
    error: str
    created_at: str

    @property
    def given_up(self) -> bool:
        return self.error.endswith(GIVEN_UP)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Hold one candidate with its verdict and where it came from. Failures are attempts too.

    `parents` are edges whose child is this candidate. `note` is the writer's one-line remark on what it did.
    """

    run_id: str
    number: int  # 1, 2, 3... within the run
    round: int
    problem: FunctionalProblem
    candidate: Candidate
    judged: Judged
    writer: str  # "llm", "offline", "scripted", "import"
    model: str  # the LLM's name, or "" when there was none
    idea: str  # one sentence in plain English
    exemplars: tuple[Exemplar, ...]
    parents: tuple[Edge, ...]
    call_ids: tuple[str, ...]
    cost_usd: float | None
    seconds: float
    created_at: str
    note: str = ""
    techniques: tuple[str, ...] = field(default=(), metadata=LATER)  # ids of the cards that the writer was shown

    @property
    def id(self) -> str:
        return content_id("a", self.run_id, str(self.number))

    def __repr__(self) -> str:
        """Return one line: the whole record is pages long."""
        said = told(self.judged)
        speed = "" if said is None else f", {'' if said.confirmed else 'at least '}{said.speedup:.2f} times as fast"
        name, verdict = self.problem.problem.name, verdict_name(self.judged.verdict)
        return f"<Attempt {self.number} of {name}: {verdict}{speed}, kernel {self.candidate.id}>"


@dataclass(frozen=True, slots=True)
class Run:
    """Hold one `generate`, `grow` or `eval` session. `settings` is the JSON of what it was asked to do."""

    id: str
    command: str
    problem_name: str
    settings: str
    started_at: str
    finished_at: str | None = None
    status: str = "running"  # "running", "finished", "interrupted", "failed"


@dataclass(frozen=True, slots=True)
class BriefRecord:
    """Hold what the writer of a run was told when it was asked, and what it drafted (`None` until it delivered all).

    Both are texts of `eval.codec`, made and read by whoever drives the run. The writer knew the first
    `attempts_seen` attempts and the first `calls_seen` calls of the run.
    """

    run_id: str
    number: int
    brief: str
    attempts_seen: int
    calls_seen: int = 0
    drafts: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Hold what the maker of another archive says of a candidate on a problem, or of the problem alone; not judged
    here.
    """

    importer: str  # "sakana", "kernelbench", "robust-kbench", "gpu-mode", "sample"
    origin: str  # where in the source it stands
    licence: str
    attribution: str
    correct: bool | None = None  # None: the source does not say
    device_name: str = ""
    candidate_us: float | None = None
    eager_us: float | None = None
    compile_us: float | None = None
    speedup_eager: float | None = None
    speedup_compile: float | None = None
    notes: tuple[str, ...] = ()  # what a reader should know, a sentence each
    warning: str = ""  # a known exploit: hides the kernel until it is judged here
    details: str = "{}"  # JSON of whatever else the source says


@dataclass(frozen=True, slots=True)
class Imported:
    """Hold one row of somebody else's archive. Without a candidate it brings a problem only."""

    functional: FunctionalProblem
    candidate: Candidate | None
    claim: Claim
    idea: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class ArchivedKernel:
    """Hold a kernel as readers see it: the source, its best evaluation on one device, and what it computes."""

    id: str
    problem_id: str
    problem_name: str
    source: str
    functional_source: str
    tier: Tier
    backend: Backend
    trust: Trust
    retracted: str  # the reason, or "" when it stands
    label: str
    precision: str
    idea: str
    writer: str
    model: str
    graph_key: str
    operators: tuple[str, ...]
    ranks: tuple[int, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the tensor arguments, in order
    device_name: str
    device_arch: str
    candidate_us: float | None
    eager_us: float | None
    compile_us: float | None
    speedup_eager: float | None
    speedup_compile: float | None
    floor_fraction: float | None
    licence: str
    attribution: str
    created_at: str
    labels: tuple[str, ...] = ()  # the judge's remarks beside `label`: "nondeterministic", "suspicious: ..."
    at_least: bool = False  # its speed-ups are lower ends of intervals, since nothing confirmed them
    stale: str = ""  # why this evaluation no longer holds, or ""

    @property
    def speedup(self) -> float | None:
        """Return the speed-up over the better of eager and torch.compile."""
        known = [s for s in (self.speedup_eager, self.speedup_compile) if s is not None]
        return min(known) if known else None

    @property
    def candidate(self) -> Candidate:
        """The kernel as a judge takes it."""
        return Candidate(self.source, self.tier, self.backend)


@dataclass(frozen=True, slots=True)
class KernelFilter:
    """Filter kernels for `Archive.kernels`; `None` or an empty tuple means any."""

    backend: Backend | None = None
    tier: Tier | None = None
    min_trust: Trust | None = None
    graph_key: str | None = None
    problem_id: str | None = None
    exclude_problem_ids: tuple[str, ...] = ()
    text: str = ""  # substring of problem name, idea or source
    include_retracted: bool = False  # and those whose evaluations no longer hold
    limit: int | None = None


class ArchiveError(RagKernelsError):
    """The archive cannot be used (newer version, full disk, damaged file); the message says what to do."""


codec.register(Edge, Exemplar, LLMCall, Attempt, Run, Claim, ArchivedKernel, KernelFilter)
