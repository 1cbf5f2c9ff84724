"""A smaller problem of the same graph, by rewriting integer sizes in the problem's source text.

Comes in: a Problem. Goes out: the same source with smaller `batch_size`, `height`, `N`... and a sentence that says
so. Works on the text alone (ast): no torch, and nothing of the problem is run, but for a `measure` that the caller
hands in. Small numbers (kernel sizes, strides, heads, groups) are left alone.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from rag_kernels.eval.aten import operator
from rag_kernels.eval.records import Problem, ProblemError

Reach = Literal["batch", "inputs", "all", "text"]
REACHES: tuple[Reach, ...] = ("batch", "inputs", "all")
LAST: Reach = "text"  # what else the text says of a size, as a module that computes with the number itself
SMALLEST = {"batch": 2, "inputs": 16, "all": 32, "text": 16}
FREE = {"batch": 2, "inputs": 8, "all": 16}  # smaller ones may be kernel sizes, strides, heads: they do not grow
DRAWS = ("get_inputs", "get_init_inputs")
_TRIES = 12
_TRIES_TO_GROW = 3
MOST_TIMES = 64  # as many elements, by several sizes that grow
# By how much each size is multiplied, so that two such problems tell sizes apart: what divided them divides them still.
MULTIPLES = ((2, 3), (3, 2), (3, 5), (5, 2), (2, 5), (5, 3), (4, 3), (3, 4), (4, 5), (5, 4), (2, 7), (7, 2))


@dataclass(frozen=True, slots=True)
class Site:
    """An integer in the source. Sites with the same key are shrunk together; `reach` says when."""

    key: str
    value: int
    start: int  # offsets of the expression in the UTF-8 bytes, as ast counts
    end: int
    reach: Reach


def _within(reach: Reach) -> tuple[Reach, ...]:
    """Return a reach and those that it takes in."""
    every = (*REACHES, LAST)
    return every[: every.index(reach) + 1]


def scaled(problem: Problem, factor: float, *, reach: Reach = "all") -> Problem | None:
    """Shrink sizes until their product has shrunk by about `factor`; None if no size can shrink.

    `reach` bounds which sizes: the batch, every size that only the inputs have, or those of the module too; with "text"
    numbers of the module's code that are equal to a size go with it.
    """
    sites = _sites(problem.source)
    if reach == LAST:
        sites = _with_tied(problem.source, sites)
        if all(site.reach != LAST for site in sites):
            return None
    changes = _changes(sites, factor, _within(reach))
    return _rewritten(problem, sites, changes) if changes else None


def _rewritten(problem: Problem, sites: list[Site], changes: dict[str, int]) -> Problem:
    data = problem.source.encode()
    for site in sorted(sites, key=lambda s: -s.start):
        if site.key in changes:
            data = data[: site.start] + str(changes[site.key]).encode("ascii") + data[site.end :]
    return Problem(problem.name, data.decode())


def odd_sizes(problem: Problem, *, reach: Reach) -> Problem | None:
    """Add one to every even size within `reach` (equal sizes stay equal), so that no tile divides it."""
    sites, reaches = _sites(problem.source), _within(reach)
    changes = {s.key: s.value + 1 for s in sites if s.reach in reaches and s.value % 2 == 0}
    return _rewritten(problem, sites, changes) if changes else None


def leaving_rest(problem: Problem, *, reach: Reach, rest: int, of: int, vector: int) -> Problem | None:
    """Give every even size within `reach` the next value that leaves this rest of so many.

    Where all together would be much more than before, the largest size alone; the others leave the rest of a vector.
    """
    sites, reaches = _sites(problem.source), _within(reach)
    sizes = {s.key: s.value for s in sites if s.reach in reaches and s.value % 2 == 0}
    if not sizes:
        return None
    changes = {key: value + (rest - value) % of for key, value in sizes.items()}
    if math.prod(changes[key] / value for key, value in sizes.items()) > MOST_TIMES:
        largest = max(sizes.values())
        changes |= {key: value + rest % vector for key, value in sizes.items() if value < largest}
    return _rewritten(problem, sites, changes)


def parts_of_sizes(problem: Problem, *, reach: Reach, times: int, parts: int) -> Problem | None:
    """Take so many times a part of every size within `reach` that has so many parts; None where none has."""
    sites, reaches = _sites(problem.source), _within(reach)
    free = [s for s in sites if s.reach in reaches and s.value % parts == 0 and s.value >= FREE[s.reach]]
    changes = {s.key: s.value // parts * times for s in free}
    return _rewritten(problem, sites, changes) if changes else None


def halved(problem: Problem, least: int, *, reach: Reach) -> Problem | None:
    """Halve every size within `reach` as long as it stays at least `least`; None where none can be halved."""
    sites, reaches = _sites(problem.source), _within(reach)
    changes = {s.key: smaller for s in sites if s.reach in reaches if (smaller := _down(s, least))}
    return _rewritten(problem, sites, changes) if changes else None


def _down(site: Site, least: int) -> int:
    """Return the smallest half of a half of a size, or 0 where it cannot be halved once."""
    value = site.value
    while value % 2 == 0 and value // 2 >= least:
        value //= 2
    return value if value < site.value else 0


def larger_sizes(problem: Problem, *, reach: Reach) -> Problem | None:
    """Double every size within `reach` and add one, so that limits a little above the problem's sizes show."""
    sites, reaches = _sites(problem.source), _within(reach)
    changes = {s.key: 2 * s.value + 1 for s in sites if s.reach in reaches}
    return _rewritten(problem, sites, changes) if changes else None


