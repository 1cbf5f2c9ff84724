"""Which numbers of a recorded graph are sizes, and which sizes of its arguments tell them.

Comes in: a graph, and the same graph recorded at other sizes. Goes out: `NamedSizes`: names for sizes of arguments, and
for each argument of a node that holds sizes its text by these names (`N * M`, `C // 8`), or by the shape of an earlier
value. What stays the same everywhere is a constant; what differs and is told by nothing is listed. Knows nothing of
tracing, and of Python no more than these expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from math import prod

from rag_kernels.eval.records import MadeShape, MadeSize, Node, Ref, TensorArgument, Value
from rag_kernels.eval.traits.aten import operator
from rag_kernels.ingest.graphs.graph import Functional, bind, refs
from rag_kernels.ingest.graphs.spelling import stays_in_call

LETTERS = "NMKLPQRSTUVW"  # those of contracts, in the order in which sizes are read
_FACTORS = ((1, 64), (2, 24), (3, 8))  # so many sizes are multiplied, of the first so many
_FEWEST_FOR_LINES = 3  # sizes at which a line is seen: through two there is always one

Sizes = tuple[int, ...]  # what one number was, at each of the sizes


@dataclass(frozen=True, slots=True)
class NamedSizes:
    """Texts of sizes by node and argument, a text for each number, and the names that they need.

    `heads` says where a name's size is read; `untold` names the nodes with a number that differs and nothing tells. A
    keyword of the whole stays a number too: `constants` says how it follows the sizes, or "" where that is not told.
    """

    heads: tuple[tuple[str, str], ...] = ()
    texts: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    untold: frozenset[str] = frozenset()
    constants: Mapping[tuple[str, str], str] = field(default_factory=dict)
    made: tuple[MadeSize, ...] = ()
    shapes: tuple[MadeShape, ...] = ()

    def of(self, node: Node, argument: str) -> tuple[str, ...] | None:
        """Return the texts of an argument's numbers; None where they are all constants."""
        texts = self.texts.get((node.name, argument))
        if texts is None:
            return None
        own = dict(integers(node))[argument]
        return tuple(text or str(number) for text, number in zip(texts, own, strict=True))


@dataclass(frozen=True, slots=True)
class _Told:
    """An expression, with a place for each size of an argument that it reads."""

    text: str
    sizes: tuple[Sizes, ...] = ()

    def named(self, names: Mapping[Sizes, str]) -> str:
        return self.text.format(*(names[size] for size in self.sizes))


def named_sizes(
    graph: Functional, others: Sequence[Functional], taken: set[str], *, pulled: int = 0, every: bool = True
) -> NamedSizes | None:
    """Return the sizes of a graph, which is `alike` the others, by names that are not `taken`; None without others.

    `every` says that all of its sizes are others there, so that what is the same is a constant.
    The first `pulled` arguments, gradients that the forward of a training step has not, tell what no other does.
    """
    if not others:
        return None
    search = _Search(graph, others, pulled)
    told: dict[tuple[str, str], list[_Told | None]] = {}
    constants: dict[tuple[str, str], str] = {}
    shapes: list[MadeShape] = []
    for nodes in zip(graph.nodes, *(other.nodes for other in others), strict=True):
        for argument, values in _together(nodes):
            if any(len(set(sizes)) > 1 for sizes in values):
                told[nodes[0].name, argument] = [search.told(sizes, nodes[0]) for sizes in values]
        constants |= {(nodes[0].name, argument): text for argument, text in search.constants(nodes)}
        if operator(nodes[0].op).reshape:
            shapes.append(MadeShape(nodes[0].name, search.shape(nodes, every=every)))
        search.made(nodes)
    used = {size for texts in told.values() for one in texts if one for size in one.sizes}
    read = [size for size in search.places if size in used]
    free = (n for n in (*LETTERS, *(f"N{i}" for i in range(len(read) + len(taken)))) if n not in taken)
    names = dict(zip(read, free, strict=False))
    return NamedSizes(
        heads=tuple((name, search.places[size]) for size, name in names.items()),
        texts={key: tuple(one.named(names) if one else "" for one in found) for key, found in told.items()},
        untold=frozenset(node for (node, _), found in told.items() if None in found),
        constants=constants,
        made=tuple(_made(graph, told, search)),
        shapes=tuple(shapes),
    )


