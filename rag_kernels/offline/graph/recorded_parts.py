"""What PyTorch makes an operator of: the graph of its decomposition, which is true of other sizes or says which not.

Comes in: a call of an operator with the shapes of its tensors, and which operators are known. Goes out: `Parts`. A
decomposition is that of the kernel which calls other operators, or of torch's table; it is recorded on tensors without
data whose sizes are symbols, so that it is seen which of its numbers follow from sizes. One that is an operand becomes
a `sym_size`, which is read at the call; a place behind which nothing comes is counted from the end; on what else a
number depends, or the recording went on, is held. Imports torch when it is asked.
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Lock
from typing import Any

from rag_kernels.eval.errors import Internal
from rag_kernels.eval.records import Node, Ref, TensorSpec, Value
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.offline.graph.own_parts import OWN_PARTS
from rag_kernels.offline.graph.subgraph_match import refs_of
from rag_kernels.offline.graph.written_places import renamed

HELD = "offline.held.default"  # (tensor, dimensions): the tensor, of which a kernel refuses other sizes there
SIZE = "aten.sym_size.int"
MOST = 96  # operators of a decomposition that is taken: what has more goes along a dimension step by step
_LITERALS = 16
_DROPPED = frozenset({"layout", "pin_memory", "memory_format", "non_blocking", "device", "copy", "requires_grad"})
_ONE_AT_A_TIME = Lock()  # recording replaces functions of torch's for a while
_OPERANDS = frozenset({"self", "other", "value", "fill_value", "s"})


class Literal(float):
    """A number that a decomposition brought: no keyword of the problem, though one may have the same value."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator: its tensors are `Ref("0")`, `Ref("1")`... of these specs."""

    op: str
    args: tuple[Value, ...]
    kwargs: tuple[tuple[str, Value], ...]
    specs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The graph of one operator: nodes on the call's tensors and on each other, and the names of its results."""

    nodes: tuple[Node, ...]
    results: tuple[str, ...]


def is_known(name: str, known: AbstractSet[str]) -> bool:
    """Return whether an operator needs no parts."""
    return name == "getitem" or name in known or operator(name).view or operator(name).pieces


@cache
def parts_of(call: Call, known: frozenset[str]) -> Parts | None:
    """Return what an operator is made of; None where it has no parts, or they cannot be written down."""
    try:
        recording = _recorded(call, known)
        if recording is None:
            return None
        walk = _Walk(recording, call)
        parts = walk.parts()
        for size in sorted({call.specs[t].shape[d] for t, d in walk.went_by()}):
            parts = _at_other_sizes(call, known, parts, walk, size)
        return walk.with_held(parts)
    except NotWritable:
        return None


def _at_other_sizes(call: Call, known: frozenset[str], parts: Parts, walk: _Walk, size: int) -> Parts:
    """Return the parts, of which what the recording went by this size is the same at twice the size, or is held."""
    here = {place for place in walk.went_by() if call.specs[place[0]].shape[place[1]] == size}
    twice = tuple(replace(s, shape=tuple(2 * n if n == size else n for n in s.shape)) for s in call.specs)
    try:
        other = _recorded(replace(call, specs=twice), known)
        told = _told_by_both(parts, _Walk(other, replace(call, specs=twice)).parts()) if other else None
    except NotWritable:
        told = None
    if told is None:
        walk.held |= here
    return told or parts


def _told_by_both(parts: Parts, other: Parts) -> Parts | None:
    """Return the parts as they are at both sizes; None where a number differs that the operands do not tell."""
    if parts.results != other.results or len(parts.nodes) != len(other.nodes):
        return None
    sizes = [{n.name: n.outputs[0].shape for n in p.nodes if len(n.outputs) == 1} for p in (parts, other)]
    made = [_told(one, two, sizes) for one, two in zip(parts.nodes, other.nodes, strict=True)]
    return None if None in made else Parts(tuple(node for node in made if node), parts.results)


