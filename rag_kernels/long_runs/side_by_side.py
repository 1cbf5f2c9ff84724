"""Run several generators side by side, for a judge that judges several candidates at once.

Comes in: a function that begins the next piece of work. Goes out: what all of them yield, as it comes, and an `Ended`
for each. One at a time runs in the caller's thread, several each in their own. Knows nothing of problems.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

Key = TypeVar("Key")
Event = TypeVar("Event")
Result = TypeVar("Result")

GRACE_S = 10.0  # for what is under way when the caller wants no more


@dataclass(frozen=True, slots=True)
class Ended(Generic[Key, Result]):
    """Report that one piece of work is done, with its result."""

    key: Key
    result: Result


@dataclass(frozen=True, slots=True)
class _Yielded(Generic[Event]):
    event: Event


Begin = Callable[[], tuple[Key, Generator[Event, None, Result]] | None]


def run_side_by_side(
    begin: Begin[Key, Event, Result], at_once: Callable[[], int]
) -> Iterator[Event | Ended[Key, Result]]:
    """Yield what up to `at_once()` generators yield, and an `Ended` for each.

    `begin` returns the next one, or None while there is nothing; it is asked again whenever one has ended. Raises what
    any of them raises.
    """
    while at_once() == 1:
        begun = begin()
        if begun is None:
            return
        result = yield from begun[1]
        yield Ended(begun[0], result)
    yield from _in_threads(begin, at_once)


def _in_threads(begin: Begin[Key, Event, Result], at_once: Callable[[], int]) -> Iterator[Event | Ended[Key, Result]]:
    came: SimpleQueue[_Yielded[Event] | Ended[Key, Result] | BaseException] = SimpleQueue()
    over = threading.Event()
    threads: list[threading.Thread] = []
    running = 0
    try:
        while True:
            while running < at_once() and (begun := begin()) is not None:
                threads.append(threading.Thread(target=_work, args=(*begun, came, over), daemon=True, name="problem"))
                threads[-1].start()
                running += 1
            if not running:
                return
            item = came.get()
            if isinstance(item, _Yielded):
                yield item.event
                continue
            if isinstance(item, BaseException):
                raise item
            running -= 1
            yield item
    finally:
        over.set()
        end = time.monotonic() + GRACE_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


def _work(
    key: Key,
    work: Generator[Event, None, Result],
    came: SimpleQueue[_Yielded[Event] | Ended[Key, Result] | BaseException],
    over: threading.Event,
) -> None:
    """Run one generator in this thread and close it here; everything that it yields or raises is put into the queue."""
    try:
        while not over.is_set():
            try:
                came.put(_Yielded(next(work)))
            except StopIteration as end:
                came.put(Ended(key, end.value))
                return
        work.close()
    except BaseException as error:
        came.put(error)
