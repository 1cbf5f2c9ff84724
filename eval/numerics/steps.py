"""Results that move by a step where rounding decides: floors, comparisons, places of what is nearly equal.

Comes in: an output with what is right and with what PyTorch gives when it rounds otherwise. Goes out: the output with
such elements set right, so that the others are held to what they owe. A step that no rounding makes is an error as any
other. Runs beside the reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rag_kernels.eval.numerics.compare import LIMITS, TINY, UNIT_ROUNDOFF, rows_of
from rag_kernels.eval.numerics.eight_bits import as_cast, chosen, in_steps, narrowed
from rag_kernels.eval.traits.aten import operator

FEW = 0.05  # steps are rare: where more elements are as far off, it is no step
RARE = 1e-3  # of elements at most are as ill-conditioned as no other
ALIKE = 1.5  # times a step that was seen
ROUNDED = 1 / 64  # of elements of eight bits, which rounding on the way moves by a step
LOST, LOST_IN = 0.5, 2  # of what is right, and in how many runs an element is off by that: it has no digit then
WIDE = 4  # bytes: of narrower results runs with amplified rounding are farther off than anybody may be
AS_MUCH = 2.0  # times what runs of PyTorch's are off by, of steps that are dense
BARELY = 0.5  # of what is far: where a step moves much by various amounts, some just are and some just are not
CHOSEN_UNITS = {
    1: 2.0,
    2: 2.0,
    4: 8.0,
    8: 8.0,
}  # by bytes: of rounding that values may have before one of them is chosen
USUAL_ERRORS = 6.0  # times the row's errors: of normal ones the difference of two is hardly ever more
CHOSEN_ERRORS = 2.0  # times PyTorch's own error there: both of two may be off


def far(got: torch.Tensor, right: torch.Tensor, scale: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    """Return where an output is farther from another one than rounding of a result of this scale explains, or than a
    share of that.
    """
    if not got.numel():
        return torch.zeros_like(got, dtype=torch.bool)
    rows = rows_of(scale)
    size = scale.reshape(rows, -1).double().abs()
    unit, (_, largest) = UNIT_ROUNDOFF[got.dtype], LIMITS[got.element_size()]
    allowed = share * largest * unit * size.clamp(min=0.01 * float(size.square().mean().sqrt())).amax(1, keepdim=True)
    apart = (got.reshape(rows, -1).double() - right.reshape(rows, -1).double()).abs() > allowed
    return (apart & torch.isfinite(size)).reshape(got.shape)


def stepped(got: torch.Tensor, right: torch.Tensor, scale: torch.Tensor) -> torch.Tensor | None:
    """Return where an output differs by a step; None where it does nowhere, or at too many places for that."""
    apart = far(got, right, scale)
    return apart if 0 < int(apart.sum()) <= max(1.0, FEW * apart.numel()) else None


def as_pytorch_steps(got: torch.Tensor, own: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return an output with the elements set right at which it steps as PyTorch's `own` does."""
    if not got.is_floating_point() or got.shape != own.shape:
        return got
    step = stepped(own, right, right)
    return got if step is None else chosen(step & ~far(got, own, right), narrowed(right, got.dtype), got)


def excused(
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, again: Iterable[torch.Tensor]
) -> torch.Tensor | None:
    """Return the output with steps that rounding makes set right; None where one of its steps is none of these.

    `again` is what PyTorch gives in one run after another with amplified rounding. One step may move nearly all by a
    little, through a mean that others share: of these each has to be moved as far by a run, too. So it is of what it
    moves by little beside what it moves far, as a product's row behind an integer that is another.
    """
    wrong = far(got, oracle, oracle)
    count = int(wrong.sum())
    spread = stepped(got, oracle, oracle) is None
    if not count or (spread and got.element_size() < WIDE):
        return None
    moved, size = torch.zeros_like(wrong), torch.zeros(got.shape, dtype=torch.float64, device=got.device)
    apart = torch.minimum((got.double() - reference.double()).abs(), (got.double() - oracle.double()).abs())
    for other in again:
        away = (other.double() - reference.double()).abs()
        moved |= far(other, reference, oracle, BARELY)
        size = torch.maximum(size, torch.where(torch.isfinite(away), away, size))
        alike = apart <= ALIKE * size
        if not bool((wrong & ~(moved & alike)).any()) and count <= int(moved.sum()):
            rows = wrong.reshape(rows_of(wrong), -1)
            beside = rows.any(1, keepdim=True).expand_as(rows).reshape(wrong.shape)
            return chosen(alike if spread else wrong | (alike & beside), narrowed(oracle, got.dtype), got)
    return None


