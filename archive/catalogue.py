"""The columns of an archive that ranking reads: one row a kernel, sorted by the functional problem it stands for.

Comes in: a database, the name of an embedding model, and the device whose measurements come first. Goes out: a
`Catalogue` of numpy arrays, read in one transaction, and whole kernels for the few rows that were chosen. Kernels
that no judge ever ran, retracted ones, suspicious ones and stale measurements are left out. Knows nothing of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rag_kernels.archive import rows
from rag_kernels.archive.connection import literal
from rag_kernels.archive.records import ArchivedKernel, ArchiveError
from rag_kernels.eval import codec
from rag_kernels.eval.records import FunctionalProblem, Judged

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Names = NDArray[np.bytes_]


@dataclass(frozen=True, slots=True)
class FunctionalRow:
    """Hold a functional problem that some kernel solves. `number` is its index in `Catalogue.functionals`."""

    id: str
    graph_key: str
    source: str
    operators: tuple[str, ...]
    ranks: tuple[int, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    flops: float  # of its products
    bytes_moved: float  # that any implementation must move


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Hold all kernels that may be shown, as columns.

    Arrays of one length have shape (kernels,); `vectors` has shape (functionals, dimensions).
    """

    functionals: tuple[FunctionalRow, ...]
    texts: tuple[str, ...]  # distinct names of problems with ideas and labels
    devices: tuple[str, ...]
    vectors: Floats  # all zeros where no kernel of the functional is embedded
    kernel_id: Names
    evaluation_id: Names
    functional: Ints  # the number of the functional problem; never falls
    text: Ints  # the number of the text
    problem_names: tuple[str, ...]  # distinct
    problem_name: Ints  # the number of the name of the problem that the kernel's evaluation is of
    on_cuda: NDArray[np.bool_]
    here: NDArray[np.bool_]  # measured on the device that was asked for; all, where none was
    device: Ints  # number of the device's name
    trust: Ints  # 1 claimed, 3 verified, 4 confirmed, as `trust_rank` has it
    speedup: Floats  # nan where it is unknown
    floor_fraction: Floats  # nan where it is unknown
    helped: Ints  # kernels that were made from this one and are faster than the baselines
    gain: Floats  # how many times as fast as its slowest parent it is, 0 where that is unknown
    judged_problem: Names  # in order; beside it `judged_kernel`, for every kernel that was ever judged on the problem
    judged_kernel: Names
    places: Ints  # for each kernel, where its rows stood in the tables of PLACED: whole kernels are found by it

    def solvers(self, problem_ids: Iterable[str]) -> Names:
        """Return the kernels that were ever judged on one of these problems: they may give its answer away."""
        asked = [problem_id.encode() for problem_id in problem_ids]
        first = np.searchsorted(self.judged_problem, asked, side="left")
        last = np.searchsorted(self.judged_problem, asked, side="right")
        parts = [self.judged_kernel[a:b] for a, b in zip(first, last, strict=True)]
        return np.concatenate(parts) if parts else self.judged_kernel[:0]


