"""From a functional graph to readable Python: `def module_fn(x, conv_weight, conv_bias, *, stride=2)`.

Comes in: arguments, nodes, the module's own numbers (for the names of constants), and names for sizes where they are
known. Goes out: source text and the constants that became keywords. The same graph always gives the same text. Knows
nothing of tracing or running.
"""

from __future__ import annotations

import keyword
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_kernels.eval.records import Argument, Node, Ref, Scalar, ScalarArgument, TensorArgument, Value
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.ingest.graphs.graph import Functional, bind, overload, refs
from rag_kernels.ingest.graphs.named_sizes import NamedSizes
from rag_kernels.ingest.graphs.spelling import (
    ALWAYS,
    F_OTHER,
    INFIX,
    METHODS,
    OPERAND_NAMES,
    PER_AXIS,
    POSITIONAL,
    PREFIX,
    RECURRENT_ORDER,
    REDUCTIONS,
    RENAMED,
    stays_in_call,
)

Constant = Scalar | tuple[Scalar, ...]

LINE = 110
FOLLOWS = "of these sizes"
UNTOLD = "the sizes below that are numbers are those of these arguments alone"


@dataclass(frozen=True, slots=True)
class Emitted:
    """Source text, and the constants that became its keywords."""

    source: str
    constants: tuple[tuple[str, Constant], ...]


@dataclass
class _Constants:
    """Constants that become keywords, shared when name and value are equal."""

    taken: set[str]
    numbers: Mapping[str, float]
    names: dict[str, Constant] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)  # on constants that follow the sizes

    def add(self, wanted: str, value: Constant) -> str:
        name, number = wanted, 1
        while (name in self.taken or keyword.iskeyword(name)) or not _same(self.names.get(name, value), value):
            name, number = f"{wanted}_{number}", number + 1
        self.names[name] = value
        return name

    def attribute(self, value: Constant) -> str:
        """Return the module's own name for a number, when only one of its attributes has this value."""
        found = [k for k, v in self.numbers.items() if _same(v, value) and k.isidentifier()]
        return found[0] if len(found) == 1 else ""


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def emit(
    functional: Functional,
    numbers: Mapping[str, float],
    *,
    sizes: NamedSizes | None = None,
    plain: bool = False,
    remark: str = "",
) -> Emitted:
    """Write the graph as `module_fn` and list its keyword constants.

    `sizes` are written by name, where they have one, and `remark` stands at the head of the body. `plain` spells every
    call as `torch.ops.aten...`: less readable, but nothing is translated.
    """
    sizes = sizes or NamedSizes()
    constants = _Constants(names_of(functional) | {name for name, _ in sizes.heads}, numbers)
    return _Writer(functional, constants, sizes, plain).write(remark)


def names_of(functional: Functional) -> set[str]:
    """Return the names that the text has for arguments, values and packages."""
    return {a.name for a in functional.arguments} | {n.name for n in functional.nodes} | {"torch", "F"}


