"""What calls find, and leave behind, in threads: how they compute, how many OpenMP uses; runs in candidate workers.

Comes in: nothing. Goes out: whether arithmetic is as IEEE 754 has it, and settings of OpenMP. A thread of its pool is
used again by whoever comes next in the process: a PyTorch operator, or another kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread, get_ident, stack_size

import numpy as np
import torch

_OPENMP, _MATH = "libgomp.so.1", "libm.so.6"
# Of glibc's mallopt: each thread else has 64 MiB of the address space for its own.
_ARENA_MAX, _ARENAS, _MANY = -8, 8, 64
_PERTURB, _FILL = -6, 0x80  # memory is filled with the byte's complement: floats of it are as large as there are
_SMALL_STACK = 1 << 20
_LONG = np.longdouble(1), *np.ldexp(np.longdouble(1), [-np.finfo(np.longdouble).nmant - n for n in (1, 0)])
_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def is_ieee() -> bool:
    """Return False if this thread rounds in another direction or flushes subnormals; traps end the process."""
    tiny, half_ulp = 5e-324, 2.0**-53
    one = float(len("1"))  # not a constant that the compiler folds
    big = 1e308 * one
    return (
        tiny * one > 0.0
        and one + half_ulp == 1.0
        and one - half_ulp / 2 == 1.0
        and -one - half_ulp == -1.0
        and big * 10 - big * 10 != 0.0  # not a number, by an overflow
        and _has_long_double()
    )


def _has_long_double() -> bool:
    """Return False if `long double` gives no numbers any more, since what a call left on the x87 stack, or MMX, fills
    it; or if the x87 unit rounds to fewer digits, or in another direction.
    """
    one, half, ulp = _LONG
    if one + half != one or one + ulp == one or -one - half != -one or one - half / 4 != one:
        return False
    try:
        square_root = ctypes.CDLL(_MATH).sqrtl
    except (OSError, AttributeError):
        return True
    square_root.restype, square_root.argtypes = ctypes.c_longdouble, [ctypes.c_longdouble]
    return bool(square_root(4.0) == 2.0)


def _by_a_team(work: Callable[[], None]) -> bool:
    """Have each thread of a team do something; return whether there are teams here."""
    called = _WORK(lambda _: work())
    with suppress(OSError, AttributeError):
        ctypes.CDLL(_OPENMP).GOMP_parallel(called, None, torch.get_num_threads(), 0)
        return True
    return False


@contextmanager
def flushing() -> Iterator[None]:
    """Flush subnormals meanwhile, in this thread and those of its teams, as a program has torch do."""

    def flush(on: bool) -> None:
        torch.set_flush_denormal(on)

    flush(True)
    _by_a_team(lambda: flush(True))
    try:
        yield
    finally:
        flush(False)
        _by_a_team(lambda: flush(False))


@contextmanager
def filled_memory() -> Iterator[None]:
    """Have what is taken from the heap filled with large numbers meanwhile, as if others had used it (glibc)."""

    def perturb(byte: int) -> None:
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_PERTURB, byte)

    perturb(_FILL)
    try:
        yield
    finally:
        perturb(0)


def in_region(work: Callable[[], None]) -> None:
    """Do something within a parallel region, by its first thread; without OpenMP as it is."""
    first, failed = get_ident(), list[Exception]()

    def once() -> None:
        if get_ident() == first:
            try:
                work()
            except Exception as error:
                failed.append(error)

    if not _by_a_team(once):
        work()
    if failed:
        raise failed[0]


def on_small_stack(work: Callable[[], None]) -> None:
    """Do something in a thread with as much stack as servers and other languages give theirs."""
    failed = list[Exception]()

    def once() -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    former = stack_size(_SMALL_STACK)
    try:
        thread = Thread(target=once)
        thread.start()
    finally:
        stack_size(former)
    thread.join()
    if failed:
        raise failed[0]


def team_is_ieee() -> bool:
    """Return whether all threads of a team are so, which is asked of each."""
    found = [is_ieee()]

    def ask() -> None:
        flushes = float(torch.tensor(1e-40) * 1.0) == 0.0
        found.append(is_ieee() and not flushes and bool(torch.isinf(torch.ones(1) / torch.zeros(1))))

    _by_a_team(ask)
    return all(found)


def team_settings() -> tuple[int, ...]:
    """Return how many threads this one's next team has, in torch and in OpenMP, and how teams are made."""
    found: tuple[int, ...] = (torch.get_num_threads(),)
    with suppress(OSError, AttributeError):
        openmp = ctypes.CDLL(_OPENMP)
        found += (openmp.omp_get_max_threads(), openmp.omp_get_max_active_levels(), openmp.omp_get_dynamic())
    return found


@contextmanager
def other_team(count: int, levels: int) -> Iterator[None]:
    """Have this thread's teams be such meanwhile, as `use_team` makes them."""
    own, own_levels = torch.get_num_threads(), _levels()  # OpenMP's are torch's
    _set_team(count, levels)
    try:
        yield
    finally:
        _set_team(own, own_levels)


def use_team(count: int, levels: int = 1) -> None:
    """Have this thread's teams be of so many threads from now on; without `levels` of one, though it is told of more.

    With two of them a thread of a team has such a team, too, where it asks for one.
    """
    torch.set_num_threads(count)
    if count > _MANY:
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS)
    _set_team(count, levels)


def _levels() -> int:
    with suppress(OSError):
        return int(ctypes.CDLL(_OPENMP).omp_get_max_active_levels())
    return 1


def _set_team(count: int, levels: int) -> None:
    with suppress(OSError):
        openmp = ctypes.CDLL(_OPENMP)
        openmp.omp_set_num_threads(count)
        openmp.omp_set_nested(levels > 1)  # of older ones, which set the other by it
        openmp.omp_set_max_active_levels(levels)
