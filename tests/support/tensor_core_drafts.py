"""Texts for tensor cores: as they were asked for, and how far off PyTorch they are where they run emulated."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.compose import Plan, write
from rag_kernels.offline.cuda.function import CudaParameters
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, worst_ratio

RATIO = 1.1  # of PyTorch's own error, which rounds after every operator


TAIL = "return F.gelu(self.l(x)) * self.s + y, (x @ x.t()).sigmoid()"


def drafted(
    name: str, case: Case, parameters: CudaParameters, *words: str, tier: str = "kernel", regions: int | None = None
) -> tuple[FunctionalProblem, Plan]:
    """Return a problem and its plan, a text of this tier with these words and so many regions."""
    fp = functional(name.replace(" ", "_"), case)
    plan = write(fp, parameters)
    assert plan is not None and plan.candidate.tier == tier and regions in (None, plan.regions)
    assert [word for word in words if word not in plan.candidate.source] == []
    return fp, plan


def ratio(plan: Plan, fp: FunctionalProblem, folder: Path) -> float:
    folder.mkdir(exist_ok=True)
    return worst_ratio(fp, numbers.caller(plan, fp, folder))


def ratio_on_two_devices(plan: Plan, fp: FunctionalProblem, folder: Path, patch: pytest.MonkeyPatch) -> float:
    """The same where a library runs on two devices: what was set on one is not set on the other."""
    call, found = numbers.caller(plan, fp, folder), list[float]()
    for device in ("0", "1"):
        patch.setenv("EMULATED_DEVICE", device)
        found.append(worst_ratio(fp, call))
    return max(found)


def limit(parameters: CudaParameters) -> float:
    """Return how far off PyTorch in fp32 a product may be: TF32 rounds both factors to eleven bits."""
    return 2**12 if parameters.tensor == 2 else RATIO


def for_hopper(plan: Plan, condition: str = "built") -> Plan:
    """The plan with a source that fails where the copy engine (or another kernel of this condition) cannot serve."""
    must = r'RK_CHECK(\1, "another kernel would serve"); if (\1) {'
    source, count = re.subn(rf"if \(({condition} && .*)\) \{{", must, plan.candidate.source)
    assert count
    return dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=source))
