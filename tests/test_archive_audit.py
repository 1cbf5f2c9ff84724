"""`archive verify` over references, attempts, vectors and the index. Ids: see test_archive_bundle.py."""

from __future__ import annotations

from pathlib import Path

import factories as f
import pytest

from rag_kernels.archive import recheck
from rag_kernels.archive.audit import verify
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.index import ChromaIndex, Item
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import KernelFilter
from rag_kernels.archive.store import FileArchive

A, B = f.candidate().id, f.candidate(variant=1).id
MODEL = "test-model"


def fill(archive: DuckArchive) -> None:
    archive.start_run(f.run())
    archive.record_call(f.llm_call())
    archive.record_attempt(f.attempt(number=1, call_ids=("call1",)))
    archive.record_attempt(f.attempt(number=2, variant=1, parents=(A,), exemplars=(f.exemplar(A),)))
    archive.record_attempt(f.attempt(number=3, variant=2, verdict=f.wrong()))
    archive.retract(B, "for the test")
    recheck.record(archive, f.attempt(number=4, verdict=f.passed(1.9)))
    archive.index_embeddings([(A, [1.0, 0.0]), (B, [0.6, 0.8])], MODEL)


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("DELETE FROM llm_calls", "attempts refers to call1, which is not in llm_calls."),
        ("DELETE FROM edges", f"attempts refers to ({B}, {A}, parent), which is not in edges."),
        ("DELETE FROM attempts WHERE number = 4", "rechecks refers to a_"),
        (f"DELETE FROM kernels WHERE id = '{B}'", f"retractions refers to {B}, which is not in kernels."),
        (f"DELETE FROM kernels WHERE id = '{A}'", f"embeddings refers to {A}, which is not in kernels."),
        ("UPDATE attempts SET reason = '' WHERE verdict = 'wrong'", "does not agree with its record"),
        ("UPDATE attempts SET evaluation_id = NULL WHERE number = 1", "does not agree with its record"),
        ("UPDATE attempts SET verdict = 'passed' WHERE number = 3", "does not agree with its record"),
        ("UPDATE evaluations SET labels = ['custom kernel']", "does not agree with its record"),
        ("INSERT INTO retractions FROM retractions", f"retractions: {B}, for the test is there 2 times."),
        ("UPDATE embeddings SET vector = ['nan', '0']", "cannot be compared"),
        ("UPDATE embeddings SET vector = [1, 0, 0] WHERE vector[1] < 1", f"embeddings: the vector of {B}"),
    ],
)
def test_verify_finds(sql: str, sentence: str) -> None:
    archive = MemoryArchive()
    fill(archive)
    assert verify(archive) == []
    with archive.database.write() as con:
        con.execute(sql)
    assert sentence in " ".join(verify(archive))


def test_verify_compares_the_index_and_reindex_mends_it(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    fill(archive)
    assert verify(archive) == []
    index = ChromaIndex(tmp_path / "chroma")
    index.put(MODEL, [Item(A, [0.0, 1.0], "cpu", "kernel"), Item("k_gone", [1.0, 1.0], "cpu", "kernel")])
    index.remove(MODEL, [B])
    index.close()
    faults = verify(FileArchive(tmp_path))
    assert [fault.split(" by ")[0] for fault in faults] == [
        f"chroma: it lacks {B}",
        "chroma: it still has k_gone",
        f"chroma: it has another vector of {A}",
    ]
    archive.catch_up()  # what a killed process leaves behind; vectors that differ are faults
    assert [fault.split(" by ")[0] for fault in verify(archive)] == [f"chroma: it has another vector of {A}"]
    assert archive.reindex() == 2
    assert verify(archive) == []
    archive._close()
    for file in (tmp_path / "chroma").rglob("*.sqlite3"):
        file.write_bytes(b"damaged" * 1000)
    assert "the index is damaged" in verify(archive)[0]
    assert archive.nearest([1.0, 0.0], 1, KernelFilter())[0][0] == A
    assert verify(archive) == []