# Of a kernel's evaluations the one that speaks for it: on this device, then most trusted, then fastest. As in
# `kernel_cards`, of several on one problem and device only the most trusted and newest counts. A kernel that is only
# claimed has no evaluation; the ids that say what it is stand in for it.
KERNELS = """
    WITH
    latest AS (
        SELECT *, rowid AS place FROM evaluations
        WHERE trust <> 'compiled' AND len(barring(labels)) = 0
            AND kernel_id NOT IN (SELECT kernel_id FROM retractions) AND id NOT IN (SELECT evaluation_id FROM stale)
        QUALIFY row_number() OVER (
            PARTITION BY kernel_id, problem_id, device_key ORDER BY trust_rank(trust) DESC, created_at DESC, id
        ) = 1
    ),
    standing AS (
        SELECT
            id, kernel_id, problem_id, functional_id, trust, label, device_key, device_name, told AS speedup,
            told_floor AS floor_fraction, place
        FROM latest
        UNION ALL
        SELECT concat_ws(' ', kernel_id, problem_id, functional_id), kernel_id, problem_id, functional_id,
            'claimed', '', '', '', NULL, NULL, -1
        FROM only_claimed
        WHERE warning = '' AND kernel_id NOT IN (SELECT kernel_id FROM retractions)
    ),
    best AS (
        SELECT * FROM standing
        QUALIFY row_number() OVER (
            PARTITION BY kernel_id
            ORDER BY device_key = {device} DESC, trust_rank(trust) DESC, speedup DESC NULLS LAST, problem_id, device_key
        ) = 1
    ),
    led AS (
        SELECT edges.source, count(DISTINCT edges.child) AS count
        FROM edges JOIN best ON best.kernel_id = edges.child
        WHERE best.speedup > 1 AND edges.relation <> 'retrieved'  -- which was merely in view
        GROUP BY edges.source
    ),
    gained AS (
        SELECT edges.child, max(above.candidate_us / below.candidate_us) AS gain
        FROM edges
        JOIN latest AS below ON below.kernel_id = edges.child
        JOIN latest AS above
            ON above.kernel_id = edges.source AND above.problem_id = below.problem_id
            AND above.device_key = below.device_key
        WHERE edges.relation IN ('parent', 'crossover')
        GROUP BY edges.child
    )
    SELECT
        best.kernel_id, best.id AS evaluation_id, best.functional_id,
        concat_ws(' ', p.name, i.text, best.label) AS text,
        p.name AS problem_name,
        c.backend = 'cuda' AS on_cuda,
        {device} = '' OR best.device_key = {device} AS here,
        best.device_name,
        trust_rank(best.trust) AS trust,
        coalesce(best.speedup, 'nan'::DOUBLE) AS speedup,
        coalesce(best.floor_fraction, 'nan'::DOUBLE) AS floor_fraction,
        coalesce(led.count, 0) AS helped,
        coalesce(gained.gain, 0) AS gain,
        best.place AS evaluations, k.rowid AS kernels, c.rowid AS candidates, i.rowid AS ideas, p.rowid AS problems
    FROM best
    JOIN candidates AS c ON c.id = best.kernel_id
    JOIN kernels AS k ON k.id = best.kernel_id
    JOIN problems AS p ON p.id = best.problem_id
    JOIN ideas AS i ON i.id = k.idea_id
    LEFT JOIN led ON led.source = best.kernel_id
    LEFT JOIN gained ON gained.child = best.kernel_id
    ORDER BY best.functional_id, best.kernel_id
"""


SOLVERS = """
    SELECT problem_id, kernel_id FROM evaluations
    UNION
    SELECT problem_id, candidate_id FROM claims WHERE candidate_id IS NOT NULL
    ORDER BY problem_id
"""

PLACED = ("evaluations", "kernels", "candidates", "ideas", "problems")
EVALUATION_COLUMNS = """
    id, kernel_id, problem_id, functional_id, trust, label, labels, "precision", device_name, device_arch,
    candidate_us, eager_us, compile_us, told_eager AS speedup_eager, told_compile AS speedup_compile,
    told_floor AS floor_fraction, stated_trust = 'verified' AS at_least
"""


def read_catalogue(
    con: DuckDBPyConnection,
    model: str,
    device_key: str = "",
    meanwhile: Callable[[FunctionalRow], object] | None = None,
) -> Catalogue:
    """Read everything that ranking needs, in the transaction of the connection.

    Functional problems come first; `meanwhile` sees each in another thread while DuckDB reads the rest.
    """
    functionals = _functionals(con)
    with ThreadPoolExecutor(max_workers=1) as beside:
        seen = beside.submit(lambda: [meanwhile(row) for row in functionals] if meanwhile else [])
        catalogue = _read_rest(functionals, con, model, device_key)
        seen.result()
    return catalogue