class _Writer:
    def __init__(self, functional: Functional, constants: _Constants, sizes: NamedSizes, plain: bool) -> None:
        self.functional, self.constants, self.sizes, self.plain = functional, constants, sizes, plain
        self.device = next((a.name for a in functional.arguments if isinstance(a, TensorArgument)), "")
        self.items: dict[str, dict[int, str]] = {}  # multi-output node -> index -> name of its getitem
        for node in functional.nodes:
            if node.op == "getitem" and isinstance(node.args[0], Ref) and isinstance(node.args[1], int):
                self.items.setdefault(node.args[0].name, {})[node.args[1]] = node.name

    def write(self, remark: str) -> Emitted:
        used = {r for n in self.functional.nodes if n.op != "getitem" for v in _values(n) for r in refs(v)}
        used |= set(self.functional.results)
        # A getitem is written where its source is unpacked.
        body = [
            line
            for n in self.functional.nodes
            if n.op != "getitem"
            for line in (*([f"# {UNTOLD}"] if n.name in self.sizes.untold else []), self._statement(n, n.name in used))
        ]
        begins = [*_guards(self.functional.arguments), *_heads(self.sizes.heads), *([f"# {remark}"] if remark else [])]
        body = [*begins, *body, f"return {', '.join(self.functional.results)}"]
        lines = [*self._signature(), *(wrapped for line in body for wrapped in _wrapped(f"    {line}"))]
        functions = any("F." in line for line in body)
        header = ["import torch", *(["import torch.nn.functional as F"] if functions else []), "", ""]
        return Emitted("\n".join([*header, *lines]) + "\n", tuple(self.constants.names.items()))

    def _signature(self) -> list[str]:
        arguments = [f"    {a.name},  # {_describe(a)}" for a in self.functional.arguments]
        remarks = {name: f"  # {remark}" for name, remark in self.constants.remarks.items()}
        constants = [
            f"    {name}={_literal(value)},{remarks.get(name, '')}" for name, value in self.constants.names.items()
        ]
        return ["def module_fn(", *arguments, *(["    *,", *constants] if constants else []), "):"]

    def _statement(self, node: Node, whole: bool) -> str:
        expression = self._expression(node)
        items = self.items.get(node.name, {})
        if not items:
            return f"{node.name} = {expression}"
        if len(items) == 1 and not whole:
            ((index, name),) = items.items()
            return f"{name} = {_indexable(expression)}[{index}]"
        returned = len(overload(node.op)._schema.returns) if node.op.startswith("aten.") else 1  # None among them too
        count = max(len(node.outputs), max(items) + 1, returned)
        names = ", ".join(items.get(i, "_") for i in range(count))
        if not whole:
            return f"{names}{',' if count == 1 else ''} = {expression}"
        return f"{node.name} = {expression}; {names} = {node.name}"

    def _expression(self, node: Node) -> str:
        if node.op.startswith("aten.") and (self.plain or base_name(node.op).endswith("_backward")):  # not in Python
            return f"torch.ops.{node.op}({', '.join(self._arguments(node))})"
        if node.op == "torch.tensor":
            dtype = dict(node.kwargs)["dtype"]
            return f"torch.tensor({_listed(node.args[0])}, dtype={dtype}{self._on_device()})"
        name = base_name(node.op)
        bound = self._bound(node, name)
        special = getattr(self, f"_write_{name}", None)
        if special is not None:
            return str(special(bound))
        if name in PREFIX:
            return f"{PREFIX[name]}{bound['self']}"
        if name in INFIX and set(bound) <= {"self", "other", "exponent"} and len(bound) == 2:
            left, right = bound.values()
            return f"{left} {INFIX[name]} {right}"
        if name in F_OTHER:
            function, order = F_OTHER[name]
            return f"{function}({_joined([(shown, bound[arg]) for arg, shown in order if arg in bound])})"
        return self._call(node, name, bound)

    def _arguments(self, node: Node) -> list[str]:
        """Return the call as it was recorded, with no constant made a keyword."""
        keywords = [f"{name}={self._plain(value)}" for name, value in node.kwargs]
        on_device = [self._on_device().removeprefix(", ")] if operator(node.op).names_device else []
        return [*map(self._plain, node.args), *keywords, *on_device]

    def _call(self, node: Node, name: str, bound: dict[str, str]) -> str:
        import torch

        first, rest = (next(iter(bound), ""), dict(list(bound.items())[1:])) if bound else ("", {})
        if name in METHODS and first == "self":
            return f"{bound['self']}.{METHODS[name]}({', '.join(rest.values())})"
        pairs = self._positional(node, bound)
        if operator(name).in_functional:
            return f"F.{name}({_joined(pairs)})"
        if operator(name).names_device:
            return f"torch.{name}({_joined(pairs)}{self._on_device()})"
        if hasattr(torch, name):
            return f"torch.{name}({_joined(pairs)})"
        if hasattr(torch.linalg, name.removeprefix("linalg_")) and name.startswith("linalg_"):
            return f"torch.linalg.{name.removeprefix('linalg_')}({_joined(pairs)})"
        return f"torch.ops.{node.op}({_joined(pairs)})"

    def _positional(self, node: Node, bound: dict[str, str]) -> list[tuple[str, str]]:
        """Return tensors that come first stay positional, everything else is named."""
        pairs: list[tuple[str, str]] = []
        named = False
        for argument in overload(node.op)._schema.arguments:
            if argument.name not in bound:
                named = True
                continue
            positional = "Tensor" in str(argument.type) or argument.name in POSITIONAL
            named = named or not positional or argument.kwarg_only
            pairs.append((argument.name if named else "", bound[argument.name]))
        return pairs

    def _on_device(self) -> str:
        return f", device={self.device}.device" if self.device else ""

    def _bound(self, node: Node, name: str) -> dict[str, str]:
        """Return the arguments that differ from their defaults, as text, with constants made keywords."""
        texts: dict[str, str] = {}
        given = bind(node)
        schema = overload(node.op)._schema.arguments
        shown = {arg for arg, _ in F_OTHER[name][1]} if name in F_OTHER else {a.name for a in schema}
        for argument in schema:
            value = given.get(argument.name, argument.default_value if argument.name in ALWAYS else None)
            if argument.name not in shown or (argument.name not in given and value is None):
                continue
            if argument.name == "reduction" and isinstance(value, int):
                if value != 1:
                    texts["reduction"] = _literal(REDUCTIONS[value])
                continue
            default = argument.default_value if argument.has_default_value() else ...
            if argument.name not in ALWAYS and default is not ... and _equal(value, default):
                continue
            texts[argument.name] = self._text(node, name, argument.name, value)
        return texts

    def _text(self, node: Node, op: str, argument: str, value: Value) -> str:
        value = _collapsed(argument, value)
        if (texts := self.sizes.of(node, argument)) is not None:
            several = isinstance(value, tuple)
            return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})" if several else texts[0]
        if stays_in_call(op, argument) or not _is_number(value):
            return self._plain(value)
        wanted = RENAMED.get(argument, argument)
        if argument in {"other", "self", "exponent", "value", "alpha", "beta"} or argument in RENAMED:
            own = self.constants.attribute(value) if argument != "dim" else ""  # type: ignore[arg-type]
            trivial = argument in {"other", "self", "exponent"} and value in (-2, -1, 0, 1, 2)
            if not own and (trivial or (isinstance(value, float) and not math.isfinite(value))):
                return self._plain(value)
            wanted = own or (OPERAND_NAMES.get(op, wanted) if argument in {"other", "self", "exponent"} else wanted)
        constant = self.constants.add(wanted, value)  # type: ignore[arg-type]
        if (follows := self.sizes.constants.get((node.name, argument))) is not None:
            self.constants.remarks[constant] = follows or FOLLOWS
        return constant

    def _plain(self, value: Value) -> str:
        if isinstance(value, Ref):
            return value.name
        if isinstance(value, tuple):
            if any(refs(v) for v in value) or not value:
                return f"[{', '.join(self._plain(v) for v in value)}]"
            return f"({', '.join(self._plain(v) for v in value)}{',' if len(value) == 1 else ''})"
        return _literal(value)

    def _write_rsub(self, bound: dict[str, str]) -> str:
        return f"{bound['other']} - {bound['self']}"

    def _write_select(self, bound: dict[str, str]) -> str:
        return f"{bound['self']}[{_colons(int(bound.get('dim', 0)))}{bound['index']}]"

    def _write_slice(self, bound: dict[str, str]) -> str:
        start, end, step = bound.get("start", ""), bound.get("end", ""), bound.get("step", "")
        start = "" if start in ("None", "0") else start
        end = "" if end == "None" or (end.isdigit() and int(end) > 1 << 40) else end
        span = f"{start}:{end}" + (f":{step}" if step else "")
        return f"{bound['self']}[{_colons(int(bound.get('dim', 0)))}{span}]"

    def _write_index(self, bound: dict[str, str]) -> str:
        indices = bound["indices"].strip("[]()").rstrip(",").replace("None", ":")
        return f"{bound['self']}[{indices}]"

    def _write_einsum(self, bound: dict[str, str]) -> str:
        return f"torch.einsum({bound['equation']}, {bound['tensors'].strip('[]')})"

    def _write_broadcast_tensors(self, bound: dict[str, str]) -> str:
        return f"torch.broadcast_tensors({bound['tensors'].strip('[]')})"

    def _write_stft(self, bound: dict[str, str]) -> str:
        """Write `torch.stft`, whose padding of its own stands in the graph already."""
        rest = [(name, text) for name, text in bound.items() if name not in {"self", "n_fft", "center", "pad_mode"}]
        return f"torch.stft({bound['self']}, {bound['n_fft']}, {_joined([*rest, ('center', 'False')])})"

    def _write_lstm(self, bound: dict[str, str]) -> str:
        return self._recurrent("lstm", bound)

    def _write_gru(self, bound: dict[str, str]) -> str:
        return self._recurrent("gru", bound)

    def _recurrent(self, name: str, bound: dict[str, str]) -> str:
        return f"torch.{name}({', '.join(bound[argument] for argument in RECURRENT_ORDER)})"


