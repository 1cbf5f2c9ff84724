"""The same problem at other sizes, for the judge: small ones, and odd ones that no tile divides.

Comes in: a FunctionalProblem. Goes out: others of the same graph, or None where the problem's text does not allow it.
Problems are run in child processes only. Each search is a generator that is sent the functional form of a problem that
it has yielded, so that one child traces for all searches that go on together.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import FunctionalProblem, Problem, ProblemError, Ref
from rag_kernels.eval.sizes.resizing import (
    fewer,
    free_sizes,
    grown,
    halved,
    larger_sizes,
    least_of,
    leaving_rest,
    odd_sizes,
    order_in_text,
    parts_of_sizes,
    scaled,
    with_sizes,
)
from rag_kernels.eval.sizes.text_sizes import REACHES, Reach, difference, untied
from rag_kernels.eval.sizes.tried_sizes import (
    VECTOR,
    Between,
    Drawn,
    Exactly,
    Few,
    Grown,
    Multiple,
    Packed,
    Rest,
    Rung,
    Sizes,
    Square,
    Tiled,
    Within,
)
from rag_kernels.eval.traits.aten import operator
from rag_kernels.ingest.functional.folding import unfolded
from rag_kernels.ingest.functional.functionalize import (
    footprint,
    functionalize,
    functionalize_each,
    functionalize_to_fit,
)

SMALL_BYTES, TINY_BYTES = 4 << 20, 16 << 10
LARGE_FLOPS = 4e9
FEWEST_LINES = 16
RUNG_BYTES = 64 << 20  # sanitizers are ten times as slow, or more
GROWN_TIMES, GROWN_BYTES, GROWN_FLOPS = 8, 32 << 20, 2e9
GROWN_TRIES = 6
GROWN_LESS = 3  # times, where there is no room for more
LESS_SQUARE = (1024, 512, 256)  # beside the problem's own sizes
UNIT, LEAST_TILED = 32, 64  # elements: shorter ones are no tiles, but heads, channels, kernels


Search = Generator[Problem, FunctionalProblem | None, FunctionalProblem | None]


def at_other_sizes(
    fp: FunctionalProblem, sizes: Sequence[Sizes], workers: Workers, *, small: FunctionalProblem | None = None
) -> list[FunctionalProblem | None]:
    """Return the problem at each of these sizes: `small` ones (a few MB), `odd` ones (small if need be), `large`...

    `small` is the one at small sizes where it is known (at `tiny` ones for a `Rest`): others follow from it, and
    finding it takes seconds. One child traces for all sizes.
    """
    if all(isinstance(one, Rest) for one in sizes):
        base = small
    else:
        try:
            base = fp if footprint(fp) <= SMALL_BYTES else small or _small(fp, workers)
        except ProblemError:
            base = None
    if base is None:
        return [None] * len(sizes)
    return _together([_search(fp, base, one) for one in sizes], workers, fp)


def _search(fp: FunctionalProblem, small: FunctionalProblem, sizes: Sizes) -> Search:
    """Return the search for one size."""
    match sizes:
        case Rest(rest, of):
            return _resized(fp, small.problem, partial(leaving_rest, rest=rest, of=of, vector=VECTOR))
        case Grown():
            return _grown(fp, unfolded(fp.problem), sizes)
        case Tiled():
            return _tiled(fp, sizes)
        case Drawn():
            return _drawn(fp, sizes)
        case Exactly():
            return _exactly(fp, sizes)
        case Square():
            return _square(fp, sizes)
        case Multiple():
            return _multiple(fp, sizes)
        case Packed():
            return _packed(fp, sizes)
        case Few():
            return _few(fp, small, sizes)
        case Within():
            return _within(fp, sizes)
        case Between():
            return _between(fp, small, sizes)
        case Rung():
            return _halved(fp, small, sizes)
        case "large":
            return _large(fp)
        case "tiny":
            return _tiny(fp)
        case "odd":  # all sizes if the module allows it, else those of the inputs, else the batch
            return _resized(fp, small.problem, odd_sizes)
        case "small":
            return _known(small if small.graph_key == fp.graph_key else None)
        case _ as never:
            assert_never(never)


def _known(found: FunctionalProblem | None) -> Search:
    yield from ()
    return found


def _together(searches: Sequence[Search], workers: Workers, like: FunctionalProblem) -> list[FunctionalProblem | None]:
    """Return what searches find; what they all want next is traced by one child, and not verified again where its graph
    is `like` that of the problem at its own sizes.
    """
    found: list[FunctionalProblem | None] = [None] * len(searches)
    wanted: dict[int, Problem] = {}

    def go_on(number: int, form: FunctionalProblem | None) -> None:
        try:
            wanted[number] = searches[number].send(form)
        except StopIteration as ended:
            wanted.pop(number, None)
            found[number] = ended.value

    for number in range(len(searches)):
        go_on(number, None)
    while wanted:
        problems = {problem.id: problem for problem in wanted.values()}
        traced = functionalize_each(list(problems.values()), workers=workers, like=like)
        forms = dict(zip(problems, traced, strict=True))
        for number, problem in list(wanted.items()):
            go_on(number, forms[problem.id])
    return found


def _small(fp: FunctionalProblem, workers: Workers) -> FunctionalProblem:
    """Scale it down by as much as it is too large; where that does not do, by trying sizes, which takes longer.

    By its batch alone where enough is left of that: how long its lines are decides what a thread of them gets.
    """
    problem, factor = unfolded(fp.problem), SMALL_BYTES / footprint(fp) / 2
    shorter = scaled(problem, factor, reach="batch")
    lines = shorter is not None and least_of(shorter, "batch") >= FEWEST_LINES
    for guess in (shorter if lines else None, scaled(problem, factor)):
        if guess is None:
            continue
        with contextlib.suppress(ProblemError):
            small = functionalize(guess, workers=workers, resized=True, named=False)
            if footprint(small) <= 4 * SMALL_BYTES and small.graph_key == fp.graph_key:
                return replace(small, notice=difference(problem, guess))
    return functionalize_to_fit(fp.problem, workers=workers, max_bytes=SMALL_BYTES, full=fp)


def _tiny(fp: FunctionalProblem) -> Search:
    """Find the problem at sizes that a call takes microseconds for; None where its text does not allow it."""
    problem = unfolded(fp.problem)
    changed = scaled(problem, TINY_BYTES / footprint(fp))
    if changed is None:
        return None
    return _if_alike(fp, (yield changed), difference(problem, changed))


def _if_alike(fp: FunctionalProblem, found: FunctionalProblem | None, notice: str) -> FunctionalProblem | None:
    """Return what was found, with the notice that says what it is, if it has the same graph."""
    return replace(found, notice=notice) if found is not None and found.graph_key == fp.graph_key else None


def _between(fp: FunctionalProblem, small: FunctionalProblem, sizes: Between) -> Search:
    """Find the problem at parts of its sizes, or of the small ones where these are too large."""
    fits = 4 * footprint(fp) <= RUNG_BYTES and 8 * fp.features.flops <= LARGE_FLOPS
    change = partial(parts_of_sizes, times=sizes.times, parts=sizes.parts)
    return _resized(fp, (fp if fits else small).problem, change, most_bytes=2 * RUNG_BYTES)


def _halved(fp: FunctionalProblem, small: FunctionalProblem, rung: Rung) -> Search:
    """Find the problem at the sizes of a rung, where these are others than the small ones and its own."""
    changed = halved(unfolded(fp.problem), rung.least, reach=rung.reach)
    if changed is None:
        return None
    found = yield changed
    if found is None or footprint(found) > min(RUNG_BYTES, footprint(fp) - 1):
        return None
    other = found.problem.source != small.problem.source
    return _if_alike(fp, found, difference(fp.problem, changed)) if other else None


def _large(fp: FunctionalProblem) -> Search:
    """Find the problem at more than twice its sizes, of the inputs alone if need be; None where that is too large."""
    if 4 * footprint(fp) > RUNG_BYTES or 8 * fp.features.flops > LARGE_FLOPS:
        return _known(None)
    return _resized(fp, fp.problem, larger_sizes, most_bytes=2 * RUNG_BYTES)


def _within(fp: FunctionalProblem, within: Within) -> Search:
    """Find the problem at other sizes of its inputs alone; None where those that it has are no others than the
    module's.
    """
    problem, reach = unfolded(fp.problem), within.reach
    odd = odd_sizes(problem, reach=reach)
    if odd is not None and odd != odd_sizes(problem, reach=_wider(reach)):
        return (yield from _changed_within(fp, problem, within))
    for every in (True, False) if reach == "batch" else ():
        apart = untied(problem, every=every)
        if apart != problem and (found := (yield from _changed_within(fp, apart, within))) is not None:
            return found
    return None


def _changed_within(fp: FunctionalProblem, problem: Problem, within: Within) -> Search:
    """Find the problem, as it is written here, at other sizes within a reach."""
    own, reach = problem, within.reach
    if isinstance(within.sizes, Grown):
        return (yield from _grown(fp, problem, within.sizes, reach))
    roomy = 4 * footprint(fp) <= RUNG_BYTES and 8 * fp.features.flops <= LARGE_FLOPS
    if within.sizes == "odd" or not roomy:
        problem = scaled(problem, SMALL_BYTES / footprint(fp), reach=reach) or problem
    match within.sizes:
        case Between(times, parts):
            changed = parts_of_sizes(problem, reach=reach, times=times, parts=parts)
        case "odd":
            changed = odd_sizes(problem, reach=reach)
        case "large":
            changed = larger_sizes(problem, reach=reach) if roomy else None
        case _ as never:
            assert_never(never)
    if changed is None:
        return None
    found = yield changed
    fits = found is not None and footprint(found) <= max(2 * RUNG_BYTES, footprint(fp))
    return _if_alike(fp, found, difference(own, changed)) if fits else None


def _wider(reach: Reach) -> Reach:
    return REACHES[REACHES.index(reach) + 1]


def _few(fp: FunctionalProblem, small: FunctionalProblem, few: Few) -> Search:
    """Find the problem with one size that is less than any other, by itself or with those equal to it."""
    for together in (False, True):
        # What is long is longer than the problem's own; sizes that a kernel refuses others of stay as they are.
        own = few.times > 1 or few.reach != REACHES[-1]
        base = (fp if own else small).problem
        changed = fewer(unfolded(base), few.number, few.value, together=together, reach=few.reach, times=few.times)
        if changed is None:
            return None
        found = yield changed
        if found is not None and footprint(found) > RUNG_BYTES:
            return None
        alike = found is not None and found.graph_key == fp.graph_key and repeated(found) <= repeated(fp)
        if found is not None and alike and all(0 not in s.shape for s in found.outputs):
            return replace(found, notice=difference(fp.problem, changed))
    return None


def repeated(fp: FunctionalProblem) -> set[tuple[str, int, int]]:
    """Return which operands of what is computed element by element come again along a dimension, as one number beside
    many does: by the node, the operand's place and the dimension from the last.

    Where one of two sizes that were equal is one, both have a sum, which is another problem's.
    """
    specs = {a.name: a.spec for a in fp.tensors} | {n.name: n.outputs[0] for n in fp.nodes if n.outputs}
    return {
        (node.name, at, place)
        for node in fp.nodes
        if node.outputs and operator(node.op).elementwise
        for at, value in enumerate(node.args)
        if isinstance(value, Ref) and value.name in specs
        for place, sizes in enumerate(zip(*(s.shape[::-1] for s in (specs[value.name], node.outputs[0])), strict=False))
        if sizes[0] == 1 < sizes[1]
    }


def _grown(fp: FunctionalProblem, problem: Problem, sizes: Grown, reach: Reach = "all") -> Search:
    """Find the problem with one size grown, by itself or with those equal to it; others make room.

    It grows less where there is no room for more.
    """
    for together, times in itertools.product((False, True), (GROWN_TIMES, GROWN_LESS)):
        change = partial(grown, problem, sizes.number, times=times, together=together, reach=reach)
        if (found := (yield from _with_room(fp, change, times, own=problem))) is not None:
            return found
    return None


def _with_room(
    fp: FunctionalProblem,
    change: Callable[..., Problem | None],
    times: float,
    most_bytes: int = GROWN_BYTES,
    *,
    own: Problem | None = None,
) -> Search:
    """Find a changed problem, about so many times as large, whose other sizes have shrunk until it fits.

    `own` is what was changed, where that is written otherwise than the problem.
    """
    shrink, before = min(1.0, most_bytes / (times * footprint(fp))), None
    for _ in range(GROWN_TRIES):
        changed = change(shrink=shrink)
        if changed is None or changed == before:  # nothing is left that could shrink
            return None
        found, before = (yield changed), changed
        if found is None:
            return None
        excess = max(footprint(found) / most_bytes, found.features.flops / GROWN_FLOPS)
        if excess <= 1:
            return _if_alike(fp, found, difference(own or fp.problem, changed))
        shrink /= 2 * excess
    return None


def _square(fp: FunctionalProblem, square: Square) -> Search:
    """Find the problem with two of its sizes alike, as large as one of them: the module's own, or the larger one.

    None grows by more than elsewhere; where there is no room for one of these, or it is small, others are tried first.
    """
    problem = unfolded(fp.problem)
    sizes, of_inputs = list(free_sizes(problem).items()), free_sizes(problem, reach="inputs")
    if square.second >= len(sizes) or sizes[square.first][1] == sizes[square.second][1]:
        return None
    two = [sizes[square.first], sizes[square.second]]
    own = [value for _, value in sorted(two, key=lambda size: (size[0] in of_inputs, -size[1]))]
    values = [value for value in (*own, *LESS_SQUARE) if value <= GROWN_TIMES * min(own)]
    for value in sorted(values, key=lambda value: value < LESS_SQUARE[-1]):
        change = partial(with_sizes, problem, {square.first: value, square.second: value})
        times = value * value / math.prod(own)
        if (found := (yield from _with_room(fp, change, times))) is not None:
            return found
    return None


def _multiple(fp: FunctionalProblem, multiple: Multiple) -> Search:
    """Find the problem with one of its sizes so many times another one, which is its own, or less for room.

    None grows by more than elsewhere.
    """
    problem = unfolded(fp.problem)
    sizes = list(free_sizes(problem).values())
    larger, smaller = (len(sizes) - 1 - number for number in (multiple.larger, multiple.smaller))
    if min(larger, smaller) < 0:
        return None
    own, most = sizes[smaller], GROWN_TIMES * sizes[larger] // multiple.times
    for value in (own, *(less for less in LESS_SQUARE if less < own)):
        wanted = {smaller: value, larger: multiple.times * value}
        if not LEAST_TILED <= value <= most or (value == own and wanted[larger] == sizes[larger]):
            continue
        times = value * wanted[larger] / (own * sizes[larger])
        if len(sizes) == len(wanted) and times * footprint(fp) > 2 * SMALL_BYTES:
            continue
        change = partial(with_sizes, problem, wanted)
        if (found := (yield from _with_room(fp, change, times, 2 * SMALL_BYTES))) is not None:
            return found
    return None


def _packed(fp: FunctionalProblem, packed: Packed) -> Search:
    """Find the problem with two sizes that a sum or an "or" of one and of the other's shifted bits takes for others."""
    problem = unfolded(fp.problem)
    sizes = list(free_sizes(problem).values())
    order = order_in_text(problem)
    if packed.number + 1 >= len(order):
        return None
    former, latter = order[-2 - packed.number], order[-1 - packed.number]
    if sizes[former] <= packed.few:
        return None
    own = sizes[latter]
    beyond = 0 if packed.second else 1 << own.bit_length() + packed.power
    if own + (1 << own.bit_length() + packed.power) > GROWN_TIMES * own:
        return None
    wanted = {former: packed.few + packed.second, latter: own + beyond}
    times = math.prod(size / sizes[number] for number, size in wanted.items())
    return (yield from _with_room(fp, partial(with_sizes, problem, wanted), times, 2 * SMALL_BYTES))


