"""Several processes at once, processes that are killed, and disks that are full. All with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import archive_trials as trials
import factories as f
import psutil
import pytest
from interrupts import ctrl_c

from rag_kernels.archive import database
from rag_kernels.archive.audit import verify
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchiveError
from rag_kernels.archive.store import FileArchive
from rag_kernels.long_runs.growth import GROWTH_RUN

TESTS = Path(__file__).parent
ENDLESS = "SELECT sum(hash(range)) FROM range(1000000000000)"


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, err
    return out


def whole(losses: trials.Losses) -> bool:
    return not (losses.lost_attempts or losses.lost_kernels or losses.faults or losses.index_faults)


def test_a_growth_job_that_is_killed_loses_nothing_and_goes_on(tmp_path: Path) -> None:
    """At random moments; the longer trial is tests/bench/archive_durability.py."""
    losses = trials.kill_growth(tmp_path, 3, count=2, longest_s=1.5, to_the_end=True)
    assert whole(losses), losses
    archive = FileArchive(tmp_path / "archive")
    runs = [run for run in archive.runs() if run.command != GROWTH_RUN]
    assert {run.status for run in runs} == {"finished"} and len(runs) == 2
    for run in runs:
        numbers = [attempt.number for attempt in archive.attempts(run.id)]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > trials.WIDTH
    attempts = sum(len(archive.attempts(run.id)) for run in archive.runs())  # confirmations among them
    assert attempts - 3 <= losses.told <= attempts  # a kill may come between the disk and the report


def test_eight_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    losses = trials.crowd(tmp_path, writers=4, readers=4, count=1, rounds=1)
    assert whole(losses), losses
    assert losses.told >= 4 * trials.WIDTH
    archive = FileArchive(tmp_path / "archive")
    assert sum(len(archive.attempts(run.id)) for run in archive.runs()) == losses.told


def test_a_lock_that_is_never_released_is_reported(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path, deadline_s=0.3)
    archive.stats()
    holder = child(
        "import duckdb, sys\nc = duckdb.connect(sys.argv[1])\nprint(1, flush=True)\nsys.stdin.read()",
        archive.root / "archive.duckdb",
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        with pytest.raises(ArchiveError, match=r"Another process has kept .* open"):
            archive.stats()
    finally:
        holder.kill()
        holder.communicate()
    assert archive.stats()["kernels"] == 0


FULL_DISK = """
import os, resource, signal, sys
from pathlib import Path
import factories as f
from rag_kernels.archive.records import ArchiveError
from rag_kernels.archive.store import FileArchive
from rag_kernels.long_runs.growth import GROWTH_RUN

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
archive = FileArchive(Path(sys.argv[1]))
archive.start_run(f.run("full"))
size = max(p.stat().st_size for p in Path(sys.argv[1]).iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    for i in range(1, 2000):
        text = os.urandom(300_000).hex()
        archive.record_attempt(f.attempt("full", i, variant=i, note=text))
        print(i, flush=True)
except ArchiveError as error:
    print(error)
"""


@pytest.mark.parametrize("room", [0, 300_000])
def test_a_full_disk_is_reported_and_leaves_the_file_intact(room: int, tmp_path: Path) -> None:
    archive = FileArchive(tmp_path / "a")
    archive.start_run(f.run("before"))
    archive.record_attempt(f.attempt("before", 1))
    *written, message = finish(child(FULL_DISK, tmp_path / "a", room)).splitlines()
    assert "no room" in message and "intact" in message
    assert archive.attempts("before") == [f.attempt("before", 1)]
    assert [attempt.number for attempt in archive.attempts("full")] == [int(n) for n in written]
    archive.record_attempt(f.attempt("after", 1, variant=9))
    assert verify(archive) == ["attempts refers to after, which is not in runs."]


WRITES = """
import sys
from pathlib import Path
import factories as f
from rag_kernels.archive.store import FileArchive
FileArchive(Path(sys.argv[1]), deadline_s=10).record_attempt(f.attempt("run", int(sys.argv[2])))
"""


def is_open(root: Path) -> bool:
    """Whether this process has the archive's file open."""
    return any(file.path == str(root / "archive.duckdb") for file in psutil.Process().open_files())


def write_elsewhere(root: Path, number: int) -> None:
    path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-c", WRITES, str(root), str(number)]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, "PYTHONPATH": path})


def test_a_reader_that_stays_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "STAY_S", 600)  # however slow the machine is
    archive, other = FileArchive(tmp_path), FileArchive(tmp_path)
    archive.record_attempt(f.attempt("run", 1))

    def count() -> int:
        with archive.database.read(stay=True) as con:
            (found,) = con.execute("SELECT count(*) FROM attempts").fetchone() or (0,)
        assert is_open(tmp_path)
        return int(found)

    assert count() == 1
    other.record_attempt(f.attempt("run", 2))  # another archive of this process
    assert count() == 2
    write_elsewhere(tmp_path, 3)  # another process, while the file is attached here
    assert count() == 3
    with other.database.read() as con:  # in the same mode, and then nobody stays
        assert con.execute("SELECT count(*) FROM attempts").fetchone() == (3,)
    assert not is_open(tmp_path)
    with pytest.raises(ZeroDivisionError), archive.database.read(stay=True):
        raise ZeroDivisionError
    assert not is_open(tmp_path)


def test_a_reader_that_stays_lets_go_by_itself(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    archive.record_attempt(f.attempt())
    with archive.database.read(stay=True):
        assert is_open(tmp_path)
    waited = time.monotonic()
    while is_open(tmp_path):
        assert time.monotonic() - waited < 20
        time.sleep(0.05)


def test_one_thread_looks_after_a_file_however_often_it_is_left_attached(tmp_path: Path) -> None:
    archive, before = FileArchive(tmp_path), threading.active_count()
    for number in range(1, 9):
        archive.record_attempt(f.attempt("run", number))
        with archive.database.read(stay=True):
            pass
        assert threading.active_count() <= before + 1


@pytest.mark.parametrize("kind", [FileArchive, MemoryArchive])
def test_a_query_that_is_interrupted_is_an_interrupt(kind: type[FileArchive | MemoryArchive], tmp_path: Path) -> None:
    archive = FileArchive(tmp_path) if kind is FileArchive else MemoryArchive()
    archive.record_attempt(f.attempt("run", 1))
    with ctrl_c(0.3), archive.database.read() as con:
        con.execute(ENDLESS)
    with ctrl_c(0.3), archive.database.write() as con:
        con.execute("DELETE FROM attempts")
        con.execute(ENDLESS)
    archive.record_attempt(f.attempt("run", 2))
    assert [attempt.number for attempt in archive.attempts("run")] == [1, 2]
