"""The values that prompt templates are rendered with: of a problem, a machine and exemplars.

Comes in: a `Brief`'s records. Goes out: plain values. Knows nothing of models and of how a round is planned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from rag_kernels.archive.records import Attempt, Claim, Trust
from rag_kernels.eval.build.step_form import pulled_arguments
from rag_kernels.eval.element_types import element_type
from rag_kernels.eval.machine.ceilings import RATES, product_rate
from rag_kernels.eval.machine.device import bytes_us, floor_us, target_of
from rag_kernels.eval.records import (
    Backend,
    BaselineTimes,
    Device,
    Features,
    FunctionalProblem,
    Passed,
    ScalarArgument,
    TensorSpec,
)
from rag_kernels.eval.source_form import form_of
from rag_kernels.feedback import explain
from rag_kernels.feedback.bottleneck import bound
from rag_kernels.ingest.functional.functionalize import SCALED
from rag_kernels.records import Brief, Shown
from rag_kernels.text.called import called_only
from rag_kernels.text.tokens import estimate_tokens

TRUSTED: dict[Trust, str] = {
    "claimed": "claimed by its maker and not judged here",
    "compiled": "compiled, never run",
    "verified": "right by this judge",
    "confirmed": "right by this judge, twice",
}
SIXTEEN = {"fp16": "float16", "bf16": "bfloat16"}  # rates by the dtype that each is of
OF_RANKING = (
    "bm25 ",
    "dense ",
    "graph ",
    "remedy ",
    "claims ",
    "won ",
    "lost, ",
)  # reasons that say nothing to a writer
Row = dict[str, str]


def arguments(problem: FunctionalProblem, backend: Backend) -> list[Row]:
    """Return a row for each argument of the kernel, in the order of the call: arguments, constants, outputs."""
    rows: list[Row] = []
    for a in problem.arguments:
        if isinstance(a, ScalarArgument):
            if isinstance(a.value, bool | int | float):
                rows.append(_row(a.name, "input", _number(a.value), repr(a.value)))
        else:
            rows.append(_row(a.name, a.role, _tensor(a.spec, backend, const=True), _shape(a.spec)))
    rows += [_row(name, "constant", _number(value), repr(value)) for name, value in problem.abi_constants]
    for name, spec in zip(output_names(problem), problem.outputs, strict=True):
        rows.append(_row(name, "output", _tensor(spec, backend, const=False), _shape(spec)))
    return rows


def output_names(problem: FunctionalProblem) -> list[str]:
    taken = {a.name for a in problem.arguments} | {name for name, _ in problem.abi_constants}
    stem = "out" if "out" not in taken and "out_0" not in taken else "result"
    return [stem] if len(problem.outputs) == 1 else [f"{stem}_{i}" for i in range(len(problem.outputs))]


def signature(problem: FunctionalProblem, backend: Backend) -> str:
    """Return the C++ declaration that a kernel must have, with the export line."""
    parameters = ",\n            ".join(f"{row['cpp']} {row['name']}" for row in arguments(problem, backend))
    return f"void kernel({parameters});\nRK_EXPORT(forward, kernel)"


def composed_signature(problem: FunctionalProblem) -> str:
    """Return the line that begins the `forward` of a composed source; constants are keyword arguments."""
    keywords = ["*", *(name for name, _ in problem.constants)] if problem.constants else []
    return f"def forward({', '.join([*(a.name for a in problem.arguments), *keywords])}):"


def step_signatures(problem: FunctionalProblem) -> str:
    """Return the lines that begin the functions of a training step's source; "" for other problems."""
    if problem.step is None:
        return ""
    taken = ", ".join(a.name for a in problem.arguments[pulled_arguments(problem.arguments, problem.step) :])
    keywords = ", ".join(["", "*", *(name for name, _ in problem.constants)]) if problem.constants else ""
    return f"def forward({taken}{keywords}):\ndef backward(grads, saved, {taken}{keywords}):"


