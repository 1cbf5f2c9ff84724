"""The explorer in a real browser, served as `rag-kernels app` serves it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from explorer_archive import CHILD, HOSTILE, HOSTILE_IDEA, HOSTILE_NAME, PARENT, fill
from factories import attempt, problem, wrong
from support.browser import CHROMIUM, CHROMIUM_FLAGS, served

from rag_kernels.app.values import short
from rag_kernels.archive.store import FileArchive

STRANGE = problem("tanh", name=HOSTILE_NAME).problem.id
PAGES = {  # the path -> a text that is there when the page is drawn
    "": "Latest kernels",
    "kernels": "4 of 4 kernels",
    "search?find=relu": "Search all kernels, with filters",
    f"kernel?id={HOSTILE.id}": "by scripted",
    f"kernel?id={CHILD.id}&tab=Timings": "50 interleaved pairs",
    "problems": "3 problems",
    f"problem?id={STRANGE}": "Unavoidable traffic",
    "runs": "2 runs",
    "run?id=run2": "Budget",
    "leaderboard": "Who is ahead",
    "retrieval": "Did it pay?",
    "retrieval?id=run1&attempt=4": "What the writer of",
    f"compare?a={PARENT.id}&b={HOSTILE.id}": "What changed from A to B",
    "compare?a=run1&b=run2": "a line the best confirmed so far",
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> FileArchive:
    return fill(tmp_path_factory.mktemp("explorer") / "archive")


@pytest.fixture(scope="module")
def address(archive: FileArchive) -> Iterator[str]:
    with served(archive.root) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("Debian's chromium is not installed; `apt-get install chromium` brings it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def window(browser: Any) -> Any:
    """A window whose pages share a cache."""
    return browser.new_context()


@pytest.fixture
def page(window: Any) -> Any:
    """The window's one page, of 1280 by 900 pixels: another one would compile all scripts anew, for a second."""
    page = window.pages[0] if window.pages else window.new_page()
    page.set_viewport_size({"width": 1280, "height": 900})
    if page.url != "about:blank":
        page.evaluate("sessionStorage.clear()")  # what was ticked
    return page


def visit(page: Any, url: str, text: str) -> None:
    page.goto(url)
    wait_for(page, text)


STANDS = """text => {
  const plain = words => words.replace(/\\s+/g, ' ').toLowerCase();
  const drawing = document.querySelector('[data-testid=stStatusWidget]');
  return plain(document.body.innerText).includes(plain(text)) && !drawing?.checkVisibility();
}"""


def wait_for(page: Any, text: str) -> None:
    """Wait until a text stands on the page and nothing is being drawn; locators would look each half second only."""
    page.wait_for_function(STANDS, arg=text, polling=50, timeout=30_000)


def test_it_listens_on_the_loopback_address_only(address: str) -> None:
    port = int(address.rsplit(":", 1)[1])
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].rsplit(":", 1)[1], 16) == port
    ]
    assert listening == [f"0100007F:{port:04X}"]


