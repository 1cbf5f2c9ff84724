"""What several tensors of a draw are beside each other: far apart, cancelling, agreeing, equal, searched for.

Comes in: a problem's module, and values for all its tensors as each was drawn by itself. Goes out: the same tensors,
changed where the kind of the draw is one of several tensors at once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rag_kernels.eval.children.reference.bound_module import BoundModule
from rag_kernels.eval.numerics.arranged_inputs import (
    is_mask,
    is_sorted,
    some_lines_zero,
)
from rag_kernels.eval.numerics.balanced_inputs import (
    LEAST_WEIGHT,
    outweigh,
    put_below_zero,
    put_beside,
    put_cancelling,
    put_fading,
    put_fading_scores,
    put_far_together,
    put_outweighing,
)
from rag_kernels.eval.numerics.compare import TINY
from rag_kernels.eval.numerics.exactness_probe import weighing
from rag_kernels.eval.numerics.inputs_together import (
    beside_others,
    put_agreeing,
    put_far_apart,
    put_far_under,
    put_same_sums,
)
from rag_kernels.eval.numerics.integer_draws import (
    next_to_multiples,
)
from rag_kernels.eval.numerics.named_inputs import put_beside_numbers
from rag_kernels.eval.numerics.oracle import (
    double_factories,
)
from rag_kernels.eval.numerics.searched_inputs import MOST_BESIDE, search
from rag_kernels.eval.numerics.structured_noise import put_next_to_lines
from rag_kernels.eval.records import FunctionalProblem, TensorArgument
from rag_kernels.eval.traits.aten import OF_DIFFERENCES, base_name
from rag_kernels.eval.traits.input_kinds import (
    AGREEING,
    AT_CONSTANTS,
    BALANCED,
    BELOW_ZERO,
    BESIDE,
    CANCELLING,
    FAR_APART,
    FAR_TOGETHER,
    FITTED,
    HIDDEN,
    INTEGERS,
    MULTIPLES,
    NAMED,
    NEXT_TO_LINES,
    NEXT_TO_ZERO,
    ONE_TWICE_ZEROS,
    OUTWEIGHED,
    SAME_SUMS,
    SEARCHED,
    TWICE,
)
from rag_kernels.eval.traits.marked_values import constants_of
from rag_kernels.eval.traits.steps import DIVISIONS, RUNNING, WEIGHING, alike_inputs, compares

DECIDES = 0.1  # of results at least, and of what is left at least: what is less by half of the fading
SLOWLY = 1 / 9  # of what scores fade by, and to the other side: of what is multiplied on and on, one less a sigmoid
MOST_OFF = 1e-5  # of a result next to zero, by which the module may miss it


class Subtracted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which tensors are taken from each other meanwhile: `pairs`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in OF_DIFFERENCES and len(args) > 1 and isinstance(args[1], torch.Tensor):
            one, other = args[0], args[1]
            if isinstance(one, torch.Tensor) and one.is_floating_point() and one.shape == other.shape:
                self.pairs.append((one.detach().clone(), other.detach().clone()))
        return func(*args, **(kwargs or {}))


@dataclass(slots=True)
class Making:
    """One draw in the making. `leaves` are the problem's own inputs, drawn from the same seed."""

    kind: str
    end: str  # of a range, for `ENDS`
    of_its_side: bool
    within: bool  # between the least and the greatest of the problem's own
    generator: torch.Generator
    leaves: list[Any]
    probed: dict[str, Callable[[torch.Tensor], torch.Tensor]]
    constants: list[float]
    masks: frozenset[str]
    reals: Sequence[float]  # that a candidate names, and whole ones
    wholes: Sequence[int]
    is_first: bool = True  # no input has been redrawn yet


