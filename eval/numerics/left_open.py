"""Elements of an output at which PyTorch itself has no digit, where these are few: nobody is judged there.

Comes in: the reference's output and the oracle's. Goes out: which elements are left open, so that the others, which
PyTorch computes well, are compared all the same. Next to a number beside which a sum loses all others (a burst, less
itself) the module is wrong at one place of a line. Runs in the reference worker.
"""

from __future__ import annotations

import torch

from rag_kernels.eval.numerics.compare import NOISE_SHARE
from rag_kernels.eval.numerics.eight_bits import chosen, narrowed

MOST_OFF = 1e-3  # of the output's size
FEW = 0.05  # of its elements


def left_open(reference: torch.Tensor, oracle: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor | None:
    """Return where an output is too far off to judge anybody by; None where that is nowhere, or at too many places."""
    if not reference.is_floating_point() or not reference.numel():
        return None
    right = oracle.double()
    error = (reference.double() - right).abs()
    if noise is not None:
        error = torch.maximum(error, noise.double() / NOISE_SHARE)
    size = torch.where(torch.isfinite(right), right, 0.0).square().mean().sqrt()
    off = ~(error <= MOST_OFF * size)
    return off if 0 < int(off.sum()) <= FEW * off.numel() else None


def put_right(got: torch.Tensor, oracle: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Return an output that is right at the places which are left open."""
    return got if places is None else chosen(places, narrowed(oracle, got.dtype), got)
