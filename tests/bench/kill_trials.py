"""Runs that are killed at a random moment and resumed, against one that was not: `python tests/bench/kill_trials.py`.

The archive, the writer and the loop are the real ones, in processes that get SIGKILL; the model is a program and the
judge decides by the candidate's id, so that an unbroken run has one outcome (see tests/killed_run.py). Prints a
Markdown table: where the kills fell, and whether candidates, recorded replies, and what was asked for in vain came out
the same. In the last table the model repeats itself, fails, and forgets the code.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from killed_run import HERE, losses, outcome

from rag_kernels.archive.store import open_archive
from rag_kernels.run.journal import read_journal

SHAPES = (("6", "1"), ("1", "6"), ("6", "1", "careless"))  # places, rounds: replies at once, or one after the other


def finish(folder: Path, seconds: float, shape: Sequence[str], *, kill_after_s: float | None = None) -> float:
    """Run or resume to the end, or to the kill; returns how long that took."""
    folder.mkdir(exist_ok=True)
    started = time.monotonic()
    command = [sys.executable, str(HERE / "killed_run.py"), str(folder), str(seconds), *shape]
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


def trial(kills: int, seconds: float, shape: Sequence[str], draw: random.Random) -> None:
    """Print the table of one shape of run."""
    found = Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        whole_s = finish(whole, seconds, shape)
        (judged, replies), lost = outcome(whole), losses(whole)
        for number in itertools.count():
            if found["", "runs"] == kills:
                break
            folder = Path(temporary) / str(number)
            took_s = finish(folder, seconds, shape, kill_after_s=draw.uniform(0.05, whole_s))
            where = stage(folder)
            if where == "after its end":  # it was faster than the first one: no kill
                whole_s = min(whole_s, took_s)
                continue
            found["", "runs"] += 1
            finish(folder, seconds, shape)
            same, paid = outcome(folder)
            found[where, "runs"] += 1
            found[where, "same candidates"] += same == judged
            found[where, "same replies, each paid for once"] += paid == replies
            found[where, "same losses, each once"] += losses(folder) == lost
    columns = ("runs", "same candidates", "same replies, each paid for once", "same losses, each once")
    careless = ", a careless model" * (len(shape) > 2)
    print(
        f"{shape[0]} places, {shape[1]} rounds{careless}: {len(judged)} candidates, {sum(replies.values())} replies, "
        f"{lost['lost']} drafts lost, {whole_s:.1f} s unbroken.\n\n"
        f"| killed | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
    )
    del found["", "runs"]
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
    for number, shape in enumerate(SHAPES):
        trial((asked.kills + number) // len(SHAPES), asked.seconds, shape, draw)


if __name__ == "__main__":
    main()
