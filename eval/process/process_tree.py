"""Process trees as /proc shows them: who is in one, whether it stands still, what it uses; and signals to all of it.

Comes in: process ids of this pid namespace. Knows nothing of workers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass

CPUCLOCK_SCHED = 2
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    """Return the process and its descendants, as far as /proc shows them."""
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        queue += children(found[-1])
    return found


def strays(known: Container[int]) -> list[int]:
    """Return processes that were re-parented to this one, with their descendants."""
    return [member for pid in children(os.getpid()) if pid not in known for member in tree(pid)]


def children(pid: int) -> list[int]:
    """Return what any thread of the process has started; a thread or process that is gone has no children."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was looked at
        return found
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as f:
                found += map(int, f.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def seen_from_here(root: int, number: int) -> int | None:
    """Return the id here of the process under `root` that is called `number` in its own pid namespace, if /proc tells.

    Where the namespace is ours too the two are the same.
    """
    found: list[tuple[int, int]] = []
    for pid in tree(root):
        with suppress(OSError), open(f"/proc/{pid}/status") as f:
            names = next((line.split()[1:] for line in f if line.startswith("NSpid:")), [])
            found += [(len(names), pid)] * (names[-1:] == [str(number)])
    return max(found)[1] if found else None


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def stands(pid: int) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return all(stat(f"/proc/{pid}/task/{task}")[0] in "TtZX" for task in tasks)
    except (FileNotFoundError, ProcessLookupError):
        return True


def runs(pid: int) -> bool:
    """Return whether any thread of the process has a core, or waits for one."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return any(stat(f"/proc/{pid}/task/{task}")[0] == "R" for task in os.listdir(f"/proc/{pid}/task"))
    return False


def stat(folder: str) -> list[str]:
    """Return the fields of a `stat` file from the state on (the name before it may hold anything)."""
    with open(f"{folder}/stat") as f:
        return f.read().rpartition(")")[2].split()


def kill_tree(pid: int) -> None:
    """Stop first, so that nothing forks away while the tree is walked; then kill."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        signal_all(tree(pid), number)


def cpu_seconds(pid: int) -> float:
    """Return the process's own CPU clock, all threads and those that ended included."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def main_seconds(pid: int) -> tuple[float, float]:
    """Return how long a process's main thread has had a core, and waited for one while it could have run."""
    with open(f"/proc/{pid}/task/{pid}/schedstat") as f:
        had, waited, *_ = f.read().split()
    return int(had) / 1e9, int(waited) / 1e9


def counts(pid: int) -> tuple[int, float]:
    """Return threads of a process, and CPU seconds of its children that it has waited for (in ticks of the kernel)."""
    fields = stat(f"/proc/{pid}")
    return int(fields[17]), (int(fields[13]) + int(fields[14])) / TICKS_A_SECOND


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of a process that are in memory now: its own, and shared with files; and the greatest sum since it was
    forgotten."""

    own: int
    shared: int
    peak: int

    @property
    def own_peak(self) -> int:
        """Its own at that moment, if what it shares was there already."""
        return self.peak - self.shared


def resident(pid: int) -> Resident:
    """Return what /proc says of a process's memory."""
    with open(f"/proc/{pid}/status") as f:
        told = dict(line.split(":", 1) for line in f)
    anon, file, shared, peak = (
        1024 * int(told[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem", "VmHWM")
    )
    return Resident(anon, file + shared, peak)


def grown_bytes(before: Resident | None, after: Resident | None) -> int | None:
    """Return by how much its own memory was greater at most than before; None where either is not known."""
    return None if before is None or after is None else max(0, after.own_peak - before.own)


def forget_peak(pid: int) -> None:
    """Let the greatest sum be counted from now on."""
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")


def private_bytes(pid: int) -> int:
    """Return memory that it shares with nobody; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as f:
            _, resident, shared = f.read().split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES
