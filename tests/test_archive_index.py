"""Similarity: exact in memory, through Chroma in a folder, and through every way in which an index can break."""

from __future__ import annotations

import logging
import math
import random
import shutil
import subprocess
import sys
from pathlib import Path

import factories as f
import pytest

from rag_kernels.archive import rows
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchiveError, KernelFilter
from rag_kernels.archive.store import FileArchive

ANY = KernelFilter()
MODEL = "test-model"
DIMENSIONS = 16


def vector(seed: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(0, 1) for _ in range(DIMENSIONS)]


def fill(archive: DuckArchive, count: int, *, start: int = 0) -> list[str]:
    """Archive kernels of relu and tanh problems alternately and return their ids; kernel i has vector(i)."""
    numbers = range(start, start + count)
    made = [f.attempt("fill", i, f.problem("relu" if i % 2 == 0 else "tanh"), variant=i) for i in numbers]
    with archive.database.write() as con:
        for attempt in made:
            rows.insert_attempt(con, attempt)
    ids = [attempt.candidate.id for attempt in made]
    archive.index_embeddings([(name, vector(start + i)) for i, name in enumerate(ids)], MODEL)
    return ids


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


@pytest.fixture(params=["file", "memory"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> DuckArchive:
    return FileArchive(tmp_path / "archive") if request.param == "file" else MemoryArchive()


def test_nearest_is_cosine_similarity_under_the_filter(archive: DuckArchive) -> None:
    ids = fill(archive, 12)
    query = vector(99)
    expected = sorted(((cosine(query, vector(i)), name) for i, name in enumerate(ids)), reverse=True)
    found = archive.nearest(query, 5, ANY)
    assert [name for name, _ in found] == [name for _, name in expected[:5]]
    assert [s for _, s in found] == pytest.approx([s for s, _ in expected[:5]], abs=1e-5)
    tanh = f.problem("tanh")
    assert [n for n, _ in archive.nearest(query, 3, KernelFilter(graph_key=tanh.graph_key))] == [
        name for _, name in expected if name in ids[1::2]
    ][:3]
    assert archive.nearest(query, 5, KernelFilter(backend="cuda")) == []
    archive.retract(expected[0][1], "for the test")
    assert archive.nearest(query, 1, ANY)[0][0] == expected[1][1]
    assert archive.nearest(query, 1, KernelFilter(exclude_problem_ids=(tanh.problem.id,)))[0][0] in ids[::2]


def test_a_vector_can_be_replaced_and_models_live_side_by_side(archive: DuckArchive) -> None:
    ids = fill(archive, 3)
    archive.index_embedding(ids[0], vector(50), MODEL)
    assert archive.nearest(vector(50), 1, ANY, MODEL) == [(ids[0], pytest.approx(1.0, abs=1e-5))]
    assert [k.id for k in archive.missing_embeddings("other-model")] == [
        k.id for k in sorted(archive.kernels(ANY), key=lambda k: (k.created_at, k.id))
    ]
    archive.index_embedding(ids[1], [1.0, 0.0], "other-model")
    assert {k.id for k in archive.missing_embeddings("other-model")} == {ids[0], ids[2]}
    assert archive.nearest([2.0, 0.1], 5, ANY)[0][0] == ids[1]
    assert archive.nearest([2.0, 0.1], 5, ANY, "unknown-model") == []
    assert list(archive.missing_embeddings(MODEL)) == []


def test_vectors_that_cannot_be_compared_are_refused(archive: DuckArchive) -> None:
    ids = fill(archive, 2)
    with pytest.raises(ArchiveError, match="another name"):
        archive.index_embedding(ids[0], [1.0, 2.0], MODEL)
    with pytest.raises(ArchiveError, match="embed the query with the model"):
        archive.nearest([1.0, 2.0], 1, ANY, MODEL)
    with pytest.raises(ArchiveError, match="record its attempt before"):
        archive.index_embedding("k_nosuch", vector(0), MODEL)
    with pytest.raises(ArchiveError, match="all zeros or not finite"):
        archive.index_embedding(ids[0], [0.0] * DIMENSIONS, MODEL)
    assert archive.nearest([0.0] * DIMENSIONS, 2, ANY) == []


def damage_everything(chroma: Path) -> None:
    for file in chroma.rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged" * (file.stat().st_size // 7 + 1))


def cut_the_database(chroma: Path) -> None:
    (chroma / "chroma.sqlite3").write_bytes((chroma / "chroma.sqlite3").read_bytes()[:5000])


def replace_by_a_file(chroma: Path) -> None:
    shutil.rmtree(chroma)
    chroma.write_text("not a folder")


@pytest.mark.parametrize("damage", [damage_everything, cut_the_database, replace_by_a_file])
def test_a_damaged_index_is_moved_aside_and_rebuilt(
    damage: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    archive = FileArchive(tmp_path)
    ids = fill(archive, 6)
    archive._close()
    damage(tmp_path / "chroma")
    with caplog.at_level(logging.WARNING, "archive"):
        fresh = FileArchive(tmp_path)
        assert fresh.nearest(vector(3), 1, ANY) == [(ids[3], pytest.approx(1.0, abs=1e-5))]
    assert "rebuilding it" in caplog.text
    assert len(list(tmp_path.glob("chroma.damaged-*"))) == 1
    caplog.clear()
    assert FileArchive(tmp_path).nearest(vector(4), 1, ANY)[0][0] == ids[4]
    assert caplog.text == ""


def test_an_index_that_is_damaged_while_open_is_rebuilt(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    ids = fill(archive, 6)
    damage_everything(tmp_path / "chroma")
    for i in range(6):
        assert archive.nearest(vector(i), 1, ANY)[0][0] == ids[i]
    archive.index_embedding(ids[0], vector(70), MODEL)
    assert archive.nearest(vector(70), 1, ANY)[0][0] == ids[0]


def test_a_missing_index_is_rebuilt(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    ids = fill(archive, 4)
    archive._close()
    shutil.rmtree(tmp_path / "chroma")
    assert FileArchive(tmp_path).nearest(vector(2), 1, ANY)[0][0] == ids[2]
    assert FileArchive(tmp_path).reindex() == 4
    assert FileArchive(tmp_path).nearest(vector(2), 1, ANY)[0][0] == ids[2]


def test_an_index_that_lags_or_lies_is_corrected(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    ids = fill(archive, 4)
    with archive.database.write() as con:  # as if killed between the commit and the index
        con.execute("DELETE FROM embeddings WHERE kernel_id = ?", [ids[0]])
        con.execute(
            "INSERT INTO embeddings SELECT ?, model, ?, created_at FROM embeddings LIMIT 1", [ids[0], vector(60)]
        )
    assert archive.nearest(vector(60), 1, ANY)[0] == (ids[0], pytest.approx(1.0, abs=1e-5))
    late = f.attempt("late", 1, variant=77)
    archive.record_attempt(late)
    super(FileArchive, archive).index_embeddings([(late.candidate.id, vector(61))], MODEL)
    assert archive.nearest(vector(61), 1, ANY)[0][0] == late.candidate.id
    with archive.database.write() as con:
        con.execute("DELETE FROM embeddings WHERE kernel_id = ?", [ids[1]])
    assert ids[1] not in [name for name, _ in archive.nearest(vector(1), 10, ANY)]


def test_one_process_finds_what_another_indexed(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    ids = fill(archive, 3)
    assert archive.nearest(vector(0), 1, ANY)[0][0] == ids[0]
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nfrom rag_kernels.archive.store import FileArchive\nimport test_archive_index as t\n"
        f"a = FileArchive(Path({str(tmp_path)!r}))\nprint(t.fill(a, 3, start=3)[1])\n"
        "assert a.nearest(t.vector(0), 1, t.ANY)[0][1] > 0.99\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert archive.nearest(vector(4), 1, ANY)[0][0] == done.stdout.strip()
