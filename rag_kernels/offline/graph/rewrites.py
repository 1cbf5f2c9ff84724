"""Rewrites of a problem's graph before it is lowered, each with a label that the draft carries.

Comes in: a FunctionalProblem. Goes out: the same function as another graph. `simplified` is exact to the bit and always
applied. `rewrites` are exact up to rounding and become drafts of their own: a batch norm with running statistics folded
into the layer before it, and attention as one operator. Dead code needs no rewrite, since it is never lowered, nor do
constants, which become numbers in the loops around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.graph.subgraph_match import refs_of, specs_of
from rag_kernels.offline.graph.written_places import read_through, renamed, stacked

ATTENTION = "aten.scaled_dot_product_attention.default"
CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
TRANSPOSED = frozenset({"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
PRODUCTS = frozenset({"matmul", "bmm"})


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A problem whose graph was changed. `around` is the operator that the library must keep for it to be worth it."""

    problem: FunctionalProblem
    label: str
    around: str


def simplified(fp: FunctionalProblem) -> tuple[FunctionalProblem, tuple[str, ...]]:
    """Return the problem without factors of 1 and reads of what was just written, and labels of what was changed.

    x * 1 and x / 1 are x, for NaN and -0 as well; a factor that changes dtype or shape is kept.
    """
    read = read_through(fp)
    labels: tuple[str, ...] = ("reads of what was just written dropped",) if tuple(read) != fp.nodes else ()
    fp = live(fp, read) if labels else fp
    filled = stacked(fp.nodes, fp.results, specs_of(fp))
    if tuple(filled) != fp.nodes:
        fp, labels = live(fp, filled), (*labels, "a tensor that is filled place by place stacked")
    specs, same = specs_of(fp), dict[str, Ref]()
    for node in fp.nodes:
        if base_name(node.op) in {"mul", "div"} and len(node.args) == 2 and not node.kwargs and node.args[1] == 1:
            first = node.args[0]
            kept = isinstance(first, Ref) and specs.get(first.name) == node.outputs[0]
            if isinstance(first, Ref) and kept and node.name not in fp.results:
                same[node.name] = same.get(first.name, first)
    if not same:
        return fp, labels
    return live(fp, [renamed(n, same) for n in fp.nodes]), (*labels, "factors of 1 dropped")


def rewrites(fp: FunctionalProblem) -> Iterator[Rewrite]:
    """Yield the rewrites that may be worth a draft of their own."""
    for attempt in (_batch_norms_folded, _attention_in_one):
        made = attempt(fp)
        if made is not None:
            yield made


def live(fp: FunctionalProblem, nodes: Sequence[Node]) -> FunctionalProblem:
    """Return the problem with those of these nodes that its results need."""
    wanted, kept = set(fp.results), list[Node]()
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            wanted.update(refs_of(node))
    return replace(fp, nodes=tuple(reversed(kept)))


def _used_once(fp: FunctionalProblem) -> set[str]:
    """Return the names that one operator reads, once."""
    uses = [name for node in fp.nodes for name in refs_of(node)] + list(fp.results)
    return {name for name in uses if uses.count(name) == 1 and name not in fp.results}


