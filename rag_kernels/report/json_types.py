"""The objects that `--json` prints, by their `type`: what docs/reference/json.md is made from and tests hold rows to.

Comes in: nothing. Goes out: `TYPES`. Rows that are a record's fields are named by that record. Speed-ups are those that
are told of a kernel: confirmed, else with `at_least` the lower end of the interval. Times of one call are in
microseconds (`_us`), others in seconds. Nothing here runs when a command runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NotRequired

from typing_extensions import TypedDict

from rag_kernels.experiments.retrieval_ablation import AblationTrial, Arm
from rag_kernels.experiments.scores import Solved
from rag_kernels.report.json_archive_types import (
    AuditRow,
    BundleRow,
    CardRow,
    FormRow,
    ImportedRow,
    ReindexedRow,
    RetractedRow,
    ReverifiedRow,
    ServerRow,
    StatsRow,
)

Floats = list[float] | None


class Measured(TypedDict):
    """What a judgement measured; null where nothing was."""

    verdict: str | None
    reason: str
    label: str | None
    precision: str | None
    error_ratio: float | None
    speedup: float | None
    speedup_eager: float | None
    speedup_compile: float | None
    at_least: bool | None
    speedup_eager_median: float | None
    speedup_compile_median: float | None
    speedup_eager_interval: Floats
    speedup_compile_interval: Floats
    candidate_us: float | None
    eager_us: float | None
    compile_us: float | None
    floor_us: float | None
    floor_fraction: float | None
    confirmed: bool | None
    candidate_extra_bytes: NotRequired[int | None]  # of a call at most, beside arguments and outputs
    eager_extra_bytes: NotRequired[int | None]
    trust: NotRequired[str]  # "confirmed", "confirmed in part" where something could not be tried, or "verified"
    labels: NotRequired[list[str]]
    claims_speed: NotRequired[bool]
    serves: NotRequired[str | None]
    notes: NotRequired[list[str]]
    input_class: NotRequired[str]
    where: NotRequired[str]
    log: NotRequired[str]
    stage: NotRequired[str]
    code: NotRequired[str]


class MutationRow(TypedDict):
    """What a run over mutants came to: how many there are by what became of them, and what other evaluators miss."""

    mutants: int
    not_built: int
    same_code: int
    no_witness: int
    witnessed: int
    killed: int
    witnessed_finite: int
    killed_finite: int
    witnessed_precision: int
    killed_precision: int
    survived: int
    judge_faults: int
    missed_by: dict[str, int]
    originals: int
    originals_rejected: int
    originals_refused_by: dict[str, int]
    seconds: dict[str, float]


class WorkloadRow(Measured):
    """A kernel at one of a problem's workloads, by `eval` and `generate` with several sizes."""

    workload: str
    sizes: dict[str, int]
    weight: float
    run: str
    kernel_id: str


class TotalRow(TypedDict):
    """All workloads together, each as often as it comes; ratios are null where none passed."""

    workloads: int
    passed: int
    candidate_us: float
    eager_us: float
    compile_us: float | None
    speedup_eager: float | None
    speedup_compile: float | None
    at_least: bool  # not confirmed at all of them


class AttemptRow(Measured):
    """A candidate that was judged, as soon as it was; a confirmation is an attempt with a note that says so."""

    run_id: str
    problem: str
    attempt: int
    round: int
    kernel_id: str
    tier: str
    writer: str
    model: str
    idea: str
    note: str
    device: str
    device_name: str
    step: str  # of a training step: its gradients, and what is saved between its two functions
    exemplars: list[str]
    parents: list[dict[str, str]]
    stage_s: dict[str, float]
    cost_usd: float | None
    seconds: float


class ResultRow(Measured):
    """The end of a run: its best kernel, or its last attempt where none passed (`kernel_id` is null then)."""

    run_id: str | None
    problem: str
    kernel_id: str | None
    tier: str | None
    writer: str | None
    model: str | None
    device: str | None
    step: str  # as in an attempt's row
    exemplars: list[str]
    attempts: int
    seconds: float
    cost_usd: float | None
    out: str | None
    attempt: NotRequired[int]
    round: NotRequired[int]
    idea: NotRequired[str]
    note: NotRequired[str]
    device_name: NotRequired[str]
    graph_key: NotRequired[str]
    assembly: NotRequired[str]
    parents: NotRequired[list[dict[str, str]]]
    stage_s: NotRequired[dict[str, float]]


