"""The static site: every link leads somewhere, every page is small, and it works in a browser without scripts."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from explorer_archive import CHILD, HOSTILE, HOSTILE_NAME, PARENT, fill
from factories import attempt, passed, problem
from support.browser import CHROMIUM, CHROMIUM_FLAGS

from rag_kernels.app.site.markup import MOST_BYTES
from rag_kernels.app.site.write import SiteError, Written, write_site
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.store import open_archive
from rag_kernels.eval.records import Candidate

HUGE = Candidate("// <&> " + "a long line of a comment\n" * 20_000 + PARENT.source, "kernel", "cpu")


class Page(HTMLParser):
    """What a page links to, names, and holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.add(tag)
        self.links += [found[name] or "" for name in ("href", "src") if name in found]
        self.names |= {found["id"] or ""} if "id" in found else set()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> DuckArchive:
    folder = tmp_path_factory.mktemp("site") / "archive"
    store = fill(folder)
    store.record_attempt(attempt("run2", 2, problem(), candidate=HUGE, verdict=passed(1.5)))
    return DuckArchive(open_archive(str(folder)).database)


@pytest.fixture(scope="module")
def site(archive: DuckArchive, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    folder = tmp_path_factory.mktemp("written") / "site"
    return folder, write_site(archive, folder)


@pytest.fixture(scope="module")
def pages(site: tuple[Path, Written]) -> dict[Path, Page]:
    return {file: Page(file.read_text()) for file in site[0].rglob("*.html")}


def test_every_link_leads_to_something_in_the_site(site: tuple[Path, Written], pages: dict[Path, Page]) -> None:
    root, written = site
    assert written.pages == len(pages) == 1 + 1 + 1 + 3 + 5
    for file, page in pages.items():
        for link in page.links:
            address, _, name = link.partition("#")
            target = (file.parent / unquote(address)).resolve() if address else file
            assert target.is_file() and target.is_relative_to(root.resolve()), (file.name, link)
            assert not name or name in pages[target].names, (file.name, link)
    reached = {(f.parent / link).resolve() for f, page in pages.items() for link in page.links}
    assert {file.resolve() for file in root.rglob("*") if file.is_file()} <= reached  # nothing is out of reach


def test_pages_are_small_and_hold_no_script(site: tuple[Path, Written], pages: dict[Path, Page]) -> None:
    root, written = site
    sizes = [file.stat().st_size for file in pages]
    assert max(sizes) == written.largest_page_bytes < MOST_BYTES
    assert not {"script", "img", "iframe", "object"} & set().union(*(page.tags for page in pages.values()))
    huge = (root / "kernel" / f"{HUGE.id}.html").read_text()
    assert "more lines: " in huge and HUGE.source in (root / "files" / f"{HUGE.id[:10]}.cpp").read_text()


def test_a_kernel_has_its_difference_lineage_charts_and_files(site: tuple[Path, Written]) -> None:
    root, _ = site
    text = (root / "kernel" / f"{CHILD.id}.html").read_text()
    assert '<span class="rk-removed">-constexpr int variant = 0;</span>' in text
    assert f'<a href="../kernel/{PARENT.id}.html">' in text and text.count('<svg class="rk-chart"') >= 2
    assert "2.00×" in text and "ModelNew" in text
    assert "class ModelNew" in (root / "files" / f"{CHILD.id[:10]}_module.py").read_text()
    rows = list(csv.DictReader((root / "kernels.csv").open(newline="")))
    assert {row["id"] for row in rows} >= {CHILD.id, PARENT.id, HOSTILE.id, HUGE.id} and len(rows) == 5


def test_a_folder_of_something_else_is_left_alone_and_a_site_made_anew(archive: DuckArchive, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(SiteError, match="no site"):
        write_site(archive, tmp_path / "mine")
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "index.html").write_text("an older site")
    assert write_site(archive, tmp_path / "old").pages == 11
    with pytest.raises(SiteError, match="name a folder that can be written"):
        write_site(archive, tmp_path / "mine" / "thesis.txt" / "site")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("Debian's chromium is not installed; `apt-get install chromium` brings it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_it_works_without_scripts(site: tuple[Path, Written], browser: Any, width: int) -> None:
    root, _ = site
    context = browser.new_context(viewport={"width": width, "height": 844}, java_script_enabled=False)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((root / "index.html").as_uri())
    assert page.get_by_text("5 kernels: 5 proven here").count() == 1
    page.get_by_role("link", name="All problems").click()
    page.get_by_role("link", name=HOSTILE_NAME, exact=True).click()
    assert page.get_by_role("heading", level=1).inner_text() == HOSTILE_NAME
    page.locator(".rk-best a").first.click()
    assert page.locator("svg.rk-chart").count() >= 2 and page.locator(".rk-checks li").count() > 1
    for file in (root / "index.html", *root.glob("kernels-*.html"), *(root / "kernel").glob("*.html")):
        page.goto(file.as_uri())
        box = page.locator("body").bounding_box()
        main = page.locator("main").bounding_box()
        assert box["width"] <= width and main["width"] <= width, file.name
        assert page.locator("main").evaluate("e => document.documentElement.scrollWidth") <= width, file.name
    context.close()
    assert asked and not [url for url in asked if not url.startswith("file:")]