def contract_values(device: Device, precision: str = "strict") -> dict[str, Any]:
    """Return all values that `system.jinja` needs. `hopper` says that the target has the copy engine and clusters."""
    target = target_of(device.arch)
    generation = re.match(r"sm_(\d+)\d", target)
    hopper = generation is not None and int(generation[1]) >= 9
    return {"backend": device.backend, "target": target, "precision": precision, "hopper": hopper}


def problem_values(brief: Brief, hardware: Sequence[str] = (), precision: str = "strict") -> dict[str, Any]:
    """Return all values that `problem.jinja` needs. `precision` is the lowest that products may be computed in."""
    problem, device = brief.problem, brief.device
    features = problem.features
    rate_name, rate = product_rate(features, device, precision)
    floor, of_bytes = floor_us(features, device, precision), bytes_us(features, device)
    return {
        "name": problem.problem.name,
        "functional_source": problem.source.strip(),
        "arguments": arguments(problem, device.backend),
        "signature": signature(problem, device.backend),
        "composed_signature": composed_signature(problem),
        "step": step_signatures(problem),
        "forward_outputs": problem.step.outputs if problem.step else 0,
        "device": device,
        "target": target_of(device.arch),
        "rates": rates(device),
        "notice": problem.notice if problem.notice.startswith(SCALED) else "",
        "megabytes": f"{features.bytes_moved / 1e6:.3g}",
        "mflops": f"{(features.flops + features.pointwise_flops) / 1e6:.3g}",
        "bytes_us": f"{of_bytes:.3g}",
        "floor_us": f"{floor:.3g}",
        "rate": f"{rate:.3g} GFLOP/s in {told_rate(rate_name, features)}" if features.flops else "",
        "bound": bound(features, device, precision),
        "floor_is_beaten": _fastest_baseline_us(brief) < floor,
        "hardware": "; ".join(hardware),
        "baselines": baselines(brief),
        "hint": " ".join(filter(None, [brief.hint.strip(), told_sizes(brief.also)])),
        "cards": brief.cards,
        "history": explain.history(brief.attempts),
        "elsewhere": [],
        "fastest": None,
        "lessons": brief.learnt.lessons,
        "repeats": brief.learnt.repeats,
    }


def told_sizes(names: Sequence[str]) -> str:
    """Return what a writer is told of the sizes at which its kernel will be judged besides."""
    return f"The kernel will be judged at these sizes too: {'; '.join(names)}." if names else ""


def told_rate(name: str, features: Features) -> str:
    """Return the name of a rate of products as a writer should read it: one of sixteen bits may be of either kind."""
    own = {short for short, dtype in SIXTEEN.items() if dtype in {*features.dtypes, *features.product_dtypes}}
    return "numbers of sixteen bits" if name in SIXTEEN and name not in own else name


def rates(device: Device) -> str:
    """Return the device's measured rates of products by dtype, those that are known."""
    known = {name.removesuffix("_gflops"): getattr(device, name) for name in RATES if name.endswith("_gflops")}
    told = {"fp32": "fp32 (three TF32 products of split numbers count as one of fp32)"} if device.tf32_gflops else {}
    return ", ".join(f"{rate:.3g} in {told.get(name, name)}" for name, rate in known.items() if rate)


def baselines(brief: Brief) -> str:
    """Return baseline times: as measured beside the newest candidate that passed, else as timed before; or nothing."""
    times = _baseline_times(brief)
    if not times:
        return ""
    compiled = f", torch.compile {times[-1].compile_us:.0f} us" if times[-1].compile_us is not None else ""
    return f"eager {times[-1].eager_us:.0f} us{compiled}"


def _baseline_times(brief: Brief) -> list[BaselineTimes]:
    measured = [a.judged.verdict.measurement for a in brief.attempts if isinstance(a.judged.verdict, Passed)]
    before = [brief.baselines] if brief.baselines else []
    return before + [BaselineTimes(m.eager_us, m.compile_us) for m in measured]