class ProblemRow(ResultRow):
    """What a growth made of one problem."""

    state: str


class SummaryRow(TypedDict):
    """The end of many problems: how many there were, were done with, and have a verified kernel."""

    problems: int
    done: int
    verified: int


class KernelRow(TypedDict):
    """An archived kernel."""

    kernel_id: str
    problem: str
    tier: str
    backend: str
    trust: str
    retracted: str
    stale: str
    label: str
    labels: list[str]
    precision: str
    idea: str
    writer: str
    model: str
    graph_key: str
    operators: list[str]
    device: str
    candidate_us: float | None
    eager_us: float | None
    compile_us: float | None
    speedup: float | None
    speedup_eager: float | None
    speedup_compile: float | None
    at_least: bool
    floor_fraction: float | None
    created_at: str
    claims: NotRequired[list[dict[str, Any]]]
    lineage: NotRequired[list[dict[str, str]]]
    source: NotRequired[str]
    functional_source: NotRequired[str]
    licence: NotRequired[str]
    attribution: NotRequired[str]


class HitRow(KernelRow):
    """A kernel that a search found, best first, with all that its score is made of."""

    score: float
    named: float
    reasons: list[str]
    signals: list[dict[str, Any]]
    factors: list[dict[str, Any]]


class FunctionalRow(TypedDict):
    """A problem as a parameterized call; without its call where `ok` is false."""

    problem: str
    path: str
    ok: bool
    reason: str
    graph_key: str | None
    seconds: float
    source: NotRequired[str]
    step: NotRequired[str]  # the first lines of a training step's two functions; "" for other problems
    notice: NotRequired[str]
    operators: NotRequired[list[str]]
    ranks: NotRequired[list[int]]
    dtypes: NotRequired[list[str]]
    parameter_count: NotRequired[int]
    flops: NotRequired[int]
    pointwise_flops: NotRequired[int]
    bytes_moved: NotRequired[int]
    uses_random: NotRequired[bool]
    mutated: NotRequired[list[str]]


class AdmissionRow(TypedDict):
    """What the examination of a problem found; without its findings where `ok` is false."""

    problem: str
    path: str
    ok: bool
    reason: str
    degenerate: NotRequired[str]
    labels: NotRequired[list[str]]
    notes: NotRequired[list[str]]
    device_name: NotRequired[str]
    arguments: NotRequired[list[dict[str, Any]]]
    flops: NotRequired[int]
    bytes_moved: NotRequired[int]
    floor_us: NotRequired[float | None]
    draws: NotRequired[list[str]]
    outputs: NotRequired[list[dict[str, Any]]]
    sensitivities: NotRequired[list[dict[str, Any]]]
    null_kernels: NotRequired[list[dict[str, Any]]]
    calibration: NotRequired[dict[str, Any] | None]
    seconds: NotRequired[float]
    problem_id: NotRequired[str]
    eager_us: NotRequired[float | None]  # null without --baselines
    compile_us: NotRequired[float | None]
    compile_note: NotRequired[str]  # why there is no `compile_us`, or what it is of


class SampledRow(TypedDict):
    """A problem whose candidates were written, to be judged elsewhere."""

    problem: str
    state: str
    candidates: int
    reason: str
    notice: str  # in which way its sizes are not those of the file; empty where they are


class ScoreRow(TypedDict):
    """A number over problems with Wilson's interval; `p` and `k` are null where they do not apply."""

    metric: str
    p: float | None
    k: int | None
    problems: int
    mean: float
    interval: list[float]


class ReplayedRow(TypedDict):
    """A judgement beside the recorded one."""

    kernel_id: str
    attempt: int
    round: int
    then: dict[str, Any]
    now: dict[str, Any] | None
    difference: str


class DiffersRow(TypedDict):
    """What a replay asked otherwise than the recorded run."""

    difference: str


class ReplaySummaryRow(TypedDict):
    """The end of a replay."""

    run_id: str
    judgements: int
    differences: int


class ExplorerRow(TypedDict):
    """An explorer that starts."""

    url: str
    archive: str


class VerifiedRow(ResultRow):
    """An exported package that was judged again; `holds` says whether its kernel passed here, `why_not` why it did not.

    The latter is of the kernel for the gradients too, whose verdict the row does not hold.
    """

    package: str
    form: str
    holds: bool
    why_not: str
    other_texts: list[str]
    other_libraries: list[str]


