"""Whose turn it is on a device: computing side by side, timing alone. Locks belong to open files: threads will do."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rag_kernels.eval.judge import open_judge
from rag_kernels.eval.machine.device_lock import DeviceLock, locks
from rag_kernels.eval.places import default_cache

NAMES = ("core0", "core1")


class Actor:
    """Does something in a thread, and says when it has come so far."""

    def __init__(self, work: Callable[["Actor"], None]) -> None:
        self.inside, self.may_leave, self.left = threading.Event(), threading.Event(), threading.Event()
        self.thread = threading.Thread(target=lambda: (work(self), self.left.set()), daemon=True)
        self.thread.start()

    def stay(self) -> None:
        self.inside.set()
        assert self.may_leave.wait(20)

    def leave(self) -> None:
        self.may_leave.set()
        assert self.left.wait(20)


def sharing(cache: Path) -> Actor:
    def work(actor: Actor) -> None:
        with DeviceLock(NAMES, cache).shared():
            actor.stay()

    return Actor(work)


def timing(cache: Path) -> Actor:
    def work(actor: Actor) -> None:
        with DeviceLock(NAMES, cache).alone():
            actor.stay()

    return Actor(work)


def test_many_compute_and_one_times(tmp_path: Path) -> None:
    first, second = sharing(tmp_path), sharing(tmp_path)
    assert first.inside.wait(20) and second.inside.wait(20)
    timer = timing(tmp_path)
    assert not timer.inside.wait(0.2)
    first.leave()
    assert not timer.inside.wait(0.2)
    second.leave()
    assert timer.inside.wait(20)
    third = sharing(tmp_path)
    assert not third.inside.wait(0.2)
    timer.leave()
    assert third.inside.wait(20)
    third.leave()


def test_who_wants_to_time_is_not_passed_by(tmp_path: Path) -> None:
    first = sharing(tmp_path)
    assert first.inside.wait(20)
    timer = timing(tmp_path)
    time.sleep(0.2)
    late = sharing(tmp_path)
    assert not late.inside.wait(0.2)
    first.leave()
    assert timer.inside.wait(20) and not late.inside.is_set()
    timer.leave()
    assert late.inside.wait(20)
    late.leave()


def test_a_turn_is_given_up_to_time_and_taken_again(tmp_path: Path) -> None:
    mine, other = DeviceLock(NAMES, tmp_path), sharing(tmp_path)
    assert other.inside.wait(20)
    with mine.shared():
        other.leave()
        with mine.alone(), mine.alone():
            late = sharing(tmp_path)
            assert not late.inside.wait(0.2)
        assert late.inside.wait(20)
        waiting = timing(tmp_path)
        late.leave()
        assert not waiting.inside.wait(0.2)
        threading.Timer(0.2, waiting.leave).start()
        mine.give_way()  # comes back when the other has timed
        assert waiting.inside.is_set()
    free = timing(tmp_path)
    assert free.inside.wait(20)
    free.leave()


def test_without_names_nobody_is_waited_for(tmp_path: Path) -> None:
    with DeviceLock((), tmp_path).shared(), DeviceLock((), tmp_path).alone():
        assert not list(tmp_path.iterdir())


def test_who_waits_for_another_gives_up_the_own_turn(tmp_path: Path) -> None:
    mine = DeviceLock(NAMES, tmp_path)
    with mine.shared():
        timer = timing(tmp_path)
        assert not timer.inside.wait(0.2)
        with mine.away():
            assert timer.inside.wait(20)
            timer.leave()
        again = timing(tmp_path)
        assert not again.inside.wait(0.2)
    assert again.inside.wait(20)
    again.leave()


def test_a_cache_named_from_here_is_the_same_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate's process has another working folder, and loads what was built."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAG_KERNELS_CACHE", "cache")
    assert default_cache() == tmp_path / "cache"
    with open_judge("cpu", cache_dir=Path("given")) as judge:
        assert judge.cache == tmp_path / "given"


def test_judges_with_other_caches_take_turns_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_KERNELS_CACHE", str(tmp_path / "own"))
    assert locks("cuda", tmp_path / "a") == locks("cuda", tmp_path / "b") == tmp_path / "own"
    assert locks("cpu", tmp_path / "a") == tmp_path / "a"
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAG_KERNELS_CACHE", str(tmp_path / "file" / "none"))  # no folder can be made there
    assert locks("cuda", tmp_path / "a") == tmp_path / "a"
