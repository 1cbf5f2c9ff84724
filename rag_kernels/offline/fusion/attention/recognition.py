"""Attention in a graph as one step: softmax(scores) v, where scores are an expression of q k^T, indices and inputs.

Comes in: a problem and the rules by operator name. Goes out: its steps, in which every attention that was recognised is
one `Attended`. Products around a softmax are found in the graph, however they are spelt; the operators between them are
lowered as any others are, on a stand-in for the product. So every mask, bias, scale or cap is one expression of it.
Where something else needs the product or the weights, nothing is recognised, and all is lowered as without this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name, names
from rag_kernels.offline.fusion.attention.operands import (
    as_values,
    before_weights_rounding,
    laid_out,
    peeled,
    settled_score,
    with_own_loops,
)
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.expressions import Expr, add, binary, mul, where
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import operands as operands_of
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules.product import product, transposed
from rag_kernels.offline.lowering.steps import Attended, Lowered, values_of
from rag_kernels.offline.lowering.which_products import ATTENTION, PRODUCTS

SAFE = "_safe_softmax"  # 0 where all scores are minus infinity
SOFTMAX = frozenset({"softmax", "_softmax", SAFE})
BETWEEN = names(lambda o: o.view or o.cast or o.same_value or o.dropout) - {"select", "slice", "narrow"}
# What may stand before the softmax is whatever has a rule; these would make one row depend on others.
LARGEST_HEAD = 256
TOP, TOTAL = "amax", "logsumexp"


@dataclass(frozen=True, slots=True)
class Site:
    """Where attention may be: the names of the product of queries and keys, of the softmax, and of the last product.

    All three are one for the library's operator. `top` is the maximum of the same scores, and `total` the logsumexp of
    what they are less that, where there are such.
    """

    scores: str
    softmax: str
    values: str
    top: str = ""
    total: str = ""


def find_sites(fp: FunctionalProblem) -> Iterator[Site]:
    """Yield the places of the graph at which two products stand around a softmax, and the library's attention."""
    nodes = {node.name: node for node in fp.nodes}
    for node in fp.nodes:
        if base_name(node.op) == ATTENTION and not given(node, 4, "dropout_p", 0.0):
            yield Site(node.name, node.name, node.name)
        if base_name(node.op) in SOFTMAX:
            scores, values = _scores_before(node, nodes), _values_behind(node, fp.nodes)
            if scores and values:
                yield Site(scores, node.name, values, *_rows_beside(node, fp.nodes))


def is_product(node: Node) -> bool:
    return base_name(node.op) in {"matmul", "bmm", "einsum", "baddbmm"}


def _scores_before(softmax: Node, nodes: dict[str, Node]) -> str:
    """Return the nearest product before a softmax that has as many elements, or nothing."""
    pending, seen = list(refs(softmax.args[:1])), set[str]()
    while pending:
        node = nodes.get(pending.pop(0))
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if is_product(node):
            if math.prod(node.outputs[0].shape) == math.prod(softmax.outputs[0].shape):
                return node.name
        elif base_name(node.op) not in SOFTMAX:
            pending += refs(node.args)
    return ""


def _rows_beside(softmax: Node, nodes: Sequence[Node]) -> tuple[str, str]:
    """Return the maximum of what a softmax is of, and the logsumexp of that less its maximum, or nothing."""
    rank = len(softmax.outputs[0].shape)
    wide = {softmax.args[0]} | {Ref(n.name) for n in nodes if base_name(n.op) == "to" and n.args[0] == softmax.args[0]}

    def along_rows(name: str, of: set[Value]) -> list[Node]:
        found = [n for n in nodes if base_name(n.op) == name and n.args[0] in of and given(n, 2, "keepdim", False)]
        return [n for n in found if given(n, 1, "dim") in ((-1,), (rank - 1,))]

    if given(softmax, 1, "dim") in (-1, rank - 1):
        for top in along_rows(TOP, wide):
            pair = [(x, Ref(top.name)) for x in wide]
            under = {Ref(n.name) for n in nodes if base_name(n.op) == "sub" and n.args in pair}
            for total in along_rows(TOTAL, {*under}):
                return top.name, total.name
    return "", ""


def _values_behind(softmax: Node, nodes: Sequence[Node]) -> str:
    """Return the product that reads a softmax and nothing else does, or nothing."""
    name = softmax.name
    while True:
        users = [node for node in nodes if name in refs(node.args)]
        if len(users) != 1:
            return ""
        if is_product(users[0]):
            return users[0].name
        if base_name(users[0].op) not in BETWEEN:
            return ""
        name = users[0].name


@dataclass(slots=True)
class _Open:
    """What is known of an attention between its first and its last product."""

    q: ir.Load
    k: ir.Load
    scores: ir.Load
    depth: ir.Group
    weights: ir.Load | None = None
    score: ir.Value | None = None
    keys: ir.Group = ()
    empty: float = math.nan  # what a row without a key is