def _read_rest(functionals: Sequence[FunctionalRow], con: DuckDBPyConnection, model: str, device_key: str) -> Catalogue:
    """Read the kernels, and of the functional problems those that they solve."""
    found = con.execute(KERNELS.format(device=literal(device_key))).fetchnumpy()
    functional_id, functional = np.unique(np.asarray(found["functional_id"], dtype=np.bytes_), return_inverse=True)
    pairs = con.execute(SOLVERS).fetchnumpy()
    texts, text = _numbered(found["text"])
    devices, device = _numbered(found["device_name"])
    problem_names, problem_name = _numbered(found["problem_name"])
    wanted = {name.decode() for name in functional_id.tolist()}
    return Catalogue(
        functionals=tuple(row for row in functionals if row.id in wanted),
        texts=texts,
        devices=devices,
        vectors=_vectors(con, model, functional_id),
        kernel_id=np.asarray(found["kernel_id"], dtype=np.bytes_),
        evaluation_id=np.asarray(found["evaluation_id"], dtype=np.bytes_),
        functional=functional.astype(np.int32),
        text=text,
        problem_names=problem_names,
        problem_name=problem_name,
        on_cuda=np.asarray(found["on_cuda"], dtype=np.bool_),
        here=np.asarray(found["here"], dtype=np.bool_),
        device=device,
        trust=np.asarray(found["trust"], dtype=np.int32),
        speedup=np.asarray(found["speedup"], dtype=np.float32),
        floor_fraction=np.asarray(found["floor_fraction"], dtype=np.float32),
        helped=np.asarray(found["helped"], dtype=np.int32),
        gain=np.asarray(found["gain"], dtype=np.float32),
        judged_problem=np.asarray(pairs["problem_id"], dtype=np.bytes_),
        judged_kernel=np.asarray(pairs["kernel_id"], dtype=np.bytes_),
        places=np.stack([found[table] for table in PLACED], axis=1).astype(np.int32),
    )


