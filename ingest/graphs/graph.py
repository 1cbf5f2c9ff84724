"""A recorded graph made functional: in-place calls become values, calls that change nothing go away.

Comes in: a `Trace`. Goes out: a `Functional`: nodes as plain records, the arguments that are still used, and the
names of the buffers that the forward updates. Runs in the child process. Knows nothing of Python source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from rag_kernels.eval.errors import Internal
from rag_kernels.eval.records import (
    Argument,
    Node,
    ProblemError,
    Ref,
    ScalarArgument,
    TensorArgument,
    TensorSpec,
    Value,
)
from rag_kernels.eval.traits.aten import operator
from rag_kernels.ingest.graphs.recording import RESERVED, Trace, spec_of, untangled

_LITERAL_ELEMENTS = 64
_BELOW_AUTOGRAD = frozenset({"convolution", "_softmax", "_log_softmax"})
_DROPPED_KWARGS = {"layout", "pin_memory", "memory_format", "non_blocking", "device", "copy"}

SHIFTS = {"__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift"}  # whose overloads have other names


@dataclass(frozen=True, slots=True)
class Functional:
    """A graph of pure calls."""

    arguments: tuple[Argument, ...]
    nodes: tuple[Node, ...]
    results: tuple[str, ...]
    mutated: tuple[str, ...]
    written: tuple[str, ...]  # leaves of the inputs that the forward changes in place
    uses_random: bool


def _walked(name: str, trace: Trace) -> _Walk:
    walk = _Walk(name, trace)
    for order, node in enumerate(trace.graph.graph.nodes):
        node.meta["order"] = order
    for node in trace.graph.graph.nodes:
        walk.visit(node)
    return walk


class NeedsFunctionalization(Internal):
    """The graph writes through a view; only torch's own functionalization can untangle that."""


def functional(name: str, trace: Trace) -> Functional:
    """Return the graph of a trace made functional, without what does not reach its outputs.

    Raises ProblemError for a forward that cannot be made functional, and NeedsFunctionalization for writes through
    views.
    """
    try:
        walk = _walked(name, trace)
    except NeedsFunctionalization:
        try:
            walk = _walked(name, replace(trace, graph=untangled(trace.graph)))
        except NeedsFunctionalization as error:
            raise ProblemError(
                f"{name}: the forward changes tensors in place in a way that has no functional form here ({error}); "
                "write it with operators that return new tensors."
            ) from error
    nodes = _live(walk.nodes, walk.results)
    used = {r for n in nodes for v in (*n.args, *(v for _, v in n.kwargs)) for r in refs(v)} | set(walk.results)
    arguments = tuple(
        a
        for a in trace.arguments
        if (_is_number(a) if isinstance(a, ScalarArgument) else a.role == "input" or a.name in used)
    )
    mutated = tuple(sorted({*walk.mutated, *trace.reassigned}))
    written = tuple(sorted(walk.written, key=int))
    return Functional(arguments, nodes, tuple(walk.results), mutated, written, any(is_random(n) for n in nodes))


def refs(value: Value) -> list[str]:
    """Return the names that a value refers to, in order."""
    if isinstance(value, Ref):
        return [value.name]
    return [r for v in value for r in refs(v)] if isinstance(value, tuple) else []


def overload(op: str) -> Any:
    """Return the operator of a name such as `aten.add.Tensor`."""
    _, name, variant = op.split(".")
    return getattr(getattr(torch.ops.aten, name), variant)


def bind(node: Node) -> dict[str, Value]:
    """Return the node's arguments by the names of the operator's schema, without defaults."""
    schema = overload(node.op)._schema.arguments
    return {a.name: v for a, v in zip(schema, node.args, strict=False)} | dict(node.kwargs)


def is_random(node: Node) -> bool:
    """Return whether this call draws random numbers.

    Dropout inside an operator counts only when its rate is not zero.
    """
    if not node.op.startswith("aten."):
        return False
    if flags := operator(node.op).random_if:
        given = bind(node)
        return all(given.get(flag) for flag in flags)
    return torch.Tag.nondeterministic_seeded in overload(node.op).tags


