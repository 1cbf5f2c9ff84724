"""Valid inputs of a problem on which a mutant may show what it is, with what is right there; for child processes only.

Comes in: a FunctionalProblem. Goes out: `Case`s: arguments, PyTorch's answer, one in fp64, and how far rounding may
move it. The kinds are this module's own: it shares no code with the judge's checks, since it is to say what they miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import FunctionalProblem, TensorArgument
from rag_kernels.mutation.records import UNUSUAL

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
BAND = 64  # elements of a known pattern before and behind every tensor
MOVED = 16.0  # by how many units of rounding inputs are moved to see what that does to the answer
OWN_DRAWS = 5
SCALES = {"x 3": 3.0, "x 0.01": 0.01, "negated": -1.0}  # of the inputs alone, as KernelBench-Verified does

Change = Callable[[torch.Tensor], torch.Tensor]


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1]) if x.dim() > 1 else x.reshape(1, -1)


def _magnitudes(x: torch.Tensor) -> torch.Tensor:
    rows = _rows(x)
    return (rows * 10 ** (torch.rand(rows.shape[0], 1) * 7 - 4)).reshape(x.shape)


def _marked(x: torch.Tensor, share: float, value: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the tensor with some of its elements, one at least, replaced."""
    flat = x.reshape(-1).clone()
    at = torch.randperm(flat.numel())[: max(1, int(share * flat.numel()))]
    flat[at] = value(torch.randn(len(at)))
    return flat.reshape(x.shape)


def _edges(x: torch.Tensor) -> torch.Tensor:
    """Make only the ends of rows, and the corners, large."""
    rows = 0.1 * _rows(x)
    rows[:, 0], rows[:, -1] = 20 * torch.randn(rows.shape[0]), 20 * torch.randn(rows.shape[0])
    return rows.reshape(x.shape)


KINDS: dict[str, Change] = {
    "normal": lambda x: x,
    "all negative": lambda x: -x.abs() - 0.1,
    "all positive": lambda x: x.abs() + 0.1,
    "rows of other magnitudes": _magnitudes,
    "around ten": lambda x: x + 10.0,
    "thousands": lambda x: x * 1e3,
    "thousandths": lambda x: x * 1e-3,
    "single spike": lambda x: _marked(0.01 * x, 0.0, lambda v: v.sign() * 50),
    "large at the ends": _edges,
    "sparse": lambda x: _marked(torch.zeros_like(x), 0.05, lambda v: v),
    "ties": lambda x: (2 * x).round() / 2,
    "one value": lambda x: x * 0 + 0.7,
    "sorted": lambda x: _rows(x).sort(-1).values.reshape(x.shape),
    "millionths": lambda x: x * 1e-6,
    "far": lambda x: x + 300.0,
    "infinity": lambda x: _marked(x, 0.002, lambda v: v.sign() * torch.inf),
    "NaN": lambda x: _marked(x, 0.002, lambda v: v * torch.nan),
}


@dataclass(slots=True)
class Case:
    """One call. `sizes` is "own" or "odd"; `rounding` is, by output and element, what honest rounding may do there."""

    kind: str
    sizes: str
    tensors: list[torch.Tensor]
    reference: list[torch.Tensor]
    oracle: list[torch.Tensor]
    rounding: list[torch.Tensor | None]


def banded(value: torch.Tensor) -> torch.Tensor:
    """Return a copy between bands of NaN (of the dtype's largest number, where it has none)."""
    whole = torch.zeros(value.numel() + 2 * BAND, dtype=value.dtype)
    if value.is_floating_point():
        whole.fill_(torch.nan)
    elif value.dtype != torch.bool:
        whole.fill_(torch.iinfo(value.dtype).max)
    place = whole[BAND : BAND + value.numel()].reshape(value.shape)
    place.copy_(value)
    return place


