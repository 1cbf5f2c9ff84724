"""Takes kernels through every format of `rag-kernels export`, and each through its peer's own loader.

    rag-kernels export KERNEL --as module --out KERNEL.py                # anywhere, of each kernel
    python tests/bench/exported_packages.py write FOLDER KERNEL.py...    # and all that follows where its device is
    python tests/bench/exported_packages.py judge FOLDER
    python tests/bench/exported_packages.py check FOLDER [--jobs N]
    python tests/bench/exported_packages.py ask FOLDER [--jobs N]
    python tests/bench/exported_packages.py clocks FOLDER                # why two clocks differ: the kernel in ways
    python tests/bench/exported_packages.py kernelize FOLDER             # in a model, by Hugging Face's `kernelize`
    python tests/bench/exported_call.py > call.txt
    python tests/bench/exported_packages.py page FOLDER call.txt         # prints a page of docs/measured

`write` writes each kernel in all formats, `judge` races it on the judge's clock. `check` builds all at once and prints
for every kernel and format whether its numbers are those of the problem's own module, and its time over the judge's of
the same day, on a clock like the judge's: medians of bursts with cold caches behind a delay, each call with inputs of
its own, after calls of eager, formats in turn. `ask` lets the peers' own evaluators judge their packages. A peer that
is not installed is said. SOL_EXECBENCH, KERNELBENCH and GPU_MODE name folders with those projects' sources.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import re
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

Call = Callable[[int], Any]  # of the inputs of that number
FORMS = (
    "module standalone torch-op wheel hf-kernels flashinfer-bench sol-execbench gpu-mode kernelbench"
).split()  # fmt: skip
TURNS, BURST, BURST_BYTES = 31, 8, 6 << 30
DELAY_CYCLES = 4_000_000  # some 2 ms, in which the calls of a burst are queued
EVALUATED = {"sol-execbench": "SOL_EXECBENCH", "gpu-mode": "GPU_MODE", "kernelbench": "KERNELBENCH"}


def write(folder: Path, packages: Sequence[Path]) -> None:
    """Write the kernels of these packages in every format that takes them, and what `check` needs to call them."""
    with ThreadPoolExecutor(len(packages)) as pool:
        list(pool.map(lambda package: write_one(folder, package), packages))


def write_one(folder: Path, package: Path) -> None:
    from rag_kernels.eval.errors import RagKernelsError
    from rag_kernels.export.evidence import of_package
    from rag_kernels.export.forms.module_file import compiled_of
    from rag_kernels.export.packages import PACKAGES, write_package

    _, attempt = of_package(package)
    place = folder / attempt.candidate.id
    place.mkdir(parents=True)
    shutil.copy(package, place / "kernel.py")
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


def places_of(folder: Path) -> list[Path]:
    return sorted(p.parent for p in folder.glob("*/call.json"))


class Case:
    """One kernel with its problem's module, inputs for each call of a burst, and the functional call's arguments."""

    def __init__(self, place: Path, device: str = "", burst: int = BURST) -> None:
        import torch
        from torch.utils import _pytree as pytree

        self.place, self.told = place, json.loads((place / "call.json").read_text())
        self.device = device or self.told["backend"]
        self.file = module_of(place / "standalone" / "made.py", f"problem_{place.name}")
        torch.manual_seed(0)
        self.init = self.file.get_init_inputs()
        self.model = self.file.Model(*self.init).to(self.device)
        drawn = [self.file.get_inputs()]
        size = sum(v.nbytes for v in tensors(drawn) if isinstance(v, torch.Tensor))
        drawn += [self.file.get_inputs() for _ in range(min(burst, BURST_BYTES // max(size, 1)) - 1)]
        self.inputs = pytree.tree_map(lambda v: v.to(self.device) if isinstance(v, torch.Tensor) else v, drawn)
        self.values = [self.arguments(inputs) for inputs in self.inputs]
        self.made: list[Any] = []  # modules of formats

    def to(self, device: str) -> None:
        """Move everything to another device; calls that were loaded for this case go on there."""
        from torch.utils import _pytree as pytree

        self.device = device
        for module in (self.model, *self.made):
            module.to(device)
        self.inputs = pytree.tree_map(lambda v: v.to(device) if hasattr(v, "device") else v, self.inputs)
        self.values = [self.arguments(inputs) for inputs in self.inputs]

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the arguments of the functional call."""
        leaves = tensors(tuple(inputs))
        return [leaves[int(p)] if r in ("input", "scalar") else at(self.model, p) for r, p in self.told["arguments"]]

    def module(self, file: Any) -> Call:
        made = file.ModelNew(*self.init).to(self.device)
        made.load_state_dict(self.model.state_dict(), strict=False)
        self.made.append(made)
        return lambda i: made(*self.inputs[i])


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


