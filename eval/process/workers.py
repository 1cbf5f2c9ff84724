"""Child processes for everything that runs a user's or a candidate's code.

Comes in: the name of a function (`"module:function"`). Goes out: its result, or `WorkerFailed` with the kind of
failure. One warm parent (`process.warm_parent`) per `Workers`; a fork of it takes some 30 ms where a fresh interpreter
with torch takes seconds. Knows nothing of kernels or verdicts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from rag_kernels.eval import codec
from rag_kernels.eval.errors import Internal
from rag_kernels.eval.places import ROOT
from rag_kernels.eval.process.channel import READY, Channel, ChannelClosed, failure_in, pair, readable
from rag_kernels.eval.process.process_tree import (
    Resident,
    cpu_seconds,
    forget_peak,
    kill_tree,
    main_seconds,
    resident,
    runs,
    seen_from_here,
    signal_all,
    stands,
)
from rag_kernels.eval.process.sandbox import SCRATCH, OwnGpu, Sandbox, allowed_env

FailureKind = Literal["crashed", "timed_out", "memory", "raised", "not_shared"]
LOG_CHARS = 8000
START_LIMIT_S = 120.0
STOP_LOOK_S = 2e-5
STOP_LIMIT_S = 20.0  # nobody can refuse, but on a machine at work a thread may wait long for its turn to stop

WORKER_ENV = {
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",  # importing tvm_ffi beside torch would touch CUDA before the fork
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # numbers in CUDA_VISIBLE_DEVICES mean what they mean to nvidia-smi
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",  # the same for both sides; spinning threads would slow the other one
    # Once torch's profiler has looked at a module on a GPU it lets go, else every later launch takes a third longer.
    "TEARDOWN_CUPTI": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # Freed blocks are kept and used again, so that no side pays page faults for its temporaries.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}


class WorkerFailed(Internal):
    """A request has no result. `kind` says how, `log` is the tail of the child's output.

    `signal` is the one that ended the child, `code` what it exited with; `alive` says that it answers further requests.
    The message is for readers: a candidate may have written part of it.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        log: str = "",
        *,
        signal: int | None = None,
        code: int | None = None,
        alive: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.log = log
        self.signal, self.code = signal, code
        self.alive = alive


@dataclass(frozen=True, slots=True)
class Activity:
    """What a worker's process tree has used so far, as the kernel counts it."""

    cpu_s: float
    threads: int
    processes: int