def test_settings_leave_nothing_to_config_files() -> None:
    from rag_kernels.app.launch import settings

    told = settings(8600)
    assert (told["server.address"], told["browser.gatherUsageStats"], told["server.port"]) == ("127.0.0.1", False, 8600)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "Latest kernels"),
        (f"/kernel?id={CHILD.id}", "Judge it again"),
        (f"/kernel?id={CHILD.id}&tab=Use+it", "Save"),
    ],
)
def test_a_first_load_is_under_a_megabyte_and_a_half(address: str, browser: Any, path: str, text: str) -> None:
    """Count bytes as they were sent to a browser that knows nothing yet, fonts included."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, sizes = context.new_page(), []
    session = context.new_cdp_session(page)
    session.on("Network.loadingFinished", lambda done: sizes.append(done["encodedDataLength"]))
    session.send("Network.enable")
    page.goto(address + path)
    wait_for(page, text)
    page.locator(".rk-code" if path else ".rk-chart").first.wait_for()
    page.wait_for_load_state("networkidle")
    assert 0.3e6 < sum(sizes) < 1.5e6
    context.close()


def test_a_source_is_coloured_numbered_and_copied_as_it_is(address: str, browser: Any) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{address}/kernel?id={CHILD.id}")
    wait_for(page, "Judge it again")
    code = page.locator(".rk-code").first
    plain = code.locator("pre").evaluate("node => getComputedStyle(node).color")
    assert code.locator("i.k").first.evaluate("node => getComputedStyle(node).color") != plain
    assert "counter(line)" in code.locator(".rk-line").first.evaluate(
        "node => getComputedStyle(node, '::before').content"
    )
    code.hover()
    code.get_by_role("button", name="Copy").click()
    code.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == CHILD.source.rstrip()
    context.close()


def test_click_through_from_the_overview_to_a_kernel_and_its_parent(address: str, page: Any) -> None:
    visit(page, address, "Latest kernels")
    page.locator(".rk tbody tr").last.get_by_text("confirmed").click()
    page.wait_for_url(re.compile("/kernel\\?id="), timeout=30_000)
    page.goto(f"{address}/kernel?id={CHILD.id}")
    page.get_by_text("Over torch.compile").wait_for()
    page.get_by_role("tab", name="Lineage").click()
    page.wait_for_url(re.compile("tab=Lineage"))
    page.locator(".rk-tree a").filter(has_text=short(PARENT.id)).click(timeout=30_000)
    page.wait_for_url(re.compile(PARENT.id), timeout=30_000)


@pytest.mark.parametrize(
    "path,text,opened",
    [
        ("runs", "2 runs", "/run\\?id=run"),
        ("problems", "3 problems", "/problem\\?id="),
        ("kernels", "4 of 4 kernels", "/kernel\\?id="),
    ],
)
def test_a_click_on_a_row_opens_it(address: str, page: Any, path: str, text: str, opened: str) -> None:
    visit(page, f"{address}/{path}", text)
    page.locator(".rk tbody tr").first.locator("td").last.click()
    page.wait_for_url(re.compile(opened), timeout=30_000)
    assert page.get_by_test_id("stException").count() == 0


def test_a_view_can_be_sent_as_its_url(address: str, page: Any, window: Any) -> None:
    from playwright.sync_api import expect

    visit(page, f"{address}/kernels?writer=scripted&by=words", "3 of 4 kernels")
    page.get_by_placeholder("fused layernorm gelu").fill("variant = 7")
    page.get_by_placeholder("fused layernorm gelu").press("Enter")
    page.get_by_text("1 of 4 kernels").wait_for(timeout=30_000)
    page.wait_for_url(re.compile("(?=.*q=variant)(?=.*by=words)(?=.*writer=scripted)"))
    again = window.new_page()
    visit(again, page.url, "1 of 4 kernels")
    expect(again.get_by_placeholder("fused layernorm gelu")).to_have_value("variant = 7", timeout=30_000)
    again.close()


def test_back_returns_to_the_list_that_was_left(address: str, page: Any) -> None:
    from playwright.sync_api import expect

    visit(page, f"{address}/kernels?writer=scripted&by=words", "3 of 4 kernels")
    page.get_by_placeholder("fused layernorm gelu").fill("variant = 7")
    page.get_by_placeholder("fused layernorm gelu").press("Enter")
    wait_for(page, "1 of 4 kernels")
    left = page.url
    page.locator(".rk td a").first.click()
    wait_for(page, "Over torch.compile")
    expect(page).to_have_title(re.compile(short(HOSTILE.id)))
    page.go_back()
    wait_for(page, "1 of 4 kernels")
    assert page.url == left
    expect(page).to_have_title("Kernels · rag-kernels")
    expect(page.get_by_placeholder("fused layernorm gelu")).to_have_value("variant = 7")


def test_a_link_opens_in_another_tab(address: str, page: Any, window: Any) -> None:
    visit(page, f"{address}/kernels", "4 of 4 kernels")
    with window.expect_page() as opened:
        page.locator(".rk td a", has_text="linear_relu").click(modifiers=["Control"])
    wait_for(opened.value, "Unavoidable traffic")
    assert page.url == f"{address}/kernels"
    opened.value.close()


def test_keys_search_move_open_and_compare(address: str, page: Any) -> None:
    visit(page, f"{address}/kernels", "4 of 4 kernels")
    page.locator(".rk tbody tr").nth(3).wait_for()
    for key in ("j", "j", "c", "j", "k", "k", "c"):
        page.keyboard.press(key)
    page.get_by_role("link", name=f"Compare {short(CHILD.id)} and {short(HOSTILE.id)}").wait_for()
    page.keyboard.press("c")
    wait_for(page, "What changed from A to B")
    page.go_back()
    wait_for(page, "4 of 4 kernels")
    page.locator(".rk tbody tr").nth(3).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"kernel.id={HOSTILE.id}"), timeout=30_000)
    wait_for(page, "Over torch.compile")  # the address changes before the list is gone
    page.go_back()
    wait_for(page, "4 of 4 kernels")
    page.locator(".rk tbody tr").nth(3).wait_for()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.dataset.row") == HOSTILE.id  # where the list was left
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"kernel.id={HOSTILE.id}"), timeout=30_000)
    page.keyboard.press("/")  # the page is not drawn yet: what is typed waits for its box
    page.keyboard.type("linear_relu")
    page.keyboard.press("Enter")
    wait_for(page, "Search all kernels, with filters")
    page.wait_for_url(re.compile("find=linear_relu$"))
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.matches('.rk tbody tr')")
    page.get_by_role("navigation", name="Breadcrumbs").get_by_role("link", name="Archive").click()
    wait_for(page, "Latest kernels")


def test_a_table_is_sorted_chosen_from_and_saved(address: str, page: Any) -> None:
    visit(page, f"{address}/kernels", "4 of 4 kernels")
    page.get_by_role("columnheader", name="vs eager").get_by_role("link").click()
    page.wait_for_url(re.compile("sort=-speedup_eager"))
    page.locator("summary", has_text="Columns").click()
    page.get_by_role("checkbox", name="idea").uncheck()
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV", exact=True).click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert len(lines) == 5 and "vs eager" in lines[0] and "idea" not in lines[0]
    with page.expect_download() as whole:
        page.get_by_role("button", name="CSV of all 4").click()
    assert len(Path(whole.value.path()).read_text().splitlines()) == 5
    page.evaluate("localStorage.clear()")


def test_a_problem_file_that_is_dropped_is_searched_for(address: str, page: Any, tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(problem("tanh").problem.source)
    visit(page, f"{address}/kernels", "4 of 4 kernels")
    page.get_by_text("Search by a problem file").click()
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_text("This very problem is in the archive").wait_for(timeout=30_000)
    page.get_by_text(re.compile("[1-4] of 4 kernels")).wait_for(timeout=30_000)


def test_every_page_is_dark_narrow_and_harmless(address: str, browser: Any) -> None:
    """At 390 pixels and in dark nothing sticks out, no archived text becomes markup, and no other host is asked."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page, requests = context.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    for path, text in PAGES.items():
        page.goto(f"{address}/{path}")
        wait_for(page, text)
        assert page.get_by_test_id("stException").count() == 0, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert page.evaluate("window.hacked") is None, path
        assert page.locator("[href*='evil.test'], [src*='evil.test'], img[src=x]").count() == 0, path
        colour = page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
        assert max(map(int, re.findall(r"\d+", colour)[:3])) < 64, (path, colour)
        if path == "kernels":  # the number that everybody came for needs no scrolling
            box = page.get_by_role("columnheader", name="speed-up").bounding_box()
            assert box["x"] + box["width"] <= 390
        if path == f"kernel?id={HOSTILE.id}":
            heading = page.get_by_role("heading", level=1).inner_text()
            assert heading.replace("\u2060", "") == HOSTILE_NAME
            assert page.get_by_text(HOSTILE_IDEA, exact=True).count() == 1
    context.close()
    assert not [url for url in requests if url.startswith("http") and not url.startswith(address)]


