"""One number of a kernel, wherever it is told: confirmed, else the lower end of the interval, marked."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from factories import attempt, candidate, judged, measurement, passed, problem, run, wrong
from rich.console import Console, RenderableType

from rag_kernels.archive import browse, queries
from rag_kernels.archive.bundle import export, import_bundle
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import Attempt, KernelFilter
from rag_kernels.eval.records import Ratio
from rag_kernels.eval.told import told
from rag_kernels.experiments.scores import Solved, runs_of, scores, solved
from rag_kernels.long_runs.growth import Grown
from rag_kernels.report.console import attempt_line, facts, scores_text, summary
from rag_kernels.report.growth_view import growth_table
from rag_kernels.report.json_rows import attempt_row, hit_row, kernel_row, result_row
from rag_kernels.report.search_hits import hit_text
from rag_kernels.report.verdict import report
from rag_kernels.retrieval.reasons import Reasons
from rag_kernels.retrieval.retriever import Hit

RELU = problem()
FAST, SLOW = (candidate(RELU, variant=n) for n in range(2))
# Over eager; the better baseline, torch.compile, is at 0.8 of it. Intervals are of 5 % either way.
WON = attempt("r1", 1, RELU, candidate=FAST, verdict=passed(5.0, confirmed=False))
BESIDE = attempt("r1", 2, RELU, candidate=SLOW, verdict=passed(2.0, confirmed=False))
LOST = attempt("r1", 3, RELU, variant=2, verdict=wrong())
CONFIRMED = attempt("r1", 4, RELU, candidate=FAST, verdict=passed(2.5), note="confirmation of attempt 1")
ALL = (WON, BESIDE, LOST, CONFIRMED)


@pytest.fixture
def archive() -> MemoryArchive:
    made = MemoryArchive()
    made.start_run(run("r1", settings=json.dumps({"problem_id": RELU.problem.id})))
    for one in ALL:
        made.record_attempt(one)
    made.finish_run("r1", "finished")
    return made


def test_a_confirmed_kernel_has_its_confirmed_number_everywhere(archive: MemoryArchive) -> None:
    board = {place.kernel_id: (place.speedup, place.at_least) for place in queries.leaderboard(archive)}
    assert board == {FAST.id: (2.0, False), SLOW.id: (pytest.approx(1.52), True)}
    [of_run] = queries.run_table(archive)
    assert (of_run.best_speedup, of_run.best_at_least) == (2.0, False)
    [paid] = browse.paid(archive, [FAST.id])
    assert paid.speedup == 2.0
    kernel = archive.kernel(FAST.id)
    assert kernel is not None and (kernel.speedup, kernel.speedup_eager, kernel.at_least) == (2.0, 2.5, False)
    [only] = solved(archive, runs_of(archive, ["latest"]))
    assert (only.best, only.best_at_least, only.speedups) == (2.0, False, (2.0, pytest.approx(1.52)))
    row = result_row(ALL, run_id="r1", problem="p")
    assert (row["speedup"], row["speedup_eager"], row["at_least"]) == (2.0, 2.5, False)


def test_the_live_number_of_a_growth_is_that_of_its_end() -> None:
    console = Console(force_terminal=True, width=160, legacy_windows=False)
    with console.capture() as shown, growth_table(console, "1 problem", {RELU.problem.name: ALL[:1]}) as show:
        for one in ALL[1:]:
            show(one)
        show(Grown(Path("p.py"), RELU.problem.name, ALL))
    last = [line for line in shown.get().splitlines() if RELU.problem.name in line][-1]
    assert " 3 " in last and "2.00x" in last  # three candidates; the confirmation is none of its own


def test_confirmations_are_no_attempts_and_no_wins(archive: MemoryArchive) -> None:
    [of_run] = queries.run_table(archive)
    assert (of_run.attempts, of_run.passed, of_run.verified_kernels) == (3, 2, 2)
    again = replace(WON, run_id="r2", number=1), replace(CONFIRMED, run_id="r2", number=2, judged=judged(wrong()))
    archive.start_run(run("r2", started_at="2027-01-01T00:00:00+00:00"))
    for one in again:
        archive.record_attempt(one)
    newest = queries.run_table(archive)[0]
    assert (newest.attempts, newest.passed, newest.best_speedup) == (1, 0, None)  # it did not hold


def test_what_is_not_confirmed_is_marked(archive: MemoryArchive) -> None:
    assert "≥1.90x eager  ≥1.52x compile" in attempt_line(attempt_row(BESIDE))
    assert "2.50x eager  2.00x compile" in attempt_line(attempt_row(CONFIRMED))
    assert "≥4.75x eager, ≥3.80x torch.compile" in summary(result_row((WON,), run_id="r1", problem="p"))
    kernel = archive.kernel(SLOW.id)
    assert kernel is not None
    assert "≥1.52x" in facts(kernel_row(kernel).items())
    assert "≥1.90x eager" in hit_text(hit_row(Hit(kernel, 0.5, Reasons((), (), ()))))


def test_the_lower_of_the_lower_ends_counts() -> None:
    unsure = replace(measurement(2.0, confirmed=False), speedup_eager=Ratio(1.7, 1.2, 2.9))
    said = told(judged(replace(passed(), measurement=unsure)))
    assert said is not None and (said.speedup, said.over_eager, said.over_compile) == (1.2, 1.2, pytest.approx(1.52))


def test_a_floor_of_another_machine_is_not_told(archive: MemoryArchive) -> None:
    beaten = replace(passed(), measurement=replace(measurement(), floor_us=150.0))
    assert [said.of_floor for said in map(told, (judged(beaten), judged())) if said] == [None, 0.5]
    assert "  above the floor  " in attempt_line(attempt_row(replace(BESIDE, judged=judged(beaten))))
    assert "faster than this floor" in text_of(report(judged(beaten)))
    archive.record_attempt(attempt("r1", 5, RELU, variant=7, verdict=beaten))
    kernel = archive.kernel(candidate(RELU, variant=7).id)
    assert kernel is not None and kernel.floor_fraction is None


def test_a_bundle_of_medians_is_told_by_the_same_rule(archive: MemoryArchive, tmp_path: Path) -> None:
    export(archive, tmp_path / "b.zip")
    other = MemoryArchive()
    import_bundle(other, tmp_path / "b.zip", trust_bundle=True)
    both = [[(k.id, k.speedup, k.at_least) for k in each.kernels(KernelFilter())] for each in (archive, other)]
    assert both[0] == both[1] and len(both[0]) == 2


def test_two_of_two_are_not_sure() -> None:
    told_of_two = scores_text([], scores([solved_row(2.0), solved_row(1.5)]))
    assert "| fast_1 | 2 | 100 % | 34 % to 100 % |" in told_of_two


def text_of(shown: RenderableType) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def solved_row(best: float) -> Solved:
    return Solved("p", "p", 1, 1, (best,), best, False, 1, 0.0)


def test_latest_is_what_was_written_and_not_a_kernel_that_was_judged(archive: MemoryArchive) -> None:
    archive.start_run(run("r9", command="eval", started_at="2027-01-01T00:00:00+00:00"))
    only: Attempt = attempt("r9", 1, RELU, variant=5)
    archive.record_attempt(only)
    assert [one.id for one in runs_of(archive, ["latest"])] == ["r1"]
    assert [one.id for one in runs_of(archive, ["r9"])] == ["r9"]
