"""What a first draft of the offline writer takes, for each problem of KernelBench: CPU time of this process alone.

    python tests/bench/draft_time.py path/to/KernelBench [--levels 1 2 3] [--device cuda] [--forms forms.pickle]

The folder is the one that holds level1, level2 and level3. A draft is what the writer makes before anything is built or
judged: the problem simplified, planned and printed by the starting parameters. It is made twice, and the second time
counts, so that imports and tables that are made once do not. CPU time and not wall time: a machine that others use
gives the same row. Prints a row for each problem above --above seconds (every one with --list), then one for each
level: drafts, the median, the slowest. With --round it is the whole first round, each choice of products that is
tried. With --forms the functional forms are kept in a file, as by
`offline_coverage.py`.
"""

from __future__ import annotations

import argparse
import pickle
import platform
import statistics
import time
from pathlib import Path

from offline_coverage import Forms, functionalized

from rag_kernels.eval.problem import find_problems
from rag_kernels.eval.records import Backend, FunctionalProblem
from rag_kernels.offline.compose import Plan, first_plans, write
from rag_kernels.offline.graph.rewrites import simplified
from rag_kernels.offline.tuning import starting_parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--forms", type=Path, default=None)
    parser.add_argument("--above", type=float, default=0.3, help="seconds of a draft that has a row of its own")
    parser.add_argument("--round", action="store_true", help="time all drafts of the first round")
    parser.add_argument("--list", action="store_true", help="print every problem")
    asked = parser.parse_args()
    forms: Forms = pickle.loads(asked.forms.read_bytes()) if asked.forms and asked.forms.exists() else {}
    for level in asked.levels:
        paths = find_problems([asked.folder / f"level{level}"])
        forms |= functionalized(f"level{level}", [p for p in paths if f"level{level}/{p.stem}" not in forms])
    if asked.forms:
        asked.forms.write_bytes(pickle.dumps(forms))
    taken: dict[str, list[float]] = {}
    print("| problem | operators | loop nests | lines | CPU time, s |", "|---|---:|---:|---:|---:|", sep="\n")
    for name, form in forms.items():
        level = name.split("/")[0]
        made = (
            drafted(form, asked.device, whole=asked.round)
            if form and level in {f"level{n}" for n in asked.levels}
            else None
        )
        if form is None or made is None:
            continue
        plan, seconds = made
        taken.setdefault(level, []).append(seconds)
        if asked.list or seconds >= asked.above:
            lines = len(plan.candidate.source.splitlines())
            print(f"| {name} | {len(form.nodes)} | {plan.regions} | {lines} | {seconds:.2f} |", flush=True)
    print("\n| level | drafts | median, s | slowest, s |", "|---|---:|---:|---:|", sep="\n")
    every = [seconds for times in taken.values() for seconds in times]
    for level, times in [*sorted(taken.items()), ("all", every)]:
        print(f"| {level} | {len(times)} | {statistics.median(times):.3f} | {max(times):.2f} |")
    what = "rounds" if asked.round else "drafts"
    print(f"\nFirst {what} for {asked.device}, Python {platform.python_version()}, {platform.machine()}.")


def drafted(form: FunctionalProblem, backend: Backend, *, whole: bool) -> tuple[Plan, float] | None:
    """Return the first draft and the CPU time that it took, or its round; None where nothing is drafted."""
    parameters = starting_parameters(backend, "sm_90" if backend == "cuda" else "")
    for _ in range(2):
        began = time.process_time()
        fp = simplified(form)[0]
        plan = next(iter([*first_plans(fp, parameters)]), None) if whole else write(fp, parameters)
        seconds = time.process_time() - began
    return (plan, seconds) if plan else None


if __name__ == "__main__":
    main()
