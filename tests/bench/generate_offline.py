"""How long `rag-kernels generate` takes with the offline writer, everything included.

    python tests/bench/generate_offline.py KernelBench/level2/76_*.py ... [--dtype bfloat16] [--rounds 1 ...]

Each problem in a process of its own, with an empty cache (nothing built, no baseline measured, no device looked at)
and a new archive, as the first run of somebody who has just installed it. Prints a Markdown table; the speed-up is over
the better of eager and torch.compile. With --dtype the modules and their floating inputs are converted to that dtype.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from converted import converted

from rag_kernels.eval.machine.device import cpu_name

PROGRAM = "from rag_kernels import cli; cli.main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--cache", type=Path, help="one for all problems, so that none but the first is a first run")
    asked, more = parser.parse_known_args()
    print(f"Machine: {cpu_name()}.\n\n| problem | seconds | its set-up and baselines | candidates | speed-up |")
    print("|---|---:|---:|---:|---:|", flush=True)
    for problem in asked.problems:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            if asked.dtype:
                problem = converted(problem, asked.dtype, Path(folder))
            command = ["generate", str(problem), "--device", asked.device, "--archive", f"{folder}/a", "--json", *more]
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, *command],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"RAG_KERNELS_CACHE": str(asked.cache or f"{folder}/cache")},
            )
            seconds = time.perf_counter() - started
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        attempts = [row for row in rows if row.get("type") == "attempt"]
        prepare_s = sum(row["stage_s"].get("prepare", 0.0) for row in attempts)
        result = next((row for row in rows if row.get("type") == "result"), {})
        found = [result[name] for name in ("speedup_eager", "speedup_compile") if result.get(name)]
        shown = f"{min(found):.2f}" if found else done.stderr.strip()[-80:]
        print(f"| {problem.stem} | {seconds:.0f} | {prepare_s:.0f} | {len(attempts)} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
