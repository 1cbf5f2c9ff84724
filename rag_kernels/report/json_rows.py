"""Records as flat rows: what `--json` prints, and what tables show.

Comes in: attempts, kernels, functional problems. Goes out: dicts of plain JSON values with stable keys. Knows
nothing of terminals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rag_kernels.archive.records import ArchivedKernel, Attempt, Claim
from rag_kernels.eval.build.step_form import step_told
from rag_kernels.eval.contract import contract_line
from rag_kernels.eval.machine.device import floor_us
from rag_kernels.eval.records import (
    BuildFailed,
    Compiled,
    Crashed,
    Device,
    FunctionalProblem,
    Judged,
    Passed,
    Rejected,
    TimedOut,
    Verdict,
    Wrong,
    verdict_name,
)
from rag_kernels.eval.told import told
from rag_kernels.llm.prompt_values import step_signatures
from rag_kernels.run.standings import winner

if TYPE_CHECKING:
    from rag_kernels.eval.admission_records import Admission
    from rag_kernels.experiments.scores import Score, Solved
    from rag_kernels.long_runs.growth import Grown
    from rag_kernels.long_runs.replay import Replayed
    from rag_kernels.retrieval.retriever import Hit
    from rag_kernels.run.reverify import Reverified
    from rag_kernels.run.workloads import Served, Total

Row = dict[str, Any]

UNMEASURED: Row = dict.fromkeys(
    (
        "label",
        "precision",
        "error_ratio",
        "speedup",
        "speedup_eager",
        "speedup_compile",
        "at_least",
        "speedup_eager_median",
        "speedup_compile_median",
        "speedup_eager_interval",
        "speedup_compile_interval",
        "candidate_us",
        "eager_us",
        "compile_us",
        "floor_us",
        "floor_fraction",
        "confirmed",
        "serves",
    )
)


def served_row(served: Served) -> Row:
    """Return what came of a kernel on one workload."""
    row = judged_row(served.attempt.judged)
    sizes = dict(served.workload.sizes)
    told = {"workload": served.workload.name, "sizes": sizes, "weight": served.workload.weight}
    return {**told, "run": served.attempt.run_id, "kernel_id": served.attempt.candidate.id, **row}


def total_row(total: Total, *, workloads: int) -> Row:
    """Return what all workloads take together; ratios are of the sums, and null where none passed."""

    def over(us: float | None) -> float | None:
        return us / total.candidate_us if us is not None and total.candidate_us else None

    return {
        "workloads": workloads,
        "passed": total.passed,
        "candidate_us": total.candidate_us,
        "eager_us": total.eager_us,
        "compile_us": total.compile_us,
        "speedup_eager": over(total.eager_us),
        "speedup_compile": over(total.compile_us),
        "at_least": not total.confirmed,
    }


def judged_row(judged: Judged) -> Row:
    """Return what the verdict says, with the measurement's keys always there (null when nothing was measured).

    The speed-ups are those that are told of the kernel: with `at_least` they are the lower ends of their intervals.
    """
    verdict: Verdict = judged.verdict
    row: Row = {"verdict": verdict_name(verdict), "reason": "", **UNMEASURED}
    if (said := told(judged)) is not None:
        row |= {
            "speedup": said.speedup,
            "speedup_eager": said.over_eager,
            "speedup_compile": said.over_compile,
            "at_least": not said.confirmed,
            "floor_fraction": said.of_floor,
        }
    match verdict:
        case Passed(label=label, precision=precision, error_ratio=error_ratio, measurement=m):
            over_compile = m.speedup_compile
            row |= {
                "label": label,
                "precision": precision,
                "error_ratio": error_ratio,
                "speedup_eager_median": m.speedup_eager.median,
                "speedup_compile_median": over_compile.median if over_compile else None,
                "speedup_eager_interval": [m.speedup_eager.low, m.speedup_eager.high],
                "speedup_compile_interval": [over_compile.low, over_compile.high] if over_compile else None,
                "candidate_us": m.candidate_us,
                "eager_us": m.eager_us,
                "compile_us": m.compile_us,
                "floor_us": m.floor_us,
                "candidate_extra_bytes": m.candidate_extra_bytes,
                "eager_extra_bytes": m.eager_extra_bytes,
                "confirmed": m.confirmed,
                "trust": verdict.trust,
                "labels": list(verdict.labels),
                "claims_speed": verdict.claims_speed,
                "serves": contract_line(verdict.contract) if verdict.contract else None,
                "notes": list(verdict.notes) + ([m.compile_note] if m.compile_note else []),
            }
        case Wrong(error_ratio=error_ratio, input_class=input_class, where=where):
            row |= {"reason": verdict.reason, "error_ratio": error_ratio, "input_class": input_class, "where": where}
        case BuildFailed(log=text) | Crashed(log=text):
            row |= {"reason": verdict.reason, "log": text}
        case TimedOut(stage=stage):
            row |= {"reason": verdict.reason, "stage": stage}
        case Rejected(code=code):
            row |= {"reason": verdict.reason, "code": code}
        case Compiled():
            row |= {"reason": verdict.reason}
    return row


def attempt_row(attempt: Attempt) -> Row:
    return {
        "run_id": attempt.run_id,
        "problem": attempt.problem.problem.name,
        "attempt": attempt.number,
        "round": attempt.round,
        "kernel_id": attempt.candidate.id,
        "tier": attempt.candidate.tier,
        "writer": attempt.writer,
        "model": attempt.model,
        "idea": attempt.idea,
        "note": attempt.note,
        "device": attempt.candidate.backend,
        "device_name": attempt.judged.device.name,
        "step": _step(attempt),
        **judged_row(attempt.judged),
        "exemplars": [e.kernel_id for e in attempt.exemplars],
        "parents": [{"kernel_id": e.source, "relation": e.relation} for e in attempt.parents],
        "stage_s": attempt.judged.stage_s,
        "cost_usd": attempt.cost_usd,
        "seconds": attempt.seconds,
    }


def _step(attempt: Attempt) -> str:
    """Return what is told of a right kernel of a training step; "" for others."""
    of_step = attempt.problem.step is not None and isinstance(attempt.judged.verdict, Passed)
    return step_told(attempt.problem, attempt.candidate.source) if of_step else ""


def result_row(
    attempts: Sequence[Attempt],
    *,
    run_id: str | None,
    problem: str,
    best: Attempt | None = None,
    out: str | None = None,
    why: str = "",
) -> Row:
    """Return the row that closes a run: the winner (or `best`), or the last attempt when nothing passed.

    `why` the run ended is the reason where nothing was written. `kernel_id` is null unless a kernel passed. `attempts`
    counts candidates, not confirmations.
    """
    best = best or winner(attempts)
    shown = best or next((a for a in reversed(attempts) if isinstance(a.judged.verdict, Compiled)), None)
    shown = shown or (attempts[-1] if attempts else None)
    if shown is None:
        return {
            "run_id": run_id,
            "problem": problem,
            "kernel_id": None,
            "verdict": None,
            "reason": f"No candidate was written: {why[0].lower()}{why[1:]}" if why else "No candidate was written.",
            **UNMEASURED,
            "tier": None,
            "writer": None,
            "model": None,
            "device": None,
            "step": "",
            "exemplars": [],
            "attempts": 0,
            "seconds": 0.0,
            "cost_usd": 0.0,
            "out": None,
        }
    costs = [a.cost_usd for a in attempts]
    known = [c for c in costs if c is not None]
    return {
        **attempt_row(shown),
        "kernel_id": best.candidate.id if best else None,
        "graph_key": shown.problem.graph_key,
        "attempts": len({a.candidate.id for a in attempts}),
        "seconds": sum(a.seconds for a in attempts),
        "cost_usd": sum(known) if len(known) == len(costs) else None,
        "out": out,
    }


def grown_row(grown: Grown) -> Row:
    """Return what a growth made of one problem: its result, with a `state` of done, skipped or failed."""
    run_id = grown.attempts[0].run_id if grown.attempts else None
    row = result_row(grown.attempts, run_id=run_id, problem=grown.name)
    state = "failed" if grown.failure else "skipped" if grown.skipped else "done"
    return {**row, "state": state, "reason": grown.failure or row["reason"]}


def kernel_row(kernel: ArchivedKernel, **extra: Any) -> Row:
    """Return an archived kernel without its sources."""
    return {
        "kernel_id": kernel.id,
        "problem": kernel.problem_name,
        **extra,
        "tier": kernel.tier,
        "backend": kernel.backend,
        "trust": kernel.trust,
        "retracted": kernel.retracted,
        "stale": kernel.stale,
        "label": kernel.label,
        "labels": list(kernel.labels),
        "precision": kernel.precision,
        "idea": kernel.idea,
        "writer": kernel.writer,
        "model": kernel.model,
        "graph_key": kernel.graph_key,
        "operators": list(kernel.operators),
        "device": kernel.device_name,
        "candidate_us": kernel.candidate_us,
        "eager_us": kernel.eager_us,
        "compile_us": kernel.compile_us,
        "speedup": kernel.speedup,
        "speedup_eager": kernel.speedup_eager,
        "speedup_compile": kernel.speedup_compile,
        "at_least": kernel.at_least,
        "floor_fraction": kernel.floor_fraction,
        "created_at": kernel.created_at,
    }


def claim_row(claim: Claim) -> Row:
    """Return what an imported kernel's source says of it."""
    return {**asdict(claim), "notes": list(claim.notes)}


