"""Features of a graph that retrieval and reports need, and its key, which does not depend on sizes.

Comes in: a `Functional`. Goes out: `Features` and a graph key. FLOPs are counted by torch.utils.flop_counter on
meta tensors, so nothing is computed. Knows nothing of source text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from rag_kernels.eval.ids import content_id
from rag_kernels.eval.records import Features, Node, Ref, TensorArgument, TensorSpec, Value
from rag_kernels.eval.traits.aten import Cost, base_name, operator
from rag_kernels.ingest.graphs.graph import Functional, bind, overload, refs

# Arguments that hold sizes: they do not tell one graph from another.
_SIZE_ARGUMENTS = {
    "size",
    "shape",
    "normalized_shape",
    "output_size",
    "split_size",
    "split_sizes",
    "sizes",
    "end",
    "start",
    "length",
    "repeats",
    "sections",
    "n",
    "m",
    "steps",
    "shifts",
}
_SMALLEST_SIZE = 16


def features(functional: Functional) -> Features:
    """Return what one forward call computes and moves: operators, FLOPs, bytes."""
    tensors = [a for a in functional.arguments if isinstance(a, TensorArgument)]
    outputs = output_specs(functional)
    operators = sorted(_name(n) for n in functional.nodes if n.op != "getitem")
    arithmetic = [n for n in functional.nodes if operator(n.op).cost == "arithmetic"]
    read = _used(functional)
    dtypes = {s.dtype for s in (*(a.spec for a in tensors), *outputs)}
    multiplied = _product_dtypes(functional)
    return Features(
        operators=tuple(operators),
        ranks=tuple(len(a.spec.shape) for a in tensors if a.role == "input"),
        dtypes=tuple(sorted(dtypes)),
        parameter_count=sum(math.prod(a.spec.shape) for a in tensors if a.role == "parameter"),
        flops=count_flops(functional),
        pointwise_flops=sum(math.prod(n.outputs[0].shape) for n in arithmetic if n.outputs),
        bytes_moved=nbytes(a.spec for a in tensors if a.name in read) + nbytes(outputs),
        product_dtypes=() if multiplied <= dtypes else tuple(sorted(multiplied)),
    )


def _product_dtypes(functional: Functional) -> set[str]:
    """Return the dtypes of numbers that products are made of; masks and indices are none."""
    specs = specs_by_name(functional)
    products = [n for n in functional.nodes if operator(n.op).cost in FLOPS]
    found = {specs[r].dtype for n in products for v in n.args for r in refs(v)}
    return {dtype for dtype in found if "float" in dtype or dtype == "int8"}


def _name(node: Node) -> str:
    """Return the name that features have: a literal tensor's is `torch.tensor`, as archived features say."""
    return base_name(node.op) if node.op.startswith("aten.") else node.op


def output_specs(functional: Functional) -> tuple[TensorSpec, ...]:
    """Return the specs of the outputs, in order."""
    specs = specs_by_name(functional)
    return tuple(specs[name] for name in functional.results)


def specs_by_name(functional: Functional) -> dict[str, TensorSpec]:
    """Return the spec of every argument and of every node with one output."""
    specs = {a.name: a.spec for a in functional.arguments if isinstance(a, TensorArgument)}
    return specs | {n.name: n.outputs[0] for n in functional.nodes if n.outputs}


def nbytes(specs: Iterable[TensorSpec]) -> int:
    """Return the bytes that dense tensors of these specs take."""
    return sum(math.prod(s.shape) * getattr(torch, s.dtype).itemsize for s in specs)


def working_bytes(functional: Functional) -> int:
    """Return the bytes of all arguments and all results, as if nothing were freed on the way."""
    tensors = [a.spec for a in functional.arguments if isinstance(a, TensorArgument)]
    made = [s for n in functional.nodes if not operator(n.op).no_bytes for s in n.outputs]
    return nbytes(tensors) + nbytes(made)


def _used(functional: Functional) -> set[str]:
    values = [v for n in functional.nodes for v in (*n.args, *(v for _, v in n.kwargs))]
    return {r for v in values for r in refs(v)} | set(functional.results)


def count_flops(functional: Functional) -> int:
    """Return the multiply-adds of matmul-like operators, twice each, by PyTorch's own counter."""
    specs, known, total = specs_by_name(functional), {}, 0
    for node in functional.nodes:
        count = FLOPS.get(operator(node.op).cost)
        if count is None:
            continue
        shapes = [specs[r] for v in (*node.args, *(v for _, v in node.kwargs)) for r in refs(v)]
        key = repr((node.op, shapes, [v for v in node.args if not refs(v)], node.kwargs))
        if key not in known:
            known[key] = count(node, specs)
        total += known[key]
    return total


