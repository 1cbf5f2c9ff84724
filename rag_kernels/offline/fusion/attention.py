"""Attention in a graph as one step: softmax(scores) v, where scores are an expression of q k^T, indices and inputs.

Comes in: a problem and the rules by operator name. Goes out: its steps, in which every attention that was recognised is
one `Attended`. Products around a softmax are found in the graph, however they are spelt; the operators between them are
lowered as any others are, on a stand-in for the product. So every mask, bias, scale or cap is one expression of it.
Where something else needs the product or the weights, nothing is recognised, and all is lowered as without this file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from rag_kernels.eval.aten import base_name, names
from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF, is_float
from rag_kernels.offline.ir.expressions import Expr, add, binary, mul, where
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import operands as operands_of
from rag_kernels.offline.ir.patterns import strip, uncast
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.lower import Attended, Entry, Library, Lowered, Lowering, Rule, Stored, values_of
from rag_kernels.offline.lowering.rules_product import ATTENTION, PRODUCTS, product, transposed

SOFTMAX = frozenset({"softmax", "_softmax"})
BETWEEN = names(lambda o: o.view or o.cast or o.same_value or o.dropout) - {"select", "slice", "narrow"}
# What may stand before the softmax is whatever has a rule; these would make one row depend on others.
LARGEST_HEAD = 256


@dataclass(frozen=True, slots=True)
class Site:
    """Where attention may be: the names of the product of queries and keys, of the softmax, and of the last product.

    All three are one for the library's operator.
    """

    scores: str
    softmax: str
    values: str


def lowered_with_attention(fp: FunctionalProblem, rules: dict[str, Rule]) -> Lowered:
    """Return the problem's steps with every attention that is recognised as one step."""
    sites = list(find_sites(fp))
    while sites:
        recogniser = _Recogniser({name: s for s in sites for name in (s.scores, s.softmax, s.values)}, rules)
        lowered = Lowering(fp).run(recogniser.rules())
        left = recogniser.left(lowered)
        if not left:
            return as_read(in_place(lowered))
        sites = [site for site in sites if site not in left]
    return Lowering(fp).run(rules)


def find_sites(fp: FunctionalProblem) -> Iterator[Site]:
    """Yield the places of the graph at which two products stand around a softmax, and the library's attention."""
    nodes = {node.name: node for node in fp.nodes}
    for node in fp.nodes:
        if base_name(node.op) == ATTENTION and not given(node, 4, "dropout_p", 0.0):
            yield Site(node.name, node.name, node.name)
        if base_name(node.op) in SOFTMAX:
            scores, values = _scores_before(node, nodes), _values_behind(node, fp.nodes)
            if scores and values:
                yield Site(scores, node.name, values)


def _is_product(node: Node) -> bool:
    return base_name(node.op) in {"matmul", "bmm", "einsum", "baddbmm"}


def _scores_before(softmax: Node, nodes: dict[str, Node]) -> str:
    """Return the nearest product before a softmax that has as many elements, or nothing."""
    pending, seen = list(refs(softmax.args[:1])), set[str]()
    while pending:
        node = nodes.get(pending.pop(0))
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if _is_product(node):
            if math.prod(node.outputs[0].shape) == math.prod(softmax.outputs[0].shape):
                return node.name
        elif base_name(node.op) not in SOFTMAX:
            pending += refs(node.args)
    return ""


def _values_behind(softmax: Node, nodes: Sequence[Node]) -> str:
    """Return the product that reads a softmax and nothing else does, or nothing."""
    name = softmax.name
    while True:
        users = [node for node in nodes if name in refs(node.args)]
        if len(users) != 1:
            return ""
        if _is_product(users[0]):
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
    sixteen: bool = False  # whether the weights are rounded to sixteen bits


