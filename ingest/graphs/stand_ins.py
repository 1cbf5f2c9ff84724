"""What recording on fake tensors does in place of PyTorch: fixed shapes, modules that change, plain backward operators.

Comes in: nothing; `bincount_of_minlength()`, `windows_at_once()`, `assertions_hold()` and `replaced_parameters()` hold
inside their blocks, `Calls` counts inside its own, and `of_backward()` is a table for recording. Knows nothing of
problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.overrides import TorchFunctionMode

from rag_kernels.eval.errors import Internal
from rag_kernels.ingest.graphs.raising_branches import answer_that_goes_on

# Kept whole: a scatter, a table's or a pool's gradient is one operator to a reader, and no sum of plain ones.
_WHOLE = ("max_pool", "avg_pool", "embedding", "unfold", "cudnn", "miopen")
_BINCOUNT = torch.ops.aten.bincount.default
_WINDOWS = torch.ops.aten.unfold_backward.default
_EQUAL = torch.ops.aten.equal.default
_VALUE = torch.ops.aten._local_scalar_dense.default
_ASKED = frozenset[Any]({torch.equal, Tensor.equal, torch.ops.aten.equal, _EQUAL})


@contextmanager
def bincount_of_minlength() -> Iterator[None]:
    """Let `bincount(x, minlength=n)` return n counts inside the block, as it does for values below n.

    Whether a problem's values are so is seen when its module is run.
    """
    table = fake_impls.op_implementations_dict
    dynamic = table[_BINCOUNT]

    def bincount(mode: Any, op: Any, values: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
        if minlength <= 0:
            return dynamic(mode, op, values, weights, minlength)
        dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
        with mode:
            return torch.empty(minlength, dtype=dtype, device=values.device)

    table[_BINCOUNT] = bincount
    try:
        yield
    finally:
        table[_BINCOUNT] = dynamic


@contextmanager
def windows_at_once() -> Iterator[None]:
    """Let overlapping windows be added into an empty tensor of the right shape inside the block.

    PyTorch's rule for fakes adds one window after another: 11 s for the 625 of an `istft`.
    """
    kept = decomposition_table[_WINDOWS]
    fake_tensor.torch_decomp_decompositions(_WINDOWS)  # remembered of its own rule, which is asked only once

    def added(grad: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
        return grad.new_empty(input_sizes)

    decomposition_table[_WINDOWS] = added
    try:
        yield
    finally:
        decomposition_table[_WINDOWS] = kept


class _Callers(TorchFunctionMode):
    """Know whether what runs was called by the program itself, or is a part of another function of PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, self.inside = self.inside, func not in _ASKED
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside = before


class TooManyCalls(Internal):
    """The forward calls more of PyTorch's functions than was allowed."""


class Calls(TorchFunctionMode):
    """Count the calls of PyTorch's functions inside the block; raises TooManyCalls above a number of them."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.made, self.most = 0, most

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made += 1
        if self.most is not None and self.made > self.most:
            raise TooManyCalls
        return func(*args, **(kwargs or {}))


@contextmanager
def assertions_hold() -> Iterator[None]:
    """Let PyTorch's functions find inside the block what they assert of their operands' values, which fakes have not.

    `torch.quantile` compares "all within 0 and 1" with true by `aten.equal` up to PyTorch 2.11; where it is false, the
    module itself fails. So it does where a truth is asked for by a branch that raises, or an assertion
    (`F.gaussian_nll_loss`, a forward's own). Other branches on data, and a program's own `torch.equal`, stay such.
    """
    table, callers = fake_impls.op_implementations_dict, _Callers()
    before = {op: table.get(op) for op in (_EQUAL, _VALUE)}

    def equal(_: Any, op: Any, one: Tensor, other: Tensor) -> bool:
        if callers.inside and one.dim() == other.dim() == 0 and one.dtype == other.dtype == torch.bool:
            return True
        raise DataDependentOutputException(op)

    def value(_: Any, op: Any, one: Tensor) -> bool:
        answer = answer_that_goes_on() if one.dtype == torch.bool else None
        if answer is None:
            raise DataDependentOutputException(op)
        return answer

    table |= {_EQUAL: equal, _VALUE: value}
    try:
        with callers:
            yield
    finally:
        for op, handler in before.items():
            if handler is None:
                del table[op]
            else:
                table[op] = handler


def of_backward() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of autograd's operators (`gelu_backward`, `native_layer_norm`) into plain arithmetic."""
    from torch._decomp import decomposition_table

    def wanted(op: Any) -> bool:
        name = str(op).removeprefix("aten.")
        return ("backward" in name or name.startswith(("native_", "_native_", "nll_loss"))) and not name.startswith(
            _WHOLE
        )

    known = {op: rule for op, rule in decomposition_table.items() if wanted(op)}
    own: dict[Any, Callable[..., Any]] = {
        torch.ops.aten._safe_softmax.default: _safe_softmax,
        torch.ops.aten._efficientzerotensor.default: _zeros,
    }
    return known | own


def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return a softmax in which rows that are masked throughout are zeros: by its maximum, which softmax has too."""
    masked = x.amax(dim, keepdim=True) == -torch.inf
    return torch.where(masked, 0.0, torch.softmax(x, dim, dtype=dtype))


def _zeros(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Return the tangent of what does not move, which PyTorch keeps without memory."""
    return torch.zeros(size, dtype=dtype)


@contextmanager
def replaced_parameters() -> Iterator[None]:
    """Let `module.to(...)` put new tensors in place of the old inside the block; swapping fake ones fails."""
    kind: Any = nn.Module
    original = kind._apply

    def apply(self: Any, change: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        for child in self.children() if recurse else ():
            child._apply(change)
        for store in (self._parameters, self._buffers):
            store.update({name: changed(tensor, change) for name, tensor in store.items() if tensor is not None})
        return self

    def changed(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            new = change(tensor)
        if not isinstance(tensor, nn.Parameter) or new is tensor:
            return new
        return nn.Parameter(new, requires_grad=tensor.requires_grad)

    kind._apply = apply
    try:
        yield
    finally:
        kind._apply = original
