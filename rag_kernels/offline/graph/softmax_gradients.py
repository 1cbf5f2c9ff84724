"""Attention whose gradient is wanted, as what its rows come to: two numbers for each stand for all its weights.

Comes in: a problem with softmax(scores) v and its gradients. Goes out: the same function, in which gradients take the
weights as `exp(min(scores - top, 0) - log(sum(exp(scores - top))))`, with scores of their own, and the sum over keys of
weights times their gradient is that of the result times its gradient, as long as a head. So nobody needs the weights in
memory. A softmax that gives 0 where all scores are minus infinity is one operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name, names
from rag_kernels.offline.graph.nodes import given, refs
from rag_kernels.offline.graph.rewrites import NewNodes, live
from rag_kernels.offline.graph.subgraph_match import specs_of
from rag_kernels.offline.graph.written_places import renamed

GRADIENTS = 3  # of an attention: of queries, keys and values
TOTAL = "_total"
ROUNDING = 2.0**-20  # of a score by another order of its sum, of its size: some bits more than one rounding of float32
SOFTMAX = frozenset({"softmax", "_softmax"})
SAFE = "aten._safe_softmax.default"
PRODUCTS = frozenset({"bmm", "mm", "matmul"})
PASSED = names(lambda o: o.view or o.cast or o.same_value) - {"select", "slice", "narrow"}
SIXTEEN = frozenset({"bfloat16", "float16"})
TURNED = frozenset({"transpose", "t", "mT", "permute"})


@dataclass(frozen=True, slots=True)
class _Site:
    """A softmax between two products, with the sum of its gradient. `chain` has the operators from the product of
    queries and keys to what the last product reads.
    """

    softmax: Node
    weights: str  # the softmax, or 0 where a row has no key
    chain: tuple[str, ...]
    result: Node  # the product with the values
    total: Node  # the sum over keys of the weights times their gradient
    gradient: str  # of the result


def with_row_totals(fp: FunctionalProblem) -> FunctionalProblem:
    """Return the problem with the gradients of attention told by rows; itself where there are none."""
    sites = _Graph(fp).sites()
    for site in sites:
        fp = _told_by_rows(fp, site)
    return fp


def sites_by_rows(fp: FunctionalProblem) -> int:
    """Return how many softmaxes `with_row_totals` told by rows."""
    return sum(base_name(node.op) == "logsumexp" and node.name.endswith(TOTAL) for node in fp.nodes)


class _Graph:
    """A problem's nodes, by name and by what reads them."""

    def __init__(self, fp: FunctionalProblem) -> None:
        self.fp, self.nodes, self.specs = fp, {node.name: node for node in fp.nodes}, specs_of(fp)
        self.users = defaultdict[str, list[Node]](list)
        for node in fp.nodes:
            for name in dict.fromkeys(refs((*node.args, *(v for _, v in node.kwargs)))):
                self.users[name].append(node)

    def sites(self) -> list[_Site]:
        """Return every softmax that is attention's and whose gradient is there."""
        found = [self.site(node) for node in self.fp.nodes if base_name(node.op) in SOFTMAX]
        return [site for site in found if site is not None]

    def site(self, softmax: Node) -> _Site | None:
        shape, scores = softmax.outputs[0].shape, softmax.args[0]
        if given(softmax, 1, "dim") not in (-1, len(shape) - 1) or not isinstance(scores, Ref):
            return None
        chain = self.chain(scores.name, prod(shape))
        safe = self.safe(softmax, scores.name)
        weights = safe.name if safe else softmax.name
        total = next((m for m in map(self.total, self.users[weights]) if m), None)
        total = total or next((m for n in self.passed(weights) for m in map(self.total, self.users[n]) if m), None)
        if total is None or not chain or weights in self.fp.results:
            return None
        node, products = total
        for name in (weights, *self.passed(weights)):
            for result in self.users[name]:
                pair = next((p for p in products if self.is_gradient(p, result, name)), None)
                if pair is not None and isinstance(pair.args[0], Ref):
                    between = self.way(weights, name)
                    own = (softmax.name, *([weights] if safe else []), *between)
                    return _Site(softmax, weights, (*chain, *own), result, node, pair.args[0].name)
        return None

    def total(self, node: Node) -> tuple[Node, list[Node]] | None:
        """Return the sum along the last dimension that a product of weights and their gradient is for, and products
        from which that gradient may be.
        """
        if base_name(node.op) != "mul" or len(node.args) != 2:
            return None
        ends = [n for n in self.users[node.name] if base_name(n.op) == "sum"]
        rank = len(node.outputs[0].shape)
        sums = [n for n in ends if given(n, 1, "dim") in ((-1,), (rank - 1,)) and given(n, 2, "keepdim", False) is True]
        products = [p for a in node.args if isinstance(a, Ref) if (p := self.nodes.get(self.root(a.name)))]
        products = [p for p in products if base_name(p.op) in PRODUCTS]
        return (sums[0], products) if len(sums) == 1 and products else None

    def root(self, name: str) -> str:
        """Return what a name is a view or another dtype of."""
        while (node := self.nodes.get(name)) and base_name(node.op) in PASSED and isinstance(node.args[0], Ref):
            name = node.args[0].name
        return name

    def passed(self, name: str) -> list[str]:
        """Return views of a name, and it in other dtypes."""
        found = [n.name for n in self.users[name] if base_name(n.op) in PASSED]
        return found + [more for n in found for more in self.passed(n)]

    def way(self, start: str, end: str) -> list[str]:
        """Return the names behind `start` down to `end`, which is a view of it."""
        found = list[str]()
        while end != start:
            found.insert(0, end)
            end = next(iter(refs(self.nodes[end].args)))
        return found

    def is_gradient(self, product: Node, result: Node, weights: str) -> bool:
        """Return whether `product` is the gradient of the weights whose product with values `result` is."""
        if base_name(result.op) not in PRODUCTS or result.args[0] != Ref(weights):
            return False
        values, turned = result.args[1], product.args[1]
        node = self.nodes.get(turned.name) if isinstance(turned, Ref) else None
        if node is None or not isinstance(values, Ref) or not isinstance(product.args[0], Ref):
            return False
        shape = self.specs[values.name].shape
        whole = base_name(node.op) in TURNED and node.args[0] == values
        whole = whole and node.outputs[0].shape == (*shape[:-2], shape[-1], shape[-2])
        return whole and self.specs[product.args[0].name].shape == result.outputs[0].shape

    def chain(self, name: str, elements: int) -> tuple[str, ...]:
        """Return the operators from the product of queries and keys to its softmax, or nothing."""
        node = self.nodes.get(name)
        if node is None or prod(node.outputs[0].shape) != elements or name in self.fp.results:
            return ()
        if base_name(node.op) in PRODUCTS:
            return (name,)
        for operand in refs(node.args):
            if before := self.chain(operand, elements):
                return (*before, name)
        return ()

    def safe(self, softmax: Node, scores: str) -> Node | None:
        """Return the choice of 0 for rows without a key, where that alone reads a softmax."""
        users = self.users[softmax.name]
        if len(users) != 1 or base_name(users[0].op) != "where" or softmax.name in self.fp.results:
            return None
        condition, zero, other = users[0].args
        eq = self.nodes.get(condition.name) if isinstance(condition, Ref) else None
        if eq is None or other != Ref(softmax.name) or base_name(eq.op) != "eq" or eq.args[1] != -inf:
            return None
        most = self.nodes.get(eq.args[0].name) if isinstance(eq.args[0], Ref) else None
        number = self.nodes.get(zero.name) if isinstance(zero, Ref) else None
        whole = most is not None and base_name(most.op) == "amax" and most.args[0] == Ref(scores)
        none = number is not None and base_name(number.op) == "scalar_tensor" and number.args[0] == 0.0
        return users[0] if whole and none else None


