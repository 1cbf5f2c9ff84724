"""A training step as two graphs: the forward with what it saves, and the backward that takes it.

Comes in: the problem of a step, and how much to save. Goes out: two problems, whose kernels make one candidate. A
value of the forward that the backward needs is either saved, or computed again from what is; that is decided node by
node, from the gradients' side: views and pointwise values are computed again, products and reductions are saved. So is
what the forward multiplies by weights: it is stored for that anyway, and the gradient of these weights reads it. What
an output shows in another shape is saved as that output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from rag_kernels.eval.build.step_form import pulled_arguments
from rag_kernels.eval.records import Argument, FunctionalProblem, Node, Ref, TensorArgument
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.offline.graph.rewrites import live
from rag_kernels.offline.graph.subgraph_match import refs_of, specs_of

NOTHING, DEAR, EVERYTHING = 0, 1, 2  # what is saved
RESHAPE = "aten.reshape.default"


@dataclass(frozen=True, slots=True)
class Halves:
    """The two graphs of a step. `saved` are the last results of the first, and arguments of the second."""

    forward: FunctionalProblem
    backward: FunctionalProblem
    grads: tuple[str, ...]  # names of the gradients that the backward takes
    saved: tuple[str, ...]
    arguments: tuple[Argument, ...]  # of the forward, which the backward takes too


def halves(fp: FunctionalProblem, saving: int) -> Halves:
    """Return the two graphs of a training step."""
    assert fp.step is not None
    pulled = pulled_arguments(fp.arguments, fp.step)
    grads, arguments = fp.arguments[:pulled], fp.arguments[pulled:]
    outputs, gradients = fp.results[: fp.step.outputs], fp.results[fp.step.outputs :]
    by_name = {node.name: node for node in fp.nodes}
    own = _needed(outputs, by_name)
    own |= {node.name for node in fp.nodes if node.op == "getitem" and own & set(refs_of(node))}
    own |= _totals(own, fp.nodes)
    behind = _behind({a.name for a in grads}, fp.nodes)
    factors = _factors(own, by_name, fp)
    specs = specs_of(fp)

    def is_saved(name: str) -> bool:
        node = by_name[name]
        if name not in own or name in behind or name not in specs or saving == NOTHING:
            return False
        return not _is_view(node) if saving == EVERYTHING else name in factors or _is_dear(node, by_name, fp)

    found, again = _saved(gradients, by_name, is_saved)
    shown = {name: output for output in outputs for name in _below(output, by_name)}
    views = {name: shown[name] for name in found if name in shown and specs[name].dtype == specs[shown[name]].dtype}
    saved = tuple(dict.fromkeys(views.get(name, name) for name in found))
    kept = tuple(TensorArgument(name, "input", specs[name], "") for name in saved)
    told = tuple(size for size in fp.made if size.argument not in {a.name for a in grads})
    forward = live(replace(fp, arguments=arguments, results=(*outputs, *saved), step=None, made=told), fp.nodes)
    laid = [replace(by_name[n], op=RESHAPE, args=(Ref(of), specs[n].shape), kwargs=()) for n, of in views.items()]
    rest = (*laid, *(node for node in fp.nodes if node.name in again and node.name not in saved))
    backward = replace(fp, arguments=(*grads, *kept, *arguments), nodes=rest, results=gradients, step=None)
    return Halves(forward, backward, tuple(a.name for a in grads), saved, arguments)


def _below(name: str, by_name: dict[str, Node]) -> list[str]:
    """Return the names of what a name is the same elements of, in the same order."""
    found = list[str]()
    while (node := by_name.get(name)) and operator(base_name(node.op)).reshape and (read := refs_of(node)):
        name = read[0]
        found.append(name)
    return [name for name in found if name in by_name]


def _saved(
    gradients: tuple[str, ...], by_name: dict[str, Node], is_saved: Callable[[str], bool]
) -> tuple[tuple[str, ...], set[str]]:
    """Return what the backward takes from the forward, in the graph's order, and the nodes that it computes itself."""
    saved, again = set[str](), set[str]()
    waiting = [name for name in gradients if name in by_name]
    while waiting:
        name = waiting.pop()
        if name in again or name in saved:
            continue
        if is_saved(name):
            saved.add(name)
            continue
        again.add(name)
        waiting += [n for n in refs_of(by_name[name]) if n in by_name]
    return tuple(name for name in by_name if name in saved), again


def _needed(results: tuple[str, ...], by_name: dict[str, Node]) -> set[str]:
    found, waiting = set[str](), [name for name in results if name in by_name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [n for n in refs_of(by_name[name]) if n in by_name]
    return found


def _totals(own: set[str], nodes: tuple[Node, ...]) -> set[str]:
    """Return what rows of the forward's values come to (their maxima, and logsumexps), which it has at hand."""
    found = dict[str, Node]()
    for node in nodes:
        name, read = base_name(node.op), refs_of(node)
        if (name in {"amax", "logsumexp", "sub"} or operator(name).cast) and read and own.union(found) >= {*read}:
            found[node.name] = node
    return _needed(tuple(name for name, node in found.items() if base_name(node.op) == "logsumexp"), found)


def _behind(grads: set[str], nodes: tuple[Node, ...]) -> set[str]:
    """Return the nodes that need a gradient."""
    found = set(grads)
    for node in nodes:
        if found & set(refs_of(node)):
            found.add(node.name)
    return found - grads


def _factors(own: set[str], by_name: dict[str, Node], fp: FunctionalProblem) -> set[str]:
    """Return what products of the forward take beside weights, below views of it."""
    inputs = {a.name for a in fp.tensors if a.role == "input"}
    moving, found = _behind(inputs, fp.nodes) | inputs, set[str]()
    for node in fp.nodes:
        if node.name not in own or operator(base_name(node.op)).cost != "product":
            continue
        taken = [name for name in refs_of(node) if name in moving]
        if len(taken) != 1:
            continue
        (name,) = taken
        while name in by_name and _is_view(by_name[name]) and (below := refs_of(by_name[name])):
            name = below[0]
        found.add(name)
    return found


def _is_view(node: Node) -> bool:
    known = operator(base_name(node.op))
    return known.view or known.pieces or known.cost == "factory"


def _is_dear(node: Node, by_name: dict[str, Node], fp: FunctionalProblem) -> bool:
    """Return whether a value is one of a product, a reduction, or an order: more than a look at its operands."""
    if node.op == "getitem":
        source = next((by_name[n] for n in refs_of(node) if n in by_name), None)
        return source is not None and _is_dear(source, by_name, fp)
    known = operator(base_name(node.op))
    if _is_view(node):
        return False
    if known.cost in ("product", "recurrent") or known.dims:
        return True
    shapes = {a.name: a.spec.shape for a in fp.tensors} | {n.name: n.outputs[0].shape for n in fp.nodes if n.outputs}
    taken = max((prod(shapes[n]) for n in refs_of(node) if n in shapes), default=0)
    return bool(node.outputs) and prod(node.outputs[0].shape) < taken