class Caller:
    """One problem's module, to be called with any content of its arguments, in its own precision and in fp64."""

    def __init__(self, fp: FunctionalProblem, seed: int) -> None:
        self.fp = fp
        module = load_module(fp.problem.name, fp.problem.source)
        torch.manual_seed(seed)
        self.model = module.Model(*module.get_init_inputs())
        self.model.requires_grad_(False)
        self.get_inputs = module.get_inputs
        state = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self.initial = {name: value.detach().clone() for name, value in state.items()}

    def own(self) -> list[torch.Tensor]:
        """Return the arguments as the problem makes them: new inputs, the module's parameters."""
        leaves = pytree.tree_leaves(list(self.get_inputs()))
        return [self._own(argument, leaves) for argument in self.fp.tensors]

    def _own(self, argument: TensorArgument, leaves: list[Any]) -> torch.Tensor:
        value = leaves[int(argument.path)] if argument.role == "input" else self.initial[argument.path]
        assert isinstance(value, torch.Tensor)
        return value

    def changed(self, change: Change) -> list[torch.Tensor]:
        """Return inputs of a kind, with other parameters."""
        drawn = []
        for argument, own in zip(self.fp.tensors, self.own(), strict=True):
            value = own
            if own.is_floating_point() and own.numel():
                if argument.role == "input":
                    value = change(torch.randn(own.shape)).to(own.dtype)
                elif argument.role == "parameter":
                    value = (own * (0.5 + torch.rand(own.shape)) + 0.3 * torch.randn(own.shape)).to(own.dtype)
                elif argument.path not in self.fp.mutated:  # a variance stays one
                    value = (own * (0.5 + torch.rand(own.shape)) + 0.3 * torch.rand(own.shape)).to(own.dtype)
            drawn.append(value)
        return drawn

    def scaled(self, tensors: list[torch.Tensor], factor: float) -> list[torch.Tensor]:
        pairs = zip(self.fp.tensors, tensors, strict=True)
        return [t * factor if a.role == "input" and t.is_floating_point() else t for a, t in pairs]

    def wide_integers(self) -> list[torch.Tensor] | None:
        """Return integers over most of their range, of either sign; None where no input is of integers."""
        drawn, any_wide = [], False
        for argument, own in zip(self.fp.tensors, self.own(), strict=True):
            wide = argument.role == "input" and own.dtype in (torch.int64, torch.int32)
            any_wide |= wide
            most = 1 << 40 if own.dtype == torch.int64 else 1 << 28
            drawn.append(torch.randint(-most, most, own.shape).to(own.dtype) if wide else own)
        return drawn if any_wide else None

    def run(self, tensors: list[torch.Tensor], *, exact: bool) -> list[torch.Tensor]:
        """Call the module; `exact` in fp64, with inputs that are fp64 already or become it."""
        leaves, tree = pytree.tree_flatten(list(self.get_inputs()))
        state = {name: value.clone() for name, value in self.initial.items()}
        for argument, value in zip(self.fp.tensors, tensors, strict=True):
            if argument.role == "input":
                leaves[int(argument.path)] = value.clone()
            else:
                state[argument.path] = value.clone()
        before = torch.get_default_dtype()
        try:
            if exact:
                torch.set_default_dtype(torch.float64)
                leaves = [_double(leaf) for leaf in leaves]
                state = {name: _double(value) for name, value in state.items()}
            result = torch.func.functional_call(self.model, state, tuple(pytree.tree_unflatten(leaves, tree)))
        finally:
            torch.set_default_dtype(before)
        return [t.contiguous() for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]

    def case(self, kind: str, sizes: str, tensors: list[torch.Tensor]) -> Case | None:
        """Return the call with what is right there, or None where the module itself gives no sound answer."""
        tensors = [t.contiguous() for t in tensors]
        with suppress(RuntimeError, IndexError, ValueError, TypeError):
            reference = self.run(tensors, exact=False)
            oracle = self.run(tensors, exact=True)
            if [t.shape for t in oracle] != [t.shape for t in reference]:
                return None
            finite = all(bool(torch.isfinite(t).all()) for t in (*reference, *oracle) if t.is_floating_point())
            if not finite and kind not in UNUSUAL:
                return None
            rounding = self._rounding(tensors, reference, oracle)
            return Case(kind, sizes, [banded(t) for t in tensors], reference, oracle, rounding)
        return None

    def _rounding(
        self, tensors: list[torch.Tensor], reference: list[torch.Tensor], oracle: list[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Return the largest of PyTorch's own error in the row, what moving the inputs does, and a unit of rounding."""
        unit = UNIT.get(reference[0].dtype, 2.0**-24) if reference else 0.0
        moved = [
            t.double() * (1 + MOVED * unit * torch.randn(t.shape, dtype=torch.float64)) if t.is_floating_point() else t
            for t in tensors
        ]
        others = self.run(moved, exact=True)
        bounds: list[torch.Tensor | None] = []
        for got, exact, other in zip(reference, oracle, others, strict=True):
            if not got.is_floating_point():
                bounds.append(None)
                continue
            rows = by_row(exact.double())
            error = (by_row(got.double()) - rows).abs()
            shift = (by_row(other.double()) - rows).abs() / MOVED
            size = UNIT[got.dtype] * rows.abs()
            worst = torch.stack([_finite(v).amax(1, keepdim=True) for v in (error, shift, size)]).amax(0)
            bounds.append(worst.clamp(min=1e-300))
        return bounds


def by_row(value: torch.Tensor) -> torch.Tensor:
    """Return an output as rows, along its last dimension; one row where these would be too short to have a scale."""
    last = value.shape[-1] if value.dim() > 1 else 0
    return value.reshape(-1, last) if last >= 16 else value.reshape(1, -1)


def _finite(value: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def own_cases(caller: Caller) -> Iterator[Case]:
    """Yield what other evaluators look at: own draws, and one of them scaled; the module as it is made."""
    for _ in range(OWN_DRAWS):
        if case := caller.case("own", "own", caller.own()):
            yield case
    tensors = caller.own()
    for name, factor in {"as is": 1.0, **SCALES}.items():
        if case := caller.case(f"own {name}", "own", caller.scaled(tensors, factor)):
            yield case


def searched_cases(caller: Caller, sizes: str) -> Iterator[Case]:
    """Yield the search's: every kind twice, the first time round in this order."""
    if (wide := caller.wide_integers()) and (case := caller.case("wide integers", sizes, wide)):
        yield case
    for again in range(2):
        for kind, change in KINDS.items():
            if again and (sizes == "odd" or kind in UNUSUAL):
                continue
            if case := caller.case(kind, sizes, caller.changed(change)):
                yield case
