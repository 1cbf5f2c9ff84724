"""Draws of a problem's arguments: of its own inputs, or of a special kind of `traits.input_kinds`.

Comes in: a problem's module, a seed and a kind. Goes out: values for all its tensors, the same for the same seed, and
how the problem's own look. Which kinds a problem is given, and whether its answer to them is sound, is for the judge.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rag_kernels.eval.children.bound_module import BoundModule
from rag_kernels.eval.messages.to_reference import Drawn
from rag_kernels.eval.numerics.arranged_inputs import (
    disordered,
    in_runs,
    irregular,
    is_mask,
    is_sorted,
    is_structured,
    lines_moved,
    nearly_as_kept,
    nearly_in_order,
    some_lines_zero,
    uneven,
    with_few_huge,
    with_one_other,
    with_other_digits,
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
)
from rag_kernels.eval.numerics.eight_bits import in_float32, narrowed
from rag_kernels.eval.numerics.exactness_probe import probed_contents, weighing
from rag_kernels.eval.numerics.input_draws import (
    at_constants,
    at_ends,
    ends_of,
    far_parameter,
    on_side_of,
    parameter_of,
    redraw,
    spoiled,
)
from rag_kernels.eval.numerics.inputs_together import beside_others, put_far_apart, put_same_sums
from rag_kernels.eval.numerics.integer_draws import (
    from_the_end,
    next_to_multiples,
    out_of_range,
    repeated,
    some_ignored,
    widened,
    widest,
)
from rag_kernels.eval.numerics.oracle import (
    double_factories,
    is_constant,
    vary,
)
from rag_kernels.eval.numerics.searched_inputs import MOST_BESIDE, search
from rag_kernels.eval.records import FunctionalProblem, IndexBound, TensorArgument
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.eval.traits.input_kinds import (
    ALIKE,
    AT_CONSTANTS,
    BALANCED,
    BEGUN,
    BELOW_ZERO,
    BESIDE,
    BESIDE_HUGE,
    CANCELLING,
    DISORDER,
    ENDS,
    FAR_APART,
    FAR_PARAMETERS,
    FAR_TOGETHER,
    FEW_HUGE,
    FROM_END,
    IGNORED,
    INTEGER_KINDS,
    INTEGERS,
    IRREGULAR,
    KEPT,
    LINES,
    MASKED,
    MULTIPLES,
    NEARLY,
    NEXT_TO_ZERO,
    NON_FINITE,
    OF_ITS_SIDE,
    ONE_OTHER,
    ONE_TWICE_ZEROS,
    OTHER_COLUMNS,
    OTHER_DIGITS,
    OTHER_ROWS,
    OUT_OF_RANGE,
    OUTWEIGHED,
    PADDED,
    PROBES,
    REPEATED,
    SAME_SUMS,
    SEARCHED,
    SINGLES,
    TWICE,
    UNEVEN,
    UNTRUE,
    WIDEST,
)
from rag_kernels.eval.traits.marked_values import constants_of, ignored_targets
from rag_kernels.eval.traits.steps import WEIGHING, alike_inputs, compares, has_to_ascend

MOST_OFF = 1e-5  # of a result next to zero, by which the module may miss it
SOME_BOUNDS = 64  # of a tensor of bounds
IN_PLACE = (IRREGULAR, DISORDER, NEARLY, UNEVEN, KEPT)  # but for a few elements as the problem has them


@dataclass(slots=True)
class Making:
    """One draw in the making. `leaves` are the problem's own inputs, drawn from the same seed."""

    kind: str
    end: str  # of a range, for `ENDS`
    of_its_side: bool
    generator: torch.Generator
    leaves: list[Any]
    probed: dict[str, Callable[[torch.Tensor], torch.Tensor]]
    constants: list[float]
    masks: frozenset[str]
    is_first: bool = True  # no input has been redrawn yet