def _made(
    graph: Functional, told: Mapping[tuple[str, str], Sequence[_Told | None]], search: _Search
) -> Iterator[MadeSize]:
    """Yield the sizes of tensors made of nothing that are sizes of arguments themselves."""
    for node in graph.nodes:
        if operator(node.op).cost == "factory":
            sizes = told.get((node.name, "end" if node.op == "aten.arange.default" else "size"), ())
            for dim, one in enumerate(sizes):
                if one and one.text == "{}":
                    yield MadeSize(node.name, dim, *search.read[one.sizes[0]])


def holds_sizes(graph: Functional) -> bool:
    """Return whether a call of the graph has numbers that may be sizes."""
    return any(max(map(abs, numbers)) > 1 for node in graph.nodes for _, numbers in integers(node))


def integers(node: Node) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the arguments of a node that are integers, or tuples of them, and no keywords of the whole."""
    if not node.op.startswith("aten."):
        return
    for name, value in bind(node).items():
        if stays_in_call(node.op, name) and (numbers := _numbers(value)) is not None:
            yield name, numbers


def _numbers(value: Value) -> tuple[int, ...] | None:
    found = value if isinstance(value, tuple) else (value,)
    numbers = tuple(v for v in found if isinstance(v, int) and not isinstance(v, bool))
    return numbers if numbers and len(numbers) == len(found) else None


def _together(nodes: Sequence[Node]) -> Iterator[tuple[str, list[Sizes]]]:
    """Yield each argument that is integers, with what each of them was at all sizes."""
    for columns in zip(*map(integers, nodes), strict=True):
        yield columns[0][0], list(zip(*(numbers for _, numbers in columns), strict=True))


def alike(graph: Functional, other: Functional) -> bool:
    """Return whether two recordings are the same but for numbers."""
    ends = [[(a.name, len(a.spec.shape)) for a in g.arguments if isinstance(a, TensorArgument)] for g in (graph, other)]
    return (
        ends[0] == ends[1]
        and graph.results == other.results
        and list(map(_form, graph.nodes)) == list(map(_form, other.nodes))
    )


def _form(node: Node) -> tuple[object, ...]:
    values = (*node.args, *(value for _, value in node.kwargs))
    counts = [(name, len(numbers)) for name, numbers in integers(node)]
    return node.name, node.op, [refs(v) for v in values], counts, [len(s.shape) for s in node.outputs]


class _Search:
    """What is known so far of the sizes of arguments and values, at all of the sizes."""

    def __init__(self, graph: Functional, others: Sequence[Functional], pulled: int) -> None:
        self.count = 1 + len(others)
        self.places: dict[Sizes, str] = {}  # sizes of arguments that differ, and where each is read first
        self.read: dict[Sizes, tuple[str, int]] = {}  # the same as argument and dimension
        self.values: dict[str, list[Sizes]] = {}  # shapes of single tensors that earlier nodes made
        tensors = [[a for a in g.arguments if isinstance(a, TensorArgument)] for g in (graph, *others)]
        columns = [*zip(*tensors, strict=True)]
        for alike in columns[pulled:] + columns[:pulled]:
            shape = list(zip(*(a.spec.shape for a in alike), strict=True))
            self.values[alike[0].name] = shape
            for d, size in enumerate(shape):
                if len(set(size)) > 1:
                    self.places.setdefault(size, f"{alike[0].name}.shape[{d}]")
                    self.read.setdefault(size, (alike[0].name, d))
        self.known: dict[Sizes, _Told | None] = {}

    def made(self, nodes: Sequence[Node]) -> None:
        """Know the shape of what a node makes."""
        if nodes[0].op.startswith("aten.") and all(len(node.outputs) == 1 for node in nodes):
            self.values[nodes[0].name] = list(zip(*(node.outputs[0].shape for node in nodes), strict=True))

    def shape(self, nodes: Sequence[Node], *, every: bool) -> tuple[str, ...]:
        """Return a text for each dimension of what a reshape makes; "" where nothing tells it."""
        texts = list[str]()
        for size in zip(*(node.outputs[0].shape for node in nodes), strict=True):
            told = self.told(size, nodes[0]) if every or len(set(size)) > 1 else None
            texts.append(told.named(self.places) if told else "")
        return tuple(texts)

    def constants(self, nodes: Sequence[Node]) -> Iterator[tuple[str, str]]:
        """Yield the arguments that are keywords of the whole and differ, each with how one number follows the sizes."""
        given = [bind(node) if node.op.startswith("aten.") else {} for node in nodes]
        for argument in given[0]:
            values = [one[argument] for one in given]
            if stays_in_call(nodes[0].op, argument) or values.count(values[0]) == len(values):
                continue
            numbers = tuple(v for v in values if isinstance(v, int))
            told = self.told(numbers, nodes[0]) if len(numbers) == len(values) else None
            yield argument, told.named(self.places) if told else ""

    def told(self, size: Sizes, node: Node) -> _Told | None:
        """Return what tells a number of a node; None where nothing does."""
        if len(set(size)) == 1:
            return _Told(str(size[0]))
        if size not in self.known:
            self.known[size] = self._by_arguments(size)
        operand = next((v.name for v in node.args if isinstance(v, Ref)), "")
        return self.known[size] or self._by_values(size, operand) or self._by_lines(size)

    def _by_arguments(self, size: Sizes) -> _Told | None:
        """Return a product of sizes of arguments, times a number or divided by one."""
        if size in self.places:
            return _Told("{}", (size,))
        for count, among in _FACTORS:
            for factors in combinations_with_replacement([*self.places][:among], count):
                product = tuple(prod(column) for column in zip(*factors, strict=True))
                text = " * ".join(["{}"] * count)
                if size == product:
                    return _Told(text, factors)
                times = _times(size, product)
                if times:
                    return _Told(f"{text} * {times}", factors)
                parts = _times(product, size)
                if parts:
                    return _Told(f"{text} // {parts}", factors)
        return None

    def _by_values(self, size: Sizes, operand: str) -> _Told | None:
        """Return it as a size, or a product of neighbouring ones, of the operand, or a size of an earlier value."""
        for name in dict.fromkeys((operand, *reversed(self.values))):
            shape = self.values.get(name, [])
            spans = [(d, d + 1) for d in range(len(shape))]
            if name == operand:
                spans += [(d, e) for d in range(len(shape)) for e in range(d + 2, len(shape) + 1)]
            for d, e in spans:
                product = tuple(prod(column) for column in zip(*shape[d:e], strict=True))
                text = " * ".join(f"{name}.shape[{i}]" for i in range(d, e))
                if product == size:
                    return _Told(text)
                if name == operand and (parts := _times(product, size)):
                    return _Told(f"{text} // {parts}")
        return None

    def _by_lines(self, size: Sizes) -> _Told | None:
        """Return it as a sum or a difference of sizes of arguments and a number."""
        if self.count < _FEWEST_FOR_LINES:
            return None
        for base in self.places:
            more = {n - m for n, m in zip(size, base, strict=True)}
            if len(more) == 1:
                (number,) = more
                return _Told(f"{{}} {'-' if number < 0 else '+'} {abs(number)}", (base,))
        for one, other in combinations_with_replacement([*self.places][:24], 2):
            for text, made in (("{} + {}", 1), ("{} - {}", -1)):
                if size == tuple(a + made * b for a, b in zip(one, other, strict=True)):
                    return _Told(text, (one, other))
                if made < 0 and size == tuple(b - a for a, b in zip(one, other, strict=True)):
                    return _Told(text, (other, one))
        return None


def _times(size: Sizes, of: Sizes) -> int:
    """Return by which number above 1 one size is a multiple of another everywhere, or 0."""
    factor = size[0] // of[0] if of[0] > 0 else 0
    return factor if factor > 1 and all(n == factor * m for n, m in zip(size, of, strict=True)) else 0