def hit_row(hit: Hit) -> Row:
    """Return a kernel that was found, with everything that its score is made of."""
    return kernel_row(
        hit.kernel,
        score=round(hit.score, 4),
        named=round(hit.why.named, 4),
        reasons=list(hit.why.short),
        signals=[asdict(signal) for signal in hit.why.signals],
        factors=[asdict(factor) for factor in hit.why.factors],
    )


def functional_row(problem: FunctionalProblem) -> Row:
    """Return the parameterized call and its features."""
    features = problem.features
    return {
        "graph_key": problem.graph_key,
        "source": problem.source,
        "step": step_signatures(problem),
        "notice": problem.notice,
        "operators": list(features.operators),
        "ranks": list(features.ranks),
        "dtypes": list(features.dtypes),
        "parameter_count": features.parameter_count,
        "flops": features.flops,
        "pointwise_flops": features.pointwise_flops,
        "bytes_moved": features.bytes_moved,
        "uses_random": problem.uses_random,
        "mutated": [*problem.mutated, *(f"input {path}" for path in problem.written)],
    }


def admission_row(problem: FunctionalProblem, device: Device, admission: Admission) -> Row:
    """Return what the examination of a problem found; numbers that are not finite are null."""
    found = admission.examination
    row = {
        "degenerate": admission.degenerate,
        "labels": admission.labels,
        "notes": [*admission.notes, *([problem.notice] if problem.notice else [])],
        "device_name": device.name,
        "arguments": [asdict(argument.spec) | {"name": argument.name} for argument in problem.tensors],
        "flops": problem.features.flops,
        "bytes_moved": problem.features.bytes_moved,
        "floor_us": floor_us(problem.features, device),
        "draws": found.kinds,
        "outputs": [asdict(output) for output in found.outputs],
        "sensitivities": [asdict(sensitivity) for sensitivity in found.sensitivities],
        "null_kernels": [asdict(null) for null in found.null_kernels],
        "calibration": asdict(found.calibration) if found.calibration else None,
        "seconds": found.seconds,
    }
    plain = _plain(row)
    assert isinstance(plain, dict)
    return plain