@dataclass(slots=True)
class _Recogniser:
    """Rules for the operators of some sites; all others keep theirs."""

    sites: dict[str, Site]  # by the name of each of its operators
    known: dict[str, Rule]
    open: dict[Site, _Open] = field(default_factory=dict)
    done: dict[Site, Attended] = field(default_factory=dict)

    def rules(self) -> dict[str, Rule]:
        """Return the rules by operator name."""
        names = {*PRODUCTS, *SOFTMAX}
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
            return self.scores(lowering, site, _operands(node), lambda: PRODUCTS[name](lowering, node))
        if node.name == site.softmax:
            return self.softmax(lowering, site, lowering.value(given(node, 0)), given(node, 1, "dim"))
        half = node.outputs[0].dtype in HALF
        return self.values(lowering, site, node, _operands(node), lambda: PRODUCTS[name](lowering, node), half=half)

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
        with_own_loops(lowering, operands)
        value = as_values(lowering, operands, make)
        sums = [v for v in ir.walk(value) if isinstance(v, ir.Reduce)]
        if len(sums) != 1 or sums[0].kind is not Kind.SUM:
            raise ir.Unfusable("no single product")
        pair = operands_of(strip(sums[0].arg), Operator.MUL)
        if pair is None:
            raise ir.Unfusable("no product of two factors")
        (q, scale_q), (k, scale_k) = (peeled(factor) for factor in pair)
        rows = set(ir.leaves(a for g in sums[0].dims for a in g))
        depth = ir.leaves(sums[0].over)
        q, k = (laid_out(lowering, load, rows, depth) for load in (q, k))
        stand_in = plain_load(f"scores of {site.softmax}", sums[0].dims)
        scaled: ir.Value = stand_in
        for operator, number in (*scale_q, *scale_k):
            scaled = lowering.op(binary(operator), scaled, number)
        scaled = scaled if scaled is not stand_in else lowering.with_dims(stand_in, stand_in.dims)
        self.open[site] = _Open(q, k, stand_in, depth)
        return lowering.tracked(rewrite(value, lambda v: scaled if v is sums[0] else None))

    def softmax(self, lowering: Lowering, site: Site, value: ir.Value, dim: int) -> ir.Value:
        """Return a stand-in for the weights, and keep what they are the softmax of."""
        if site not in self.open:
            raise ir.Unfusable("not behind a product")
        found = self.open[site]
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
        empty: float = math.nan,
    ) -> ir.Value:
        """Return what attention makes, read from the buffer of a new step."""
        found = self.open.get(site)
        if found is None or found.weights is None or found.score is None:
            raise ir.Unfusable("not behind a softmax")
        weights = found.weights
        with_own_loops(lowering, [ref for ref in operands if weights.buffer not in reads_of(lowering.value(ref))])
        value = as_values(lowering, operands, make)
        total = strip(value)
        is_sum = isinstance(total, ir.Reduce) and total.kind is Kind.SUM
        pair = operands_of(strip(total.arg), Operator.MUL) if isinstance(total, ir.Reduce) and is_sum else None
        if not isinstance(total, ir.Reduce) or pair is None:
            raise ir.Unfusable("no product with the weights")
        factors = (peeled(before_weights_rounding(f, weights) if half else f) for f in pair)
        (w, more), (v, scales) = sorted(factors, key=lambda p: p[0].buffer != weights.buffer)
        if w.buffer != weights.buffer or more or scales or not is_plain(w, weights.dims):
            raise ir.Unfusable("another product with the weights")
        if set(ir.leaves(total.over)) != set(ir.leaves(found.keys)):
            raise ir.Unfusable("the softmax runs along another dimension")
        out = set(ir.leaves(a for g in total.dims for a in g))
        columns = tuple(a for a in ir.leaves(a for g in total.dims for a in g) if a not in _atoms(weights.dims))
        if max(ir.size_of(columns), ir.size_of(found.depth)) > LARGEST_HEAD or not columns or not found.depth:
            raise ir.Unfusable("heads of another size")
        v = laid_out(lowering, v, out | set(ir.leaves(found.keys)), columns)
        score = settled_score(lowering, found.score, found.scores)
        for atom in ir.leaves((*found.depth, *columns)):
            atom.fixed = True
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
            empty,
        )
        self.done[site] = step
        lowering.steps.append(step)
        lowering.specs[name] = TensorSpec(tuple(a.size for a in order), storage)
        new = {a: ir.Atom(a.size, a.fixed) for a in order}
        stored = tuple((new[a],) for a in order)
        index = tuple(ir.Form(((new[a], 1),)) for a in order)
        dims = tuple(tuple(new[a] for a in ir.leaves(g)) for g in value.dims)
        return lowering.tracked(ir.Load(dims, "float32", name, stored, index, storage))

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
        weights = self.softmax(lowering, site, value, -1)
        half = lowering.specs.get(node.name, node.outputs[0]).dtype in HALF
        out = self.values(lowering, site, node, (), lambda: product(lowering, weights, v), half=half, empty=0.0)
        return lowering.view(out, node.outputs[0].shape) if groups > 1 else out


