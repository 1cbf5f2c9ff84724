"""The code of numerical libraries that a worker has loaded, out of reach meanwhile; runs in candidate workers only.

Comes in: nothing. Goes out: a block within which no instruction of theirs can be run, however it was found: who calls
one ends the process. What kernels may use stays: mathematics, OpenMP, the runtimes of C and C++ and of the contract.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager

# By their files' names. Sleef's functions, which kernels may take, are a part of torch where it brings them.
NUMERICAL = re.compile(
    r"torch_cpu|torch_cuda|torch_python|mkl|blas|lapack|dnnl|multiarray|cudnn|cufft|cusparse|cusolver"
)
LOADED, EXECUTABLE = 1, 1  # of a program's header: its type and a flag
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Segment(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical", ctypes.c_uint64),
        ("in_file", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("alignment", ctypes.c_uint64),
    ]


class _Object(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("count", ctypes.c_uint16),
    ]


_VISIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Object), ctypes.c_size_t, ctypes.c_void_p)


def code_of_libraries() -> list[tuple[int, int]]:
    """Return where the code of numerical libraries lies, in whole pages: its begin and how long it is."""
    found: list[tuple[int, int]] = []

    def visit(given: object, _size: int, _data: object) -> int:
        library = given.contents  # type: ignore[attr-defined]
        if NUMERICAL.search((library.name or b"").decode(errors="replace").rpartition("/")[2]):
            for segment in library.segments[: library.count]:
                if segment.type == LOADED and segment.flags & EXECUTABLE:
                    begin = library.base + segment.address
                    first = begin & -mmap.PAGESIZE
                    found.append((first, (begin + segment.size - first + mmap.PAGESIZE - 1) & -mmap.PAGESIZE))
        return 0

    _LIBC.dl_iterate_phdr(_VISIT(visit), None)
    return found


@contextmanager
def without_libraries() -> Iterator[None]:
    """Let no code of numerical libraries be run meanwhile."""
    places = code_of_libraries()

    def protect(how: int) -> None:
        for first, size in places:
            if _LIBC.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(size), how):
                raise OSError(ctypes.get_errno(), "mprotect")

    protect(mmap.PROT_READ)
    try:
        yield
    finally:
        protect(mmap.PROT_READ | mmap.PROT_EXEC)
