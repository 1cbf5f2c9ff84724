"""The explorer: its logic through Streamlit's AppTest, and the whole of it in a real browser."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from factories import (
    attempt,
    build_failed,
    candidate,
    device,
    exemplar,
    linear_problem,
    llm_call,
    passed,
    problem,
    run,
    wrong,
)
from streamlit.testing.v1 import AppTest

import app
from app import charts, figures, show
from app.launch import command
from archive.store import FileArchive

APP = Path(app.__file__).parent
EXPLORER = str(APP / "explorer.py")
CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

HOSTILE_NAME = "<img src=x onerror=alert(1)> **bold** [x](http://evil.test)"
HOSTILE_IDEA = "</code><script>window.hacked=1</script> ![p](http://evil.test/p.png) $x$ :red[r]"
PARENT = candidate(problem())
CHILD = candidate(problem(), variant=1)
HOSTILE = candidate(problem("tanh"), variant=7)
PROBLEM_ID = problem().problem.id


def fill(folder: Path) -> FileArchive:
    """Two runs: one with a family of two and failures, one with a text that tries to break out."""
    archive = FileArchive(folder)
    archive.start_run(run("run1"))
    archive.record_call(llm_call("run1", "call1", prompt="Make <b>it</b> fast.", reply="Here **it** is."))
    archive.record_attempt(attempt("run1", 1, candidate=PARENT, verdict=passed(1.6)))
    archive.record_attempt(attempt("run1", 2, variant=5, verdict=wrong()))
    archive.record_attempt(attempt("run1", 3, variant=6, verdict=build_failed()))
    archive.record_attempt(
        attempt(
            "run1",
            4,
            candidate=CHILD,
            verdict=passed(2.5),
            parents=[PARENT.id],
            exemplars=(exemplar(PARENT.id),),
            call_ids=("call1",),
            writer="llm",
            model="openai/test-model",
        )
    )
    archive.record_attempt(attempt("run1", 5, linear_problem(), variant=20, verdict=passed(1.1)))
    archive.finish_run("run1", "finished")
    archive.start_run(run("run2", problem_name=HOSTILE_NAME))
    strange = problem("tanh", name=HOSTILE_NAME)
    archive.record_attempt(attempt("run2", 1, strange, candidate=HOSTILE, idea=HOSTILE_IDEA, verdict=passed(3.0)))
    return archive


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "archive"
    fill(path)
    return path


@pytest.fixture
def explorer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["explorer.py", "--archive", str(folder)])
    return AppTest.from_file(EXPLORER, default_timeout=30).run()


def visit(explorer: AppTest, view: str, **query: str) -> AppTest:
    explorer.switch_page(f"views/{view}.py")
    for name, value in query.items():
        explorer.query_params[name] = value
    explorer.run()
    assert not explorer.exception, explorer.exception
    return explorer


def shown(page: AppTest) -> str:
    """Every text on the page."""
    kinds = (page.title, page.subheader, page.markdown, page.text, page.caption, page.info, page.warning, page.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


# --- numbers and texts


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(8.234, "8.23 µs"), (812.4, "812 µs"), (4313, "4.31 ms"), (1_200_000, "1.20 s"), (None, "–")],
)
def test_durations_have_three_digits_and_a_unit(microseconds: float | None, text: str) -> None:
    assert show.duration(microseconds) == text


def test_an_unknown_price_is_not_shown_as_free() -> None:
    assert (show.dollars(None), show.dollars(0.0), show.dollars(0.0042)) == ("unknown", "$0.00", "$0.0042")


def test_plain_text_keeps_no_markdown() -> None:
    escaped = show.plain("a *b* <i> [c](d)\n# e www.f.test")
    assert re.sub(r"\\(.)", r"\1", escaped).replace("&#119;", "w") == "a *b* <i> [c](d) # e www.f.test"
    assert not re.search(r"(?<!\\)[*<\[#]", escaped.replace("&#119;", "w"))


def test_a_download_has_the_ending_that_eval_takes() -> None:
    assert show.suffix("void f();", "cpu", "kernel") == ".cpp"
    assert show.suffix("__global__ void f();", "cuda", "kernel") == ".cu"
    assert show.suffix('KERNELS = ""\ndef forward(x): ...', "cuda", "composed") == ".py"
    assert show.suffix("class ModelNew(nn.Module): ...", "cuda", "module") == ".py"


def test_the_roofline_places_a_kernel_under_the_roof() -> None:
    found = passed(2.0).measurement
    spec = charts.roofline(device(), problem().features, found).to_dict()
    rates = {row["what"]: row["gflops"] for rows in spec["datasets"].values() for row in rows if "what" in row}
    assert rates["this kernel"] == pytest.approx(2 * 64 * 1024 / 100 / 1e3)
    assert rates["this kernel"] == pytest.approx(2 * rates["eager"])


def test_main_operators_leave_plumbing_out() -> None:
    assert figures.main_operators(["view", "gelu", "layer_norm", "gelu"]) == "gelu + layer_norm"
    assert figures.main_operators(["view"]) == "view"


# --- pages


def test_overview_counts_what_stands(explorer: AppTest) -> None:
    assert not explorer.exception
    values = {metric.label: metric.value for metric in explorer.metric}
    assert values["Kernels"] == "4"
    assert values["Attempts"] == "6"
    assert values["Best speed-up"] == "2.40×"  # torch.compile is at 80 % of eager's time


def test_a_url_filters_the_kernels(explorer: AppTest) -> None:
    table = visit(explorer, "kernels", writer="llm").dataframe[0].value
    assert list(table["id"]) == [CHILD.id]


def test_kernels_are_sorted_by_speedup(explorer: AppTest) -> None:
    table = visit(explorer, "kernels").dataframe[0].value
    assert list(table["speedup"]) == sorted(table["speedup"], reverse=True)
    assert len(table) == 4


def test_words_are_found_in_sources(explorer: AppTest) -> None:
    visit(explorer, "kernels", q="VARIANT 1\n", by="words")
    explorer.text_input(key="q").set_value("variant 7").run()
    assert list(explorer.dataframe[0].value["id"]) == [HOSTILE.id]


def test_meaning_finds_kernels_and_says_why(explorer: AppTest) -> None:
    table = visit(explorer, "kernels", q="hyperbolic tangent, tanh").dataframe[0].value
    assert table["id"].iloc[0] == HOSTILE.id
    assert "rank 1" in table["why"].iloc[0]


def test_nothing_found_says_what_to_do(explorer: AppTest) -> None:
    page = visit(explorer, "kernels", q="no such words anywhere", by="words")
    assert not page.dataframe
    assert "Clear a filter" in shown(page)


def test_kernel_page_shows_source_and_numbers(explorer: AppTest) -> None:
    page = visit(explorer, "kernel", id=CHILD.id)
    values = {metric.label: metric.value for metric in page.metric}
    assert values["Speed-up"] == "2.00×"
    assert values["Time per call"] == "100 µs"
    assert page.code[0].value == CHILD.source.rstrip()


@pytest.mark.parametrize(
    ("tab", "expected"),
    [
        ("Timings", "50 interleaved pairs"),
        ("Verdict", "✓ zeros"),
        ("Lineage", "An arrow points"),
        ("How it was made", "Prompt and reply"),
        ("Problem", "What it computes"),
    ],
)
def test_every_tab_of_a_kernel_draws(explorer: AppTest, tab: str, expected: str) -> None:
    page = visit(explorer, "kernel", id=CHILD.id, tab=tab)
    assert expected in shown(page)


def test_the_prompt_is_shown_as_it_was_sent(explorer: AppTest) -> None:
    page = visit(explorer, "kernel", id=CHILD.id, tab="How it was made")
    assert {"Make <b>it</b> fast.", "Here **it** is."} <= {code.value for code in page.code}


def test_lineage_shows_the_difference_to_the_parent(explorer: AppTest) -> None:
    page = visit(explorer, "kernel", id=CHILD.id, tab="Lineage")
    difference = next(code.value for code in page.code if code.language == "diff")
    assert "-constexpr int variant = 0;\n+constexpr int variant = 1;" in difference


def test_an_unknown_id_leads_back_to_the_table(explorer: AppTest) -> None:
    for view in ("kernel", "problem", "run"):
        assert "nonsense" in shown(visit(explorer, view, id="nonsense"))


def test_problem_page_ranks_and_explains(explorer: AppTest) -> None:
    page = visit(explorer, "problem", id=PROBLEM_ID)
    board = page.dataframe[0].value
    assert list(board["id"]) == [CHILD.id, PARENT.id]
    assert any("module_fn" in code.value for code in page.code)


def test_a_retracted_kernel_is_not_ranked_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(tmp_path / "archive")
    archive.retract(CHILD.id, "it read the clock")
    monkeypatch.setattr(sys, "argv", ["explorer.py", "--archive", str(tmp_path / "archive")])
    explorer = AppTest.from_file(EXPLORER, default_timeout=30).run()
    page = visit(explorer, "kernel", id=CHILD.id)
    assert "it read the clock" in shown(page)
    assert CHILD.id not in set(visit(explorer, "kernels").dataframe[0].value["id"])
    ranked, unranked = (table.value for table in visit(explorer, "problem", id=PROBLEM_ID).dataframe[:2])
    assert list(ranked["id"]) == [PARENT.id]
    assert list(unranked["id"]) == [CHILD.id]


def test_run_page_groups_failures(explorer: AppTest) -> None:
    page = visit(explorer, "run", id="run1")
    reasons = next(table.value for table in page.dataframe if "count" in table.value)
    assert set(reasons["outcome"]) == {"wrong", "build failed"}
    assert {metric.label: metric.value for metric in page.metric}["Tokens"] == "200"


def test_runs_page_credits_writers(explorer: AppTest) -> None:
    page = visit(explorer, "runs")
    credit = next(table.value for table in page.dataframe if "passed_percent" in table.value)
    assert set(credit["writer"]) == {"scripted", "llm"}


def test_an_empty_archive_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "none"
    monkeypatch.setattr(sys, "argv", ["explorer.py", "--archive", str(nowhere)])
    page = AppTest.from_file(EXPLORER, default_timeout=30).run()
    assert not page.exception
    assert "rag-kernels generate" in page.code[0].value
    assert not nowhere.exists()


def test_a_damaged_archive_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive.duckdb").write_bytes(b"not a database" * 1000)
    monkeypatch.setattr(sys, "argv", ["explorer.py", "--archive", str(tmp_path)])
    page = AppTest.from_file(EXPLORER, default_timeout=30).run()
    assert not page.exception
    assert "start a new archive" in page.error[0].value


def test_new_attempts_appear_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(tmp_path / "archive")
    monkeypatch.setattr(sys, "argv", ["explorer.py", "--archive", str(tmp_path / "archive")])
    explorer = AppTest.from_file(EXPLORER, default_timeout=30).run()
    archive.record_attempt(attempt("run2", 2, variant=9, verdict=passed(9.0)))
    explorer.run()
    assert {metric.label: metric.value for metric in explorer.metric}["Kernels"] == "5"


# --- the server


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    port = free_port()
    start = [sys.executable, "-P", "-m", "app.launch", str(folder), "--port", str(port)]
    environment = {**os.environ, "HOME": str(folder.parent)}
    server = subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(url)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)


def wait_until_up(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the explorer did not start within 30 s")


def test_it_listens_on_the_loopback_address_only(address: str) -> None:
    port = int(address.rsplit(":", 1)[1])
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].rsplit(":", 1)[1], 16) == port
    ]
    assert listening == [f"0100007F:{port:04X}"]


def test_flags_leave_nothing_to_config_files() -> None:
    line = command(Path("archive"), 8600)
    assert "--server.address=127.0.0.1" in line
    assert "--browser.gatherUsageStats=false" in line
    assert line[-2:] == ["--archive", str(Path("archive").resolve())]


# --- a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("Debian's chromium is not installed; `apt-get install chromium` brings it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=str(CHROMIUM),
            args=CHROMIUM_FLAGS,
            viewport={"width": 1280, "height": 900},
        )
        yield context
        context.close()


def open_page(browser: Any, url: str, text: str) -> Any:
    page = browser.new_page()
    page.goto(url)
    page.get_by_text(text).first.wait_for(timeout=30_000)
    page.locator("[data-testid=stStatusWidget]").wait_for(state="hidden", timeout=30_000)
    return page


def test_click_through_from_the_table_to_a_kernel_and_its_parent(address: str, browser: Any) -> None:
    page = open_page(browser, f"{address}/kernels?q=variant+1&by=words", "1 of 4 kernels")
    table = page.get_by_test_id("stDataFrame").first
    table.click(position={"x": 260, "y": 52})  # the cell with the problem's name
    page.wait_for_url(re.compile("/kernel\\?id="), timeout=15_000)
    assert CHILD.id in page.url
    page.get_by_text("Over torch.compile").wait_for()
    page.get_by_role("tab", name="Lineage").click()
    page.wait_for_url(re.compile("tab=Lineage"))
    page.locator("svg a").filter(has_text=show.short(PARENT.id)).click(timeout=15_000)
    page.wait_for_url(re.compile(PARENT.id), timeout=15_000)
    page.close()


def test_a_run_opens_from_the_live_table(address: str, browser: Any) -> None:
    page = open_page(browser, f"{address}/runs", "2 runs")
    page.get_by_test_id("stDataFrame").first.click(position={"x": 60, "y": 52})
    page.wait_for_url(re.compile("/run\\?id=run"), timeout=15_000)
    page.get_by_text("Calls to language models").or_(page.get_by_text("Attempts")).first.wait_for()
    page.close()


def test_a_view_can_be_sent_as_its_url(address: str, browser: Any) -> None:
    from playwright.sync_api import expect

    page = open_page(browser, f"{address}/kernels", "4 of 4 kernels")
    page.get_by_placeholder("fused layernorm gelu").fill("variant 7")
    page.get_by_placeholder("fused layernorm gelu").press("Enter")
    page.get_by_text("words", exact=True).click()
    page.get_by_text("1 of 4 kernels").wait_for(timeout=15_000)
    page.wait_for_url(re.compile("q=variant.*by=words|by=words.*q=variant"))
    again = open_page(browser, page.url, "1 of 4 kernels")
    expect(again.get_by_placeholder("fused layernorm gelu")).to_have_value("variant 7", timeout=15_000)
    page.close()
    again.close()


def test_hostile_text_shows_as_text_and_no_other_host_is_asked(address: str, browser: Any) -> None:
    requests: list[str] = []
    for path, text in (("", "Latest kernels"), (f"kernel?id={HOSTILE.id}", "by scripted"), ("runs", "2 runs")):
        page = browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.goto(f"{address}/{path}")
        page.get_by_text(text).first.wait_for(timeout=30_000)
        assert page.evaluate("window.hacked") is None
        if path.startswith("kernel"):
            assert page.get_by_role("heading", name=HOSTILE_NAME, exact=True).count() == 1
            assert page.get_by_text(HOSTILE_IDEA, exact=True).count() == 1
        page.close()
    assert not [url for url in requests if url.startswith("http") and not url.startswith(address)]


def test_a_narrow_screen_does_not_scroll_sideways(address: str, browser: Any) -> None:
    for path, text in (("", "Latest kernels"), ("kernels", "of 4 kernels"), (f"kernel?id={CHILD.id}", "Speed-up")):
        page = open_page(browser, f"{address}/{path}", text)
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.close()
