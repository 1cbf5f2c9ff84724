"""Takes kernels through every format of `rag-kernels export`, and each through its peer's own loader.

    rag-kernels export KERNEL --as module --out KERNEL.py                # anywhere, of each kernel
    python tests/bench/exported_packages.py write FOLDER KERNEL.py...    # and all that follows where its device is
    python tests/bench/exported_packages.py judge FOLDER
    python tests/bench/exported_packages.py check FOLDER [--jobs N]
    python tests/bench/exported_packages.py ask FOLDER [--jobs N]
    python tests/bench/exported_call.py > call.txt
    python tests/bench/exported_page.py FOLDER call.txt                  # prints a page of docs/measured

`write` writes each kernel in all formats, `judge` races it on the judge's clock. `check` builds all at once and prints
for every kernel and format whether its numbers are those of the problem's own module, and its time over the judge's of
the same day, on a clock like the judge's: medians of bursts with cold caches behind a delay, each call with inputs of
its own, after calls of eager, formats in turn. `ask` lets the peers' own evaluators judge their packages. A peer that
is not installed is said. SOL_EXECBENCH, KERNELBENCH and GPU_MODE name folders with those projects' sources.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from exported_clocks import medians_us
from exported_peers import BURST, EVALUATORS, FORMS, Call, Case, call_of, close, places_of


def write(folder: Path, packages: Sequence[Path]) -> None:
    """Write the kernels of these packages in every format that takes them, and what `check` needs to call them."""
    with ThreadPoolExecutor(len(packages)) as pool:
        list(pool.map(lambda package: write_one(folder, package), packages))


def write_one(folder: Path, package: Path) -> None:
    from rag_kernels.eval.errors import RagKernelsError
    from rag_kernels.export.evidence import of_backwards, of_package
    from rag_kernels.export.forms.module_file import compiled_of
    from rag_kernels.export.packages import PACKAGES, write_package

    _, attempt = of_package(package)
    backward = of_backwards(package, attempt).get(attempt.candidate.id)
    place = folder / attempt.candidate.id
    place.mkdir(parents=True)
    shutil.copy(package, place / "kernel.py")
    for form in FORMS:
        (place / form).mkdir()
        try:
            pulled = backward if PACKAGES[form].with_gradients else None
            write_package(attempt, form, PACKAGES[form].place(place / form, "made"), backward=pulled)
        except RagKernelsError as error:
            (place / form / "refused").write_text(str(error))
    made = compiled_of(attempt)
    arguments = [(a.role, a.path) for a in made.served.arguments]
    told = {"arguments": arguments, "name": attempt.problem.problem.name, "backend": made.backend}
    (place / "call.json").write_text(json.dumps(told))
    print(place, *(p.name for p in sorted(place.iterdir())), flush=True)


def judge(folder: Path) -> None:
    """Race every kernel on the judge's clock, and keep its time."""
    from baseline_clock import Judge

    from rag_kernels.export.evidence import of_package

    attempts = {place: of_package(place / "kernel.py")[1] for place in places_of(folder)}
    judging = Judge(next(iter(attempts.values())).candidate.backend, [])
    with ThreadPoolExecutor(len(attempts)) as pool:
        list(pool.map(lambda attempt: judging.judge._builder.whole(attempt.candidate), attempts.values()))
    for place, attempt in attempts.items():
        times = judging.race(attempt.problem, attempt.candidate)
        (place / "judged.json").write_text(json.dumps(times))
        print(f"{attempt.problem.problem.name}: {times['candidate'] * 1e3:.1f} us by the judge", flush=True)


def loaded(case: Case, forms: Sequence[str]) -> tuple[dict[str, Call], dict[str, str]]:
    """Load one kernel in these formats and compare; return the calls, and what is told of each format."""
    import torch

    calls: dict[str, Call] = {}
    told: dict[str, str] = {}
    with torch.no_grad():
        wanted = case.model(*case.inputs[0])
        for form in forms:
            refused = case.place / form / "refused"
            if refused.exists():
                told[form] = f"refused: {refused.read_text().strip()}"
                continue
            try:
                call, said = call_of(form, case)
                wrong = close(call(0), wanted)
                calls[form], told[form] = call, f"{wrong or 'right'}; {said}".removesuffix("; ")
            except Exception as error:  # whatever a peer raises
                told[form] = f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}"
    return calls, told


