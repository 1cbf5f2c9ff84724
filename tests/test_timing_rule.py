"""The timing rule: one record of all its numbers, from which the versions of the judge and of baselines follow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from factories import problem

from rag_kernels.eval.judge import JUDGE_VERSION, judge_version
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.records import Device
from rag_kernels.eval.timing.baseline import baseline_file
from rag_kernels.eval.timing.paired_ratio import Paired, interleave
from rag_kernels.eval.timing.race import Race, Times
from rag_kernels.eval.timing_rule import TimingRule

ROOT = Path(__file__).resolve().parent.parent
DEVICE = Device("cpu", "a", "x86-64-v3", 20.0, 100.0)


@pytest.mark.parametrize("name", [f.name for f in fields(TimingRule)])
def test_every_number_is_part_of_the_versions(name: str, tmp_path: Path) -> None:
    rule, other = TimingRule(), replace(TimingRule(), **{name: 1 + getattr(TimingRule(), name)})
    assert judge_version(rule) == JUDGE_VERSION != judge_version(other)
    rules = (rule, other, TimingRule())
    files = {baseline_file(problem(), DEVICE, environment="e", rule=r, cache=tmp_path) for r in rules}
    assert len(files) == 2


# Files that time by the rule, and the functions of others that do.
TIMED_BY = {
    "timing/race.py": (),
    "timing/baseline.py": (),
    "timing/paired_ratio.py": (),
    "sessions/reference_times.py": (),
    "trial/recurrence.py": (),
    "trial/physical_floor.py": (),
    "sessions/candidate_session.py": ("call_all", "_burst_s"),
    "trial/timed.py": (),
    "sessions/problem_contents.py": ("fresh",),
    "sessions/special_draws.py": ("elsewhere",),
}
PLAIN_NUMBERS = (0, 1, -1, 1e-6, 1e6, 1e3)  # nothing, one, and units
OTHERS = {  # what is no number of the rule
    "AT_ONCE_BYTES = 1 << 30": "where outputs are kept",
    "PAIRS_KEPT = 100": "what an archive keeps",
    "f'{1000000.0 * taken[i]:.4g}'": "words",
    "2 * timed.eager_estimate_s()": "a pair has two sides",
    "2 * self.calls * eager_s": "a pair has two sides",
    "2 * self.rule.min_half": "a pair has two orders",
    "(n - rule.deviations * math.sqrt(n)) / 2": "the middle of the ranks",
    "rounds < 2": "no more than there were",
    "max(pair_s, 1e-06)": "no division by nothing",
}


@pytest.mark.parametrize("name", TIMED_BY)
def test_the_numbers_of_the_clock_stand_in_the_rule_alone(name: str) -> None:
    tree: ast.AST = ast.parse((ROOT / "eval" / name).read_text())
    if wanted := TIMED_BY[name]:
        found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in wanted]
        assert sorted(f.name for f in found) == sorted(wanted)
        tree = ast.Module([*found], [])
    others = [n for n in ast.walk(tree) if ast.unparse(n) in OTHERS]
    others += [n.slice for n in ast.walk(tree) if isinstance(n, ast.Subscript)]
    known = {id(part) for other in others for part in ast.walk(other)}
    numbers = [
        (n.lineno, n.value)
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, int | float) and not isinstance(n.value, bool)
        if n.value not in PLAIN_NUMBERS and id(n) not in known
    ]
    assert not numbers


def test_one_loop_measures_every_variant_once_a_pair_and_may_stop_early() -> None:
    seen: list[str] = []
    paired = interleave(
        Paired({"one": [], "other": []}),
        10,
        Random(1),
        before=lambda number: seen.append(str(number)),
        measure=lambda name: seen.append(name) or 1.0,  # type: ignore[func-returns-value]
        after=lambda number: number == 3,
    )
    assert [len(taken) for taken in paired.seconds.values()] == [4, 4] and len(paired.orders) == 4
    assert [seen[i : i + 3] for i in range(0, 12, 3)] == [[str(n), *paired.orders[n]] for n in range(4)]


class Asked:
    """A reference and a device that nobody shares; a request for no call takes `trip_s`."""

    def __init__(self, trip_s: float) -> None:
        self.round_trips, self.trip_s, self.rng = [1e-4] * 3, trip_s, Random(1)

    def ask_for_nothing(self, delay_s: float) -> None:
        self.round_trips.append(self.trip_s)

    def call(self, variant: str, **_: object) -> float:
        return 300e-6

    def write(self, recipe: object) -> None:
        """No content."""

    def random_recipe(self) -> object:
        return ()

    @property
    def device_lock(self) -> Asked:
        return self

    subject = device_lock

    @contextmanager
    def alone(self) -> Iterator[None]:
        yield

    frozen = on_one_core = alone


@pytest.mark.parametrize(
    ("longer_us", "trip_us", "delay_s", "settled"),
    [
        (184, 100, 1e-3, True),
        (184, 25, 1e-3, True),
        (290, 100, 1e-3, False),
        (184, 900, 1e-3, False),
        (184, 100, 0, False),
    ],
)
def test_a_burst_that_is_too_short_is_made_longer_before_asking_is_charged(
    longer_us: float, trip_us: float, delay_s: float, settled: bool
) -> None:
    """A call of 184 us, whose burst of two was cut by the size of its buffers, and 100 us to ask for it."""
    asked, rounds_asked = Asked(trip_us * 1e-6), set()
    race: Any = object.__new__(Race)
    race.session, race.subject, race.reference, race.rule = asked, asked, asked, TimingRule()
    race.burst, race.calls = [None, None], 2

    def burst(cold: bool, delay_s: float, rounds: int) -> tuple[None, tuple[()], float]:
        rounds_asked.add(rounds)
        return None, (), longer_us * 1e-6

    race.timed_burst = burst
    times = Times({"eager": [300e-6] * 30, "candidate": [184e-6] * 30}, rule=race.rule, delay_s=delay_s)
    times.orders = [["eager", "candidate"], ["candidate", "eager"]] * 15
    assert race.asking(times) > race.rule.most_asking
    assert race.is_settled(times) is settled
    assert rounds_asked == ({3} if delay_s else set())


def test_what_events_clocked_is_not_too_short_for_asking() -> None:
    """On a GPU 64 calls of eager take 190 us, by events; the candidate's 256 take long enough."""
    asked = Asked(100e-6)
    race: Any = object.__new__(Race)
    race.reference, race.rule, race.burst, race.calls = asked, TimingRule(), [None] * 256, 64
    times = Times({"eager": [3e-6] * 30, "candidate": [2e-6] * 30}, rule=race.rule, delay_s=1e-3)
    assert race.asking(times) < race.rule.most_asking
    times.delay_s = 0.0  # by the judge's clock both count
    assert race.asking(times) > race.rule.most_asking


@pytest.mark.parametrize(("taken_us", "asking_us", "charged_us"), [(60, 40, 75), (90, 10, 90), (1, 99, 75)])
def test_what_is_too_short_is_told_with_what_asking_took(taken_us: float, asking_us: float, charged_us: float) -> None:
    """No claim is barred: a kernel that is faster even so is faster."""
    times = Times({"eager": [1e-3] * 3, "candidate": [taken_us * 1e-6] * 3}, asking_s=[asking_us * 1e-6] * 3)
    assert times.charged().seconds["candidate"] == pytest.approx([charged_us * 1e-6] * 3)
    assert times.seconds["candidate"] == [taken_us * 1e-6] * 3


def test_limits_carry_the_rule() -> None:
    assert Limits().timing == TimingRule()
