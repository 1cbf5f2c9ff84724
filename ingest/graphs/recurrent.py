"""Shape rules for LSTM, GRU and RNN, so that recording one does not unroll its thousands of time steps.

PyTorch has no fake-tensor rule for these operators and runs them step by step (24 s for six layers of 512 steps).
Comes in: nothing; `shape_only_recurrence()` replaces the operators inside its block by functions that only
allocate outputs of the right shapes. Knows nothing of problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def _outputs(x: Tensor, hidden: Tensor, bidirectional: bool) -> tuple[Tensor, Tensor]:
    width = hidden.shape[-1] * (2 if bidirectional else 1)
    return x.new_empty((*x.shape[:-1], width)), torch.empty_like(hidden)


def _lstm(
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    out, hidden = _outputs(x, hx[0], bidirectional)
    return out, hidden, torch.empty_like(hx[1])


def _gated(
    x: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    return _outputs(x, hx, bidirectional)


_RULES = {"lstm": _lstm, "gru": _gated, "rnn_tanh": _gated, "rnn_relu": _gated}


@contextmanager
def shape_only_recurrence() -> Iterator[None]:
    """Let `aten.lstm.input` and its siblings return empty tensors of the right shapes inside the block."""
    operators = {name: getattr(torch.ops.aten, name).input for name in _RULES}
    saved = {name: dict(op.py_kernels) for name, op in operators.items()}
    for name, op in operators.items():
        op.py_kernels.update(dict.fromkeys(saved[name], _RULES[name]))
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for name, op in operators.items():
            op.py_kernels.update(saved[name])
            op._dispatch_cache.clear()