class CapturedRow(TypedDict):
    """A problem that was written from a program's calls; `modules` tells class, places, calls and kinds of calls."""

    out: str
    notes: list[str]
    modules: list[dict[str, Any]]


class ExportedRow(TypedDict):
    """A kernel that was written in a form that others load."""

    kernel_id: str
    form: str
    out: str


class SiteRow(TypedDict):
    """A static site that was written."""

    folder: str
    pages: int
    kernels: int
    problems: int
    largest_page_bytes: int
    bytes: int


class SpecimenRow(TypedDict):
    """One text of the zoo and what the judge said of it."""

    name: str
    kind: str
    family: str
    tier: str
    device: str
    ok: bool
    codes: list[str]
    reason: str
    stage_s: dict[str, float]


class ZooSummaryRow(TypedDict):
    """The end of a zoo."""

    specimens: int
    caught: int
    right_reason: int
    honest: int
    false_rejects: int
    false_flags: int


class WithoutRow(TypedDict):
    """What the judge misses without one of its defences."""

    without: str
    judged: int
    missed: list[str]
    instead: dict[str, Any]


class CheckRow(TypedDict):
    """Something that `doctor` tried on this machine; the last one is its conclusion."""

    check: str
    ok: bool
    required: bool
    detail: str
    next_step: str


class AgentSetupRow(TypedDict):
    """The files that tell a project's agents of the judge, and the lines that one has to be told by hand."""

    written: list[str]
    codex_toml: str


class ErrorRow(TypedDict):
    """Why a command ended early, in a sentence."""

    error: str


@dataclass(frozen=True, slots=True)
class JsonType:
    """Hold a record of one type of row, and the commands that print it."""

    record: Any
    commands: tuple[str, ...]


TYPES = {
    "attempt": JsonType(AttemptRow, ("generate", "eval", "grow")),
    "result": JsonType(ResultRow, ("generate", "eval")),
    "workload": JsonType(WorkloadRow, ("eval --shapes", "generate --shapes")),
    "total": JsonType(TotalRow, ("eval --shapes", "generate --shapes")),
    "problem": JsonType(ProblemRow, ("grow",)),
    "summary": JsonType(SummaryRow, ("grow", "eval --batch")),
    "sampled": JsonType(SampledRow, ("sample",)),
    "functional": JsonType(FunctionalRow, ("functionalize",)),
    "admission": JsonType(AdmissionRow, ("check",)),
    "hit": JsonType(HitRow, ("search",)),
    "solved": JsonType(Solved, ("report",)),
    "score": JsonType(ScoreRow, ("report",)),
    "replayed": JsonType(ReplayedRow, ("replay",)),
    "differs": JsonType(DiffersRow, ("replay",)),
    "replay_summary": JsonType(ReplaySummaryRow, ("replay",)),
    "trial": JsonType(AblationTrial, ("ablate",)),
    "arm": JsonType(Arm, ("ablate",)),
    "stats": JsonType(StatsRow, ("archive stats",)),
    "kernel": JsonType(KernelRow, ("archive show",)),
    "retracted": JsonType(RetractedRow, ("archive retract",)),
    "reindexed": JsonType(ReindexedRow, ("archive reindex",)),
    "bundle": JsonType(BundleRow, ("archive export", "archive import")),
    "card": JsonType(CardRow, ("archive cards",)),
    "imported": JsonType(ImportedRow, ("archive import --from",)),
    "form": JsonType(FormRow, ("archive functionalize",)),
    "audit": JsonType(AuditRow, ("archive verify",)),
    "reverified": JsonType(ReverifiedRow, ("archive reverify",)),
    "server": JsonType(ServerRow, ("archive serve",)),
    "explorer": JsonType(ExplorerRow, ("app",)),
    "verified": JsonType(VerifiedRow, ("verify",)),
    "captured": JsonType(CapturedRow, ("capture",)),
    "exported": JsonType(ExportedRow, ("export",)),
    "site": JsonType(SiteRow, ("app --export",)),
    "specimen": JsonType(SpecimenRow, ("zoo",)),
    "zoo_summary": JsonType(ZooSummaryRow, ("zoo",)),
    "without": JsonType(WithoutRow, ("zoo --ablate",)),
    "mutation": JsonType(MutationRow, ("mutate",)),
    "check": JsonType(CheckRow, ("doctor",)),
    "agent_setup": JsonType(AgentSetupRow, ("agent-setup",)),
    "error": JsonType(ErrorRow, ("all",)),
}