def call_of(form: str, case: Case) -> tuple[Call, str]:
    """Return a call of the kernel in a format, by its peer's loader, and what else the peer says."""
    place = case.place / form
    return globals()[f"by_{form.replace('-', '_')}"](place, case)


def by_module(place: Path, case: Case) -> tuple[Call, str]:
    call = case.module(module_of(place / "made.py", f"module_{case.place.name}"))
    return call, ""


def by_standalone(place: Path, case: Case) -> tuple[Call, str]:
    return case.module(case.file), ""


def by_torch_op(place: Path, case: Case) -> tuple[Call, str]:
    call = package_of(place / "made")
    return (lambda i: call(*case.values[i])), ""


def by_wheel(place: Path, case: Case) -> tuple[Call, str]:
    [wheel] = place.glob("*.whl")
    target = place / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    if not target.exists():
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-400:])
            ZipFile(wheel).extractall(target)
    call = package_of(target)
    return (lambda i: call(*case.values[i])), "pip" if list(target.glob("*.dist-info/INSTALLER")) else "unzipped"


def by_hf_kernels(place: Path, case: Case) -> tuple[Call, str]:
    from kernels import get_local_kernel

    loaded = get_local_kernel(place / "made")
    call = getattr(loaded, loaded.__all__[0])
    return (lambda i: call(*case.values[i])), "get_local_kernel"


def by_flashinfer_bench(place: Path, case: Case) -> tuple[Call, str]:
    os.environ.setdefault("TVM_FFI_CUDA_ARCH_LIST", "9.0a")
    from flashinfer_bench import TraceSet, apply, enable_apply
    from flashinfer_bench.apply import ApplyConfig

    data = TraceSet.from_path(str(place / "made"))
    [name] = data.definitions
    enable_apply(str(place / "made"), ApplyConfig(on_miss_policy="use_def_best"))
    return (lambda i: apply(name, args=tuple(case.values[i]))), "apply"


def by_sol_execbench(place: Path, case: Case) -> tuple[Call, str]:
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
    wanted = [(v.shape, v.dtype) for v in tensors(case.model(*case.inputs[0]))]

    def call(i: int) -> Any:
        outputs = tuple(torch.empty(shape, dtype=dtype, device=case.device) for shape, dtype in wanted)
        built.run(*case.values[i], *outputs)
        return outputs

    return call, ""


def asked_sol_execbench(place: Path, case: Case) -> str:
    """Run SOL-ExecBench's own driver."""
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


def by_gpu_mode(place: Path, case: Case) -> tuple[Call, str]:
    import types

    sys.modules["task"] = types.ModuleType("task")
    sys.modules["task"].input_t = sys.modules["task"].output_t = object  # type: ignore[attr-defined]
    made = module_of(place / "made.py", f"gpu_mode_{case.place.name}")
    return (lambda i: made.custom_kernel(tuple(case.values[i]))), ""


REFERENCE = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("bench", {script!r})
bench = sys.modules["bench"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)
from pathlib import Path
case = bench.Case(Path({place!r}))
def generate_input(seed):
    return tuple(case.values[0])
def check_implementation(data, output):
    with torch.no_grad():
        good = bench.close(output, case.model(*case.inputs[0]))
    return good == "", good
