"""One kernel for three workloads beside one written for each alone, on this machine's CPU.

    python tests/bench/workloads.py examples/*.py

A problem's workloads are its own sizes, those that only inputs have at a sixteenth of the work, and odd ones at a
third. The kernel for all is searched for and judged at each; beside it stand the first drafts that are written for each
workload alone. Two are called in turn in one process with one thread, and what is taken is its own CPU time, since
others may use the machine meanwhile; a row has the ratio of their medians for the fastest draft (above 1 the kernel for
all is slower), and what a kernel comes to beside itself. Writes rows as Markdown.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from support.generated_kernels import F, build, kernels_text, tensors_of

from rag_kernels.eval.judge import open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import Candidate, FunctionalProblem, Problem, TensorArgument
from rag_kernels.eval.sizes.resizing import odd_sizes, scaled
from rag_kernels.eval.sizes.text_sizes import named_sizes
from rag_kernels.eval.sizes.workloads import Workload
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.ingest.functional.sizes import at_other_sizes
from rag_kernels.offline.compose import first_plans
from rag_kernels.offline.tuning import starting_parameters
from rag_kernels.options import Options
from rag_kernels.run.session import Session
from rag_kernels.run.workloads import Search
from rag_kernels.wiring import open_session

OPTIONS = Options(device="cpu", archive=":memory:", retrieval="off", rounds=1, drafts=4)
LIMITS = Limits(measure_compile=False, timing=TimingRule(pairs=15, max_pairs=25, timed_s=0.05))
PAIRS_S, SLOWER = 1.0, 1.05  # CPU seconds of a pair; how much slower


def main(files: Sequence[str]) -> None:
    logging.disable(logging.WARNING)
    print("| problem | workloads | passed | beside one written for it alone | beside itself | |", flush=True)
    print("|---|---|--:|---|--:|---|", flush=True)
    within = every = 0
    spawn = multiprocessing.get_context("spawn")
    with (
        open_judge("cpu", limits=LIMITS, at_other_sizes=at_other_sizes) as judge,
        ProcessPoolExecutor(1, mp_context=spawn, initializer=by_one_thread) as pool,
    ):
        for file in files:
            problem = load_problem(Path(file))
            try:
                with open_session(OPTIONS, judge=judge) as session:
                    told, good, of = row(session, problem, pool)
            except Exception as error:  # one that fails costs its row alone
                told, good, of = f"{problem.name} | | | | | {type(error).__name__}: {str(error)[:300]}", 0, 3
            within, every = within + good, every + of
            print(f"| {told} |", flush=True)
    print(f"\n{within} of {every} workloads within {SLOWER - 1:.0%} of a kernel of their own.")


def by_one_thread() -> None:
    """Let kernels of this process run in one thread: what others wait for is no work."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read when a kernel's library is loaded
    torch.set_num_threads(1)


def row(session: Session, problem: Problem, pool: ProcessPoolExecutor) -> tuple[str, int, int]:
    """Return a row, how many workloads are as fast as alone, and how many there are."""
    workloads = workloads_for(problem)
    search = Search.of(session, problem, workloads)
    list(search.events(confirm=False))
    choice = search.found.choice if search.found else None
    names = "; ".join(w.name for w in workloads)
    if choice is None:
        return f"{problem.name} | {names} | 0 | | | no kernel", 0, len(workloads)
    together, ratios = choice.attempt.candidate, []
    for one in choice.served:
        fp = one.attempt.problem
        if one.measurement is None:
            ratios.append(float("inf"))
            continue
        alone = [plan.candidate for plan in first_plans(fp, starting_parameters("cpu"))]
        others = [c for c in alone if c.source != together.source]
        found = [pool.submit(beside, together, other, fp).result() for other in others] + [1.0] * (
            len(others) < len(alone)
        )
        ratios.append(max(found))
    passed = sum(one.measurement is not None for one in choice.served)
    texts = ", ".join("same text" if r == 1 else "not right" if r == float("inf") else f"{r:.2f}" for r in ratios)
    slower = [w.name for w, r in zip(workloads, ratios, strict=True) if r > SLOWER]
    told = f"slower at {'; '.join(slower)}" if slower else ""
    itself = pool.submit(beside, together, together, choice.served[0].attempt.problem).result()
    return (
        f"{problem.name} | {names} | {passed} | {texts} | {itself:.2f} | {told}",
        len(ratios) - len(slower),
        len(ratios),
    )


def workloads_for(problem: Problem) -> list[Workload]:
    small, odd = scaled(problem, 1 / 16, reach="inputs"), scaled(problem, 1 / 3, reach="inputs")
    assert small is not None and odd is not None, "no size that only inputs have"
    sizes = [named_sizes(p) for p in (problem, small, odd_sizes(odd, reach="inputs") or odd)]
    free = [name for name in sizes[0] if len({s[name] for s in sizes}) > 1]
    return [Workload(tuple((name, s[name]) for name in free)) for s in sizes]


def beside(one: Candidate, other: Candidate, fp: FunctionalProblem) -> float:
    """Return the first kernel's CPU time over the second's."""
    torch.manual_seed(3)
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    model, inputs = scope["Model"](*scope["get_init_inputs"]()), scope["get_inputs"]()
    tensors = iter(tensors_of(fp, model, inputs))
    given = [next(tensors) if isinstance(a, TensorArgument) else a.value for a in fp.arguments]
    calls = [call_of(c, fp, given) for c in (one, other)]
    times: list[list[float]] = [[], []]
    until = time.process_time() + PAIRS_S
    while time.process_time() < until or len(times[0]) < 20:
        for call, taken in zip(calls, times, strict=True):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    return statistics.median(times[0]) / statistics.median(times[1])


def call_of(candidate: Candidate, fp: FunctionalProblem, given: Sequence[Any]) -> Callable[[], object]:
    folder = Path(tempfile.mkdtemp())
    if candidate.tier == "kernel":
        outputs = [torch.empty(s.shape, dtype=getattr(torch, s.dtype)) for s in fp.outputs]
        arguments = (*given, *(value for _, value in fp.abi_constants), *outputs)
        module = build(candidate.source, folder)
        return lambda: module.forward(*arguments)
    scope: dict[str, Any] = {"torch": torch, "F": F, "kernels": build(kernels_text(candidate.source), folder)}
    exec(candidate.source, scope)
    return lambda: scope["forward"](*given, **dict(fp.constants))


if __name__ == "__main__":
    main(sys.argv[1:])
