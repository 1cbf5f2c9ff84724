"""The box around code that is not trusted: a bubblewrap command line, and what of it works on this machine.

Comes in: the folders to be seen and the one to be written. Goes out: the start of a command line (empty where
bubblewrap cannot work), the confinement of the workers inside (`process.lockdown`), and the names of the layers that
hold. Nothing is guessed: each layer is tried once per process. Knows nothing of kernels or verdicts.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rag_kernels.eval.places import IMPORTED_BY_CHILDREN, PACKAGE, ROOT
from rag_kernels.eval.process import lockdown
from rag_kernels.eval.process.lockdown import Confinement

SCRATCH = "/scratch"
GPU_FILES = ("/dev/nvidia*", "/dev/dxg")
# What an untrusted process's environment may hold. Keys and tokens are not on the list.
ALLOWED_ENV = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "CC",
    "CXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "NCCL_NVLS_ENABLE",
    "NVSHMEM_DISABLE_NVLS",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",  # a shared host's wish
)
ALWAYS = ("processes", "rlimits", "watchdog")
PROBE_LIMIT_S = 20
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/run/opengl-driver",
    "/opt/cuda",
    "/opt/nvidia",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
)
APART = ("--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "rag-kernels")
OWN_PIDS = ("--unshare-pid", "--proc", "/proc")
HOST_PIDS = ("--ro-bind", "/proc", "/proc")  # a container may forbid to mount a new /proc
# From the strictest on; the first that starts a process here is used. Root may do without a user namespace.
ATTEMPTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--unshare-user", *OWN_PIDS, *APART), "bwrap: no network, own pids, read-only system"),
    ((*OWN_PIDS, *APART, "--cap-drop", "ALL"), "bwrap: no network, own pids, read-only system"),
    (("--unshare-user", *HOST_PIDS, *APART), "bwrap: no network, read-only system"),
    ((*HOST_PIDS, *APART, "--cap-drop", "ALL"), "bwrap: no network, read-only system"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What works here: bubblewrap's namespace options (None: no bubblewrap) and the names of the layers that hold."""

    namespaces: tuple[str, ...] | None
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnGpu:
    """The GPU that workers may use, and the device files of the machine's others, which they may not open.

    It is a defence, and saves time: a driver that starts looks at each GPU that it may open. Without the others' files
    numbers of GPUs mean other ones, so that it goes by its name.
    """

    uuid: str
    others: tuple[str, ...]

    @property
    def env(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.uuid}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What the workers of one warm parent may see beside the system and Python."""

    readable: tuple[Path, ...] = ()
    gpu: bool = False
    own_gpu: OwnGpu | None = None  # None: all of the machine's
    filtered: bool = True  # False: no Landlock and no seccomp, for tools that attach to the programs they run

    def command(self, scratch: Path) -> list[str]:
        """Return what to put before the command of a warm parent.

        `scratch` is a folder outside, found at SCRATCH inside.
        """
        return bwrap(self._readable(), (str(scratch), SCRATCH), devices=self._devices(), hidden=_hidden())

    def confinement(self) -> Confinement:
        return Confinement(tuple(self._readable()), tuple(self._devices()), found().layers if self.filtered else ())

    def _readable(self) -> list[str]:
        return [*system_folders(), *python_folders(), *IMPORTED_BY_CHILDREN, *map(str, self.readable)]

    def _devices(self) -> list[str]:
        closed = self.own_gpu.others if self.own_gpu else ()
        found = {path for pattern in GPU_FILES for path in glob.glob(pattern)} if self.gpu else set()
        return sorted(found.difference(closed))


def allowed_env() -> dict[str, str]:
    """Return the part of our environment that untrusted code may see."""
    return {name: os.environ[name] for name in ALLOWED_ENV if name in os.environ}


def layers() -> tuple[str, ...]:
    """Return the names of all layers that hold for a candidate's worker on this machine."""
    return (*ALWAYS, *found().layers)


