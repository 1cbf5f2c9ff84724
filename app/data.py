"""The one place that asks the archive: read-only, cached until the archive changes.

Comes in: the archive's folder, ids, words. Goes out: tables (pandas) for lists and charts, records for single pages.
Tables are shared between sessions, so pages derive from them and never change them. Knows nothing of looks.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from app import figures
from archive import queries
from archive.claims import claims_of
from archive.database import FileDatabase
from archive.duck import DuckArchive
from archive.queries import Evaluation, LineageGraph
from archive.records import ArchivedKernel, ArchiveError, Attempt, Claim, KernelFilter, LLMCall, Run
from archive.store import DATABASE
from eval.records import FunctionalProblem
from ingest.embedder import Embedder, EmbedderError, load_embedder
from rag_kernels.retrieval import Retriever

EVERY = KernelFilter(include_retracted=True)
MANY_RUNS = 100_000
RECENT_RUNS = 500  # whose attempts are in the table of attempts
SIMILAR = 50
CHOSEN = "archive folder"


class SearchError(Exception):
    """The search cannot be done here; the message says why and what to do."""


def choose(folder: Path) -> None:
    """Say which archive this session looks at."""
    st.session_state[CHOSEN] = str(folder)


def is_empty() -> bool:
    """True when there is nothing to show; an archive that does not exist is not created."""
    folder = Path(st.session_state[CHOSEN])
    return not (folder / DATABASE).exists() or (kernels().empty and runs().empty)


@st.cache_resource(show_spinner=False, max_entries=4)
def _open(folder: str) -> DuckArchive:
    """The database alone: a search from here leaves the vector index as it is."""
    return DuckArchive(FileDatabase(Path(folder) / DATABASE))


def _archive() -> DuckArchive:
    return _open(st.session_state[CHOSEN])


def _now() -> tuple[str, str]:
    """What a cached answer depends on: the archive and its version."""
    folder = st.session_state[CHOSEN]
    return folder, queries.version(_open(folder))


# --- tables


def kernels() -> pd.DataFrame:
    """A row a kernel, with the evaluation that speaks best for it; retracted ones too."""
    return _kernels(*_now())


@st.cache_resource(show_spinner="Reading the archive…", max_entries=2)
def _kernels(folder: str, version: str) -> pd.DataFrame:
    return figures.table([figures.kernel_row(k) for k in _open(folder).kernels(EVERY)], figures.KERNEL_COLUMNS)


def places() -> pd.DataFrame:
    """The leaderboard: a row for each verified kernel, problem and device that it was timed on."""
    return _places(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _places(folder: str, version: str) -> pd.DataFrame:
    rows = [figures.place_row(place) for place in queries.leaderboard(_open(folder))]
    return figures.table(rows, figures.PLACE_COLUMNS)


def runs() -> pd.DataFrame:
    """A row a run, newest first, with what came of it."""
    return _runs(*_now())


@st.cache_resource(show_spinner=False, max_entries=2)
def _runs(folder: str, version: str) -> pd.DataFrame:
    rows = [figures.run_row(run) for run in queries.run_table(_open(folder), MANY_RUNS)]
    return figures.table(rows, figures.RUN_COLUMNS)


def attempts() -> pd.DataFrame:
    """A row an attempt, failed ones too, of the most recent runs."""
    return _attempts(*_now())


@st.cache_resource(show_spinner="Reading the attempts…", max_entries=2)
def _attempts(folder: str, version: str) -> pd.DataFrame:
    recent = _runs(folder, version).head(RECENT_RUNS)
    rows = [row for run in recent.itertuples() for row in _attempts_of_run(folder, run.id, run.attempts)]
    return figures.table(rows, figures.ATTEMPT_COLUMNS)


@st.cache_resource(show_spinner=False, max_entries=2 * RECENT_RUNS)
def _attempts_of_run(folder: str, run_id: str, count: int) -> list[dict[str, object]]:
    """Attempts are only ever added, so a run with the same count is the same: a live archive costs one run."""
    return [figures.attempt_row(a) for a in queries.attempts_of_run(_open(folder), run_id)]


def attempts_of(run_id: str) -> pd.DataFrame:
    """The attempts of one run, in order."""
    table = runs()
    count = int(table.loc[table["id"] == run_id, "attempts"].sum())
    rows = _attempts_of_run(st.session_state[CHOSEN], run_id, count)
    return figures.table(rows, figures.ATTEMPT_COLUMNS)


def problems() -> pd.DataFrame:
    return figures.problems(kernels(), places(), attempts())


def summary() -> figures.Summary:
    return figures.summary(places(), len(problems()), _stats(*_now()))


@st.cache_resource(show_spinner=False, max_entries=2)
def _stats(folder: str, version: str) -> dict[str, int | float]:
    return _open(folder).stats()


# --- one thing


def kernel(kernel_id: str) -> ArchivedKernel | None:
    """By id or prefix; None also when the prefix fits several."""
    try:
        return _archive().kernel(kernel_id)
    except ArchiveError:
        return None


def evaluations(kernel_id: str) -> list[Evaluation]:
    """Every judgement of a kernel: the most trusted first, then the newest."""
    order = ("confirmed", "verified", "compiled", "claimed")
    return sorted(queries.evaluations(_archive(), kernel_id), key=lambda e: order.index(e.trust))


def claims(kernel_id: str) -> list[Claim]:
    """What the source of an imported kernel says of it."""
    return claims_of(_archive(), kernel_id)


def origin(kernel_id: str) -> Attempt | None:
    """The attempt that first brought this kernel; None for an imported one."""
    judged = queries.attempts_of_kernel(_archive(), kernel_id)
    return attempt(judged[-1].run_id, judged[-1].number) if judged else None


def attempt(run_id: str, number: int) -> Attempt | None:
    return next((a for a in _run_attempts(*_now(), run_id) if a.number == number), None)


@st.cache_resource(show_spinner=False, max_entries=8)
def _run_attempts(folder: str, version: str, run_id: str) -> list[Attempt]:
    return _open(folder).attempts(run_id)


def run(run_id: str) -> Run | None:
    return next((r for r in _every_run(*_now()) if r.id == run_id), None)


@st.cache_resource(show_spinner=False, max_entries=2)
def _every_run(folder: str, version: str) -> list[Run]:
    return _open(folder).runs(MANY_RUNS)


def problem(problem_id: str) -> FunctionalProblem | None:
    """As an attempt on it recorded it; None when its kernels were imported without their attempts."""
    table = attempts()
    mine = table[table["problem_id"] == problem_id]
    if len(mine):
        found = attempt(mine.iloc[-1]["run_id"], int(mine.iloc[-1]["number"]))
    else:
        ids = kernels().query("problem_id == @problem_id")["id"]
        found = next((a for a in map(origin, ids) if a is not None and a.problem.problem.id == problem_id), None)
    return found.problem if found else None


def calls(run_id: str) -> list[LLMCall]:
    return _calls(*_now(), run_id)


@st.cache_resource(show_spinner=False, max_entries=8)
def _calls(folder: str, version: str, run_id: str) -> list[LLMCall]:
    return _open(folder).calls(run_id)


def calls_of(made: Attempt) -> list[LLMCall]:
    """The calls that led to an attempt."""
    return [call for call in calls(made.run_id) if call.id in made.call_ids]


def family(kernel_id: str) -> LineageGraph:
    """Ancestors and descendants of a kernel."""
    return queries.lineage_graph(_archive(), kernel_id)


def exemplars(made: Attempt) -> pd.DataFrame:
    """The kernels that the writer of an attempt was shown, best ranked first."""
    known = kernels().set_index("id")
    rows = [figures.exemplar_row(e, known) for e in sorted(made.exemplars, key=lambda e: e.rank)]
    return figures.table(rows, figures.EXEMPLAR_COLUMNS)


# --- search


def containing(text: str) -> set[str]:
    """Ids of the kernels whose name, idea or source holds the text."""
    return _containing(*_now(), text)


@st.cache_resource(show_spinner="Searching…", max_entries=32)
def _containing(folder: str, version: str, text: str) -> set[str]:
    found = queries.kernel_table(_open(folder), KernelFilter(text=text, include_retracted=True))
    return {row.id for row in found}


def similar(text: str) -> pd.DataFrame:
    """The kernels nearest in meaning, best first: id, and why each was found."""
    return _similar(*_now(), text)


@st.cache_resource(show_spinner="Searching…", max_entries=32)
def _similar(folder: str, version: str, text: str) -> pd.DataFrame:
    hits = _retriever(folder).search(text, count=SIMILAR)
    rows = [{"id": hit.kernel.id, "why": ", ".join(hit.reasons)} for hit in hits]
    return figures.table(rows, ("id", "why"))


@st.cache_resource(max_entries=1)
def _retriever(folder: str) -> Retriever:
    return Retriever(_open(folder), _embedder())


@st.cache_resource(show_spinner="Loading the embedding model…")
def _embedder() -> Embedder:
    try:
        return load_embedder()
    except EmbedderError as error:
        raise SearchError(str(error)) from error
