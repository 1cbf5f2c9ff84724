"""Keep integer inputs in the range of what they index, when a problem's sizes have changed.

Comes in: a problem at other sizes and its graph. Goes out: the same problem whose `get_inputs` folds what it draws into
the sizes that the graph's operators read with it (the rows of a table, the classes of a loss). A range that the text
draws from may be a literal, a name or an expression; what reads the values says what is allowed. Sentinels (a loss's
`ignore_index`, negative indices) stay. Works on records and text: nothing of the problem is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rag_kernels.eval.records import IndexBound, Node, Problem, Ref, TensorArgument, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.ingest.functional.folding import Bound, folded
from rag_kernels.ingest.graphs.graph import Functional, bind, refs

# Operators whose results hold the values of their first tensor (or of several), moved but not changed.
_MOVES = frozenset(
    "getitem reshape view to alias clone contiguous detach transpose permute numpy_T t squeeze unsqueeze expand"
    " expand_as flatten unflatten slice select narrow split split_with_sizes chunk tensor_split unbind cat concat stack"
    " flip roll repeat repeat_interleave index index_select gather movedim diagonal unfold tile sort masked_select"
    " broadcast_tensors broadcast_to hstack vstack meshgrid view_as reshape_as _to_copy".split()
)
# Further ones, whose results follow from it element by element: where something reads those as places, not every
# integer will do. A remainder, or a clamp on both sides, makes places of any.
_FROM_BELOW, _FROM_ABOVE = frozenset("clamp_min relu abs maximum".split()), frozenset("clamp_max minimum".split())
_COMPUTES = (
    _FROM_BELOW | _FROM_ABOVE | frozenset("add sub rsub mul neg div floor_divide clamp where masked_fill".split())
)
_TABLES = {"embedding": "indices", "embedding_bag": "indices", "_embedding_bag": "indices"}
_ALONG = frozenset(
    "gather index_select index_add index_copy index_fill index_reduce scatter scatter_add scatter_reduce"
    " take_along_dim".split()
)
_MARGINS = frozenset("multi_margin_loss multilabel_margin_loss".split())
_ALTERNATIVES = 16  # sums of values that may each come from several inputs
_WRAPPING = frozenset("index index_put _unsafe_index index_add index_select take put".split())  # -1 is the last


@dataclass(frozen=True, slots=True)
class _Origin:
    """A value of the graph that is a sum of inputs, each times a number above 0, and an offset: `row * 64 + column`."""

    terms: tuple[tuple[str, int], ...]  # leaf and factor, the largest factor first
    offset: int = 0

    def plus(self, other: _Origin) -> _Origin:
        """Return the sum of two."""
        factors = dict(self.terms)
        for path, factor in other.terms:
            factors[path] = factors.get(path, 0) + factor
        return _Origin(tuple(sorted(factors.items(), key=lambda t: -t[1])), self.offset + other.offset)

    def times(self, factor: int) -> _Origin:
        """Return it times a positive number."""
        return _Origin(tuple((path, f * factor) for path, f in self.terms), self.offset * factor)


@dataclass(frozen=True, slots=True)
class _Read:
    """An operator reads indices into `size` places."""

    indices: Value
    size: int
    wraps: bool = False
    kept: int | None = None


def in_range(problem: Problem, graph: Functional) -> Problem:
    """Return the problem with its drawn indices folded into their bounds, or as it is if it has none."""
    return folded(problem, _bounds(graph))


def index_bounds(graph: Functional) -> tuple[IndexBound, ...]:
    """Return what is known of the range of each integer input that something reads as indices, and of nothing else."""
    unknown = range_unknown(graph)
    return tuple(IndexBound(b.path, b.low, b.high, b.wraps) for b in _bounds(graph) if b.path not in unknown)


def range_unknown(graph: Functional) -> tuple[str, ...]:
    """Return the integer inputs that are read as places after arithmetic of which `_moved` makes no sum, and the masks
    of which running counts are.

    Only what the problem draws itself is known to be within what they index.
    """
    specs = _specs(graph)
    origins = _inputs(graph)
    carried = {name: frozenset(path for o in known for path, _ in o.terms) for name, known in origins.items()}
    masks = {a.name: frozenset({a.path}) for a in _input_tensors(graph) if a.spec.dtype == "bool"}
    sides: dict[str, set[str]] = {}  # on which a value is held
    found: set[str] = set()
    for node in graph.nodes:
        for read in _reads(node, specs):
            for name in refs(read.indices):
                known = [o for o in origins.get(name, ()) if any(b.low < b.high for b in _bounded(o, read))]
                found |= carried.get(name, frozenset()) - {path for o in known for path, _ in o.terms}
        origins[node.name] = _moved(node, origins)
        name = base_name(node.op)
        moved = name in _MOVES or _held(node)  # arithmetic moves what is held
        sides[node.name] = _held(node).union(*(sides.get(r, ()) for r in _first(node))) if moved else set()
        if (name in _MOVES or name in _COMPUTES) and len(sides[node.name]) < 2:
            values = _first(node) if name in _MOVES else [r for value in node.args for r in refs(value)]
            carried[node.name] = frozenset(path for r in values for path in carried.get(r, ()))
        if name in _MOVES and (moved_masks := [masks[r] for r in _first(node) if r in masks]):
            masks[node.name] = frozenset[str]().union(*moved_masks)
        if name == "cumsum":
            carried[node.name] = masks.get(_first(node)[0], frozenset())
    return tuple(sorted(found))


def _held(node: Node) -> set[str]:
    """Return the sides on which a node holds its values."""
    name = base_name(node.op)
    given = bind(node) if name == "clamp" else {}
    below = name in _FROM_BELOW or given.get("min") is not None
    above = name in _FROM_ABOVE or given.get("max") is not None
    return {side for side, holds in (("below", below), ("above", above)) if holds}


def _first(node: Node) -> list[str]:
    return refs(node.args[0]) if node.args else []


def _inputs(graph: Functional) -> dict[str, frozenset[_Origin]]:
    return {a.name: frozenset({_Origin(((a.path, 1),))}) for a in _input_tensors(graph) if _is_integer(a.spec)}


def _input_tensors(graph: Functional) -> list[TensorArgument]:
    return [a for a in graph.arguments if isinstance(a, TensorArgument) and a.role == "input"]


def _bounds(graph: Functional) -> list[Bound]:
    """Return the narrowest bound of each integer input that something reads as indices."""
    specs = _specs(graph)
    origins = _inputs(graph)
    found: dict[str, Bound] = {}
    for node in graph.nodes:
        for read in _reads(node, specs):
            for origin in (o for name in refs(read.indices) for o in origins.get(name, ())):
                for bound in _bounded(origin, read):
                    _narrow(found, bound)
        origins[node.name] = _moved(node, origins)
    return [b for b in found.values() if b.low < b.high]


def _bounded(origin: _Origin, read: _Read) -> Iterator[Bound]:
    """Yield bounds of the inputs that an index is made of, such that it stays within what is read.

    Of a sum, the largest factor counts whole blocks of the size, and each other one what lies within a block.
    """
    (lead, factor), *others = origin.terms
    if others:
        room, block = read.size - origin.offset, factor
        if origin.offset >= 0:
            yield Bound(lead, 0, room // factor, False, None)
            for path, within in others:
                yield Bound(path, 0, block // within, False, None)
                block = within
        return
    plain = factor == 1 and not origin.offset
    kept = read.kept - origin.offset if read.kept is not None and factor == 1 else None
    high = (read.size - 1 - origin.offset) // factor + 1
    yield Bound(lead, max(0, -(origin.offset // factor)), high, read.wraps and plain, kept)


def _narrow(found: dict[str, Bound], new: Bound) -> None:
    known = found.get(new.path)
    if known is None:
        found[new.path] = new
        return
    found[new.path] = Bound(
        new.path,
        max(new.low, known.low),
        min(new.high, known.high),
        known.wraps or new.wraps,
        new.kept if known.kept is None else known.kept,
    )


def _specs(graph: Functional) -> dict[str, TensorSpec]:
    specs = {a.name: a.spec for a in graph.arguments if isinstance(a, TensorArgument)}
    return specs | {n.name: n.outputs[0] for n in graph.nodes if n.outputs}


def _is_integer(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("int", "uint"))


def _moved(node: Node, origins: dict[str, frozenset[_Origin]]) -> frozenset[_Origin]:
    """Return what a node's values are made of, as far as that is a sum of inputs' values and a constant."""
    name = base_name(node.op)
    first = [origins.get(r, frozenset()) for r in refs(node.args[0])] if node.args else []
    from_below = name in {"clamp_min", "relu"} or (name == "clamp" and bind(node).get("max") is None)
    if name in _MOVES or from_below:
        return frozenset(o for known in first for o in known)
    if name in {"where", "masked_fill"}:  # what a mask replaces was no index, perhaps: the rest is
        chosen = node.args[1:] if name == "where" else node.args[:1]
        return frozenset(o for v in chosen for r in refs(v) for o in origins.get(r, ()))
    if name not in {"add", "sub", "mul"} or len(node.args) < 2 or node.kwargs:
        return frozenset()
    left, right = (_summand(value, origins) for value in node.args[:2])
    if name == "mul":
        factors = [v for v in node.args[:2] if isinstance(v, int) and v > 0]
        return frozenset(o.times(factor) for factor in factors for o in {*left, *right} if o.terms)
    if name == "sub":
        right = frozenset(_Origin((), -o.offset) for o in right if not o.terms)
    sums = [a.plus(b) for a in left for b in right]
    return frozenset(o for o in sums if o.terms) if len(sums) <= _ALTERNATIVES else frozenset()


def _summand(value: Value, origins: dict[str, frozenset[_Origin]]) -> frozenset[_Origin]:
    """Return what one operand is made of; a number is an offset."""
    if isinstance(value, int):
        return frozenset({_Origin((), value)})
    return origins.get(value.name, frozenset()) if isinstance(value, Ref) else frozenset()


def _reads(node: Node, specs: dict[str, TensorSpec]) -> Iterator[_Read]:
    if not node.op.startswith("aten."):
        return
    name = base_name(node.op)
    given = bind(node)
    own = _shape(given.get("self"), specs)
    wraps = name in _WRAPPING
    if name in _TABLES:
        yield _Read(given[_TABLES[name]], _shape(given["weight"], specs)[0])
    elif name in _ALONG:
        dim = given.get("dim")
        indices = given.get("index", given.get("indices"))
        if isinstance(dim, int) and own:
            yield _Read(indices, own[dim], wraps)
    elif name in {"take", "put"}:
        count = 1
        for n in own:
            count *= n
        yield _Read(given["index"], count, wraps)
    elif name in {"index", "index_put", "_unsafe_index"}:
        yield from _subscripts(given["indices"], own, specs, wraps=wraps)
    elif operator(name).class_numbers or name in _MARGINS:
        classes = own[-1] if name in _MARGINS or len(own) < 2 else own[1]
        ignored = given.get("ignore_index", -100)
        yield _Read(given["target"], classes, kept=ignored if isinstance(ignored, int) else None)
    elif name == "one_hot":
        classes_given = given.get("num_classes", -1)
        if isinstance(classes_given, int) and classes_given > 0:
            yield _Read(given["self"], classes_given)
    elif name == "bincount" and given.get("minlength"):
        yield _Read(given["self"], int(str(given["minlength"])))
    elif name == "ctc_loss":
        steps, _, classes = _shape(given["log_probs"], specs)
        yield _Read(given["targets"], classes)
        yield _Read(given["input_lengths"], steps + 1)
        targets = _shape(given["targets"], specs)
        if len(targets) == 2:
            yield _Read(given["target_lengths"], targets[1] + 1)


def _subscripts(
    indices: Value, shape: tuple[int, ...], specs: dict[str, TensorSpec], *, wraps: bool
) -> Iterator[_Read]:
    """Read `x[i, :, j]`: each index stands for one dimension, a mask for as many as it has."""
    dim = 0
    for index in indices if isinstance(indices, tuple) else ():
        spec = specs.get(index.name) if isinstance(index, Ref) else None
        if spec is not None and spec.dtype != "bool" and dim < len(shape):
            yield _Read(index, shape[dim], wraps)
        dim += len(spec.shape) if spec is not None and spec.dtype == "bool" else 1


def _shape(value: Value | None, specs: dict[str, TensorSpec]) -> tuple[int, ...]:
    return specs[value.name].shape if isinstance(value, Ref) and value.name in specs else ()
