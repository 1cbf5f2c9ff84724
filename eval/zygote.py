"""The warm parent: a process that has imported torch, touched no GPU, and forks a worker in milliseconds.

What isolation holds here, for every worker:
- a process and session of its own; the whole tree of descendants is killed when the worker ends or is given up,
  also those that left its session (the warm parent is a subreaper and kills every orphan it does not know);
- a watchdog on the memory and the number of processes of the tree and on what it writes to its scratch folder;
  RLIMIT_AS on CPU workers; RLIMIT_FSIZE and RLIMIT_CORE; an environment from an allow-list; the scratch folder is
  its own, and removed afterwards;
- stdout and stderr go to a log in memory; no descriptor of the judge but the worker's own socket.
What does not hold: without an OS sandbox a worker may read the user's files, reach the network and write where
the user may write. Verdicts are never made here, and expected answers are never sent to a candidate's worker.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from eval.channel import Channel, ChannelClosed

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCH_S = 0.1
MAX_PROCESSES = 512
MAX_FILE_BYTES = 1 << 30
MAX_SCRATCH_BYTES = 2 << 30
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Child:
    pid: int
    memory_bytes: int | None
    scratch: str
    overrun: str = ""


def main(control_fd: int, preload: Sequence[str]) -> None:
    """Import torch and what else is named in `preload`, then serve fork requests until the parent is gone."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for module in ("torch", *preload):
        importlib.import_module(module)

    control = Channel(socket.socket(fileno=control_fd))
    control.send({"ready": True})
    children: dict[int, _Child] = {}
    try:
        while True:
            readable, _, _ = select.select([control], [], [], WATCH_S if children else None)
            if readable:
                request, fds = control.receive()
                _serve(control, request, fds, children)
            for child in children.values():
                _watch(child)
    except ChannelClosed:
        for child in children.values():
            _kill_tree(child.pid)
            shutil.rmtree(child.scratch, ignore_errors=True)
    _kill_orphans({})
    os._exit(0)  # tearing down torch's modules would take seconds


def _serve(control: Channel, request: Any, fds: list[int], children: dict[int, _Child]) -> None:
    if "fork" in request:
        scratch = tempfile.mkdtemp(prefix="rag-kernels-")
        pid = os.fork()
        if pid == 0:
            _become_worker(request, fds, scratch)
        for fd in fds:
            os.close(fd)
        children[pid] = _Child(pid, request["memory_bytes"], scratch)
        control.send({"pid": pid})
    elif "reap" in request:
        child = children.pop(request["reap"])
        status = _reap(child)
        _kill_orphans(children)
        shutil.rmtree(child.scratch, ignore_errors=True)
        control.send({"status": status, "overrun": child.overrun})


def _become_worker(request: Any, fds: list[int], scratch: str) -> NoReturn:
    """In the forked child: cut ties, set limits, run the target, and never return."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        socket_fd, log_fd = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        _close_all_but({0, 1, 2, socket_fd})
        os.chdir(scratch)
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        _limit(request["memory_bytes"] if request["limit_address_space"] else None)
        import faulthandler

        faulthandler.enable()
        module, _, function = request["fork"].partition(":")
        channel = Channel(socket.socket(fileno=socket_fd))
        getattr(importlib.import_module(module), function)(channel)
        code = 0
    except ChannelClosed:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _close_all_but(keep: set[int]) -> None:
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself


def _limit(memory_bytes: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    if memory_bytes is not None:
        with open("/proc/self/statm") as f:
            now_bytes = int(f.read().split()[0]) * PAGE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (now_bytes + memory_bytes, now_bytes + memory_bytes))


def _tree(pid: int) -> list[int]:
    """The process and its descendants, as far as /proc shows them."""
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        try:
            for task in os.listdir(f"/proc/{current}/task"):
                with open(f"/proc/{current}/task/{task}/children") as f:
                    queue += [int(child) for child in f.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _watch(child: _Child) -> None:
    """Kill the tree if it holds more memory or processes than it may."""
    if child.memory_bytes is None or child.overrun:
        return
    tree = _tree(child.pid)
    used = 0
    for pid in tree:
        try:
            with open(f"/proc/{pid}/statm") as f:
                _, resident, shared = f.read().split()[:3]
            used += (int(resident) - int(shared)) * PAGE_BYTES
        except (FileNotFoundError, ProcessLookupError):
            continue
    if used > child.memory_bytes:
        child.overrun = f"it used more than {child.memory_bytes >> 20} MiB of memory"
    elif len(tree) > MAX_PROCESSES:
        child.overrun = f"it started more than {MAX_PROCESSES} processes"
    elif _folder_bytes(child.scratch) > MAX_SCRATCH_BYTES:
        child.overrun = f"it wrote more than {MAX_SCRATCH_BYTES >> 20} MiB of files"
    if child.overrun:
        _kill_tree(child.pid)


def _folder_bytes(folder: str) -> int:
    """Disk space of the files right in a folder."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in os.scandir(folder))
    except FileNotFoundError:
        return 0  # a file or the folder went away meanwhile


def _kill_tree(pid: int) -> None:
    """Stop first, so that nothing forks away while the tree is walked; then kill."""
    for sig in (signal.SIGSTOP, signal.SIGKILL):
        for member in _tree(pid):
            try:
                os.kill(member, sig)
            except ProcessLookupError:
                pass


def _reap(child: _Child, grace_s: float = 0.3) -> int:
    """Wait shortly for the worker to end by itself, then kill it; returns the wait status."""
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.002)
    _kill_tree(child.pid)
    return os.waitpid(child.pid, 0)[1]


def _kill_orphans(known: dict[int, _Child]) -> None:
    """Whatever was re-parented to this process and is not a known worker belonged to a dead one."""
    for _ in range(20):
        strays = [pid for pid in _tree(os.getpid())[1:] if not _under(pid, known)]
        if not strays:
            return
        for pid in strays:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in strays:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass


def _under(pid: int, known: dict[int, _Child]) -> bool:
    return any(pid in _tree(root) for root in known)


def one_shot(channel: Channel) -> None:
    """Worker role for `Workers.call`: one payload in, one result (or the exception's text) out."""
    from eval import codec

    request, _ = channel.receive()
    module, _, function = request["target"].partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(codec.decode(request["payload"]))
        reply = {"result": codec.encode(result)}
    except MemoryError:
        reply = {"memory": "it asked for more memory than it may use"}
    except Exception as error:
        traceback.print_exc()
        reply = {"raised": f"{type(error).__name__}: {error}"}
    channel.send(reply)
