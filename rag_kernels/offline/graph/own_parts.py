"""Operators whose decomposition PyTorch lacks, or cannot record, as their documentation tells it.

Comes in: nothing. Goes out: functions of tensors by overload, as torch's table of decompositions has them. Imports
torch when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def cov(x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Any:
    """Return the covariance of rows; weighted ones are not decomposed."""
    if fweights is not None or aweights is not None:
        return NotImplemented
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    centred = rows - rows.mean(1, keepdim=True)
    return (centred @ centred.mT / max(rows.shape[1] - correction, 0)).squeeze()


def corrcoef(x: Tensor) -> Tensor:
    """Return the correlation of rows."""
    both: Tensor = cov(x)
    if both.dim() == 0:
        return both / both
    root = both.diagonal().sqrt()
    return (both / root.unsqueeze(1) / root.unsqueeze(0)).clamp(-1, 1)


def bilinear(one: Tensor, two: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `one` times `two` by a matrix of weights for each output."""
    left = one @ weight.permute(1, 0, 2).reshape(weight.shape[1], -1)
    left = left.reshape(*one.shape[:-1], weight.shape[0], weight.shape[2])
    made = (left * two.unsqueeze(-2)).sum(-1)
    return made if bias is None else made + bias


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return x with the first elements of a source, in order, where the mask holds."""
    import torch

    x = torch.where(mask, x, x)
    mask = mask.expand(x.shape)
    place = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[place].reshape(x.shape), x)


def addbmm(x: Tensor, one: Tensor, two: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return the sum of products over a batch, added to x."""
    return beta * x + alpha * one.bmm(two).sum(0)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with elements of a source at places of the flat tensor."""
    import torch

    flat, index, source = x.reshape(-1), index.reshape(-1), source.reshape(-1)
    index = torch.where(index < 0, index + flat.shape[0], index)
    made = flat.scatter_add(0, index, source) if accumulate else flat.scatter(0, index, source)
    return made.reshape(x.shape)


def fake_quantize(x: Tensor, scale: float, zero: int, low: int, high: int) -> Tensor:
    """Return x rounded to steps of a scale."""
    return ((x * (1.0 / scale) + zero).round().clamp(low, high) - zero) * scale


def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    """Return elements of a contiguous x by strides."""
    import torch

    place = torch.full((), offset or 0, dtype=torch.int64, device=x.device)
    for count, step in zip(size, stride, strict=True):
        place = place.unsqueeze(-1) + torch.arange(count, device=x.device) * step
    return x.reshape(-1)[place]


def empty(size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Return zeros: what is not set is anything."""
    import torch

    return torch.zeros(size, dtype=dtype, device=device)


def diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return x with a source on one of its diagonals."""
    import torch

    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = (torch.arange(n, device=x.device) for n in moved.shape[-2:])
    place = torch.minimum(rows, rows + offset).clamp(0, source.shape[-1] - 1)
    here = columns == rows.unsqueeze(-1) + offset
    return torch.where(here, source[..., place].unsqueeze(-1), moved).movedim((-2, -1), (dim1, dim2))


def unfold_backward(grad: Tensor, shape: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    """Return windows of a size, a step apart, added where they were."""
    from torch.nn.functional import pad

    windows, pieces = grad.movedim(dim, -2), -(-size // step)  # of each window, as long as a step
    made: Any = 0.0
    for n in range(pieces):
        piece = pad(windows[..., n * step : (n + 1) * step], [0, (n + 1) * step - min((n + 1) * step, size)])
        made = made + pad(piece.flatten(-2), [n * step, (pieces - 1 - n) * step])
    return pad(made, [0, shape[dim] - made.shape[-1]]).movedim(-1, dim)


OWN_PARTS: dict[str, Callable[..., Any]] = {
    "aten.cov.default": cov,
    "aten.corrcoef.default": corrcoef,
    "aten.bilinear.default": bilinear,
    "aten.masked_scatter.default": masked_scatter,
    "aten.addbmm.default": addbmm,
    "aten.put.default": put,
    "aten.fake_quantize_per_tensor_affine.default": fake_quantize,
    "aten.as_strided.default": as_strided,
    "aten.diagonal_scatter.default": diagonal_scatter,
    "aten.empty.memory_format": empty,
    "aten.unfold_backward.default": unfold_backward,
}