def _told_by_rows(fp: FunctionalProblem, site: _Site) -> FunctionalProblem:
    """Return the problem in which the gradients of one attention take its weights by rows."""
    nodes, specs = {node.name: node for node in fp.nodes}, specs_of(fp)
    new = NewNodes({a.name for a in fp.arguments} | nodes.keys())
    forward = {*site.chain}
    again = dict[str, Ref]()  # what the gradients read, by what the forward has

    def copied() -> None:
        for name in site.chain:
            _add_again(new, nodes[name], site, again, zero)

    zero = _zero_of(fp)
    masks = {nodes[name].args[1] for name in site.chain if base_name(nodes[name].op) == "masked_fill"}
    for node in fp.nodes:
        if node.name == site.weights != site.softmax.name:
            new.made.append(Node(node.name, SAFE, (site.softmax.args[0], -1), (), node.outputs))
        elif node.name == site.softmax.name != site.weights:
            continue
        elif node.name == site.total.name:
            new.made += _total(new, node, site, specs, nodes)
        elif node.name in forward or node.name == site.result.name:
            new.made.append(node)
        else:
            new.made.append(_with_zero(renamed(node, again), masks, zero))
        if node.name == site.result.name:
            copied()
    return live(fp, _rounded_at_once(new.made, site, fp))


def _zero_of(fp: FunctionalProblem) -> float:
    """Return a zero that is none of the problem's numbers, which a call may change, if one of two types is none."""
    numbers = [(type(number), number) for _, number in fp.abi_constants]
    return next((zero for zero in (0, 0.0) if (type(zero), zero) not in numbers), 0)


def _with_zero(node: Node, masks: set[Value], zero: float) -> Node:
    """Return the gradient of a masked score with a zero of its own."""
    if base_name(node.op) == "masked_fill" and node.args[1] in masks and node.args[2] == 0:
        return replace(node, args=(*node.args[:2], zero))
    return node