def _numbered(values: Iterable[str]) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct ones in order of arrival, and the number of each."""
    numbers: dict[str, int] = {}
    found = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), dtype=np.int32)
    return tuple(numbers), found


def _functionals(con: DuckDBPyConnection) -> tuple[FunctionalRow, ...]:
    """Return all functional problems, in the order of their ids."""
    found = con.execute(
        "SELECT id, graph_key, source, operators, ranks, dtypes, shapes, "
        "(record->>['$.features.flops', '$.features.bytes_moved'])::DOUBLE[] FROM functionals ORDER BY id"
    ).fetchall()
    return tuple(
        FunctionalRow(
            name,
            key,
            source,
            tuple(ops),
            tuple(ranks),
            tuple(dtypes),
            tuple(map(tuple, shapes)),
            *(amount or 0.0 for amount in work),
        )
        for name, key, source, ops, ranks, dtypes, shapes, work in found
    )


def _vectors(con: DuckDBPyConnection, model: str, ids: Names) -> Floats:
    """Return one vector a functional problem: its kernels share it, so that any of theirs serves."""
    size = con.execute(f"SELECT len(vector) FROM embeddings WHERE model = {literal(model)} LIMIT 1").fetchone()
    vectors = np.zeros((len(ids), size[0] if size else 0), dtype=np.float32)
    if size is None:
        return vectors
    found = con.execute(
        f"WITH embedded AS (SELECT kernel_id, vector::FLOAT[{size[0]}] AS vector FROM embeddings "
        f"WHERE model = {literal(model)}) "
        "SELECT functional_id, vector FROM embedded JOIN (SELECT functional_id, min(kernel_id) AS kernel_id "
        "FROM (SELECT kernel_id, functional_id FROM evaluations UNION ALL "
        "SELECT kernel_id, functional_id FROM only_claimed) "
        "WHERE kernel_id IN (SELECT kernel_id FROM embedded) GROUP BY functional_id) USING (kernel_id)"
    ).fetchnumpy()
    names = np.asarray(found["functional_id"], dtype=np.bytes_)
    known = np.flatnonzero(np.isin(names, ids))
    if len(known):
        vectors[np.searchsorted(ids, names[known])] = np.stack(list(found["vector"][known]))
    return vectors


def read_kernels(con: DuckDBPyConnection, known: Catalogue, chosen: Sequence[int]) -> list[ArchivedKernel]:
    """Return whole kernels for rows of a catalogue, each with the evaluation that speaks for it, in this order.

    A look-up in each table: a join, and the view `kernel_cards`, would read whole tables.
    """
    names = [known.evaluation_id[row].decode() for row in chosen]
    places = dict(zip(PLACED, known.places[list(chosen)].T.tolist(), strict=True))
    judged = _by_id(con, "evaluations", EVALUATION_COLUMNS, [name for name in names if " " not in name], places)
    evaluations = [judged.get(name) or _only_claimed(name) for name in names]
    kernel_ids = [evaluation["kernel_id"] for evaluation in evaluations]
    kernels = _by_id(con, "kernels", "*", kernel_ids, places)
    candidates = _by_id(con, "candidates", "*", kernel_ids, places)
    ideas = _by_id(con, "ideas", "id, text", [kernels[name]["idea_id"] for name in kernel_ids], places)
    problems = _by_id(con, "problems", "id, name", [each["problem_id"] for each in evaluations], places)
    found = []
    for row, evaluation in zip(chosen, evaluations, strict=True):
        kernel, functional = kernels[evaluation["kernel_id"]], known.functionals[known.functional[row]]
        named = {
            "problem_name": problems[evaluation["problem_id"]]["name"],
            "functional_source": functional.source,
            "idea": ideas[kernel["idea_id"]]["text"],
            "retracted": "",
            "stale": "",
        }
        found.append(
            rows.to_kernel({**asdict(functional), **evaluation, **kernel, **candidates[kernel["id"]], **named})
        )
    return found


def _only_claimed(name: str) -> dict[str, Any]:
    """Return what stands in for the evaluation of a kernel that nobody has judged here."""
    unknown = ("candidate_us", "eager_us", "compile_us", "speedup_eager", "speedup_compile", "floor_fraction")
    said = dict(zip(("kernel_id", "problem_id", "functional_id"), name.split(), strict=True))
    empty = dict.fromkeys(("label", "precision", "device_name", "device_arch"), "")
    return {"id": name, "trust": "claimed", "labels": [], "at_least": False, **said, **empty, **dict.fromkeys(unknown)}


def _by_id(
    con: DuckDBPyConnection, table: str, columns: str, ids: Sequence[str], places: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, Any]]:
    """Return rows by id. Tables have no index: rows are looked for where they stood, and only then among all ids."""
    found: dict[str, dict[str, Any]] = {}
    for where in (f"unnest({list(places[table])})", f"rowid FROM {table} WHERE id IN ({', '.join(map(literal, ids))})"):
        if ids and not found.keys() >= set(ids):
            rows_there = rows.query(con, f"SELECT {columns} FROM {table} WHERE rowid IN (SELECT {where})")
            found |= {row["id"]: row for row in rows_there}
    return found


def read_evaluation(con: DuckDBPyConnection, kernel_id: str) -> tuple[FunctionalProblem, Judged]:
    """Return the problem and the judgement that speak best for a kernel: most trusted, then newest.

    Raises ArchiveError when the kernel has no evaluation.
    """
    found = con.execute(
        "SELECT f.record, e.judged FROM evaluations AS e JOIN functionals AS f ON f.id = e.functional_id "
        "WHERE e.kernel_id = ? ORDER BY trust_rank(e.trust) DESC, e.created_at DESC, e.id LIMIT 1",
        [kernel_id],
    ).fetchall()
    if not found:
        raise ArchiveError(
            f"No evaluation of {kernel_id!r} is in this archive: it is unknown, or only claimed (`archive show` says "
            "which; `archive reverify` judges what is claimed)."
        )
    return codec.loads(found[0][0]), codec.loads(found[0][1])
