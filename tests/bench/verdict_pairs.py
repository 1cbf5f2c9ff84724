"""How long verdicts take of two versions of the judge, in turns: each judges a candidate, then the other.

    git worktree add /elsewhere 59e82ac
    .venv/bin/python tests/bench/verdict_pairs.py /elsewhere [examples/swiglu.py ...] [--candidates 5] [--confirm]

Each version is a process of its own that runs its tree's own files, with a cache of its own under the folder that is
named by --caches. A candidate is its offline writer's kernel with another comment, so that nothing of it is in the
build cache; workers are warm, and baselines cached. CPU seconds are those of all its processes, of builds in a box but
for what the box hides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief

HERE = Path(__file__).resolve().parents[2]
DEFAULT = ("softmax_scale", "rotary_embedding", "swiglu")
NOW = (
    "rag_kernels.eval.judge",
    "rag_kernels.eval.problem",
    "rag_kernels.ingest.functional.functionalize",
    "rag_kernels.ingest.functional.sizes",
)
BEFORE = ("eval.judge", "eval.problem", "ingest.functionalize", "ingest.sizes")
INCLUDE = '#include "rag_kernel.h"'


def main() -> None:
    """Print a row a problem and version, and what each second of the first version is in the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("problems", nargs="*", type=Path)
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--confirm", action="store_true")
    parser.add_argument("--caches", type=Path, default=Path(gettempdir()) / "verdict_pairs")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.other)
        return
    problems = asked.problems or [HERE / "examples" / f"{name}.py" for name in DEFAULT]
    sides = {"other": side(asked.other.resolve(), asked.caches / "other"), "this": side(HERE, asked.caches / "this")}
    wholes: dict[str, list[dict[str, float]]] = defaultdict(list)
    for path in problems:
        for process in sides.values():
            ask(process, {"problem": str(path.resolve())})
        rows: dict[str, list[dict[str, float]]] = defaultdict(list)
        for number in range(asked.candidates):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                rows[name].append(ask(sides[name], {"confirm": asked.confirm}))
        for name, found in rows.items():
            print(f"{path.stem:24} {name:6} {told(found)}", flush=True)
            wholes[name] += found
    for what in ("seconds", "cpu_s"):
        pairs = zip(wholes["this"], wholes["other"], strict=True)
        ratio = statistics.median(a[what] / b[what] for a, b in pairs)
        medians = {name: statistics.median(row[what] for row in found) for name, found in wholes.items()}
        print(f"{what}: {medians['other']:.2f} other, {medians['this']:.2f} this, {ratio:.2f} of pairs")
    for process in sides.values():
        process.stdin.close()
        process.wait()


def told(found: list[dict[str, float]]) -> str:
    """Return medians of all figures."""
    return "  ".join(f"{name} {statistics.median(row.get(name, 0.0) for row in found):.2f}" for name in found[0])


def side(tree: Path, cache: Path) -> Any:
    """Start a process that judges by a tree's own files."""
    env = os.environ | {"PYTHONPATH": str(tree), "RAG_KERNELS_CACHE": str(cache), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-P", __file__, str(tree), "--serve"]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree)


def ask(process: Any, request: dict[str, Any]) -> dict[str, float]:
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    answer: dict[str, float] = json.loads(process.stdout.readline())
    return answer


def serve(tree: Path) -> None:
    """Judge by what is importable here: in older trees the folders were packages of their own."""
    judges, problems, forms, sizes = imported(NOW) or imported(BEFORE) or (None,) * 4
    assert judges and str(tree) in str(judges.__file__), f"No judge of {tree} can be imported."
    options: dict[str, Any] = {"at_other_sizes": sizes.at_other_sizes}

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with judges.open_judge("cpu", **options) as judge:
        for line in sys.stdin:
            asked = json.loads(line)
            answer: dict[str, float] = {}
            if "problem" in asked:
                loaded = problems.load_problem(Path(asked["problem"]))
                problem = forms.functionalize(loaded, workers=judge.workers)
                brief = Brief("bench", problem, judge.device, (), (), "", 1, 1)
                first = OfflineWriter().propose(brief)[0].candidate
                list(judge.judge(problem, [first]))  # warms the workers, and measures the baselines once
            else:
                source = first.source.replace(INCLUDE, f"// {time.time_ns()}\n{INCLUDE}", 1)
                candidate = replace(first, source=source)
                begun, before = time.perf_counter(), used_s()
                if asked["confirm"]:
                    judged = judge.confirm(problem, candidate)
                else:
                    ((_, judged),) = judge.judge(problem, [candidate])
                answer = {"seconds": time.perf_counter() - begun, "cpu_s": used_s() - before, **judged.stage_s}
                assert type(judged.verdict).__name__ == "Passed", judged.verdict
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def imported(names: Sequence[str]) -> Sequence[Any] | None:
    """Return these modules; None where there are none of these names."""
    with suppress(ImportError):
        return [import_module(name) for name in names]
    return None


def used_s() -> float:
    """Return CPU seconds of this process and of all that it has started."""
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, float] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(pid)
            used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, queue = 0.0, [os.getpid()]
    while queue:
        total += used.get(pid := queue.pop(), 0.0)
        queue += children[pid]
    return total


if __name__ == "__main__":
    main()
