"""How quickly the explorer answers over a large archive, in a real browser, and while an archive grows.

    python tests/bench/app_speed.py --kernels 30000 --minutes 6

Fills an archive as `archive_scale.py` does (`--keep FOLDER` leaves it there and uses it again), serves it as
`rag-kernels app` does, and drives chromium with Playwright: from the click, or the address, to the moment at which the
answer stands on the page. Then a job writes ten attempts a second, or as many as it can, into another archive
that starts with `--grown-from` kernels, while a reader goes from page to page; any error that a page shows, and any
browser error, counts. Prints Markdown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import factories as f
import psutil
from archive_scale import fill
from support.browser import CHROMIUM, CHROMIUM_FLAGS, free_port, served, wait_until_up

from rag_kernels.archive.store import FileArchive

MADE = f.problem("relu", 0.0, (8, 8), name="problem_0")
KERNEL = f.candidate(MADE, variant=28).id
ERRORS = "[data-testid=stException], [data-testid=stAlertContentError]"
WALK = (  # pages that the reader goes through while the archive grows, and what each shows
    ("", "Latest kernels"),
    ("kernels", "kernels."),
    ("kernels?q=tanh&by=words", "kernels."),
    ("kernels?q=fused+tanh", "kernels."),
    (f"kernel?id={KERNEL}", "Over torch.compile"),
    (f"kernel?id={KERNEL}&tab=Lineage", "stands beneath it"),
    ("problems", "problems."),
    (f"problem?id={MADE.problem.id}", "What it computes"),
    ("runs", "runs."),
    ("run?id=growing", "Attempts"),
    ("leaderboard", "Who is ahead"),
    ("retrieval", "Did it pay?"),
)


LOADS = (
    ("the first page", "", "Latest kernels"),
    ("a kernel's page", f"kernel?id={KERNEL}", "Over torch.compile"),
    ("its lineage", f"kernel?id={KERNEL}&tab=Lineage", "stands beneath it"),
)


@dataclass(slots=True)
class Walked:
    views: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=6.0, help="of the trial with a growing archive; 0: none")
    parser.add_argument("--rate", type=float, default=10.0, help="attempts a second that the job writes")
    parser.add_argument("--grown-from", type=int, default=1000, help="kernels at the start of the trial")
    parser.add_argument("--keep", type=Path, help="a folder for the archive, used again when it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = options.keep or Path(scratch) / "filled"
        if not source.exists():
            fill(FileArchive(source), options.kernels)
        with empty_page(Path(scratch)) as url, chromium() as browser:
            requests, megabytes = first_load(browser, url, "Hello")
            print(f"An empty page of Streamlit, as it serves itself: {megabytes:.2f} MB, {requests} requests.\n")
        with served(source) as url, chromium() as browser:
            for name, path, text in LOADS:
                requests, megabytes = first_load(browser, f"{url}/{path}", text)
                print(f"First load of {name}: {megabytes:.2f} MB over the wire, {requests} requests.\n", flush=True)
            print("| what | goal | median | slowest |\n|---|---|---|---|")
            for name, goal, seconds in answers(browser, url, options.repeats):
                print(f"| {name} | {goal} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s |", flush=True)
            print(f"| memory of the server | 600 MB | {resident_mb(url):.0f} MB | |\n", flush=True)
        if not options.minutes:
            return
        growing = Path(scratch) / "growing"
        fill(FileArchive(growing), options.grown_from)
        with served(growing) as url, chromium() as browser:
            trial(browser, url, growing, 60 * options.minutes, options.rate)


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def answers(browser: Any, url: str, repeats: int) -> Iterator[tuple[str, str, list[float]]]:
    """Name, goal, and the seconds of each repeat."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    yield "first page, server just started", "", [timed(lambda: go(page, url, "Latest kernels"))]
    yield "first page", "2 s", [timed(lambda: go(page, url, "Latest kernels")) for _ in range(repeats)]
    filters, words, meanings, back = [], [], [], []
    for number in range(repeats):
        settle(page, f"{url}/kernels", "kernels.")
        total = caption(page)
        option = open_filter(page)
        filters.append(timed(lambda option=option, total=total: (option.click(), changed(page, total))))  # type: ignore[misc]
        settle(page, f"{url}/kernels?by=words", "kernels.")
        words.append(timed(lambda number=number: ask(page, f"variant = {number + 11}")))  # type: ignore[misc]
        settle(page, f"{url}/kernels", "kernels.")
        meanings.append(timed(lambda number=number: ask(page, f"fused tanh {number}")))  # type: ignore[misc]
    yield "filter", "0.5 s", filters
    yield "search by words", "0.5 s", words
    yield "search by meaning, the first", "0.5 s", meanings[:1]
    yield "search by meaning", "0.5 s", meanings[1:]
    address = f"{url}/kernel?id={KERNEL}"
    for _ in range(repeats):
        settle(page, f"{url}/problem?id={MADE.problem.id}", "What it computes")
        table = page.locator(".rk tbody tr").first
        opened = lambda table=table: (table.locator("td").last.click(), shown(page, "Over torch.compile"))  # noqa: E731
        back.append(timed(opened))
    yield "kernel page, by a click", "1 s", back
    yield (
        "kernel page, by its address",
        "1 s",
        [timed(lambda: go(page, address, "Over torch.compile")) for _ in range(repeats)],
    )
    page.close()


