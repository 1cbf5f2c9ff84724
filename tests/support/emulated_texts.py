"""CUDA texts of short cases: written for small blocks, and held to fp64 as they run emulated."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from emulated_cuda import build_emulated

from rag_kernels.offline.compose import write
from rag_kernels.offline.cuda.function import CudaParameters
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, worst_ratio

SMALL = replace(numbers.SMALL, products=2)


def right_text(case: Case, folder: Path, parameters: CudaParameters = SMALL) -> str:
    """The text of a case's kernel, which is as exact as PyTorch."""
    fp = functional("ordinary", case)
    plan = write(fp, parameters)
    assert plan is not None and plan.candidate.tier == "kernel"
    here = folder / plan.candidate.id
    here.mkdir()
    module = build_emulated(plan.candidate.source, here)

    def call(*tensors: numbers.torch.Tensor) -> list[numbers.torch.Tensor]:
        outputs = numbers.empty_outputs(fp)
        module.forward(*tensors, *(v for _, v in fp.abi_constants), *outputs)
        return outputs

    assert worst_ratio(fp, call) < numbers.RATIO
    return plan.candidate.source


def heads(text: str) -> list[str]:
    """The comments over the kernels, each once."""
    return list(dict.fromkeys(re.findall(r"^// (\w[\w, ]*: .*)\n(?:template .*> )?__global__", text, re.M)))