def replayed_row(replayed: Replayed) -> Row:
    """Return a judgement beside the recorded one. `speedup` is null where nothing was measured."""
    then, again = replayed.recorded, replayed.again
    return {
        "kernel_id": then.candidate.id,
        "attempt": then.number,
        "round": then.round,
        "then": said_of(then.judged),
        "now": None if again is None else said_of(again.judged),
        "difference": replayed.difference,
    }


def solved_row(solved: Solved) -> Row:
    return {**asdict(solved), "speedups": list(solved.speedups)}


def score_row(score: Score) -> Row:
    """Return a number with Wilson's interval; `p` and `k` are null where they do not apply."""
    found = score.interval
    return {**asdict(score), "mean": found.mean, "interval": [found.low, found.high]}


def said_of(judged: Judged) -> Row:
    """Return a verdict with the speed-up that is told of it; null where nothing was measured."""
    said = told(judged)
    return {
        "verdict": verdict_name(judged.verdict),
        "speedup": None if said is None else said.speedup,
        "at_least": None if said is None else not said.confirmed,
    }


def _plain(value: Any) -> Any:
    """Return a number, or None for one that is not finite: JSON has no infinity."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def reverified_row(result: Reverified) -> Row:
    """Return a new judgement. `state` is holds, stale, fails here or not judged; `was` is what the archive said
    before.
    """
    nothing = {"verdict": None, "speedup": None, "at_least": None}
    return {
        "kernel_id": result.due.candidate.id,
        "problem": result.due.problem.name,
        **(nothing if result.attempt is None else said_of(result.attempt.judged)),
        "was": {"trust": result.due.trust, "speedup": result.due.speedup},
        "state": result.state,
        "reason": result.why_not if result.mark is None else result.mark.reason,
    }
