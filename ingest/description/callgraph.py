"""The operators that a PyTorch source calls, and which feeds which, read from its text alone.

Comes in: Python that defines `module_fn` (or `forward`, also of an `nn.Module` with simple attributes). Goes out:
the steps of its dataflow in order, views looked through, with idioms such as `x * sigmoid(x)` named. It parses
and never runs the source; it knows nothing of descriptions, models or archives.
"""

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from rag_kernels.ingest.description.vocabulary import family, is_known, operator

BINARY = {"Add": "add", "Sub": "sub", "Mult": "mul", "Div": "div", "FloorDiv": "div", "Pow": "pow", "MatMult": "matmul"}
MARKS = {"groups": "grouped", "dilation": "dilated", "stride": "strided", "is_causal": "causal"}
MARKED = frozenset({"conv", "conv_transpose", "attention"})


@dataclass(frozen=True, slots=True)
class Step:
    """One operator call; `inputs` are numbers of earlier steps, or names of arguments.

    `marks` say what changes the shape of a kernel for it: `grouped`, `dilated`, `strided`, `causal`.
    """

    op: str
    inputs: tuple[int | str, ...]
    marks: tuple[str, ...] = ()


Source = int | str | None  # the step or argument that an expression stands for; None for a constant


def steps(source: str) -> tuple[Step, ...]:
    """Return the operator calls of the source in dataflow order; none when it does not parse or calls nothing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    functions = list(_functions(tree.body))
    named = {function.name: function for function in functions}
    body = named.get("module_fn") or named.get("forward") or (functions[-1] if functions else None)
    if body is None:
        return ()
    reader = _Reader(_layers(named.get("__init__")), _defaults(body.args))
    for argument in (*body.args.posonlyargs, *body.args.args):
        if argument.arg != "self":
            reader.values[argument.arg] = argument.arg
    reader.block(body.body)
    return tuple(reader.steps)


def idioms(graph: tuple[Step, ...]) -> tuple[str, ...]:
    """Name the operators that are spelled out in simpler ones, such as `silu` for `x * sigmoid(x)`."""
    found = (_idiom(graph, number) for number in range(len(graph)))
    return tuple(dict.fromkeys(name for name in found if name))


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Yield functions, the outer ones first: statements alone are looked at, which are few beside their expressions."""
    while body:
        yield from (node for node in body if isinstance(node, ast.FunctionDef))
        body = [inner for node in body for part in ("body", "orelse") for inner in getattr(node, part, ())]


def _layers(init: ast.FunctionDef | None) -> dict[str, str]:
    """Return `self.conv = nn.Conv2d(...)` in a constructor: attribute -> class name."""
    layers: dict[str, str] = {}
    for node in ast.walk(init) if init else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target, made = node.targets[0], node.value.func
            if isinstance(target, ast.Attribute) and isinstance(made, ast.Attribute | ast.Name):
                layers[target.attr] = made.attr if isinstance(made, ast.Attribute) else made.id
    return layers


def _defaults(arguments: ast.arguments) -> dict[str, ast.expr]:
    """Return the keyword constants of a functional form."""
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: value for argument, value in pairs if value is not None}


class _Reader:
    """Walks statements and expressions, and collects steps."""

    def __init__(self, layers: dict[str, str], defaults: dict[str, ast.expr]) -> None:
        self.layers = layers
        self.defaults = defaults
        self.values: dict[str, Source] = {}
        self.steps: list[Step] = []

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.Assign):
                self.assign(statement.targets[0], statement.value)
            elif isinstance(statement, ast.AugAssign):
                op = BINARY.get(type(statement.op).__name__)
                value = self.emit(op, [self.read(statement.target), self.read(statement.value)]) if op else None
                self.bind(statement.target, value)
            elif isinstance(statement, ast.Return | ast.Expr) and statement.value is not None:
                self.read(statement.value)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self.bind(statement.target, self.read(statement.value))
            elif isinstance(statement, ast.If | ast.For | ast.While | ast.With):
                self.block(statement.body)
                self.block(getattr(statement, "orelse", []))

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for name, source in zip(target.elts, [self.read(item) for item in value.elts], strict=True):
                self.bind(name, source)
        else:
            self.bind(target, self.read(value))

    def bind(self, target: ast.expr, source: Source) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = source
        elif isinstance(target, ast.Tuple | ast.List):
            for item in target.elts:
                self.bind(item, source)

    def emit(self, op: str | None, inputs: list[Source], marks: tuple[str, ...] = ()) -> Source:
        """Add a step; a view, or arithmetic on constants alone, adds none."""
        known = tuple(dict.fromkeys(source for source in inputs if source is not None))
        if op is None or not known:
            return known[0] if known else None
        self.steps.append(Step(op, known, marks))
        return len(self.steps) - 1

    def read(self, node: ast.expr | None) -> Source:
        """Return the step or argument that an expression stands for, after adding the steps inside it."""
        match node:
            case ast.Name():
                return self.values.get(node.id)
            case ast.BinOp():
                op = BINARY.get(type(node.op).__name__, "other")
                return self.emit(op, [self.read(node.left), self.read(node.right)])
            case ast.UnaryOp():
                return self.emit("neg" if isinstance(node.op, ast.USub) else None, [self.read(node.operand)])
            case ast.Compare():
                return self.emit("compare", [self.read(node.left), *(self.read(item) for item in node.comparators)])
            case ast.Call():
                return self.call(node)
            case ast.Attribute(attr="shape"):
                return None  # a size is no value
            case ast.Attribute():
                receiver = self.read(node.value)
                return self.emit("transpose", [receiver]) if node.attr in {"T", "mT"} else receiver
            case ast.Subscript():
                return self.read(node.value)
            case ast.Tuple() | ast.List():
                read = [self.read(item) for item in node.elts]
                return next((source for source in read if source is not None), None)
            case ast.IfExp():
                return self.read(node.body)
            case _:
                return None

    def call(self, node: ast.Call) -> Source:
        receiver = self.read(node.func.value) if isinstance(node.func, ast.Attribute) else None
        inputs = [receiver]
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            items = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
            inputs += [self.read(item) for item in items]
        name = self.called(node.func)
        op = operator(name) if name else None
        return self.emit(op, inputs, self.marks(node) if op and family(op) in MARKED else ())

    def marks(self, node: ast.Call) -> tuple[str, ...]:
        """Return keywords with a value other than 1 or False; a name is looked up among the keyword constants."""
        told: list[str] = []
        for keyword in node.keywords:
            value = self.defaults.get(keyword.value.id) if isinstance(keyword.value, ast.Name) else keyword.value
            items = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
            plain = all(isinstance(item, ast.Constant) and item.value in (1, False) for item in items)
            if keyword.arg in MARKS and not plain:
                told.append(MARKS[keyword.arg])
        return tuple(told)

    def called(self, func: ast.expr) -> str | None:
        """Return the operator's name in `F.relu`, `x.relu`, `torch.ops.aten.relu.default` or `self.act`, or None."""
        chain: list[str] = []
        while isinstance(func, ast.Attribute):
            chain.insert(0, func.attr)
            func = func.value
        root = func.id if isinstance(func, ast.Name) else ""
        if "aten" in (root, *chain):
            names = [root, *chain]
            return names[names.index("aten") + 1]
        if root == "self" and len(chain) == 1:
            return self.layers.get(chain[0], chain[0])
        if chain:
            return chain[-1]
        return root if is_known(root) and not hasattr(builtins, root) else None


