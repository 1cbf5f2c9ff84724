"""What the offline writer drafts in its first round for every KernelBench problem, without judging it.

    python tests/bench/offline_coverage.py path/to/KernelBench [--levels 1 2] [--only level1/50] [--forms forms.pickle]

The folder is the one that holds level1, level2 and level3. Prints one line a problem and backend that gets no
candidate, a Markdown table by level and backend (kernel tier, composed around library calls, nothing), and the
operators that stopped the fusion with the number of problems. Of several drafts the one that leaves least to the
library counts. With --forms the functional forms are kept in a file
and read from there the next time.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections import Counter
from pathlib import Path

from rag_kernels.eval.problem import find_problems, load_problem
from rag_kernels.eval.records import Backend, FunctionalProblem
from rag_kernels.ingest.functional.functionalize import functionalize_many, open_workers
from rag_kernels.offline.compose import first_plans
from rag_kernels.offline.tuning import starting_parameters

Forms = dict[str, FunctionalProblem | None]  # "level1/19_ReLU" -> its functional form
BACKENDS: tuple[Backend, ...] = ("cpu", "cuda")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="only problems whose path contains this")
    parser.add_argument("--forms", type=Path, default=None)
    parser.add_argument("--list", action="store_true", help="print every problem, not only those with nothing")
    options = parser.parse_args()
    forms: Forms = {}
    if options.forms and options.forms.exists():
        forms = pickle.loads(options.forms.read_bytes())
    for level in options.levels:
        paths = find_problems([options.folder / f"level{level}"])
        forms |= functionalized(f"level{level}", [p for p in paths if f"level{level}/{p.stem}" not in forms])
    if options.forms:
        options.forms.write_bytes(pickle.dumps(forms))
    wanted = {f"level{level}" for level in options.levels}
    chosen = {k: v for k, v in forms.items() if k.split("/")[0] in wanted and options.only in k}
    tables(chosen, everything=options.list)
    return 0


def functionalized(level: str, paths: list[Path]) -> Forms:
    found: Forms = {}
    with open_workers() as workers:
        problems = (load_problem(p) for p in paths)
        rows = functionalize_many(problems, workers=workers, deadline_s=300.0)
        for path, row in zip(paths, rows, strict=True):
            found[f"{level}/{path.stem}"] = row.functional
            if row.functional is None:
                print(f"{level}/{path.stem}: no functional form: {row.reason}", flush=True)
    return found


def tables(forms: Forms, *, everything: bool) -> None:
    tiers: Counter[tuple[str, Backend, str]] = Counter()
    stopped: Counter[str] = Counter()
    for name, form in forms.items():
        for backend in BACKENDS:
            tier, stops = drafted(form, backend)
            tiers[name.split("/")[0], backend, tier] += 1
            if backend == "cpu":
                stopped.update(set(stops))
            if everything or tier == "nothing":
                print(f"{name} {backend}: {tier}{' (' + ', '.join(stops) + ')' if stops else ''}", flush=True)
    print("\n| level | backend | kernel tier | composed | nothing |\n|---|---|---|---|---|")
    for level in sorted({key[0] for key in tiers}):
        for backend in BACKENDS:
            counts = (tiers[level, backend, tier] for tier in ("kernel", "composed", "nothing"))
            print(f"| {level} | {backend} | {' | '.join(map(str, counts))} |")
    print("\n| stopped by | problems |\n|---|---|")
    for reason, count in stopped.most_common():
        print(f"| {reason} | {count} |")


def drafted(form: FunctionalProblem | None, backend: Backend) -> tuple[str, tuple[str, ...]]:
    """The tier of the draft that leaves least to the library ("nothing" without one), and what stopped the fusion."""
    if form is None:
        return "nothing", ("no functional form",)
    if form.uses_random:
        return "nothing", ("random numbers",)
    plans = list(first_plans(form, starting_parameters(backend)))
    best = min(plans, key=lambda plan: len(plan.library), default=None)
    return (best.candidate.tier, best.stopped) if best else ("nothing", ("library calls alone",))


if __name__ == "__main__":
    sys.exit(main())
