"""Kernels that compute nothing, or less than they should: each must fail on every problem that is worth solving.

Comes in: what is right on each kind of inputs, and other right answers. Goes out: a `NullKernel` row for each. Scored
by the judge's own rule and, to say what another harness would accept, by allclose with 1e-2.
Runs in a child process, never beside a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from rag_kernels.eval.admission_records import NullKernel
from rag_kernels.eval.numerics.compare import compare

KERNELBENCH = 1e-2  # atol and rtol
Outputs = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sample:
    """One kind of inputs with what is right; `others` makes the outputs of runs on other inputs, by name."""

    kind: str
    values: dict[str, torch.Tensor]
    inputs: frozenset[str]
    reference: Outputs
    oracle: Outputs
    others: dict[str, Callable[[], Outputs]] = field(default_factory=dict)


def tried_null_kernels(samples: Sequence[Sample], out_of_time: Callable[[], bool]) -> tuple[NullKernel, ...]:
    """Return a row for each null kernel that can be made for this problem.

    The first sample being the problem as given.
    """
    rows = []
    for name, make in null_kernels(samples[0]):
        if name in samples[0].others and name != "previous output" and out_of_time():
            continue
        outputs = make()
        passes_own, ratio = _score(samples[0], outputs)
        passes = passes_own and all(_passes(sample, name) for sample in samples[1:])
        rows.append(NullKernel(name, passes, passes_own, ratio, _kernelbench(outputs, samples[0].reference)))
    return tuple(rows)


def null_kernels(sample: Sample) -> Iterator[tuple[str, Callable[[], Outputs]]]:
    """Yield what each would return. An average of one element is the element itself, so those are left out."""
    right = sample.reference
    yield "zeros", lambda: [torch.zeros_like(t) for t in right]
    yield "ones", lambda: [torch.ones_like(t) for t in right]
    floats = all(t.is_floating_point() for t in right)
    if floats and any(t.numel() > 1 for t in right):
        yield "global mean", lambda: [t.double().mean().to(t.dtype).expand_as(t) for t in right]
    ranks = {t.dim() for t in right}
    for axis in range(max(ranks)) if floats and len(ranks) == 1 and max(ranks) > 1 else ():
        if any(t.shape[axis] > 1 for t in right):
            yield f"mean over axis {axis}", partial(_axis_means, right, axis)
    if any(t.dim() > 1 and t.shape[0] > 1 for t in right):
        yield "first row repeated", lambda: [t[:1].expand_as(t) if t.dim() > 1 else t for t in right]
    for name in sorted(sample.inputs):
        value = sample.values[name]
        if len(right) == 1 and value.shape == right[0].shape and value.dtype == right[0].dtype:
            yield f"copy of {name}", partial(list, [value])
    yield from sample.others.items()


def _axis_means(right: Outputs, axis: int) -> Outputs:
    return [t.double().mean(axis, keepdim=True).to(t.dtype).expand_as(t) for t in right]


def _passes(sample: Sample, name: str) -> bool:
    make = dict(null_kernels(sample)).get(name)
    return make is None or _score(sample, make())[0]


def _score(sample: Sample, outputs: Outputs) -> tuple[bool, float]:
    rows = [
        compare(got, reference, oracle)
        for got, reference, oracle in zip(outputs, sample.reference, sample.oracle, strict=True)
    ]
    return all(row.ok for row in rows), max(row.ratio for row in rows)


def _kernelbench(outputs: Outputs, reference: Outputs) -> bool:
    pairs = zip(outputs, reference, strict=True)
    return all(torch.allclose(got.double(), right.double(), atol=KERNELBENCH, rtol=KERNELBENCH) for got, right in pairs)