def _above(graph: tuple[Step, ...], number: int | str, ops: set[str]) -> Step | None:
    """Return the step of that number if it is one of these operators."""
    return graph[number] if isinstance(number, int) and graph[number].op in ops else None


def _ancestors(graph: tuple[Step, ...], number: int, depth: int = 6) -> Iterator[Step]:
    """Yield the steps that feed a step, itself first, up to a depth."""
    yield graph[number]
    if depth:
        for source in graph[number].inputs:
            if isinstance(source, int):
                yield from _ancestors(graph, source, depth - 1)


def _idiom(graph: tuple[Step, ...], number: int) -> str | None:
    """Return the operator that this step completes, if it does."""
    step = graph[number]
    if step.op in {"mul", "div"}:
        return _gate(graph, step) or _normalisation(graph, number)
    if step.op in {"mean", "sum"}:
        return _loss(graph, step)
    if step.op in {"matmul", "bmm", "einsum"}:
        above = {s.op for n in step.inputs if isinstance(n, int) for s in _ancestors(graph, n, 4)}
        return "attention" if "softmax" in above and above & {"matmul", "bmm", "einsum"} else None
    if step.op == "log":
        return "logsumexp" if "exp" in {s.op for s in _ancestors(graph, number, 2)} else None
    return None


def _gate(graph: tuple[Step, ...], step: Step) -> str | None:
    """Return `x * sigmoid(x)`, `x * tanh(softplus(x))`, `x / (1 + |x|)`, GELU by erf or tanh, and other gates."""
    for source in step.inputs:
        others = set(step.inputs) - {source}
        if gate := _above(graph, source, {"sigmoid", "silu"}):
            return "silu" if gate.op == "sigmoid" and set(gate.inputs) <= others else "swiglu" if others else None
        if gate := _above(graph, source, {"tanh"}):
            return "mish" if any(_above(graph, n, {"softplus"}) for n in gate.inputs) else None
        if gate := _above(graph, source, {"add"}):
            if step.op == "div" and any(_above(graph, n, {"abs"}) for n in gate.inputs):
                return "softsign"
            if step.op == "mul" and any(_above(graph, n, {"erf", "tanh"}) for n in gate.inputs):
                return "gelu"
    return None


def _normalisation(graph: tuple[Step, ...], number: int) -> str | None:
    """Return RMS, layer, L1, L2 norms and softmax written out."""
    step = graph[number]
    below = [s.op for n in step.inputs[-1:] if isinstance(n, int) for s in _ancestors(graph, n, 4)]
    ops, all_ops = set(below), {s.op for s in _ancestors(graph, number)}
    if step.op == "div" and ops & {"vector_norm"}:
        return "l2_norm"
    if ops & {"rsqrt", "sqrt"} and {"mean", "add"} <= ops and ops & {"pow", "square", "mul"}:
        return "rms_norm" if "sub" not in all_ops else "layer_norm"
    if ops & {"rsqrt", "sqrt"} and "var" in ops:
        return "layer_norm"
    if step.op == "div" and "abs" in ops and ops & {"mean", "sum"}:
        return "l1_norm"
    if step.op == "div" and "exp" in ops and "sum" in ops:
        return "softmax"
    return "l2_norm" if step.op == "div" and "sqrt" in ops and "sum" in ops else None


def _loss(graph: tuple[Step, ...], step: Step) -> str | None:
    """Return mean of squared or absolute differences, or of a clamped margin."""
    feeder = next((source for source in step.inputs if isinstance(source, int)), None)
    if feeder is None:
        return None
    chain = [s.op for s in _ancestors(graph, feeder, 3)]
    if chain[0] in {"pow", "square", "mul"} and chain[1:2] == ["sub"]:
        return "mse_loss"
    if chain[0] == "abs" and chain[1:2] == ["sub"]:
        return "l1_loss"
    return "hinge_loss" if chain[0] in {"clamp", "relu"} and "sub" in chain and "mul" in chain else None