def told_apart(problem: Problem, number: int, keys: Collection[str], *, together: bool = False) -> Problem | None:
    """Multiply these sizes each by a number of its own; there are two such problems. None: there is no size to change.

    With `together` sizes that are equal stay equal.
    """
    sites, sizes = _sites(problem.source), free_sizes(problem)
    kinds = list(dict.fromkeys(sizes.values() if together else sizes))
    times = {kind: MULTIPLES[i % len(MULTIPLES)][number] for i, kind in enumerate(kinds)}
    changes = {key: value * times[value if together else key] for key, value in sizes.items() if key in keys}
    return _rewritten(problem, sites, changes) if changes else None


def free_sizes(problem: Problem, *, reach: Reach = "all") -> dict[str, int]:
    """Return the sizes within `reach` that may be changed, by the keys that `told_apart` takes."""
    return dict(_free([site for site in _sites(problem.source) if site.reach in _within(reach)]))


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
    reaches = _within(reach)
    sites = [s for s in _sites(problem.source) if s.reach in reaches]
    sizes = _free(sites)
    if max(wanted) >= len(sizes):
        return None
    changes = {sizes[number][0]: value for number, value in wanted.items()}
    had = {sizes[number][1]: value for number, value in wanted.items()}
    changes = {s.key: had[s.value] for s in sites if together and s.value in had} | changes
    others = _changes([s for s in sites if s.key not in changes], shrink, reaches)
    return _rewritten(problem, sites, others | changes)


def fewer(
    problem: Problem, number: int, value: int, *, together: bool = False, reach: Reach = "all", times: int = 1
) -> Problem | None:
    """Give one size a value that is below it, and those that are equal to it with `together`; None: there is none.

    Sizes are counted as by `grown`. The other free ones may be so many times as large, and one more.
    """
    reaches = _within(reach)
    sites = [s for s in _sites(problem.source) if s.reach in reaches]
    sizes = _free(sites)
    if number >= len(sizes) or sizes[number][1] <= value:
        return None
    key, has = sizes[number]
    chosen = {s.key for s in sites if s.key == key or (together and s.value == has)}
    others = {k: times * v + 1 for k, v in sizes if k not in chosen} if times > 1 else {}
    return _rewritten(problem, sites, others | dict.fromkeys(chosen, value))


def _free(sites: list[Site]) -> list[tuple[str, int]]:
    """Return the keys and values of sizes that are free, those of the inputs first."""
    order: tuple[Reach, ...] = ("inputs", "batch", "all")
    return list(
        {s.key: s.value for reach in order for s in sites if s.reach == reach and s.value >= FREE[reach]}.items()
    )


def size_names(problem: Problem) -> list[str]:
    """Return the names of the integers that the text assigns; of `height = width = 32` both."""
    return list(named_sizes(problem))


def named_sizes(problem: Problem) -> dict[str, int]:
    """Return the integers that the text assigns, by their names."""
    return {name: site.value for site in _named(problem.source, least=1) for name in _own_names(site.key)}


def resized(problem: Problem, sizes: Mapping[str, int]) -> Problem:
    """Return the problem with other values for sizes, by their names in the text."""
    data = problem.source.encode()
    for site in sorted(_named(problem.source, least=1), key=lambda s: -s.start):
        value = next((sizes[name] for name in _own_names(site.key) if name in sizes), None)
        if value is not None:
            data = data[: site.start] + str(value).encode("ascii") + data[site.end :]
    return Problem(problem.name, data.decode())


