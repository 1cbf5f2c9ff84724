"""Draws of a problem's arguments: of its own inputs, or of a special kind of `traits.input_kinds`.

Comes in: a problem's module, a seed and a kind. Goes out: values for all its tensors, the same for the same seed, and
how the problem's own look. Which kinds a problem is given, and whether its answer to them is sound, is for the judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rag_kernels.eval.children.reference.bound_module import BoundModule
from rag_kernels.eval.children.reference.draws_together import Making, Together
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
    uneven,
    with_few_huge,
    with_one_other,
    with_other_digits,
)
from rag_kernels.eval.numerics.eight_bits import in_float32, narrowed
from rag_kernels.eval.numerics.exactness_probe import probed_contents
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
from rag_kernels.eval.numerics.integer_draws import (
    at_both_ends,
    from_the_end,
    multiples_of_two,
    one_apart,
    out_of_range,
    repeated,
    some_ignored,
    widened,
    widest,
)
from rag_kernels.eval.numerics.named_inputs import with_numbers, with_whole_numbers
from rag_kernels.eval.numerics.oracle import (
    is_constant,
    seed_draws,
    vary,
)
from rag_kernels.eval.numerics.shaped_noise import powers_of_two
from rag_kernels.eval.records import FunctionalProblem, IndexBound, TensorArgument
from rag_kernels.eval.traits.aten import operator
from rag_kernels.eval.traits.input_kinds import (
    ALIKE,
    AT_CONSTANTS,
    BEGUN,
    BESIDE_HUGE,
    DISORDER,
    ENDS,
    ENDS_TOGETHER,
    FAR_NAMED_NUMBERS,
    FAR_PARAMETERS,
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
    NAMED,
    NEARLY,
    NON_FINITE,
    OF_ITS_RANGE,
    OF_ITS_SIDE,
    ONE_APART,
    ONE_OTHER,
    OTHER_COLUMNS,
    OTHER_DIGITS,
    OTHER_ROWS,
    OUT_OF_RANGE,
    PADDED,
    POWERS,
    PROBES,
    REPEATED,
    SINGLES,
    STRIDED,
    UNEVEN,
    UNTRUE,
    WIDEST,
)
from rag_kernels.eval.traits.marked_values import constants_of, ignored_targets, powers_in
from rag_kernels.eval.traits.steps import has_to_ascend, is_elementwise

SOME_BOUNDS = 64  # of a tensor of bounds
IN_PLACE = (IRREGULAR, DISORDER, NEARLY, UNEVEN, KEPT)  # but for a few elements as the problem has them


class DrawMaker:
    """Makes draws of one problem."""

    def __init__(self, fp: FunctionalProblem, module: BoundModule) -> None:
        self.fp, self.module, self.device = fp, module, module.device
        self.together = Together(fp, module)
        self.begun = 0  # the seed of the one content whose lines come in other orders

    def make(
        self,
        seed: int,
        kind: str,
        places: Sequence[torch.Tensor],
        *,
        reals: Sequence[float] = (),
        wholes: Sequence[int] = (),
    ) -> Drawn:
        """Put a draw into these places; return how it looks, if it is of the problem's own.

        `reals` and `wholes` are numbers that a candidate names.
        """
        target = [in_float32(t) for t in places]  # of eight bits: what is drawn is rounded in the end
        making = self._begin(seed, kind, reals, wholes)
        for argument, tensor, place in zip(self.fp.tensors, target, places, strict=True):
            tensor.copy_(self._value(making, argument, place.dtype))
        self.together.put(making, target)
        for place, value in zip(places, target, strict=True):
            if place is not value:
                place.copy_(narrowed(value, place.dtype))
        return (
            self._look(target, making.generator)
            if kind == "own"
            else Drawn((False,) * len(target), (False,) * len(target))
        )

    def _begin(self, seed: int, kind: str, reals: Sequence[float], wholes: Sequence[int]) -> Making:
        if kind in LINES:  # of one content
            self.begun = self.begun or seed
        seed_draws(self.begun if kind in LINES else seed, self.device)
        kind, within = kind.removesuffix(OF_ITS_RANGE), kind.endswith(OF_ITS_RANGE)
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
            within,
            generator,
            leaves,
            probed=probed_contents(self.fp, kind, generator) if kind in PROBES else {},
            constants=self._constants(leaves) if kind == AT_CONSTANTS else [],
            masks=self._masks(leaves) if kind == MASKED else frozenset(),
            reals=reals,
            wholes=wholes,
        )

    def _value(self, making: Making, argument: TensorArgument, dtype: torch.dtype) -> torch.Tensor:
        """Return what one argument gets."""
        kind, generator, is_input = making.kind, making.generator, argument.role == "input"
        value = self._input(making, argument, dtype) if is_input else self._held(kind, argument, generator)
        if kind in NAMED and argument.role != "buffer":
            value = self._named(making, argument, value)
        if argument.name in making.probed:
            value = making.probed[argument.name](value)
        if kind in IN_PLACE:
            return self._irregular(kind, argument, making.leaves, generator)
        if kind in LINES:
            value = value if is_input else in_float32(self.module.initial[argument.name])
            return value if kind == BEGUN or argument.role == "buffer" else self._moved(making, argument, value)
        return value

    def _named(self, making: Making, argument: TensorArgument, value: torch.Tensor) -> torch.Tensor:
        """Return an input with something of the numbers that a candidate names, or every other time a parameter."""
        generator, far = making.generator, making.kind == FAR_NAMED_NUMBERS
        if argument.path in self.fp.as_drawn or is_sorted(value) or value.is_complex():
            return value
        if value.is_floating_point():
            is_input = argument.role == "input"
            if not is_input and float(torch.rand((), generator=generator, device=self.device)) < 0.5:
                return value
            other = with_numbers(value, making.reals, making.wholes, generator, far=far)
            if making.within and is_input and value.numel():
                return other.clamp(value.min(), value.max())
            return on_side_of(value, other) if making.of_its_side and is_input else other
        if value.dtype == torch.bool:
            return with_whole_numbers(value, making.wholes, 0, 2, generator)
        if not value.numel() or is_structured(value):
            return value
        bound = next((b for b in self.fp.bounds if b.path == argument.path), None)
        low, high = (int(value.min()), int(value.max()) + 1) if bound is None else (max(0, bound.low), bound.high)
        return with_whole_numbers(value, making.wholes, low, high, generator)

    def _moved(self, making: Making, argument: TensorArgument, value: torch.Tensor) -> torch.Tensor:
        """Return an input or a parameter with its lines in another order, its numbers with other digits, or a few of
        them huge.
        """
        kind, generator = making.kind, making.generator
        if kind in (OTHER_ROWS, OTHER_COLUMNS):
            return value if is_structured(value) else lines_moved(value, -(kind == OTHER_COLUMNS), generator)
        free = argument.role == "parameter" or (self.together.is_free(argument) and not is_structured(value))
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
        elif kind in (ALIKE, UNTRUE) and argument.spec.dtype == "bool" and argument.path not in self.fp.as_drawn:
            value = torch.full_like(value, kind == ALIKE)
        elif kind == ENDS:
            value = at_ends(value, making.end, generator)
        elif kind in SINGLES:
            value = value * SINGLES[kind] if value.numel() == 1 and value.is_floating_point() else value
        elif kind == AT_CONSTANTS:
            alone = any(operator(node.op).evenly for node in self.fp.nodes)
            value = value if is_sorted(value) else at_constants(value, making.constants, generator, alone=alone)
        elif kind == POWERS and is_elementwise(self.fp) and not is_sorted(value):
            value = powers_of_two(value, generator, scales=powers_in(self.fp))
        elif not (kind == "own" or kind in NAMED or is_sorted(value)):
            beside = bool(making.probed) or (bool(making.masks) and argument.path not in making.masks)
            value = redraw("normal" if beside else kind, value, generator, first=making.is_first, dtype=dtype)
            making.is_first = False
        elif kind != "own" and kind not in NAMED:
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
        if kind == ONE_APART:
            known = next((b for b in self.fp.bounds if b.path == argument.path), None)
            free = argument.path not in self.fp.as_drawn and not is_structured(own) and not is_sorted(own)
            return one_apart(own, known, generator) if free else own
        if kind in (STRIDED, ENDS_TOGETHER):
            bounded = argument.path in {*(b.path for b in self.fp.bounds), *self.fp.as_drawn}
            if kind == STRIDED:
                return own if bounded else multiples_of_two(own, generator)
            free = argument.path not in self.fp.as_drawn and not is_structured(own)
            return at_both_ends(own, generator) if free else own
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
