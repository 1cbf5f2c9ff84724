"""The text of a problem that retrieval works on: what is embedded, and what BM25 indexes.

Comes in: a FunctionalProblem, an archived kernel's functional source, or free text. Goes out: lines of words
from one vocabulary - operators, their families, what feeds what, ranks and dtypes - without sizes and without
variable names, so that the same graph reads the same however it was written. Knows nothing of models or archives.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.ingest.description.callgraph import Step, idioms, steps
from rag_kernels.ingest.description.vocabulary import FAMILIES, family, is_known, main_operator, operator, words_of

REPEATS = 2  # how often one operator is said at most: a chain of twenty convolutions is still about convolution


def description(fp: FunctionalProblem) -> str:
    """Return the description of a functionalized problem."""
    return functional_text(fp.source, fp.features.operators, fp.features.ranks, fp.features.dtypes)


@lru_cache(maxsize=65536)
def functional_text(
    source: str, operators: tuple[str, ...] = (), ranks: tuple[int, ...] = (), dtypes: tuple[str, ...] = ()
) -> str:
    """Describe functional source; `operators` serve where the source cannot be read."""
    graph = _steps(source)
    words = [step.op for step in graph] or _operators(operators)
    marks = [mark for step in graph for mark in step.marks]
    return _text(words, idioms(graph), [*_flow(graph), *marks], ranks, dtypes)


def graph_words(source: str, operators: tuple[str, ...] = ()) -> list[str]:
    """Return the operator graph as a list of distinct words, to compare graphs by what they share.

    The words are operators (a second one of a kind is another word), their marks and families, who feeds whom, and
    chains of three.
    """
    graph = _steps(source)
    ops = [step.op for step in graph] or _operators(operators)
    numbered = [f"{op}#{ops[:place].count(op)}" for place, op in enumerate(ops)]
    pairs = [(source, number) for number, step in enumerate(graph) for source in step.inputs if isinstance(source, int)]
    chains = [(first, a, b) for a, b in pairs for first in graph[a].inputs if isinstance(first, int)]
    paths = [">".join(graph[number].op for number in path) for path in (*pairs, *chains)]
    marks = [f"{step.op}.{mark}" for step in graph for mark in step.marks]
    named = idioms(graph)
    main = main_operator([*named, *ops])
    about = [f"main_{main}", f"about_{family(main)}"] if main else []
    return list(dict.fromkeys((*about, *numbered, *map(family, ops), *named, *paths, *marks)))


def query_graph(text: str) -> list[str]:
    """Return the operators that free text names, as words of `graph_words`."""
    ops = [word for word in words_of(text) if is_known(word) or word in FAMILIES]
    return list(dict.fromkeys((*(f"{op}#0" for op in ops), *map(family, ops))))


def query_text(text: str) -> str:
    """Return free text ("fused layernorm gelu") in the words of descriptions."""
    words = words_of(text)
    ops = [word for word in words if is_known(word) or word in FAMILIES]
    others = tuple(word for word in words if word not in ops)
    flow = tuple(f"{a}__{b}" for a, b in pairwise(ops) if family(a) != family(b))
    return " ".join(dict.fromkeys((_text(ops, (), flow, (), ()) + " " + " ".join(others)).split()))


def main_family(source: str, operators: tuple[str, ...] = ()) -> str:
    """Return the family of the operator that a kernel for this is built around (`conv`, `norm`...).

    It is the unit that the leave-family-out experiments leave out.
    """
    return told_family(functional_text(source, operators))


def told_family(text: str) -> str:
    """Return the family of the main operator of a description."""
    main = re.search(r"\bmain_(\w+)", text)
    return family(main.group(1)) if main else "other"


@lru_cache(maxsize=4096)
def _steps(source: str) -> tuple[Step, ...]:
    return steps(source)


def _operators(names: Sequence[str]) -> list[str]:
    """Return words for operators.

    `aten.layer_norm` and plain `layer_norm` are both met, hence the last part of the name.
    """
    return [word for name in names if (word := operator(name.split(".")[-1]))]


def keywords(text: str, source: str = "") -> list[str]:
    """Return tokens for BM25: the words of a description or query, and each word of the functional source once."""
    return text.split() + sorted(set(re.findall(r"[a-z][a-z0-9]+", source.lower())))


def _text(
    words: Sequence[str], named: Sequence[str], flow: Sequence[str], ranks: Sequence[int], dtypes: Sequence[str]
) -> str:
    """Put the parts in order; each operator at most REPEATS times, everything else once."""
    told = [word for place, word in enumerate(words) if words[:place].count(word) < REPEATS]
    ops = [*told, *named]
    main = main_operator([*named, *told])  # `silu` rather than the `sigmoid` that it is made of
    families = dict.fromkeys(family(op) for op in ops if family(op) != "other")
    parts = [
        [f"main_{main}"] if main and is_known(main) else [],
        [f"about_{family(main)}"] if main else [],
        ops,
        [name for name in families if name not in ops],
        list(dict.fromkeys(flow)),
        [f"rank{rank}" for rank in dict.fromkeys(ranks)],
        list(dict.fromkeys(dtypes)),
    ]
    return " ".join(word for part in parts for word in part)


def _flow(graph: tuple[Step, ...]) -> tuple[str, ...]:
    """Return who feeds whom: `conv2d__relu`, and the same between families, `conv__activation`."""
    pairs = [(graph[source].op, step.op) for step in graph for source in step.inputs if isinstance(source, int)]
    exact = [f"{a}__{b}" for a, b in pairs]
    broad = [f"{family(a)}__{family(b)}" for a, b in pairs]
    return tuple(dict.fromkeys(exact + broad))