class Worker:
    """One forked child with a conversation: `request` sends a message and waits for the reply.

    `pid` is the child's number for the warm parent; in a sandbox it is another one outside. A child that `is_single`
    starts no other process: it is stopped and looked at without the warm parent, where its number here is known.
    `memory_bytes` is what its process tree may take; None where nothing bounds it.
    """

    def __init__(
        self,
        workers: Workers,
        channel: Channel,
        pid: int,
        log_fd: int,
        *,
        is_single: bool,
        memory_bytes: int | None = None,
    ) -> None:
        self._workers, self._channel, self._log_fd = workers, channel, log_fd
        self.pid, self.memory_bytes = pid, memory_bytes
        self._here = seen_from_here(workers._process.pid, pid) if is_single else None
        self._elsewhere: int | None = None  # the same for others, when it has been looked for
        self._stands = False
        self._closed = False
        self._log: str | None = None  # read when the child has ended

    def freeze(self) -> bool:
        """Stop every process of the tree; True once all of them stand still. Work on a GPU goes on."""
        self._stands = True
        if self._here is None:
            return bool(self._workers._ask({"freeze": self.pid})["stopped"])
        signal_all([self._here], signal.SIGSTOP)
        end = time.monotonic() + STOP_LIMIT_S
        while not (still := stands(self._here)) and time.monotonic() < end:
            time.sleep(STOP_LOOK_S)
        return still

    @property
    def stands(self) -> bool:
        """Whether it was stopped and has not been let run again."""
        return self._stands

    def thaw(self) -> None:
        """Let it run again, if it was stopped."""
        if not self._stands:
            return
        self._stands = False
        if self._here is None:
            self._workers._ask({"thaw": self.pid})
        else:
            signal_all([self._here], signal.SIGCONT)

    @property
    def runs(self) -> bool:
        """Whether a thread of it has a core, or waits for one; of a process that is not seen from here that is unknown,
        and False.
        """
        return self._here is not None and runs(self._here)

    def cpu_s(self) -> float:
        """Return CPU seconds of the tree so far.

        Exact for one that stands, else what threads that run did lately may miss.
        """
        if self._here is None:
            return self.activity().cpu_s
        try:
            return cpu_seconds(self._here)
        except OSError:  # it has ended
            return 0.0

    def resident(self) -> Resident | None:
        """Return what its memory is and was at most; None where /proc does not tell."""
        try:
            return resident(self._number_here())
        except (OSError, KeyError):
            return None

    def waited_s(self) -> float:
        """Return how long its main thread has waited for a core so far; 0 where /proc does not tell."""
        try:
            return main_seconds(self._number_here())[1]
        except (OSError, ValueError):
            return 0.0

    def others_s(self) -> float | None:
        """Return CPU seconds of all threads but the main one so far, if it stands; None where /proc does not tell."""
        try:
            return None if self._here is None else cpu_seconds(self._here) - main_seconds(self._here)[0]
        except (OSError, ValueError):
            return None

    def forget_peak(self) -> None:
        """Have the greatest of its memory counted from now on, where /proc allows it."""
        with suppress(OSError):
            forget_peak(self._number_here())

    def _number_here(self) -> int:
        """Return its process id here; an OSError where /proc does not tell."""
        if self._here is not None:
            return self._here
        if self._elsewhere is None:
            self._elsewhere = seen_from_here(self._workers._process.pid, self.pid)
        if self._elsewhere is None:
            raise ProcessLookupError(self.pid)
        return self._elsewhere

    def keep_to(self, cores: Collection[int]) -> None:
        """Let its main thread run on these cores only; other threads, and what it has started, stay where they are."""
        self._workers._ask({"keep": self.pid, "cores": sorted(cores)})

    def activity(self) -> Activity:
        """Return CPU time, threads and processes of the tree now; also of a worker that stands still."""
        return Activity(**self._workers._ask({"activity": self.pid}))

    def wait_until_ready(self, *, deadline_s: float) -> None:
        """Wait for what it makes before its first message (a GPU's context); raises WorkerFailed as `request` does."""
        self.request(READY, deadline_s=deadline_s)

    def request(self, message: Any, *, deadline_s: float, fds: Sequence[int] = (), spin: bool = False) -> Any:
        """Send and wait; raises WorkerFailed if the child dies, overruns the deadline, or reports an exception.

        With `spin` this process stays awake while it waits: waking it up takes up to 0.1 ms.
        """
        reply, unasked = self.exchange(message, deadline_s=deadline_s, fds=fds, spin=spin)
        for fd in unasked:
            os.close(fd)
        return reply

    def exchange(
        self, message: Any, *, deadline_s: float, fds: Sequence[int] = (), spin: bool = False
    ) -> tuple[Any, list[int]]:
        """Return the same, with the descriptors that came with the reply: the caller's to close."""
        self.thaw()
        try:
            self._channel.settimeout(deadline_s)
            self._channel.send(message, fds)
            if spin:
                self._channel.spin(deadline_s)
            reply, received = self._channel.receive()
        except TimeoutError:
            self.close()
            raise WorkerFailed("timed_out", f"it was not done after {deadline_s:g} s", self.log()) from None
        except ChannelClosed:
            raise self._post_mortem() from None
        if failed := failure_in(reply):
            for fd in received:
                os.close(fd)
            raise WorkerFailed(failed.kind, failed.text, self.log(), alive=failed.alive)
        return reply, received

    def log(self) -> str:
        """Return the tail of what the child wrote to stdout and stderr."""
        if self._log is not None:
            return self._log
        size = os.fstat(self._log_fd).st_size
        data = os.pread(self._log_fd, LOG_CHARS, max(0, size - LOG_CHARS))
        return data.decode(errors="replace")

    def _post_mortem(self) -> WorkerFailed:
        status, overrun = self._end()
        if overrun:
            return WorkerFailed("memory", overrun, self.log())
        if os.WIFSIGNALED(status):
            number = signal.Signals(os.WTERMSIG(status))
            return WorkerFailed("crashed", f"it was killed by {number.name}", self.log(), signal=number)
        code = os.waitstatus_to_exitcode(status)
        return WorkerFailed("crashed", f"it exited with code {code} before it answered", self.log(), code=code)

    def _end(self) -> tuple[int, str]:
        if self._closed:
            return 0, ""
        self._closed = True
        self._channel.close()
        try:
            return self._workers._reap(self.pid)
        finally:
            self._log = self.log()
            os.close(self._log_fd)

    def kill(self) -> None:
        """End the child and everything it started from another thread than that which waits for it, and is told."""
        kill_tree(self._number_here())

    def close(self) -> None:
        """End the child and everything it started."""
        if not self._closed:
            self.thaw()  # or it could not end by itself
        self._end()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def to_the_end() -> Iterator[None]:
    """Let Ctrl-C and a polite kill wait for the end of an exchange: half of one would leave its answer to the next."""
    late: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():  # signals are handled nowhere else
            for which in (signal.SIGINT, signal.SIGTERM):
                if (handler := signal.getsignal(which)) is not None:  # Python's own
                    handlers[which] = handler
                    signal.signal(which, lambda *given: late.append(given))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, _ in late:
            signal.raise_signal(number)