def _told(one: Node, two: Node, sizes: Sequence[Mapping[str, tuple[int, ...]]]) -> Node | None:
    """Return a node as it is at both sizes; None where a number differs that the operands do not tell."""
    if one.op != two.op or one.kwargs != two.kwargs or len(one.args) != len(two.args):
        return None
    kind, source = base_name(one.op), one.args[0] if one.args else None
    if one.op == HELD:
        shapes = one.outputs[0].shape, two.outputs[0].shape
        dims = one.args[1] if isinstance(one.args[1], tuple) else ()
        return replace(
            one, args=(source, tuple(d for d in dims if isinstance(d, int) and shapes[0][d] == shapes[1][d]))
        )
    place = _place_of_size(kind)
    if place is not None and _without(one.args, place) == _without(two.args, place):
        return one
    if kind == "slice" and isinstance(source, Ref) and source.name in sizes[0] and isinstance(dim := one.args[1], int):
        ends = [tuple(_behind(v, sizes[i][source.name][dim]) for v in n.args[2:4]) for i, n in enumerate((one, two))]
        if ends[0] == ends[1]:
            one, two = (replace(n, args=(*n.args[:2], *ends[0], *n.args[4:])) for n in (one, two))
    return one if one.args == two.args else None


def _place_of_size(kind: str) -> int | None:
    """Return where a size stands that rules read of the result; in `arange` the end, if no number stands before."""
    known = operator(kind)
    if known.reshape or kind.startswith(("expand", "new_")):
        return 1
    return 0 if known.cost == "factory" else None


def _without(values: tuple[Value, ...], place: int) -> tuple[Value, ...]:
    return (*values[:place], *values[place + 1 :])


def _behind(end: Value, size: int) -> Value:
    """Return a place of a slice as it is counted from the end, where it lies in the further half."""
    if not isinstance(end, int) or 2 * end < size:
        return end
    return None if end >= size else end - size


class NotWritable(Internal):
    """A decomposition has something that is no operator on tensors, numbers and dtypes."""


Place = tuple[int, int]  # a tensor of the call, and a dimension


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: Any  # torch.fx.GraphModule
    places: dict[Any, Place]  # by symbol
    shapes: Any  # torch's ShapeEnv


def _recorded(call: Call, known: frozenset[str]) -> _Recording | None:
    """Record an operator's decomposition on tensors whose sizes are symbols; None where it has none or that fails."""
    import torch
    from torch._guards import Source
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    class Size(Source):
        def __init__(self, place: Place) -> None:
            self.place = place

        @property
        def _name_template(self) -> str:
            return "size_{}_{}".format(*self.place)

    packet, table = getattr(torch.ops.aten, base_name(call.op)), _table(known)
    function = getattr(packet, call.op.rpartition(".")[2])
    if function not in table:
        return None
    shapes, places = ShapeEnv(duck_shape=False), dict[Any, Place]()

    def size(place: Place, count: int) -> Any:
        if count < 2:
            return count
        symbol = shapes.create_symbol(count, Size(place), DimDynamic.DYNAMIC)
        places[symbol] = place
        return shapes.create_symintnode(symbol, hint=count, source=Size(place))

    def value_of(value: Value, tensors: Sequence[Any]) -> Any:
        match value:
            case Ref(name=place):
                return tensors[int(place)]
            case tuple():
                return [value_of(v, tensors) for v in value]
            case str() if value.startswith("torch."):
                return getattr(torch, value.removeprefix("torch."))
        return value

    def forward(*tensors: Any) -> list[Any]:
        kwargs = {k: value_of(v, tensors) for k, v in call.kwargs}
        made = function(*(value_of(v, tensors) for v in call.args), **kwargs)
        return list(made) if isinstance(made, list | tuple) else [made]

    with _ONE_AT_A_TIME, FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True), torch.no_grad():
        try:
            fakes = [
                torch.empty([size((i, d), n) for d, n in enumerate(s.shape)], dtype=getattr(torch, s.dtype))
                for i, s in enumerate(call.specs)
            ]
            graph = make_fx(forward, decomposition_table=table, pre_dispatch=True)(*fakes)
            if any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in graph.graph.nodes):
                pure = dispatch_functionalize(graph, FunctionalTensorMode(pre_dispatch=True, export=True))
                graph = make_fx(pure, decomposition_table=table, pre_dispatch=True)(*fakes)
        except Exception as error:  # what PyTorch cannot record stays as it is
            raise NotWritable from error
    return _Recording(graph, places, shapes)


