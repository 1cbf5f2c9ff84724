"""The integer sizes that stand in a problem's source text: where, what they are of, and the text with others.

Comes in: a Problem. Goes out: `Site`s, sizes by their names, and the same source with other values for `batch_size`,
`height`, `N`... Works on the text alone (ast): no torch, and nothing of the problem is run.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rag_kernels.eval.records import Problem
from rag_kernels.eval.traits.aten import operator

Reach = Literal["batch", "inputs", "all", "text"]
REACHES: tuple[Reach, ...] = ("batch", "inputs", "all")
LAST: Reach = "text"  # what else the text says of a size, as a module that computes with the number itself
LEAST_TIED = 16  # smaller numbers of the module's code are no sizes
DRAWS = ("get_inputs", "get_init_inputs")


@dataclass(frozen=True, slots=True)
class Site:
    """An integer in the source. Sites with the same key are shrunk together; `reach` says when."""

    key: str
    value: int
    start: int  # offsets of the expression in the UTF-8 bytes, as ast counts
    end: int
    reach: Reach


def within(reach: Reach) -> tuple[Reach, ...]:
    """Return a reach and those that it takes in."""
    every = (*REACHES, LAST)
    return every[: every.index(reach) + 1]


def rewritten(problem: Problem, sites: list[Site], changes: dict[str, int]) -> Problem:
    data = problem.source.encode()
    for site in sorted(sites, key=lambda s: -s.start):
        if site.key in changes:
            data = data[: site.start] + str(changes[site.key]).encode("ascii") + data[site.end :]
    return Problem(problem.name, data.decode())


def named_sizes(problem: Problem) -> dict[str, int]:
    """Return the integers that the text assigns, by their names."""
    return {name: site.value for site in _named(problem.source, least=1) for name in _own_names(site.key)}


def size_names(problem: Problem) -> list[str]:
    """Return the names of the integers that the text assigns; of `height = width = 32` both."""
    return list(named_sizes(problem))


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


def difference(problem: Problem, smaller: Problem) -> str:
    """Say which sizes differ: "batch_size=16 instead of 4096"."""
    new = {s.key: s.value for s in _named(smaller.source, least=1)}
    old = {s.key: s.value for s in _named(problem.source)}
    parts = [f"{key}={new[key]} instead of {value}" for key, value in old.items() if new.get(key, value) != value]
    pairs = zip(_literals(problem.source), _literals(smaller.source), strict=False)
    parts += list(dict.fromkeys(f"{b} instead of {a}" for a, b in pairs if a != b))
    return ", ".join(parts)


def sites_of(source: str) -> list[Site]:
    """Return every integer that may shrink, with the reach at which it does."""
    tree = ast.parse(source)
    inputs, init = _function(tree, "get_inputs"), _function(tree, "get_init_inputs")
    named = _named(source)
    by_inputs, by_init = _names_used(tree, inputs), _names_used(tree, init)
    batch = _batch_keys(inputs)
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


def untied(problem: Problem, *, every: bool = True) -> Problem:
    """Return the problem with a name of its own for the first dimension of inputs where its size is written as that of
    another dimension, or of the module, is; of `every` input, or of the first one alone.

    Lines are as many as columns by chance there: a kernel for so many columns may take any number of lines.
    """
    source, known = problem.source, named_sizes(problem)
    tree, offsets = ast.parse(source), _offsets(source)
    inputs, init = _function(tree, "get_inputs"), _function(tree, "get_init_inputs")
    shapes = [shape for made, call in _tensor_calls(inputs) if (shape := _shape(made, call))]
    others = {ast.unparse(size) for shape in shapes for size in shape[1:]}
    others |= _names_used(tree, init) | {str(node.value) for node in _integers(init)}
    values = {text: known.get(text, 0) or int(text.isdecimal() and text) for text in others}
    tied = [size for size, *_ in shapes if values.get(ast.unparse(size), 0) > 1][: None if every else 1]
    if inputs is None or not tied:
        return problem
    data = source.encode()
    for start, end in sorted((_span(size, offsets) for size in tied), reverse=True):
        data = data[:start] + _lines_of(data[start:end].decode()).encode() + data[end:]
    made = "".join(f"{_lines_of(text)} = {values[text]}\n" for text in sorted({ast.unparse(size) for size in tied}))
    begin = offsets[inputs.lineno - 1]
    return Problem(problem.name, (data[:begin] + made.encode() + data[begin:]).decode())


def _lines_of(size: str) -> str:
    return f"lines_of_{size}"


def with_tied(source: str, sites: list[Site]) -> list[Site]:
    """Return the sites with numbers of the module's code that are equal to a size, under that size's key."""
    tree, offsets = ast.parse(source), _offsets(source)
    keys = {site.value: site.key for site in reversed(sites) if site.value >= LEAST_TIED}
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


def _batch_keys(function: ast.FunctionDef | None) -> set[str]:
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
