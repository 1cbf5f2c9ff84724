"""All specimens of the zoo. Comes in: nothing. Goes out: `SPECIMENS`, in the order of the families."""

from __future__ import annotations

from rag_kernels.eval.zoo import (
    channel,
    correctness,
    cuda_timing,
    cuda_wrong,
    forging,
    legal,
    numerics_gaps,
    on_cpu,
    precision,
    state,
    tampering,
    timing,
)
from rag_kernels.eval.zoo.specimen import Specimen

FILES = (correctness, numerics_gaps, forging, state, timing, tampering, channel, precision, legal, on_cpu,
         cuda_wrong, cuda_timing)  # fmt: skip
SPECIMENS: tuple[Specimen, ...] = tuple(specimen for file in FILES for specimen in file.SPECIMENS)