def _own_names(key: str) -> list[str]:
    """Return the names under which a site is known: `height=width` has two, `shape[0]` one."""
    names, bracket, item = key.partition("[")
    return [f"{name}{bracket}{item}" for name in names.split("=")]


def fit(problem: Problem, *, max_bytes: int, measure: Callable[[Problem], int]) -> tuple[Problem, str]:
    """Return a problem whose measure is at most `max_bytes`, and how it differs ("" when it does not).

    `measure` may raise ProblemError for a smaller problem that does not hold together; others are then tried.
    """
    size = measure(problem)
    if size <= max_bytes:
        return problem, ""
    for reach in (*REACHES, LAST):
        factor, previous = max_bytes / size, None
        for _ in range(_TRIES):
            candidate = scaled(problem, factor, reach=reach)
            if candidate is None:
                break
            if candidate == previous:
                factor /= 4
                continue
            if reach in ("batch", "inputs") and reduction(problem, candidate) < 0.4 * size / max_bytes:
                break  # even this reach's smallest problem is too large
            try:
                smaller = measure(candidate)
            except ProblemError:
                break
            if smaller <= max_bytes:
                return candidate, difference(problem, candidate)
            factor, previous = factor * min(0.5, max_bytes / smaller), candidate
    raise ProblemError(
        f"{problem.name} needs {size / 1e6:.0f} MB and could not be shrunk to {max_bytes / 1e6:.0f} MB by its sizes; "
        "write them as integers at module level, as KernelBench does."
    )


def roomiest(
    problem: Problem, smaller: Problem, *, max_bytes: int, measure: Callable[[Problem], int]
) -> tuple[Problem, str]:
    """Return the problem at the largest sizes that fit, from a smaller one that does, and how it differs.

    Sizes were halved; now each grows again as far as there is room, those of the module first, equal ones together. By
    how much the whole grows with one is guessed, and learnt from a guess that was wrong, so that few are measured.
    Where numbers of the code went with the sizes (reach "text"), all stay as they are: those would have to grow along.
    """
    before = _sites(problem.source)
    both = zip(before, _sites(smaller.source), strict=False)
    halves = {own.key: new.value for own, new in both if new.value != own.value}
    if _rewritten(problem, before, halves).source != smaller.source:
        return smaller, difference(problem, smaller)  # numbers of the module's code were halved with its sizes
    taken = measure(smaller)
    for reach in reversed(REACHES):
        for value in sorted({site.value for site in before if site.reach == reach}, reverse=True):
            larger = _grown_again(problem, smaller, {s.key for s in before if (s.reach, s.value) == (reach, value)})
            power = 1.0
            for _ in range(_TRIES_TO_GROW):
                times = max((t for t in larger if taken * t**power <= max_bytes), default=None)
                if times is None:
                    break
                candidate = larger.pop(times)
                with suppress(ProblemError):
                    size = measure(candidate)
                    if size <= max_bytes:
                        smaller, taken = candidate, size
                        break
                    power = max(power, math.log(size / taken, times))
    return smaller, difference(problem, smaller)


