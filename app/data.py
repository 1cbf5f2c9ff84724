"""The only reads of the archive: read-only, cached until the archive changes.

Comes in: the archive's folder or address, ids, words. Goes out: tables (pandas) for lists and charts, records for
single pages. Tables are shared between sessions, so pages derive from them and never change them. Knows nothing of
looks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from rag_kernels.app import figures
from rag_kernels.app.columns import EVERYTHING, Where
from rag_kernels.app.descent import Source, likely_sources
from rag_kernels.app.exports import File, of_kernel
from rag_kernels.app.snapshot import Snapshot
from rag_kernels.archive import browse, quack, queries
from rag_kernels.archive.browse import Failure, Holdings, Paid, ProblemSet, Pulse
from rag_kernels.archive.claims import claims_of
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.queries import Evaluation, LineageGraph
from rag_kernels.archive.records import ArchivedKernel, ArchiveError, Attempt, Claim, LLMCall, Run
from rag_kernels.archive.store import DATABASE, open_archive
from rag_kernels.eval import codec
from rag_kernels.eval.admission_records import Admission
from rag_kernels.eval.errors import RagKernelsError
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.records import Device, FunctionalProblem
from rag_kernels.eval.sessions.admission import admission_file
from rag_kernels.ingest.description.embedder import Embedder, EmbedderError, load_embedder
from rag_kernels.retrieval.retriever import Retriever
from rag_kernels.retrieval.starter import starter_ids

MANY_RUNS = 100_000
SIMILAR = 200
LARGE = 2_000  # kernels: from here on the lists may lag behind a growing archive
LONGEST_LAG_S = 5.0
SEARCH_LAG = 10  # times as long for searches, whose index takes longer to make
STANDING = Where()
CHOSEN = "archive folder"


class SearchError(RagKernelsError):
    """The search cannot be done here; the message says why and what to do."""


@dataclass(slots=True)
class Clock:
    """Hold the version of an archive that lists are shown at, and when it was last looked up; the same for searches."""

    version: str = ""
    seen_at: float = 0.0
    lag_s: float = 0.0
    retriever: Retriever | None = None
    searched: str = ""
    searched_at: float = 0.0


def choose(place: str) -> None:
    """Say which archive this session looks at: a folder, or a server's address."""
    st.session_state[CHOSEN] = place


def warm(place: str) -> None:
    """Read the lists and make the search ready before the first page asks; what fails here is told there."""
    with suppress(ArchiveError, SearchError):
        if _exists(place):
            version = queries.version(_open(place))
            _lists(place, version)
            _retriever(place, version).search("relu", count=1)


def is_empty() -> bool:
    """Return whether there is nothing to show; an archive that does not exist is not created."""
    return not _exists(st.session_state[CHOSEN]) or (lists().count(EVERYTHING) == 0 and runs().empty)


def _exists(place: str) -> bool:
    return quack.is_address(place) or (Path(place) / DATABASE).exists()


@st.cache_resource(show_spinner=False, max_entries=4)
def _open(folder: str) -> DuckArchive:
    """Open the database alone: a search from here leaves the vector index as it is."""
    return DuckArchive(open_archive(folder).database)


def _archive() -> DuckArchive:
    return _open(st.session_state[CHOSEN])


@st.cache_resource(show_spinner=False, max_entries=4)
def _clock(folder: str) -> Clock:
    return Clock()


def _now() -> tuple[str, str]:
    """Return what a cached list depends on: the archive and its version.

    Reading the lists of a large archive takes a few tenths of a second, so under a growth job they are read every
    few seconds rather than at every click. Single pages always show the archive as it is.
    """
    folder = st.session_state[CHOSEN]
    clock = _clock(folder)
    if time.monotonic() - clock.seen_at >= clock.lag_s:
        clock.version, clock.seen_at = queries.version(_open(folder)), time.monotonic()
    return folder, clock.version


# --- lists


