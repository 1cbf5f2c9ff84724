"""Attacks on the sandbox, in compiled code: each layer alone stops what it promises, and with none the attack works."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rag_kernels.eval import codec
from rag_kernels.eval.build.compile import BuildError, Built, build, builds_boxed, toolchain
from rag_kernels.eval.machine.device import own_gpu
from rag_kernels.eval.process import lockdown, sandbox
from rag_kernels.eval.process.sandbox import Found, OwnGpu, Sandbox
from rag_kernels.eval.process.workers import WorkerFailed, Workers

CODE = r"""
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <string>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#define ATTACK(name) extern "C" int name(const char* path, int number)
static int done(long result) { return result >= 0 ? 0 : errno; }
static int to_socket(const char* path, bool abstract) {
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return errno;
  sockaddr_un to{AF_UNIX, {}};
  strcpy(to.sun_path + abstract, path);
  return done(connect(fd, (sockaddr*)&to, offsetof(sockaddr_un, sun_path) + abstract + strlen(path)));
}
ATTACK(connect_tcp) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) return errno;
  sockaddr_in to{AF_INET, htons(number), {htonl(INADDR_LOOPBACK)}, {}};
  return done(connect(fd, (sockaddr*)&to, sizeof to));
}
ATTACK(connect_unix) { return to_socket(path, false); }
ATTACK(connect_abstract) { return to_socket("rag-kernels-test", true); }
ATTACK(read_file) {
  char text[8];
  int fd = open(path, O_RDONLY);
  return fd < 0 ? errno : done(read(fd, text, 8));
}
ATTACK(write_file) {
  int fd = open((std::string(path) + ".written").c_str(), O_CREAT | O_WRONLY, 0600);
  return fd < 0 ? errno : done(write(fd, "x", 1));
}
ATTACK(leave_shared_memory) {
  int fd = open("/dev/shm/rag-kernels-test", O_CREAT | O_RDWR, 0600);
  if (fd >= 0) unlink("/dev/shm/rag-kernels-test");
  return fd < 0 ? errno : 0;
}
ATTACK(leave_a_segment) {
  int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
  return id < 0 ? errno : done(shmctl(id, IPC_RMID, nullptr));
}
ATTACK(see) { return done(kill(number, 0)); }
ATTACK(see_the_warm_parent) { return done(kill(getppid(), 0)); }
ATTACK(open_memory) { return done(open(("/proc/" + std::to_string(number) + "/mem").c_str(), O_RDWR)); }
ATTACK(open_environment) { return done(open(("/proc/" + std::to_string(number) + "/environ").c_str(), O_RDONLY)); }
ATTACK(read_memory) {
  char text[8];
  iovec here{text, 8}, there{(void*)path, 8};
  errno = 0;
  process_vm_readv(number, &here, 1, &there, 1, 0);
  return errno == EFAULT ? 0 : errno;  // let in, but `path` is no address over there
}
ATTACK(trace) { return done(ptrace(PTRACE_TRACEME, 0, 0, 0)); }
ATTACK(start_a_process) {
  int pid = fork();
  if (pid == 0) _exit(0);
  return pid < 0 ? errno : done(waitpid(pid, nullptr, 0));
}
ATTACK(run_a_program) {
  execl("/bin/true", "true", nullptr);
  return errno;
}
ATTACK(leave_the_cores) {
  cpu_set_t cores;
  return done(sched_getaffinity(0, sizeof cores, &cores)) | done(sched_setaffinity(0, sizeof cores, &cores));
}
ATTACK(take_precedence) { return done(setpriority(PRIO_PROCESS, 0, 1)); }
ATTACK(make_a_namespace) { return done(unshare(CLONE_NEWUSER)); }
ATTACK(limit_the_warm_parent) { return done(prlimit(getppid(), RLIMIT_NOFILE, nullptr, nullptr)) ? errno : 0; }
ATTACK(use_a_thread) { int x = 1; std::thread([&] { x = 0; }).join(); return x; }
ATTACK(is_dumpable) { return prctl(PR_GET_DUMPABLE); }
"""
NONE, BWRAP, LANDLOCK, SECCOMP = "none", "bwrap", "landlock", "seccomp"
# The layers that stop an attack, each alone.
STOPPED_BY: dict[str, tuple[str, ...]] = {
    "connect_tcp": (BWRAP, LANDLOCK, SECCOMP),
    "connect_unix": (BWRAP, SECCOMP),
    "connect_abstract": (BWRAP, LANDLOCK, SECCOMP),
    "read_file": (BWRAP, LANDLOCK),
    "write_file": (BWRAP, LANDLOCK),
    "leave_shared_memory": (BWRAP, LANDLOCK),
    "leave_a_segment": (SECCOMP,),
    "see": (BWRAP, LANDLOCK, SECCOMP),
    "see_the_warm_parent": (LANDLOCK, SECCOMP),
    "open_memory": (BWRAP, LANDLOCK),
    "open_environment": (BWRAP, LANDLOCK),
    "read_memory": (BWRAP, LANDLOCK, SECCOMP),
    "trace": (SECCOMP,),
    "start_a_process": (SECCOMP,),
    "run_a_program": (SECCOMP,),
    "leave_the_cores": (SECCOMP,),
    "take_precedence": (SECCOMP,),
    "make_a_namespace": (SECCOMP,),
    "limit_the_warm_parent": (SECCOMP,),
}
KILLED_FOR = {"read_memory", "trace", "start_a_process", "run_a_program", "make_a_namespace"}
SOMETIMES_FORBIDDEN = {"open_memory", "read_memory", "trace", "make_a_namespace"}  # by Yama, or by a container
NEEDS_ABI = {"connect_tcp": 4, "connect_abstract": 6, "see": 6, "see_the_warm_parent": 6}
EVERY = [(attack, layer) for attack, layers in STOPPED_BY.items() for layer in layers]
Attack = Callable[..., Any]
Pools = Callable[[str], Workers]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "attacks.cpp").write_text(CODE)
    command = [toolchain().cxx, "-shared", "-fPIC", "-pthread", str(folder / "attacks.cpp"), "-o", "attacks.so"]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "attacks.so"


@pytest.fixture(scope="module")
def pools(library: Path) -> Iterator[Pools]:
    """Warm parents with one layer alone, with none, and with all, each started when first asked for."""
    real, opened = sandbox.found(), dict[str, Workers]()

    def pool(layer: str) -> Workers:
        own = tuple(name for name in real.layers if name.startswith(layer))
        alone = Found(real.namespaces if layer == BWRAP else None, own)
        if layer != NONE and layer != "all" and not own:
            pytest.skip(f"{layer} does not work on this machine")
        if layer not in opened:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sandbox, "found", lambda: real if layer == "all" else alone)
                opened[layer] = Workers(sandbox=None if layer == NONE else Sandbox((library.parent,)))
        return opened[layer]

    yield pool
    for workers in opened.values():
        workers.close()


@pytest.fixture(scope="module")
def attack(library: Path, pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    """Run one function of the library in a worker and return what it says: 0, or the number of an error."""
    home = tmp_path_factory.mktemp("home")
    (home / "secret").write_text("secret")
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as abstract:
        for server, address in ((tcp, ("127.0.0.1", 0)), (unix, str(home / "s")), (abstract, "\0rag-kernels-test")):
            server.bind(address)
            server.listen(64)

        def run(name: str, layer: str, *, may_fork: bool = False) -> int:
            path = home / ("s" if name == "connect_unix" else "secret")
            number = tcp.getsockname()[1] if name == "connect_tcp" else os.getpid()
            call = f"__import__('ctypes').CDLL({str(library)!r}).{name}({os.fsencode(path)!r}, {number})"
            return int(evaluate(pools(layer), call, may_fork=may_fork))

        yield run


def evaluate(workers: Workers, code: str, *, may_fork: bool = True, target: str = "builtins:eval") -> Any:
    with workers.spawn("rag_kernels.eval.process.warm_parent:one_shot", may_fork=may_fork) as worker:
        reply = worker.request({"target": target, "payload": codec.encode(code)}, deadline_s=60)
    return codec.decode(reply["result"])


@pytest.mark.parametrize("name", STOPPED_BY)
def test_with_no_layer_the_attack_works(attack: Attack, name: str) -> None:
    if name == "run_a_program":
        with pytest.raises(WorkerFailed, match="exited with code 0"):  # it became /bin/true
            attack(name, NONE)
        return
    error = attack(name, NONE)
    if error and name in SOMETIMES_FORBIDDEN:
        pytest.skip(f"this machine forbids it to everyone: {os.strerror(error)}")
    assert error == 0


@pytest.mark.parametrize(("name", "layer"), EVERY)
def test_the_layer_alone_stops_it(attack: Attack, name: str, layer: str) -> None:
    if layer == LANDLOCK and lockdown.landlock_abi() < NEEDS_ABI.get(name, 1):
        pytest.skip("this kernel's Landlock does not reach so far")
    if layer == BWRAP and name == "see" and not any("own pids" in found for found in sandbox.found().layers):
        pytest.skip("no process numbers of its own on this machine")
    if layer == SECCOMP and name in KILLED_FOR:
        with pytest.raises(WorkerFailed, match="SIGSYS"):
            attack(name, layer)
    else:
        assert attack(name, layer) != 0


def test_threads_and_honest_work_go_on(attack: Attack, pools: Pools) -> None:
    assert attack("use_a_thread", "all") == 0
    matmul = "float((lambda t: t.mm(t.ones(600, 600), t.ones(600, 600)).sum())(__import__('torch')))"
    assert evaluate(pools("all"), matmul, may_fork=False) == 600.0**3


def test_no_worker_is_dumpable(attack: Attack) -> None:
    assert attack("is_dumpable", "all") == 0


def test_a_module_may_compile_in_its_scratch_folder(pools: Pools) -> None:
    code = f"""
