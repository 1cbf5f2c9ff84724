"""A problem of the same graph at other sizes, by rewriting integers in its source text.

Comes in: a Problem, and what its sizes are to be: smaller, odd, larger, of a certain rest. Goes out: the problem with
such sizes, or None where it has none to change. Small numbers (kernel sizes, strides, heads, groups) are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from rag_kernels.eval.records import Problem
from rag_kernels.eval.sizes.text_sizes import LAST, LEAST_TIED, Reach, Site, rewritten, sites_of, with_tied, within

SMALLEST = {"batch": 2, "inputs": 16, "all": 32, "text": LEAST_TIED}
FREE = {"batch": 2, "inputs": 8, "all": 16}  # smaller ones may be kernel sizes, strides, heads: they do not grow
MOST_TIMES = 64  # as many elements, by several sizes that grow
# By how much each size is multiplied, so that two such problems tell sizes apart: what divided them divides them still.
MULTIPLES = ((2, 3), (3, 2), (3, 5), (5, 2), (2, 5), (5, 3), (4, 3), (3, 4), (4, 5), (5, 4), (2, 7), (7, 2))


def scaled(problem: Problem, factor: float, *, reach: Reach = "all") -> Problem | None:
    """Shrink sizes until their product has shrunk by about `factor`; None if no size can shrink.

    `reach` bounds which sizes: the batch, every size that only the inputs have, or those of the module too; with "text"
    numbers of the module's code that are equal to a size go with it.
    """
    sites = sites_of(problem.source)
    if reach == LAST:
        sites = with_tied(problem.source, sites)
        if all(site.reach != LAST for site in sites):
            return None
    changes = _changes(sites, factor, within(reach))
    return rewritten(problem, sites, changes) if changes else None


def least_of(problem: Problem, reach: Reach) -> int:
    """Return the least size of exactly this reach; 0 where it has none."""
    return min((site.value for site in sites_of(problem.source) if site.reach == reach), default=0)


def odd_sizes(problem: Problem, *, reach: Reach) -> Problem | None:
    """Add one to every even size within `reach` (equal sizes stay equal), so that no tile divides it."""
    sites, reaches = sites_of(problem.source), within(reach)
    changes = {s.key: s.value + 1 for s in sites if s.reach in reaches and s.value % 2 == 0}
    return rewritten(problem, sites, changes) if changes else None


def leaving_rest(problem: Problem, *, reach: Reach, rest: int, of: int, vector: int) -> Problem | None:
    """Give every even size within `reach` the next value that leaves this rest of so many.

    Where all together would be much more than before, the largest size alone; the others leave the rest of a vector.
    """
    sites, reaches = sites_of(problem.source), within(reach)
    sizes = {s.key: s.value for s in sites if s.reach in reaches and s.value % 2 == 0}
    if not sizes:
        return None
    changes = {key: value + (rest - value) % of for key, value in sizes.items()}
    if math.prod(changes[key] / value for key, value in sizes.items()) > MOST_TIMES:
        largest = max(sizes.values())
        changes |= {key: value + rest % vector for key, value in sizes.items() if value < largest}
    return rewritten(problem, sites, changes)


def parts_of_sizes(problem: Problem, *, reach: Reach, times: int, parts: int) -> Problem | None:
    """Take so many times a part of every size within `reach` that has so many parts; None where none has."""
    sites, reaches = sites_of(problem.source), within(reach)
    free = [s for s in sites if s.reach in reaches and s.value % parts == 0 and s.value >= FREE[s.reach]]
    changes = {s.key: s.value // parts * times for s in free}
    return rewritten(problem, sites, changes) if changes else None


def halved(problem: Problem, least: int, *, reach: Reach) -> Problem | None:
    """Halve every size within `reach` as long as it stays at least `least`; None where none can be halved."""
    sites, reaches = sites_of(problem.source), within(reach)
    changes = {s.key: smaller for s in sites if s.reach in reaches if (smaller := _down(s, least))}
    return rewritten(problem, sites, changes) if changes else None


def _down(site: Site, least: int) -> int:
    """Return the smallest half of a half of a size, or 0 where it cannot be halved once."""
    value = site.value
    while value % 2 == 0 and value // 2 >= least:
        value //= 2
    return value if value < site.value else 0


def larger_sizes(problem: Problem, *, reach: Reach) -> Problem | None:
    """Double every size within `reach` and add one, so that limits a little above the problem's sizes show."""
    sites, reaches = sites_of(problem.source), within(reach)
    changes = {s.key: 2 * s.value + 1 for s in sites if s.reach in reaches}
    return rewritten(problem, sites, changes) if changes else None


