"""The warm parent: a process that has imported torch, touched no GPU, and forks a worker in milliseconds.

Comes in: requests of the judge on a socket (fork, freeze, thaw, activity, reap). Goes out: process ids, what the
kernel counted, wait statuses. Knows nothing of kernels. Verdicts are never made here, and expected answers are never
sent to a candidate's worker.

What holds for every worker (tests/test_workers.py):
- a crash, an endless loop and an early exit end the worker alone:      test_a_segmentation_fault_is_named
- RLIMIT_AS (CPU) and a watchdog on the memory of the tree:             test_children_that_hold_memory_together_...
- RLIMIT_FSIZE and a watchdog on the scratch folder:                    test_a_scratch_folder_may_not_fill_the_disk
- the whole tree dies with it, also what left its session:              test_grandchildren_that_left_the_session_...
- an environment from an allow-list:                                    test_keys_are_not_in_the_environment
- it opens no other GPU's file (landlock, or a candidate's bwrap):       test_a_worker_opens_no_file_of_another_gpu
What holds for a candidate's, as far as `process.sandbox.layers()` names it (tests/test_sandbox.py attacks each layer
alone: test_the_layer_alone_stops_it[attack-layer]):
- bwrap: no network and no socket of the host      connect_tcp, connect_unix, connect_abstract
- bwrap, landlock: no file of the user is read     read_file, open_environment
- bwrap, landlock: only its scratch is written     write_file, leave_shared_memory
- bwrap, landlock: the judge cannot be seen        see, open_memory, read_memory
- landlock: other workers, the warm parent         test_one_worker_cannot_read_the_scratch_..., see_the_warm_parent
- seccomp: no tracing, no namespaces, no sockets   trace, read_memory, make_a_namespace, connect_tcp
- seccomp: nothing that outlives the worker        leave_a_segment
- seccomp: no other cores, no higher priority      leave_the_cores, take_precedence
- seccomp: kernels start no process                start_a_process, run_a_program
- no daemon outlives its worker                    test_a_daemon_does_not_outlive_its_worker
- builds read nothing of the user                  test_a_build_reads_nothing_of_the_user

What does not hold: a flaw of the operating system or of the GPU's driver, whose devices a CUDA worker must open; what
a worker does within its own process (it may change its own memory at will); work on a GPU goes on while a worker is
frozen; the installed packages, the system's files and the builds of other candidates can be read. Without bwrap the
command lines of other processes can be read, and a module (which may start processes) can connect to a socket file.
A layer that the machine does not offer is missing from every result's list.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from rag_kernels.eval import codec
from rag_kernels.eval.process.channel import Channel, ChannelClosed, Failed, readable
from rag_kernels.eval.process.lockdown import Confinement, close_files, lock_down
from rag_kernels.eval.process.process_tree import (
    PAGE_BYTES,
    counts,
    cpu_seconds,
    kill_tree,
    private_bytes,
    signal_all,
    stands,
    strays,
    tree,
)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_DUMPABLE = 4
WATCH_S = 0.1
STOP_LIMIT_S = 5.0
MAX_DESCRIPTORS = 1 << 16
MAX_PROCESSES = 512
MAX_FILE_BYTES = 1 << 30
STACKS_BYTES = 192 * (8 << 20)  # addresses of a large team's stacks, of which little is ever in memory
MAX_SCRATCH_BYTES = 2 << 30

# What tvm-ffi imports where it is installed, as with torch's CUDA builds, on machines without a GPU too. It runs
# `ldconfig` when it is imported, and workers of kernels may start no process.
STARTS_A_PROCESS = "cuda.pathfinder"


@dataclass
class _Child:
    pid: int
    memory_bytes: int | None
    scratch: str
    may_fork: bool
    overrun: str = ""
    frozen: bool = False


def main(
    control_fd: int, preload: Sequence[str], confinement: dict[str, Any] | None = None, closed: Sequence[str] = ()
) -> None:
    """Import torch and what else is named in `preload`, then serve fork requests until the parent is gone.

    Its children open no file of those that are `closed`.
    """
    if os.getpid() != os.getsid(0):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    confined = Confinement(**confinement) if confinement else None
    if confined:
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    _preload(("torch", *preload))
    with suppress(ImportError):
        _preload((STARTS_A_PROCESS,))
    control = Channel(socket.socket(fileno=control_fd))
    children: dict[int, _Child] = {}
    watched = time.monotonic()
    try:
        control.send({"ready": True})
        while True:
            if readable(control, WATCH_S if children else None):
                request, fds = control.receive()
                _serve(control, request, fds, children, confined, closed)
            if time.monotonic() - watched >= WATCH_S:
                for child in children.values():
                    _watch(child)
                watched = time.monotonic()
    except ChannelClosed:
        for child in children.values():
            kill_tree(child.pid)
            shutil.rmtree(child.scratch, ignore_errors=True)
    _kill_orphans({})
    os._exit(0)  # tearing down torch's modules would take seconds


def _preload(modules: Sequence[str]) -> None:
    gc.disable()  # imports make no garbage, and looking for it takes a quarter of their time
    try:
        for module in modules:
            importlib.import_module(module)
    finally:
        gc.freeze()  # nor do children look at what all of them share
        gc.enable()


def _serve(
    control: Channel,
    request: Any,
    fds: list[int],
    children: dict[int, _Child],
    confined: Confinement | None,
    closed: Sequence[str],
) -> None:
    if "fork" in request:
        scratch = tempfile.mkdtemp(prefix="rag-kernels-")
        pid = os.fork()
        if pid == 0:
            _become_worker(request, fds, scratch, confined, closed)
        for fd in fds:
            os.close(fd)
        children[pid] = _Child(pid, request["memory_bytes"], scratch, request["may_fork"] or confined is None)
        control.send({"pid": pid})
    elif "preload" in request:
        _preload(request["preload"])
        control.send({"preloaded": True})
    elif "freeze" in request:
        control.send({"stopped": _freeze(children[request["freeze"]], children)})
    elif "thaw" in request:
        child = children[request["thaw"]]
        child.frozen = False
        signal_all(_members(child, children), signal.SIGCONT)
        control.send({"thawed": True})
    elif "keep" in request:
        os.sched_setaffinity(children[request["keep"]].pid, request["cores"])
        control.send({"kept": True})
    elif "activity" in request:
        control.send(_activity(children[request["activity"]], children))
    elif "reap" in request:
        child = children.pop(request["reap"])
        status = _reap(child)
        _kill_orphans(children)
        shutil.rmtree(child.scratch, ignore_errors=True)
        control.send({"status": status, "overrun": child.overrun})


def _become_worker(
    request: Any, fds: list[int], scratch: str, confined: Confinement | None, closed: Sequence[str]
) -> NoReturn:
    """Cut ties in the forked child, set limits, run the target, and never return."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        socket_fd, log_fd = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.closerange(3, socket_fd)
        os.closerange(socket_fd + 1, MAX_DESCRIPTORS)
        os.chdir(scratch)
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        _limit(request["memory_bytes"] if request["limit_address_space"] else None)
        import faulthandler

        faulthandler.enable()
        if confined:
            os.environ |= {"HOME": scratch, "USER": "candidate"}
            lock_down(confined, scratch, may_fork=request["may_fork"])
        elif closed:
            close_files(closed)
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