def check(place: Path, forms: Sequence[str], *, timed: bool) -> list[dict[str, Any]]:
    """Load one kernel in these formats and compare; time them once somebody says so on standard input."""
    import torch

    os.environ.setdefault("FIB_CACHE_PATH", str(place / "fib"))
    case = Case(place, burst=BURST if timed else 1)
    calls, told = loaded(case, forms)
    compiled = case.file.COMPILED
    sizes = compiled.served.sizes_made(case.values[0])
    calls["bare kernel"] = lambda i: compiled.run(case.values[i], sizes)
    times = {}
    if timed:
        print("ready", flush=True)
        sys.stdin.readline()
        with torch.no_grad():
            times = medians_us(calls, case)
    judged = place / "judged.json"
    device = torch.cuda.get_device_name() if case.device == "cuda" else "CPU"
    kernel = {"problem": case.told["name"], "kernel": place.name, "device": device}
    kernel["judged_us"] = json.loads(judged.read_text())["candidate"] * 1e3 if judged.exists() else None
    return [
        kernel | {"form": name, "us": times.get(name), "told": told.get(name, "")} for name in ["bare kernel", *forms]
    ]


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    share = f"{row['us'] / row['judged_us']:6.3f}" if row["us"] and row["judged_us"] else ""
    return f"  {row['form']:17} {row['us'] or 0:9.1f} us {share:6}  {row['told']}"


def run_one(place: Path, form: str, *more: str) -> str:
    """Load one kernel in one format, in a process of its own, and keep what it says."""
    command = [sys.executable, __file__, "one", str(place), "--forms", form, *more]
    quick = {**os.environ, "MAX_JOBS": "2"}
    done = subprocess.run(command, env=quick, capture_output=True, text=True, check=False)
    (place / form / "build.log").write_text(done.stdout + done.stderr)
    return done.stdout.strip()


def check_all(folder: Path, jobs: int, forms: Sequence[str]) -> None:
    """Build everything at once, load it, and time one kernel after another."""
    places = places_of(folder)
    began = time.perf_counter()
    slow_first = sorted(forms, key=lambda form: form not in EVALUATORS)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda one: run_one(*one, "--untimed"), [(p, form) for form in slow_first for p in places]))
    print(f"built in {time.perf_counter() - began:.0f} s", flush=True)
    command = [sys.executable, __file__, "one", "--forms", *forms, "--"]
    children = [
        subprocess.Popen([*command, str(p)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for p in places
    ]
    for child in children:
        assert child.stdout is not None
        while (said := child.stdout.readline()) not in ("ready\n", ""):
            print(said, end="")
    for child in children:
        print(child.communicate("go\n")[0], end="", flush=True)


def ask(folder: Path, jobs: int) -> None:
    """Let the evaluators whose sources are at hand judge their packages."""
    asked = [
        (place, form)
        for form, (_, name) in EVALUATORS.items()
        if name in os.environ
        for place in places_of(folder)
        if not (place / form / "refused").exists()
    ]
    with ThreadPoolExecutor(jobs) as pool, (folder / "said.jsonl").open("a") as file:
        for (place, form), said in zip(asked, pool.map(lambda one: run_one(*one, "--ask"), asked), strict=True):
            last = said.splitlines()[-1] if said else (place / form / "build.log").read_text()[-300:]
            print(place.name, form, last, flush=True)
            file.write(f"{json.dumps({'kernel': place.name, 'form': form, 'said': last})}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    asked = {name: commands.add_parser(name) for name in ("write", "judge", "check", "ask", "one")}
    for name, command in asked.items():
        command.add_argument("folder" if name != "one" else "place", type=Path)
    asked["write"].add_argument("packages", type=Path, nargs="+")
    for name in ("check", "ask"):
        asked[name].add_argument("--jobs", type=int, default=2)
    for name in ("check", "one"):
        asked[name].add_argument("--forms", nargs="+", default=FORMS)
    asked["one"].add_argument("--untimed", action="store_true")
    asked["one"].add_argument("--ask", action="store_true")
    given = parser.parse_args()
    match given.command:
        case "write":
            write(given.folder, given.packages)
        case "judge":
            judge(given.folder)
        case "check":
            check_all(given.folder.resolve(), given.jobs, given.forms)
        case "ask":
            ask(given.folder.resolve(), given.jobs)
        case "one":
            one(given.place.resolve(), given.forms, timed=not given.untimed, asking=given.ask)


def one(place: Path, forms: Sequence[str], *, timed: bool, asking: bool) -> None:
    """Check one kernel, or let its evaluators judge it."""
    if asking:
        for form in forms:
            print(EVALUATORS[form][0](place / form, Case(place, burst=1)))
        return
    rows = check(place, forms, timed=timed)
    told = f"{rows[0]['judged_us']:.1f} us" if rows[0]["judged_us"] else "unknown"
    print("{problem} {kernel} on {device}".format(**rows[0]), f"the judge's time: {told}", sep="; ")
    print("\n".join(map(line, rows)), flush=True)
    if timed:
        with (place.parent / "rows.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)


if __name__ == "__main__":
    main()
