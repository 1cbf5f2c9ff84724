"""Write a static site: `python -P -m rag_kernels.app.site ARCHIVE FOLDER [--json]`.

Comes in: the folder of an archive, or a server's address, and where the site goes. Goes out: the site; how far it is
on stderr, and what it came to on stdout.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rag_kernels.app.site.write import write_site
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.store import open_archive
from rag_kernels.cli.shared.common import emit
from rag_kernels.eval.errors import RagKernelsError

TELL_S = 0.5


def main(place: str, folder: Path, *, as_json: bool) -> int:
    """Write the site and say what it came to; return the exit code."""
    started = told = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal told
        now = time.monotonic()
        if sys.stderr.isatty() and (now - told > TELL_S or done == of):
            told = now
            left = (of - done) * (now - started) / done
            end = "\n" if done == of else ""
            print(f"\rwriting pages: {done:,} of {of:,}, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)

    try:
        written = write_site(DuckArchive(open_archive(place).database), folder, tell)
    except RagKernelsError as error:
        print(f"Error: {error}", file=sys.stderr)
        if as_json:
            emit("error", {"error": str(error)})
        return 2
    if as_json:
        emit("site", asdict(written))
    else:
        print(
            f"{written.pages:,} pages on {written.kernels:,} kernels and {written.problems:,} problems in {folder}, "
            f"{written.bytes / 1e6:.1f} MB; start at {folder / 'index.html'}"
        )
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="rag_kernels.app.site", description="Write an archive as a static site.")
    parser.add_argument("archive")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sys.exit(main(options.archive, options.folder, as_json=options.json))
