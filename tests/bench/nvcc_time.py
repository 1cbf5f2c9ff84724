"""What nvcc takes for the offline writer's texts: those of an earlier tree beside those of this one.

    git worktree add --detach /tmp/before COMMIT
    python tests/bench/nvcc_time.py /tmp/before PROBLEM.py... [--dtypes float32 bfloat16] [--rounds 3] [--most 40]

Each tree writes its first draft of each problem, in a process of its own, as the problem has it and in the dtypes that
are named. Texts that are one kernel in both trees are compiled in turn, each by its own tree's headers and command,
for sm_90a unless another is named. What counts is the CPU time of the compiler and of all that it starts, so that
other programs cost little. Prints a row for each problem, slowest beside before first, and then medians. Runs no
kernel, and needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from converted import converted

THIS = Path(__file__).parents[2]
AS_IT_IS = "as it is"
SLOW = 1.2
# What a tree is asked for; both have these names.
WRITER = """
import sys
from pathlib import Path

from offline_coverage import functionalized

from rag_kernels.eval.build.compile import toolchain
from rag_kernels.offline.compose import first_plans
from rag_kernels.offline.graph.rewrites import simplified
from rag_kernels.offline.tuning import starting_parameters

if __name__ == "__main__":
    arch, out, *files = sys.argv[1:]
    for name, form in functionalized("it", [Path(file) for file in files]).items():
        start = starting_parameters("cuda", arch)
        plan = next(first_plans(simplified(form)[0], start), None) if form else None
        if plan and plan.candidate.tier == "kernel":
            (Path(out) / f"{name.partition('/')[2]}.cu").write_text(plan.candidate.source)
    (Path(out) / "command").write_text(toolchain(arch).command("cuda"))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("problems", type=Path, nargs="+")
    parser.add_argument("--dtypes", nargs="+", default=[AS_IT_IS], help=f"to which they are converted, or '{AS_IT_IS}'")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=1000, help="problems that are compiled, evenly of all")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = in_dtypes(asked.problems, asked.dtypes, folder)
        trees = [written(tree, files, asked.arch, folder / when) for tree, when in ((asked.before, "b"), (THIS, "n"))]
        both = sorted({f.name for f in trees[0].glob("*.cu")} & {f.name for f in trees[1].glob("*.cu")})
        both = both[:: -(-len(both) // asked.most)]
        rows = {one: compiled(one, trees, asked.rounds) for one in both}
        lines = {one: [len((tree / one).read_text().splitlines()) for tree in trees] for one in both}
    print(
        "| text | lines before | lines | CPU s before | CPU s | over before |",
        "|---|---:|---:|---:|---:|---:|",
        sep="\n",
    )
    for one, (before, now) in sorted(rows.items(), key=lambda row: -row[1][1] / row[1][0]):
        print(f"| {one[:-3]} | {lines[one][0]} | {lines[one][1]} | {before:.2f} | {now:.2f} | {now / before:.2f} |")
    ratios = [now / before for before, now in rows.values()]
    medians = [statistics.median(times) for times in zip(*rows.values(), strict=True)]
    print(
        f"\n{len(rows)} texts for {asked.arch}, {asked.rounds} times each: median {medians[0]:.2f} s before, "
        f"{medians[1]:.2f} now; ratios {statistics.median(ratios):.2f} at the median, "
        f"{statistics.geometric_mean(ratios):.2f} on average (geometric), "
        f"{sum(ratio > SLOW for ratio in ratios)} above {SLOW}."
    )


def in_dtypes(problems: list[Path], dtypes: list[str], folder: Path) -> list[Path]:
    """Return the problems' files, converted ones named by their dtypes."""
    files = []
    for dtype in dtypes:
        for problem in problems:
            if dtype == AS_IT_IS:
                files.append(problem.resolve())
            else:
                made = converted(problem, dtype, folder)
                files.append(made.rename(folder / f"{problem.stem}_{dtype}.py"))
    return files


def written(tree: Path, files: list[Path], arch: str, out: Path) -> Path:
    """Return the folder with the first drafts by that tree and its compiler's command."""
    out.mkdir()
    tree = tree.resolve()
    env = os.environ | {"PYTHONPATH": f"{tree}:{tree / 'tests/bench'}"}
    subprocess.run([sys.executable, "-c", WRITER, arch, str(out), *map(str, files)], check=True, cwd=tree, env=env)
    return out


def compiled(name: str, trees: list[Path], rounds: int) -> tuple[float, float]:
    """Return the median CPU seconds of both texts, compiled in turn."""
    times = [[cpu_seconds(tree, tree / name) for tree in trees] for _ in range(rounds)]
    before, now = (statistics.median(column) for column in zip(*times, strict=True))
    return before, now


def cpu_seconds(tree: Path, text: Path) -> float:
    """Return what the compiler and its children take."""
    command = (tree / "command").read_text().replace("$in", str(text)).replace("$out", str(text.with_suffix(".so")))
    started = subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.DEVNULL, cwd=tree)
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{text} does not compile.")
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