def _heads(heads: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the statement that reads sizes from the shapes of arguments."""
    names, places = (", ".join(column) for column in zip(*heads, strict=True)) if heads else ("", "")
    return [f"{names} = {places}"] if heads else []


def _guards(arguments: tuple[Argument, ...]) -> list[str]:
    """Return statements that refuse other values of the Python arguments than those of the recording."""
    return [
        f'assert {a.name} == {_literal(a.value)}, "recorded for {a.name}={a.value}"'
        for a in arguments
        if isinstance(a, ScalarArgument)
    ]


def _wrapped(line: str) -> list[str]:
    """Break a long line; a line with a string in it stays as it is. Breaks outside parentheses get a backslash."""
    if len(line) <= LINE or '"' in line:
        return [line]
    parts = textwrap.wrap(line, LINE - 2, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)
    depth = 0
    for i, part in enumerate(parts[:-1]):
        depth += sum(part.count(c) for c in "([{") - sum(part.count(c) for c in ")]}")
        parts[i] = part if depth else f"{part} \\"
    return parts


def _values(node: Node) -> list[Value]:
    return [*node.args, *(v for _, v in node.kwargs)]


def _colons(dim: int) -> str:
    """Return the part of a subscript before dimension `dim`."""
    return ":, " * dim


def _describe(argument: Argument) -> str:
    if isinstance(argument, ScalarArgument):
        return f"{type(argument.value).__name__}"
    return f"{argument.spec.dtype}[{', '.join(map(str, argument.spec.shape))}]"


def _indexable(expression: str) -> str:
    return expression if expression.endswith(")") else f"({expression})"


def _joined(pairs: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={text}" if name else text for name, text in pairs)


def _listed(value: Any) -> str:
    return f"[{', '.join(map(_listed, value))}]" if isinstance(value, tuple) else _literal(value)


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        return value if value.startswith("torch.") else f'"{value}"'
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_is_number(v) for v in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _collapsed(argument: str, value: Value) -> Value:
    """Return one number for a tuple of equal sizes per axis, and other values as they are."""
    if argument in PER_AXIS and isinstance(value, tuple) and len(set(value)) == 1:
        return value[0]
    if argument == "dim" and isinstance(value, tuple) and len(value) == 1:
        return value[0]
    return value


def _equal(value: Any, default: Any) -> bool:
    if isinstance(value, bool) != isinstance(default, bool):
        return False
    if isinstance(value, tuple):
        return list(value) == list(default) if isinstance(default, list | tuple) else False
    return bool(value == default) if not isinstance(value, Ref) else False
