"""What the explorer's pages are made of: numbers with units, texts, charts, and the lists behind the tables."""

from __future__ import annotations

import math
import re
from datetime import datetime
from html import unescape
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from explorer_archive import CHILD, HOSTILE, LINEAR, PARENT, PROBLEM_ID, fill
from factories import attempt, device, passed, problem, run, wrong

from rag_kernels.app import figures, lineage, pictures, trends, values
from rag_kernels.app.columns import Where
from rag_kernels.app.listing import listing
from rag_kernels.app.snapshot import Snapshot
from rag_kernels.archive import browse
from rag_kernels.archive.queries import LineageGraph, LineageNode, attempts_of_run, run_table
from rag_kernels.archive.records import Edge
from rag_kernels.archive.store import FileArchive


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> FileArchive:
    return fill(tmp_path_factory.mktemp("lists") / "archive")


@pytest.fixture(scope="module")
def lists(archive: FileArchive) -> Snapshot:
    return Snapshot(archive)


# --- numbers and texts


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(8.234, "8.23 µs"), (812.4, "812 µs"), (4313, "4.31 ms"), (1_200_000, "1.20 s"), (None, "–")],
)
def test_durations_have_three_digits_and_a_unit(microseconds: float | None, text: str) -> None:
    assert values.duration(microseconds) == text


def test_spans_have_the_units_of_people() -> None:
    assert [values.span(s) for s in (4.2, 720, 11_100, 200_000)] == ["4.20 s", "12 min", "3 h 05 min", "2 days 7 h"]


def test_an_unknown_price_is_not_shown_as_free() -> None:
    assert (values.dollars(None), values.dollars(0.0), values.dollars(0.0042)) == ("unknown", "$0.00", "$0.0042")


def test_plain_text_keeps_no_markdown_and_no_link() -> None:
    from rag_kernels.app import show

    escaped = show.plain("a *b* <i> [c](https://d)\n# e www.f.test me@g.test")
    assert not re.search(r"(?<!\\)[*<\[#]", escaped)
    seen = re.sub(r"\\(.)", r"\1", escaped)
    assert not re.search(r"https?://|www\.|@\w", seen)
    assert seen.replace("\u2060", "") == "a *b* <i> [c](https://d) # e www.f.test me@g.test"


def test_the_roofline_places_a_kernel_under_the_roof() -> None:
    """Read the chart as a reader does: by the ticks of its axis."""
    drawn = pictures.roof_of(device(), problem().features, passed(2.0).measurement, CHILD.id)
    ticks = re.findall(r'y="([\d.]+)" text-anchor="end"[^>]*>([\d.]+)<', drawn)
    (low, first), (high, second) = [(float(y) - 4, math.log(float(text))) for y, text in ticks[:2]]

    def rate(y: str) -> float:
        return math.exp(first + (float(y) - low) / (high - low) * (second - first))

    kernel = re.search(r'<polygon points="[\d.]+,[\d.]+ [\d.]+,([\d.]+) ', drawn)
    eager = re.search(r'<circle cx="[\d.]+" cy="([\d.]+)"', drawn)
    assert kernel and eager
    assert rate(kernel[1]) == pytest.approx(2 * 64 * 1024 / 100 / 1e3, rel=0.02)
    assert rate(kernel[1]) == pytest.approx(2 * rate(eager[1]), rel=0.02)


def test_curves_hold_until_the_next_step_and_ticks_are_at_round_moments() -> None:
    times = pd.to_datetime(["2026-01-02 03:04", "2026-01-02 07:40", "2026-01-02 12:30"])
    drawn = trends.over_time(pd.DataFrame({"time": times, "kernels": [1, 4, 9], "wins": [0, 2, 2]}))
    kernels = re.search(r'<polyline points="([^"]+)"', drawn)
    assert kernels
    places = [tuple(map(float, place.split(","))) for place in kernels[1].split()]
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(places))  # level, or straight up
    assert re.findall(r">(\d\d:\d\d)<", drawn) == ["06:00", "09:00", "12:00"]
    assert "time (UTC, 02 Jan 2026)" in drawn


def test_bars_are_told_as_text_and_long_ones_do_not_leave_their_row() -> None:
    drawn = trends.burn([("<b>time</b>", 1.4, "7 min of 5 min"), ("rounds", 0.5, "1 of 2")])
    assert "<b>time" not in drawn and "7 min of 5 min" in drawn
    assert re.findall(r"width:([\d.]+)%", drawn) == ["100.0", "50.0"]


@pytest.mark.parametrize("language", ["cpp", "python", "asm", "bash", "json", "", "no such language"])
def test_a_listing_keeps_every_character_and_escapes_it(language: str) -> None:
    text = '  int a = 1 < 2; // <script>alert("x")</script>\n\n/* two\n\tlines & more */ $(rm) 0x1f\n"unterminated'
    drawn = listing(text, language, numbers=True, tall=3)
    [body] = re.findall("<code>(.*)</code>", drawn, re.DOTALL)
    assert unescape(re.sub("<[^>]*>", "", body)) == text and "<script" not in drawn
    assert drawn.startswith('<div class="rk-code rk-tall"') and body.count("rk-line") == 5
    assert ('class="w"' in drawn or 'class="k"' in drawn) == (language in ("cpp", "python", "asm", "bash", "json"))
    assert "rk-tall" not in listing(text, language, tall=5)