@dataclass(slots=True)
class NewNodes:
    """New operators, with names of their own."""

    taken: set[str]
    made: list[Node] = field(default_factory=list)

    def name_like(self, name: str) -> str:
        """Return a name that nothing has, and take it."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def add(self, name: str, spec: TensorSpec, operator: str, *args: Value) -> Ref:
        name = self.name_like(name)
        self.made.append(Node(name, f"aten.{operator}", args, (), (spec,)))
        return Ref(name)


def _batch_norms_folded(fp: FunctionalProblem) -> Rewrite | None:
    """Return the graph with batch norms by running statistics folded into the layers before them.

    Parameters may change from call to call, so weight and bias are computed in each, by a small generated kernel.
    """
    nodes, once, specs = {n.name: n for n in fp.nodes}, _used_once(fp), specs_of(fp)
    new, around = NewNodes({a.name for a in fp.arguments} | nodes.keys()), list[str]()
    for node in fp.nodes:
        before = node.args[0] if node.args else None
        source = nodes.get(before.name) if isinstance(before, Ref) and before.name in once else None
        shape = _scale_shape(source, specs) if source and _uses_running_statistics(node) else None
        if source is None or shape is None:
            new.made.append(node)
            continue
        around.append(base_name(source.op))
        new.made = [n for n in new.made if n is not source]
        new.made.append(_folded(new, source, node, specs, shape))
    label = f"batch norm folded into {', '.join(dict.fromkeys(around))}"
    return Rewrite(live(fp, new.made), label, around[0]) if around else None


def _uses_running_statistics(node: Node) -> bool:
    return base_name(node.op) == "batch_norm" and node.args[5] is False and isinstance(node.args[3], Ref)


def _scale_shape(node: Node, specs: dict[str, TensorSpec]) -> tuple[int, ...] | None:
    """Return the shape in which a factor for each channel multiplies the weight, or None where it cannot."""
    name, weight = base_name(node.op), given(node, 1)
    if not isinstance(weight, Ref) or specs[weight.name].dtype not in {"float32", "float64"}:
        return None
    rank, out = len(specs[weight.name].shape), node.outputs[0].shape
    if name == "linear" and len(out) == 2:
        return (out[1], 1)
    if name in CONVOLUTIONS and len(out) == rank:
        return (out[1], *[1] * (rank - 1))
    if name in TRANSPOSED and len(out) == rank and given(node, 6, "groups", 1) == 1:
        return (1, out[1], *[1] * (rank - 2))
    return None


def _folded(new: NewNodes, source: Node, norm: Node, specs: dict[str, TensorSpec], shape: tuple[int, ...]) -> Node:
    """Return the layer with weight * s and (bias - mean) * s + shift, where s is gamma / sqrt(variance + eps)."""
    gamma, shift, mean, variance, eps = (*norm.args[1:5], norm.args[7])
    weight, bias = given(source, 1), given(source, 2, "bias")
    spec, like = specs[weight.name], norm.name
    each = TensorSpec((norm.outputs[0].shape[1],), spec.dtype)
    root = new.add(f"{like}_root", each, "sqrt.default", new.add(f"{like}_var", each, "add.Tensor", variance, eps))
    scale = new.add(f"{like}_scale", each, "reciprocal.default", root)
    if gamma is not None:
        scale = new.add(f"{like}_scale", each, "div.Tensor", gamma, root)
    reshaped = new.add(f"{like}_wide", TensorSpec(shape, spec.dtype), "reshape.default", scale, shape)
    scaled = new.add(f"{like}_weight", spec, "mul.Tensor", weight, reshaped)
    centred = new.add(f"{like}_centred", each, "neg.default", mean)
    if bias is not None:
        centred = new.add(f"{like}_centred", each, "sub.Tensor", bias, mean)
    moved = new.add(f"{like}_bias", each, "mul.Tensor", centred, scale)
    if shift is not None:
        moved = new.add(f"{like}_bias", each, "add.Tensor", moved, shift)
    kwargs = tuple((k, v) for k, v in source.kwargs if k != "bias")
    return Node(norm.name, source.op, (source.args[0], scaled, moved, *source.args[3:]), kwargs, norm.outputs)


def _attention_in_one(fp: FunctionalProblem) -> Rewrite | None:
    """Return the graph with softmax(q k^T * scale + mask) v as scaled_dot_product_attention."""
    nodes, once, specs = {n.name: n for n in fp.nodes}, _used_once(fp), specs_of(fp)
    inner = {name: nodes[name] for name in once if name in nodes}
    new, count = NewNodes({a.name for a in fp.arguments} | nodes.keys()), 0
    for node in fp.nodes:
        found = _scores(node, inner, specs)
        if found is None:
            new.made.append(node)
            continue
        product, scale, mask = found
        keys = product.args[1]
        assert isinstance(keys, Ref)
        *batch, depth, length = specs[keys.name].shape
        transposed = TensorSpec((*batch, length, depth), specs[keys.name].dtype)
        key = new.add(f"{node.name}_keys", transposed, "transpose.int", keys, -2, -1)
        arguments = (product.args[0], key, node.args[1], *mask)
        new.made.append(Node(node.name, ATTENTION, arguments, (("scale", scale),), node.outputs))
        count += 1
    label = "softmax between two products as scaled_dot_product_attention"
    return Rewrite(live(fp, new.made), label, base_name(ATTENTION)) if count else None


def _scores(
    last: Node, inner: Mapping[str, Node], specs: Mapping[str, TensorSpec]
) -> tuple[Node, float, tuple[Ref, ...]] | None:
    """Return the product of queries and keys before the product with the values, its factor, and the mask that
    is added.

    `inner` are the operators whose result is read once.
    """
    soft = _made_by(last.args[0], inner, {"softmax"}) if base_name(last.op) in PRODUCTS else None
    if soft is None or len(soft.args) != 2 or soft.args[1] not in (-1, len(soft.outputs[0].shape) - 1):
        return None
    scores, mask = soft.args[0], tuple[Ref, ...]()
    added = _made_by(scores, inner, {"add"})
    if added and not added.kwargs:
        a, b = added.args
        scores, other = (a, b) if _made_by(a, inner, {*PRODUCTS, "mul", "div"}) else (b, a)
        if not isinstance(other, Ref) or specs[other.name].dtype != added.outputs[0].dtype:
            return None
        mask = (other,)
    scaled, scale = _made_by(scores, inner, {"mul", "div"}), 1.0
    if scaled and isinstance(scaled.args[1], float | int) and scaled.args[1]:
        scale = scaled.args[1] if base_name(scaled.op) == "mul" else 1.0 / scaled.args[1]
        scores = scaled.args[0]
    product = _made_by(scores, inner, PRODUCTS)
    if product is None or product.outputs != soft.outputs:
        return None
    shapes = [specs[v.name].shape for v in (*product.args, last.args[1]) if isinstance(v, Ref)]
    whole = len({shape[:-2] for shape in shapes}) == 1 and len(shapes[0]) > 2
    return (product, float(scale), mask) if whole else None


def _made_by(value: Value, inner: Mapping[str, Node], names: AbstractSet[str]) -> Node | None:
    """Return the operator behind a value, if it is one of these."""
    node = inner.get(value.name) if isinstance(value, Ref) else None
    return node if node and base_name(node.op) in names else None