def as_near(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, again: Iterable[torch.Tensor]) -> bool:
    """Return whether whole numbers that are rounded from others are off only where, and as far as, rounding moves them.

    A number of a million has errors of ones before it is rounded to a whole one. `again` is as in `excused`; of many
    all but a few have to be such, and these few be off by little more.
    """
    mine, own, right = got.double(), reference.double(), oracle.double()
    apart = torch.minimum((mine - own).abs(), (mine - right).abs())
    wrong, size = apart > 0, torch.zeros_like(apart)
    count = int(wrong.sum())
    for other in again:
        size = torch.maximum(size, (other.double() - own).abs())
        far_off = bool((apart > 1 + 2 * ALIKE * size).any())
        if not far_off and int((wrong & (apart > ALIKE * size)).sum()) <= count // 64:
            return count <= int((size > 0).sum())
    return False


def rounded_as_owed(
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, again: Iterable[torch.Tensor]
) -> str:
    """Return what is wrong with how an output of eight bits was rounded, or nothing.

    There are so few such numbers that each is owed: what is right, or what PyTorch gives. Another one may stand where
    rounding on the way moves the result to it (`again` is as in `excused`), of few elements, or of about as many as
    PyTorch itself has another one of. What is past the range of e5m2 is infinite.
    """
    exact = as_cast(oracle, got.dtype)
    mine, own, right = map(in_steps, (got, reference, exact))
    wrong = (mine != own) & (mine != right)
    count = int(wrong.sum())
    if not count:
        return ""
    few = count <= max(1.0, ROUNDED * wrong.numel(), AS_MUCH * int((own != right).sum()))
    if few and as_near(mine, own, right, map(in_steps, again)):
        return ""
    at = int(torch.argmax(wrong.reshape(-1).to(torch.uint8)))
    found, wanted = (float(t.reshape(-1)[at].float()) for t in (got, exact))
    return (
        f"{count / wrong.numel():.2%} of the elements are another number of eight bits than the right one, or than "
        f"PyTorch's, where rounding on the way does not decide: first {found:.9g} instead of {wanted:.9g}"
    )


def are_few(wrong: torch.Tensor) -> bool:
    """Return whether some are wrong, and no more than are as ill-conditioned as no other."""
    return 0 < int(wrong.sum()) <= max(1.0, RARE * wrong.numel())


def chosen_by_rounding(
    got: torch.Tensor, reference: torch.Tensor, right: torch.Tensor, dim: int, again: Iterable[torch.Tensor]
) -> bool:
    """Return whether each line of indices that differs is one that PyTorch gives in a run with amplified rounding.

    Behind another choice that rounding decides (of groups, and then among their elements) what is as good in one run is
    nothing in the next. Of few lines only, and whole ones.
    """
    left = ((got != reference) & (got != right)).any(dim)
    if not are_few(left):
        return False
    for other in again:
        left &= (other != got).any(dim)
        if not bool(left.any()):
            return True
    return False


def lone(
    got: torch.Tensor, right: torch.Tensor, allowed: torch.Tensor, again: Iterable[torch.Tensor]
) -> torch.Tensor | None:
    """Return the output with a few elements set right that are off by more than is `allowed`, but no more than rounding
    moves them, or have no digit by it; None where they are many, or one is off by more.

    Where a sum of either sign is near zero, and is divided by, who adds in another order is off anywhere, and PyTorch
    may be exact by luck. `again` is what PyTorch gives in runs with amplified rounding, of inputs that were rounded
    anew. Of a difference that is nearly zero how far one run is off says little of how far the next one is.
    """
    error = (got.double() - right.double()).abs()
    wrong = torch.isfinite(right) & ~(error <= allowed)
    if not are_few(wrong):
        return None
    size, lost = torch.zeros_like(error), torch.zeros_like(error)
    wrong_anyhow = wrong & ~torch.isfinite(error)
    for other in again:
        away = (other.double() - right.double()).abs()
        size = torch.maximum(size, torch.where(torch.isfinite(away), away, size))
        lost += ~(away < LOST * right.double().abs())
        excused = (error <= ALIKE * size) | (lost >= LOST_IN)
        if not bool((wrong & ~excused | wrong_anyhow).any()):
            return chosen(wrong, narrowed(right, got.dtype), got)
    return None


