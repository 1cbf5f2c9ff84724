"""A problem's module in higher precision, and its arguments drawn anew; runs in child processes beside the reference.

Comes in: a module's inputs and parameters. Goes out: the same in fp64, other values of the same kind, results as flat
lists of tensors. Knows nothing of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree


def strict_precision() -> None:
    """Let fp32 mean fp32 on both sides: no TF32 in matmuls or convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@contextlib.contextmanager
def timed_precision(*, tf32: bool) -> Iterator[None]:
    """Let baselines race in the class that candidates may use; answers never do."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        strict_precision()


@contextlib.contextmanager
def double_factories() -> Iterator[None]:
    """Open tensors that the forward itself makes are fp64 too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def doubled(inputs: Any) -> Any:
    return pytree.tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, inputs)


def tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def is_constant(value: torch.Tensor) -> bool:
    """Return a tensor of one number throughout, as zero biases and unit scales are."""
    return value.is_floating_point() and value.numel() > 1 and bool((value == value.reshape(-1)[0]).all())


def vary(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a parameter's next draw: constants (zero biases, unit scales) are moved, others rotated and scaled."""
    if not value.is_floating_point() or value.numel() == 0:
        return value
    if value.numel() == 1 or is_constant(value):
        noise = torch.rand(value.shape, generator=generator, device=value.device) * 0.6 - 0.3
        return value + noise.to(value.dtype)
    offset = int(torch.randint(1, max(2, value.numel()), (1,), generator=generator, device=value.device))
    scale = 1 + 0.2 * (torch.rand(value.shape, generator=generator, device=value.device) - 0.5)
    return torch.roll(value.reshape(-1), offset).reshape(value.shape) * scale.to(value.dtype)
