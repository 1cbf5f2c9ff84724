"""The part of functionalizing that runs the problem's code: only ever in a child process.

Comes in: a payload with a `Problem`. Goes out: a `FunctionalProblem`, or a reason. Verification happens at full
size where that is cheap, else on a smaller problem that goes through the very same steps.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch

from rag_kernels.eval.records import FunctionalProblem, Problem, ProblemError, TensorArgument
from rag_kernels.eval.sizes.fitting import fit
from rag_kernels.ingest.description.features import (
    count_flops,
    features,
    graph_key,
    nbytes,
    output_specs,
    working_bytes,
)
from rag_kernels.ingest.functional.functionalize import ANY, RUNS
from rag_kernels.ingest.functional.ranges import in_range, index_bounds, range_unknown
from rag_kernels.ingest.functional.sizes_by_name import DEEP_NODES, sizes_by_name
from rag_kernels.ingest.functional.verify import (
    Disagrees,
    DoesNotRun,
    ModuleFails,
    Ran,
    compare,
    require_recorded,
    run_module,
)
from rag_kernels.ingest.graphs.emit import Emitted, emit, names_of
from rag_kernels.ingest.graphs.graph import Functional, functional
from rag_kernels.ingest.graphs.named_sizes import alike, holds_sizes
from rag_kernels.ingest.graphs.recording import Trace, refuse_dtype, trace


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that one verification may cost."""

    argument_bytes: float  # drawn at random, so dearer than what is computed
    working_bytes: float
    flops: float

    def load(self, graph: Functional) -> float:
        """Return the share of the limit that a graph takes; 1 is all of it."""
        arguments = nbytes(a.spec for a in graph.arguments if isinstance(a, TensorArgument))
        return max(
            arguments / self.argument_bytes,
            working_bytes(graph) / self.working_bytes,
            count_flops(graph) / self.flops,
        )


# The later limits are for problems that cannot be shrunk to the first. Each smaller problem has to be recorded, which
# takes seconds for a deep network, so those start at the second.
LIMITS = (Limit(64e6, 256e6, 4e9), Limit(512e6, 1e9, 30e9), Limit(800e6, 2e9, 90e9))
MOST_NAMED_S = 8.0  # of recording: what takes longer is not recorded again, so that it stays within its time
ALONE = "its sizes are numbers: no others are known at which the graph is the same"
UNIT = 1_000_000  # a load of 1, in the bytes that `fit` compares


def functionalize_here(payload: dict[str, Any]) -> FunctionalProblem | dict[str, str]:
    """Return the functional form of `payload["problem"]`, or `{"reason": sentence}` if it cannot be used."""
    problem = payload["problem"]
    if payload["threads"]:
        torch.set_num_threads(int(payload["threads"]))
    random.seed(0)
    torch.manual_seed(0)
    try:
        return _functionalize(
            problem,
            frozenset(payload.get("crashed", ())),
            resized=bool(payload.get("resized")),
            named=bool(payload.get("named")),
            like=Like(*payload["like"]) if payload.get("like") else None,
        )
    except ProblemError as error:
        return {"reason": str(error)}
    except (MemoryError, RecursionError) as error:
        kind = "more memory than there is" if isinstance(error, MemoryError) else "too deep a recursion"
        return {"reason": f"{problem.name} needs {kind}; make its sizes smaller."}


def functionalize_several_here(payload: dict[str, Any]) -> list[FunctionalProblem | dict[str, str]]:
    """Return the same for each of `payload["problems"]`, whose sizes are not their author's: of a graph that is `like`
    one that was verified the module is run, and not compared with its functional form again, which is spelt as that is.
    """
    one = {"threads": payload["threads"], "resized": True, "like": payload["like"]}
    return [functionalize_here(one | {"problem": problem}) for problem in payload["problems"]]


@dataclass(frozen=True, slots=True)
class Like:
    """A form that was verified: the key of its graph, and the names of its constants."""

    graph_key: str
    constants: Sequence[str]

    def is_of(self, graph: Functional) -> bool:
        """Return whether the graph is the same, at whatever sizes."""
        return graph_key(graph) == self.graph_key

    def has_constants_of(self, emitted: Emitted) -> bool:
        """Return whether a kernel for the one is called as a kernel for the other: constants are arguments."""
        return [name for name, _ in emitted.constants] == list(self.constants)