import subprocess
open("a.cpp", "w").write("#include <vector>\\nint main() {{ return std::vector<int>(3).size() - 3; }}")
subprocess.run([{toolchain().cxx!r}, "a.cpp", "-o", "a"], check=True)
subprocess.run(["./a"], check=True)
"""
    evaluate(pools("all"), code, target="builtins:exec")


def test_one_worker_cannot_read_the_scratch_folder_of_another(pools: Pools) -> None:
    workers = pools(LANDLOCK)
    with workers.spawn("rag_kernels.eval.process.warm_parent:one_shot") as other:
        folder = f"__import__('os').readlink('/proc/{other.pid}/cwd')"
        with pytest.raises(WorkerFailed, match="Permission"):  # its name is not even told
            evaluate(workers, folder)
        listing = "__import__('os').listdir(__import__('os').path.dirname(__import__('os').getcwd()))"
        with pytest.raises(WorkerFailed, match="Permission"):
            evaluate(workers, listing)


def test_the_environment_holds_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with Workers(sandbox=Sandbox()) as workers:
        assert "sk-secret" not in evaluate(workers, "str(dict(__import__('os').environ))")
        judges = "[p for p in __import__('glob').glob('/proc/[0-9]*/environ') if 'sk-secret' in open(p).read()]"
        with pytest.raises(WorkerFailed, match="Permission"):  # the first one that is not its own
            evaluate(workers, judges)


def opens(workers: Workers, path: Path) -> bool:
    """Whether a child may open it for writing."""
    try:
        evaluate(workers, f"open({str(path)!r}, 'r+').close()")
    except WorkerFailed as failure:
        assert "Permission" in failure.message or "No such file" in failure.message, failure.message
        return False
    return True


SMI = """#!/bin/sh
case "$*" in *"-i {asked}"*) ;; *) exit 1 ;; esac
echo '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log><gpu id="0:1B:0.0">
<mig_mode><current_mig>{mig}</current_mig></mig_mode><uuid>GPU-7c1d</uuid><minor_number>{minor}</minor_number>
</gpu></nvidia_smi_log>'
"""


@pytest.mark.parametrize(
    ("visible", "minor", "mig", "others"),
    [
        ("2", "0", "N/A", "12"),  # numbers of files are not those of the bus
        ("GPU-7c1d,GPU-11", "2", "Disabled", "01"),
        (None, "1", "N/A", "02"),
        ("MIG-7c1d", "1", "Enabled", None),
        ("0", "1", "Enabled", None),
        ("0", "5", "N/A", None),  # as a container may hide it
        ("0", "N/A", "N/A", None),
    ],
)
def test_the_files_of_other_gpus_are_known_by_what_the_driver_says(
    visible: str | None, minor: str, mig: str, others: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(asked=(visible or "0").split(",")[0], minor=minor, mig=mig))
    program.chmod(0o755)
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = None if others is None else OwnGpu("GPU-7c1d", tuple(f"{tmp_path}/nvidia{one}" for one in others))
    assert own_gpu(tmp_path) == found
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / name).unlink()
    assert own_gpu(tmp_path) is None  # there are no others


@pytest.mark.parametrize("boxed", [False, True])
def test_a_worker_opens_no_file_of_another_gpu(boxed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if lockdown.landlock_abi() < 2:
        pytest.skip("this kernel's Landlock cannot leave the moving of files as it is")
    own, other = tmp_path / "nvidia0", tmp_path / "nvidia1"
    for path in (own, other, tmp_path / "nvidiactl"):
        path.touch()
    monkeypatch.setattr(sandbox, "GPU_FILES", (f"{tmp_path}/nvidia*",))
    gpu = OwnGpu("GPU-7c1d", (str(other),))
    with Workers(sandbox=Sandbox(gpu=True, own_gpu=gpu) if boxed else None, own_gpu=gpu) as workers:
        assert evaluate(workers, "__import__('os').environ['CUDA_VISIBLE_DEVICES']") == "GPU-7c1d"
        assert opens(workers, own) and opens(workers, tmp_path / "nvidiactl") and not opens(workers, other)
        # As Triton does with what it compiles; a program that is started may open no more.
        evaluate(
            workers,
            f"""