"""


def asked_gpu_mode(place: Path, case: Case) -> str:
    """Run GPU MODE's own eval.py on a problem of its form."""
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


def by_kernelbench(place: Path, case: Case) -> tuple[Call, str]:
    return case.module(module_of(place / "made.py", f"kernelbench_{case.place.name}")), ""


def asked_kernelbench(place: Path, case: Case) -> str:
    """Ask KernelBench's own evaluator."""
    sys.path.insert(0, os.environ["KERNELBENCH"])
    import torch
    from kernelbench.eval import eval_kernel_against_ref

    torch.backends.cudnn.allow_tf32 = False  # else its reference is the one that is not exact to its tolerance
    reference = (case.place / "standalone" / "made.py").read_text().partition("# ---- the runtime")[0]
    result = eval_kernel_against_ref(reference, (place / "made.py").read_text(), num_correct_trials=2)
    told = "" if result.correctness else f" {str(result.metadata)[-200:]}"
    return f"evaluator: correct={result.correctness}{told}"


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


def medians_us(calls: dict[str, Call], case: Case) -> dict[str, float]:
    """Return the median time of a call, of bursts with cold caches behind a delay; formats take turns."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in calls}
    on_gpu = case.device.startswith("cuda")
    size = 2 * torch.cuda.get_device_properties(0).L2_cache_size if on_gpu else 1 << 26
    cold = torch.empty(max(size, 64 << 20), dtype=torch.uint8, device=case.device)
    for turn in range(TURNS + 3):
        for name, call in calls.items():
            for inputs in case.inputs:  # as the judge's race does: how warm the device is decides its clock
                case.model(*inputs)
            cold.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if on_gpu else (None, None)
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda._sleep(DELAY_CYCLES)
                start.record()
            began = time.perf_counter()
            kept = [call(i) for i in range(len(case.inputs))]
            took = (time.perf_counter() - began) * 1e6
            if on_gpu:
                end.record()
                torch.cuda.synchronize()
                took = start.elapsed_time(end) * 1e3
            if turn >= 3:
                times[name].append(took / len(kept))
            del kept
    return {name: statistics.median(values) for name, values in times.items()}


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
    slow_first = sorted(forms, key=lambda form: form not in EVALUATED)
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
        for form, name in EVALUATED.items()
        if name in os.environ
        for place in places_of(folder)
        if not (place / form / "refused").exists()
    ]
    with ThreadPoolExecutor(jobs) as pool, (folder / "said.jsonl").open("a") as file:
        for (place, form), said in zip(asked, pool.map(lambda one: run_one(*one, "--ask"), asked), strict=True):
            last = said.splitlines()[-1] if said else (place / form / "build.log").read_text()[-300:]
            print(place.name, form, last, flush=True)
            file.write(f"{json.dumps({'kernel': place.name, 'form': form, 'said': last})}\n")


WAYS = [("sleep", 8, True), ("sleep", 8, False), ("judge's", 8, True), ("judge's", 0, True), ("judge's", 1, True)]


def clocks(place: Path) -> None:
    """Time the bare kernel in several ways, by events and by the host's clock, and tell the clock of the GPU in each.

    `sleep` holds the queue back by one thread, `judge's` as the judge does, by all of them until a moment of the host's
    clock, which the time begins at; 0 calls in a burst are as many as the judge's.
    """
    import torch

    from rag_kernels.eval.children.gpu_delay import delay_until, set_clock
    from rag_kernels.eval.machine.throttling import Clocks

    case, judged = Case(place, burst=32), json.loads((place / "judged.json").read_text())
    compiled = case.file.COMPILED
    sizes = compiled.served.sizes_made(case.values[0])
    cold = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device=case.device)
    told = judged["candidate"] * 1e3
    mhz = f"{judged['least mhz']:.0f} to {judged['most mhz']:.0f} MHz"
    print(
        f"{case.told['name']}: the judge's {told:.1f} us, bursts of {judged['burst']:.0f}, of which asking was taken "
    )
    print(f"  off at {judged['asking'] * 1e3:.2f} us a call; {mhz}")
    with torch.no_grad():
        compiled.run(case.values[0], sizes)
        for delay, asked, eager in WAYS:
            count = min(asked or int(judged["burst"]), len(case.inputs))
            by_events, by_host, seen = [], [], Clocks(on_gpu=True)
            for turn in range(TURNS + 3):
                for inputs in case.inputs[: 8 if eager else 0]:
                    case.model(*inputs)
                cold.zero_()
                set_clock()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                begun = time.monotonic() + 2e-3
                if delay == "sleep":
                    torch.cuda._sleep(DELAY_CYCLES)
                else:
                    delay_until(begun)
                start.record()
                kept = [compiled.run(case.values[i], sizes) for i in range(count)]
                end.record()
                torch.cuda.synchronize()
                taken = time.monotonic() - begun
                seen.slowed()
                if turn >= 3:
                    by_events.append(start.elapsed_time(end) * 1e3 / count)
                    by_host.append(taken * 1e6 / count)
                del kept
            us, host = statistics.median(by_events), statistics.median(by_host)
            row = f"  {delay:8} {count:3} calls {'after eager' if eager else 'alone':12} {us:8.2f} us {us / told:.3f}"
            last = f" host {host:8.2f} us {host / told:.3f}" if delay != "sleep" else ""
            print(f"{row}{last}  {min(seen.mhz or [0])} to {max(seen.mhz or [0])} MHz", flush=True)


def kernelized(place: Path) -> None:
    """Put a kernel into a model by Hugging Face's `kernelize`, compare, and time the model beside what it was."""
    import torch
    from kernels import LocalLayerRepository, Mode, kernelize, register_kernel_mapping, use_kernel_forward_from_hub

    torch.backends.cudnn.allow_tf32 = False  # of convolutions: as in the race that the kernel comes from
    case, made = Case(place), place / "hf-kernels" / "made"
    layers = [*made.glob("build/*/layers.py")]
    if not layers:
        print(f"{case.told['name']}: its package has no layer")
        return
    [layer] = re.findall(r"^class (\w+)", layers[0].read_text(), re.M)

    class Small(torch.nn.Module):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, *inputs: Any) -> Any:
            return self.layer(*inputs)

    plain = Small(case.model).eval()
    use_kernel_forward_from_hub(f"Of{layer}")(case.file.Model)
    register_kernel_mapping({f"Of{layer}": {case.device: LocalLayerRepository(made, layer_name=layer)}})
    taking = kernelize(copy.deepcopy(plain), mode=Mode.INFERENCE, device=case.device)
    call = taking.layer.forward.__func__.__globals__["_call"]
    used, taken = call.operator, list[int]()
    with torch.no_grad():
        call.operator = lambda *given: taken.append(1) or used(*given)
        wrong = close(taking(*case.inputs[0]), plain(*case.inputs[0]))
        call.operator = used
        calls: dict[str, Call] = {
            "eager": lambda i: plain(*case.inputs[i]),
            "kernelized": lambda i: taking(*case.inputs[i]),
        }
        times = medians_us(calls, case)
    told = f"{wrong or 'right'}, {'kernel' if taken else 'module'}"
    print(f"{case.told['name']}: {told}; {times['kernelized']:.1f} us, eager {times['eager']:.1f} us", flush=True)


