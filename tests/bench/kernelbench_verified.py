"""Lets KernelBench-Verified's own code judge and time exported kernels.

    python tests/bench/kernelbench_verified.py draw FOLDER rows.jsonl ... [--count 10] [--seed 1] [--max-mib 2048]
    KERNELBENCH_VERIFIED=CHECKOUT python tests/bench/kernelbench_verified.py judge FOLDER [--jobs 8] [--compile]
    python tests/bench/kernelbench_verified.py table FOLDER

CHECKOUT is one of facebookresearch/kernel_bench_verified. `draw` takes kernels at random from rows of
`offline_kernelbench --precision tf32` (verified, at full size, of problems that the checkout has word for word when
it is named then too) and writes each as `export --as kernelbench` does. `judge` builds all at once by their
`build_compile_cache`, then calls their `eval_kernel_against_ref` with their hidden tests and trials for one after the
other, and times the problem's own module with TF32 allowed (`set_float32_matmul_precision("high")`, as their README
has it) by their `time_execution_with_cuda_event`, with --compile under `torch.compile` too. What their module imports
to talk to language models is replaced by empty modules.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from offline_tables import Row, geomean, verified
from three_precisions import class_of, read, suspect

CORRECT_TRIALS, TIMED_TRIALS = 5, 100  # what their scripts/eval_from_generations.py sets
CLIENTS = "anthropic datasets dotenv google google.genai openai together tqdm transformers".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("draw", "judge", "table", "build", "one"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-mib", type=int, default=2048, help="of a problem's tensors: theirs are made on the CPU")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="time torch.compile too, which they do not")
    parser.add_argument("--seconds", type=float, default=120, help="for one kernel")
    asked = parser.parse_args()
    if asked.step == "draw":
        draw(asked)
    elif asked.step == "judge":
        judge(asked)
    elif asked.step == "build":
        build(asked.folder)
    elif asked.step == "one":
        one(asked.folder, compiled=asked.compile)
    print("\n".join(table(asked.folder)) if asked.step in ("judge", "table") else "", end="")


def draw(asked: argparse.Namespace) -> None:
    """Write a folder for each kernel that was drawn: its file, and what our judge says of it."""
    from rag_kernels.eval.errors import ProblemError
    from rag_kernels.export.evidence import unpacked
    from rag_kernels.export.packages import write_package
    from rag_kernels.ingest.functional.functionalize import SCALED, footprint

    rows = [r for r in read(asked.rows) if class_of(r) == "tf32" and verified(r) and not suspect(r)]
    rows = [r for r in rows if SCALED not in r["notice"]]
    random.Random(asked.seed).shuffle(rows)
    taken = 0
    for row in rows:
        attempt = unpacked(row["evidence"])
        if taken == asked.count or footprint(attempt.problem) > asked.max_mib << 20 or not same(row, attempt):
            continue
        place = asked.folder / f"{row['level']}_{row['name']}"
        place.mkdir(parents=True)
        try:
            write_package(attempt, "kernelbench", place / "kernel.py")
        except ProblemError as refused:  # a module that updates buffers
            print(f"{place.name} is no file of this kind: {str(refused)[:100]}")
            place.rmdir()
            continue
        kept = {key: row[key] for key in ("level", "name", "eager", "compile", "speedup", "candidate_us", "eager_us")}
        (place / "row.json").write_text(json.dumps(kept))
        taken += 1
        print(place.name)


def same(row: Row, attempt: Any) -> bool:
    """Return whether the checkout's problem is ours but for comments."""
    checkout = os.environ.get("KERNELBENCH_VERIFIED")
    if checkout is None:
        return True
    file = Path(checkout) / "KernelBench" / row["level"] / f"{row['name']}.py"
    return file.is_file() and bare(file.read_text()) == bare(attempt.problem.problem.source)


def bare(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body.pop(0)
    return ast.dump(tree)


def judge(asked: argparse.Namespace) -> None:
    places = sorted(p.parent for p in asked.folder.glob("*/kernel.py"))
    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(lambda place: child("build", place, 300), places))
    for place in places:
        why = child("one", place, asked.seconds, *["--compile"] * asked.compile)
        if not (place / "verified.json").is_file():
            (place / "verified.json").write_text(json.dumps({"error": why[-300:]}))