import os, subprocess
for name in "ab":
    os.makedirs(f"{{name}}/c")
open("a/c/compiled", "w").write("x")
os.rename("a/c/compiled", "b/c/compiled")
os.link("b/c/compiled", "a/compiled")
os.rename("a", "b/a")
assert open("b/a/compiled").read() == "x"
assert subprocess.run(["cat", {str(other)!r}], stderr=subprocess.DEVNULL).returncode
""",
            target="builtins:exec",
        )


def test_a_daemon_does_not_outlive_its_worker(pools: Pools) -> None:
    mark = "61.23457"
    workers = pools("all")
    code = f"__import__('subprocess').Popen(['sleep', {mark!r}], start_new_session=True).pid"
    with workers.spawn("rag_kernels.eval.process.warm_parent:one_shot") as worker:
        worker.request({"target": "builtins:eval", "payload": codec.encode(code)}, deadline_s=60)
        assert _sleeping(mark)
    assert not _sleeping(mark)


def _sleeping(mark: str) -> bool:
    return any(mark in (p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))


@pytest.mark.parametrize("may_fork", [False, True])
def test_a_frozen_worker_uses_no_time(pools: Pools, may_fork: bool) -> None:
    spin = "[__import__('threading').Thread(target=exec, args=('while 1: pass',), daemon=True).start() for _ in 'ab']"
    if may_fork:
        spin = f"__import__('subprocess').Popen([{shutil.which('sh')!r}, '-c', 'while :; do :; done']) and {spin}"
    # The role ends with its one reply, so that the spinning must keep it from ending.
    spin += " and __import__('time').sleep(60)"
    with pools("all").spawn("rag_kernels.eval.process.warm_parent:one_shot", may_fork=may_fork) as worker:
        worker._channel.send({"target": "builtins:eval", "payload": codec.encode(spin)})
        while (before := worker.activity()).threads < 3 + may_fork or before.cpu_s < 0.2:
            time.sleep(0.01)
        assert before.processes == 1 + may_fork
        assert worker.freeze()
        frozen = worker.activity().cpu_s
        time.sleep(0.1)
        assert worker.activity().cpu_s == frozen
        worker.thaw()
        while worker.activity().cpu_s <= frozen:
            time.sleep(0.01)


def test_a_spare_is_taken_by_the_same_spawn_alone(pools: Pools) -> None:
    workers = pools("all")
    role = "rag_kernels.eval.process.warm_parent:one_shot"
    workers.spare(role, may_fork=False)
    [[spare]] = workers._spares.values()
    with workers.spawn(role) as other, workers.spawn(role, may_fork=False) as same:
        assert other.pid != spare.pid == same.pid


def test_without_bubblewrap_the_rest_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sandbox.found()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sandbox.found.cache_clear()
    try:
        assert sandbox.layers() == (*sandbox.ALWAYS, *(name for name in real.layers if not name.startswith(BWRAP)))
        with Workers(sandbox=Sandbox()) as workers:
            assert evaluate(workers, "__import__('math').sqrt(9.0)") == 3.0
    finally:
        sandbox.found.cache_clear()


@pytest.mark.skipif(not builds_boxed(toolchain()), reason="bubblewrap cannot hold a compiler on this machine")
def test_a_build_reads_nothing_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("int secret;")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    header = '#include "rag_kernel.h"\n'
    lines = [
        f'#include "{secret}"',
        f'asm(".incbin \\"{secret}\\"");',
        'asm(".incbin \\"/etc/passwd\\"");',
        'asm(".incbin \\"/proc/self/environ\\"");',
    ]
    *refused, environment = build(
        [(header + line, "cpu") for line in lines], tools=toolchain(), cache=tmp_path / "cache"
    )
    assert all(isinstance(result, BuildError) and "secret;" not in result.log for result in refused)
    assert isinstance(environment, Built)
    assert b"sk-secret" not in environment.library.read_bytes()
    with monkeypatch.context() as patch:  # the same source builds where nothing is around the compiler
        patch.setattr("rag_kernels.eval.build.compile.builds_boxed", lambda tools: False)
        [read] = build([(header + lines[0], "cpu")], tools=toolchain(), cache=tmp_path / "open")
        assert isinstance(read, Built)