PAGE = """# Exported packages on a GPU

{kernels} CUDA kernels of the starter archive in every format of `rag-kernels export`, each taken by its peer's loader
(Hugging Face's `get_local_kernel`, flashinfer-bench's `apply`, pip for the wheel, torch's loader of extensions as
SOL-ExecBench, GPU MODE and KernelBench use it), on {device}, {date}; what evaluators said is below the table. The
numbers are those of the problem's own module in {right} of {all} packages.

A package's time stands over the judge's time of the same kernel in the same hour: between {least:.3f} and {most:.3f},
within 3 % of it in {near} of {timed}. Over the bare kernel, called in the same process without a package, it is between
{least_bare:.3f} and {most_bare:.3f}: what is more than that lies between the two clocks, and not in the packages. The
judge's is its own (a race with eager in its workers); the packages' does the same, as far as it is known: medians of
{turns} bursts of up to {burst} calls with cold caches, queued behind a delay, each call with inputs of its own, after
calls of eager, formats in turn. `clocks` says why the two differ.

Made by `python tests/bench/exported_packages.py`; its first lines say how.

| kernel | judge's time | bare kernel | {heads} |
|---|---:|---:|{rules}|
{rows}

{said}
{call}"""


CALL = """
What a call costs on that machine's processor, where only the way to a CPU kernel counts (`tanh(x) * 2` of 8 by 16
floats), and how much it is beside the module's own:

    {rows}
"""


