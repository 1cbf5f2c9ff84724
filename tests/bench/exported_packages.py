"""Takes kernels through every format of `rag-kernels export`, and each through its peer's own loader.

    python tests/bench/exported_packages.py write ARCHIVE FOLDER KERNEL...   # anywhere
    python tests/bench/exported_packages.py check FOLDER [--jobs N]         # where the kernels' device is
    python tests/bench/exported_call.py > call.txt                          # there too
    python tests/bench/exported_packages.py page FOLDER/rows.jsonl call.txt > docs/measured/exports.md

`check` builds all at once and lets each peer's evaluator judge its package; then it prints for every kernel and format
whether its numbers are those of the problem's own module, and its time over that of the bare kernel on the same clock
(medians of calls with cold caches, in turn). A peer that is not installed is said. SOL_EXECBENCH, KERNELBENCH and
GPU_MODE name folders with those projects' sources.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZipFile

FORMS = (
    "module standalone torch-op wheel hf-kernels flashinfer-bench sol-execbench gpu-mode kernelbench"
).split()  # fmt: skip
CALLS = 40
COLD_BYTES = 1 << 30


def write(archive: str, folder: Path, kernels: Sequence[str]) -> None:
    """Write the kernels in every format that takes them, and what `check` needs to call them."""
    from rag_kernels.archive.store import open_archive
    from rag_kernels.eval.errors import RagKernelsError
    from rag_kernels.export.evidence import evidence
    from rag_kernels.export.module_file import compiled_of
    from rag_kernels.export.packages import PACKAGES, write_package

    store = open_archive(archive)
    for kernel in kernels:
        attempt = evidence(store, kernel)
        place = folder / attempt.candidate.id
        place.mkdir(parents=True)
        for form in FORMS:
            out = place / form / (f"made{PACKAGES[form].suffix}" if PACKAGES[form].suffix == ".py" else "made")
            out.parent.mkdir()
            try:
                write_package(attempt, form, out.parent if form == "wheel" else out)
            except RagKernelsError as error:
                (out.parent / "refused").write_text(str(error))
        made = compiled_of(attempt)
        arguments = [(a.role, a.path) for a in made.served.arguments]
        told = {"arguments": arguments, "name": attempt.problem.problem.name, "backend": made.backend}
        (place / "call.json").write_text(
            json.dumps(told | {"judged_us": attempt.judged.verdict.measurement.candidate_us})
        )  # type: ignore[union-attr]
        print(place, *(p.name for p in sorted(place.iterdir())))


class Case:
    """One kernel with its problem's module, inputs, and the arguments of the functional call."""

    def __init__(self, place: Path) -> None:
        import torch
        from torch.utils import _pytree as pytree

        self.place, self.told = place, json.loads((place / "call.json").read_text())
        self.device = self.told["backend"]
        self.file = module_of(place / "standalone" / "made.py", f"problem_{place.name}")
        torch.manual_seed(0)
        self.init = self.file.get_init_inputs()
        self.model = self.file.Model(*self.init).to(self.device)
        self.inputs = pytree.tree_map(
            lambda v: v.to(self.device) if isinstance(v, torch.Tensor) else v, self.file.get_inputs()
        )
        leaves = pytree.tree_leaves(tuple(self.inputs))
        self.values = [
            leaves[int(p)] if r in ("input", "scalar") else at(self.model, p) for r, p in self.told["arguments"]
        ]

    def module(self, file: Any) -> Any:
        made = file.ModelNew(*self.init).to(self.device)
        made.load_state_dict(self.model.state_dict(), strict=False)
        return lambda: made(*self.inputs)


