"""Do results share elements with each other, with themselves or with arguments, as views do?

Comes in: tensors that a call returned, and its arguments. Goes out: which have elements in common, in words that two
processes can compare. Whoever changes one of two such changes the other. For the reference and the candidate's worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def in_common(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """Return what has elements in common: `output 0 and itself`, `output 1 and argument 0`."""
    found = []
    for number, result in enumerate(results):
        if _distinct(result) < result.numel():
            found.append(f"output {number} and itself")
        found += [f"output {number} and output {i}" for i, other in enumerate(results[:number]) if meet(result, other)]
        found += [f"output {number} and argument {i}" for i, other in enumerate(arguments) if meet(result, other)]
    return tuple(found)


def meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether an element of one is, or lies in, an element of the other."""
    if not one.numel() or not other.numel():
        return False
    (first, last), (begin, end) = _span(one), _span(other)
    if last <= begin or end <= first:
        return False
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr() or one.itemsize != other.itemsize:
        return True
    marks = _marked(one)
    return bool(torch.as_strided(marks, other.shape, other.stride(), other.storage_offset()).any())


def _distinct(tensor: torch.Tensor) -> int:
    """Return how many places in memory a tensor's elements have."""
    if tensor.is_contiguous() or not tensor.numel():
        return tensor.numel()
    return int(_marked(tensor).sum())


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    """Return which places of its storage a tensor's elements have."""
    marks = torch.zeros(tensor.untyped_storage().nbytes() // tensor.itemsize, dtype=torch.bool, device=tensor.device)
    places = torch.arange(len(marks), device=tensor.device)
    taken = torch.as_strided(places, tensor.shape, tensor.stride(), tensor.storage_offset())
    marks[taken.reshape(-1)] = True
    return marks


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize
