"""Which kernel serves all workloads: the weighted total among those right at all, merit first, confirmed, in time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_home import BRIEF, inside, model
from factories import attempt, candidate, passed, wrong
from support.search_sessions import RELU, Rounds, draft, session

import rag_kernels
from rag_kernels.archive.records import Attempt
from rag_kernels.budget import Ledger
from rag_kernels.cli.generate import followed
from rag_kernels.eval.records import Candidate, FunctionalProblem, Judged, Passed, Problem, Verdict
from rag_kernels.eval.sizes.workloads import Workload
from rag_kernels.records import Budget
from rag_kernels.report.console import served_line
from rag_kernels.report.json_rows import served_row, total_row
from rag_kernels.report.json_types import TotalRow
from rag_kernels.run.workloads import Choice, Search, Served, choose, total
from rag_kernels.scripted import ScriptedJudge

ROWS = (64, 8, 2)
PROBLEM = Problem("rows", f"ROWS = {ROWS[0]}\n{RELU.problem.source}")
WORKLOADS = [Workload((("ROWS", rows),)) for rows in ROWS]
Table = dict[int, Sequence[float | Verdict]]  # by variant: a speed-up, or a verdict, at each workload


class AtRows(ScriptedJudge):
    """Says what the tables do of a variant at so many rows; `fresh` is what a confirmation says in their place."""

    def __init__(self, table: Table, fresh: Table | None = None) -> None:
        super().__init__()
        self.table, self.fresh = table, {**table, **(fresh or {})}
        self.seen: list[tuple[int, int, bool]] = []

    def _judged(self, problem: FunctionalProblem, one: Candidate, *, confirmed: bool) -> Judged:
        rows = int(problem.problem.source.split()[2])
        variant = next(v for v in self.table if candidate(RELU, variant=v).id == one.id)
        self.seen.append((variant, rows, confirmed))
        found = (self.fresh if confirmed else self.table)[variant][ROWS.index(rows)]
        return self.judged_as(passed(found, confirmed=confirmed) if isinstance(found, float) else found)

    def judge(self, problem: FunctionalProblem, candidates: Any, more: Any = None) -> Iterator[Any]:
        for one in candidates:
            yield one, self._judged(problem, one, confirmed=False)

    def confirm(self, problem: FunctionalProblem, candidate: Candidate) -> Judged:
        return self._judged(problem, candidate, confirmed=True)


def searched(judge: AtRows, workloads: Sequence[Workload] = WORKLOADS) -> tuple[Search, list[Attempt | Served]]:
    made = session(Rounds([draft(v) for v in judge.table]), judge, rounds=1, drafts=len(judge.table))
    search = Search.of(made, PROBLEM, workloads)
    return search, list(search.events())


def variant_of(choice: Choice | None) -> int:
    assert choice is not None
    return next(v for v in range(1, 9) if candidate(RELU, variant=v).id == choice.attempt.candidate.id)


def labelled(speedup: float) -> Verdict:
    """A verdict that may claim no speed."""
    return replace(passed(speedup, confirmed=False), label="library rewrite")


@pytest.mark.parametrize(
    ("table", "chosen"),
    [
        ({1: (3.0, 1.0, 1.0), 2: (2.0, 2.0, 2.0)}, 2),  # the quicker one where it was searched for is not so elsewhere
        ({1: (3.0, wrong(), 9.0), 2: (2.0, 2.0, 2.0)}, 2),
        ({1: (3.0, wrong(), wrong()), 2: (2.0, 1.0, wrong())}, 2),  # none is right at all: the one that is at the most
        ({1: (2.0, 2.0, 2.0), 2: (1.9, 2.05, 2.05)}, 1),  # not by more than chance explains
        ({1: (labelled(2.0), labelled(9.0), labelled(9.0)), 2: (1.5, 1.5, 1.5)}, 2),
    ],
)
def test_the_least_total_of_those_that_are_right_at_all_and_may_claim_it(table: Table, chosen: int) -> None:
    judge = AtRows(table)
    search, events = searched(judge)
    assert search.found is not None and variant_of(search.found.choice) == chosen
    last = [e.attempt.judged.verdict for e in events[-3:] if isinstance(e, Served) and e.measurement]
    assert all(v.measurement.confirmed for v in last)  # type: ignore[union-attr]
    assert search.found.solved == all(isinstance(v, float) for v in table[chosen])
    best = search.found.best
    assert best is not None and best.judged.verdict.measurement.confirmed  # type: ignore[union-attr]


def test_how_often_a_workload_comes_decides() -> None:
    table: Table = {1: (3.0, 1.0, 1.0), 2: (2.0, 2.0, 2.0)}
    often = [Workload(w.sizes, 100.0 if i == 0 else 1.0) for i, w in enumerate(WORKLOADS)]
    found = searched(AtRows(table), often)[0].found
    assert found is not None and variant_of(found.choice) == 1


def test_one_that_does_not_hold_when_it_is_confirmed_leaves_its_place() -> None:
    judge = AtRows({1: (2.0, 2.0, 2.0), 2: (3.0, 3.0, 3.0)}, fresh={2: (3.0, wrong(), 3.0)})
    found = searched(judge)[0].found
    assert found is not None and variant_of(found.choice) == 1 and found.solved


def test_when_the_time_is_up_no_other_kernel_is_tried() -> None:
    judge = AtRows({1: (2.0, 2.0, 2.0), 2: (1.5, 9.0, 9.0)})
    made = session(Rounds([draft(1), draft(2)]), judge, rounds=1, drafts=2)
    at = Search.of(made, PROBLEM, WORKLOADS)
    attempts = [e for e in at.events() if isinstance(e, Attempt)]
    assert at.found is not None and variant_of(at.found.choice) == 2
    judge.seen.clear()
    ledger = Ledger(Budget(rounds=1, seconds=1.0), clock=iter([0.0, *[5.0] * 99]).__next__)
    choosing = choose(made, PROBLEM, WORKLOADS, attempts, ledger=ledger)
    while True:
        try:
            next(choosing)
        except StopIteration as ended:
            choice = ended.value
            break
    assert variant_of(choice) == 1 and choice.serves_all and not any(v == 2 for v, _, _ in judge.seen)


SIZED = """
import torch