@cache
def _table(known: frozenset[str]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions of what is not known, by operator; each is looked for when it is asked for."""
    import torch
    from torch._decomp import decomposition_table

    class Table(dict[Any, Callable[..., Any]]):
        def __missing__(self, call: Any) -> Callable[..., Any]:
            name, made = base_name(str(call)), None
            if not isinstance(call, torch._ops.OpOverload):
                raise KeyError(call)
            if call.namespace == "prims":
                made = getattr(getattr(torch._prims, name, None), "impl_aten", None)
            elif call.namespace == "aten" and not is_known(name, known):
                made = OWN_PARTS.get(str(call)) or (
                    call.decompose if call._can_decompose() else decomposition_table.get(call)
                )
            if made is None:
                raise KeyError(call)
            found: Callable[..., Any] = made
            self[call] = found
            return found

        def __contains__(self, call: object) -> bool:
            try:
                self[call]
            except KeyError:
                return False
            return True

    return Table()


@dataclass(slots=True)
class _Walk:
    """One pass over a recorded decomposition."""

    recording: _Recording
    call: Call
    nodes: list[Node] = field(default_factory=list)
    values: dict[Any, Value] = field(default_factory=dict)
    held: set[Place] = field(default_factory=set)
    asked: dict[Place, Ref] = field(default_factory=dict)

    def parts(self) -> Parts:
        """Return the graph as nodes, in which what is held is not yet said."""
        import torch

        results: list[Value] = []
        inputs = iter(range(len(self.call.specs)))
        for node in self.recording.graph.graph.nodes:
            found = node.meta.get("val")
            if node.op == "placeholder":
                self.values[node] = Ref(str(next(inputs)))
            elif node.op == "get_attr":
                self.literal(node)
            elif node.op == "output":
                results = [self.values[v] for v in node.args[0]]
            elif node.target is python_operator.getitem:
                self.add(node, "getitem", (self.values[node.args[0]], node.args[1]), ())
            elif isinstance(found, torch.Tensor | list | tuple):
                self.operator(node)
        self.hold_what_is_equal()
        ends = tuple(r.name for r in results if isinstance(r, Ref))
        return Parts(tuple(_needed(self.nodes, ends)), ends)

    def went_by(self) -> set[Place]:
        """Return the sizes that the recording took for numbers."""
        shapes, places = self.recording.shapes, self.recording.places
        return {places[s] for s, one in shapes.replacements.items() if s in places and one.is_number}

    def hold_what_is_equal(self) -> None:
        """Hold sizes of which the recording went on because a number follows from them, as that of equal windows.

        That they are multiples of a number it asks too: what becomes of their shares says that itself.
        """
        for guard in self.recording.shapes.guards:
            found = guard.expr
            equal = getattr(found, "rel_op", "") == "=="
            if equal and found.rhs.is_number and found.rhs != 0 and not found.lhs.is_Symbol:
                self.held |= {self.recording.places[s] for s in found.free_symbols if s in self.recording.places}

    def operator(self, node: Any) -> None:
        """Add an operator that was called."""
        schema = node.target._schema
        if schema.is_mutable or node.target.namespace != "aten":
            raise NotWritable
        names = [a.name for a in schema.arguments]
        args = tuple(self.argument(node, names[i], v) for i, v in enumerate(node.args))
        kwargs = tuple((k, self.argument(node, k, v)) for k, v in node.kwargs.items() if k not in _DROPPED)
        self.add(node, str(node.target), args, kwargs)
        if operator(str(node.target)).reshape and len(node.args) > 1:
            self.hold_numbers(node, node.args[1])

    def hold_numbers(self, node: Any, sizes: Sequence[Any]) -> None:
        """Hold the dimensions of a new shape that are numbers: at other sizes it is others that differ."""
        ref = self.values[node]
        dims = tuple(d for d, n in enumerate(sizes) if isinstance(n, int) and n > 1)
        if dims and isinstance(ref, Ref):
            name = f"held{len(self.nodes)}"
            self.nodes.append(Node(name, HELD, (ref, dims), (), self.nodes[-1].outputs))
            self.values[node] = Ref(name)

    def argument(self, node: Any, name: str, value: Any) -> Value:
        """Return one argument of a call."""
        import torch

        if isinstance(value, torch.fx.Node):
            if value in self.values:
                return self.values[value]
            value = value.meta["val"]
        if isinstance(value, list | tuple):
            return tuple(self.argument(node, name, v) for v in value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.number(node, name, value)
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        if type(value) is float and value not in self.call.args:
            return Literal(value)
        if isinstance(value, bool | int | float | str | None):
            return value
        raise NotWritable

    def number(self, node: Any, name: str, value: Any) -> Value:
        """Return a number that follows from sizes."""
        expression = self.recording.shapes.replace(value.node.expr)
        plain: int | float | bool = value.node.hint
        kind = base_name(str(node.target))
        shaped = _place_of_size(kind) is not None and name in {"size", "shape", "end"}
        if not expression.free_symbols or shaped:
            return plain
        if kind == "slice" and name in {"start", "end"}:
            size = node.args[0].meta["val"].shape[node.args[1] if len(node.args) > 1 else 0]
            behind = self.recording.shapes.replace(expression - (size if isinstance(size, int) else size.node.expr))
            if not behind.free_symbols and (behind < 0 or name == "end"):
                return None if behind >= 0 else int(behind)
        elif name in _OPERANDS and isinstance(plain, int) and (told := self.told(expression)) is not None:
            return told
        self.held |= {self.recording.places[s] for s in expression.free_symbols}
        return plain

    def told(self, expression: Any) -> Value:
        """Return an expression of sizes as operators on `sym_size`; None where it is no sum or product of these."""
        if expression.is_Symbol:
            tensor, dim = place = self.recording.places[expression]
            if place not in self.asked:
                self.asked[place] = self.whole(SIZE, (Ref(str(tensor)), dim))
            return self.asked[place]
        if expression.is_Integer:
            return int(expression)
        if not (expression.is_Add or expression.is_Mul):
            return None
        total, *others = [self.told(e) for e in sorted(expression.args, key=lambda e: bool(e.is_number))]
        for other in others:
            if total is None or other is None:
                return None
            total = self.whole(f"aten.{'add' if expression.is_Add else 'mul'}.Tensor", (total, other))
        return total

    def whole(self, op: str, args: tuple[Value, ...]) -> Ref:
        """Add an operator whose result is a whole number."""
        name = f"size{len(self.nodes)}"
        self.nodes.append(Node(name, op, args, (), (TensorSpec((), "int64"),)))
        return Ref(name)

    def literal(self, node: Any) -> None:
        """Add a tensor that the decomposition brought: a few numbers."""
        tensor = getattr(self.recording.graph, str(node.target))
        if getattr(tensor, "fake_mode", None) is not None or tensor.numel() > _LITERALS or tensor.is_complex():
            raise NotWritable
        node.meta["val"] = tensor
        self.add(node, "torch.tensor", (_nested(tensor.tolist()),), (("dtype", str(tensor.dtype)),))

    def add(self, node: Any, op: str, args: tuple[Value, ...], kwargs: tuple[tuple[str, Value], ...]) -> None:
        found = node.meta["val"]
        outputs = tuple(_spec(t) for t in (found if isinstance(found, list | tuple) else [found]))
        name = f"{base_name(op)}{len(self.nodes)}"
        self.nodes.append(Node(name, op, args, kwargs, outputs))
        self.values[node] = Ref(name)

    def with_held(self, parts: Parts) -> Parts:
        """Return the parts on tensors of which the sizes that must stay are held."""
        dims = {str(t): tuple(sorted(d for tensor, d in self.held if tensor == t)) for t, _ in sorted(self.held)}
        held = [Node(f"held{t}", HELD, (Ref(t), dims[t]), (), (self.call.specs[int(t)],)) for t in dims]
        names = {t: Ref(f"held{t}") for t in dims}
        nodes = list[Node]()
        for node in parts.nodes:
            node = renamed(node, names)
            if node.op == HELD and not node.args[1] and isinstance(source := node.args[0], Ref):
                names[node.name] = source
            else:
                nodes.append(node)
        return Parts((*held, *nodes), tuple(names[r].name if r in names else r for r in parts.results))


def _needed(nodes: Sequence[Node], results: Sequence[str]) -> list[Node]:
    """Return the nodes that the results are made of."""
    wanted, kept = set(results), list[Node]()
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            wanted.update(refs_of(node))
    return kept[::-1]


def _nested(value: Any) -> Any:
    return tuple(_nested(v) for v in value) if isinstance(value, list) else value


def _spec(tensor: Any) -> TensorSpec:
    shape = tuple(n if isinstance(n, int) else int(n.node.hint) for n in tensor.shape)
    return TensorSpec(shape, str(tensor.dtype).removeprefix("torch."))
