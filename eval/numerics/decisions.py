"""What operators decide at the numbers that a module names, where nothing was rounded before them.

A threshold of 0.3725 is another number in fp32 than in fp64, so that an input of just that size lies on different sides
of both. PyTorch's own answer to exactly that input is the right one, and so the oracle takes it. Runs beside the
reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rag_kernels.eval.numerics.oracle import tensors
from rag_kernels.eval.traits.aten import operator
from rag_kernels.eval.traits.marked_values import parted_by

CLOSE = 1e-6  # of the whole


@dataclass(frozen=True, slots=True)
class Decision:
    """What one operator gave for which operands."""

    name: str
    operands: tuple[torch.Tensor, ...]
    result: torch.Tensor

    def where_exact(self, operands: list[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
        """Return a result in fp64 with what was decided wherever the operands are the same numbers."""
        same = torch.ones((), dtype=torch.bool, device=result.device)
        for own, wide in zip(self.operands, operands, strict=True):
            same = same & (own.double() == wide.double())
        if same.shape != result.shape:
            return self.result.to(result.dtype) if bool(same.all()) else result
        return torch.where(same, self.result.to(result.dtype), result)


class Deciding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, `made` collects what is decided by fp32 at numbers that it has to round."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Decision] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        given = tensors(list(args))
        if parted_by(name, args) and all(t.dtype == torch.float32 for t in given) and not _is_close(name, args):
            self.made.append(Decision(name, tuple(t.clone() for t in given), result.clone()))
        return result


def _is_close(name: str, args: Any) -> bool:
    """Return whether an element lies next to an inner bound of equal parts, where rounding decides."""
    if not operator(name).evenly:
        return False
    value, parts, low, high = args
    at = (value.double() - low) / (high - low) * parts
    inner = at.round()
    return bool((((at - inner).abs() < CLOSE * parts) & (inner > 0) & (inner < parts)).any())


class AsDecided(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, a run in fp64 decides as one did that `Deciding` has seen."""

    def __init__(self, made: list[Decision]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = list(made)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if parted_by(name, args) and self._left and self._left[0].name == name:
            own, operands = self._left.pop(0), tensors(list(args))
            if [t.shape for t in operands] == [t.shape for t in own.operands] and result.shape == own.result.shape:
                return own.where_exact(operands, result)
        return result
