"""Rounding on purpose: what another order of operations, or a lower precision, would do to a result.

A dispatch mode that changes the operands of matmul-like operators, or results: to another format, or, where an operator
rounds, at random by 1 + scale * u * N(0, 1), u the unit roundoff of its dtype. Runs beside the reference.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, MutableMapping
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from rag_kernels.eval.numerics.blocks import BLOCK, one_thread, pieces
from rag_kernels.eval.numerics.compare import NOISE_SHARE, UNIT_ROUNDOFF
from rag_kernels.eval.numerics.eight_bits import EIGHT_BITS
from rag_kernels.eval.traits.aten import names, operator
from rag_kernels.eval.traits.steps import PRODUCTS, SUMS

SCALE = 16.0
TABLE = 4 * BLOCK
EXACT = names(lambda op: op.exact)
FEW = TABLE >> 6  # numbers, which are drawn sooner than the table is
Change = Callable[[torch.Tensor], torch.Tensor]
MATMUL_LIKE = re.compile(
    r"_?(add|badd)?(b?mm|bmm|mv|dot|vdot|addr)|linear\w*|\w*conv\w*|\w*scaled_dot_product\w*|\w*(rnn|lstm|gru)\w*"
    r"|_transformer_encoder_layer_fwd|_native_multi_head_attention|_trilinear|_grouped_mm"
)


class Perturbed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, `operands` of matmul-like operators or `results` of all operators but `spared` ones are changed.

    With `spread`, operands of products of elements are changed too: where both are spread (`x[:, :, None] * w[None]`),
    and for a sum or a mean of such products (`x.pow(2).mean(-1)`), which alone sees them changed.
    """

    def __init__(
        self,
        *,
        operands: Change | None = None,
        results: Change | None = None,
        spared: frozenset[str] = frozenset(),
        exact_stays: bool = False,
        spread: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._spread = spread
        self._operands, self._results, self._spared = operands, results, spared
        self._exact_stays = exact_stays
        self.applied = 0
        self._products: MutableMapping[Any, Any] = WeakIdKeyDictionary()  # how to make those of elements again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if self._results is not None:
            args = _within_reach(name, args)
        given = args
        multiplies = MATMUL_LIKE.fullmatch(name) or (self._spread and _multiplies_spread(name, args))
        if self._operands is not None and not func._schema.is_mutable and multiplies:
            self.applied += 1
            args = tuple(
                a if i == operator(name).added else pytree.tree_map(self._changed(self._operands), a)
                for i, a in enumerate(args)
            )
        elif self._spread and name in SUMS and args[0] in self._products:
            self.applied += 1
            args = (self._products[args[0]](), *args[1:])
        result = func(*args, **(kwargs or {}))
        if self._spread and name in PRODUCTS and _is_float(result) and not multiplies:
            self._products[result] = partial(self._with_changed, func, given)
        if self._results is not None and name not in self._spared and _computes(func, args, result):
            self.applied += 1
            plain = func(*given, **(kwargs or {})) if self._exact_stays and args is not given else result
            for value, own in zip(pytree.tree_leaves(result), pytree.tree_leaves(plain), strict=True):
                if _is_float(value):
                    before = own.clone() if self._exact_stays else value
                    if (changed := self._results(value)) is not value:
                        value.copy_(changed)
                    if self._exact_stays and (exact := _exact(func, given, kwargs, before)) is not None:
                        value.copy_(torch.where(exact, before, value))
        return result

    def _with_changed(self, func: Any, args: Any) -> Any:
        assert self._operands is not None
        return func(*pytree.tree_map(self._changed(self._operands), args))

    @staticmethod
    def _changed(change: Change) -> Callable[[Any], Any]:
        return lambda value: change(value) if _is_float(value) else value


def _within_reach(name: str, args: Any) -> Any:
    """Return arguments whose places are there: one that is computed is beyond the last where its rounding is moved.

    A GPU would end the process for it.
    """
    base = name.rstrip("_")
    places = operator(base).places
    if places == "whole":
        at, size = 1, args[0].numel() if base == "take" else args[0].shape[0]
    elif places and isinstance(args[1], int) and args[0].dim():
        at, size = 2, args[0].shape[args[1]]
    else:
        return args
    if not size or not isinstance(args[at], torch.Tensor) or args[at].dtype not in (torch.int32, torch.int64):
        return args
    return (*args[:at], args[at].clamp(-size if base == "take" else 0, size - 1), *args[at + 1 :])


def _multiplies_spread(name: str, args: Any) -> bool:
    """Return whether it is a product of elements, of which neither factor has all."""
    if name != "mul" or not all(_is_float(a) for a in args[:2]):
        return False
    sizes = zip_longest(*(a.shape[::-1] for a in args[:2]), fillvalue=1)
    whole = math.prod(map(max, sizes))
    return all(a.numel() < whole for a in args[:2])


def _is_float(value: Any) -> bool:
    """Return whether it is a tensor that is computed with; of eight bits is only what is stored, and rounded once."""
    return isinstance(value, torch.Tensor) and value.dtype in UNIT_ROUNDOFF and value.dtype not in EIGHT_BITS


def _computes(func: Any, args: Any, result: Any) -> bool:
    """Return whether the result is new: not a view or another name of an operand, nor a tensor made from nothing."""
    operands = [a for a in pytree.tree_leaves(args) if _is_float(a)]
    if func.is_view or not operands:
        return False
    if func._schema.is_mutable:
        return True
    places = {t.untyped_storage().data_ptr() for t in operands}
    return not any(r.untyped_storage().data_ptr() in places for r in pytree.tree_leaves(result) if _is_float(r))


def _exact(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor | None:
    """Return where an operator rounded nothing: what it gives in fp64 is the same; None where that is not known."""
    if func._schema.is_mutable or result.dtype == torch.float64:
        return None
    try:
        wide = func(*pytree.tree_map(_wide, args), **{k: _wide(v) for k, v in (kwargs or {}).items()})
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    known = isinstance(wide, torch.Tensor) and wide.shape == result.shape and wide.dtype == torch.float64
    return wide == result.double() if known else None


def _wide(value: Any) -> Any:
    return value.double() if _is_float(value) else value


class RoundingNoise(Perturbed):  # type: ignore[no-untyped-call]
    """Within it, every operator rounds SCALE times worse, at random.

    With `operands` fp32 operands of products are moved at random, too, so that of the noise as it counts (divided by
    NOISE_SHARE) that is such a unit roundoff. With `exact_stays` results that were not rounded at all are left alone:
    nobody owes less there; and subnormal numbers, and a zero that is what rounding left, move by the least number.
    """

    def __init__(
        self, generator: torch.Generator, scale: float = SCALE, *, operands: float = 0.0, exact_stays: bool = False
    ) -> None:
        chance = Chance(generator)

        def noisy(value: torch.Tensor) -> torch.Tensor:
            moved = chance.move(value, scale * UNIT_ROUNDOFF[value.dtype])
            return chance.by_the_least(moved) if exact_stays else moved

        def lower(value: torch.Tensor) -> torch.Tensor:
            return chance.move(value.clone(), NOISE_SHARE * operands) if value.dtype == torch.float32 else value

        super().__init__(
            operands=lower if operands else None,
            results=noisy,
            spared=EXACT,
            exact_stays=exact_stays,
        )


class Chance:
    """Normal random numbers to move tensors by. On a CPU each block, if it is not small, finds its own at a place of a
    table that is drawn for all: a number drawn for each element would take longer than the operator whose rounding it
    stands for.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        # Places overlap, and in a sum of all what blocks have in common would not average out but for random signs.
        self._random = random.Random(int(torch.randint(1 << 40, (), generator=generator, device=generator.device)))
        self._tables: dict[torch.dtype, torch.Tensor] = {}

    def move(self, value: torch.Tensor, by: float) -> torch.Tensor:
        """Multiply a float tensor in place by 1 + by * N(0, 1), element by element, and return it."""
        if not value.is_contiguous():
            value.copy_(self.move(value.contiguous(), by))
            return value
        flat = value.view(-1)
        with one_thread():
            for piece in pieces(flat):
                part, side = flat[piece], by if self._random.random() < 0.5 else -by
                part.addcmul_(part, self._numbers(part) * side)  # large numbers times those of the table may overflow
        return value

    def by_the_least(self, value: torch.Tensor) -> torch.Tensor:
        """Move zeros and subnormal numbers of a float tensor, in place, by the least number to either side; return it.

        A part of their size rounds to none of it.
        """
        info = torch.finfo(value.dtype)
        if (small := value.abs() < info.tiny).any():
            signs = torch.randint(0, 2, value.shape, generator=self._generator, device=value.device).mul_(2).sub_(1)
            value.copy_(torch.where(small, value + (signs * (info.tiny * info.eps)).to(value.dtype), value))
        return value

    def _numbers(self, part: torch.Tensor) -> torch.Tensor:
        if part.is_cuda or part.numel() <= FEW:
            return torch.randn(part.shape, generator=self._generator, device=part.device).to(part.dtype)
        if part.dtype not in self._tables:
            self._tables[part.dtype] = torch.randn(TABLE, generator=self._generator).to(part.dtype)
        start = int(torch.randint(TABLE - BLOCK, (), generator=self._generator))
        return self._tables[part.dtype][start : start + part.numel()]


def rounded_anew(value: Any, generator: torch.Generator, roundings: float = NOISE_SHARE) -> Any:
    """Return a float tensor whose every element is another by about so many roundings, other values as they are."""
    if not _is_float(value):
        return value
    return Chance(generator).move(value.clone(), roundings * UNIT_ROUNDOFF[value.dtype])


def to_tf32(value: torch.Tensor) -> torch.Tensor:
    """Round to ten bits after the point, to nearest even; other dtypes than fp32 stay."""
    if value.dtype != torch.float32:
        return value
    bits = value.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def cut_to_tf32(value: torch.Tensor) -> torch.Tensor:
    """Leave ten bits after the point, as a tensor core does that is given all of fp32; other dtypes stay."""
    if value.dtype != torch.float32:
        return value
    return (value.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def through(dtype: torch.dtype) -> Change:
    return lambda value: value.to(dtype).to(value.dtype)