class DrawMaker:
    """Makes draws of one problem."""

    def __init__(self, fp: FunctionalProblem, module: BoundModule) -> None:
        self.fp, self.module, self.device = fp, module, module.device
        self.begun = 0  # the seed of the one content whose lines come in other orders

    def make(self, seed: int, kind: str, places: Sequence[torch.Tensor]) -> Drawn:
        """Put a draw into these places; return how it looks, if it is of the problem's own."""
        target = [in_float32(t) for t in places]  # of eight bits: what is drawn is rounded in the end
        making = self._begin(seed, kind)
        for argument, tensor, place in zip(self.fp.tensors, target, places, strict=True):
            tensor.copy_(self._value(making, argument, place.dtype))
        self._put_together(making, target)
        for place, value in zip(places, target, strict=True):
            if place is not value:
                place.copy_(narrowed(value, place.dtype))
        return (
            self._look(target, making.generator)
            if kind == "own"
            else Drawn((False,) * len(target), (False,) * len(target))
        )

    def _begin(self, seed: int, kind: str) -> Making:
        if kind in LINES:  # of one content
            self.begun = self.begun or seed
        torch.manual_seed(self.begun if kind in LINES else seed)
        kind, of_its_side = kind.removesuffix(OF_ITS_SIDE), kind.endswith(OF_ITS_SIDE)
        kind, end = (ENDS, kind.removeprefix(ENDS)) if kind.startswith(ENDS) else (kind, "")
        with self.device:
            drawn = pytree.tree_leaves(list(self.module.get_inputs()))
            leaves = [in_float32(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in drawn]
        generator = torch.Generator(self.device).manual_seed(seed ^ 0x5EED)
        return Making(
            kind,
            end,
            of_its_side,
            generator,
            leaves,
            probed=probed_contents(self.fp, kind, generator) if kind in PROBES else {},
            constants=self._constants(leaves) if kind == AT_CONSTANTS else [],
            masks=self._masks(leaves) if kind == MASKED else frozenset(),
        )

    def _value(self, making: Making, argument: TensorArgument, dtype: torch.dtype) -> torch.Tensor:
        """Return what one argument gets."""
        kind, generator, is_input = making.kind, making.generator, argument.role == "input"
        value = self._input(making, argument, dtype) if is_input else self._held(kind, argument, generator)
        if argument.name in making.probed:
            value = making.probed[argument.name](value)
        if kind in IN_PLACE:
            return self._irregular(kind, argument, making.leaves, generator)
        if kind in LINES:
            value = value if is_input else in_float32(self.module.initial[argument.name])
            return value if kind == BEGUN or argument.role == "buffer" else self._moved(making, argument, value)
        return value

    def _moved(self, making: Making, argument: TensorArgument, value: torch.Tensor) -> torch.Tensor:
        """Return an input or a parameter with its lines in another order, its numbers with other digits, or a few of
        them huge.
        """
        kind, generator = making.kind, making.generator
        if kind in (OTHER_ROWS, OTHER_COLUMNS):
            return value if is_structured(value) else lines_moved(value, -(kind == OTHER_COLUMNS), generator)
        free = argument.role == "parameter" or (self._is_free(argument) and not is_structured(value))
        if not free or is_sorted(value):
            return value
        if kind == ONE_OTHER:
            return with_one_other(value, generator)
        if kind in (FEW_HUGE, BESIDE_HUGE):
            return with_few_huge(value, generator, others=kind == BESIDE_HUGE)
        return with_other_digits(value, OTHER_DIGITS.index(kind), generator)

    def _input(self, making: Making, argument: TensorArgument, dtype: torch.dtype) -> torch.Tensor:
        """Return an input of a kind, on the side of zero that the problem's own are on if that is asked for."""
        kind, generator, leaf = making.kind, making.generator, making.leaves[int(argument.path)]
        value: torch.Tensor = leaf.to(self.device)
        if kind in INTEGER_KINDS and kind != PADDED and argument.spec.dtype in INTEGERS:
            value = self._integers(kind, argument, value, generator)
        elif kind == OUT_OF_RANGE:
            bound = next((b for b in self.fp.bounds if b.path == argument.path), None)
            value = value if bound is None else out_of_range(value, bound, generator)
        elif kind == PADDED:
            value = in_runs(value, generator) if self._may_mask(argument, value) else value
        elif kind in (ALIKE, UNTRUE) and argument.spec.dtype == "bool":
            value = torch.full_like(value, kind == ALIKE)
        elif kind == ENDS:
            value = at_ends(value, making.end, generator)
        elif kind in SINGLES:
            value = value * SINGLES[kind] if value.numel() == 1 and value.is_floating_point() else value
        elif kind == AT_CONSTANTS:
            value = value if is_sorted(value) else at_constants(value, making.constants, generator)
        elif not (kind == "own" or is_sorted(value)):
            beside = bool(making.probed) or (bool(making.masks) and argument.path not in making.masks)
            value = redraw("normal" if beside else kind, value, generator, first=making.is_first, dtype=dtype)
            making.is_first = False
        elif kind != "own":
            value = redraw("normal" if making.probed else kind, value, generator).sort(dim=-1).values
        return on_side_of(leaf.to(self.device), value) if making.of_its_side else value

    def _held(self, kind: str, argument: TensorArgument, generator: torch.Generator) -> torch.Tensor:
        """Return what a tensor of the module's own gets."""
        value = in_float32(self.module.initial[argument.name])
        is_parameter = argument.role == "parameter"
        varies = is_parameter or is_constant(value)  # running statistics, not masks
        far = kind in FAR_PARAMETERS and is_parameter
        value = far_parameter(kind, value, generator) if far else vary(value, generator) if varies else value
        value = parameter_of(kind, value, generator) if is_parameter else value
        return spoiled(value, generator) if kind == NON_FINITE and is_parameter else value

    def _put_together(self, making: Making, target: list[torch.Tensor]) -> None:
        """Change values of kinds that are of several tensors at once."""
        kind, generator = making.kind, making.generator
        if kind in (AT_CONSTANTS, MULTIPLES):
            self._beside(kind, target, generator)
        if kind in (FAR_APART, SAME_SUMS):
            both = zip(self.fp.tensors, target, strict=True)
            free = [(t, a.spec.dtype) for a, t in both if self._is_free(a) and not is_sorted(t)]
            if kind == SAME_SUMS:
                put_same_sums([t for t, _ in free], generator)
            else:
                floats = [t for t, dtype in free if "float" in dtype]
                put_far_apart(floats, generator, sided=making.of_its_side)
        if kind in SEARCHED:
            self._search(kind, target, generator)
        if kind in BALANCED:
            self._balance(kind, target, generator)
        if kind in BESIDE:
            both = zip(self.fp.tensors, target, strict=True)
            put_beside(
                kind, [t for a, t in both if self._is_free(a) and "float" in a.spec.dtype and t.dim()], generator
            )
        if kind in TWICE:
            first_of = {i: j for i, j in enumerate(alike_inputs(self.fp)) if j < i}
            for j in set(first_of.values()) if kind == ONE_TWICE_ZEROS else ():
                target[j].copy_(some_lines_zero(target[j], generator))
            for i, j in first_of.items():
                target[i].copy_(target[j])

    def _balance(self, kind: str, target: Sequence[torch.Tensor], generator: torch.Generator) -> None:
        """Let operands make up for each other."""
        floats = [
            (a, t)
            for a, t in zip(self.fp.tensors, target, strict=True)
            if (a.role == "parameter" or self._is_free(a)) and "float" in a.spec.dtype and t.numel()
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
                return
            others = [floats[name] for name in names if name != weighed]
            put_fading(others if softmax else [], [] if softmax else others, generator)
            for query, key in pairs:
                for scale in (floats[query].shape[-1] ** -0.5, 1.0):  # which of both products are multiplied by
                    put_fading_scores(floats[query], floats[key], scale, generator)
                    weight = self._weights(floats[weighed], target).abs()
                    if float(weight.min()) > LEAST_WEIGHT * float(weight.max()):
                        break
            outweigh(floats[weighed], self._weights(floats[weighed], target), generator)

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

    def _look(self, target: Sequence[torch.Tensor], generator: torch.Generator) -> Drawn:
        """Return how a draw of the problem's own looks."""
        inputs = [t for a, t in zip(self.fp.tensors, target, strict=True) if a.role == "input"]
        return Drawn(
            structured=tuple(is_structured(t) for t in target),
            ordered=tuple(is_sorted(t) for t in target),
            alike=any(is_constant(t) for t in inputs),
            masks=any(self._may_mask(a, t) for a, t in zip(self.fp.tensors, target, strict=True)),
            keeps=self._keeps(generator),
            limited=any(ends_of(t) for t in inputs),
        )

    def _is_free(self, argument: TensorArgument) -> bool:
        """Return whether an input may be any other one of its range: no place is computed from it or written there."""
        owed = {*self.fp.as_drawn, *self.fp.mutated}
        return argument.role == "input" and argument.path not in owed and argument.spec.dtype != "bool"

    def _may_mask(self, argument: TensorArgument, value: torch.Tensor) -> bool:
        """Return whether an input may be a mask, and is no index that happens to be so small."""
        owed = {*self.fp.as_drawn, *self.fp.mutated, *(bound.path for bound in self.fp.bounds)}
        return argument.role == "input" and argument.path not in owed and is_mask(value)

    def _masks(self, leaves: Sequence[Any]) -> frozenset[str]:
        """Return the inputs that are masks which are added: what they hide lies beside ordinary numbers."""
        floats = [a for a in self.fp.tensors if a.role == "input" and "float" in a.spec.dtype]
        return frozenset(a.path for a in floats if self._may_mask(a, leaves[int(a.path)].to(self.device)))

    def _irregular(
        self, kind: str, argument: TensorArgument, leaves: Sequence[Any], generator: torch.Generator
    ) -> torch.Tensor:
        """Return what the problem has for an argument, but for a few elements where it is regular, in order or kept."""
        is_input = argument.role == "input"
        own = (leaves[int(argument.path)] if is_input else in_float32(self.module.initial[argument.name])).to(
            self.device
        )
        bound = next((b for b in self.fp.bounds if b.path == argument.path), None)
        if argument.path in self.fp.mutated:
            return own
        if kind == KEPT:
            return self._nearly(argument, own, generator)
        if kind == UNEVEN:
            return uneven(own, generator) if is_input and self._may_be_uneven(argument, own) else own
        if argument.path in self.fp.as_drawn:
            return own
        if kind == NEARLY:
            return nearly_in_order(own, bound, generator) if is_input and not is_structured(own) else own
        if kind == DISORDER:
            return disordered(own, bound, generator, ascends=has_to_ascend(self.fp, argument.name))
        return irregular(own, bound, generator) if is_input or argument.role == "parameter" else own

    def _nearly(self, argument: TensorArgument, own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return what the module keeps, nearly; anything else as it is."""
        owed = {*self.fp.as_drawn, *self.fp.mutated}
        return own if argument.role != "buffer" or argument.path in owed else nearly_as_kept(own, generator)

    def _keeps(self, generator: torch.Generator) -> bool:
        """Return whether the module keeps something that may be another."""
        begun = [(a, in_float32(self.module.initial[a.name])) for a in self.fp.tensors if a.role == "buffer"]
        return any(self._nearly(argument, value, generator) is not value for argument, value in begun)

    def _may_be_uneven(self, argument: TensorArgument, own: torch.Tensor) -> bool:
        """Return whether whole numbers may lie otherwise: several that places are computed from hang together, and on a
        GPU what is out of range ends all work.
        """
        computed = argument.path in self.fp.as_drawn
        bound = next((b for b in self.fp.bounds if b.path == argument.path), None)
        alike = own.numel() > 0 and bool((own == own.reshape(-1)[0]).all())
        if self.device.type != "cpu" and (computed or (bound is not None and alike)):
            return False
        return not computed or len(self.fp.as_drawn) == 1

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

    def _constants(self, leaves: Sequence[Any]) -> list[float]:
        """Return the numbers of the graph, and bounds that come as a tensor: some of each."""
        initial = self.module.initial
        held = [leaves[int(a.path)] if a.role == "input" else in_float32(initial[a.name]) for a in self.fp.tensors]
        bounds = [t.reshape(-1)[:: 1 + t.numel() // SOME_BOUNDS] for t in held if is_sorted(t)]
        return [*constants_of(self.fp), *(float(value) for t in bounds for value in t)]

    def _integers(
        self, kind: str, argument: TensorArgument, own: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Return an integer input of a kind of its own."""
        if kind == WIDEST:
            bounded = argument.path in {*(b.path for b in self.fp.bounds), *self.fp.as_drawn}
            return own if bounded else widest(own, generator)
        if kind in (UNTRUE, MULTIPLES):
            return own
        if kind == REPEATED:
            return repeated(own, generator)
        if kind == ALIKE:
            return own.max().expand(own.shape) if own.numel() else own
        if kind == IGNORED:
            marks = ignored_targets(self.fp)
            return some_ignored(own, marks[argument.name], generator) if argument.name in marks else own
        if kind == FROM_END:
            known = next((b for b in self.fp.bounds if b.path == argument.path and b.wraps), None)
            return own if known is None else from_the_end(own, known.high, generator)
        bounds = {b.path: b for b in self.fp.bounds}
        if own.numel():
            spans = (int(own.min()), int(own.max()) + 1)
            bounds |= {path: IndexBound(path, *spans, wraps=False) for path in self.fp.as_drawn}
        return widened(own, bounds.get(argument.path), generator)
