"""Throttled pairs: counted by the system's own files, left out on both sides, and said."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_kernels.eval.machine import throttling
from rag_kernels.eval.machine.throttling import Clocks
from rag_kernels.eval.timing.race import Times

STAT = "usage_usec 1\nnr_periods 9\nnr_throttled {}\nthrottled_usec 3\n"


def test_a_counter_that_rises_says_slowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup, heat = tmp_path / "cpu.stat", tmp_path / "core_throttle_count"
    cgroup.write_text(STAT.format(4))
    heat.write_text("0\n")
    monkeypatch.setattr(throttling, "_counters", lambda: (cgroup, heat))
    seen = Clocks(on_gpu=False)
    assert not seen.slowed()
    cgroup.write_text(STAT.format(5))
    assert seen.slowed() and not seen.slowed()
    heat.write_text("2\n")
    assert seen.slowed() and not seen.slowed()


def test_this_machine_can_be_read() -> None:
    assert all(throttling._total([file]) >= 0 for file in throttling._counters())
    assert Clocks(on_gpu=False).slowed() in (True, False)


def times(slowed: list[bool]) -> Times:
    count = len(slowed)
    seconds = {"eager": [float(i) for i in range(count)], "candidate": [float(-i) for i in range(count)]}
    return Times(seconds, [[str(i)] for i in range(count)], slowed=slowed)


def test_throttled_pairs_are_left_out_on_all_sides() -> None:
    left = times([False, True, False, False, True]).at_full_speed()
    assert left.seconds == {"eager": [0.0, 2.0, 3.0], "candidate": [0.0, -2.0, -3.0]}
    assert left.orders == [["0"], ["2"], ["3"]] and not left.is_throttled and sum(left.slowed) == 2


@pytest.mark.parametrize("slowed", [[False] * 5, [True] * 3 + [False] * 2])
def test_all_pairs_stay_where_none_or_most_are_throttled(slowed: list[bool]) -> None:
    left = times(slowed).at_full_speed()
    assert len(left.seconds["eager"]) == 5 and left.is_throttled == any(slowed)