def _fastest_baseline_us(brief: Brief) -> float:
    times = _baseline_times(brief)
    return min((us for t in times for us in (t.eager_us, t.compile_us) if us is not None), default=math.inf)


def exemplar_values(shown: Sequence[Shown]) -> list[dict[str, Any]]:
    """Return all values that `exemplars.jinja` needs: of sources what they call."""
    return [
        {
            "problem_name": s.kernel.problem_name,
            "result": _result(s),
            "why": ", ".join(r for r in s.exemplar.reasons if not r.startswith(OF_RANKING)) or "similar",
            "idea": " ".join(s.kernel.idea.split()),
            "language": form_of(s.kernel.candidate).language,
            "source": called_only(s.kernel.source).strip(),
            "gain": f"{s.lesson.gain:.2g}" if s.lesson else "",
            "change": s.lesson.change if s.lesson else "",
            "counted": s.counted,
            "counted_before": s.lesson.counted if s.lesson else "",
        }
        for s in shown
    ]


def within(shown: Sequence[Shown], tokens: int) -> tuple[Shown, ...]:
    """Return the exemplars, in order, whose sources fit into the token budget as they are shown; one that does not fit
    is left out whole.
    """
    kept: list[Shown] = []
    for s in shown:
        need = estimate_tokens(called_only(s.kernel.source) + (s.lesson.change if s.lesson else ""))
        if need <= tokens:
            kept.append(s)
            tokens -= need
    return tuple(kept)


def parent_values(attempt: Attempt, brief: Brief, precision: str = "strict") -> Row:
    """Return the values of a parent of a repair, an improvement or a recombination."""
    return {
        "title": f"Attempt {attempt.number}",
        "idea": " ".join(attempt.idea.split()),
        "language": form_of(attempt.candidate).language,
        "source": attempt.candidate.source.strip(),
        "feedback": explain.explain(
            attempt.judged.verdict, device=brief.device, features=brief.problem.features, precision=precision
        ),
    }


def fastest(brief: Brief) -> Attempt | None:
    """Return the fastest attempt of the run so far; None before one is right."""
    right = [a for a in explain.latest(brief.attempts) if explain.speed(a) is not None]
    return max(right, key=lambda a: explain.speed(a) or 0.0, default=None)


def _claimed(claim: Claim) -> str:
    """Return what the maker of a kernel says of its time, beside PyTorch's."""
    beside = [
        f"{name} {us:.0f} us"
        for name, us in (("eager", claim.eager_us), ("torch.compile", claim.compile_us))
        if us is not None
    ]
    told = f" ({', '.join(beside)})" if beside else ""
    return f"{claim.candidate_us:.0f} us{told} by its maker's clock on {claim.device_name or 'an unknown device'}"


def _result(s: Shown) -> str:
    k = s.kernel
    if s.claim is not None:
        return f"{k.label or k.tier}, {TRUSTED[k.trust]}: {_claimed(s.claim)}"
    speed = f"{k.speedup:.2f}x over the better of eager and torch.compile" if k.speedup is not None else "not timed"
    at_least = "at least " if k.at_least and k.speedup is not None else ""
    return f"{k.label or k.tier}, {TRUSTED[k.trust]}: {at_least}{speed} on {k.device_name or 'an unknown device'}"


def _row(name: str, what: str, cpp: str, value: str) -> Row:
    return {"name": name, "what": what, "cpp": cpp, "value": value}


def _number(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64_t" if isinstance(value, int) else "double"


def _tensor(spec: TensorSpec, backend: Backend, *, const: bool) -> str:
    inner = element_type(spec.dtype, backend) or f"/* {spec.dtype}: no kernel form, compose */ void"
    return f"rk::Tensor<{'const ' if const else ''}{inner}>"


def _shape(spec: TensorSpec) -> str:
    return f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