def page(folder: Path, call: str) -> str:
    """Return the measured rows as a page, with what a call costs where that was measured."""
    rows = [json.loads(row) for row in (folder / "rows.jsonl").read_text().splitlines()]
    kept = folder / "said.jsonl"
    evaluated = [json.loads(row) for row in kept.read_text().splitlines()] if kept.exists() else []
    verdicts = {(row["kernel"], row["form"]): row["said"] for row in evaluated}
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    cells = {(row["kernel"], row["form"]): row for row in rows}
    made = [row for row in rows if row["form"] != "bare kernel"]
    timed = [row["us"] / row["judged_us"] for row in made if row["us"]]
    over_bare = [row["us"] / cells[row["kernel"], "bare kernel"]["us"] for row in made if row["us"]]
    lines = []
    for kernel in kernels:
        bare = cells[kernel, "bare kernel"]
        shares = [cells[kernel, form] for form in ("bare kernel", *FORMS)]
        told = [f"{row['us'] / row['judged_us']:.3f}" if row["us"] else "none" for row in shares]
        lines.append(f"| {bare['problem']} | {bare['judged_us']:.1f} us | {' | '.join(told)} |")
    said: dict[tuple[str, str], list[str]] = {}
    for row in made:
        told_of = "; ".join(filter(None, (row["told"], verdicts.get((row["kernel"], row["form"]), ""))))
        if told_of != "right":
            said.setdefault((row["form"], told_of), []).append(row["problem"])
    told_by = [f"- `{form}`: {told} ({', '.join(names)})" for (form, told), names in said.items()]
    return PAGE.format(
        kernels={3: "Three", 4: "Four", 5: "Five"}.get(len(kernels), str(len(kernels))),
        date=time.strftime("%-d %B %Y"),
        device=f"an {rows[0]['device']}", right=sum(row["told"].startswith("right") for row in made), all=len(made),
        turns=TURNS, burst=BURST, least=min(timed), most=max(timed), near=sum(abs(t - 1) <= 0.03 for t in timed),
        timed=len(timed), heads=" | ".join(FORMS), rules="|".join(["---:"] * len(FORMS)), rows="\n".join(lines),
        said="\n".join(told_by),
        call=CALL.format(rows=call.strip().replace("\n", "\n    ")) if call else "",
        least_bare=min(over_bare), most_bare=max(over_bare),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    asked = {
        name: commands.add_parser(name)
        for name in ("write", "judge", "check", "ask", "clocks", "kernelize", "page", "one")
    }
    for name, command in asked.items():
        command.add_argument("folder" if name != "one" else "place", type=Path)
    asked["write"].add_argument("packages", type=Path, nargs="+")
    asked["page"].add_argument("call", type=Path, nargs="?")
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
        case "clocks" | "kernelize":
            for place in places_of(given.folder.resolve()):
                (clocks if given.command == "clocks" else kernelized)(place)
        case "page":
            print(page(given.folder, given.call.read_text() if given.call else ""), end="")
        case "one":
            one(given.place.resolve(), given.forms, timed=not given.untimed, asking=given.ask)


def one(place: Path, forms: Sequence[str], *, timed: bool, asking: bool) -> None:
    """Check one kernel, or let its evaluators judge it."""
    if asking:
        for form in forms:
            print(globals()[f"asked_{form.replace('-', '_')}"](place / form, Case(place, burst=1)))
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
