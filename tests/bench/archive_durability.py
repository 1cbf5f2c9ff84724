"""Three hard trials of the archive: kill -9 at random moments, many processes at once, a full disk.

    python tests/bench/archive_durability.py --kills 200

Prints Markdown. The jobs are those of tests/archive_trials.py. The full disk is a small tmpfs, which needs root;
without root that trial is left out, and tests/test_archive_durability.py limits the size of files instead.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import archive_trials as trials
import factories as f

from rag_kernels.archive.audit import verify
from rag_kernels.archive.records import ArchiveError, KernelFilter
from rag_kernels.archive.store import FileArchive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--longest-s", type=float, default=2.0, help="kills come 0 to this many seconds later")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("archive_trials").setLevel(logging.INFO)
    print(f"{os.cpu_count()} cores, {platform.machine()}.\n")
    print(
        "| trial | attempts told | attempts lost | kernels lost | faults in DuckDB | Chroma behind | Chroma wrong "
        "after one query | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        started = time.monotonic()
        killed = trials.kill_growth(
            Path(scratch) / "kill",
            options.kills,
            count=300,
            longest_s=options.longest_s,
            to_the_end=False,
            seed=options.seed,
        )
        show(f"{options.kills} kills", killed, started)
        started = time.monotonic()
        crowded = trials.crowd(Path(scratch) / "crowd", writers=4, readers=4, count=4, rounds=2)
        show("4 writers and 4 readers", crowded, started)
    full_disk()


def show(trial: str, losses: trials.Losses, started: float) -> None:
    cells = (
        trial,
        losses.told,
        losses.lost_attempts,
        losses.lost_kernels,
        len(losses.faults),
        f"{losses.index_behind} times",
        len(losses.index_faults),
        round(time.monotonic() - started),
    )
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    for fault in (*losses.faults, *losses.index_faults):
        print(fault, file=sys.stderr)


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
        folder.rmdir()


def full_disk() -> None:
    """Fill a small disk with attempts and vectors until the archive refuses, look, make room, and go on."""
    try:
        with small_disk("24m") as disk:
            print(f"\nFull disk, a tmpfs of 24 MiB: {on_full_disk(disk)}")
    except (OSError, subprocess.CalledProcessError):
        print("\nFull disk: left out, a tmpfs cannot be mounted here.")


def on_full_disk(disk: Path) -> str:
    archive, number = FileArchive(disk / "archive"), 0
    archive.start_run(f.run("full"))
    reserve = disk / "reserve"
    reserve.write_bytes(bytes(4_000_000))
    try:
        while number < 1000:
            made = f.attempt("full", number + 1, variant=number + 1, note=os.urandom(100_000).hex())
            archive.record_attempt(made)
            number += 1
            archive.index_embedding(made.candidate.id, [1.0, float(number)] * 128, "model")
    except ArchiveError as error:
        message = str(error).replace(str(disk), "DISK")
    free = shutil.disk_usage(disk).free
    kept, faults = len(archive.attempts("full")), verify(archive)
    duckdb_faults = [fault for fault in faults if not fault.startswith("chroma")]
    reserve.unlink()
    archive.record_attempt(f.attempt("full", 2000, variant=2000))
    found = archive.nearest([1.0, 1.0] * 128, 3, KernelFilter(), "model")
    left = verify(archive)
    return (
        f'{number} attempts were recorded, then "{message}" with {free} bytes free. {kept} attempts are there, '
        f"{len(duckdb_faults)} faults in DuckDB, {len(faults) - len(duckdb_faults)} in the index. With room again: "
        f"the next attempt is recorded, a query finds {len(found)} neighbours, {len(left)} faults are left."
    )


if __name__ == "__main__":
    main()
