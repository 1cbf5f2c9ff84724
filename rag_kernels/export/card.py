"""The evidence that goes with every exported kernel: what was judged, where, by what, and how fast it was.

Comes in: an attempt. Goes out: a dictionary for `card.json`, the same as Markdown, and both as comments of a
file. Knows nothing of formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.contract import contract_line
from rag_kernels.eval.records import Passed, Ratio, TensorArgument
from rag_kernels.export.evidence import BACKWARD, GRADIENTS, MARK, Pulled, packed, packed_names
from rag_kernels.version import __version__

Licence = Callable[[str], str]  # of a kernel, by its id; "" where it is not known


def _no_licence(kernel_id: str) -> str:
    return ""


def card(attempt: Attempt, form: str, licence: Licence | None = None) -> dict[str, Any]:
    """Return what is known of a kernel. Times are microseconds, intervals those of the judge."""
    judged, verdict = attempt.judged, attempt.judged.verdict
    environment, licence = judged.environment, licence or _no_licence
    row: dict[str, Any] = {
        "kernel": attempt.candidate.id,
        "problem": attempt.problem.problem.name,
        "form": form,
        "written_by": f"rag-kernels {__version__}",
        "verdict": type(verdict).__name__,
        "judged_at": attempt.created_at,
        "judge_version": environment.judge_version,
        "device": judged.device.name,
        "threads": environment.threads,
        "torch": environment.torch,
        "compiler": environment.compiler,
        "tier": attempt.candidate.tier,
        "licence": licence(attempt.candidate.id),
    }
    if isinstance(verdict, Passed):
        times = verdict.measurement
        row |= {
            "label": verdict.label,
            "labels": list(verdict.labels),
            "notes": list(verdict.notes),
            "workload": _workload(attempt),
            "precision": verdict.precision,
            "checks": list(verdict.checks),
            "serves": contract_line(verdict.contract) if verdict.contract else "the verified call alone",
            "error_ratio": verdict.error_ratio,
            "confirmed": times.confirmed,
            "candidate_us": times.candidate_us,
            "eager_us": times.eager_us,
            "compile_us": times.compile_us,
            "over_eager": _interval(times.speedup_eager),
            "over_compile": _interval(times.speedup_compile),
            "compile_note": times.compile_note,
            "pairs": times.pairs,
            "floor_us": times.floor_us,
        }
    sources: list[tuple[str, str]] = [(e.source, e.relation) for e in attempt.parents]
    named = {source for source, _ in sources}
    sources += [(e.kernel_id, "retrieved") for e in attempt.exemplars if e.kernel_id not in named]
    row["lineage"] = [{"kernel": k, "relation": r, "licence": licence(k)} for k, r in dict.fromkeys(sources)]
    row["evidence"] = packed(attempt)
    return row


def card_of_backward(forward: Attempt, backward: Pulled, licence: Licence | None = None) -> dict[str, Any]:
    """Return the card of a kernel for a forward's gradients, with their names."""
    row = card(backward.attempt, BACKWARD, licence)
    return row | {"forward": forward.candidate.id, GRADIENTS: packed_names(backward.names)}


def card_json(row: dict[str, Any]) -> str:
    """Return the text of `card.json`."""
    return json.dumps(row, indent=2) + "\n"


def card_text(row: dict[str, Any]) -> str:
    """Return the same as Markdown."""
    lines = [f"# {row['problem']}: kernel {row['kernel']}", ""]
    shown = {name: value for name, value in row.items() if value not in ("", [], None) and name != "evidence"}
    lines += [f"- {name.replace('_', ' ')}: {_told(value)}" for name, value in shown.items()]
    last = "The figures are of the device named above, and of no other. `rag-kernels verify` judges the kernel again."
    return "\n".join([*lines, "", last, ""])


def stamp(
    form: str, attempt: Attempt, licence: Licence | None = None, backward: Pulled | None = None, comment: str = "#"
) -> str:
    """Return the card as comments that end a text, with the evidence as its last line.

    The card of the kernel for its gradients stands before it, with their names.
    """
    lines = _stamp(form, attempt, licence)
    if backward is not None:
        named = f"{MARK}{GRADIENTS} {packed_names(backward.names)}"
        lines = [*_stamp(BACKWARD, backward.attempt, licence), named, "", *lines]
    return "\n".join(f"{comment} {line}".rstrip() for line in lines)


def _stamp(form: str, attempt: Attempt, licence: Licence | None) -> list[str]:
    row = card(attempt, form, licence)
    return [*card_text(row).splitlines(), f"{MARK}{form} {row['evidence']}"]


def _workload(attempt: Attempt) -> str:
    arguments = attempt.problem.arguments
    return ", ".join(
        f"{a.name}: {a.spec.dtype}{list(a.spec.shape)}" if isinstance(a, TensorArgument) else f"{a.name}: {a.value!r}"
        for a in arguments
    )


def _interval(ratio: Ratio | None) -> dict[str, float] | None:
    return None if ratio is None else {"median": ratio.median, "low": ratio.low, "high": ratio.high}


def _told(value: Any) -> str:
    if isinstance(value, dict) and "median" in value:
        return f"{value['median']:.2f}x ({value['low']:.2f} to {value['high']:.2f})"
    if isinstance(value, dict):
        return ", ".join(str(v) for v in value.values() if v)
    if isinstance(value, list):
        return "; ".join(map(_told, value))
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