def _tiled(fp: FunctionalProblem, tiled: Tiled) -> Search:
    """Find the problem with one size that is so many tiles long, by itself or with those equal to it.

    No longer than it grows elsewhere: tiles are shorter, or of more so many are left out, that it is not.
    """
    problem = unfolded(fp.problem)
    sizes = list(free_sizes(problem).values())
    at = len(sizes) - 1 - tiled.number
    if at < 0 or sizes[at] < LEAST_TILED:
        return None
    of = tiled.of
    while tiled.shorter and of > UNIT and tiled.times * of > GROWN_TIMES * sizes[at]:
        of //= 2
    most = GROWN_TIMES * sizes[at] // of
    value = of * (1 + (tiled.times - 1) % most) if most else 0
    if not value or value in sizes:
        return None
    for together in (False, True):
        change = partial(with_sizes, problem, {at: value}, together=together)
        if (found := (yield from _with_room(fp, change, value / sizes[at], 2 * SMALL_BYTES))) is not None:
            return found
    return None


def _drawn(fp: FunctionalProblem, drawn: Drawn) -> Search:
    """Find the problem with one size drawn, by itself or with those equal to it: another one than its own, and no more
    than it grows elsewhere.
    """
    problem = unfolded(fp.problem)
    sizes = list(free_sizes(problem).values())
    if drawn.number >= len(sizes):
        return None
    own = sizes[drawn.number]
    value = drawn.of * max(1, round(own * drawn.times / drawn.of))
    if value in sizes or value > GROWN_TIMES * own:
        return None
    for together in (False, True):
        change = partial(with_sizes, problem, {drawn.number: value}, together=together)
        if (found := (yield from _with_room(fp, change, value / own, 2 * SMALL_BYTES))) is not None:
            return found
    return None


