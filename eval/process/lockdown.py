"""What a worker gives up before it runs a candidate's code: Landlock and seccomp, by system call alone.

Comes in: the folders that may be read and the one that may be written. Goes out: the names of the layers that hold,
for this process and all that it starts. Nothing here can be undone, and nothing needs a privilege. A layer that the
kernel does not offer is left out. A worker that runs no candidate gives up single files (`close_files`). Imports
nothing but the standard library. Knows nothing of kernels or verdicts.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_DUMPABLE, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 4, 28, 38
NO_ROOT = 1
CAPABILITY_VERSION = 0x20080522
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every architecture
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE = 1 << 13, 1 << 14
FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}  # by ABI; ioctl of devices stays open for CUDA
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
BIND_AND_CONNECT_TCP = 3  # since ABI 4
ABSTRACT_SOCKETS_AND_SIGNALS = 3  # since ABI 6
PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

Instruction = tuple[int, int, int, int]
Numbers = tuple[int | None, int | None]  # of x86-64 and of aarch64; None where there is no such call

KILL, ALLOW, ERROR = 0x80000000, 0x7FFF0000, 0x00050000
REFUSE = ERROR | errno.EPERM
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
SET_FILTER, SPEC_ALLOW = 1, 4  # without SPEC_ALLOW older kernels slow down one side of a comparison
AF_UNIX, CLONE_THREAD = 1, 0x10000
NEW_NAMESPACES = 0x7E020000
ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

KILLED: dict[str, Numbers] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "setns": (308, 268),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "iopl": (172, None),
    "ioperm": (173, None),
}
# Refused with an error, since honest libraries try some of these. What the last line makes would outlive the worker.
REFUSED: dict[str, Numbers] = {
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "process_madvise": (440, 440),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "tkill": (200, 130),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
PROCESS_CALLS: dict[str, Numbers] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
}
# Of a CPU's kernels alone: their channel to the judge stays where it is, and gets no other end.
DESCRIPTOR_CALLS: dict[str, Numbers] = {
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "socketpair": (53, 199),
}
FCNTL, DUPLICATES = (72, 25), (0, 1030)  # F_DUPFD, F_DUPFD_CLOEXEC
SIGNAL_CALLS = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
CLONE, CLONE3, SOCKET, PRLIMIT, PIDFD_SIGNAL = (56, 220), (435, 435), (41, 198), (302, 261), (424, 424)
SECCOMP = (317, 277)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the workers of one warm parent may touch. `layers` are those that were seen to hold here."""

    readable: tuple[str, ...]
    devices: tuple[str, ...]
    layers: tuple[str, ...]


def lock_down(confinement: Confinement, scratch: str, *, may_fork: bool) -> None:
    """Give everything up; raises OSError if a layer that holds elsewhere on this machine does not hold now."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if not confinement.devices:  # CUDA writes to its own /proc entries, which are root's once it is not dumpable
        _prctl(PR_SET_DUMPABLE, 0)
    drop_capabilities()
    if "landlock" in confinement.layers:
        restrict_files(confinement.readable, confinement.devices, scratch)
    if "seccomp" in confinement.layers:
        filter_calls(may_fork=may_fork, gpu=bool(confinement.devices))


def probe() -> None:
    """Try the layers and print the names of those that hold: the main function of a short-lived process."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    with contextlib.suppress(OSError):
        restrict_files(["/"], [], None)
        sys.stdout.write("landlock\n")
    with contextlib.suppress(OSError):
        filter_calls(may_fork=False, gpu=False)
        sys.stdout.write("seccomp\n")
    sys.stdout.flush()


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def drop_capabilities() -> None:
    """Take root's powers away; a program that is run does not get them back, since no new privileges are granted."""
    # Else root would gain some at the next program, in vain, and ThreadSanitizer's would lose its fixed layout by it.
    _libc.prctl(PR_SET_SECUREBITS, NO_ROOT, 0, 0, 0)  # refused where it is not needed: to others than root
    header, none = struct.pack("=Ii", CAPABILITY_VERSION, 0), bytes(24)
    if _libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _syscall(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result


# Landlock


def landlock_abi() -> int:
    """Return the version of the kernel's Landlock; raises OSError where there is none."""
    return _syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))