def _functionalize(
    problem: Problem, crashed: Set[str], *, resized: bool, named: bool, like: Like | None = None
) -> FunctionalProblem:
    if named:
        with suppress(DoesNotRun, Disagrees):
            return _attempt(problem, crashed, plain=False, resized=resized, named=True)
    try:
        return _attempt(problem, crashed, plain=False, resized=resized, like=like)
    except (DoesNotRun, Disagrees):  # an operator whose Python spelling is not known well enough
        return _attempt(problem, crashed, plain=True, resized=resized)


def _attempt(
    problem: Problem, crashed: Set[str], *, plain: bool, resized: bool, named: bool = False, like: Like | None = None
) -> FunctionalProblem:
    begun = process_time()
    whole, first = _recorded(problem)
    soon = process_time() - begun < MOST_NAMED_S
    has_sizes = named and holds_sizes(whole)
    sizes = sizes_by_name(problem, whole, first.calls, names_of(whole), first.step) if has_sizes and soon else None
    forms: dict[str, tuple[Functional, Emitted]] = {}

    def form(of: Problem) -> tuple[Functional, Emitted]:
        if of.id not in forms:
            graph, recorded = (whole, first) if of.id == problem.id else _recorded(of)
            own = sizes if sizes and alike(graph, whole) else None
            remark = ALONE if has_sizes and own is None else ""
            emitted = emit(graph, recorded.attributes, sizes=own, plain=plain, remark=remark)
            if like and like.is_of(graph) and not like.has_constants_of(emitted):
                spelt_out = emit(graph, recorded.attributes, plain=True, remark=remark)
                emitted = spelt_out if like.has_constants_of(spelt_out) else emitted
            forms[of.id] = graph, emitted
        return forms[of.id]

    graph, emitted = form(problem)
    verified, notice = _verified(problem, form, crashed, resized=resized, like=like)
    return FunctionalProblem(
        problem=in_range(problem, graph) if resized else problem,
        source=emitted.source,
        arguments=graph.arguments,
        constants=emitted.constants,
        outputs=output_specs(graph),
        nodes=graph.nodes,
        results=graph.results,
        mutated=graph.mutated,
        uses_random=graph.uses_random,
        graph_key=graph_key(graph),
        features=features(graph),
        verified=verified,
        notice=notice,
        written=graph.written,
        bounds=index_bounds(graph),
        as_drawn=range_unknown(graph),
        step=first.step,
        made=sizes.made if sizes else (),
        shapes=sizes.shapes if sizes else (),
        follows=tuple(sizes.texts) if sizes else (),
    )


def _recorded(problem: Problem) -> tuple[Functional, Trace]:
    recorded = trace(problem)
    graph = functional(problem.name, recorded)
    for spec in (spec for node in graph.nodes for spec in node.outputs):
        refuse_dtype(problem, spec)
    return graph, recorded


def _verified(
    problem: Problem,
    form: Callable[[Problem], tuple[Functional, Emitted]],
    crashed: Set[str],
    *,
    resized: bool,
    like: Like | None = None,
) -> tuple[bool, str]:
    """Verify at the largest size that is cheap; a problem that cannot be shrunk stays unverified, with a notice.

    A smaller problem on which the module itself fails, or has ended its process, does not hold together: others are
    then tried.
    """
    ran: dict[str, Ran] = {}

    def run(of: Problem) -> None:
        graph = form(of)[0]
        whole = of.id == problem.id and not resized
        ran.clear()
        if of.id in crashed or (ANY in crashed and of.id != problem.id):
            raise ModuleFails(f"{of.name}: the module ends its process at these sizes.")
        print(RUNS, of.id, file=sys.stderr, flush=True)
        ran[of.id] = run_module(of if whole else in_range(of, graph), graph.arguments)

    deep = len(form(problem)[0].nodes) > DEEP_NODES
    for limit in LIMITS[deep:]:

        def load(of: Problem, limit: Limit = limit) -> int:
            size = int(UNIT * limit.load(form(of)[0]))
            if size <= UNIT and of.id != problem.id:
                run(of)
            return size

        try:
            checked, smaller = fit(problem, max_bytes=UNIT, measure=load)
        except ProblemError:
            continue
        if checked.id not in ran:
            run(checked)
        graph, emitted = form(checked)
        if like and like.is_of(graph):
            require_recorded(ran[checked.id], output_specs(graph))
        else:
            compare(ran[checked.id], emitted.source, output_specs(graph), random=graph.uses_random)
        return True, f"verified at {smaller}" if smaller else ""
    return False, (
        "not verified against the module: it is too large to run here, and its sizes cannot be made smaller "
        "so that the module still runs"
    )