def _counted(node: Node, specs: dict[str, TensorSpec]) -> int:
    if base_name(node.op) == "_scaled_mm":  # which looks at the order of memory, that specs do not tell
        (rows, terms), (_, columns) = (specs[r].shape for r in _refs_of(node)[:2])
        return 2 * rows * terms * columns
    args = [_meta(v, specs) for v in node.args]
    kwargs = {k: _meta(v, specs) for k, v in node.kwargs}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        overload(node.op)(*args, **kwargs)
    return int(counter.get_total_flops() * _kept_share(node, specs))


def _kept_share(node: Node, specs: dict[str, TensorSpec]) -> float:
    """Return the share of a product that is needed: of causal attention's scores those on the diagonal or below."""
    if base_name(node.op) != "scaled_dot_product_attention" or not bind(node).get("is_causal"):
        return 1.0
    query, key = (specs[r].shape for r in _refs_of(node)[:2])
    rows, columns = query[-2], key[-2]
    return sum(min(row + 1, columns) for row in range(rows)) / (rows * columns)


def _meta(value: Value, specs: dict[str, TensorSpec]) -> Any:
    if isinstance(value, Ref):
        spec = specs[value.name]
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
    if isinstance(value, tuple):
        return [_meta(v, specs) for v in value]
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value


def _recurrent_flops(node: Node, specs: dict[str, TensorSpec]) -> int:
    """Count every weight matrix once for every row of every step."""
    given = bind(node)
    x = specs[refs(given["input"])[0]]
    rows = math.prod(x.shape[:-1])
    matrices = [specs[r].shape for r in refs(given["params"]) if len(specs[r].shape) == 2]
    return sum(2 * rows * math.prod(shape) for shape in matrices)


FLOPS: dict[Cost, Callable[[Node, dict[str, TensorSpec]], int]] = {"product": _counted, "recurrent": _recurrent_flops}


def graph_key(functional: Functional) -> str:
    """Return a key that is the same for the same graph at other sizes and with other names.

    The order of independent calls does not change it either.
    """
    specs = specs_by_name(functional)
    tensors = [a for a in functional.arguments if isinstance(a, TensorArgument)]
    dims = {n for a in tensors for n in a.spec.shape if n >= _SMALLEST_SIZE}
    digest = {a.name: f"arg{i}:{_kind(a.spec)}" for i, a in enumerate(tensors)}
    for node in functional.nodes:
        texts = [node.op, *map(_kind, node.outputs)]
        rank = len(specs[first].shape) if (first := next(iter(_refs_of(node)), "")) in specs else 0
        for name, value in _named_values(node):
            texts.append(f"{name}={_canonical(name, value, digest, dims, rank)}")
        digest[node.name] = content_id("n", *texts)
    arguments = [digest[a.name] for a in tensors]
    return content_id("g", *arguments, "->", *(digest[name] for name in functional.results))


def _refs_of(node: Node) -> list[str]:
    return [r for v in (*node.args, *(v for _, v in node.kwargs)) for r in refs(v)]


def _named_values(node: Node) -> list[tuple[str, Value]]:
    """Return arguments by name, sorted, without those that equal their defaults."""
    if not node.op.startswith("aten."):
        return [(str(i), v) for i, v in enumerate(node.args)]
    defaults = {a.name: a.default_value for a in overload(node.op)._schema.arguments if a.has_default_value()}
    given = bind(node)
    return [(k, given[k]) for k in sorted(given) if not (k in defaults and _plain_equal(given[k], defaults[k]))]


def _plain_equal(value: Value, default: Any) -> bool:
    return bool((list(value) if isinstance(value, tuple) else value) == default)


def _canonical(name: str, value: Value, digest: dict[str, str], dims: set[int], rank: int) -> str:
    again: Callable[[Value], str] = lambda v: _canonical(name, v, digest, dims, rank)  # noqa: E731
    if isinstance(value, Ref):
        return digest[value.name]
    if isinstance(value, tuple):
        return f"sizes{len(value)}" if name in _SIZE_ARGUMENTS else f"[{','.join(map(again, value))}]"
    if name in _SIZE_ARGUMENTS and not (isinstance(value, int) and -8 < value < 8):
        return "size"
    if name in {"dim", "dim0", "dim1", "dims", "start_dim", "end_dim"} and isinstance(value, int) and value < 0:
        return str(value + rank)
    if isinstance(value, int) and not isinstance(value, bool) and value in dims:
        return "size"
    return repr(float(value)) if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _kind(spec: TensorSpec) -> str:
    return f"{spec.dtype}/{len(spec.shape)}"
