"""Write the site of an archive into a folder.

Comes in: an archive and a folder. Goes out: HTML files, the kernels' sources and modules, the whole list as CSV. Reads
only: nothing is compiled or run. Everything is written beside the folder first and moved there at the end, so that a
site that is being served is never half of one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

from rag_kernels.app import exports, figures
from rag_kernels.app.columns import EVERYTHING
from rag_kernels.app.descent import likely_sources
from rag_kernels.app.exports import File
from rag_kernels.app.site import pages
from rag_kernels.app.snapshot import Snapshot
from rag_kernels.app.spreadsheet import kernels_csv
from rag_kernels.archive import browse, queries
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.records import ArchiveError
from rag_kernels.eval.errors import ProblemError, RagKernelsError
from rag_kernels.export.packages import licence_of
from rag_kernels.retrieval.starter import starter_ids
from rag_kernels.version import __version__

ROWS = 100  # of a page of a list
TRUST = ("confirmed", "verified", "compiled", "claimed")
MARK = "index.html"


class SiteError(RagKernelsError):
    """The site cannot be written there; the message says why."""


@dataclass(frozen=True, slots=True)
class Written:
    """Hold what a site came to."""

    folder: str
    pages: int
    kernels: int
    problems: int
    largest_page_bytes: int
    bytes: int


def write_site(archive: DuckArchive, folder: Path, tell: Callable[[int, int], None] = lambda done, of: None) -> Written:
    """Write the site; `tell` hears how many pages of how many are written. A folder that holds something else is left.

    Raises SiteError where the folder is not a site's or cannot be made, ArchiveError where the archive cannot be read.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARK).is_file())):
        raise SiteError(f"{folder} holds something that is no site: name a new folder, or an empty one.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise SiteError(f"{folder} cannot be made ({error.strerror}): name a folder that can be written.") from error
    try:
        site = Site(archive, made)
        sizes = []
        for done, size in enumerate(site.write(), 1):
            sizes.append(size)
            tell(done, site.wanted)
        made.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        made.replace(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Written(str(folder), len(sizes), len(site.kernel_ids), len(site.problem_ids), max(sizes), total)


class Site:
    """One site while it is written."""

    def __init__(self, archive: DuckArchive, root: Path) -> None:
        self.archive, self.root = archive, root
        self.lists = Snapshot(archive)
        self.kernels = self.lists.kernels(EVERYTHING, order="speedup", count=self.lists.count(EVERYTHING) or 1)
        problems = self.lists.problems().sort_values(["speedup", "id"], ascending=[False, True], na_position="last")
        self.problems = problems.reset_index(drop=True)
        self.kernel_ids, self.problem_ids = list(self.kernels["id"]), list(self.problems["id"])
        self.about = f"Written by rag-kernels {__version__} on {datetime.now(UTC):%d %B %Y}."
        self.licence = cache(partial(licence_of, archive))  # which many kernels' cards name
        for name in ("kernel", "problem", "files"):
            (root / name).mkdir()

    @property
    def wanted(self) -> int:
        """Return how many pages there will be."""
        lists = max(1, -(-len(self.kernels) // ROWS)) + max(1, -(-len(self.problems) // ROWS))
        return 1 + lists + len(self.kernel_ids) + len(self.problem_ids)

    def write(self) -> Iterator[int]:
        """Write every page; yield the bytes of each."""
        (self.root / "kernels.csv").write_text(kernels_csv(self.kernels), encoding="utf-8")
        yield self._page("index.html", self._first())
        for here, start, count in _parts(len(self.kernels)):
            rows = self.kernels.iloc[start : start + ROWS]
            text = pages.kernel_list(rows, here, count, len(self.kernels), self.about)
            yield self._page(f"kernels-{here}.html", text)
        for here, start, count in _parts(len(self.problems)):
            rows = self.problems.iloc[start : start + ROWS]
            text = pages.problem_list(rows, here, count, len(self.problems), self.about)
            yield self._page(f"problems-{here}.html", text)
        for problem_id in self.problem_ids:
            yield self._page(f"problem/{problem_id}.html", self._problem(problem_id))
        for kernel_id in self.kernel_ids:
            yield self._page(f"kernel/{kernel_id}.html", self._kernel(kernel_id))

    def _page(self, name: str, text: str) -> int:
        return (self.root / name).write_bytes(text.encode())

    def _file(self, file: File) -> bool:
        """Write a file to take along; return whether this kernel can be written so."""
        try:
            (self.root / "files" / file.name).write_bytes(file.content())
        except ProblemError:
            return False
        return True

    def _first(self) -> str:
        held = browse.holdings(self.archive, starter_ids())
        summary = figures.summary(self.lists.standing(), self.lists.best(), len(self.problems), self.archive.stats())
        return pages.first(
            held, self.lists.wins(count=10), self.lists.best(count=25), summary, len(self.kernels), self.about
        )

    def _problem(self, problem_id: str) -> str:
        found = browse.functional(self.archive, problem_id)
        if found is None:
            raise ArchiveError(
                f"The problem {problem_id} has no functional form: `rag-kernels archive verify` says more."
            )
        rows = [figures.plain_row(a) | {"outcome": a.verdict} for a in browse.attempts_on(self.archive, problem_id)]
        attempts = figures.table(rows, ("kernel_id", "outcome", "speedup", "at_least", "created_at"))
        devices = browse.devices_of(self.archive, problem_id)
        return pages.problem(found, self.lists.ranked(problem_id), attempts, devices, self.about)

    def _kernel(self, kernel_id: str) -> str:
        kernel = self.archive.kernel(kernel_id)
        if kernel is None:
            raise ArchiveError(
                f"The kernel {kernel_id} is listed and not there: `rag-kernels archive verify` says more."
            )
        made = browse.origin(self.archive, kernel_id)
        functional = browse.functional(self.archive, kernel.problem_id)
        known = exports.of_kernel(self.archive, kernel, functional, self.licence)
        files = [file for file in known if file.is_text and self._file(file)]
        evaluations = queries.evaluations(self.archive, kernel_id)
        facts = pages.KernelFacts(
            kernel,
            sorted(evaluations, key=lambda e: TRUST.index(e.trust)),
            likely_sources(self.archive, kernel, made),
            queries.lineage_graph(self.archive, kernel_id),
            files,
            [file.form for file in known if not file.is_text],
        )
        return pages.kernel(facts, self.about)


def _parts(total: int) -> Iterator[tuple[int, int, int]]:
    """Yield the pages of a list: number, first row, and how many pages there are."""
    count = max(1, -(-total // ROWS))
    for here in range(1, count + 1):
        yield here, ROWS * (here - 1), count
