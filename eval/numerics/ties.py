"""Another choice among equals: what a module gives where its sorts and top-k take equal elements in another order.

Comes in: runs of a module in which such an operator takes what it is told to, and what a candidate gave. Goes out: the
order in which the candidate took them, as far as its outputs tell, and only one that PyTorch could have had: each of
equal elements once. Whether the outputs are right in that order is for others to say. PyTorch promises no order for
`topk` and a sort that is not stable. Runs in the reference worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rag_kernels.eval.numerics.steps import far
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.eval.traits.aten import base_name, operator

MOST_TRIES, MOST_S = 1024, 5.0  # orders that are tried: as many as the most that are equal


@dataclass(frozen=True, slots=True)
class Ordered:
    """What a sort or a top-k reads, with all of its places in order, and how many of these it takes."""

    order: torch.Tensor  # lines by elements, the first along the dimension
    first: torch.Tensor  # of those that are equal to the one at each place of the order: where they begin
    count: torch.Tensor  # and how many they are
    taken: int

    def turned(self, by: int) -> torch.Tensor:
        """Return what it takes where those that are equal change places in turn, so many times; lines by taken."""
        at = torch.arange(self.taken, device=self.order.device)
        first, count = self.first[:, : self.taken], self.count[:, : self.taken]
        return self.order.gather(1, first + (at - first + by) % count)


def takes_any(fp: FunctionalProblem) -> bool:
    """Return whether something takes equal elements in an order that nobody promises."""
    return any(
        operator(node.op).tells_equals_apart
        and base_name(node.op) in {"sort", "topk", "argsort"}
        and dict(node.kwargs).get("stable") is not True
        for node in fp.nodes
    )


class Arranged(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, the sort or top-k that has equal elements to take takes those places that it is told.

    `found` tells of each such operator in turn; where nothing is told it takes its own.
    """

    def __init__(self, places: dict[int, torch.Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places, self.seen = places or {}, 0
        self.found: list[Ordered] = []
        self.forms: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name not in {"sort", "topk"}:
            return result
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        operand, own = args[0], result[1]
        if given.get("stable") or operand.dim() == 0 or not operand.numel():
            return result
        dim = given.get("dim", -1)
        number, self.seen = self.seen, self.seen + 1
        down = bool(given.get("largest", True)) if name == "topk" else bool(given.get("descending", False))
        self.found.append(_ordered(operand, dim, own.shape[dim], down=down))
        self.forms.append(own.movedim(dim, -1).shape)
        if number not in self.places:
            return result
        places = self.places[number].reshape(own.movedim(dim, -1).shape).movedim(-1, dim).contiguous()
        return operand.gather(dim, places), places


def _ordered(operand: torch.Tensor, dim: int, taken: int, *, down: bool) -> Ordered:
    lines = operand.movedim(dim, -1).reshape(-1, operand.shape[dim])
    values, order = lines.sort(dim=-1, descending=down, stable=True)
    at = torch.arange(lines.shape[1], device=lines.device).expand_as(order)
    begins = torch.ones_like(order, dtype=torch.bool)
    begins[:, 1:] = values[:, 1:] != values[:, :-1]
    first = torch.where(begins, at, 0).cummax(1).values
    ends = torch.ones_like(begins)
    ends[:, :-1] = begins[:, 1:]
    last = torch.where(ends, at, lines.shape[1]).flip(1).cummin(1).values.flip(1)
    return Ordered(order, first, last - first + 1, taken)


def taken_by(
    got: Sequence[torch.Tensor], run: Callable[[dict[int, torch.Tensor]], tuple[list[torch.Tensor], Arranged]]
) -> dict[int, torch.Tensor] | None:
    """Return the places that outputs show to have been taken, by the operator's number; None where they show none.

    `run` returns the outputs and what was found where these places are taken. One operator may have equals to take
    from; each output has a line, or an element, for each of its lines or of what it takes.
    """
    _, found = run({})
    tied = [n for n, one in enumerate(found.found) if int(one.count[:, : one.taken].max()) > 1]
    if len(tied) != 1:
        return None
    number = tied[0]
    one, form = found.found[number], found.forms[number]
    lines, begun = one.order.shape[0], time.monotonic()
    assigned = torch.full((lines, one.taken), -1, dtype=torch.long, device=one.order.device)
    used = torch.zeros_like(one.order, dtype=torch.bool)
    for by in range(min(MOST_TRIES, int(one.count[:, : one.taken].max()))):
        if time.monotonic() - begun > MOST_S:
            return None
        places = one.turned(by)
        outputs, _ = run({number: places})
        fits = _fits(got, outputs, form)
        if fits is None:
            return None
        if fits.shape[1] == 1:  # whole lines alone can be told apart
            chosen = fits.expand(-1, one.taken) & (assigned < 0)
        else:
            chosen = fits & (assigned < 0) & ~used.gather(1, places)
        assigned = torch.where(chosen, places, assigned)
        used |= torch.zeros_like(used).scatter(1, places, chosen)
        if bool((assigned >= 0).all()):
            return {number: assigned}
    return None


def _fits(got: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], form: torch.Size) -> torch.Tensor | None:
    """Return for each line and place, or each line (one column), whether all outputs are as these; None: unknown."""
    whole: torch.Tensor | None = None
    for mine, theirs in zip(got, outputs, strict=True):
        if mine.shape != theirs.shape:
            return None
        exact = not mine.is_floating_point()
        near = mine == theirs if exact else ~far(mine, theirs.to(mine.dtype), theirs)
        by_place = _by_place(near, form)
        if by_place is None:
            return None
        whole = by_place if whole is None else whole & by_place
    return whole


def _by_place(near: torch.Tensor, form: torch.Size) -> torch.Tensor | None:
    """Return whether all is near that belongs to each of the places, of a form with the places last."""
    lines, taken, shape = form[:-1].numel(), form[-1], near.shape
    if shape[: len(form)] == form or (shape and shape[0] == form.numel()):
        return near.reshape(lines, taken, -1).all(-1)
    if len(form) == 1 and shape[-1:] == form:
        return near.reshape(-1, taken).all(0, keepdim=True)
    if shape[: len(form) - 1] == form[:-1] and len(form) > 1:
        return near.reshape(lines, -1).all(-1, keepdim=True)
    return None