def _add_again(new: NewNodes, node: Node, site: _Site, again: dict[str, Ref], zero: float) -> None:
    """Add a copy of one of the forward's operators for the gradients: of the softmax by rows."""
    name, spec = f"{node.name}_again", node.outputs[0]
    if node.name not in (site.softmax.name, site.weights):
        made = renamed(replace(node, name=(name := new.name_like(name))), again)
        new.made.append(made)
        again[node.name] = Ref(name)
    elif node.name == site.softmax.name:
        scores = node.args[0]
        assert isinstance(scores, Ref)
        full = TensorSpec(spec.shape, "float32")
        row = TensorSpec((*spec.shape[:-1], 1), "float32")
        wide = new.add(f"{node.name}_scores", full, "to.dtype", scores, "torch.float32")
        top = new.add(f"{node.name}_top", row, "amax.default", wide, (-1,), True)
        under = new.add(f"{node.name}_under", full, "sub.Tensor", wide, top)
        total = new.add(f"{node.name}{TOTAL}", row, "logsumexp.default", under, (-1,), True)
        own = new.add(f"{node.name}_again_scores", full, "to.dtype", again[scores.name], "torch.float32")
        own = new.add(f"{node.name}_again_under", full, "sub.Tensor", own, _nearest(new, node.name, row, top))
        own = new.add(f"{node.name}_again_most", full, "clamp_max.default", own, zero)
        below = new.add(f"{node.name}_below", full, "sub.Tensor", own, total)
        powers = new.add(f"{node.name}_powers", full, "exp.default", below)
        if site.weights != node.name:
            flat = TensorSpec(row.shape, "bool")
            none = new.add(f"{node.name}_none", flat, "eq.Scalar", top, -inf)
            powers = new.add(f"{node.name}_or_none", full, "masked_fill.Scalar", powers, none, zero)
        if spec.dtype != "float32":
            powers = new.add(f"{node.name}_rounded", spec, "to.dtype", powers, f"torch.{spec.dtype}")
        again[node.name] = again[site.weights] = powers


def _nearest(new: NewNodes, name: str, row: TensorSpec, top: Ref) -> Ref:
    """Return a row's largest score less what the same score may be less by where it is added up in another order.

    That is under 1 up to a million, and nothing is taken off there: the exponential of a rounding is near 1 anyway.
    """
    size = new.add(f"{name}_top_size", row, "abs.default", top)
    rounding = new.add(f"{name}_top_rounding", row, "mul.Tensor", size, ROUNDING)
    beyond = new.add(f"{name}_top_beyond", row, "sub.Tensor", rounding, 1.0)
    slack = new.add(f"{name}_top_slack", row, "relu.default", beyond)
    return new.add(f"{name}_top_nearest", row, "sub.Tensor", top, slack)


def _total(new: NewNodes, node: Node, site: _Site, specs: dict[str, TensorSpec], nodes: dict[str, Node]) -> list[Node]:
    """Return the sum over keys as one of the result times its gradient."""
    shape = site.result.outputs[0].shape
    full, row = TensorSpec(shape, "float32"), TensorSpec((*shape[:-1], 1), "float32")
    a = new.add(f"{node.name}_result", full, "to.dtype", Ref(site.result.name), "torch.float32")
    b = new.add(f"{node.name}_gradient", full, "to.dtype", Ref(site.gradient), "torch.float32")
    both = new.add(f"{node.name}_both", full, "mul.Tensor", a, b)
    total: Value = new.add(f"{node.name}_rows", row, "sum.dim_IntList", both, (-1,), True)
    out = node.outputs[0]
    if out.dtype != "float32":
        total = new.add(
            f"{node.name}_rounded", TensorSpec(row.shape, out.dtype), "to.dtype", total, f"torch.{out.dtype}"
        )
    return [Node(node.name, "aten.reshape.default", (total, out.shape), (), node.outputs)]


def _rounded_at_once(nodes: Sequence[Node], site: _Site, fp: FunctionalProblem) -> Sequence[Node]:
    """Return the nodes in which the product with values has the sixteen bits to which all that reads it rounds it."""
    graph = _Graph(replace(fp, nodes=tuple(nodes)))
    values = site.result.args[1]
    own = graph.specs[graph.root(values.name)].dtype if isinstance(values, Ref) else ""
    name, between = site.result.name, list[str]()
    while True:
        users = [n for n in graph.users[name] if not n.name.endswith("_result")]
        if len(users) != 1 or base_name(users[0].op) not in PASSED or name in fp.results or own not in SIXTEEN:
            return nodes
        between.append(name)
        name = users[0].name
        if base_name(users[0].op) == "to":
            break
    if users[0].outputs[0].dtype != own:
        return nodes
    new = NewNodes({node.name for node in nodes} | {a.name for a in fp.arguments})
    for node in nodes:
        if node.name == site.result.name:
            factors = [
                new.add(f"{r.name}_rounded", replace(graph.specs[r.name], dtype=own), "to.dtype", r, f"torch.{own}")
                for r in node.args
                if isinstance(r, Ref)
            ]
            node = replace(node, args=tuple(factors))
        if node.name in between:
            node = replace(node, outputs=(replace(node.outputs[0], dtype=own),))
        elif node.name == name:
            node = replace(node, op="aten.reshape.default", args=(node.args[0], node.outputs[0].shape), kwargs=())
        new.made.append(node)
    return new.made