def test_an_empty_archive_says_what_to_do(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path / "none") as url:
        page = browser.new_page()
        visit(page, url, "Nothing archived yet")
        page.get_by_text("rag-kernels generate").first.wait_for(timeout=30_000)
        fill(tmp_path / "none")
        page.get_by_text("Latest kernels").wait_for(timeout=30_000)  # nobody reloaded
        page.close()


def test_the_first_screen_says_what_is_so_and_ticks(address: str, page: Any, archive: FileArchive) -> None:
    visit(page, address, "Running now")
    page.get_by_text(re.compile("4 kernels: 4 proven here")).wait_for()
    card = page.locator(".rk-now article").first
    card.get_by_text("attempt 1 passed").wait_for()
    assert card.locator("svg").count() == 1 and "rounds" in card.inner_text() and " ago" in card.inner_text()
    archive.record_attempt(attempt("run2", 3, variant=98, verdict=wrong()))
    card.get_by_text("attempt 3 wrong").wait_for(timeout=20_000)  # nobody clicked


def test_the_head_of_a_kernel_stays_and_its_problem_has_a_roof(address: str, page: Any) -> None:
    visit(page, f"{address}/kernel?id={CHILD.id}&tab=Verdict", "Checks that held")
    page.set_viewport_size({"width": 1280, "height": 320})
    page.locator("[data-testid=stMain]").evaluate("main => main.scrollTo(0, main.scrollHeight)")
    page.wait_for_timeout(300)
    box = page.locator(".rk-head").bounding_box()
    assert 0 <= box["y"] < 200 and "2.00×" in page.locator(".rk-head").inner_text()
    page.goto(f"{address}/problem?id={problem().problem.id}")
    page.locator(".rk-best a", has_text=short(CHILD.id)).wait_for(timeout=30_000)
    points = page.locator("svg[aria-label=Roofline] a")
    points.first.wait_for(state="attached", timeout=30_000)
    assert points.count() == 2  # one for each kernel


def test_a_run_grows_before_the_eyes(address: str, page: Any, archive: FileArchive) -> None:
    visit(page, f"{address}/run?id=run2", "Attempts")
    wait_for(page, "Budget")
    page.locator(".rk-table tbody tr").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    archive.record_attempt(attempt("run2", 2, variant=99, verdict=wrong()))
    page.get_by_text("Why attempts failed").wait_for(timeout=30_000)
    assert page.evaluate("document.activeElement.matches('.rk-table tbody tr')")  # the row stays under the hands
    page.set_viewport_size({"width": 390, "height": 500})
    page.keyboard.press("Enter")
    opened = page.get_by_role("heading", name=re.compile(r"Attempt \d"))
    opened.wait_for(timeout=30_000)
    page.wait_for_timeout(700)
    assert 0 <= opened.bounding_box()["y"] < 500  # no need to look for it
