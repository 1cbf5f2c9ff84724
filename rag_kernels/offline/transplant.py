"""Archived kernels in place of parts of a problem: retrieval proposes, a graph match places, the judge tests.

Comes in: a problem and the exemplars of a brief. Goes out: at most two `Transplant`s: the problem with calls of
archived kernels where their graphs stood, and the kernels' texts. All other operators are left as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rag_kernels.eval.records import Backend, FunctionalProblem, Node, Ref, TensorArgument, TensorSpec
from rag_kernels.eval.traits.aten import base_name, names, operator
from rag_kernels.offline.foreign_kernel import Foreign, foreign
from rag_kernels.offline.graph.rewrites import simplified
from rag_kernels.offline.graph.subgraph_match import Match, matches, refs_of, specs_of, stands_free
from rag_kernels.offline.lowering.pointwise import POINTWISE
from rag_kernels.records import Shown

MOST = 2  # transplanted drafts of one brief
LIGHT = POINTWISE.keys() | names(lambda op: op.light)


@dataclass(frozen=True, slots=True)
class Transplant:
    """A problem some of whose operators are calls of archived kernels."""

    problem: FunctionalProblem
    kernels: tuple[Foreign, ...]
    shown: tuple[Shown, ...]  # whose kernels these are, in the same order
    idea: str


@dataclass(frozen=True, slots=True)
class _Place:
    shown: Shown
    match: Match
    operators: tuple[str, ...]  # that it replaces, without views


def transplants(fp: FunctionalProblem, shown: Sequence[Shown], backend: Backend) -> Iterator[Transplant]:
    """Yield the problem with archived kernels in the largest parts that do not overlap.

    A second one is the same without the kernel of the largest part.
    """
    places = [place for s in shown if _may_serve(s, fp, backend) for place in _places(s, fp)]
    places.sort(key=lambda place: -len(place.operators))  # stable: of equals, what retrieval ranks first
    for _ in range(MOST):
        made = _with_transplants(fp, places)
        if made is None:
            return
        yield made
        places = [place for place in places if place.shown.kernel.id != made.shown[0].kernel.id]


def _may_serve(shown: Shown, fp: FunctionalProblem, backend: Backend) -> bool:
    kernel = shown.kernel
    fits = (kernel.backend, kernel.tier) == (backend, "kernel") and kernel.graph_key != fp.graph_key
    return fits and not kernel.retracted and shown.problem is not None


def _places(shown: Shown, fp: FunctionalProblem) -> Iterator[_Place]:
    assert shown.problem is not None
    pattern, _ = simplified(shown.problem)
    own = [base_name(n.op) for n in pattern.nodes if not operator(n.op).view and n.op != "getitem"]
    if LIGHT.issuperset(own):
        return  # pointwise operators cost less in the loops around them
    for match in matches(pattern, fp):
        if shown.serves(_given(pattern, match, fp)):
            yield _Place(shown, match, tuple(own))


def _given(pattern: FunctionalProblem, match: Match, fp: FunctionalProblem) -> list[TensorSpec]:
    """Return the tensors that the kernel would be called with."""
    specs = specs_of(fp)
    pairs = zip(pattern.arguments, match.arguments, strict=False)  # numbers follow
    return [specs[v.name] for a, v in pairs if isinstance(a, TensorArgument) and isinstance(v, Ref)]


def _with_transplants(fp: FunctionalProblem, places: Sequence[_Place]) -> Transplant | None:
    """Return the problem with calls in all places that are still free, or None if there are none."""
    kernels: dict[str, tuple[Foreign, Shown]] = {}
    done: list[_Place] = []
    for place in places:
        of = place.shown.kernel
        known = kernels.get(of.id)
        kernel = known[0] if known else foreign(of.source, f"transplant_{len(kernels)}", of.id)
        taken = {name for other in done for name in other.match.nodes}
        if kernel is None or not place.match.nodes.isdisjoint(taken) or not stands_free(fp, place.match.nodes):
            continue
        fp = _with_call(fp, place.match, kernel.op)
        kernels[of.id] = kernel, place.shown
        done.append(place)
    if not done:
        return None
    texts = [f"{p.shown.kernel.id} (archived for {p.shown.kernel.problem_name}) for {_listed(p)}" for p in done]
    chosen = list(kernels.values())
    return Transplant(
        fp, tuple(k for k, _ in chosen), tuple(s for _, s in chosen), f"Transplant {'; '.join(dict.fromkeys(texts))}."
    )


def _listed(place: _Place) -> str:
    return ", ".join(place.operators[:6]) + (", ..." if len(place.operators) > 6 else "")


def _with_call(fp: FunctionalProblem, match: Match, op: str) -> FunctionalProblem:
    """Return the problem with one call in place of the matched operators; its outputs keep their names."""
    made = {n.name: n for n in fp.nodes}
    specs = tuple(made[name].outputs[0] for name in match.outputs)
    if len(match.outputs) == 1:
        new = [Node(match.outputs[0], op, match.arguments, (), specs)]
    else:
        taken, number = {a.name for a in fp.arguments} | made.keys(), 0
        while (name := f"planted_{number}") in taken:
            number += 1
        items = [
            Node(out, "getitem", (Ref(name), i), (), (spec,))
            for i, (out, spec) in enumerate(zip(match.outputs, specs, strict=True))
        ]
        new = [Node(name, op, match.arguments, (), specs), *items]
    kept = [n for n in fp.nodes if n.name not in match.nodes]
    return replace(fp, nodes=in_order([*kept, *new]))


def in_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the operators so that each comes after those it reads, otherwise in the order given."""
    left, missing, out = list(nodes), {n.name for n in nodes}, list[Node]()
    while left:
        at = next(i for i, n in enumerate(left) if missing.isdisjoint(refs_of(n)))
        out.append(left.pop(at))
        missing.remove(out[-1].name)
    return tuple(out)
