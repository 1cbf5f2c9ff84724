"""The timing rule: one record of all its numbers, from which the versions of the judge and of baselines follow."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest
from factories import problem

from rag_kernels.eval.judge import JUDGE_VERSION, judge_version
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.records import Device
from rag_kernels.eval.timing.baseline import baseline_file
from rag_kernels.eval.timing.paired_ratio import Paired, interleave
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


def test_the_numbers_of_the_clock_stand_in_the_rule_alone() -> None:
    """No other file of `eval/timing` has a number with a name, but for what is no part of the rule."""
    others = {"AT_ONCE_BYTES", "BASELINE_VERSION"}  # where outputs are kept; what is measured
    for file in (ROOT / "eval" / "timing").glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(node.value, ast.Dict):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                numbers = [
                    n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, int | float)
                ]
                assert not numbers or ast.unparse(target) in others, f"{file.name}: {ast.unparse(node)}"


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


def test_limits_carry_the_rule() -> None:
    assert Limits().timing == TimingRule()
