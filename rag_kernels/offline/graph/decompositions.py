"""Operators that no rule knows as those of which PyTorch makes them, where rules know all of these.

Comes in: a problem's graph, and the names of what is known. Goes out: the same function, in which such an operator
(`kron`, `nansum`, `trapezoid`) is the graph of its decomposition (`recorded_parts`). An operator of whose parts one
stays unknown is left whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorArgument, TensorSpec
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.cells import SAME
from rag_kernels.offline.graph.recorded_parts import HELD, MOST, SIZE, Call, is_known, parts_of
from rag_kernels.offline.graph.rewrites import live
from rag_kernels.offline.graph.subgraph_match import refs_of, specs_of
from rag_kernels.offline.graph.written_places import renamed

OF_OURS = frozenset({base_name(HELD), base_name(SIZE)})
DEEPEST = 4  # decompositions of parts of parts
_IN_VAIN = (
    "fft_",
    "_fft",
    "stft",
    "istft",
    "quantized_",
    "fbgemm_",
    "linalg_eig",
    "linalg_svd",
    "linalg_qr",
    "linalg_lu",
)
_IN_ONE = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})  # of many steps, for which the library has a kernel


def with_decompositions(fp: FunctionalProblem, known: AbstractSet[str]) -> FunctionalProblem:
    """Return the problem with each operator that is not `known` in parts that are; itself if there is none."""
    known = frozenset(known | OF_OURS)
    tensors = {a.name for a in fp.arguments if isinstance(a, TensorArgument)}
    if not any(_may_have_parts(node, known) for node in fp.nodes):
        return fp
    specs = {name: (spec,) for name, spec in specs_of(fp).items() if name in tensors}
    made = _apart(fp.nodes, specs, known, tensors, 0)
    return live(fp, made) if made is not None and tuple(made) != fp.nodes else fp


def _may_have_parts(node: Node, known: AbstractSet[str]) -> bool:
    """Return whether an operator is one of PyTorch's that nothing here knows."""
    name = base_name(node.op)
    return node.op.startswith("aten.") and not (is_known(name, known) or name in _IN_ONE or name.startswith(_IN_VAIN))


def _apart(
    nodes: Sequence[Node],
    given: Mapping[str, tuple[TensorSpec, ...]],
    known: frozenset[str],
    laid: AbstractSet[str],
    depth: int,
) -> list[Node] | None:
    """Return the nodes with those that are not known in parts; at a depth None where one has none that are.

    `laid` are tensors that lie in memory as their shapes say.
    """
    specs, made = dict(given), list[Node]()
    taken = given.keys() | {node.name for node in nodes}
    several: dict[str, list[Ref]] = {}
    for node in nodes:
        specs[node.name] = node.outputs
        source = node.args[0] if node.op == "getitem" else None
        if isinstance(source, Ref) and source.name in several and isinstance(place := node.args[1], int):
            made.append(Node(node.name, SAME, (several[source.name][place],), (), node.outputs))
            continue
        parts = _parts(node, specs, known, laid, depth) if _may_have_parts(node, known) else None
        if parts is None:
            if depth and not is_known(base_name(node.op), known):
                return None
            made.append(node)
            continue
        inner, results = parts
        names = {n.name: Ref(_free(f"{node.name}_{n.name}", taken)) for n in inner}
        made += [replace(renamed(n, names), name=names[n.name].name) for n in inner]
        ends = [names.get(r.name, r) for r in results]
        if len(node.outputs) == 1 and len(ends) == 1:
            made.append(Node(node.name, SAME, tuple(ends), (), node.outputs))
        else:
            several[node.name] = ends
    return made


def _parts(
    node: Node,
    specs: Mapping[str, tuple[TensorSpec, ...]],
    known: frozenset[str],
    laid: AbstractSet[str],
    depth: int,
) -> tuple[list[Node], list[Ref]] | None:
    """Return the parts of an operator on its tensors, all of them known, and its results; None where it has none."""
    names = list(dict.fromkeys(refs_of(node)))
    if depth == DEEPEST or not all(name in specs and len(specs[name]) == 1 for name in names):
        return None
    if base_name(node.op) == "as_strided" and names[0] not in laid:
        return None
    places = {name: Ref(str(i)) for i, name in enumerate(names)}
    call = renamed(node, places)
    parts = parts_of(Call(node.op, call.args, call.kwargs, tuple(specs[n][0] for n in names)), known)
    if parts is None:
        return None
    own = {str(i): Ref(name) for i, name in enumerate(names)}
    inner = _apart([renamed(n, own) for n in parts.nodes], {n: specs[n] for n in names}, known, frozenset(), depth + 1)
    if inner is None or len(inner) > MOST or any(s.dtype.startswith("complex") for n in inner for s in n.outputs):
        return None
    return inner, [own.get(r, Ref(r)) for r in parts.results]


def _free(name: str, taken: set[str]) -> str:
    """Return a name that nothing has, and take it."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
