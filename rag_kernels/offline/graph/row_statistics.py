"""A log-softmax whose gradient is wanted, as what its rows come to: a training step saves these, and not the tensor.

Comes in: the problem of a training step. Goes out: the same function, in which log-softmaxes that are no results are
`x - max - log(sum(exp(x - max)))`, and what is read of one element a row is read of `x`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.graph.rewrites import NewNodes, live
from rag_kernels.offline.graph.subgraph_match import specs_of

LOG_SOFTMAX = frozenset({"log_softmax", "_log_softmax"})


@dataclass(frozen=True, slots=True)
class _Apart:
    """A log-softmax along a dimension as what it is of, and two numbers for each row; `rows` is the shape of these."""

    of: Ref
    dim: int
    rows: tuple[int, ...]
    top: Ref
    log: Ref


def with_row_statistics(fp: FunctionalProblem) -> FunctionalProblem:
    """Return the problem with log-softmaxes of float32 taken apart; itself where there are none."""
    specs = specs_of(fp)
    new = NewNodes({a.name for a in fp.arguments} | {n.name for n in fp.nodes})
    apart: dict[str, _Apart] = {}
    for node in fp.nodes:
        name, source = base_name(node.op), node.args[0] if node.args else None
        known = apart.get(source.name) if isinstance(source, Ref) else None
        if (
            name in LOG_SOFTMAX
            and isinstance(source, Ref)
            and _is_plain(node, source, specs)
            and node.name not in fp.results
        ):
            spec, dim = node.outputs[0], given(node, 1, "dim") % len(node.outputs[0].shape)
            row = TensorSpec((*spec.shape[:dim], 1, *spec.shape[dim + 1 :]), spec.dtype)
            top = new.add(f"{node.name}_max", row, "amax.default", source, (dim,), True)
            below = new.add(f"{node.name}_below", spec, "sub.Tensor", source, top)
            powers = new.add(f"{node.name}_exp", spec, "exp.default", below)
            total = new.add(f"{node.name}_sum", row, "sum.dim_IntList", powers, (dim,), True)
            log = new.add(f"{node.name}_log", row, "log.default", total)
            new.made.append(Node(node.name, "aten.sub.Tensor", (below, log), (), node.outputs))
            apart[node.name] = _Apart(source, dim, row.shape, top, log)
        elif known and name == "zeros_like":
            new.made.append(replace(node, args=(known.of, *node.args[1:])))
        elif known and name == "gather" and _is_of_rows(node, known):
            new.made.append(replace(node, name=(one := new.name_like(node.name)), args=(known.of, *node.args[1:])))
            below = new.add(f"{node.name}_below", node.outputs[0], "sub.Tensor", Ref(one), known.top)
            new.made.append(Node(node.name, "aten.sub.Tensor", (below, known.log), (), node.outputs))
        else:
            new.made.append(node)
    return live(fp, new.made) if apart else fp


def _is_plain(node: Node, source: Ref, specs: dict[str, TensorSpec]) -> bool:
    """Return whether a log-softmax is of float32 throughout."""
    return bool(node.outputs[0].shape) and specs[source.name].dtype == node.outputs[0].dtype == "float32"


def _is_of_rows(node: Node, apart: _Apart) -> bool:
    """Return whether a gather takes one element of each row: an index may have fewer rows."""
    return given(node, 1, "dim") % len(apart.rows) == apart.dim and node.outputs[0].shape == apart.rows