def _live(nodes: list[Node], results: list[str]) -> tuple[Node, ...]:
    """Drop calls whose results nobody uses.

    Where one of the others is random, all random ones stay, because they advance the generator.
    """
    needed = _reaching(nodes, results, set())
    if not any(is_random(node) for node in needed):
        return needed
    return _reaching(nodes, results, {node.name for node in nodes if is_random(node)})


def _reaching(nodes: list[Node], results: list[str], also: set[str]) -> tuple[Node, ...]:
    """Return the calls that lead to the results, or to those named in `also`."""
    wanted, kept = set(results) | also, []
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            for value in (*node.args, *(v for _, v in node.kwargs)):
                wanted.update(refs(value))
    return tuple(reversed(kept))


class _Walk:
    """One pass over the recorded graph, in order, that knows what every recorded value has become."""

    def __init__(self, name: str, trace: Trace) -> None:
        self.name, self.trace = name, trace
        self.nodes: list[Node] = []
        self.results: list[str] = []
        self.mutated: set[str] = set()
        self.written: set[str] = set()
        self.value: dict[fx.Node, Value] = {}
        self.sharing: dict[int, list[fx.Node]] = {}  # recorded values by storage
        self.owner: dict[int, str] = {}  # paths of state tensors by storage
        self.given: dict[int, str] = {}  # leaves of the inputs by storage
        self.specs: dict[str, tuple[TensorSpec, ...]] = {}
        self.pending = iter(trace.placeholders)
        tensors = [a for a in trace.arguments if isinstance(a, TensorArgument)]
        self.path = {a.name: a.path for a in tensors if a.role != "input"}
        self.leaf = {a.name: a.path for a in tensors if a.role == "input"}
        self.taken = {a.name for a in trace.arguments} | RESERVED

    def visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            name = next(self.pending)
            self.value[node] = Ref(name)
            self.specs[name] = (spec_of(node.meta["val"]),)
            if name in self.path:
                self.owner[_storage(node)] = self.path[name]
            else:
                self.given[_storage(node)] = self.leaf[name]
        elif node.op == "get_attr":
            self._literal(node)
        elif node.op == "output":
            self._return(node.args[0])  # type: ignore[arg-type]
        elif node.target is getitem:
            self._getitem(node)
        elif isinstance(node.target, OpOverload):
            if _makes_tensors(node):
                self._call(node, node.target)
        elif getattr(node.target, "__name__", "") != "_set_grad_enabled":
            raise ProblemError(f"{self.name}: the forward calls {node.target}, which has no functional form here.")
        if isinstance(node.meta.get("val"), Tensor):
            self.sharing.setdefault(_storage(node), []).append(node)

    def _return(self, returned: Sequence[Any]) -> None:
        """Note the results: a copy of an argument, or of a result before it, stays a tensor of its own."""
        lies: dict[str, int] = {}
        for node in returned:
            name, place = self._result(node), _storage(node)
            given = not any(name == n.name for n in self.nodes)
            copied = given and place not in self.given and place not in self.owner
            if copied or lies.get(name, place) != place:
                name = self._add(node, "aten.clone.default", (Ref(name),), {}).name
            lies[name] = place
            self.results.append(name)

    def _result(self, returned: Any) -> str:
        value = self._convert(returned)
        if not isinstance(value, Ref):
            raise ProblemError(f"{self.name}: the forward returns a constant; it must return computed tensors.")
        return value.name

    def _literal(self, node: fx.Node) -> None:
        tensor = getattr(self.trace.graph, str(node.target))
        if getattr(tensor, "fake_mode", None) is not None or tensor.numel() > _LITERAL_ELEMENTS:
            raise ProblemError(
                f"{self.name}: the forward uses a tensor of shape {tuple(tensor.shape)} that the module does not own; "
                "make it a buffer with register_buffer, so that it can be passed to a kernel."
            )
        node.meta["val"] = tensor
        if tensor.is_complex():
            parts = (tensor.real, tensor.imag)
            re, im = (self._made("part", "torch.tensor", (_nested(p.tolist()),), spec_of(p)) for p in parts)
            self._add(node, "aten.complex.default", (re, im), {})
        else:
            self._add(node, "torch.tensor", (_nested(tensor.tolist()),), {"dtype": str(tensor.dtype)})

    def _getitem(self, node: fx.Node) -> None:
        source, index = self.value[node.args[0]], node.args[1]  # type: ignore[index]
        self.value[node] = source[index] if isinstance(source, tuple) else source  # type: ignore[index]
        if isinstance(source, Ref) and isinstance(index, int):
            self._add(node, "getitem", (source, index), {}, wanted=self._item_name(node, source, index))

    def _item_name(self, node: fx.Node, source: Ref, index: int) -> str:
        """Return `values`, `indices`... as the operator names its results, or `split_0`, `split_1`."""
        op = node.args[0].target  # type: ignore[union-attr]
        returns = op._schema.returns if isinstance(op, OpOverload) else []
        own = returns[index].name if index < len(returns) else None
        return str(own or f"{source.name}_{index}")

    def _call(self, node: fx.Node, op: OpOverload) -> None:
        args = tuple(self._argument(node, op, n, a) for n, a in enumerate(node.args))
        kwargs = {k: self._convert(v) for k, v in node.kwargs.items() if k not in _DROPPED_KWARGS}
        name = op._schema.name.removeprefix("aten::")
        known = operator(name)
        if op.namespace != "aten":
            raise ProblemError(f"{self.name}: the forward calls {op}, an operator from outside PyTorch.")
        if known.effect_only:
            return
        if op._schema.is_mutable:
            self._inplace(node, op, name, args, kwargs)
        elif known.same_value or self._changes_nothing(node, name, args):
            self.value[node] = args[0]
        elif known.cast:
            self._add(node, "aten.to.dtype", (args[0], str(node.meta["val"].dtype)), {})
        elif _is_transpose(known.transposes, node.meta["val"]):
            self._add(node, "aten.transpose.int", (args[0], 0, 1), {})
        elif _is_full(op) and isinstance(args[1], Ref):
            self._add(node, "aten.expand.default", (args[1], args[0]), {})
        elif name == "view" and op._overloadname == "dtype":
            self._add(node, "aten.view.dtype", (args[0], str(node.meta["val"].dtype)), {})
        elif known.reshape or _reshapes(node, name):
            self._add(node, "aten.reshape.default", (args[0], tuple(node.meta["val"].shape)), {})
        elif name in _BELOW_AUTOGRAD:
            self._add(node, *_as_written(name, args, len(node.meta["val"].shape) - 2), {})
        else:
            args = self._without_statistics(node, op, name, args)
            self._add(node, f"aten.{_canonical(name, op._overloadname)}", args, kwargs)

    def _changes_nothing(self, node: fx.Node, name: str, args: tuple[Value, ...]) -> bool:
        if operator(name).dropout:
            return _is_idle_dropout(args)
        result = node.meta.get("val")
        if not isinstance(result, Tensor) or not args or not isinstance(args[0], Ref):
            return False
        same_shape = self.specs[args[0].name] == (spec_of(result),)
        if name == "slice":
            start, step = (args[2] if len(args) > 2 else 0), (args[4] if len(args) > 4 else 1)
            return same_shape and start in (0, None) and step == 1
        return same_shape and operator(name).idle_if_same

    def _without_statistics(
        self, node: fx.Node, op: OpOverload, name: str, args: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Leave out running statistics in train mode: they are updated, not read, so they are not passed."""
        flag = {"batch_norm": "training", "instance_norm": "use_input_stats"}.get(name)
        names = [a.name for a in op._schema.arguments]
        if flag is None or not args[names.index(flag)]:
            return args
        new = list(args)
        for statistic in ("running_mean", "running_var"):
            i = names.index(statistic)
            if isinstance(new[i], Ref):
                self._note_mutation(node.args[i])
                new[i] = None
        return tuple(new)

    def _note_mutation(self, target: Any) -> None:
        if isinstance(target, fx.Node) and _storage(target) in self.owner:
            self.mutated.add(self.owner[_storage(target)])
        if isinstance(target, fx.Node) and _storage(target) in self.given:
            self.written.add(self.given[_storage(target)])

    def _inplace(
        self, node: fx.Node, op: OpOverload, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> None:
        target = node.args[0]
        if not name.endswith("_") or not isinstance(target, fx.Node):
            raise NeedsFunctionalization(str(op))
        self._note_mutation(target)
        shared = [n for n in self.sharing.get(_storage(target), []) if _last_use(n) > _index(node) or n is target]
        if any(not _same_view(n, target) for n in shared):
            raise NeedsFunctionalization(str(op))
        new: Value
        if name == "detach_":
            new = args[0]
        elif name == "copy_":
            new = self._cast(node, args[1], spec_of(target.meta["val"]))
        else:
            left = operator(name).leaves
            functional_name, variant = (left, "default") if left else (name.removesuffix("_"), op._overloadname)
            packet = getattr(torch.ops.aten, functional_name, None)
            if packet is None or variant not in packet.overloads():
                raise NeedsFunctionalization(str(op))
            if operator(functional_name).dropout and _is_idle_dropout(args):
                new = args[0]
            else:
                new = self._add(node, f"aten.{functional_name}.{variant}", args, kwargs)
        for n in (*shared, node):
            self.value[n] = new

    def _cast(self, node: fx.Node, source: Value, wanted: TensorSpec) -> Value:
        if not isinstance(source, Ref):
            raise NeedsFunctionalization(str(node.target))
        (spec,) = self.specs[source.name]
        if spec.dtype != wanted.dtype:
            source = self._add(node, "aten.to.dtype", (source, f"torch.{wanted.dtype}"), {}, spec.shape)
        if spec.shape != wanted.shape:
            source = self._add(node, "aten.expand.default", (source, wanted.shape), {})
        return source

    def _convert(self, value: Any) -> Value:
        if isinstance(value, fx.Node):
            return self.value[value]
        if isinstance(value, list | tuple):
            return tuple(self._convert(v) for v in value)
        if isinstance(value, bool | int | float | str | None):
            return value
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        if isinstance(value, torch.device):
            return value.type
        if isinstance(value, complex):
            told = f"an operator takes the number {value} as no operand; write it with torch.complex, of two tensors."
            raise ProblemError(f"{self.name}: {told}")
        raise ProblemError(f"{self.name}: an operator takes a {type(value).__name__}, which cannot be written down.")

    def _argument(self, node: fx.Node, op: OpOverload, place: int, value: Any) -> Value:
        """Return an argument; a complex number where a tensor may stand, or in `full`, as one."""
        if isinstance(value, complex) and (op._schema.arguments[place].type.kind() == "TensorType" or _is_full(op)):
            return self._number(node, value)
        return self._convert(value)

    def _number(self, node: fx.Node, value: complex) -> Ref:
        """Return a complex number as a tensor made of its parts, as wide as the tensors beside it: it widens none."""
        beside = [n.meta["val"] for n in (node, *node.all_input_nodes)]
        wide = any(isinstance(t, Tensor) and t.dtype in {torch.float64, torch.complex128} for t in beside)
        part = TensorSpec((), "float64" if wide else "float32")
        re, im = (self._made("part", "torch.tensor", (number,), part) for number in (value.real, value.imag))
        whole = TensorSpec((), "complex128" if wide else "complex64")
        return self._made("number", "aten.complex.default", (re, im), whole)

    def _made(self, wanted: str, op: str, args: tuple[Value, ...], spec: TensorSpec) -> Ref:
        """Add an operator that was not recorded."""
        kwargs = (("dtype", f"torch.{spec.dtype}"),) if op == "torch.tensor" else ()
        name = self._fresh(wanted)
        self.nodes.append(Node(name, op, args, kwargs, (spec,)))
        self.specs[name] = (spec,)
        return Ref(name)

    def _add(
        self,
        node: fx.Node,
        op: str,
        args: tuple[Value, ...],
        kwargs: dict[str, Value],
        shape: tuple[int, ...] | None = None,
        wanted: str = "",
    ) -> Ref:
        name = self._fresh(wanted or node.name.strip("_").removesuffix("_default") or "value")
        result = node.meta.get("val")
        tensors = result if isinstance(result, list | tuple) else [result]
        specs = tuple(spec_of(t) for t in tensors if isinstance(t, Tensor))
        if shape is not None:
            specs = (TensorSpec(shape, str(args[1]).removeprefix("torch.")),)
        self.nodes.append(Node(name, op, args, tuple(kwargs.items()), specs))
        self.specs[name] = specs
        self.value[node] = Ref(name)
        return Ref(name)

    def _fresh(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self.taken:
            candidate, number = f"{name}_{number}", number + 1
        self.taken.add(candidate)
        return candidate


def _as_written(name: str, args: tuple[Value, ...], axes: int) -> tuple[str, tuple[Value, ...]]:
    """Return the call of which this is the form below autograd, where gradients are recorded."""
    if name != "convolution":
        return f"aten.{name.removeprefix('_')}.int", args[:2]
    data, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    if transposed:
        order = (data, weight, bias, stride, padding, output_padding, groups, dilation)
        return f"aten.conv_transpose{axes}d.{'default' if axes == 1 else 'input'}", order
    return f"aten.conv{axes}d.default", (data, weight, bias, stride, padding, dilation, groups)


def _canonical(name: str, variant: str) -> str:
    """Return one name for operators that have several."""
    known = operator(name)
    renamed = known.alias_of and not known.keeps_name
    if name in SHIFTS:
        return f"{SHIFTS[name]}.{variant.replace('Scalar', 'Tensor_Scalar')}"
    return f"{known.alias_of if renamed else name}.{variant}"


def _is_number(argument: ScalarArgument) -> bool:
    """Return whether a constant is an argument: no kernel takes None and strings, which the recording has followed."""
    return isinstance(argument.value, bool | int | float)


def _is_idle_dropout(args: tuple[Value, ...]) -> bool:
    return args[1] == 0 or args[2] is False


def _is_full(op: OpOverload) -> bool:
    return op._schema.name == "aten::full"


def _nested(value: Any) -> Any:
    return tuple(_nested(v) for v in value) if isinstance(value, list) else value


def _makes_tensors(node: fx.Node) -> bool:
    """Return whether a call made a tensor or wrote one: what it told Python, the recording has followed."""
    return isinstance(node.meta.get("val"), Tensor | list | tuple) or node.target._schema.is_mutable  # type: ignore[union-attr]


def _storage(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _is_transpose(transposes: str, value: torch.Tensor) -> bool:
    """Return whether an operator swaps the two dimensions of a matrix, and does no more: an adjoint conjugates too."""
    if transposes not in {"matrix", "adjoint"} or value.dim() != 2:
        return False
    return transposes == "matrix" or not value.is_complex()


def _reshapes(node: fx.Node, name: str) -> bool:
    """Return whether a view by strides is the whole of its operand, in order."""
    operand, result = getattr(node.args[0], "meta", {}).get("val"), node.meta.get("val")
    if name != "as_strided" or not isinstance(operand, Tensor) or not isinstance(result, Tensor):
        return False
    same = operand.numel() == result.numel() and operand.storage_offset() == result.storage_offset()
    return same and operand.is_contiguous() and result.is_contiguous()


def _same_view(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    return bool(x.shape == y.shape and x.stride() == y.stride() and x.storage_offset() == y.storage_offset())


def _index(node: fx.Node) -> int:
    return int(node.meta["order"])


def _last_use(node: fx.Node) -> int:
    return max((_index(user) for user in node.users), default=-1)