def restrict_files(readable: Sequence[str], devices: Sequence[str], scratch: str | None) -> None:
    """Limit access to files, TCP, abstract sockets and signals, as far as the kernel's Landlock reaches."""
    abi = landlock_abi()
    handled = FS_RIGHTS[min(abi, 3)]
    fields = [handled, *([BIND_AND_CONNECT_TCP] if abi >= 4 else []), *([ABSTRACT_SOCKETS_AND_SIGNALS] * (abi >= 6))]
    attribute = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _syscall(LANDLOCK_CREATE, attribute, ctypes.c_size_t(len(attribute)), ctypes.c_uint32(0))
    try:
        look = READ_FILE | READ_DIR
        for path in (*readable, "/sys"):
            _allow(ruleset, path, look | EXECUTE)
        _allow(ruleset, "/proc", look)
        own = "/proc/self" if devices else "/proc/self/task"
        _allow(ruleset, own, look | WRITE_FILE | (handled & TRUNCATE))  # CUDA names its threads
        for path in (*PLAIN_DEVICES, *devices):
            _allow(ruleset, path, look | WRITE_FILE | (handled & TRUNCATE))
        if scratch is not None:
            _allow(ruleset, scratch, handled)
        _syscall(LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def close_files(closed: Sequence[str]) -> bool:
    """Forbid to open these files, by their paths, and nothing else; return whether that holds.

    Landlock knows only what is allowed: all that stands beside the files, and beside the folders on the way to them,
    when this is called. Files may be moved between folders as before, which its first version could not allow.
    """
    above = {str(folder) for path in closed for folder in Path(path).parents}
    try:
        if landlock_abi() < 2:
            return False
    except OSError:
        return False
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    attribute = struct.pack("=Q", READ_FILE | WRITE_FILE | REFER)
    ruleset = _syscall(LANDLOCK_CREATE, attribute, ctypes.c_size_t(len(attribute)), ctypes.c_uint32(0))
    try:
        for folder in above:
            for entry in os.scandir(folder):  # what a link leads to stands somewhere by itself
                if not entry.is_symlink() and entry.path not in above and entry.path not in closed:
                    _allow(ruleset, entry.path, READ_FILE | WRITE_FILE | REFER)
        _syscall(LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= FILE_RIGHTS
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd), 12)
        _syscall(LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(fd)


# seccomp


def filter_calls(*, may_fork: bool, gpu: bool) -> None:
    """Install the filter for this thread and all that it starts."""
    if platform.machine() not in ARCHES or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"no filter is written for {platform.machine()}")
    column, arch = ARCHES[platform.machine()]
    program = list(_program(column, arch, may_fork=may_fork, gpu=gpu))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    number = SECCOMP[column]
    _syscall(number, ctypes.c_uint(SET_FILTER), ctypes.c_uint(SPEC_ALLOW), header)


def _program(column: int, arch: int, *, may_fork: bool, gpu: bool) -> Iterator[Instruction]:
    """Yield the filter.

    A kernel that starts a process is killed; CUDA's driver may try, so that a GPU gets an error.
    """
    yield from [(LOAD, 0, 0, 4), (EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    if column == 0:
        yield from [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]  # x32, the other ABI of x86-64
    actions: dict[Numbers, int] = dict.fromkeys(KILLED.values(), KILL) | dict.fromkeys(REFUSED.values(), REFUSE)
    new_process = REFUSE if gpu else KILL
    if not may_fork:
        actions |= dict.fromkeys(PROCESS_CALLS.values(), new_process) | {PIDFD_SIGNAL: REFUSE}
    if not may_fork and not gpu:
        actions |= dict.fromkeys(DESCRIPTOR_CALLS.values(), REFUSE)
    actions[CLONE3] = ERROR | errno.ENOSYS  # its flags are behind a pointer; the C library falls back to clone
    for numbers, action in actions.items():
        number = numbers[column]
        if number is not None:
            yield from _call(number, [(RETURN, 0, 0, action)])
    clone = [(LOAD, 0, 0, 16), (ANY_BIT, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, KILL)]
    if not may_fork:
        clone += [(ANY_BIT, 1, 0, CLONE_THREAD), (RETURN, 0, 0, new_process)]
    yield from _call(CLONE[column], [*clone, (RETURN, 0, 0, ALLOW)])
    family = AF_UNIX if may_fork or gpu else 0xFFFF
    yield from _only(SOCKET[column], family, ERROR | errno.EACCES)
    yield from _only(PRLIMIT[column], 0, REFUSE)
    if not may_fork and not gpu:
        refuse = [(EQUAL, 0, 1, DUPLICATES[0]), (RETURN, 0, 0, REFUSE), (EQUAL, 0, 1, DUPLICATES[1])]
        yield from _call(FCNTL[column], [(LOAD, 0, 0, 24), *refuse, (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)])
    if not may_fork:
        for numbers in SIGNAL_CALLS.values():
            yield from _only(numbers[column], os.getpid(), REFUSE)
    yield (RETURN, 0, 0, ALLOW)


def _call(number: int, body: list[Instruction]) -> list[Instruction]:
    """Return `body`, which returns, for one call; the number is in the accumulator, and still is after another call."""
    return [(EQUAL, 0, len(body), number), *body]


def _only(number: int, first: int, otherwise: int) -> list[Instruction]:
    """Allow the call with this first argument alone."""
    check = [(LOAD, 0, 0, 16), (EQUAL, 0, 1, first), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, otherwise)]
    return _call(number, check)
