"""The honest corpus: kernels that a fair judge accepts, by many algorithms over a few dozen small problems.

Comes in: nothing. Goes out: `honest_kernels()` for the CPU and `cuda_kernels()`. How many of them a judge rejects
is its false-reject rate; `tests/bench/honest_corpus.py` measures it. Knows nothing of verdicts.
"""

from __future__ import annotations

from rag_kernels.eval.zoo.honest import (
    conv,
    cuda,
    index_and_order,
    library,
    matmul,
    norm,
    pairs,
    pointwise,
    reduce,
    softmax,
)
from rag_kernels.eval.zoo.honest.source_pieces import Honest as Honest

FAMILIES = (
    reduce,
    softmax,
    norm,
    matmul,
    conv,
    pointwise,
    index_and_order,
    pairs,
    library,
)


def honest_kernels() -> list[Honest]:
    """Return every honest kernel that runs on a CPU, in all three tiers."""
    return [honest for family in FAMILIES for honest in family.kernels()]


def cuda_kernels() -> list[Honest]:
    """Return honest kernels for a GPU; without one they can be compiled only."""
    return list(cuda.kernels())
