"""Stand in for a model by a folder: prompts are written there as files, and replies are taken from files beside them.

    rag-kernels ablate problems/ --model "cmd:python tests/bench/reply_folder.py FOLDER" --drafts 1 ...

In: a prompt on standard input. Out: `FOLDER/NUMBER.prompt.md`, once for each text, and on standard output the reply
from `FOLDER/NUMBER.reply.md`. While that is not there, the program ends with code 3 and says so, so that one run of
the command writes all prompts that can be asked for by now; the same command goes on when replies lie beside them.
With `--wait SECONDS` it waits instead (give `--reply-seconds` as well): where several drafts are asked for together,
one that is answered ends the round, and those that are not are lost. Numbers are of the text, so that a prompt that
is asked again finds its reply. `INDEX.md` lists what is open. Replies may be written by hand, or by another program.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

POLL_S = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
    asked = parser.parse_args()
    prompt = sys.stdin.read()
    number = hashlib.sha256(prompt.encode()).hexdigest()[:12]
    asked.folder.mkdir(parents=True, exist_ok=True)
    written, reply = (asked.folder / f"{number}.{kind}.md" for kind in ("prompt", "reply"))
    if not written.is_file():
        _write(written, prompt)
    deadline = time.monotonic() + asked.wait
    while not reply.is_file() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    _write(asked.folder / "INDEX.md", _index(asked.folder))
    if not reply.is_file():
        print(f"No reply yet: write {reply}, and give the same command again.", file=sys.stderr)
        return 3
    sys.stdout.write(reply.read_text())
    return 0


def _index(folder: Path) -> str:
    """Return the prompts without a reply, and how many have one."""
    prompts = sorted(folder.glob("*.prompt.md"))
    open_ = [file for file in prompts if not file.with_name(file.name.replace(".prompt.", ".reply.")).is_file()]
    lines = [f"- [ ] {file.name}, {len(file.read_text())} characters" for file in open_]
    return "\n".join([f"{len(prompts) - len(open_)} of {len(prompts)} prompts have a reply.", "", *lines]) + "\n"


def _write(file: Path, text: str) -> None:
    """Write a file so that a reader sees it whole."""
    staged = file.with_name(f".{file.name}.{time.monotonic_ns()}")
    staged.write_text(text)
    staged.rename(file)


if __name__ == "__main__":
    sys.exit(main())
