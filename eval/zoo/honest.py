"""The honest corpus: kernels that a fair judge accepts, by many algorithms over a few dozen small problems.

Comes in: nothing. Goes out: `honest_kernels()` for the CPU and `cuda_kernels()`. How many of them a judge rejects
is its false-reject rate; `tests/bench/honest_corpus.py` measures it. Knows nothing of verdicts.
"""

from __future__ import annotations

from rag_kernels.eval.zoo import (
    families_conv,
    families_cuda,
    families_index,
    families_library,
    families_matmul,
    families_norm,
    families_pairs,
    families_point,
    families_reduce,
    families_softmax,
)
from rag_kernels.eval.zoo.pieces import Honest as Honest

FAMILIES = (
    families_reduce, families_softmax, families_norm, families_matmul, families_conv, families_point, families_index,
    families_pairs, families_library,
)  # fmt: skip


def honest_kernels() -> list[Honest]:
    """Every honest kernel that runs on a CPU, in all three tiers."""
    return [honest for family in FAMILIES for honest in family.kernels()]


def cuda_kernels() -> list[Honest]:
    """Honest kernels for a GPU; without one they can be compiled only."""
    return list(families_cuda.kernels())