def _exactly(fp: FunctionalProblem, exactly: Exactly) -> Search:
    """Find the problem with its sizes at values, as far as none is more than it grows elsewhere; all, or one."""
    problem = unfolded(fp.problem)
    sizes = list(free_sizes(problem).values())
    wanted = {}
    for number, (own, (value, of)) in enumerate(zip(sizes, exactly.values, strict=False)):
        size = value if not of else own - own % of + value
        if 0 < size != own and size <= GROWN_TIMES * own:
            wanted[number] = size
    order = sorted(wanted, key=lambda number: number != exactly.first)
    for some in ([wanted] if len(wanted) > 1 else []) + [{number: wanted[number]} for number in order[:1]]:
        times = math.prod(size / sizes[number] for number, size in some.items())
        change = partial(with_sizes, problem, some)
        if (found := (yield from _with_room(fp, change, times, 2 * SMALL_BYTES))) is not None:
            return found
    return None


def _resized(
    fp: FunctionalProblem, problem: Problem, change: Callable[..., Problem | None], most_bytes: float = math.inf
) -> Search:
    """Find the problem at changed sizes, as many of them as it allows and still has the same graph."""
    for reach in reversed(REACHES):
        changed = change(unfolded(problem), reach=reach)
        if changed is None:
            continue
        found = yield changed
        if found is not None and found.graph_key == fp.graph_key and footprint(found) <= most_bytes:
            return replace(found, notice=difference(fp.problem, changed))
    return None
