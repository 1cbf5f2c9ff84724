"""The nouns that an agent hears: a described problem, an archived kernel, a judged one, a job.

Comes in: the house's own records. Goes out: flat records, whose fields are the schema of the tools' results. No field
holds a tolerance, a seed or an expected value. Knows nothing of protocols.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.machine.device import floor_us
from rag_kernels.eval.records import Device, FunctionalProblem, Passed, Wrong, verdict_name
from rag_kernels.eval.told import told
from rag_kernels.feedback.bottleneck import bound
from rag_kernels.feedback.explain import explain
from rag_kernels.llm.prompt_values import arguments, composed_signature, signature
from rag_kernels.retrieval.retriever import Hit

# Without slots: the SDK takes the descriptors of slots for defaults when it makes a schema.
_LIMIT = re.compile(r" \(limit [^)]*\)")  # how much error is let through: an agent that aims at it is not right

State = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel, in the order of the call; `value` is a shape, or a constant's value."""

    name: str
    what: str
    cpp_type: str
    value: str


@dataclass(frozen=True)
class DescribedProblem:
    """A problem as a call. `degenerate` says how a kernel that computes nothing would pass; empty where none would."""

    name: str
    problem: str
    functional_source: str
    arguments: list[Argument]
    kernel_signature: str
    composed_signature: str
    device: str
    megabytes_moved: float
    mflop: float
    floor_us: float
    floor_set_by: str
    degenerate: str
    notes: list[str]


@dataclass(frozen=True)
class FoundKernel:
    """An archived kernel; its text is the resource `uri`. Speed-ups are over PyTorch on `device`."""

    kernel_id: str
    uri: str
    problem: str
    trust: str
    backend: str
    device: str
    speedup_eager: float | None
    speedup_compile: float | None
    at_least: bool
    idea: str
    why: list[str]


@dataclass(frozen=True)
class JudgedKernel:
    """A verdict. With `at_least` the speed-ups are lower ends of intervals: nothing has confirmed them yet.

    `speedup` is over the better of eager and torch.compile, and its interval is of about 95 %.
    """

    kernel_id: str
    uri: str
    verdict: str
    feedback: str
    label: str | None = None
    labels: tuple[str, ...] = ()
    precision: str | None = None
    wrong_on: str | None = None
    wrong_at: str | None = None
    error_ratio: float | None = None
    speedup: float | None = None
    speedup_interval: tuple[float, float] | None = None
    at_least: bool | None = None
    candidate_us: float | None = None
    eager_us: float | None = None
    compile_us: float | None = None
    floor_us: float | None = None
    share_of_floor: float | None = None


@dataclass(frozen=True)
class JobReport:
    """How a piece of work stands. Ask `judge_status` again while it is queued or running. `results` only grow."""

    job: str
    state: State
    what: str
    seconds: float
    results: list[JudgedKernel]
    message: str


def kernel_uri(kernel_id: str) -> str:
    return f"kernel://{kernel_id}"


def described(
    problem: FunctionalProblem, path: str, device: Device, *, precision: str, degenerate: str, notes: list[str]
) -> DescribedProblem:
    """Return a problem as an agent sees it."""
    features = problem.features
    return DescribedProblem(
        name=problem.problem.name,
        problem=path,
        functional_source=problem.source.strip(),
        arguments=[Argument(*row.values()) for row in arguments(problem, device.backend)],
        kernel_signature=signature(problem, device.backend),
        composed_signature=composed_signature(problem),
        device=f"{device.name} ({device.arch})",
        megabytes_moved=features.bytes_moved / 1e6,
        mflop=(features.flops + features.pointwise_flops) / 1e6,
        floor_us=floor_us(features, device, precision),
        floor_set_by=bound(features, device, precision),
        degenerate=degenerate,
        notes=[*notes, *([problem.notice] if problem.notice else [])],
    )


def found_kernel(hit: Hit) -> FoundKernel:
    """Return a kernel that a search found."""
    k = hit.kernel
    device = k.device_name or "an unknown device"
    return FoundKernel(
        kernel_id=k.id,
        uri=kernel_uri(k.id),
        problem=k.problem_name,
        trust=k.trust,
        backend=k.backend,
        device=device,
        speedup_eager=k.speedup_eager,
        speedup_compile=k.speedup_compile,
        at_least=k.at_least,
        idea=k.idea,
        why=list(hit.reasons),
    )


def judged_kernel(attempt: Attempt, *, precision: str = "strict") -> JudgedKernel:
    """Return what the judge found of a candidate, with what to look at next."""
    judged, features = attempt.judged, attempt.problem.features
    verdict, kernel_id = judged.verdict, attempt.candidate.id
    call = signature(attempt.problem, judged.device.backend)
    account = explain(verdict, device=judged.device, features=features, precision=precision, signature=call)
    feedback = _LIMIT.sub("", account)
    base = JudgedKernel(kernel_id, kernel_uri(kernel_id), verdict_name(verdict), feedback)
    if isinstance(verdict, Wrong):
        return replace(
            base, wrong_on=verdict.input_class, wrong_at=_LIMIT.sub("", verdict.where), error_ratio=verdict.error_ratio
        )
    said = told(judged)
    if said is None or not isinstance(verdict, Passed):
        return base
    m = verdict.measurement
    return replace(
        base,
        label=verdict.label,
        labels=verdict.labels,
        precision=verdict.precision,
        error_ratio=verdict.error_ratio,
        speedup=said.speedup,
        speedup_interval=(m.over_better.low, m.over_better.high),
        at_least=not said.confirmed,
        candidate_us=m.candidate_us,
        eager_us=m.eager_us,
        compile_us=m.compile_us,
        floor_us=m.floor_us,
        share_of_floor=said.of_floor,
    )