ROWS = 64


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(ROWS, 32)]


def get_init_inputs():
    return []
"""
LISTED = f'{SIZED}\n\ndef get_workloads():\n    return [{{"ROWS": 64}}, {{"ROWS": 8, "weight": 5}}, {{"ROWS": 2}}]\n'
KERNEL = """
#include "rag_kernel.h"
void twice(rk::Tensor<const float> x, rk::Tensor<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] > 0 ? 2 * x.data[i] : 0;
}
RK_EXPORT(forward, twice)
"""


def test_generate_in_python_takes_get_workloads(tmp_path: Path) -> None:
    class AnyRows(ScriptedJudge):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[int] = []

        def judge(self, problem: FunctionalProblem, candidates: Any, more: Any = None) -> Iterator[Any]:
            self.rows.append(problem.outputs[0].shape[0])
            yield from super().judge(problem, candidates)

    (tmp_path / "listed.py").write_text(LISTED)
    judge, writer = AnyRows(), Rounds([draft(1)])
    attempts = list(
        rag_kernels.generate(
            tmp_path / "listed.py", writer=writer, judge=judge, archive=":memory:", retrieval="off", rounds=1
        )
    )
    assert judge.rows == [64, 64, 8, 2] and writer.briefs[0].also == ("ROWS=64", "ROWS=8", "ROWS=2")
    verdict = attempts[-1].judged.verdict
    assert isinstance(verdict, Passed) and verdict.contract is not None and verdict.contract.only
    assert rag_kernels.winner(attempts) is attempts[-1]


NUMBER = r"[\d,.e+]+"
SHOWN = (
    rf"  ROWS=64  passed  {NUMBER} us  {NUMBER}x eager",
    rf"  ROWS=8  passed  {NUMBER} us  {NUMBER}x eager",
    rf"k_\w+: 2 of 2 workloads passed; together {NUMBER} us  {NUMBER}x eager",
    r"  serves x\[M, N\] float32; M, N > 0; contiguous, at any alignment",  # it counts elements
)


def test_the_command_shows_every_workload_and_one_total(home: Path, tmp_path: Path) -> None:
    (tmp_path / "sized.py").write_text(SIZED)
    words = ["generate", tmp_path / "sized.py", "--model", model(tmp_path / "m", KERNEL), *BRIEF, "--drafts", "1"]
    given = ["--shapes", "ROWS=64,8", "--archive", ":memory:", "--out", tmp_path / "best.py"]
    done = inside(home, *words, *given, quick=True, sizes=True)
    assert done.code == 0, done.err
    lines = done.out.partition(" at 2 workloads:\n")[2].splitlines()
    assert len(lines) > len(SHOWN), done.out
    assert all(map(re.fullmatch, SHOWN, lines)), done.out  # one kernel is confirmed at once: no number is "at least"
    assert "CompiledForward(" in (tmp_path / "best.py").read_text()


def test_what_is_shown_before_it_is_confirmed_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*, as_json: bool) -> list[str]:
        judge = AtRows({1: (2.0, 2.0, 2.0), 2: (3.0, 3.0, wrong())})
        made = session(Rounds([draft(1), draft(2)]), judge, rounds=1, drafts=2)
        assert followed(Search.of(made, PROBLEM, WORKLOADS), "rows", as_json=as_json)
        return capsys.readouterr().out.splitlines()[3:]  # two attempts and a confirmation

    one, other = (candidate(RELU, variant=v).id for v in (1, 2))
    assert shown(as_json=False) == [
        f"{other} at 3 workloads:",
        "  ROWS=64  passed  100 us  \u22652.85x eager  \u22652.28x compile",
        "  ROWS=8  passed  100 us  \u22652.85x eager  \u22652.28x compile",
        "  ROWS=2  wrong  output 0 differs from the fp64 oracle",
        f"{one} at 3 workloads:",
        *(f"  ROWS={rows}  passed  100 us  \u22651.90x eager  \u22651.52x compile" for rows in ROWS),
        *(f"  ROWS={rows}  passed  100 us  2.00x eager  1.60x compile" for rows in ROWS),
        f"{one}: 3 of 3 workloads passed; together 300 us  2.00x eager  1.60x compile",
        "  serves x[64, 1024] float32; contiguous, aligned as PyTorch allocates",
    ]
    rows = [json.loads(line) for line in shown(as_json=True)]
    assert [row["type"] for row in rows] == ["workload"] * 9 + ["total"]
    assert [row["kernel_id"] for row in rows[:-1]] == [other] * 3 + [one] * 6
    assert rows[-1].keys() == {"type", "schema", *TotalRow.__required_keys__}
    assert [row["at_least"] for row in rows] == [True, True, None, True, True, True, False, False, False, False]


def test_what_nothing_confirmed_is_at_least() -> None:
    one = Served(WORKLOADS[0], attempt(verdict=passed(2.0, confirmed=False)))
    assert "\u2265" in served_line(served_row(one)) and total_row(total([one]), workloads=1)["at_least"]