def told_apart(problem: Problem, number: int, keys: Collection[str], *, together: bool = False) -> Problem | None:
    """Multiply these sizes each by a number of its own; there are two such problems. None: there is no size to change.

    With `together` sizes that are equal stay equal.
    """
    sites, sizes = sites_of(problem.source), free_sizes(problem)
    kinds = list(dict.fromkeys(sizes.values() if together else sizes))
    times = {kind: MULTIPLES[i % len(MULTIPLES)][number] for i, kind in enumerate(kinds)}
    changes = {key: value * times[value if together else key] for key, value in sizes.items() if key in keys}
    return rewritten(problem, sites, changes) if changes else None


def free_sizes(problem: Problem, *, reach: Reach = "all") -> dict[str, int]:
    """Return the sizes within `reach` that may be changed, by the keys that `told_apart` takes."""
    return dict(_free([site for site in sites_of(problem.source) if site.reach in within(reach)]))


def order_in_text(problem: Problem) -> list[int]:
    """Return the numbers of free sizes, as `grown` counts them, in the order in which the text has them."""
    keys = list(free_sizes(problem))
    begins = {site.key: site.start for site in sorted(sites_of(problem.source), key=lambda site: -site.start)}
    return sorted(range(len(keys)), key=lambda number: begins[keys[number]])


def grown(
    problem: Problem,
    number: int,
    *,
    times: int,
    shrink: float = 1.0,
    together: bool = False,
    reach: Reach = "all",
) -> Problem | None:
    """Multiply one size, and shrink the others until their product has shrunk by about `shrink`; None: there is none.

    `number` counts sizes that are free, those of the inputs first. With `together` sizes that are equal to it grow too.
    """
    sizes = list(free_sizes(problem, reach=reach).values())
    if number >= len(sizes):
        return None
    return with_sizes(problem, {number: times * sizes[number]}, shrink=shrink, together=together, reach=reach)


def with_sizes(
    problem: Problem,
    wanted: Mapping[int, int],
    *,
    shrink: float = 1.0,
    together: bool = False,
    reach: Reach = "all",
) -> Problem | None:
    """Give free sizes other values, by their numbers as `grown` counts them; the others may shrink as there."""
    reaches = within(reach)
    sites = [s for s in sites_of(problem.source) if s.reach in reaches]
    sizes = _free(sites)
    if max(wanted) >= len(sizes):
        return None
    changes = {sizes[number][0]: value for number, value in wanted.items()}
    had = {sizes[number][1]: value for number, value in wanted.items()}
    changes = {s.key: had[s.value] for s in sites if together and s.value in had} | changes
    others = _changes([s for s in sites if s.key not in changes], shrink, reaches)
    return rewritten(problem, sites, others | changes)


def fewer(
    problem: Problem, number: int, value: int, *, together: bool = False, reach: Reach = "all", times: int = 1
) -> Problem | None:
    """Give one size a value that is below it, and those that are equal to it with `together`; None: there is none.

    Sizes are counted as by `grown`. The other free ones may be so many times as large, and one more.
    """
    reaches = within(reach)
    sites = [s for s in sites_of(problem.source) if s.reach in reaches]
    sizes = _free(sites)
    if number >= len(sizes) or sizes[number][1] <= value:
        return None
    key, has = sizes[number]
    chosen = {s.key for s in sites if s.key == key or (together and s.value == has)}
    others = {k: times * v + 1 for k, v in sizes if k not in chosen} if times > 1 else {}
    return rewritten(problem, sites, others | dict.fromkeys(chosen, value))


def _free(sites: list[Site]) -> list[tuple[str, int]]:
    """Return the keys and values of sizes that are free, those of the inputs first."""
    order: tuple[Reach, ...] = ("inputs", "batch", "all")
    return list(
        {s.key: s.value for reach in order for s in sites if s.reach == reach and s.value >= FREE[reach]}.items()
    )


def _changes(sites: list[Site], factor: float, reaches: tuple[Reach, ...]) -> dict[str, int]:
    """Choose new values by halving the largest size again and again.

    Sizes that are equal in the original may have to be (a target for each row), so they are halved together.
    """
    reach = {s.key: s.reach for s in sites if s.reach in reaches}
    original = {s.key: s.value for s in sites if s.reach in reaches}
    values = dict(original)
    left = math.log2(1 / factor) if 0 < factor < 1 else 0.0
    while left > 0:
        halves = {k: _half(v, reach[k]) for k, v in values.items()}
        groups = [[k for k in values if original[k] == size] for size in sorted(set(original.values()))]
        groups += [[k] for k in values]  # one by one, when those that belong together cannot all shrink
        ready = [g for g in groups if all(halves[k] is not None for k in g)]
        if not ready:
            break
        group = max(ready, key=lambda g: (all(original[k] != original[g[0]] or k in g for k in values), values[g[0]]))
        values.update({k: h for k in group if (h := halves[k]) is not None})
        left -= len(group)
    return {k: v for k, v in values.items() if v != original[k]}


def _half(value: int, reach: Reach) -> int | None:
    """Return half a size, or None when it is small already.

    Sizes of the module must stay multiples of powers of two.
    """
    if value // 2 < SMALLEST[reach] or (reach in ("all", LAST) and value % 2):
        return None
    return value // 2