class Workers:
    """The warm parent and its children; safe to use from several threads. A context manager.

    With a `sandbox` all of them live in it (as far as this machine has one), and each child is locked down. A child may
    open the files of no GPU but its own, which the sandbox names, or `own_gpu` where there is none.
    """

    def __init__(
        self,
        extra_env: dict[str, str] | None = None,
        *,
        preload: Sequence[str] = (),
        sandbox: Sandbox | None = None,
        own_gpu: OwnGpu | None = None,
    ) -> None:
        ours, theirs = pair()
        self.own_gpu = sandbox.own_gpu if sandbox else own_gpu
        env = allowed_env() | WORKER_ENV | (self.own_gpu.env if self.own_gpu else {}) | (extra_env or {})
        self._scratch = Path(tempfile.mkdtemp(prefix="rag-kernels-"))
        box = sandbox.command(self._scratch) if sandbox else []
        env |= {"TMPDIR": SCRATCH if box else str(self._scratch)} | ({"HOME": SCRATCH} if box else {})
        confinement = asdict(sandbox.confinement()) if sandbox else None
        closed = self.own_gpu.others if self.own_gpu else ()
        self._filtered = "seccomp" in (confinement or {}).get("layers", ())
        start = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            "from rag_kernels.eval.process.warm_parent import main; "
            f"main({theirs.fileno()}, {list(preload)!r}, {confinement!r}, {closed!r})"
        )
        self._process = subprocess.Popen(
            [*box, sys.executable, "-P", "-c", start],
            env=env,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the judge's to handle, from the first moment
        )
        theirs.close()
        self._control = Channel(ours)
        self._lock, self._taking = threading.Lock(), threading.Lock()
        self._preloaded, self._owed = set(preload), 1  # answers that we have not read yet: first that it is ready
        self._spares: dict[tuple[Any, ...], list[Worker]] = {}

    def _ask(self, request: Any, fds: Sequence[int] = ()) -> Any:
        with self._lock:
            try:
                if self._owed:
                    self._control.settimeout(START_LIMIT_S)
                    readable(self._control, START_LIMIT_S)  # seconds, which may be interrupted
                with to_the_end():
                    while self._owed:
                        self._control.receive()
                        self._owed -= 1
                    self._control.send(request, fds)
                    return self._control.receive()[0]
            except (ChannelClosed, TimeoutError) as error:
                raise RuntimeError("The warm worker process has died; run `rag-kernels doctor`.") from error

    def preload(self, *modules: str) -> None:
        """Let the warm parent import more, which later children then have; the next request waits for it."""
        with self._lock:
            if missing := [module for module in modules if module not in self._preloaded]:
                with to_the_end(), suppress(ChannelClosed):  # the next request says that it has died
                    self._control.send({"preload": missing})
                    self._preloaded |= set(missing)
                    self._owed += 1

    def spawn(
        self, role: str, *, memory_bytes: int | None = None, limit_address_space: bool = True, may_fork: bool = True
    ) -> Worker:
        """Fork a child that runs `role(channel)`. `memory_bytes` bounds the memory of its process tree.

        In a sandbox a child that may not fork starts no process and runs no program.
        """
        with self._taking, suppress(KeyError, IndexError):
            return self._spares[role, memory_bytes, limit_address_space, may_fork].pop()
        return self._fork(role, memory_bytes, limit_address_space, may_fork)

    def _fork(self, role: str, memory_bytes: int | None, limit_address_space: bool, may_fork: bool) -> Worker:
        ours, theirs = pair()
        log_fd = os.memfd_create("log")
        request = {
            "fork": role,
            "memory_bytes": memory_bytes,
            "limit_address_space": limit_address_space,
            "may_fork": may_fork,
        }
        reply = self._ask(request, [theirs.fileno(), log_fd])
        theirs.close()
        single = self._filtered and not may_fork
        return Worker(self, Channel(ours), reply["pid"], log_fd, is_single=single, memory_bytes=memory_bytes)

    def spare(
        self,
        role: str,
        *,
        memory_bytes: int | None = None,
        limit_address_space: bool = True,
        may_fork: bool = True,
        count: int = 1,
    ) -> None:
        """Start children now that the next `spawn`s with the same arguments take: their start costs no waiting then."""
        with self._taking:
            ready = self._spares.setdefault((role, memory_bytes, limit_address_space, may_fork), [])
            while len(ready) < count:
                ready.append(self._fork(role, memory_bytes, limit_address_space, may_fork))

    def call(self, target: str, payload: Any, *, deadline_s: float, memory_bytes: int | None = None) -> Any:
        """Run `target(payload)` in a child and return its result; both pass through `eval.codec`."""
        with self.spawn("rag_kernels.eval.process.warm_parent:one_shot", memory_bytes=memory_bytes) as worker:
            reply = worker.request({"target": target, "payload": codec.encode(payload)}, deadline_s=deadline_s)
        return codec.decode(reply["result"])

    def _reap(self, pid: int) -> tuple[int, str]:
        reply = self._ask({"reap": pid})
        return reply["status"], reply["overrun"]

    def close(self) -> None:
        for spare in [worker for ready in self._spares.values() for worker in ready]:
            with suppress(RuntimeError):  # the warm parent may be gone
                spare.close()
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