def test_reasons_are_told_signal_by_signal() -> None:
    said = figures.signals(("same graph", "bm25 rank 12", "dense 0.83", "led to 2 faster kernels"))
    assert said == {"same_graph": True, "bm25": 12, "dense": 0.83, "graph": None, "others": "led to 2 faster kernels"}


def test_of_a_large_family_the_nearest_are_drawn() -> None:
    names = [f"k_{n:03}" for n in range(100)]
    nodes = tuple(LineageNode(name, "p", "cpu", "kernel", "verified", 2.0, "llm", "") for name in names)
    edges = tuple(Edge(child, source, "parent") for source, child in pairwise(names))
    drawn = {node.id for node in lineage.nearby(LineageGraph(nodes, edges), "k_050").nodes}
    assert len(drawn) == lineage.DRAWN
    assert {"k_040", "k_050", "k_060"} <= drawn and "k_000" not in drawn


# --- lists


def test_a_list_is_filtered_sorted_and_paged(lists: Snapshot) -> None:
    page = lists.kernels(Where(), order="speedup", first=1, count=2)
    assert list(page["id"]) == [CHILD.id, PARENT.id]
    assert lists.count(Where()) == 4
    assert list(lists.kernels(Where({"model": ["openai/test-model"]}))["id"]) == [CHILD.id]
    assert lists.count(Where({"family": ["activation"], "writer": ["scripted"]})) == 2
    assert lists.count(Where(ids=(LINEAR.id, "k_unknown"))) == 1


def test_standings_have_the_baselines_as_rows(lists: Snapshot) -> None:
    table = lists.standings(Where()).set_index("entrant")
    assert list(table.index) == ["scripted", "openai/test-model", "torch.compile", "eager PyTorch"]
    assert table.at["scripted", "mean"] == pytest.approx((1.6 * 1.1 * 3.0) ** (1 / 3))
    assert table.at["openai/test-model", "mean"] == pytest.approx(2.5 ** (1 / 3))  # 1 where it has no kernel
    assert table.at["torch.compile", "mean"] == pytest.approx(1.25)


def test_a_board_places_kernels_among_the_baselines(lists: Snapshot) -> None:
    board = figures.board(lists.ranked(PROBLEM_ID))
    assert list(board["id"]) == [CHILD.id, PARENT.id, "", ""]
    assert list(board["place"])[:2] == [1, 2] and board["place"].isna().sum() == 2
    assert list(board["entrant"])[2:] == ["torch.compile", "eager PyTorch"]


def test_what_came_in_since_is_compared_with_what_was_there(tmp_path: Path) -> None:
    archive = fill(tmp_path / "archive")
    archive.record_attempt(attempt("run2", 2, variant=9, verdict=passed(4.0), created_at="2026-03-01T00:00:00+00:00"))
    lists, since = Snapshot(archive), datetime(2026, 2, 1)
    better = lists.improved(since)
    assert list(better["speedup"]) == [pytest.approx(3.2)] and list(better["before"]) == [pytest.approx(2.0)]
    assert lists.lately(since)["kernels"] == lists.lately(since)["wins"] == 1


def test_failures_that_differ_in_numbers_only_are_one_group(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    archive.start_run(run("r"))
    for number, ratio in enumerate(("3.5e+02", "17"), 1):
        verdict = wrong()
        verdict = type(verdict)(f"output 0 is {ratio} times too far off", *("normal", 1.0, "here"))
        archive.record_attempt(attempt("r", number, variant=number, verdict=verdict))
    (group,) = browse.failures(archive, "r")
    assert (group.count, group.example) == (2, "output 0 is 17 times too far off")


def test_a_signal_has_the_record_of_the_candidates_it_led_to(archive: FileArchive) -> None:
    records = {r.signal: r for r in browse.signal_records(archive)}
    assert {"same graph", "bm25", "dense", "graph"} <= set(records)
    assert (records["dense"].shown, records["dense"].won) == (1, 1)


def test_budgets_are_told_beside_what_is_used(archive: FileArchive) -> None:
    found = next(r for r in archive.runs() if r.id == "run1")
    rows = [figures.attempt_row(a) for a in attempts_of_run(archive, "run1")]
    attempts = figures.table(rows, figures.ATTEMPT_COLUMNS)
    burns = {b.name: (b.used, b.limit) for b in figures.burned(found, attempts, seconds=4.0, tokens=200, usd=0.002)}
    assert burns == {"rounds": (1, 2), "time": (4.0, None), "tokens": (200, None), "money": (0.002, 0.004)}


def test_a_growth_is_a_set_of_problems(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path)
    for number in range(3):
        settings = f'{{"growth": "w1", "problem_id": "p_{number}"}}'
        archive.start_run(run(f"r{number}", command="grow", settings=settings))
    (found,) = browse.problem_sets(archive)
    assert found.problem_ids == ("p_0", "p_1", "p_2") and "2026-01-02" in found.name


def test_texts_are_found_in_sources_ideas_and_names(archive: FileArchive) -> None:
    assert browse.kernels_with(archive, "VARIANT = 7") == (HOSTILE.id,)
    assert browse.kernels_with(archive, "linear_relu as one") == (LINEAR.id,)
    assert len(run_table(archive)) == 2