class Together:
    """Changes values of kinds that are of several tensors at once, of one problem."""

    def __init__(self, fp: FunctionalProblem, module: BoundModule) -> None:
        self.fp, self.module = fp, module

    def is_free(self, argument: TensorArgument) -> bool:
        """Return whether an input may be any other one of its range: no place is computed from it or written there."""
        owed = {*self.fp.as_drawn, *self.fp.mutated}
        return argument.role == "input" and argument.path not in owed and argument.spec.dtype != "bool"

    def put(self, making: Making, target: list[torch.Tensor]) -> None:
        """Change values of kinds that are of several tensors at once."""
        kind, generator = making.kind, making.generator
        if kind in (AT_CONSTANTS, MULTIPLES):
            self._beside(kind, target, generator)
        if kind in (FAR_APART, SAME_SUMS):
            both = zip(self.fp.tensors, target, strict=True)
            free = [(t, a.spec.dtype) for a, t in both if self.is_free(a) and not is_sorted(t)]
            if kind == SAME_SUMS:
                put_same_sums([t for t, _ in free], generator)
            else:
                floats = [t for t, dtype in free if "float" in dtype]
                divides = any(base_name(node.op) in DIVISIONS for node in self.fp.nodes)
                put_far_apart(floats, generator, sided=making.of_its_side, divides=divides)
        if kind in NAMED and not making.within:
            both = zip(self.fp.tensors, target, strict=True)
            put_beside_numbers(
                [t for a, t in both if self.is_free(a) and "float" in a.spec.dtype], making.reals, generator
            )
        if kind in SEARCHED:
            self._search(kind, target, generator)
        if kind in BALANCED:
            self._balance(kind, target, generator)
        if kind in BESIDE:
            both = zip(self.fp.tensors, target, strict=True)
            put_beside(kind, [t for a, t in both if self.is_free(a) and "float" in a.spec.dtype and t.dim()], generator)
        if kind in AGREEING:
            self._agree(making, target)
        if kind in HIDDEN:
            inputs = [t for a, t in zip(self.fp.tensors, target, strict=True) if a.role == "input" and t.dim()]
            masks = [t for t in inputs if is_mask(t)]
            floats = [t for t in inputs if t.is_floating_point() and not any(t is mask for mask in masks)]
            put_far_under(floats, masks, HIDDEN[kind], generator)
        if kind in FITTED:
            self._fit(FITTED[kind], target, generator)
        if kind == NEXT_TO_LINES:
            both = zip(self.fp.tensors, target, strict=True)
            put_next_to_lines([t for a, t in both if a.role == "parameter" or self.is_free(a)], generator)
        if kind in TWICE:
            first_of = {i: j for i, j in enumerate(alike_inputs(self.fp)) if j < i}
            for j in set(first_of.values()) if kind == ONE_TWICE_ZEROS else ():
                target[j].copy_(some_lines_zero(target[j], generator))
            for i, j in first_of.items():
                target[i].copy_(target[j])

    def _agree(self, making: Making, target: Sequence[torch.Tensor]) -> None:
        """Let scores agree with targets of two values, and with places."""
        inputs = [(a, t) for a, t in zip(self.fp.tensors, target, strict=True) if a.role == "input" and self.is_free(a)]
        masks = [t for _, t in inputs if is_mask(t)]
        scores = [t for a, t in inputs if "float" in a.spec.dtype and not any(t is m for m in masks)]
        high = {bound.path: bound.high for bound in self.fp.bounds}
        places = [(t, high[a.path]) for a, t in inputs if a.path in high and a.spec.dtype in INTEGERS]
        put_agreeing(scores, masks, places, making.kind, making.generator)

    def _fit(self, little: float, target: Sequence[torch.Tensor], generator: torch.Generator) -> None:
        """Let an argument be next to what the module takes it from, or it from that, by so much of its size."""
        with Subtracted() as seen:
            self.module.call_on(target, wide=False)
        free = [t for a, t in zip(self.fp.tensors, target, strict=True) if a.role == "input" and self.is_free(a)]
        for one, other in seen.pairs:
            for argument, computed in ((one, other), (other, one)):
                mine = next((t for t in free if t.shape == argument.shape and torch.equal(t, argument)), None)
                if mine is not None and computed.shape == mine.shape and not torch.equal(computed, mine):
                    noise = torch.randn(mine.shape, generator=generator, device=mine.device)
                    size = computed.double().square().mean().sqrt()
                    mine.copy_((computed.double() + little * size * noise).to(mine.dtype))
                    return

    def _balance(self, kind: str, target: Sequence[torch.Tensor], generator: torch.Generator) -> None:
        """Let operands make up for each other."""
        floats = [
            (a, t)
            for a, t in zip(self.fp.tensors, target, strict=True)
            if (a.role == "parameter" or self.is_free(a)) and "float" in a.spec.dtype and t.numel()
        ]
        inputs, operands = [t for a, t in floats if a.role == "input"], [t for _, t in floats]
        if kind == FAR_TOGETHER and len(operands) > 1:
            put_far_together(operands, generator)
        elif kind == CANCELLING and len(operands) > 1:
            put_cancelling(operands, generator, lambda: self._own_error(target))
        elif kind == BELOW_ZERO and len(inputs) > 1:
            put_below_zero(inputs, generator)
        elif kind == OUTWEIGHED:
            self._outweigh({a.name: t for a, t in floats if t.dim() > 1}, target, generator)

    def _own_error(self, values: Sequence[torch.Tensor]) -> float:
        own, right = (self.module.call_on(values, wide=wide)[0].double() for wide in (False, True))
        return float((own - right).abs().mean())

    def _outweigh(
        self, floats: dict[str, torch.Tensor], target: Sequence[torch.Tensor], generator: torch.Generator
    ) -> None:
        """Let weights fade, and what they weigh be as much larger: the last tensor that results are linear in."""
        pairs = [pair for pair in weighing(self.fp) if all(name in floats for name in pair)]
        scored = {name for pair in pairs for name in pair}
        softmax = any(base_name(node.op) in WEIGHING for node in self.fp.nodes)
        with contextlib.suppress(RuntimeError, TypeError, ValueError), double_factories():
            names = [name for name in floats if name not in scored]
            weighed = next((name for name in reversed(names) if self._is_linear(floats[name], target)), None)
            if weighed is None or len(floats) < 2:
                self._outweigh_far(list(floats.values()), target, generator)
                return
            others = [floats[name] for name in names if name != weighed]
            side = SLOWLY if any(base_name(node.op) in RUNNING for node in self.fp.nodes) else -1.0
            put_fading(others if softmax else [], [] if softmax else others, generator, side=side)
            for query, key in pairs:
                for scale in (floats[query].shape[-1] ** -0.5, 1.0):  # which of both products are multiplied by
                    put_fading_scores(floats[query], floats[key], scale, generator)
                    weight = self._weights(floats[weighed], target).abs()
                    if float(weight.min()) > LEAST_WEIGHT * float(weight.max()):
                        break
            outweigh(floats[weighed], self._weights(floats[weighed], target), generator)

    def _outweigh_far(
        self, floats: Sequence[torch.Tensor], target: Sequence[torch.Tensor], generator: torch.Generator
    ) -> None:
        """Do so where results are nearly linear in what is far below zero, as logarithms of a softmax are: with the
        first pair of a form in which what weighs little decides.
        """
        for weight, value in itertools.permutations(floats, 2):
            if weight.shape != value.shape:
                continue
            own = weight.clone(), value.clone()
            least = put_outweighing(weight, value, generator)
            results = [self.module.call_on(target, wide=True)[0].double()]
            outweighing = value.clone()
            value.masked_fill_(least, 0.0)
            results.append(self.module.call_on(target, wide=True)[0].double())
            value.copy_(outweighing)
            part = float((results[0] - results[1]).abs().mean()) / max(float(results[0].abs().mean()), TINY)
            if DECIDES < part < 1 - DECIDES:
                return
            weight.copy_(own[0])
            value.copy_(own[1])

    def _is_linear(self, value: torch.Tensor, target: Sequence[torch.Tensor]) -> bool:
        """Return whether results are linear in a tensor, which is left as it is."""
        own, found = value.clone(), []
        for times in (0, 1, 2):
            value.copy_(times * own)
            found.append(self.module.call_on(target, wide=True)[0].double())
        value.copy_(own)
        once, twice = found[1] - found[0], found[2] - found[0]
        return bool(once.any()) and torch.allclose(twice, 2 * once, rtol=1e-9, atol=1e-9 * float(once.abs().max()))

    def _weights(self, value: torch.Tensor, target: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return by what the elements of a tensor are weighed in results that are linear in it."""
        wide = value.double().requires_grad_()
        values = [wide if t is value else t for t in target]
        with torch.enable_grad():
            result = self.module.call_on(values, wide=True)[0]
            (weight,) = torch.autograd.grad(result.sum(), wide)
        return weight

    def _beside(self, kind: str, values: Sequence[torch.Tensor], generator: torch.Generator) -> None:
        """Put elements of inputs at those of other tensors, or of one at multiples of them, and beside."""
        inputs = [i for i, a in enumerate(self.fp.tensors) if a.role == "input"]
        whole = [i for i, a in enumerate(self.fp.tensors) if a.spec.dtype in INTEGERS]
        for i in inputs:
            others = [v for j, v in enumerate(values) if j != i]
            if kind == AT_CONSTANTS and compares(self.fp) and not is_sorted(values[i]):
                values[i].copy_(beside_others(values[i], others, generator))
            elif kind == MULTIPLES and i in whole and self.fp.tensors[i].path not in self.fp.as_drawn:
                divisors = [values[j] for j in whole if j != i]
                numbers = [int(c) for c in constants_of(self.fp) if math.isfinite(c) and c == int(c)]
                values[i].copy_(next_to_multiples(values[i], divisors, numbers, generator))
                return

    def _search(self, kind: str, values: Sequence[torch.Tensor], generator: torch.Generator) -> None:
        """Search for inputs of a kind of results, of those that have the results' form; the module's own must be finite
        there."""
        form = next(s for s in self.fp.outputs if s.dtype == "float32")
        moved = [i for i, a in enumerate(self.fp.tensors) if a.role == "input" and a.spec == form]
        at, own = self.fp.outputs.index(form), [value.clone() for value in values]
        with torch.no_grad(), contextlib.suppress(RuntimeError, TypeError, ValueError), double_factories():
            if moved:
                search(kind, values, moved, lambda v: self.module.call_on(v, wide=True)[at].double(), generator)
        result = self.module.call_on(values, wide=False)[at]
        sound = torch.isfinite(result)
        for i in moved:
            values[i].copy_(torch.where(sound, values[i], own[i]))
        if kind == NEXT_TO_ZERO:  # of which some are none of its own either
            right = self.module.call_on(values, wide=True)[at].double()
            exact = (result.double() - right).abs() <= MOST_OFF * right.abs()
            places = (sound & exact & (right.abs() < MOST_BESIDE)).reshape(-1).nonzero().reshape(-1)
            if len(places):
                chosen = places[torch.randint(len(places), sound.shape, generator=generator, device=sound.device)]
                for i in moved:
                    values[i].copy_(values[i].reshape(-1)[chosen])
