"""Several processes at once, processes that are killed, and disks that are full. All with real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import factories as f
import pytest

from archive.audit import verify
from archive.records import ArchiveError, KernelFilter
from archive.store import FileArchive

TESTS = Path(__file__).parent

WRITER = """
import sys
from pathlib import Path
import factories as f
from archive.store import FileArchive

archive, run, count = FileArchive(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
archive.start_run(f.run(run))
for i in range(1, count + 1):
    call = f.llm_call(run, f"{run}-{i}")
    archive.record_call(call)
    variant = 1000 * int(run[3:]) + i
    parents = () if i == 1 else (f.candidate(variant=variant - 1).id,)
    made = f.attempt(run, i, variant=variant, call_ids=(call.id,), parents=parents)
    archive.record_attempt(made)
    print(made.id, made.candidate.id, flush=True)
"""

READER = """
import sys
from pathlib import Path
from archive.records import KernelFilter
from archive.store import FileArchive

archive, last, reads = FileArchive(Path(sys.argv[1])), 0, 0
while last < int(sys.argv[2]):
    seen = len(archive.kernels(KernelFilter()))
    assert seen >= last, (seen, last)
    last, reads = seen, reads + 1
print(reads)
"""


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


def test_writers_and_a_reader_at_once_lose_nothing(tmp_path: Path) -> None:
    count = 6
    writers = [child(WRITER, tmp_path / "a", f"run{n}", count) for n in range(3)]
    reader = child(READER, tmp_path / "a", 3 * count)
    told = {line.split()[1] for writer in writers for line in finish(writer).splitlines()}
    assert int(finish(reader)) >= 2
    archive = FileArchive(tmp_path / "a")
    assert {kernel.id for kernel in archive.kernels(KernelFilter())} == told
    assert len(told) == 3 * count
    assert [len(archive.attempts(f"run{n}")) for n in range(3)] == [count] * 3
    assert len(archive.calls("run1")) == count
    assert verify(archive) == []


def test_a_killed_writer_leaves_whole_rows_and_all_that_it_reported(tmp_path: Path) -> None:
    draw = random.Random(5)
    archive = FileArchive(tmp_path / "a")
    archive.stats()
    for n in range(3):
        writer = child(WRITER, tmp_path / "a", f"run{n}", 10_000)
        assert writer.stdout is not None
        told = [writer.stdout.readline().split()[0] for _ in range(draw.randint(1, 3))]
        time.sleep(draw.uniform(0, 0.15))
        os.kill(writer.pid, signal.SIGKILL)
        told += [line.split()[0] for line in writer.communicate()[0].splitlines()]
        kept = [attempt.id for attempt in archive.attempts(f"run{n}")]
        assert kept[: len(told)] == told
        assert len(kept) - len(told) in (0, 1)
    assert verify(archive) == []


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
from archive.records import ArchiveError
from archive.store import FileArchive

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