def _limit(memory_bytes: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    if memory_bytes is not None:
        with open("/proc/self/statm") as f:
            now_bytes = int(f.read().split()[0]) * PAGE_BYTES
        most_bytes = now_bytes + memory_bytes + STACKS_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


def _members(child: _Child, children: dict[int, _Child]) -> list[int]:
    """Return the worker's own tree, and what left a tree: one worker runs a candidate at a time."""
    if not child.may_fork:
        return [child.pid]
    return tree(child.pid) + strays(children)


def _freeze(child: _Child, children: dict[int, _Child]) -> bool:
    """Stop the tree; True once every thread of it has stopped, or ended."""
    child.frozen = True
    stopped: set[int] = set()
    while new := set(_members(child, children)) - stopped:  # what was started while we looked
        signal_all(sorted(new), signal.SIGSTOP)
        stopped |= new
    deadline = time.monotonic() + STOP_LIMIT_S
    flags = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT  # the exit status stays for `_reap`
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, child.pid, flags) and all(stands(pid) for pid in stopped - {child.pid}):
            return True
        time.sleep(0)
    return False


def _activity(child: _Child, children: dict[int, _Child]) -> dict[str, Any]:
    """Return what the kernel's clocks say; a child that may not fork costs one clock and one file."""
    cpu_s, threads, members = 0.0, 0, _members(child, children)
    for pid in members:
        try:
            cpu_s += cpu_seconds(pid)
            its_threads, waited_for_s = counts(pid)
        except (OSError, IndexError):
            continue  # it ended meanwhile
        threads += its_threads
        cpu_s += waited_for_s
    return {"cpu_s": cpu_s, "threads": threads, "processes": len(members)}


def _watch(child: _Child) -> None:
    """Kill the tree if it holds more memory or processes than it may."""
    if child.overrun:
        return
    members = tree(child.pid)
    used = sum(private_bytes(pid) for pid in members)
    if child.memory_bytes is not None and used > child.memory_bytes:
        child.overrun = f"it used more than {child.memory_bytes >> 20} MiB of memory"
    elif len(members) > MAX_PROCESSES:
        child.overrun = f"it started more than {MAX_PROCESSES} processes"
    elif _folder_bytes(child.scratch) > MAX_SCRATCH_BYTES:
        child.overrun = f"it wrote more than {MAX_SCRATCH_BYTES >> 20} MiB of files"
    if child.overrun:
        kill_tree(child.pid)


def _folder_bytes(folder: str) -> int:
    """Return disk space of the files right in a folder."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in os.scandir(folder))
    except FileNotFoundError:
        return 0  # a file or the folder went away meanwhile


def _reap(child: _Child, grace_s: float = 0.3) -> int:
    """Wait shortly for the worker to end by itself, then kill it; returns the wait status."""
    deadline = time.monotonic() + (0 if child.frozen else grace_s)
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.002)
    kill_tree(child.pid)
    return os.waitpid(child.pid, 0)[1]


def _kill_orphans(known: dict[int, _Child]) -> None:
    """Kill what was re-parented to this process and is no known worker: it belonged to a dead one."""
    for _ in range(20):
        all_now = tree(os.getpid())[1:]
        under = {pid for root in known for pid in tree(root)}  # looked at last: workers go on starting processes
        left = [pid for pid in all_now if pid not in under]
        if not left:
            return
        signal_all(left, signal.SIGKILL)
        for pid in left:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass


def one_shot(channel: Channel) -> None:
    """Serve `Workers.call`: one payload in, one result (or the exception's text) out."""
    request, _ = channel.receive()
    module, _, function = request["target"].partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(codec.decode(request["payload"]))
        reply = {"result": codec.encode(result)}
    except MemoryError:
        reply = codec.encode(Failed("memory", "it asked for more memory than it may use", alive=False))
    except Exception as error:
        traceback.print_exc()
        reply = codec.encode(Failed("raised", f"{type(error).__name__}: {error}", alive=False))
    channel.send(reply)
