"""Ctrl-C and a polite kill, in turn, at moments after the first verdict of a `generate` on the CPU: how does it end?

    python tests/bench/ctrl_c.py --runs 60 --first-s 0.3 --step-s 0.014

Prints Markdown. The code should be 130; 0 and 1 say that it had finished before, a signal's name that Python was
closing down by then. 70 is a fault of ours.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cli_home import BRIEF, QUICK_PROGRAM, RELU, RIGHT, SLOW, environment, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--first-s", type=float, default=0.3)
    parser.add_argument("--step-s", type=float, default=0.014)
    options = parser.parse_args()
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "relu.py").write_text(RELU.problem.source)
        for number in range(options.runs):
            ends[end_of(home, number, options.first_s + number * options.step_s)] += 1
    last_s = options.first_s + (options.runs - 1) * options.step_s
    print(f"Interrupted {options.first_s:g} to {last_s:.2f} s after the first verdict:\n\n| code | runs |\n|---|---:|")
    for code, runs in sorted(ends.items()):
        print(f"| {code} | {runs} |")


def end_of(home: Path, number: int, after_s: float) -> str:
    """The code of one run."""
    name = model(home / f"m{number}", RIGHT, SLOW)
    process = subprocess.Popen(
        [*QUICK_PROGRAM, "generate", "relu.py", "--model", name, *BRIEF, "--archive", f"a{number}", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
        env=environment(home),
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(after_s)
    which = (signal.SIGINT, signal.SIGTERM)[number % 2]
    if process.poll() is None:
        os.killpg(process.pid, which)
    _, said = process.communicate(timeout=120)
    code = process.returncode
    if code not in (0, 1, 130) and code > 0:
        print(f"{after_s:.2f} s, {which.name}: {said[-400:]}", file=sys.stderr)
    return str(code) if code >= 0 else signal.Signals(-code).name


if __name__ == "__main__":
    main()
