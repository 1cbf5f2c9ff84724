"""Fresh content for every call, at the speed of a copy.

A few whole draws of inputs and parameters exist per problem. The content of one call is a draw whose rows are
rotated by a secret offset, with a block of rows from another place of another draw spliced in: the same
distribution, other numbers, another answer. Works on numpy and on torch byte arrays alike, so that the judge
(CPU) and the trusted code of a GPU worker make the same content. Knows nothing of workers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.shared_arena import ITEM_BYTES
from rag_kernels.eval.records import TensorSpec

SPLICE_SHARE = 16  # one row in sixteen comes from elsewhere


@dataclass(frozen=True, slots=True)
class Splice:
    """How one tensor's content is made.

    Draw `draw` is rotated by `offset` rows, `count` rows from another are put in, and one column is exchanged.
    """

    draw: int
    offset: int
    other: int
    at: int
    start: int
    count: int
    column: int = -1  # this place of every last-dimension row comes from elsewhere too, so that no row comes again
    source: int = 0
    element: int = -1  # and this one element alone comes from a place of the other draw
    element_source: int = 0


Recipe = tuple[Splice, ...]


def rows_of(spec: TensorSpec) -> tuple[int, int]:
    """Return rows and bytes a row: the first dimension where there is one to rotate, single elements otherwise."""
    items = math.prod(spec.shape)
    rows = spec.shape[0] if spec.shape and spec.shape[0] > 1 else items
    return rows, (items // rows if rows else 0) * ITEM_BYTES[spec.dtype]


def plain(draw: int, tensors: int) -> Recipe:
    """Return the recipe that takes a draw as it is."""
    return (Splice(draw, 0, draw, 0, 0, 0),) * tensors


def whole_draw(recipe: Recipe) -> int | None:
    """Return the draw that a recipe takes unchanged, or None for a mixture."""
    draws = {part.draw for part in recipe}
    return (
        draws.pop()
        if len(draws) == 1 and all(p.offset == 0 and p.count == 0 and p.element < 0 for p in recipe)
        else None
    )


def random_recipe(
    specs: Sequence[TensorSpec], movable: Sequence[bool], draws: Sequence[int], rng: random.Random
) -> Recipe:
    """Return a secret recipe for one call, of these draws.

    Tensors that may not be moved (structured inputs, parameters) keep their order.
    """
    draw = rng.choice(draws)
    parts = []
    for spec, may_move in zip(specs, movable, strict=True):
        rows, _ = rows_of(spec)
        if not may_move or rows < 2:
            parts.append(Splice(draw, 0, draw, 0, 0, 0))
            continue
        count = max(1, rows // SPLICE_SHARE)
        at, start = rng.randrange(rows - count + 1), rng.randrange(rows - count + 1)
        if start == at:  # its lines would get what they have in the one column that is exchanged
            start = (at + 1) % (rows - count + 1)
        length = spec.shape[-1]  # of one column nothing else would be left
        column, source = (rng.randrange(length), rng.randrange(length)) if length > 1 else (-1, 0)
        offset, other = rng.randrange(1, rows), rng.choice(draws)
        parts.append(Splice(draw, offset, other, at, start, count, column, source))
    return tuple(parts)


def nudged(recipe: Recipe, specs: Sequence[TensorSpec], ordered: Sequence[bool], rng: random.Random) -> Recipe:
    """Return the same content but for one element of one tensor, a parameter's or an input's, whatever it means.

    Tensors whose elements have to ascend stay as they are.
    """
    free = [i for i, fixed in enumerate(ordered) if not fixed]
    places = [i for i in free if "float" in specs[i].dtype and math.prod(specs[i].shape) > 0]
    if not places:
        return recipe
    at = rng.choice(places)
    count = math.prod(specs[at].shape)
    part = replace(recipe[at], element=rng.randrange(count), element_source=rng.randrange(count))
    return (*recipe[:at], part, *recipe[at + 1 :])


def with_parameters_changed(
    recipe: Recipe, specs: Sequence[TensorSpec], parameters: Sequence[bool], rng: random.Random
) -> Recipe:
    """Return the same content with one element of every parameter changed: none is what it was in an earlier call."""
    parts = []
    for part, spec, is_parameter in zip(recipe, specs, parameters, strict=True):
        count = math.prod(spec.shape)
        if is_parameter and "float" in spec.dtype and count > 1:
            at = rng.randrange(count)
            part = replace(part, element=at, element_source=(at + rng.randrange(1, count)) % count)
        parts.append(part)
    return tuple(parts)


def with_rows_of(recipe: Recipe, draw: int, specs: Sequence[TensorSpec], rng: random.Random) -> Recipe:
    """Return the content with a few rows of another draw between the others: one, or as many as come from elsewhere."""
    few = rng.random() < 0.5
    parts = []
    for part, spec in zip(recipe, specs, strict=True):
        if part.count:
            count = 1 if few else part.count
            rows, _ = rows_of(spec)
            at, start = rng.randrange(rows - count + 1), rng.randrange(rows - count + 1)
            part = replace(part, other=draw, count=count, at=at, start=start, column=-1)
        parts.append(part)
    return tuple(parts)


def moved_together(recipe: Recipe, tensors: Sequence[int]) -> Recipe:
    """Return the content with these tensors, which are of one shape, made in the same way: what belongs together stays
    together."""
    parts = list(recipe)
    for index in tensors:
        parts[index] = recipe[tensors[0]]
    return tuple(parts)


def compose(target: Any, draws: Sequence[Any], part: Splice, spec: TensorSpec) -> None:
    """Write one tensor's content. `target` and `draws` are flat byte arrays of the same length (numpy or torch)."""
    for step in copies(target, draws, part, spec):
        for to, source in step:
            to[:] = source


def copies(target: Any, draws: Sequence[Any], part: Splice, spec: TensorSpec) -> list[list[tuple[Any, Any]]]:
    """Return the same as steps, one after the other, of (place, what is copied there), in any order.

    Whole, rows, columns.
    """
    rows, _ = rows_of(spec)
    if len(target) == 0 or rows == 0:
        return []
    to, base = target.reshape(rows, -1), draws[part.draw].reshape(rows, -1)
    turn = rows - part.offset
    steps = [[(to[:turn], base[part.offset :]), (to[turn:], base[: part.offset])] if part.offset else [(to, base)]]
    if part.count:
        other = draws[part.other].reshape(rows, -1)
        steps.append([(to[part.at : part.at + part.count], other[part.start : part.start + part.count])])
    if part.column >= 0:
        item = ITEM_BYTES[spec.dtype]
        lines, other = target.reshape(-1, spec.shape[-1] * item), draws[part.other].reshape(-1, spec.shape[-1] * item)
        place = slice(part.column * item, (part.column + 1) * item)
        steps.append([(lines[:, place], other[:, part.source * item : (part.source + 1) * item])])
    if part.element >= 0:
        item, other = ITEM_BYTES[spec.dtype], draws[part.other]
        start, place = part.element_source * item, slice(part.element * item, (part.element + 1) * item)
        steps.append([(target[place], other[start : start + item])])
    return steps


codec.register(Splice)