def reads_of(*values: ir.Value) -> set[str]:
    """Return the buffers that expressions read."""
    return {v.buffer for v in ir.walk(*values) if isinstance(v, ir.Load)}


def _atoms(dims: tuple[ir.Group, ...]) -> set[ir.Atom]:
    return set(ir.leaves(a for group in dims for a in group))


def _operands(node: Node) -> list[Ref]:
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
    whole = all(factor == 1 for form in forms for _, factor in form.terms) and not any(f.offset for f in forms)
    return whole and there == [ir.leaves(group) for group in dims]


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


def with_own_loops(lowering: Lowering, operands: Sequence[Ref]) -> None:
    """Make operands loads on loops that nothing else has; what costs more than a factor is stored first."""
    for ref in operands:
        entry = lowering.env[ref.name]
        value = lowering.value(ref)
        try:
            peeled(value)
        except ir.Unfusable:
            name = lowering.store(value, "" if entry.buffer else f"{ref.name}_stored", entry.dtype)
            spec = lowering.specs[name]
            value = ir.load(name, spec.shape, spec.dtype)
        lowering.env[ref.name] = Entry((own(lowering, value),), entry.buffer, entry.dtype, entry.view)


def as_values(
    lowering: Lowering, operands: Sequence[Ref], make: Callable[[], ir.Value | tuple[ir.Value, ...]]
) -> ir.Value:
    """Return a product of operands as values, which no rule stores for their dtype in the graph."""
    before = {ref.name: lowering.env[ref.name] for ref in operands}
    for name, entry in before.items():
        lowering.env[name] = replace(entry, dtype="")
    try:
        value = make()
    finally:
        lowering.env.update(before)
    assert isinstance(value, ir.Value)
    return value


def own(lowering: Lowering, value: ir.Value) -> ir.Value:
    """Return a load with its factors, on loops of its own, which have the sizes that the dimensions of its buffer have.

    Raises Unfusable for an index that is computed.
    """
    load, scales = peeled(value)
    copies: dict[ir.Atom, ir.Atom] = {}

    def copy(atom: ir.Atom) -> ir.Atom:
        while atom.alias:
            atom = atom.alias
        if atom not in copies:
            copies[atom] = new = ir.Atom(atom.size, atom.fixed)
            if atom.parts:
                new.parts = (copy(atom.parts[0]), copy(atom.parts[1]))
                new.parts[0].whole = new.parts[1].whole = new
        return copies[atom]

    index: list[ir.Form | ir.Value] = []
    for form in load.index:
        if not isinstance(form, ir.Form):
            raise ir.Unfusable("a factor that is looked up")
        index.append(ir.Form(tuple((copy(atom), factor) for atom, factor in form.terms), form.offset))
    stored = tuple(tuple(copy(atom) for atom in group) for group in load.stored)
    dims = tuple(tuple(copy(leaf) for leaf in ir.leaves(group)) for group in value.dims)
    made: ir.Value = ir.Load(dims, load.dtype, load.buffer, stored, tuple(index), load.storage)
    lowering.loops.track(made)
    for operator, number in reversed(scales):
        made = lowering.op(binary(operator), made, number)
    return made


def peeled(value: ir.Value) -> tuple[ir.Load, list[tuple[Operator, ir.Const]]]:
    """Return the load behind a factor, and the numbers by which it is multiplied or divided.

    Raises Unfusable for any other expression.
    """
    scales: list[tuple[Operator, ir.Const]] = []
    while not isinstance(value, ir.Load):
        if not isinstance(value, ir.Op):
            raise ir.Unfusable("a factor that is computed")
        numbers = [a for a in value.args if isinstance(a, ir.Const)]
        others = [a for a in value.args if not isinstance(a, ir.Const)]
        widened = value.operator is Operator.CAST and is_float(value.args[0].dtype) and is_float(value.dtype)
        divided = value.operator is Operator.DIV and value.args[1] in numbers
        if widened or value.operator is Operator.SAME:
            value = value.args[0]
        elif len(numbers) == len(others) == 1 and (value.operator is Operator.MUL or divided):
            scales.append((value.operator, numbers[0]))
            value = others[0]
        else:
            raise ir.Unfusable("a factor that is computed")
    return value, scales