def at(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = module[int(part)] if isinstance(module, list | tuple) else getattr(module, part)
    return module


def module_of(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package_of(folder: Path) -> Any:
    """Import the one package of a folder, also where one of its name was imported from another."""
    [init] = folder.glob("*/__init__.py")
    name = init.parent.name
    for known in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[known]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
    return getattr(module, module.__all__[0])


def call_of(form: str, case: Case) -> tuple[Callable[[], Any], str]:
    """Return a call of the kernel in a format, by its peer's loader, and what else the peer says."""
    place = case.place / form
    return globals()[f"by_{form.replace('-', '_')}"](place, case)


def by_module(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    call = case.module(module_of(place / "made.py", f"module_{case.place.name}"))
    return call, ""


def by_standalone(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    return case.module(case.file), ""


def by_torch_op(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    call = package_of(place / "made")
    return (lambda: call(*case.values)), ""


def by_wheel(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    [wheel] = place.glob("*.whl")
    target = place / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    if not target.exists():
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-400:])
            ZipFile(wheel).extractall(target)
    call = package_of(target)
    return (lambda: call(*case.values)), "pip" if list(target.glob("*.dist-info/INSTALLER")) else "unzipped"


def by_hf_kernels(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    from kernels import get_local_kernel

    loaded = get_local_kernel(place / "made")
    call = getattr(loaded, loaded.__all__[0])
    return (lambda: call(*case.values)), "get_local_kernel"


def by_flashinfer_bench(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    os.environ.setdefault("TVM_FFI_CUDA_ARCH_LIST", "9.0a")
    from flashinfer_bench import TraceSet, apply, enable_apply
    from flashinfer_bench.apply import ApplyConfig

    data = TraceSet.from_path(str(place / "made"))
    [name] = data.definitions
    enable_apply(str(place / "made"), ApplyConfig(on_miss_policy="use_def_best"))
    return (lambda: apply(name, args=tuple(case.values))), "apply"


def by_sol_execbench(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    import torch
    from torch.utils import cpp_extension

    target = place / "staged"
    target.mkdir(exist_ok=True)
    solution = json.loads((place / "made" / "solution.json").read_text())
    for source in solution["sources"]:
        (target / source["path"]).write_text(source["content"])
    options = solution["spec"]["compile_options"]
    built = cpp_extension.load(  # as its build_ext.py does
        f"sol_{case.place.name}",
        [str(p) for p in target.iterdir() if p.suffix in (".cu", ".cpp")],
        extra_cflags=options["cflags"],
        extra_cuda_cflags=["-gencode=arch=compute_90a,code=sm_90a", *options["cuda_cflags"]],
        extra_ldflags=options["ld_flags"],
        extra_include_paths=[str(target)],
        build_directory=str(target),
    )
    outputs = [torch.empty_like(v) for v in tensors(case.model(*case.inputs))]

    def call() -> Any:
        built.run(*case.values, *outputs)
        return tuple(outputs)

    return call, sol_driver(place)


def sol_driver(place: Path) -> str:
    """Run SOL-ExecBench's own driver, where its sources are at hand."""
    if "SOL_EXECBENCH" not in os.environ:
        return "its build, without its driver"
    code = f"""
import sys, json, subprocess
from pathlib import Path
sys.path.insert(0, {os.environ["SOL_EXECBENCH"]!r})
from sol_execbench.core import BenchmarkConfig, Definition, Solution, Workload
from sol_execbench.driver.problem_packager import ProblemPackager
place = Path({str(place / "made")!r})
read = lambda kind, name: kind(**json.loads((place / name).read_text()))
packager = ProblemPackager(read(Definition, "definition.json"), [read(Workload, "workload.jsonl")],
                           read(Solution, "solution.json"), BenchmarkConfig(), place.parent / "driven", True)
for step in (lambda: packager.compile()[0], packager.execute):
    command = [sys.executable, *step()[1:]]
    done = subprocess.run(command, cwd=place.parent / "driven", capture_output=True, text=True)
    print(done.stderr[-1500:], file=sys.stderr)
[trace] = packager.convert_stdout_to_traces(done.stdout)
print("RESULT", trace.evaluation.status.value, trace.evaluation.log[-200:])
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["SOL_EXECBENCH"], os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False, timeout=100
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return f"driver: {told[0].split()[1]}" if told else f"its driver: {' '.join(done.stderr.split())[-600:]}"


def by_gpu_mode(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    import types

    sys.modules["task"] = types.ModuleType("task")
    sys.modules["task"].input_t = sys.modules["task"].output_t = object  # type: ignore[attr-defined]
    made = module_of(place / "made.py", f"gpu_mode_{case.place.name}")
    data = tuple(case.values)
    return (lambda: made.custom_kernel(data)), gpu_mode_evaluator(place)


REFERENCE = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("bench", {script!r})
bench = sys.modules["bench"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)
from pathlib import Path
case = bench.Case(Path({place!r}))
def generate_input(seed):
    return tuple(case.values)
def check_implementation(data, output):
    with torch.no_grad():
        good = bench.close(output, case.model(*case.inputs))
    return good == "", good
"""


def gpu_mode_evaluator(place: Path) -> str:
    """Run GPU MODE's own eval.py on a problem of its form, where its sources are at hand."""
    if "GPU_MODE" not in os.environ:
        return "without eval.py"
    target = place / "evaluated"
    target.mkdir(exist_ok=True)
    for name in ("eval.py", "utils.py"):
        shutil.copy(Path(os.environ["GPU_MODE"]) / name, target / name)
    shutil.copy(place / "made.py", target / "submission.py")
    (target / "task.py").write_text("input_t = output_t = object\nTestSpec = dict\n")
    (target / "reference.py").write_text(
        REFERENCE.format(script=str(Path(__file__).resolve()), place=str(place.parent))
    )
    (target / "tests.txt").write_text("seed: 1\n")
    reading, writing = os.pipe()
    env = {**os.environ, "POPCORN_FD": str(writing)}
    command = [sys.executable, "eval.py", "test", "tests.txt"]
    done = subprocess.run(
        command, cwd=target, env=env, pass_fds=[writing], capture_output=True, text=True, check=False, timeout=100
    )
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = told.read().splitlines()
    return f"eval.py: {lines[-1]}" if lines else f"eval.py: {done.stderr.strip()[-300:]}"


def by_kernelbench(place: Path, case: Case) -> tuple[Callable[[], Any], str]:
    call = case.module(module_of(place / "made.py", f"kernelbench_{case.place.name}"))
    if "KERNELBENCH" not in os.environ:
        return call, "without its evaluator"
    sys.path.insert(0, os.environ["KERNELBENCH"])
    import torch
    from kernelbench.eval import eval_kernel_against_ref

    torch.backends.cudnn.allow_tf32 = False  # else its reference is the one that is not exact to its tolerance
    reference = (case.place / "standalone" / "made.py").read_text().partition("# ---- the runtime")[0]
    result = eval_kernel_against_ref(reference, (place / "made.py").read_text(), num_correct_trials=2)
    told = "" if result.correctness else f" {str(result.metadata)[-200:]}"
    return call, f"evaluator: correct={result.correctness}{told}"


def tensors(result: Any) -> list[Any]:
    from torch.utils import _pytree as pytree

    return list(pytree.tree_leaves(result))


def close(found: Any, wanted: Any) -> str:
    """Return how far results are apart, or "" where they are alike."""
    import torch

    try:
        torch.testing.assert_close(tensors(found), tensors(wanted), rtol=1e-3, atol=1e-4)
    except AssertionError as error:
        return " ".join(str(error).split())[:160]
    return ""


def medians_us(calls: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Return the median time of each call with cold caches; calls take turns."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in calls}
    cold = torch.empty(COLD_BYTES // 4, device=device) if device == "cuda" else torch.empty(1 << 24)
    for turn in range(CALLS + 3):
        for name, call in calls.items():
            cold.zero_()
            if device == "cuda":
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                call()
                end.record()
                torch.cuda.synchronize()
                took = start.elapsed_time(end) * 1e3
            else:
                began = time.perf_counter()
                call()
                took = (time.perf_counter() - began) * 1e6
            if turn >= 3:
                times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


def check(place: Path, forms: Sequence[str], *, timed: bool) -> list[dict[str, Any]]:
    """Load one kernel in these formats and compare; time them, or keep what their evaluators say."""
    import torch

    os.environ.setdefault("FIB_CACHE_PATH", str(place / "fib"))
    case = Case(place)
    device = torch.cuda.get_device_name() if case.device == "cuda" else "CPU"
    with torch.no_grad():
        wanted, calls, told = case.model(*case.inputs), {}, {}
        compiled = case.file.COMPILED
        sizes = compiled.served.sizes_made(case.values)
        calls["bare kernel"] = lambda: compiled.run(case.values, sizes)
        for form in forms:
            refused = place / form / "refused"
            if refused.exists():
                told[form] = f"refused: {refused.read_text().strip()}"
                continue
            try:
                calls[form], said = call_of(form, case)
                if not timed:
                    (place / form / "said").write_text(said)
                wrong = close(calls[form](), wanted)
                kept = place / form / "said"
                told[form] = f"{wrong or 'right'}; {kept.read_text() if kept.exists() else said}".removesuffix("; ")
            except Exception as error:  # whatever a peer raises
                calls.pop(form, None)
                told[form] = f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}"
        times = medians_us(calls, case.device) if timed else {}
    kernel = {"problem": case.told["name"], "kernel": place.name, "device": device, "judged_us": case.told["judged_us"]}
    return [
        kernel | {"form": name, "us": times.get(name), "bare_us": times.get("bare kernel"), "told": told.get(name, "")}
        for name in ["bare kernel", *forms]
    ]


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    share = f"{row['us']:9.1f} us {row['us'] / row['bare_us']:6.3f}" if row["us"] else " " * 19
    return f"  {row['form']:17} {share}  {row['told']}"


def check_all(folder: Path, jobs: int, forms: Sequence[str]) -> None:
    """Build everything at once and ask the peers' evaluators, then time one kernel after another."""
    places = sorted(p.parent for p in folder.glob("*/call.json"))
    command = [sys.executable, __file__, "one"]
    quick = {**os.environ, "MAX_JOBS": "2"}

    def build(one: tuple[Path, str]) -> None:
        done = subprocess.run(
            [*command, str(one[0]), "--forms", one[1], "--untimed"],
            env=quick,
            capture_output=True,
            text=True,
            check=False,
        )
        (one[0] / one[1] / "build.log").write_text(done.stdout + done.stderr)

    began = time.perf_counter()
    slow_first = sorted(forms, key=lambda form: form not in ("sol-execbench", "gpu-mode", "kernelbench"))
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(build, [(place, form) for form in slow_first for place in places]))
    print(f"built in {time.perf_counter() - began:.0f} s", flush=True)
    alone = {k: v for k, v in os.environ.items() if k not in ("SOL_EXECBENCH", "GPU_MODE", "KERNELBENCH")}
    for place in places:
        subprocess.run([*command, str(place), "--forms", *forms], env=alone, check=False)


PAGE = """# Exported packages on a GPU

{kernels} CUDA kernels of the starter archive in every format of `rag-kernels export`, each taken by its peer's loader
(Hugging Face's `get_local_kernel`, flashinfer-bench's `apply`, SOL-ExecBench's driver, GPU MODE's `eval.py`,
KernelBench's `eval_kernel_against_ref`, pip for the wheel), on {device}. The numbers are those of the problem's own
module in {right} of {all} packages. A package's time stands over that of the bare kernel, on one clock in turn (medians
of {calls} calls with cold caches): between {least:.3f} and {most:.3f}.

Made by `python tests/bench/exported_packages.py`; its first lines say how.

| kernel | judge's time | bare kernel | {heads} |
|---|---:|---:|{rules}|
{rows}

{said}

The judge's times are those of the archive, by its own clock on the day of the verdict.

What a call costs on that machine's processor, where only the way to a CPU kernel counts (`tanh(x) * 2` of 8 by 16
floats), and how much it is beside the module's own:

    {call}
"""


def page(rows: Sequence[dict[str, Any]], call: str) -> str:
    """Return the measured rows as a page, with what a call costs."""
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    cells = {(row["kernel"], row["form"]): row for row in rows}
    made = [row for row in rows if row["form"] != "bare kernel"]
    timed = [row["us"] / row["bare_us"] for row in made if row["us"]]
    lines = []
    for kernel in kernels:
        bare = cells[kernel, "bare kernel"]
        shares = [cells[kernel, form] for form in FORMS]
        told = [f"{row['us'] / row['bare_us']:.3f}" if row["us"] else "none" for row in shares]
        lines.append(f"| {bare['problem']} | {bare['judged_us']:.1f} us | {bare['us']:.1f} us | {' | '.join(told)} |")
    said: dict[tuple[str, str], list[str]] = {}
    for row in made:
        _, _, verdict = row["told"].partition("; ")
        if verdict or not row["told"].startswith("right"):
            said.setdefault((row["form"], row["told"]), []).append(row["problem"])
    told_by = [f"- `{form}`: {told} ({', '.join(names)})" for (form, told), names in said.items()]
    return PAGE.format(
        kernels={3: "Three", 4: "Four", 5: "Five"}.get(len(kernels), str(len(kernels))),
        device=f"an {rows[0]['device']}", right=sum(row["told"].startswith("right") for row in made), all=len(made),
        calls=CALLS, least=min(timed), most=max(timed), heads=" | ".join(FORMS), rules="|".join(["---:"] * len(FORMS)),
        rows="\n".join(lines), said="\n".join(told_by), call=call.strip().replace("\n", "\n    "),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    (
        writing.add_argument("archive"),
        writing.add_argument("folder", type=Path),
        writing.add_argument("kernels", nargs="+"),
    )
    checking = commands.add_parser("check")
    checking.add_argument("folder", type=Path), checking.add_argument("--jobs", type=int, default=2)
    checking.add_argument("--forms", nargs="+", default=FORMS)
    one = commands.add_parser("one")
    (
        one.add_argument("place", type=Path),
        one.add_argument("--forms", nargs="+"),
        one.add_argument("--untimed", action="store_true"),
    )
    paged = commands.add_parser("page")
    paged.add_argument("rows", type=Path), paged.add_argument("call", type=Path)
    asked = parser.parse_args()
    if asked.command == "write":
        write(asked.archive, asked.folder, asked.kernels)
    elif asked.command == "check":
        check_all(asked.folder.resolve(), asked.jobs, asked.forms)
    elif asked.command == "page":
        rows = [json.loads(row) for row in asked.rows.read_text().splitlines()]
        print(page(rows, asked.call.read_text()), end="")
    else:
        rows = check(asked.place.resolve(), asked.forms, timed=not asked.untimed)
        print("{problem} {kernel} on {device}; the judge's time: {judged_us:.1f} us".format(**rows[0]))
        print("\n".join(map(line, rows)), flush=True)
        if not asked.untimed:
            with (asked.place.resolve().parent / "rows.jsonl").open("a") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in rows)


if __name__ == "__main__":
    main()