@functools.cache
def found() -> Found:
    """Start a process in the strictest box that works, and have it try Landlock and seccomp."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {lockdown.__name__} import probe; probe()"
    visible = [*system_folders(), *python_folders(), *IMPORTED_BY_CHILDREN]
    if shutil.which("bwrap"):
        for namespaces, name in ATTEMPTS:
            inside = _probe([*_box(namespaces, visible, None, [], []), sys.executable, "-I", "-S", "-c", start])
            if inside is not None:
                return Found(namespaces, (name, *inside))
    return Found(None, tuple(_probe([sys.executable, "-I", "-S", "-c", start]) or ()))


def _probe(command: Sequence[str]) -> list[str] | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split() if done.returncode == 0 else None


def bwrap(
    readable: Sequence[str], scratch: tuple[str, str], *, devices: Sequence[str] = (), hidden: Sequence[str] = ()
) -> list[str]:
    """Return bubblewrap and its options for this machine, or nothing.

    `scratch` is the writable folder, outside and inside.
    """
    namespaces = found().namespaces
    return [] if namespaces is None else _box(namespaces, readable, scratch, devices, hidden)


def _box(
    namespaces: Sequence[str],
    readable: Sequence[str],
    scratch: tuple[str, str] | None,
    devices: Sequence[str],
    hidden: Sequence[str],
) -> list[str]:
    """Return arguments that build a file system of what is named and nothing else; every other folder is empty."""
    options = [shutil.which("bwrap") or "bwrap", "--new-session", *namespaces, "--dev", "/dev"]
    for path in dict.fromkeys(readable):
        options += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]
    options += ["--ro-bind", "/sys", "/sys"]
    for device in devices:
        options += ["--dev-bind", device, device]
    for folder in hidden:
        options += ["--tmpfs", folder]
        for path in (path for path in IMPORTED_BY_CHILDREN if Path(path).is_relative_to(folder)):
            options += ["--ro-bind", path, path]
        options += ["--remount-ro", folder]
    if scratch is not None:
        options += ["--bind", *scratch]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def system_folders() -> list[str]:
    """Return the system's programs and libraries, CUDA's, and those that the environment names."""
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    named += [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    compilers = [shutil.which(os.environ.get(name) or name) for name in ("CC", "CXX", "g++", "nvcc", "ninja")]
    for found_at in [Path(c) for c in compilers if c]:  # with the folders of libraries and headers beside `bin`
        named += [str(p.parent.parent) for p in (found_at, found_at.resolve()) if p.parent.name == "bin"]
    return [*(path for path in SYSTEM if os.path.lexists(path)), *outside_system(named)]


def python_folders() -> list[str]:
    """Return the folders of the interpreter and its packages, with those of torch and tvm-ffi where they have their
    own.
    """
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    for package in ("torch", "tvm_ffi", "numpy"):
        spec = find_spec(package)
        folders += [str(Path(place).parent) for place in (spec and spec.submodule_search_locations) or []]
    executable = Path(sys.executable)
    while executable.is_symlink():  # a virtual environment names its interpreter through links
        executable = executable.parent / os.readlink(executable)
        folders.append(str(executable.parent))
    return outside_system(folders)


def outside_system(folders: Sequence[str]) -> list[str]:
    """Return folders that the system's do not hold, with what they link to.

    Never the home, or a folder that holds it.
    """
    kept: list[str] = []
    never = [Path(os.path.realpath(Path("~").expanduser())), Path("/tmp"), Path("/usr")]
    absolute = [os.path.normpath(folder) for folder in folders if os.path.isabs(folder)]
    for folder in dict.fromkeys([p for f in absolute for p in (f, os.path.realpath(f))]):
        path = Path(folder)
        inside = any(path.is_relative_to(place) for place in (*SYSTEM, *kept))
        if path.is_dir() and not inside and not any(place.is_relative_to(path) for place in never):
            kept.append(folder)
    return kept


def _hidden() -> list[str]:
    """Return our own package, where it is installed beside torch: a kernel has no use for more of it than `eval`."""
    seen = [*system_folders(), *python_folders()]
    return [str(PACKAGE)] if any(PACKAGE.is_relative_to(folder) for folder in seen) else []