def dense(got: torch.Tensor, right: torch.Tensor, again: Iterable[torch.Tensor]) -> float | None:
    """Return how far an output is off beside what rounding's steps leave, where these are too many to be told apart.

    None where rounding moves few elements, or less: a sum of many terms each of which may be one or nothing moves as a
    whole. `again` is what PyTorch gives in a few runs whose rounding is no worse than honest; neither in the whole nor
    anywhere may the output be much farther off than these are.
    """
    mine, theirs = _whole(got, right), [0.0, 0.0]
    apart = torch.zeros(got.shape, dtype=torch.bool, device=got.device)
    for other in again:
        apart |= far(other, right, right)
        theirs = [max(pair) for pair in zip(theirs, _whole(other, right), strict=True)]
    if int(apart.sum()) <= FEW * apart.numel() or not theirs[0]:
        return None
    times = max(m / t for m, t in zip(mine, theirs, strict=True))
    return times if times <= AS_MUCH else None


def _whole(got: torch.Tensor, right: torch.Tensor) -> list[float]:
    """Return the root of the mean square of all errors, and the largest, each beside its row's scale."""
    rows = rows_of(right)
    size = right.reshape(rows, -1).double().abs()
    scale = size.square().mean(1, keepdim=True).sqrt().clamp(min=max(TINY, 0.01 * float(size.square().mean().sqrt())))
    error = (got.reshape(rows, -1).double() - right.reshape(rows, -1).double()).abs() / scale
    return [float(error.square().mean().sqrt()), float(error.max())]


@dataclass
class Choice:
    """What one operator chose from, along which dimension, and which places."""

    operand: torch.Tensor
    dim: int | None
    places: list[torch.Tensor] = field(default_factory=list)

    def gave(self, indices: torch.Tensor) -> bool:
        """Return whether it chose these."""
        return any(p.shape == indices.shape and bool((p == indices.to(p.dtype)).all()) for p in self.places)


class Choosing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, `choices` collects what every operator that tells equals apart chooses from."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.choices: list[Choice] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if operator(func._schema.name.partition("::")[2]).tells_equals_apart:
            given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
            defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
            results = result if isinstance(result, tuple | list) else (result,)
            places = [r.clone() for r in results if isinstance(r, torch.Tensor) and r.dtype == torch.int64]
            self.choices.append(Choice(args[0].clone(), (defaults | given).get("dim"), places))
        return result


def as_good(got: torch.Tensor, right: torch.Tensor, wide: Choice, own: Choice, *, exact: bool) -> bool:
    """Return whether indices choose values as good as the right ones, up to the rounding of what they choose from.

    `wide` is chosen from in fp64, `own` by PyTorch; of `exact` values none but an equal one is as good.
    """
    values, dim = wide.operand.double(), wide.dim
    error = (own.operand.double() - values).abs()
    if dim is None:
        values, error, got, right, dim = values.reshape(-1), error.reshape(-1), got.reshape(1), right.reshape(1), 0
    if got.dim() == values.dim() - 1:
        got, right = got.unsqueeze(dim), right.unsqueeze(dim)
    got, right = got.long(), right.long()
    if got.dim() != values.dim() or bool(((got < 0) | (got >= values.shape[dim])).any()):
        return False
    ordered = got.sort(dim).values
    if bool((ordered.diff(dim=dim) == 0).any()):
        return False
    chosen, wanted = values.gather(dim, got), values.gather(dim, right)
    dtype = own.operand.dtype
    unit = CHOSEN_UNITS[dtype.itemsize] * UNIT_ROUNDOFF[dtype] if dtype.is_floating_point else 0.0
    size = torch.maximum(chosen.abs(), wanted.abs())
    own_slack = torch.maximum(
        CHOSEN_ERRORS * torch.maximum(error.gather(dim, got), error.gather(dim, right)),
        (unit * size).clamp(min=_vanishing(dtype)),
    )
    own_slack = torch.where(torch.isfinite(own_slack), own_slack, 0.0)  # what is infinite needs no room
    # PyTorch may be exact at one place by luck: what errors are in the row, or are anywhere of values of this size.
    share = error / values.abs().clamp(min=TINY)
    usual = torch.minimum(_rms(error, dim), _rms(share.reshape(-1), 0) * size)
    slack = torch.minimum(torch.maximum(own_slack, USUAL_ERRORS * usual), own_slack.amax(dim, keepdim=True))
    near = (chosen - wanted).abs() <= (0.0 if exact else slack)
    return bool(((got == right) | (chosen == wanted) | near).all())


def _vanishing(dtype: torch.dtype) -> float:
    """Return below what a value that was computed may be nothing: twice the smallest normal number of the arithmetic.

    Exponentials in vectors end there: e^-87 and e^-300 are the same to them, and PyTorch's own keep some of it.
    """
    if not dtype.is_floating_point:
        return 0.0
    return 2 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).tiny


def _rms(errors: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the root of the mean square along a dimension, of what is finite."""
    return torch.where(torch.isfinite(errors), errors, 0.0).square().mean(dim, keepdim=True).sqrt()
