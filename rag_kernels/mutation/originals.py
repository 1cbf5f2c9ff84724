"""Honest sources to mutate: the zoo's, the starter archive's, and those of a folder.

Comes in: a backend, perhaps a folder. Goes out: `Original`s, each with the problem it is for. Only kernel-tier sources:
a mutation of C++ or CUDA needs a whole one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rag_kernels.archive.bundle import import_bundle
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchiveError, KernelFilter
from rag_kernels.eval.problem import load_problem, problem_from_source
from rag_kernels.eval.records import Backend, Candidate, Problem, ProblemError
from rag_kernels.eval.zoo.cuda_tasks import CUDA_TASKS, cuda
from rag_kernels.eval.zoo.honest.corpus import cuda_kernels, honest_kernels
from rag_kernels.eval.zoo.tasks import TASKS, cpp
from rag_kernels.retrieval.starter import BUNDLE

SUFFIX: dict[Backend, str] = {"cpu": ".cpp", "cuda": ".cu"}
WRONG_ON_PURPOSE = frozenset({"centred_max"})  # the zoo's degenerate task, whose body writes zeros


@dataclass(frozen=True, slots=True)
class Original:
    """One honest source. `stock` says where it is from: `zoo`, `starter` or the folder's name."""

    name: str
    family: str
    stock: str
    problem: Problem
    candidate: Candidate


def zoo_originals(backend: Backend) -> Iterator[Original]:
    """Yield the zoo's honest kernels, and the plain bodies that its specimens are twins of."""
    for kernel in honest_kernels() if backend == "cpu" else cuda_kernels():
        if kernel.candidate.tier == "kernel":
            problem = problem_from_source("honest_task", kernel.task_source)
            yield Original(kernel.name, kernel.family, "zoo", problem, kernel.candidate)
    for name, task in TASKS.items():
        if name in WRONG_ON_PURPOSE or (backend == "cuda" and name not in CUDA_TASKS):
            continue
        source = cpp(name) if backend == "cpu" else cuda(name)
        problem = problem_from_source(name, task.problem)
        yield Original(f"{name}, plain", "plain", "zoo", problem, Candidate(source, "kernel", backend))


def starter_originals(backend: Backend) -> Iterator[Original]:
    """Yield the kernels of the starter archive."""
    archive = MemoryArchive()
    import_bundle(archive, BUNDLE)
    for kernel in archive.kernels(KernelFilter(backend=backend)):
        if kernel.candidate.tier == "kernel":
            try:
                problem = archive.evaluation(kernel.id)[0].problem
            except ArchiveError:  # it is claimed to be right, with no evaluation, and nobody has its problem
                continue
            yield Original(f"{problem.name}, {kernel.candidate.id}", "starter", "starter", problem, kernel.candidate)


def folder_originals(folder: Path, backend: Backend) -> Iterator[Original]:
    """Yield the sources of a folder that have their problem beside them: `NAME.cpp` or `NAME.cu` with `NAME.py`.

    Raises ProblemError where there is none.
    """
    files = [file for file in sorted(folder.glob(f"*{SUFFIX[backend]}")) if file.with_suffix(".py").is_file()]
    if not files:
        raise ProblemError(
            f"{folder} has no kernel for {backend} beside its problem; put NAME.py beside NAME{SUFFIX[backend]}."
        )
    for file in files:
        candidate = Candidate(file.read_text(), "kernel", backend)
        yield Original(file.stem, folder.name, folder.name, load_problem(file.with_suffix(".py")), candidate)
