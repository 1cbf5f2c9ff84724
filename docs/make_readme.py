"""Makes README's sample output and the explorer's pictures anew: `make readme`, or `make_readme.py --archive FOLDER`.

Runs the command that README shows, in a new archive, puts what it printed under it, serves that archive, and takes the
pictures in a browser (Debian's chromium, by playwright). Nothing in either is typed by hand; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
COMMAND = re.compile(r"(## One example\n\n    (rag-kernels generate [^\n]+)\n\n```\n)(.*?)(\n```\n)", re.DOTALL)
ATTEMPT = re.compile(r"\s*\d+  \w")
SHOWN = 2  # attempts before the dots; the last one, the confirmation, stands behind them
WIDTH, HEIGHT = 1280, 1250


def run(command: str, archive: Path) -> str:
    """Run README's command in another archive and return what it prints, with the archive that README names."""
    words = command.split()
    words[words.index("--archive") + 1] = str(archive)
    program = Path(sys.executable).with_name("rag-kernels")
    done = subprocess.run(
        [program, *words[1:]],
        cwd=README.parent,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def sample(printed: str) -> str:
    """Return the output with the attempts in the middle left out."""
    lines = printed.strip().splitlines()
    attempts = [number for number, line in enumerate(lines) if ATTEMPT.match(line)]
    if len(attempts) <= SHOWN + 1:
        return "\n".join(lines)
    first, last = attempts[SHOWN - 1], attempts[-1]
    return "\n".join([*lines[: first + 1], "...", *lines[last:]])


def write_sample(archive: Path) -> None:
    """Put the output of README's command under it."""
    text = README.read_text()
    found = COMMAND.search(text)
    if found is None:
        raise SystemExit("README has no `rag-kernels generate` under `## One example`.")
    printed = sample(run(found[2], archive))
    README.write_text(text[: found.start(3)] + printed + text[found.end(3) :])


def take_pictures(archive: Path) -> None:
    """Take the pictures of the explorer over an archive."""
    sys.path.insert(0, str(DOCS.parent / "tests"))
    from playwright.sync_api import sync_playwright
    from support.browser import CHROMIUM, CHROMIUM_FLAGS, served

    from rag_kernels.app.snapshot import Snapshot
    from rag_kernels.archive.duck import DuckArchive
    from rag_kernels.archive.store import open_archive

    best = Snapshot(DuckArchive(open_archive(str(archive)).database)).wins(count=1)
    if best.empty:
        raise SystemExit(f"{archive} holds no confirmed win to show.")
    kernel_id = best["id"].iloc[0]
    views = {
        "explorer-kernel.png": (f"kernel?id={kernel_id}&tab=Timings", "Every pair", "dark"),
        "explorer-leaderboard.png": ("leaderboard", "Who is ahead", "light"),
    }
    with served(archive) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        for name, (path, text, scheme) in views.items():
            window = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            page = window.new_page()
            page.goto(f"{url}/{path}")
            page.get_by_text(text).first.wait_for(timeout=60_000)
            page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')", timeout=60_000)
            page.wait_for_timeout(2000)  # charts are drawn
            page.screenshot(path=str(DOCS / name))
            window.close()
        browser.close()


def main() -> None:
    """Make both, or the pictures alone of an archive that is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archive", type=Path, help="take the pictures of this archive, and leave the sample alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="readme-") as scratch:
        archive = options.archive or Path(scratch) / "archive"
        if options.archive is None:
            write_sample(archive)
        take_pictures(archive)


if __name__ == "__main__":
    main()
