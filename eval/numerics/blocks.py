"""Large tensors, read a block at a time: on a CPU what is made of a block stays in the core's cache.

Comes in: a tensor. Goes out: slices of it. fp64 copies of whole tensors, or random numbers for each of their elements,
take new pages of memory each time, which costs several times what the arithmetic does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

BLOCK = 1 << 17  # elements
GPU_BLOCK = 1 << 25


def block_of(tensor: torch.Tensor) -> int:
    """Return how many elements are read at once."""
    return GPU_BLOCK if tensor.is_cuda else BLOCK


def pieces(flat: torch.Tensor) -> list[slice]:
    """Return slices of a tensor of one dimension."""
    most = block_of(flat)
    return [slice(start, start + most) for start in range(0, flat.numel(), most)]


def blocks(matrix: torch.Tensor) -> list[tuple[slice, slice]]:
    """Return whole rows, or pieces of one row, of about as many elements as are read at once."""
    rows, columns = matrix.shape
    most = block_of(matrix)
    high, wide = max(1, most // max(1, columns)), min(columns, most)
    return [
        (slice(row, row + high), slice(column, column + wide))
        for row in range(0, rows, high)
        for column in range(0, columns, wide)
    ]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have operators within run on one thread: to wait for others takes longer than a block does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
