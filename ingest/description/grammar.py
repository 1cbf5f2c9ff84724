"""A grammar of small neural-network programs, to train the embedder on.

Comes in: a seeded random generator. Goes out: graphs (chains of operators with an optional residual) and texts of a
graph in several forms: functional PyTorch, an `nn.Module`, plain English, a C++ or CUDA kernel. All of them are
invented here; no benchmark is read. Knows nothing of training.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rag_kernels.ingest.description.vocabulary import family


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator in all its text forms; `calls` is empty for what only exists as a layer."""

    word: str
    calls: tuple[str, ...]
    layer: str
    code: str
    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A chain of operators; with `residual`, the input is added after the last."""

    operators: tuple[Operator, ...]
    residual: bool
    rank: int
    dtype: str

    @property
    def key(self) -> str:
        return " ".join((*(op.phrases[0] for op in self.operators), str(self.residual)))


def _table(section: str) -> tuple[Operator, ...]:
    """Return the operators of one section of `grammar.txt`, which explains its columns."""
    text = Path(__file__).with_suffix(".txt").read_text()
    rows: list[Operator] = []
    for line in text.partition(f"[{section}]\n")[2].partition("\n\n")[0].splitlines():
        for n in "123" if "{n}" in line else "0":
            word, calls, layer, code, phrases = (part.strip() for part in line.replace("{n}", n).split("|"))
            spelled = tuple(call.strip() for call in calls.split(";;") if call.strip())
            rows.append(Operator(word, spelled, layer, code, tuple(p.strip() for p in phrases.split(" ; "))))
    return tuple(rows)


DTYPES = (*("float32",) * 6, "float16", "bfloat16", "float64")
HEAVY, ALONE, TAIL = _table("heavy"), _table("alone"), _table("tail")


def graph(rng: Random) -> Graph:
    """Draw a graph: mostly one heavy operator and a tail, else a norm, reduction, loss... or pointwise work alone."""
    kind = rng.random()
    tail = [rng.choice(TAIL if rng.random() < 0.7 else ALONE) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 5)))]
    if kind < 0.5:
        operators = [rng.choice(HEAVY), *tail]
    elif kind < 0.6:
        operators = [rng.choice(HEAVY), *tail[:2], rng.choice(HEAVY), *tail[2:]]
    elif kind < 0.85:
        operators = [*tail[:1], rng.choice(ALONE), *tail[1:3]] if rng.random() < 0.5 else [rng.choice(ALONE), *tail[:2]]
    else:
        operators = [rng.choice(TAIL), *(rng.choice(TAIL) for _ in tail[:3])]
    spatial = re.search(r"(?:conv|pool).*(\d)d$", operators[0].word)
    rank = int(spatial.group(1)) + 2 if spatial else rng.choice((2, 2, 3, 4))
    return Graph(tuple(operators), rng.random() < 0.1, rank, rng.choice(DTYPES))


def neighbour(origin: Graph, rng: Random) -> Graph:
    """Return a similar graph.

    The heaviest operator is kept, or becomes another of its family, and otherwise one operator is dropped, replaced or
    added.
    """
    operators = list(origin.operators)
    keep = next((place for place, op in enumerate(operators) if op in HEAVY), 0)
    others = [place for place in range(len(operators)) if place != keep]
    kind = rng.random()
    if kind < 0.3:
        relatives = [op for op in (*HEAVY, *ALONE, *TAIL) if family(op.word) == family(operators[keep].word)]
        operators[keep] = rng.choice(relatives)
    elif others and kind < 0.8:
        place = rng.choice(others)
        operators[place : place + 1] = [rng.choice(TAIL)] if rng.random() < 0.5 else []
    else:
        operators.append(rng.choice(TAIL))
    return Graph(tuple(operators), origin.residual, origin.rank, origin.dtype)


class _Namer:
    """Fills placeholders with fresh names and numbers, and remembers the tensors that it named."""

    _STEMS = "weight bias w b gamma beta scale other y z mask target key value kernel proj conv fc linear".split()

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.tensors: list[str] = []

    def tensor(self) -> str:
        name = f"{self.rng.choice(self._STEMS)}{self.rng.choice(('', '_weight', '_bias', '1', '2', '_0'))}"
        while name in self.tensors:
            name += self.rng.choice("abcdef")
        self.tensors.append(name)
        return name

    def fill(self, template: str, value: str) -> str:
        text = template.replace("{x}", value)
        for hole in ("{w}", "{b}", "{y}"):
            while hole in text:
                text = text.replace(hole, self.tensor(), 1)
        while "{i}" in text:
            text = text.replace("{i}", str(self.rng.choice((1, 2, 3, 5, 8, 16, 64, 128, 1024))), 1)
        while "{f}" in text:
            text = text.replace("{f}", self.rng.choice(("1e-5", "0.5", "2.0", "0.1", "-1.0", "1.0")), 1)
        return text.replace("{d}", str(self.rng.choice((-1, 0, 1, 2))))


def functional(graph: Graph, rng: Random) -> str:
    """Return the graph as a function, one statement an operator or a few nested ones."""
    namer, x = _Namer(rng), rng.choice(("x", "input", "a", "inp", "hidden"))
    value, lines = x, []
    for number, op in enumerate(graph.operators):
        template = rng.choice(op.calls or (f"torch.{op.word}({{x}}, {{w}})",))
        simple = (template.count("{x}") == 1 and not value.isidentifier()) or value.isidentifier()
        if not simple:
            lines.append(f"    {x} = {value}")
            value = x
        value = namer.fill(template, value if value.isidentifier() else f"({value})")
        if rng.random() < 0.75:
            name = rng.choice((x, f"t{number}", f"{op.word}_{number}", f"out{number}"))
            lines.append(f"    {name} = {value}")
            value = name
    if graph.residual:
        value = f"{value} + {namer.tensor()}"
    return f"def module_fn({', '.join((x, *namer.tensors))}):\n" + "\n".join((*lines, f"    return {value}")) + "\n"


def module(graph: Graph, rng: Random) -> str:
    """Return the graph as an `nn.Module` in the style of KernelBench."""
    namer, made, lines = _Namer(rng), [], []
    for number, op in enumerate(graph.operators):
        if op.layer and (rng.random() < 0.7 or not op.calls):
            name = rng.choice((op.word, f"layer{number}", f"m{number}", f"{op.word}{number}"))
            made.append(f"        self.{name} = {namer.fill(op.layer, '')}")
            lines.append(f"        x = self.{name}(x)")
        else:
            lines.append(f"        x = {namer.fill(rng.choice(op.calls), 'x')}")
    extra = "".join(f", {name}" for name in namer.tensors)
    if graph.residual:
        extra, lines = extra + ", residual", [*lines, "        x = x + residual"]
    init = ["    def __init__(self):", "        super().__init__()", *made]
    call = f"    def forward(self, x{extra}):"
    return "\n".join(["class Model(nn.Module):", *init, call, *lines, "        return x\n"])


def english(graph: Graph, rng: Random) -> str:
    """Return the graph as a request in plain English."""
    said = [rng.choice(op.phrases) for op in graph.operators]
    if graph.residual:
        said.append(rng.choice(("residual add", "skip connection")))
    joint = rng.choice((" ", ", ", " + ", " then ", " followed by ", " and "))
    return rng.choice(("", "", "fused ", "a kernel for ", "fast ")) + joint.join(said)


def kernel(graph: Graph, rng: Random) -> str:
    """Return the graph as the text of a kernel: signature, a loop, and the typical body of each operator."""
    name = "_".join(op.word for op in graph.operators)
    head = rng.choice(
        (
            f"__global__ void {name}_kernel(const float* x, float* out, int n) {{ int i = blockIdx.x * blockDim.x"
            " + threadIdx.x;",
            f"void {name}(const float* in, float* out, int64_t rows) {{\n#pragma omp parallel for",
            f"// {english(graph, rng)}\nextern void forward(Tensor x, Tensor out) {{",
        )
    )
    body = "\n".join(f"  v = {op.code}" + (f"  // {op.word}" if rng.random() < 0.4 else "") for op in graph.operators)
    return f"{head}\n{body}\n}}\n"
