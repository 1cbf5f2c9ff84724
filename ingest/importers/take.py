"""Importing: read a source, store what it holds as claims, and say what was left out.

Comes in: an archive, an importer and a path. Goes out: a `Report`. Nothing of what is imported is run here, so thirty
thousand rows take seconds; `functionalize_imported` works out the functional forms afterwards, once for each problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rag_kernels.archive.claims import add_functionals, take, without_functional
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Imported
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Problem
from rag_kernels.ingest.description.embedder import Embedder
from rag_kernels.ingest.description.pipeline import embed_problem
from rag_kernels.ingest.functional.functionalize import Row, functionalize_many
from rag_kernels.ingest.importers.protocol import Importer, Skipped, stated

BATCH = 4000


@dataclass(slots=True)
class Report:
    """The counts of one import, by table: what it read and what of it is new; and the rows skipped, each with the
    reason.
    """

    read: int = 0
    new: Counter[str] = field(default_factory=Counter)
    skipped: list[Skipped] = field(default_factory=list)


def import_from(archive: Archive, importer: Importer, path: Path, *, batch: int = BATCH) -> Report:
    """Take in everything that the importer finds; what is there already stays, so it can be repeated."""
    report = Report()
    waiting: list[Imported] = []
    for one in importer.read(path):
        report.read += 1
        if isinstance(one, Skipped):
            report.skipped.append(one)
            continue
        waiting.append(one)
        if len(waiting) == batch:
            report.new.update(take(archive, waiting))
            waiting.clear()
    report.new.update(take(archive, waiting))
    return report


def functionalize_imported(archive: Archive, embedder: Embedder, *, workers: Workers, jobs: int = 2) -> Iterator[Row]:
    """Work out the functional form of every imported problem that has none, and embed its kernels by it.

    A problem for which that fails keeps the text of its source, with the reason beside it.
    """
    problems = without_functional(archive)
    for problem, row in zip(problems, functionalize_many(problems, workers=workers, jobs=jobs), strict=True):
        if row.functional is None:
            _note_failure(archive, problem, row.reason)
        else:
            add_functionals(archive, [row.functional])
            embed_problem(archive, problem.id, embedder)
        yield row


def _note_failure(archive: Archive, problem: Problem, reason: str) -> None:
    with archive.database.read() as con:
        [(source,)] = con.execute(
            "SELECT source FROM functionals WHERE problem_id = ? ORDER BY id LIMIT 1", [problem.id]
        ).fetchall()
    add_functionals(archive, [stated(problem, source, f"not functionalized here: {reason}")])