@dataclass(slots=True)
class AttentionRecogniser:
    """Rules for the operators of some sites; all others keep theirs."""

    sites: dict[str, Site]  # by the name of each of its operators
    known: dict[str, Rule]
    open: dict[Site, _Open] = field(default_factory=dict)
    done: dict[Site, Attended] = field(default_factory=dict)

    @classmethod
    def of(cls, sites: Sequence[Site], rules: dict[str, Rule]) -> AttentionRecogniser:
        """Return the recogniser of these sites."""
        return cls({name: s for s in sites for name in (s.scores, s.softmax, s.values, s.top, s.total)}, rules)

    def rules(self) -> dict[str, Rule]:
        """Return the rules by operator name."""
        names = {*PRODUCTS, *SOFTMAX, TOP, TOTAL}
        return self.known | {name: partial(self.rule, name) for name in sorted(names)}

    def rule(self, name: str, lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
        """Return what an operator computes: ours at a site, as it is known elsewhere."""
        site = self.sites.get(node.name)
        if site is None:
            if name not in self.known:
                raise ir.Unfusable("left to the library")
            return self.known[name](lowering, node)
        if name == ATTENTION:
            return self.operator(lowering, node, site)
        if node.name == site.scores:
            return self.scores(lowering, site, operands_named(node), lambda: PRODUCTS[name](lowering, node))
        if node.name in (site.top, site.total):
            known = site not in self.done
            return self.known[name](lowering, node) if known else self.row(lowering, site, top=node.name == site.top)
        if node.name == site.softmax:
            empty = 0.0 if name == SAFE else math.nan
            return self.softmax(lowering, site, lowering.value(given(node, 0)), given(node, 1, "dim"), empty)
        half = node.outputs[0].dtype in HALF
        return self.values(
            lowering, site, node, operands_named(node), lambda: PRODUCTS[name](lowering, node), half=half
        )

    def row(self, lowering: Lowering, site: Site, *, top: bool) -> ir.Value:
        """Return a number of each row that attention stores beside its result: of its scores the maximum, or the
        logsumexp of what they are less that."""
        step, weights = self.done[site], self.open[site].weights
        assert weights is not None
        if not step.total:
            leaves = ir.leaves(a for group in weights.dims[:-1] for a in group)
            names = f"{step.buffer}_top", f"{step.buffer}_total"
            made = replace(step, top=names[0], total=names[1], row_dims=tuple((a,) for a in leaves))
            lowering.steps[lowering.steps.index(step)] = self.done[site] = made
            lowering.specs |= dict.fromkeys(names, TensorSpec(tuple(a.size for a in leaves), "float32"))
            step = made
        buffer, dims = step.top if top else step.total, (*weights.dims[:-1], ())
        return lowering.tracked(read_back(buffer, step.row_dims, "float32", dims))

    def left(self, lowered: Lowered) -> set[Site]:
        """Return the sites that were not recognised, or whose product something else needs."""
        inner = {load.buffer: site for site, o in self.open.items() for load in (o.scores, o.weights) if load}
        read = (s for s in lowered.steps if not isinstance(s, Attended))
        found = {name for s in read for value in values_of(s) for name in reads_of(value)}
        for site, made in self.done.items():
            found |= reads_of(made.score, made.q, made.k, made.v) - {self.open[site].scores.buffer}
        return (set(self.sites.values()) - self.done.keys()) | {inner[name] for name in found if name in inner}

    def scores(
        self,
        lowering: Lowering,
        site: Site,
        operands: Sequence[Ref],
        make: Callable[[], ir.Value | tuple[ir.Value, ...]],
    ) -> ir.Value:
        """Return the product of queries and keys with a stand-in for its sums."""
        value, q, k, stand_in, depth = product_apart(lowering, operands, make, f"scores of {site.softmax}")
        self.open[site] = _Open(q, k, stand_in, depth)
        return value

    def softmax(self, lowering: Lowering, site: Site, value: ir.Value, dim: int, empty: float) -> ir.Value:
        """Return a stand-in for the weights; keep what they are the softmax of, and what a row without a key is."""
        if site not in self.open:  # of two softmaxes of one product only one is behind it
            raise ir.Unfusable("not behind a product")
        found = self.open[site]
        found.empty = empty
        found.score, found.keys = value, value.dims[dim % len(value.dims)]
        found.weights = plain_load(f"weights of {site.softmax}", value.dims)
        return lowering.tracked(found.weights)

    def values(
        self,
        lowering: Lowering,
        site: Site,
        node: Node,
        operands: Sequence[Ref],
        make: Callable[[], ir.Value | tuple[ir.Value, ...]],
        *,
        half: bool,
    ) -> ir.Value:
        """Return what attention makes, read from the buffer of a new step."""
        found = self.open.get(site)
        if found is None or found.weights is None or found.score is None:
            raise ir.Unfusable("not behind a softmax")
        weights = found.weights
        with_own_loops(lowering, [ref for ref in operands if weights.buffer not in reads_of(lowering.value(ref))])
        value = as_values(lowering, operands, make)
        total, v, scales = weighted_sum(value, weights, half=half)
        if scales:
            raise ir.Unfusable("values times a number")
        if set(ir.leaves(total.over)) != set(ir.leaves(found.keys)):
            raise ir.Unfusable("the softmax runs along another dimension")
        out = set(ir.leaves(a for g in total.dims for a in g))
        columns = tuple(a for a in ir.leaves(a for g in total.dims for a in g) if a not in _atoms(weights.dims))
        if max(ir.size_of(columns), ir.size_of(found.depth)) > LARGEST_HEAD or not columns or not found.depth:
            raise ir.Unfusable("heads of another size")
        v = laid_out(lowering, v, out | set(ir.leaves(found.keys)), columns)
        score = settled_score(lowering, found.score, (found.scores,), ir.leaves(found.keys))
        for atom in ir.leaves((*found.depth, *columns)):
            atom.fixed = atom.head = True
        number = next(n for n in count() if f"attended{n}" not in lowering.specs)
        name, storage = f"attended{number}", node.outputs[0].dtype
        order = ir.leaves(a for g in value.dims for a in g)
        step = Attended(
            name,
            tuple((a,) for a in order),
            found.q,
            found.k,
            v,
            found.scores,
            score,
            found.depth,
            found.keys,
            columns,
            storage,
            half,
            found.empty,
        )
        self.done[site] = step
        lowering.steps.append(step)
        lowering.specs[name] = TensorSpec(tuple(a.size for a in order), storage)
        return lowering.tracked(read_back(step.buffer, step.dims, storage, value.dims))

    def operator(self, lowering: Lowering, node: Node, site: Site) -> ir.Value:
        """Return the library's attention: two products around a softmax, with its mask and its grouped queries."""
        refs_ = [given(node, i) for i in range(3)]
        with_own_loops(lowering, refs_)
        q, k, v = (lowering.value(ref) for ref in refs_)
        scale = given(node, 6, "scale")
        if scale is None:
            scale = 1.0 / math.sqrt(q.shape[-1])
        mask, groups = given(node, 3, "attn_mask"), 1
        bias = None if mask is None else lowering.value(mask)
        if given(node, 7, "enable_gqa", False) and q.shape[-3] != k.shape[-3]:
            heads, groups = k.shape[-3], q.shape[-3] // k.shape[-3]
            q = in_groups(lowering, q, heads, groups)
            k, v = (lowering.with_dims(x, (*x.dims[:-2], (), *x.dims[-2:])) for x in (k, v))
            if bias is not None and len(bias.dims) > 2:
                bias = in_groups(lowering, bias, heads, groups)
        value = self.scores(lowering, site, (), lambda: product(lowering, q, transposed(lowering, k)))
        value = lowering.op(mul, value, lowering.scalar(scale, "float32"))
        if given(node, 5, "is_causal", False):
            value = lowering.op(allowed, causal(lowering, value), value)
        if bias is not None and bias.dtype == "bool":
            value = lowering.op(allowed, bias, value)
        elif bias is not None:
            value = lowering.op(add, value, bias)
        weights = self.softmax(lowering, site, value, -1, 0.0)
        half = lowering.specs.get(node.name, node.outputs[0]).dtype in HALF
        out = self.values(lowering, site, node, (), lambda: product(lowering, weights, v), half=half)
        return lowering.view(out, node.outputs[0].shape) if groups > 1 else out


def reads_of(*values: ir.Value) -> set[str]:
    """Return the buffers that expressions read."""
    return {v.buffer for v in ir.walk(*values) if isinstance(v, ir.Load)}


def _atoms(dims: tuple[ir.Group, ...]) -> set[ir.Atom]:
    return set(ir.leaves(a for group in dims for a in group))


def operands_named(node: Node) -> list[Ref]:
    """Return the two factors of a product."""
    name = base_name(node.op)
    args = node.args[1] if name == "einsum" else node.args[1:3] if name == "baddbmm" else node.args[:2]
    return [a for a in args if isinstance(a, Ref)] if isinstance(args, tuple) else []


def plain_load(name: str, dims: tuple[ir.Group, ...]) -> ir.Load:
    """Return a load of a buffer that is never made, on these loops."""
    index = tuple(ir.Form(tuple((a, 1) for a in group)) for group in dims)
    return ir.Load(dims, "float32", name, dims, index, "float32")


def is_plain(load: ir.Load, dims: tuple[ir.Group, ...]) -> bool:
    """Return whether a stand-in is read on its own loops, element by element."""
    forms = [f for f in load.index if isinstance(f, ir.Form)]
    there = [tuple(ir.leaves(a for a, _ in form.terms)) for form in forms]
    whole = all(factor == 1 for form in forms for _, factor in form.terms) and not any(
        f.offset or f.sizes for f in forms
    )
    return whole and there == [ir.leaves(group) for group in dims]


def weighted_sum(
    value: ir.Value, weights: ir.Load, *, half: bool
) -> tuple[ir.Reduce, ir.Load, list[tuple[Operator, ir.Const]]]:
    """Return the sum that a product with the weights is, what they weigh, and numbers by which that is multiplied or
    divided; `half` weights may be rounded before it.

    Raises Unfusable for any other value.
    """
    total = strip(value)
    is_sum = isinstance(total, ir.Reduce) and total.kind is Kind.SUM
    pair = operands_of(strip(total.arg), Operator.MUL) if isinstance(total, ir.Reduce) and is_sum else None
    if not isinstance(total, ir.Reduce) or pair is None:
        raise ir.Unfusable("no product with the weights")
    factors = (peeled(before_weights_rounding(f, weights) if half else f) for f in pair)
    (w, more), (v, scales) = sorted(factors, key=lambda p: p[0].buffer != weights.buffer)
    if w.buffer != weights.buffer or more or not is_plain(w, weights.dims):
        raise ir.Unfusable("another product with the weights")
    return total, v, scales


def read_back(buffer: str, made: tuple[ir.Group, ...], storage: str, dims: tuple[ir.Group, ...]) -> ir.Load:
    """Return a load of a buffer that a step makes in this order, on loops of its own, in that of `dims`."""
    new = {a: ir.Atom(a.size, a.fixed, a.head) for group in made for a in group}
    stored = tuple(tuple(new[a] for a in group) for group in made)
    index = tuple(ir.Form(tuple((new[a], 1) for a in group)) for group in made)
    read = tuple(tuple(new[a] for a in ir.leaves(g)) for g in dims)
    return ir.Load(read, "float32", buffer, stored, index, storage)


def product_apart(
    lowering: Lowering, operands: Sequence[Ref], make: Callable[[], ir.Value | tuple[ir.Value, ...]], name: str
) -> tuple[ir.Value, ir.Load, ir.Load, ir.Load, ir.Group]:
    """Return a product with a stand-in of a name for its sums, its two factors, the stand-in, and what it sums over.

    Raises Unfusable where it is no single product of two factors.
    """
    with_own_loops(lowering, operands)
    value = as_values(lowering, operands, make)
    sums = [v for v in ir.walk(value) if isinstance(v, ir.Reduce)]
    if len(sums) != 1 or sums[0].kind is not Kind.SUM:
        raise ir.Unfusable("no single product")
    pair = operands_of(strip(sums[0].arg), Operator.MUL)
    if pair is None:
        raise ir.Unfusable("no product of two factors")
    (a, scale_a), (b, scale_b) = (peeled(factor) for factor in pair)
    rows = set(ir.leaves(a for g in sums[0].dims for a in g))
    depth = ir.leaves(sums[0].over)
    a, b = (laid_out(lowering, load, rows, depth) for load in (a, b))
    stand_in = plain_load(name, sums[0].dims)
    scaled: ir.Value = stand_in
    for operator, number in (*scale_a, *scale_b):
        scaled = lowering.op(binary(operator), scaled, number)
    scaled = scaled if scaled is not stand_in else lowering.with_dims(stand_in, stand_in.dims)
    return lowering.tracked(rewrite(value, lambda v: scaled if v is sums[0] else None)), a, b, stand_in, depth


def causal(lowering: Lowering, value: ir.Value) -> ir.Value:
    """Return where a key is not after its query, as indices say."""
    row, key = value.dims[-2:]
    form = ir.Form((*((a, 1) for a in key), *((a, -1) for a in row)))
    place = lowering.tracked(ir.Index((row, key), "int64", form))
    return lowering.op(lambda place: place <= 0, place)


def allowed(condition: Expr, score: Expr) -> Expr:
    return where(condition, score, -math.inf)


def in_groups(lowering: Lowering, value: ir.Value, heads: int, groups: int) -> ir.Value:
    """Return a value of (..., heads * groups, rows, columns) with heads and groups as two dimensions."""
    if value.shape[-3] == 1:
        return lowering.with_dims(value, (*value.dims[:-2], (), *value.dims[-2:]))
    shape = value.shape
    return lowering.view(value, (*shape[:-3], heads, groups, *shape[-2:]), fixed=(len(shape) - 3, len(shape) - 2))
