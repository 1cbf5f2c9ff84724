"""How long a C++ candidate takes from source to verdict: build cache cold, workers warm, baselines cached.

    .venv/bin/python tests/bench/verdict_time.py [--candidates 9] [examples/swiglu.py ...]

Each candidate is the offline writer's kernel with another comment, so that nothing of it is in the build cache.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

from rag_kernels.eval.judge import open_judge
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import Candidate, Passed
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEFAULT = [EXAMPLES / f"{name}.py" for name in ("softmax_scale", "rotary_embedding", "swiglu")]
STAGES = ("build", "load", "check", "time")


def main() -> None:
    """Print one row a problem and the median over all candidates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", type=Path, default=DEFAULT)
    parser.add_argument("--candidates", type=int, default=9)
    asked = parser.parse_args()
    print(f"{'problem':24} {'eager ms':>9} " + " ".join(f"{s:>6}" for s in STAGES) + f" {'total s':>8}")
    totals, builds = [], []
    with open_judge("cpu") as judge:
        for path in asked.problems:
            problem = functionalize(load_problem(path), workers=judge.workers)
            brief = Brief("bench", problem, judge.device, (), (), "", 1, 1)
            first = OfflineWriter().propose(brief)[0].candidate
            list(judge.judge(problem, [first]))  # warms the workers, and measures the baselines once
            rows = []
            for number in range(asked.candidates):
                include = '#include "rag_kernel.h"'
                unique = f"// {time.time_ns()} {number}\n{include}"
                candidate: Candidate = replace(first, source=first.source.replace(include, unique, 1))
                started = time.perf_counter()
                ((_, judged),) = judge.judge(problem, [candidate])
                total = time.perf_counter() - started
                assert isinstance(judged.verdict, Passed), judged.verdict
                rows.append((total, judged.stage_s, judged.verdict.measurement.eager_us))
            stages = " ".join(f"{statistics.median(r[1][s] for r in rows):6.2f}" for s in STAGES)
            eager_ms = statistics.median(r[2] for r in rows) / 1e3
            total = statistics.median(r[0] for r in rows)
            print(f"{path.stem:24} {eager_ms:9.2f} {stages} {total:8.2f}", flush=True)
            totals += [r[0] for r in rows]
            builds += [r[1]["build"] for r in rows]
    total, build = statistics.median(totals), statistics.median(builds)
    print(f"median of {len(totals)}: {total:.2f} s, of that build {build:.2f} s")


if __name__ == "__main__":
    main()