def before_weights_rounding(value: ir.Value, weights: ir.Load) -> ir.Value:
    """Return the weights of a softmax without their rounding to sixteen bits, which the product does anyway."""
    below = uncast(value)
    return below if isinstance(below, ir.Load) and below.buffer == weights.buffer else value


def strides(load: ir.Load) -> dict[ir.Atom, int] | None:
    """Return by how many elements each loop steps through a buffer, or None where an index is computed."""
    steps: dict[ir.Atom, int] = {}
    for d, form in enumerate(load.index):
        if not isinstance(form, ir.Form):
            return None
        inner = ir.size_of(ir.leaves(a for group in load.stored[d + 1 :] for a in group))
        for atom, factor in form.terms:
            parts = atom.leaves()
            for i, leaf in enumerate(parts):
                steps[leaf] = steps.get(leaf, 0) + factor * inner * ir.size_of(parts[i + 1 :])
    return steps


def laid_out(lowering: Lowering, load: ir.Load, loops: set[ir.Atom], inner: ir.Group) -> ir.Load:
    """Return the load if its `inner` loops run through neighbours in memory, else one of a copy in which they do."""
    steps, inner = strides(load), ir.leaves(inner)
    expected = [ir.size_of(inner[i + 1 :]) for i in range(len(inner))]
    if steps is not None and [steps.get(a) for a in inner] == expected:
        return load
    used = ir.tree_atoms(load)
    outer = sorted((loops - set(inner)) & used, key=lambda a: a.serial)
    groups = (*((a,) for a in outer), inner)
    moved = lowering.tracked(ir.Op(groups, load.dtype, Operator.SAME, (load,)))
    name = lowering.store(moved, dtype=load.storage)
    again = ir.load(name, moved.shape, load.storage)
    lowering.loops.track(again)
    for mine, theirs in zip(groups, again.dims, strict=True):
        if theirs:
            lowering.loops.unify(mine, theirs)
    return again


def settled_score(lowering: Lowering, score: ir.Value, scores: ir.Load) -> ir.Value:
    """Return the expression with what is costly, and does not depend on the scores, stored before.

    Raises Unfusable when what is left has a reduction or a running sum.
    """
    depends: dict[ir.Value, bool] = {}
    for v in ir.walk(score):
        depends[v] = v is scores or any(depends[child] for child in ir.children(v))

    def change(v: ir.Value) -> ir.Value | None:
        costly = isinstance(v, ir.Reduce | ir.Scan)
        costly = costly or (isinstance(v, ir.Op) and v.operator.traits.costly)
        if not costly or depends[v]:
            return None
        again = lowering.reload(v)
        lowering.loops.track(again)
        for mine, theirs in zip(v.dims, again.dims, strict=True):
            if mine and theirs:
                lowering.loops.unify(mine, theirs)
        return again

    made = rewrite(score, change)
    if any(isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(made)):
        raise ir.Unfusable("a reduction over the scores")
    if any(isinstance(v, ir.Load) and v.buffer == scores.buffer and v is not scores for v in ir.walk(made)):
        raise ir.Unfusable("the scores are read in another order")
    return lowering.tracked(made)


def in_place(lowered: Lowered) -> Lowered:
    """Return the steps in which attention writes where a copy of it, in another order of dimensions, would lie."""
    made = {step.buffer: step for step in lowered.steps if isinstance(step, Attended)}
    trees = [value for step in lowered.steps for value in values_of(step)]
    trees += [step.score for step in made.values()]
    readers = Counter(v.buffer for tree in trees for v in ir.walk(tree) if isinstance(v, ir.Load))
    placed: dict[str, Attended] = {}
    copies: set[Stored] = set()
    for step in lowered.steps:
        if not isinstance(step, Stored) or step.slot is not None:
            continue
        load = strip(step.value)
        if isinstance(load, ir.Load) and load.buffer in made and readers[load.buffer] == 1:
            attended = made[load.buffer]
            dims = written_as(attended, load, step.value.dims)
            if dims is not None and step.spec.dtype == attended.storage:
                placed[load.buffer] = replace(attended, buffer=step.buffer, dims=dims)
                copies.add(step)
    steps = tuple(
        placed.get(s.buffer, s) if isinstance(s, Attended) else s
        for s in lowered.steps
        if not (isinstance(s, Stored) and s in copies)
    )
    for name in placed:
        del lowered.buffers[name]
    return replace(lowered, steps=steps)