def lists() -> Snapshot:
    """Return kernels, problems, leaderboards and sums over attempts; to filter, sort and page through."""
    return _lists(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _lists(folder: str, version: str) -> Snapshot:
    found = Snapshot(_open(folder))
    kernels = found.count(EVERYTHING)
    _clock(folder).lag_s = 0.0 if kernels < LARGE else min(LONGEST_LAG_S, kernels / 10_000)
    return found


def runs() -> pd.DataFrame:
    """Return a row for each run, newest first, with what came of it."""
    return _runs(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _runs(folder: str, version: str) -> pd.DataFrame:
    about = browse.problems_of_runs(_open(folder))
    rows = [
        figures.run_row(run) | {"problem_id": about.get(run.run_id, "")}
        for run in queries.run_table(_open(folder), MANY_RUNS)
    ]
    return figures.table(rows, figures.RUN_COLUMNS)


def run_row(run_id: str) -> pd.DataFrame:
    table = runs()
    return table[table["id"] == run_id]


def attempts_of(run_id: str) -> pd.DataFrame:
    """Return the attempts of one run, in order, as the archive is now."""
    rows = [figures.attempt_row(a) for a in queries.attempts_of_run(_archive(), run_id)]
    return figures.table(rows, figures.ATTEMPT_COLUMNS)


def attempts_on(problem_id: str) -> pd.DataFrame:
    """Return every attempt on a problem, oldest first."""
    found = browse.attempts_on(_archive(), problem_id)
    rows = [figures.plain_row(a) | {"outcome": a.verdict.replace("_", " ")} for a in found]
    return figures.table(rows, ("run_id", "number", "kernel_id", "outcome", "speedup", "at_least", "created_at"))


def failures(run_id: str | None = None) -> pd.DataFrame:
    """Return why attempts failed, grouped: of one run, or of all."""
    found = _failures(*_now()) if run_id is None else browse.failures(_archive(), run_id)
    return figures.table([figures.failure_row(f) for f in found], figures.FAILURE_COLUMNS)


@st.cache_resource(show_spinner=False, max_entries=2)
def _failures(folder: str, version: str) -> list[Failure]:
    return browse.failures(_open(folder))


def summary() -> figures.Summary:
    shown = lists()
    return figures.summary(shown.standing(), shown.best(), len(shown.problems()), _stats(*_now()))


@st.cache_resource(show_spinner=False, max_entries=2)
def _stats(folder: str, version: str) -> dict[str, int | float]:
    return _open(folder).stats()


def holdings() -> Holdings:
    """Return how many kernels there are by what speaks for them."""
    return _holdings(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _holdings(folder: str, version: str) -> Holdings:
    return browse.holdings(_open(folder), starter_ids())


def running() -> list[Run]:
    """Return the runs under way, newest first, as the archive is now."""
    return browse.running(_archive())


def pulse(run_id: str) -> Pulse:
    """Return what a run did last and what it has used."""
    return browse.pulse(_archive(), run_id)


def problem_sets() -> list[ProblemSet]:
    """Return what a leaderboard can be kept to: the problems of a growth job, or of an importer."""
    return _problem_sets(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _problem_sets(folder: str, version: str) -> list[ProblemSet]:
    return browse.problem_sets(_open(folder))


# --- one thing


def kernel(kernel_id: str) -> ArchivedKernel | None:
    """Return a kernel by id or prefix; None also when the prefix fits several."""
    try:
        return _archive().kernel(kernel_id)
    except ArchiveError:
        return None


def evaluations(kernel_id: str) -> list[Evaluation]:
    """Return every judgement of a kernel: the most trusted first, then the newest."""
    order = ("confirmed", "verified", "compiled", "claimed")
    return sorted(queries.evaluations(_archive(), kernel_id), key=lambda e: order.index(e.trust))


def claims(kernel_id: str) -> list[Claim]:
    """Return what the source of an imported kernel says of it."""
    return claims_of(_archive(), kernel_id)


def origin(kernel_id: str) -> Attempt | None:
    """Return the attempt that first brought this kernel; None for an imported one."""
    return browse.origin(_archive(), kernel_id)


def attempt(run_id: str, number: int) -> Attempt | None:
    return browse.attempt(_archive(), run_id, number)


def run(run_id: str) -> Run | None:
    return browse.run(_archive(), run_id)


def problem(problem_id: str) -> FunctionalProblem | None:
    return browse.functional(_archive(), problem_id)


def problem_of_source(source: str) -> FunctionalProblem | None:
    """Return the archived problem with this very source."""
    return problem(content_id("p", source))


def devices_of(problem_id: str) -> list[Device]:
    """Return the devices on which kernels of a problem were judged."""
    return browse.devices_of(_archive(), problem_id)


def admissions(found: FunctionalProblem) -> list[tuple[Device, Admission]]:
    """Return what `rag-kernels check`, or judging, found out about a problem on the devices of its kernels."""
    reports = []
    for device in devices_of(found.problem.id):
        file = admission_file(found, device, cache=default_cache())
        if file.is_file():
            reports.append((device, codec.loads(file.read_text())))
    return reports


def files_of(found: ArchivedKernel) -> list[File]:
    """Return the files in which a kernel can be taken along."""
    return of_kernel(_archive(), found, problem(found.problem_id))


def sources_of(found: ArchivedKernel, made: Attempt | None) -> list[Source]:
    """Return the kernels that this one may have been made from, the one that it comes from first."""
    return likely_sources(_archive(), found, made)


def calls(run_id: str) -> list[LLMCall]:
    return _archive().calls(run_id)


def calls_of(made: Attempt) -> list[LLMCall]:
    """Return the calls that led to an attempt."""
    return [call for call in calls(made.run_id) if call.id in made.call_ids]


def family(kernel_id: str) -> LineageGraph:
    """Return ancestors and descendants of a kernel."""
    return queries.lineage_graph(_archive(), kernel_id)


def rows_of(kernel_ids: Sequence[str]) -> pd.DataFrame:
    """Return kernels as lists show them."""
    return lists().kernels(Where(ids=tuple(kernel_ids), hidden=True), count=len(kernel_ids))


# --- retrieval


def exemplars(made: Attempt) -> pd.DataFrame:
    """Return what the writer of an attempt was shown, best ranked first: each signal, and what it brought."""
    known: dict[str, Paid] = {p.kernel_id: p for p in browse.paid(_archive(), [e.kernel_id for e in made.exemplars])}
    rows = [
        figures.exemplar_row(e, known.get(e.kernel_id), made.candidate.source)
        for e in sorted(made.exemplars, key=lambda e: e.rank)
    ]
    return figures.table(rows, figures.EXEMPLAR_COLUMNS)


def credit() -> pd.DataFrame:
    """Return the exemplars that helped most, and what they are."""
    return _credit(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _credit(folder: str, version: str) -> pd.DataFrame:
    rows = [figures.plain_row(c) for c in browse.credit(_open(folder))]
    table = figures.table(rows, ("kernel_id", "shown", "passed", "won", "median_speedup"))
    names = rows_of(tuple(table["kernel_id"]))[["id", "problem", "idea"]]
    return table.merge(names, left_on="kernel_id", right_on="id")


def signal_records() -> pd.DataFrame:
    return _signal_records(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _signal_records(folder: str, version: str) -> pd.DataFrame:
    return figures.signal_table(browse.signal_records(_open(folder)))


def attempts_with_exemplars(limit: int = 200) -> pd.DataFrame:
    """Return the newest attempts whose writers were shown something."""
    rows = [figures.attempt_row(a) for a in browse.attempts_with_exemplars(_archive(), limit)]
    return figures.table(rows, figures.ATTEMPT_COLUMNS)


def ablation() -> pd.DataFrame:
    """Return a row for each way of retrieval, where the archive is the results of `rag-kernels ablate`."""
    return _ablation(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _ablation(folder: str, version: str) -> pd.DataFrame:
    archive = _open(folder)
    trials = [r for r in archive.runs(MANY_RUNS) if r.command == "ablate" and r.status == "finished"]
    return figures.ablation([(trial, queries.attempts_of_run(archive, trial.id)) for trial in trials])


# --- search


def of_run(run_id: str) -> tuple[str, ...]:
    """Return ids of the kernels that a run judged."""
    return tuple(dict.fromkeys(a.candidate_id for a in queries.attempts_of_run(_archive(), run_id)))


def containing(text: str) -> tuple[str, ...]:
    """Return ids of the kernels whose name, idea or source holds the text."""
    return _containing(*_now(), text)


@st.cache_resource(show_spinner="Searching…", max_entries=32)
def _containing(folder: str, version: str, text: str) -> tuple[str, ...]:
    return browse.kernels_with(_open(folder), text)


def similar(text: str) -> pd.DataFrame:
    """Return the kernels nearest in meaning to words or to a module's source, best first: id, and why each was
    found.

    Raises SearchError where no search can be done.
    """
    return _similar(*_now(), text)


@st.cache_resource(show_spinner="Searching…", max_entries=32)
def _similar(folder: str, version: str, text: str) -> pd.DataFrame:
    hits = _retriever(folder, version).search(text, count=SIMILAR)
    rows = [{"id": hit.kernel.id, "why": ", ".join(hit.reasons)} for hit in hits]
    return figures.table(rows, ("id", "why"))


def _retriever(folder: str, version: str) -> Retriever:
    clock = _clock(folder)
    waited = time.monotonic() - clock.searched_at >= SEARCH_LAG * clock.lag_s
    if clock.retriever is None or (clock.searched != version and waited):
        clock.retriever = Retriever(_open(folder), _embedder(), fixed=True)
        clock.searched, clock.searched_at = version, time.monotonic()
    return clock.retriever


@st.cache_resource(show_spinner=False)
def _embedder() -> Embedder:
    try:
        return load_embedder()
    except EmbedderError as error:
        raise SearchError(str(error)) from error
