"""What an archive keeps and gives back, the same in a folder and in memory."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import factories as f
import pytest

from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchiveError, Edge, KernelFilter
from rag_kernels.archive.store import FileArchive, open_archive


@pytest.fixture(params=["file", "memory"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> DuckArchive:
    return FileArchive(tmp_path / "archive") if request.param == "file" else MemoryArchive()


def test_an_attempt_comes_back_as_it_was(archive: DuckArchive) -> None:
    archive.start_run(f.run())
    first = f.attempt(number=1)
    infinite = dataclasses.replace(f.wrong(), error_ratio=float("inf"))
    second = f.attempt(
        number=2,
        p=f.linear_problem(),
        variant=1,
        verdict=infinite,
        exemplars=(f.exemplar(first.candidate.id),),
        parents=(first.candidate.id,),
        call_ids=("call1", "call2"),
        cost_usd=None,
        note='it\'s "quoted"; ünïcode \n and lines',
    )
    for made in (first, second):
        archive.record_attempt(made)
    assert archive.attempts("run1") == [first, second]
    assert archive.attempts("run2") == []


def test_every_failure_is_kept_as_an_attempt_and_is_no_kernel(archive: DuckArchive) -> None:
    archive.start_run(f.run())
    failures = [f.wrong(), f.build_failed(), f.crashed(), f.timed_out(), f.rejected()]
    for number, verdict in enumerate(failures, 1):
        archive.record_attempt(f.attempt(number=number, variant=number, verdict=verdict))
    assert [a.judged.verdict for a in archive.attempts("run1")] == failures
    assert archive.kernels(KernelFilter()) == []
    assert archive.stats()["attempts"] == 5


def test_trust_rises_with_better_evaluations_and_never_falls(archive: DuckArchive) -> None:
    seen = []
    for number, verdict in enumerate(
        [f.compiled(), f.passed(1.5, confirmed=False), f.passed(1.4), f.passed(3.0, confirmed=False)], 1
    ):
        archive.record_attempt(f.attempt(number=number, verdict=verdict))
        (kernel,) = archive.kernels(KernelFilter())
        seen.append((kernel.trust, kernel.speedup_eager))
    assert seen == [("compiled", None), ("verified", pytest.approx(0.95 * 1.5)), ("confirmed", 1.4), ("confirmed", 1.4)]
    assert archive.stats()["evaluations"] == 4


def test_recording_twice_changes_nothing(archive: DuckArchive) -> None:
    archive.start_run(f.run())
    archive.record_attempt(f.attempt(parents=("k_other",)))
    archive.record_call(f.llm_call())
    before = archive.stats()
    archive.record_attempt(f.attempt(parents=("k_other",), verdict=f.wrong()))
    archive.record_call(f.llm_call())
    assert archive.stats() == before
    assert archive.attempts("run1") == [f.attempt(parents=("k_other",))]


def test_a_kernel_carries_all_that_readers_need(archive: DuckArchive) -> None:
    made = f.attempt(writer="llm", model="openai/test-model")
    archive.record_attempt(made)
    kernel = archive.kernel(made.candidate.id)
    assert kernel is not None
    assert (kernel.source, kernel.functional_source) == (made.candidate.source, made.problem.source)
    assert (kernel.problem_id, kernel.problem_name) == (made.problem.problem.id, "scaled_relu")
    assert (kernel.operators, kernel.ranks, kernel.shapes) == (("mul", "relu"), (2,), ((64, 1024),))
    assert (kernel.trust, kernel.label, kernel.retracted) == ("confirmed", "custom kernel", "")
    assert (kernel.writer, kernel.model, kernel.idea) == ("llm", "openai/test-model", made.idea)
    assert kernel.speedup == pytest.approx(1.6)
    assert kernel.floor_fraction == pytest.approx(0.5)


def test_a_kernel_is_found_by_an_unambiguous_prefix(archive: DuckArchive) -> None:
    ids = []
    for number in range(1, 40):
        made = f.attempt(number=number, variant=number)
        archive.record_attempt(made)
        ids.append(made.candidate.id)
    found = archive.kernel(ids[0][:12])
    assert found is not None and found.id == ids[0]
    assert archive.kernel(ids[0][2:12]) == found
    assert archive.kernel("k_nosuch") is None
    with pytest.raises(ArchiveError, match="several kernels"):
        archive.kernel("k_")


def test_filters(archive: DuckArchive) -> None:
    relu, tanh, linear = f.problem("relu"), f.problem("tanh"), f.linear_problem()
    cuda = f.candidate(linear, backend="cuda", tier="composed")
    archive.record_attempt(f.attempt(number=1, p=relu, created_at="2026-01-01T00:00:01+00:00"))
    archive.record_attempt(
        f.attempt(number=2, p=tanh, verdict=f.passed(confirmed=False), created_at="2026-01-01T00:00:02+00:00")
    )
    archive.record_attempt(
        f.attempt(number=3, p=linear, candidate=cuda, verdict=f.compiled(), created_at="2026-01-01T00:00:03+00:00")
    )

    def names(**where: object) -> list[str]:
        return [k.problem_name for k in archive.kernels(KernelFilter(**where))]  # type: ignore[arg-type]

    assert names() == ["linear_relu", "scaled_tanh", "scaled_relu"]
    assert names(limit=2) == ["linear_relu", "scaled_tanh"]
    assert names(backend="cuda") == names(tier="composed") == ["linear_relu"]
    assert names(min_trust="compiled") == names()
    assert names(min_trust="verified") == ["scaled_tanh", "scaled_relu"]
    assert names(min_trust="confirmed") == ["scaled_relu"]
    assert names(graph_key=tanh.graph_key) == names(problem_id=tanh.problem.id) == ["scaled_tanh"]
    assert names(exclude_problem_ids=(tanh.problem.id, linear.problem.id)) == ["scaled_relu"]
    assert names(text="TANH") == ["scaled_tanh"]
    assert names(text="std::tanh") == ["scaled_tanh"]
    assert names(text="100% '") == []


def test_one_source_may_serve_two_problems_and_exclusion_covers_both(archive: DuckArchive) -> None:
    small, large = f.problem(shape=(8, 8)), f.problem(shape=(512, 512))
    archive.record_attempt(f.attempt(number=1, p=small, verdict=f.passed(1.2)))
    archive.record_attempt(f.attempt(number=2, p=large, verdict=f.passed(5.0)))
    assert small.graph_key == large.graph_key
    (best,) = archive.kernels(KernelFilter())
    assert (best.problem_id, best.speedup_eager) == (large.problem.id, 5.0)
    (other,) = archive.kernels(KernelFilter(problem_id=small.problem.id))
    assert (other.id, other.speedup_eager, other.shapes) == (best.id, 1.2, ((8, 8),))
    assert archive.kernels(KernelFilter(exclude_problem_ids=(small.problem.id,))) == []


def test_retracted_kernels_are_kept_but_not_shown(archive: DuckArchive) -> None:
    made = f.attempt()
    archive.record_attempt(made)
    archive.retract(made.candidate.id, "it reads past the end")
    assert archive.kernels(KernelFilter()) == []
    (kernel,) = archive.kernels(KernelFilter(include_retracted=True))
    assert kernel.retracted == "it reads past the end"
    assert archive.kernel(kernel.id) == kernel
    with pytest.raises(ArchiveError, match="no kernel"):
        archive.retract("k_nosuch", "because")
    with pytest.raises(ArchiveError, match="Say why"):
        archive.retract(kernel.id, " ")


def test_lineage_is_nearest_first_and_survives_cycles(archive: DuckArchive) -> None:
    a, b, c, d = (f.candidate(variant=i).id for i in range(4))
    for number, (variant, parents) in enumerate([(0, (d,)), (1, (a,)), (2, (a,)), (3, (b, c))], 1):
        verdict = f.wrong() if variant == 2 else f.passed()
        archive.record_attempt(f.attempt(number=number, variant=variant, parents=parents, verdict=verdict))
    found = archive.lineage(d)
    assert set(found[:2]) == {Edge(d, b, "parent"), Edge(d, c, "parent")}
    assert set(found[2:4]) == {Edge(b, a, "parent"), Edge(c, a, "parent")}
    assert found[4:] == [Edge(a, d, "parent")]
    assert archive.lineage("k_nosuch") == []


def test_runs_and_calls(archive: DuckArchive) -> None:
    archive.start_run(f.run("old", started_at="2026-01-01T00:00:00+00:00"))
    archive.start_run(f.run("new", started_at="2026-01-02T00:00:00+00:00"))
    calls = [f.llm_call("new", f"call{i}", cost_usd=None if i == 2 else 0.5) for i in (3, 1, 2)]
    for call in calls:
        archive.record_call(call)
    assert archive.calls("new") == calls
    assert [run.id for run in archive.runs()] == ["new", "old"]
    assert [run.id for run in archive.runs(limit=1)] == ["new"]
    archive.finish_run("new", "interrupted")
    stopped = archive.runs()[0]
    assert stopped.status == "interrupted" and stopped.finished_at is not None
    archive.start_run(f.run("new"))
    assert (archive.runs()[0].status, archive.runs()[0].finished_at) == ("running", None)
    with pytest.raises(ArchiveError, match="no run"):
        archive.finish_run("nosuch", "finished")
    stats = archive.stats()
    assert (stats["runs"], stats["llm_calls"], stats["cost_usd"]) == (2, 3, 1.0)
    assert (stats["tokens"], stats["calls_of_unknown_cost"]) == (600, 1)


def test_version_changes_with_every_write_and_not_with_reads(archive: DuckArchive) -> None:
    archive.start_run(f.run())
    before = archive.version()
    archive.kernels(KernelFilter())
    archive.stats()
    assert archive.version() == before
    archive.record_attempt(f.attempt())
    assert archive.version() != before


def test_open_archive_chooses_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_KERNELS_ARCHIVE", str(tmp_path / "env"))
    named, from_env = open_archive(tmp_path / "named"), open_archive()
    assert isinstance(named, FileArchive) and named.root == tmp_path / "named"
    assert isinstance(from_env, FileArchive) and from_env.root == tmp_path / "env"
    assert isinstance(open_archive(":memory:"), MemoryArchive)
    assert list(tmp_path.iterdir()) == []


def test_opening_and_reading_import_no_chroma_and_in_a_command_no_pandas(tmp_path: Path) -> None:
    code = (
        "import sys, archive.store as s\n"
        "from rag_kernels.archive.opening import COMMAND, in_memory\n"
        "COMMAND.set()\n"
        f"a = s.open_archive({str(tmp_path / 'a')!r})\n"
        "assert 'duckdb' not in sys.modules\n"
        "a.stats()\n"
        "assert a.attempts('none') == []\n"
        "values = ['x', 1, 0.5, None, [1.0, 2.0], b'x', True]\n"
        "assert list(in_memory().execute('SELECT ?, ?, ?, ?, ?, ?, ?', values).fetchone()) == values\n"
        "assert not {'chromadb', 'torch', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_archive_of_a_newer_version_is_refused_with_advice(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    archive.start_run(f.run())
    with archive.database.write() as con:
        con.execute("INSERT INTO migrations VALUES (99, '099_future', '')")
    before = (tmp_path / "archive.duckdb").read_bytes()
    with pytest.raises(ArchiveError, match=r"newer version.*Upgrade"):
        FileArchive(tmp_path).stats()
    assert (tmp_path / "archive.duckdb").read_bytes() == before


def test_an_older_archive_is_brought_up_to_date(tmp_path: Path) -> None:
    import duckdb

    from rag_kernels.archive import migrations, rows

    with duckdb.connect(str(tmp_path / "archive.duckdb")) as con:
        migrations.migrate(con, migrations.MIGRATIONS[:6])
        there = {name for (name,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        for table, key in ((t, k) for t, k in rows.KEYS.items() if t in there):  # as files were once made
            con.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(key)})")
        con.execute("INSERT INTO problems VALUES ('p_1', 'old', 'source', '')")
    archive = FileArchive(tmp_path)
    assert archive.stats()["problems"] == 1
    described = "FROM duckdb_columns() SELECT table_name, column_name, data_type, is_nullable, comment ORDER BY ALL"
    with archive.database.read() as con, MemoryArchive().database.read() as fresh:
        assert migrations.applied(con) == list(migrations.MIGRATIONS)
        assert con.execute(described).fetchall() == fresh.execute(described).fetchall()
        assert con.execute("SELECT sum(index_count) FROM duckdb_tables()").fetchone() == (0,)


def test_labels_of_old_evaluations_are_taken_from_their_records(tmp_path: Path) -> None:
    import duckdb

    from rag_kernels.archive import migrations, rows

    made = f.attempt(verdict=f.passed(9.0, labels=("nondeterministic", "suspicious: too good")))
    old = rows.evaluation_columns(
        made.candidate.id, rows.functional_id(made.problem), made.problem.problem.id, made.judged, made.created_at
    )
    assert old is not None and old.pop("labels") == ["nondeterministic", "suspicious: too good"]
    told = {name: old.pop(name) for name in rows.TOLD_COLUMNS}
    with duckdb.connect(str(tmp_path / "archive.duckdb")) as con:
        migrations.migrate(con, migrations.MIGRATIONS[:2])
        rows.insert(con, "evaluations", old)
    archive = FileArchive(tmp_path)
    archive.start_run(f.run())
    archive.record_attempt(made)
    (kernel,) = archive.kernels(KernelFilter())
    assert kernel.labels == ("nondeterministic", "suspicious: too good")
    with archive.database.read() as con:
        [row] = rows.query(con, f"SELECT {', '.join(rows.TOLD_COLUMNS)} FROM evaluations")
    assert row == told
    assert archive.stats()["evaluations"] == 1


def test_a_damaged_or_foreign_file_is_reported_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "archive.duckdb").write_text("this is not a database" * 1000)
    with pytest.raises(ArchiveError, match="damaged"):
        FileArchive(tmp_path).record_attempt(f.attempt())
    assert (tmp_path / "archive.duckdb").read_text().startswith("this is not")


@pytest.mark.parametrize("share", [0.0, 0.004, 0.5])
def test_a_file_that_was_cut_off_is_told_as_damaged(share: float, tmp_path: Path) -> None:
    file = tmp_path / "archive.duckdb"
    FileArchive(tmp_path).record_attempt(f.attempt())
    left = max(1, int(file.stat().st_size * share))
    with file.open("r+b") as opened:
        opened.truncate(left)
    with pytest.raises(ArchiveError, match="damaged"):
        FileArchive(tmp_path).record_attempt(f.attempt())
    assert file.stat().st_size == left


def test_a_block_that_changed_is_told_as_damaged_at_once(tmp_path: Path) -> None:
    """DuckDB speaks of a block there, which is no lock that another process holds."""
    archive, file = FileArchive(tmp_path), tmp_path / "archive.duckdb"
    archive.record_attempt(f.attempt())
    archive._close()
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(b"\xa5" * (64 << 10))
    with pytest.raises(ArchiveError, match="damaged"):
        FileArchive(tmp_path).stats()


def test_a_file_where_the_folder_should_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for place in (tmp_path / "notes", tmp_path / "notes" / "below"):
        with pytest.raises(ArchiveError, match="A file is in its way"):
            FileArchive(place).record_attempt(f.attempt())
    assert (tmp_path / "notes").read_text() == "mine"
