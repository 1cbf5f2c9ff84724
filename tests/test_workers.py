"""Child processes: results come back, and every way of failing is told apart. One test a property of isolation."""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from interrupts import ctrl_c

from rag_kernels.eval import codec
from rag_kernels.eval.process.channel import Channel, ChannelClosed, Failed, pair, readable
from rag_kernels.eval.process.process_tree import children, runs
from rag_kernels.eval.process.workers import Worker, WorkerFailed, Workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    os.environ["OPENAI_API_KEY"] = "sk-secret"
    with Workers() as pool:
        yield pool


def fails(workers: Workers, code: str, **limits: float) -> WorkerFailed:
    settings = {"deadline_s": 20.0} | limits
    with pytest.raises(WorkerFailed) as caught:
        workers.call("builtins:exec", code, **settings)  # type: ignore[arg-type]
    return caught.value


def test_a_result_comes_back(workers: Workers) -> None:
    assert workers.call("math:sqrt", 9.0, deadline_s=60) == 3.0


def test_later_children_have_what_is_preloaded_meanwhile(workers: Workers) -> None:
    loaded = "import sys; raise ValueError('wave' in sys.modules)"
    assert "False" in fails(workers, loaded).message
    workers.preload("wave")
    assert "True" in fails(workers, loaded).message


def test_an_exception_is_reported_with_its_text(workers: Workers) -> None:
    failure = fails(workers, "raise ValueError('no such thing')")
    assert failure.kind == "raised"
    assert "no such thing" in failure.message


def test_a_segmentation_fault_is_named(workers: Workers) -> None:
    failure = fails(workers, "import ctypes; ctypes.string_at(0)")
    assert failure.kind == "crashed"
    assert failure.signal == signal.SIGSEGV and not failure.alive
    assert "SIGSEGV" in failure.message


def test_an_early_exit_is_no_result(workers: Workers) -> None:
    failure = fails(workers, "import os; print('bye', flush=True); os._exit(0)")
    assert failure.kind == "crashed"
    assert "exited with code 0" in failure.message
    assert "bye" in failure.log


def test_an_endless_loop_meets_the_deadline(workers: Workers) -> None:
    started = time.monotonic()
    assert fails(workers, "while True: pass", deadline_s=0.5).kind == "timed_out"
    assert time.monotonic() - started < 10


def test_too_large_an_allocation_is_refused(workers: Workers) -> None:
    failure = fails(workers, "x = bytearray(4 << 30)", memory_bytes=1 << 30)
    assert failure.kind == "memory"


def test_children_that_hold_memory_together_are_stopped(workers: Workers) -> None:
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(120 << 20)
        for i in range(0, len(held), 4096): held[i] = 1
        time.sleep(20)
time.sleep(20)
"""
    failure = fails(workers, code, memory_bytes=400 << 20)
    assert failure.kind == "memory"
    assert "400 MiB" in failure.message


def test_a_file_may_not_grow_without_end(workers: Workers) -> None:
    failure = fails(workers, "f = open('big', 'wb'); f.seek(2 << 30); f.write(b'x'); f.close()")
    assert "too large" in failure.message


def test_a_scratch_folder_may_not_fill_the_disk(workers: Workers) -> None:
    code = """
import os, time
for i in range(5):
    with open(f"file{i}", "wb") as f:
        os.posix_fallocate(f.fileno(), 0, 512 << 20)
time.sleep(10)
"""
    failure = fails(workers, code, memory_bytes=1 << 30)
    assert "2048 MiB of files" in failure.message


def test_grandchildren_that_left_the_session_are_killed(workers: Workers, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(pid_file)!r}, "w").write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
os.wait(); time.sleep(0.3)
"""
    workers.call("builtins:exec", code, deadline_s=20)
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_keys_are_not_in_the_environment(workers: Workers) -> None:
    assert "sk-secret" not in workers.call("builtins:eval", "str(dict(__import__('os').environ))", deadline_s=20)


def test_the_scratch_folder_goes_away(workers: Workers) -> None:
    code = "(open('left', 'w').write('x'), __import__('os').getcwd())[1]"
    folder = workers.call("builtins:eval", code, deadline_s=20)
    assert not Path(folder).exists()


def test_a_closed_worker_leaves_no_descriptor_and_keeps_its_log(workers: Workers) -> None:
    before = psutil.Process().num_fds()
    worker = workers.spawn("rag_kernels.eval.process.warm_parent:one_shot")
    worker.request({"target": "builtins:exec", "payload": "print('said')"}, deadline_s=60)
    worker.close()
    assert psutil.Process().num_fds() == before
    assert "said" in worker.log()


def test_a_file_in_the_working_folder_cannot_take_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "eval.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    with Workers() as pool:
        assert pool.call("math:sqrt", 4.0, deadline_s=60) == 2.0


def test_two_threads_may_call_at_once(workers: Workers) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda n: workers.call("math:sqrt", float(n * n), deadline_s=30), range(8))
    assert list(results) == [float(n) for n in range(8)]


