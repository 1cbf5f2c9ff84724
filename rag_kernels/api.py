"""The public Python API: what the command line does, as functions. Start here, and go on to `rag_kernels.wiring`.

Comes in: a problem file, the fields of `Options` as keywords, and a writer, a judge or an archive of the caller's own.
Goes out: records. Knows nothing of terminals and environment variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt
from rag_kernels.archive.store import open_archive
from rag_kernels.eval.build.candidate_form import candidate_from_file
from rag_kernels.eval.judge import Judge
from rag_kernels.eval.records import FunctionalProblem, Problem
from rag_kernels.eval.sizes.workloads import Workload, workloads_of
from rag_kernels.export import packages
from rag_kernels.ingest.functional.functionalize import functionalize as functionalize_problem
from rag_kernels.ingest.functional.functionalize import open_workers
from rag_kernels.ingest.functional.passes import load_pass, pass_of
from rag_kernels.options import Keywords, Options, options_of
from rag_kernels.records import Writer
from rag_kernels.run.session import run_of
from rag_kernels.run.workloads import Search, Served, searched_at
from rag_kernels.wiring import open_session, place_of, target_backend


def generate(
    problem: str | Path,
    *,
    writer: Writer | None = None,
    judge: Judge | None = None,
    archive: Archive | str | Path | None = None,
    resume: str | None = None,
    backward: bool = False,
    training: bool = False,
    **options: Unpack[Keywords],
) -> Iterator[Attempt]:
    """Write, prove, time and archive kernels for a problem file; yields each attempt as it is judged.

    Other keywords are the fields of `Options`: `models`, `device`, `effort`, `hint`... An `archive` is a place or an
    open one. A writer, a judge or an open archive is used as it is and not closed: see `open_session`. A problem, an
    option or a run to resume that cannot be used raises here, before anything is asked for. `backward` takes the
    gradients of the problem's inputs and parameters for the problem, `training` a step of training: the forward and
    these gradients by one kernel. Where the problem has `get_workloads()`, the
    attempts of the best kernels at each follow, and last the chosen one, with the calls that it serves.
    """
    place, opened = place_of(archive)
    settings, loaded = options_of(options, place), _load(problem, backward=backward, training=training)
    workloads = workloads_of(loaded)
    searched = searched_at(loaded, workloads)
    if resume:
        opened = opened or open_archive(place or None)
        run_of(opened, searched, resume)
    return _attempts(loaded, workloads, settings, writer=writer, judge=judge, archive=opened, resume=resume)


def _attempts(
    loaded: Problem,
    workloads: Sequence[Workload],
    settings: Options,
    *,
    writer: Writer | None,
    judge: Judge | None,
    archive: Archive | None,
    resume: str | None,
) -> Iterator[Attempt]:
    with open_session(settings, writer=writer, judge=judge, archive=archive) as session:
        search = Search.of(session, loaded, workloads, resume)
        for event in search.events():
            yield event.attempt if isinstance(event, Served) else event
        if search.found is not None and search.found.choice is not None:
            yield search.found.choice.attempt


def evaluate(
    problem: str | Path,
    kernel: str | Path,
    *,
    judge: Judge | None = None,
    archive: Archive | str | Path | None = None,
    confirm: bool = True,
    backward: bool = False,
    training: bool = False,
    **options: Unpack[Keywords],
) -> Attempt:
    """Judge a kernel from outside and return what came of it (of its confirmation, when it passed)."""
    loaded = _load(problem, backward=backward, training=training)
    place, opened = place_of(archive)
    settings = options_of(options, place)
    candidate = candidate_from_file(Path(kernel), judge.device.backend if judge else target_backend(settings))
    with open_session(settings, judge=judge, archive=opened, backend=candidate.backend) as session:
        return list(session.evaluate(loaded, candidate, confirm=confirm))[-1]


def export_kernel(
    archive: Archive | str | Path, kernel_id: str, form: str, out: Path | None = None, backward: str | None = None
) -> Path:
    """Write an archived kernel as `form`, "source" or a name of docs/exports.md; return the file or folder.

    An `archive` is a place or an open one. Without `out` the result is named after the problem, in the working folder.
    `backward` is a kernel of the problem's backward, by which gradients are computed. Raises ProblemError where there
    is no such kernel, where it cannot be written so, and where a folder of that name is there already.
    """
    place, opened = place_of(archive)
    return packages.export_kernel(opened or open_archive(place or None), kernel_id, form, out, backward)


def functionalize(problem: str | Path, *, backward: bool = False, training: bool = False) -> FunctionalProblem:
    """Return the problem as a parameterized call, checked against the module, with its features."""
    loaded = _load(problem, backward=backward, training=training)
    with open_workers() as workers:
        return functionalize_problem(loaded, workers=workers)


def _load(problem: str | Path, *, backward: bool, training: bool) -> Problem:
    return load_pass(Path(problem), pass_of(backward=backward, training=training))