def first_load(browser: Any, url: str, text: str) -> tuple[int, float]:
    """Return how many requests, and MB as they were sent, a page takes where nothing is in the browser's cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, sizes = context.new_page(), []
    session = context.new_cdp_session(page)
    session.on("Network.loadingFinished", lambda done: sizes.append(done["encodedDataLength"]))
    session.send("Network.enable")
    settle(page, url, text)
    context.close()
    return len(sizes), sum(sizes) / 1e6


@contextmanager
def empty_page(folder: Path) -> Iterator[str]:
    """Serve a page of one word as `streamlit run` does."""
    script = folder / "empty.py"
    script.write_text('import streamlit as st\n\nst.write("Hello")\n')
    port = free_port()
    flags = [f"--server.port={port}", "--server.headless=true", "--browser.gatherUsageStats=false"]
    server = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", str(script), "--server.address=127.0.0.1", *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_up(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def open_filter(page: Any) -> Any:
    """Open the filter of families and return the choice to click; the box may still be moving, so click until it is."""
    page.get_by_text("Filters").click()
    option = page.get_by_role("option", name="activation", exact=True)
    for _ in range(10):
        page.get_by_role("combobox", name="Family").click()
        page.wait_for_timeout(1500)
        if option.is_visible():
            return option
    raise LookupError("the list of families does not open")


def timed(act: Callable[[], Any]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def go(page: Any, url: str, text: str) -> None:
    page.goto(url, wait_until="commit")
    shown(page, text)


def settle(page: Any, url: str, text: str) -> None:
    """Open a page and let its charts be drawn: who reads it is not that quick."""
    go(page, url, text)
    page.wait_for_timeout(2500)


def shown(page: Any, text: str) -> None:
    """Wait until a text stands on the page and nothing is under way.

    A locator of Playwright's looks again after 20, 50, 100, 100 and then each 500 ms, which would be most of the time.
    """
    seen = "text => document.body?.innerText.includes(text) && !document.querySelector('[data-testid=stStatusWidget]')"
    page.wait_for_function(seen, arg=text, polling=20, timeout=60_000)


def caption(page: Any) -> str:
    return str(page.get_by_text("kernels.").first.inner_text())


def changed(page: Any, before: str) -> None:
    """Wait until the line that counts what was found says something else."""
    seen = """before => [...document.querySelectorAll('[data-testid=stCaptionContainer]')].some(
        one => /of [\\d,]+ kernels\\./.test(one.innerText) && one.innerText.trim() !== before.trim())"""
    page.wait_for_function(seen, arg=before, polling=20, timeout=60_000)


def ask(page: Any, text: str) -> None:
    before, box = caption(page), page.get_by_placeholder("fused layernorm gelu")
    box.fill(text)
    box.press("Enter")
    changed(page, before)


def resident_mb(url: str) -> float:
    port = url.rsplit(":", 1)[1]
    for process in psutil.process_iter(["cmdline"]):
        if {"rag_kernels.app.launch", port} <= set(process.info["cmdline"] or ()):
            return float(process.memory_info().rss) / 1e6
    raise LookupError("the server is not among the processes")


def trial(browser: Any, url: str, archive: Path, seconds: float, rate: float) -> None:
    """Write at a steady rate, and walk through all pages meanwhile."""
    job = multiprocessing.get_context("spawn").Process(target=grow, args=(archive, seconds, rate, told_file(archive)))
    job.start()
    walked = Walked()
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.on("pageerror", lambda error: walked.errors.append(f"browser: {error}"))
    wait_for_run(archive)
    while job.is_alive():
        walk(page, url, walked)
    job.join()
    written = int(told_file(archive).read_text())
    print(
        f"While {written} attempts were written in {seconds:.0f} s ({written / seconds:.1f} a second, "
        f"{FileArchive(archive).stats()['kernels']} kernels at the end): "
        f"{walked.views} page views, {len(walked.errors)} errors, median {statistics.median(walked.seconds):.2f} s, "
        f"slowest {max(walked.seconds):.2f} s, memory at most {walked.peak_mb:.0f} MB; "
        f"{os.cpu_count()} cores."
    )
    print("\n".join(walked.errors[:20]))


def walk(page: Any, url: str, walked: Walked) -> None:
    """Once through all pages."""
    for path, text in WALK:
        try:
            walked.seconds.append(timed(lambda path=path, text=text: go(page, f"{url}/{path}", text)))  # type: ignore[misc]
        except Exception as error:
            walked.errors.append(f"{path}: {str(error).splitlines()[0]}")
        walked.errors += [f"{path}: {found}" for found in page.locator(ERRORS).all_inner_texts()]
        walked.views += 1
        walked.peak_mb = max(walked.peak_mb, resident_mb(url))


def told_file(archive: Path) -> Path:
    return archive.with_name("written")


def wait_for_run(archive: Path) -> None:
    while not told_file(archive).exists():
        time.sleep(0.1)


def grow(root: Path, seconds: float, rate: float, told: Path) -> None:
    """A growth job as far as the archive sees it: an attempt every 1/rate seconds, one in four fails."""
    archive = FileArchive(root)
    archive.start_run(f.run("growing"))
    told.write_text("0")
    started, number = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        number += 1
        verdict = f.wrong() if number % 4 == 0 else f.passed(1 + number % 50 / 10)
        archive.record_attempt(f.attempt("growing", number, MADE, variant=10_000_000 + number, verdict=verdict))
        told.write_text(str(number))
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
    archive.finish_run("growing", "finished")


if __name__ == "__main__":
    main()
