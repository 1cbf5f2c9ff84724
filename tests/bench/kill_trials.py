"""Runs that are killed at a random moment and resumed, against one that was not: `python tests/bench/kill_trials.py`.

The archive, the writer and the loop are the real ones, in processes that get SIGKILL; the model is a program and the
judge decides by the candidate's id, so that an unbroken run has one outcome (see tests/killed_run.py). Prints a
Markdown table: where the kills fell, and whether candidates and recorded replies came out the same.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from killed_run import HERE, outcome

from archive.store import open_archive
from rag_kernels.journal import read_journal

SHAPES = ((6, 1), (1, 6))  # places and rounds: replies at once, and one after the other


def finish(folder: Path, seconds: float, places: int, rounds: int, *, kill_after_s: float | None = None) -> float:
    """Run or resume to the end, or to the kill; returns how long that took."""
    folder.mkdir(exist_ok=True)
    started = time.monotonic()
    asked = (str(folder), str(seconds), str(places), str(rounds))
    command = [sys.executable, str(HERE / "killed_run.py"), *asked]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        code = process.wait(kill_after_s or 600)
        assert code == 0, f"the run in {folder} ended with code {code}"
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return time.monotonic() - started


def stage(folder: Path) -> str:
    """What a run was doing when it was killed, from what it left on disk."""
    archive = open_archive(folder / "archive")
    run = next(iter(archive.runs()), None)
    told = read_journal(archive, run.id) if run else []
    if run is None or not told:
        return "before the first round"
    if run.status == "finished":
        return "after its end"
    return f"round {told[-1].brief.round}, {'waiting for replies' if told[-1].drafts is None else 'judging'}"


def trial(kills: int, seconds: float, places: int, rounds: int, draw: random.Random) -> None:
    """Print the table of one shape of run."""
    found = Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        whole_s = finish(whole, seconds, places, rounds)
        judged, replies = outcome(whole)
        for number in range(kills):
            folder = Path(temporary) / str(number)
            finish(folder, seconds, places, rounds, kill_after_s=draw.uniform(0.05, whole_s))
            where = stage(folder)
            finish(folder, seconds, places, rounds)
            same, paid = outcome(folder)
            found[where, "runs"] += 1
            found[where, "same candidates"] += same == judged
            found[where, "same replies, each paid for once"] += paid == replies
    columns = ("runs", "same candidates", "same replies, each paid for once")
    print(f"{places} places, {rounds} rounds: {len(judged)} candidates, {sum(replies.values())} replies, "
          f"{whole_s:.1f} s unbroken.\n\n| killed | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")  # fmt: skip
    for where in sorted({where for where, _ in found}):
        print(f"| {where} | {' | '.join(str(found[where, column]) for column in columns)} |")
    totals = (sum(n for (_, column), n in found.items() if column == wanted) for wanted in columns)
    print(f"| **all** | {' | '.join(map(str, totals))} |\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a reply, on average")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    for (places, rounds), kills in zip(SHAPES, (asked.kills - asked.kills // 2, asked.kills // 2), strict=True):
        trial(kills, asked.seconds, places, rounds, draw)


if __name__ == "__main__":
    main()