def child(step: str, place: Path, seconds: float, *flags: str) -> str:
    """Run a step for one kernel in a process of its own; what it said."""
    command = [sys.executable, str(Path(__file__).resolve()), step, str(place), *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"not done after {seconds:g} s"
    (place / f"{step}.log").write_text(done.stdout + done.stderr)
    return done.stderr


class Absent(types.ModuleType):
    """Stands for a module that has anything, and does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__, self.__path__ = ModuleSpec(name, None), []

    def __getattr__(self, name: str) -> Any:
        return MagicMock()


def theirs() -> Any:
    """Import their `src.eval`, without the clients of language models."""
    sys.modules.update({name: Absent(name) for name in CLIENTS})
    sys.path.insert(0, os.environ["KERNELBENCH_VERIFIED"])
    return importlib.import_module("src.eval")


def build(place: Path) -> None:
    print(theirs().build_compile_cache((place / "kernel.py").read_text(), build_dir=str(place / "built")))


def one(place: Path, *, compiled: bool) -> None:
    """Judge and time one kernel by their code, and keep what came of it."""
    import torch

    evaluator, row = theirs(), json.loads((place / "row.json").read_text())
    level, number = int(row["level"].removeprefix("level")), int(row["name"].partition("_")[0])
    problem = Path(evaluator.KERNEL_BENCH_PATH) / row["level"] / f"{row['name']}.py"
    result = evaluator.eval_kernel_against_ref(
        problem.read_text(),
        (place / "kernel.py").read_text(),
        num_correct_trials=CORRECT_TRIALS,
        num_perf_trials=TIMED_TRIALS,
        measure_performance=True,
        build_dir=str(place / "built"),
        device=torch.device("cuda:0"),
        hidden_test_path=evaluator.get_hidden_test_path(level, number),
    )
    found: Row = {"compiled": result.compiled, "correct": result.correctness, "ours_ms": result.runtime}
    found["metadata"] = {key: str(value)[:200] for key, value in result.metadata.items()}
    torch.set_float32_matmul_precision("high")
    times = baselines(evaluator, problem.read_text(), compiled=compiled)
    found |= {f"{name}_ms": value for name, value in times.items()}
    (place / "verified.json").write_text(json.dumps(found))


def baselines(evaluator: Any, source: str, *, compiled: bool) -> dict[str, float]:
    """Mean milliseconds of the problem's own module, eager or compiled too, as their code times a kernel."""
    import torch

    model_class, init_inputs, get_inputs = evaluator.load_original_model_and_inputs(source, {})
    device = torch.device("cuda:0")
    with torch.no_grad():
        evaluator.set_seed(42)
        model = model_class(*init_inputs()).to(device)
        inputs = [evaluator._process_input_tensor(x, device) for x in get_inputs()]
        found = {}
        for name, call in {"eager": model, **({"compile": torch.compile(model)} if compiled else {})}.items():
            times = evaluator.time_execution_with_cuda_event(
                call, *inputs, num_trials=TIMED_TRIALS, verbose=False, device=device
            )
            found[name] = float(evaluator.get_timing_stats(times)["mean"])
    return found


HEAD = [
    "| problem | correct by their tests | ours, ms | eager TF32, ms | compile TF32, ms | eager over ours | "
    "our judge: eager over ours | our judge: the better of both |",
    "|---|---|---:|---:|---:|---:|---:|---:|",
]


def table(folder: Path) -> list[str]:
    lines, over_eager, count = list(HEAD), [], 0
    for place in sorted(p.parent for p in folder.glob("*/verified.json")):
        row, found = (json.loads((place / name).read_text()) for name in ("row.json", "verified.json"))
        count += 1
        name = f"{row['level']}/{row['name']}"
        if not found.get("correct") or found["ours_ms"] <= 0:
            why = found.get("error") or found.get("metadata")
            lines.append(f"| {name} | no: {' '.join(str(why).split())[-200:].replace('|', '/')} | | | | | | |")
            continue
        ours, eager = found["ours_ms"], found["eager_ms"]
        compiled = f"{found['compile_ms']:.3f}" if "compile_ms" in found else ""
        over_eager.append(eager / ours)
        ratios = (eager / ours, row["eager"], row["speedup"])
        cells = [name, "yes", f"{ours:.3f}", f"{eager:.3f}", compiled, *(f"{ratio:.2f}" for ratio in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    fast = sum(s > 1 for s in over_eager) / max(1, count)
    told = f"over eager fast_1 {fast:.2f}, geometric mean {geomean(over_eager):.2f}."
    return [*lines, "", f"{count} kernels, {len(over_eager)} correct; {told}"]


if __name__ == "__main__":
    main()