def _grown_again(problem: Problem, smaller: Problem, keys: Collection[str]) -> dict[float, Problem]:
    """Return the smaller problem with these sizes less small, by how many times they are what they were there.

    Between two halves there are seven such; sizes of the module stay whole multiples.
    """
    pairs = [(own, now) for own, now in zip(_sites(problem.source), _sites(smaller.source), strict=False)]
    sites = [replace(now, key=own.key, reach=own.reach) for own, now in pairs]
    most = {own.key: own.value for own, now in pairs if own.key in keys and now.value < own.value}
    values = {site.key: site.value for site in sites if site.key in most}
    modules = any(site.reach == "all" for site in sites if site.key in most)
    found: dict[float, Problem] = {}
    octaves = max((most[key] // value for key, value in values.items()), default=0).bit_length()
    for times in (2.0**octave * eighths / 8 for octave in range(octaves) for eighths in range(9, 17)):
        changes = {key: int(value * times) for key, value in values.items()}
        whole = not modules or all(value * times == changes[key] for key, value in values.items())
        if whole and all(values[key] < changes[key] <= most[key] for key in values):
            found[times] = _rewritten(smaller, sites, changes)
    return found


def reduction(problem: Problem, smaller: Problem) -> float:
    """Return by how much the product of all sizes has shrunk: an estimate of how much less there is to do."""
    new = {s.key: s.value for s in _sites(smaller.source)}
    old = {s.key: s.value for s in _sites(problem.source)}
    return math.prod(value / new.get(key, value) for key, value in old.items())


def difference(problem: Problem, smaller: Problem) -> str:
    """Say which sizes differ: "batch_size=16 instead of 4096"."""
    new = {s.key: s.value for s in _named(smaller.source, least=1)}
    old = {s.key: s.value for s in _named(problem.source)}
    parts = [f"{key}={new[key]} instead of {value}" for key, value in old.items() if new.get(key, value) != value]
    pairs = zip(_literals(problem.source), _literals(smaller.source), strict=False)
    parts += list(dict.fromkeys(f"{b} instead of {a}" for a, b in pairs if a != b))
    return ", ".join(parts)


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


def _sites(source: str) -> list[Site]:
    """Return every integer that may shrink, with the reach at which it does."""
    tree = ast.parse(source)
    inputs, init = _function(tree, "get_inputs"), _function(tree, "get_init_inputs")
    named = _named(source)
    by_inputs, by_init = _names_used(tree, inputs), _names_used(tree, init)
    batch = _batch_keys(tree, inputs)
    sites = []
    for site in named:
        names = set(site.key.partition("[")[0].split("="))
        if names & by_init:
            sites.append(_at(site, "all"))
        elif names & by_inputs:
            sites.append(_at(site, "batch" if batch & {*names, site.key} else "inputs"))
    offsets = _offsets(source)
    init_literals = list(_integers(init))
    tied = {n.value for n in init_literals}
    sites += [_literal_site(n, "all", offsets) for n in init_literals]
    for node, first in _shape_literals(inputs):
        reach: Reach = "all" if node.value in tied else "batch" if first else "inputs"
        sites.append(_literal_site(node, reach, offsets))
    return _agreed(sites)


def _with_tied(source: str, sites: list[Site]) -> list[Site]:
    """Return the sites with numbers of the module's code that are equal to a size, under that size's key."""
    tree, offsets = ast.parse(source), _offsets(source)
    keys = {site.value: site.key for site in reversed(sites) if site.value >= SMALLEST[LAST]}
    places = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name not in DRAWS]
    numbers = [n for place in places for n in ast.walk(place) if isinstance(n, ast.Constant)]
    tied = [_literal_site(n, LAST, offsets) for n in numbers if _integer(n) in keys]
    return _agreed([*sites, *(Site(keys[s.value], s.value, s.start, s.end, LAST) for s in tied)])


def _agreed(sites: list[Site]) -> list[Site]:
    """Let sites with one key shrink at the widest reach that any of them has."""
    widest: dict[str, Reach] = {}
    for site in sites:
        known = widest.get(site.key, site.reach)
        widest[site.key] = max(known, site.reach, key=(*REACHES, LAST).index)
    return [_at(s, widest[s.key]) for s in sites]


def _at(site: Site, reach: Reach) -> Site:
    return Site(site.key, site.value, site.start, site.end, reach)


def _literal_site(node: ast.Constant, reach: Reach, offsets: list[int]) -> Site:
    start, end = _span(node, offsets)
    return Site(f"={node.value!r}", int(str(node.value)), start, end, reach)


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """Return a function of the problem; the bodies of all where one wraps another of its name."""
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    if not found:
        return None
    whole = copy.copy(found[-1])
    whole.body = [statement for function in found for statement in function.body]
    return whole


def _named(source: str, *, least: int = 2) -> list[Site]:
    """Return integers assigned to names, at module level and in get_inputs; smaller ones than `least` are no sizes.

    Items of tuples are `name[0]`, `name[1]`...; `height = width = 32` is one site with the key `height=width`.
    """
    tree, offsets = ast.parse(source), _offsets(source)
    inputs = _function(tree, "get_inputs")
    found: list[Site] = []
    for statement in [*tree.body, *(inputs.body if inputs else [])]:
        names: dict[ast.expr, list[str]] = {}
        for name, value in _assignments(statement):
            names.setdefault(value, []).append(name)
        for value, together in names.items():
            name = "=".join(together)
            items = (
                [(f"{name}[{i}]", e) for i, e in enumerate(value.elts)]
                if isinstance(value, ast.Tuple | ast.List)
                else [(name, value)]
            )
            for key, expression in items:
                number = _integer(expression)
                if number is not None and number >= least:
                    found.append(Site(key, number, *_span(expression, offsets), "inputs"))
    return found


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        yield statement.target.id, statement.value
    if not isinstance(statement, ast.Assign):
        return
    for target in statement.targets:
        if isinstance(target, ast.Name):
            yield target.id, statement.value
        elif isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            for name, value in zip(target.elts, statement.value.elts, strict=False):
                if isinstance(name, ast.Name):
                    yield name.id, value


def _integer(node: ast.expr) -> int | None:
    """Return the value of an integer literal or of arithmetic on literals."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) and not isinstance(node.value, bool) else None
    if isinstance(node, ast.BinOp):
        left, right = _integer(node.left), _integer(node.right)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Pow):
            return int(left**right) if 0 <= right < 64 else None
        if isinstance(node.op, ast.LShift):
            return left << right if 0 <= right < 64 else None
        operations = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        return operations.get(type(node.op)) or (left // right if isinstance(node.op, ast.FloorDiv) and right else None)
    return None


def _names_used(tree: ast.Module, function: ast.FunctionDef | None) -> set[str]:
    """Return names that a function reads, also through other module-level names."""
    if function is None:
        return set()
    depends = {name: _names(value) for s in tree.body for name, value in _assignments(s)}
    used, queue = set(), sorted(_names(function))
    while queue:
        name = queue.pop()
        if name not in used:
            used.add(name)
            queue += sorted(depends.get(name, set()))
    return used


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _tensor_calls(function: ast.FunctionDef | None) -> list[tuple[str, ast.Call]]:
    """Return the calls that make tensors with their operators, also by another name: `r = torch.randn`, and
    `r = lambda *sizes: torch.randn(*sizes)`.
    """
    nodes = list(ast.walk(function)) if function else []
    named = {
        target.id: made
        for node in nodes
        if isinstance(node, ast.Assign) and (made := _made_by(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    found = [(_maker(c.func) or (named.get(c.func.id, "") if isinstance(c.func, ast.Name) else ""), c) for c in calls]
    return [(made, call) for made, call in found if made]


def _maker(node: ast.expr) -> str:
    """Return the operator of PyTorch that a name stands for, where it makes a tensor of sizes; else ""."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name if operator(name).sized else ""


def _made_by(value: ast.expr) -> str:
    """Return the operator with which a function makes a tensor of the sizes that it is given; else ""."""
    if not isinstance(value, ast.Lambda):
        return _maker(value)
    calls = [n for n in ast.walk(value.body) if isinstance(n, ast.Call)]
    return next((_maker(c.func) for c in calls if any(isinstance(a, ast.Starred) for a in c.args)), "")


def _shape(made: str, call: ast.Call) -> list[ast.expr]:
    """Return the size arguments of a tensor factory call (`randint` has its bounds before them)."""
    sizes = [a for a in call.args if isinstance(a, ast.Tuple | ast.List)]
    sizes += [k.value for k in call.keywords if k.arg == "size" and isinstance(k.value, ast.Tuple | ast.List)]
    if sizes:
        return list(sizes[0].elts)
    if made == "arange":  # start, end, step: only the end is a size
        return list(call.args[:2][-1:])
    return [] if made == "randint" else list(call.args)


def _batch_keys(tree: ast.Module, function: ast.FunctionDef | None) -> set[str]:
    keys = set()
    for made, call in _tensor_calls(function):
        first = next(iter(_shape(made, call)), None)
        if isinstance(first, ast.Starred) and isinstance(first.value, ast.Name):
            keys.add(f"{first.value.id}[0]")
        elif isinstance(first, ast.Name):
            keys |= {first.id, f"{first.id}[0]"}
    return keys


def _shape_literals(function: ast.FunctionDef | None) -> Iterator[tuple[ast.Constant, bool]]:
    for made, call in _tensor_calls(function):
        for i, node in enumerate(_shape(made, call)):
            if isinstance(node, ast.Constant) and (_integer(node) or 0) > 1:
                yield node, i == 0


def _integers(function: ast.FunctionDef | None) -> Iterator[ast.Constant]:
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.Constant) and (_integer(node) or 0) > 1:
            yield node


def _literals(source: str) -> list[int]:
    tree = ast.parse(source)
    nodes = [n for n, _ in _shape_literals(_function(tree, "get_inputs"))]
    nodes += list(_integers(_function(tree, "get_init_inputs")))
    return [int(str(n.value)) for n in nodes]


def _offsets(source: str) -> list[int]:
    """Return byte offset of the start of each line."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(node: ast.expr, offsets: list[int]) -> tuple[int, int]:
    start = offsets[node.lineno - 1] + node.col_offset
    end = offsets[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or node.col_offset)
    return start, end
