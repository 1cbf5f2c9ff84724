"""The peers' own ways to take an exported kernel: a loader for each format of `export`, and their evaluators.

Comes in: a folder that `exported_packages.py write` filled for one kernel, as a `Case`. Goes out: a call of the kernel
in one format, or what an evaluator says of its package. SOL_EXECBENCH, KERNELBENCH and GPU_MODE name folders with those
projects' sources. Knows nothing of times.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

Call = Callable[[int], Any]  # of the inputs of that number
BURST, BURST_BYTES = 8, 6 << 30  # calls with inputs of their own, and how much memory these may take


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
        pulled = self.file.COMPILED.pulled  # of a training step, whose module is called without gradients
        self.model = self.file.ModelNew.__bases__[1](*self.init).to(self.device)
        drawn = [self.file.get_inputs()[pulled:]]
        size = sum(v.nbytes for v in tensors(drawn) if isinstance(v, torch.Tensor))
        drawn += [self.file.get_inputs()[pulled:] for _ in range(min(burst, BURST_BYTES // max(size, 1)) - 1)]
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


_REFERENCE = """
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
        _REFERENCE.format(script=str(Path(__file__).resolve()), place=str(place.parent))
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
    """Return how far results are apart, or "" where they are alike: in 16 bits to two roundings."""
    import torch

    widest = max((torch.finfo(t.dtype).eps for t in tensors(wanted) if t.is_floating_point()), default=0.0)
    try:
        torch.testing.assert_close(tensors(found), tensors(wanted), rtol=max(1e-3, 2 * widest), atol=max(1e-4, widest))
    except AssertionError as error:
        return " ".join(str(error).split())[:160]
    return ""


# A function `by_NAME` for each format that somebody loads: a test sees to it that none lacks.
LOADERS = {
    name.removeprefix("by_").replace("_", "-"): made for name, made in dict(globals()).items() if name.startswith("by_")
}
FORMS = tuple(LOADERS)
EVALUATORS = {  # with the variable that names the folder of its sources
    "sol-execbench": (asked_sol_execbench, "SOL_EXECBENCH"),
    "gpu-mode": (asked_gpu_mode, "GPU_MODE"),
    "kernelbench": (asked_kernelbench, "KERNELBENCH"),
}


def call_of(form: str, case: Case) -> tuple[Call, str]:
    """Return a call of the kernel in a format, by its peer's loader, and what else the peer says."""
    return LOADERS[form](case.place / form, case)