def test_an_interrupt_leaves_no_answer_to_the_next_request(workers: Workers) -> None:
    """At twenty moments of as many conversations: each is whole, and the one after is understood."""
    with workers.spawn("rag_kernels.eval.process.warm_parent:one_shot") as worker:
        for number in range(20):
            with ctrl_c(0.01 + number * 1e-4):
                while True:
                    worker.freeze()
                    worker.thaw()
            assert worker.activity().processes == 1


def test_a_worker_keeps_to_the_cores_it_is_told(workers: Workers) -> None:
    cores = sorted(os.sched_getaffinity(0))
    worker = workers.spawn("rag_kernels.eval.process.warm_parent:one_shot", memory_bytes=None)
    worker.keep_to(cores[-1:])
    asked = {"target": "builtins:eval", "payload": "sorted(__import__('os').sched_getaffinity(0))"}
    assert worker.request(asked, deadline_s=20)["result"] == cores[-1:]
    worker.close()


def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    """A candidate that sends some with every answer does not use up the judge's."""
    ours, theirs = pair()
    other = Channel(theirs)
    worker = Worker(None, Channel(ours), 0, os.memfd_create("log"), is_single=False)  # type: ignore[arg-type]
    for reply in ({"done": True}, codec.encode(Failed("raised", "no", alive=True))):
        before = set(os.listdir("/proc/self/fd"))
        other.send(reply, [0, 1, 2])
        with suppress(WorkerFailed):
            worker.request({}, deadline_s=5)
        assert set(os.listdir("/proc/self/fd")) == before
    other.send({"done": True}, [0])
    reply, fds = worker.exchange({}, deadline_s=5)
    assert reply == {"done": True} and os.fstat(fds[0])
    os.close(fds[0])


def test_descriptors_of_half_a_message_are_closed() -> None:
    ours, theirs = pair()
    channel = Channel(ours)
    channel.settimeout(0.2)
    before = set(os.listdir("/proc/self/fd"))
    for part in (b"x", b"y"):
        socket.send_fds(theirs, [part], [0, 1, 2])
    with pytest.raises(TimeoutError):
        channel.receive()
    assert set(os.listdir("/proc/self/fd")) == before


def test_descriptors_beyond_a_thousand_are_waited_for() -> None:
    """As a process has that keeps many judges open; `select` ends there."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        far = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1500)
        assert not readable(far, 0)
        theirs.send(b"x")
        assert readable(far, None)
        os.close(far)


def test_an_answer_without_end_is_no_answer() -> None:
    ours, theirs = pair()
    body = b"[" * 20000
    theirs.sendall(struct.pack("<I", len(body)) + body)
    with pytest.raises(ChannelClosed, match="not JSON"):
        Channel(ours).receive()


def test_a_process_that_ends_while_it_is_looked_at_has_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says so in two ways; the second one had ended the parent of all workers."""

    def gone(path: str) -> list[str]:
        raise ProcessLookupError(3, "No such process", path)

    monkeypatch.setattr("os.listdir", gone)
    assert children(os.getpid()) == []


@pytest.mark.parametrize(("does", "computes"), [("while True: pass", True), ("input()", False)])
def test_what_wants_a_core_is_told_from_what_waits(does: str, computes: bool) -> None:
    """On a machine at work it may have none for long."""
    code = f"import threading; threading.Thread(target=lambda: print(flush=True) or exec({does!r})).start()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        end = time.monotonic() + 60
        while runs(process.pid) != computes and time.monotonic() < end:
            time.sleep(0.01)
        seen = runs(process.pid)
        process.kill()
    assert seen == computes and not runs(process.pid)


@pytest.mark.parametrize("installed", [True, False])
def test_what_tvm_ffi_imports_beside_cuda_is_there_before_a_worker_is_locked_down(
    installed: bool, tmp_path: Path
) -> None:
    """It comes with torch's CUDA builds and starts a process: every kernel was refused, on machines without a GPU."""
    place = tmp_path / "cuda"
    place.mkdir()
    (place / "__init__.py").touch()
    if installed:
        (place / "pathfinder.py").write_text("import subprocess\nsubprocess.run(['true'], check=True)\n")
    told = "import gc, sys; print('cuda.pathfinder' in sys.modules, gc.isenabled())"
    ours, theirs = socket.socketpair()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rag_kernels.eval.process import warm_parent\n"
        f"warm_parent.os._exit = lambda code: exec({told!r})\n"
        f"warm_parent.main({theirs.fileno()}, ())\n"
    )
    ours.close()
    done = subprocess.run(
        [sys.executable, "-c", code], pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(installed), "True"], done.stderr


@pytest.mark.parametrize("tf32", [True, False])
def test_a_candidates_library_calls_may_take_what_the_modules_may(workers: Workers, tf32: bool) -> None:
    """Else its convolutions would be timed in fp32 beside a module's in TF32."""
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x @ x\n"
    code = "import torch\nfrom rag_kernels.eval.children.candidate.worker import Loaded\n"
    code += "from rag_kernels.eval.messages.to_candidate import CandidateCode, OpenCandidate\n"
    code += f"Loaded(OpenCandidate('cpu', 1, CandidateCode('module', {source!r}, '', ''), {tf32}))\n"
    code += "found = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32\n"
    workers.call("builtins:exec", f"{code}assert found == ({tf32}, {tf32}), found", deadline_s=60)