def as_read(lowered: Lowered) -> Lowered:
    """Return the steps in which attention writes its result in the order in which all that read it have its loops.

    So heads that a linear layer reads side by side lie side by side.
    """
    for attended in [step for step in lowered.steps if isinstance(step, Attended)]:
        name = attended.buffer
        others = [v for s in lowered.steps if not isinstance(s, Stored) for v in values_of(s)]
        others += [s.score for s in lowered.steps if isinstance(s, Attended)]
        trees = [step.value for step in lowered.steps if isinstance(step, Stored)]
        reads = [(v, tree) for tree in trees for v in ir.walk(tree) if isinstance(v, ir.Load) and v.buffer == name]
        elsewhere = any(isinstance(v, ir.Load) and v.buffer == name for tree in others for v in ir.walk(tree))
        named = {ref for s in lowered.steps if isinstance(s, Library) for ref in library_reads(s)}
        orders = {order_of(load, tree) for load, tree in reads}
        order = orders.pop() if len(orders) == 1 else ()
        if not order or elsewhere or name in {*named, *lowered.results} or order == tuple(range(len(order))):
            continue
        lowered.buffers[name] = replace(
            lowered.buffers[name], shape=tuple(lowered.buffers[name].shape[d] for d in order)
        )

        def change(v: ir.Value, name: str = name, order: tuple[int, ...] = order) -> ir.Value | None:
            if not isinstance(v, ir.Load) or v.buffer != name:
                return None
            return replace(v, stored=tuple(v.stored[d] for d in order), index=tuple(v.index[d] for d in order))

        steps = [
            replace(s, value=rewrite(s.value, change))
            if isinstance(s, Stored)
            else replace(s, dims=tuple(s.dims[d] for d in order))
            if s is attended
            else s
            for s in lowered.steps
        ]
        lowered = replace(lowered, steps=tuple(steps))
    return lowered


def library_reads(step: Library) -> list[str]:
    """Return the buffers that a library operator reads."""
    return [*refs(step.node.args), *refs(tuple(value for _, value in step.node.kwargs))]


def order_of(load: ir.Load, tree: ir.Value) -> tuple[int, ...]:
    """Return a load's stored dimensions in the order of the outermost value that has all of their loops, or ().

    The last dimension stays the last.
    """
    plain = [form.terms[0] for form in load.index if isinstance(form, ir.Form) and len(form.terms) == 1]
    if len(plain) < len(load.index) or any(factor != 1 for _, factor in plain):
        return ()
    place = {leaf: d for d, (atom, _) in enumerate(plain) for leaf in atom.leaves()}
    wide = [
        found for v in ir.walk(tree) if place.keys() <= set(found := ir.leaves(a for group in v.dims for a in group))
    ]
    order = tuple(dict.fromkeys(place[leaf] for leaf in wide[-1] if leaf in place)) if wide else ()
    return order if order and order[-1] == len(plain) - 1 else ()


def written_as(attended: Attended, load: ir.Load, dims: tuple[ir.Group, ...]) -> tuple[ir.Group, ...] | None:
    """Return attention's loops in the order and grouping of a copy, or None where the copy is of another kind."""
    forms = [form for form in load.index if isinstance(form, ir.Form)]
    own = [ir.leaves(group) for group in load.stored]
    plain = [ir.leaves(a for a, _ in form.terms) for form in forms] == own
    if not plain or any(f.offset or any(factor != 1 for _, factor in f.terms) for f in forms):
        return None
    place = {leaf: (d, i) for d, leaves in enumerate(own) for i, leaf in enumerate(leaves)}
    out: list[ir.Group] = []
    seen: list[int] = []
    for group in dims:
        left, merged = list(ir.leaves(group)), list[ir.Atom]()
        while left:
            d, _ = place.get(left[0], (-1, 0))
            if d < 0 or tuple(left[: len(own[d])]) != own[d]:
                return None
            merged += attended.dims[d]
            seen.append(d)
            del left[: len(own[d])]
        out.append(tuple(merged))
    return tuple(out) if sorted(seen) == [d for d, leaves in enumerate(own) if leaves] else None
