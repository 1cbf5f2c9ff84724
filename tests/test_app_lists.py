"""The explorer's pages of many things: overview, kernels, problems, runs, leaderboard; and archives with nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from explorer_archive import CHILD, HOSTILE, PARENT, PROBLEM_ID, codes, fill, lists, numbers, over, shown, visit
from factories import attempt, passed

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "archive"
    fill(path)
    return path


@pytest.fixture
def explorer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    return over(folder, monkeypatch)


def test_overview_counts_what_stands(explorer: AppTest) -> None:
    page = explorer.run()
    assert not page.exception
    values = numbers(page)
    assert values["Verified kernels"] == "4"
    assert values["Attempts"] == "6"
    assert values["Best speed-up"] == "2.40×"  # torch.compile is at 80 % of eager's time
    assert "Nothing in the last 24 hours" in shown(page)


def test_a_url_filters_the_kernels(explorer: AppTest) -> None:
    table = lists(visit(explorer, "kernels", writer="llm"))[0]
    assert list(table["id"]) == [CHILD.id]


def test_the_kernels_of_a_run_are_a_filter(explorer: AppTest) -> None:
    assert list(lists(visit(explorer, "kernels", run="run2"))[0]["id"]) == [HOSTILE.id]


def test_kernels_are_sorted_by_speedup(explorer: AppTest) -> None:
    table = lists(visit(explorer, "kernels"))[0]
    assert list(table["speedup"]) == sorted(table["speedup"], reverse=True)
    assert len(table) == 4


def test_words_are_found_in_sources(explorer: AppTest) -> None:
    visit(explorer, "kernels", q="VARIANT = 1;", by="words")
    explorer.text_input(key="q").set_value("variant = 7").run()
    assert list(lists(explorer)[0]["id"]) == [HOSTILE.id]


def test_meaning_finds_kernels_and_says_why(explorer: AppTest) -> None:
    table = lists(visit(explorer, "kernels", q="hyperbolic tangent, tanh"))[0]
    assert table["id"].iloc[0] == HOSTILE.id
    assert "rank 1" in table["why"].iloc[0]


def test_nothing_found_says_what_to_do(explorer: AppTest) -> None:
    page = visit(explorer, "kernels", q="no such words anywhere", by="words")
    assert not lists(page)
    assert "Clear a filter" in shown(page)


def test_headings_sort_the_whole_list_by_the_url(explorer: AppTest) -> None:
    found = lists(visit(explorer, "kernels", sort="speedup"))[0]["speedup"]
    assert list(found) == sorted(found) and len(found) == 4


def test_one_box_searches_kernels_problems_and_runs(explorer: AppTest) -> None:
    page = visit(explorer, "search", find="linear_relu")
    problems, kernels = lists(page)
    assert list(problems["problem"]) == ["linear_relu"] and kernels["problem"].iloc[0] == "linear_relu"
    assert list(lists(visit(explorer, "search", find=CHILD.id[:10]))[0]["id"]) == [CHILD.id]


def test_problems_are_searched_by_family_too(explorer: AppTest) -> None:
    assert list(lists(visit(explorer, "problems", q="matmul"))[0]["problem"]) == ["linear_relu"]


def test_runs_page_credits_writers_and_groups_failures(explorer: AppTest) -> None:
    page = visit(explorer, "runs")
    credit = next(table.value for table in page.dataframe if "cost_per_win" in table.value).set_index("writer")
    assert credit.at["llm", "cost_per_win"] == pytest.approx(0.002)
    failed = next(table.value for table in page.dataframe if "reason" in table.value)
    assert set(failed["outcome"]) == {"wrong", "build failed"}


def test_retracted_and_stale_kernels_have_no_place_and_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(tmp_path / "archive")
    archive.retract(CHILD.id, "it read the clock")
    explorer = over(tmp_path / "archive", monkeypatch)
    assert "it read the clock" in shown(visit(explorer, "kernel", id=CHILD.id))
    assert CHILD.id not in set(lists(visit(explorer, "kernels"))[0]["id"])
    ranked, unranked = lists(visit(explorer, "problem", id=PROBLEM_ID))[:2]
    assert ranked["id"].iloc[0] == PARENT.id and CHILD.id not in set(ranked["id"])
    assert list(unranked["id"]) == [CHILD.id]
    page = visit(explorer, "leaderboard")
    (standings,), (best, rest) = (table.value for table in page.dataframe), lists(page)
    assert set(standings["entrant"]) == {"scripted", "torch.compile", "eager PyTorch"}
    assert CHILD.id not in set(best["id"])
    assert list(rest["unranked"]) == ["retracted: it read the clock"]


def test_a_leaderboard_is_kept_to_a_family(explorer: AppTest) -> None:
    page = visit(explorer, "leaderboard", set="family matmul")
    assert list(lists(page)[0]["problem"]) == ["linear_relu"]
    assert "Over 1 problems" in shown(page)


def test_an_empty_archive_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "none"
    page = over(nowhere, monkeypatch).run()
    assert not page.exception
    assert "rag-kernels generate" in codes(page)[0][1]
    assert not nowhere.exists()


def test_a_damaged_archive_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive.duckdb").write_bytes(b"not a database" * 1000)
    page = over(tmp_path, monkeypatch).run()
    assert not page.exception
    assert "start a new archive" in page.error[0].value


def test_new_attempts_appear_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(tmp_path / "archive")
    explorer = over(tmp_path / "archive", monkeypatch).run()
    archive.record_attempt(attempt("run2", 2, variant=9, verdict=passed(9.0)))
    assert numbers(explorer.run())["Verified kernels"] == "5"
