"""A problem's module in higher precision, and its arguments drawn anew; runs in child processes beside the reference.

Comes in: a module's inputs and parameters. Goes out: the same in fp64, other values of the same kind, results as flat
lists of tensors. Knows nothing of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rag_kernels.eval.numerics.eight_bits import EIGHT_BITS, as_cast

SIXTEEN_BITS = (torch.bfloat16, torch.float16)
NARROWEST = (*SIXTEEN_BITS, *EIGHT_BITS)
NARROW = (*NARROWEST, torch.float32)
CASTS = frozenset({"aten::_to_copy", "aten::to"})


def strict_precision() -> None:
    """Let fp32 mean fp32 on both sides: no TF32 in matmuls or convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed what draws on a device; on a CPU its own generator alone: for others torch notes who asked, 1 ms."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


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


class ExactCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, what is fp64 stays it: a cast to sixteen or eight bits rounds once, one to fp32 does nothing.

    Without it all that follows `x.to(torch.bfloat16)` would be computed in bf16, and be no more exact than the module.
    So would what is added up in a tensor that the forward makes in sixteen bits: it is fp64 too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrowed = 0  # casts to sixteen bits or eight

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if name == "aten::_scaled_mm" and args[0].dtype == torch.float64:
            return scaled_product(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        is_cast = name in CASTS
        if not is_cast or args[0].dtype != torch.float64 or result.dtype not in NARROW:
            return result.double() if _is_made(result, args) else result
        self.narrowed += result.dtype in NARROWEST
        value = args[0] if result.dtype == torch.float32 else as_cast(args[0], result.dtype)
        return torch.empty_like(result, dtype=torch.float64).copy_(value)


def scaled_product(
    left: torch.Tensor,
    right: torch.Tensor,
    scale_left: torch.Tensor,
    scale_right: torch.Tensor,
    bias: torch.Tensor | None = None,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """Return what `torch._scaled_mm` is of factors in fp64, scaled by tensor or by row: it takes none but fp8."""
    product = (left @ right) * scale_left.double() * scale_right.double()
    return product if bias is None else product + bias.double()


def _is_made(result: Any, args: Sequence[Any]) -> bool:
    """Return whether so few bits come of no tensor that has them: of a factory, of integers, of a sum in them."""
    if not isinstance(result, torch.Tensor) or result.dtype not in NARROWEST:
        return False
    return all(given.dtype not in NARROWEST for given in tensors(list(args)))


def right_answer(run: Callable[[], list[torch.Tensor]], own: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """Return what outputs should be by a run in fp64, or None where the module does not run so.

    They are those of a run in which casts are exact. But where a module casts to fewer bits it says itself how exact
    outputs of more bits are to be: they are computed as it says, or are its own where that does not run in fp64.
    """
    casts = ExactCasts()
    exact = _alike(run, own, casts)
    if exact is not None and (not casts.narrowed or all(t.dtype in NARROWEST for t in own)):
        return exact
    plain = _alike(run, own, contextlib.nullcontext())
    if exact is None:
        return plain
    others = plain or own
    return [x if o.dtype in NARROWEST else y for x, y, o in zip(exact, others, own, strict=True)]


def _alike(
    run: Callable[[], list[torch.Tensor]], own: Sequence[torch.Tensor], mode: contextlib.AbstractContextManager[Any]
) -> list[torch.Tensor] | None:
    """Return what a run gives within a mode, if it has the outputs' shapes."""
    with contextlib.suppress(RuntimeError, TypeError, ValueError), double_factories(), mode:
        exact = run()
        if [tuple(t.shape) for t in exact] == [tuple(t.shape) for t in own]:
            return exact
    return None


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
