"""Small files of our own in the formats of others, and what comes of importing them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.records import ArchivedKernel, KernelFilter
from rag_kernels.ingest.importers.protocol import Importer
from rag_kernels.ingest.importers.take import Report, import_from

PROGRAM = str(Path(sys.executable).with_name("rag-kernels"))
ANY = KernelFilter(include_retracted=True)
HOME = "/home/somebody/secret/experiments/20250203_optimize_b10_s4_e0_sweep/level_1/task_3/b7_s2_fast/base/"

MODULE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x):
        return torch.relu(x * self.weight)

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return [8]
"""
FUNCTIONAL = "import torch\n\ndef module_fn(x, weight):\n    return torch.relu(x * weight)\n"
CUDA = """#include <torch/extension.h>
torch::Tensor forward(torch::Tensor x, torch::Tensor w) { return torch::matmul(x, w); } // VARIANT
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
"""


def sakana_row(**changes: Any) -> dict[str, Any]:
    """A row that claims to be right and twice as fast."""
    variant = changes.pop("variant", 0)
    return {
        "Op_Name": "3_scaled_relu",
        "Level_ID": 1,
        "Task_ID": 3,
        "Kernel_Name": "fast_relu_base",
        "CUDA_Runtime": 0.5,
        "PyTorch_Native_Runtime": 1.0,
        "PyTorch_Compile_Runtime": 0.75,
        "CUDA_Speedup_Native": 2.0,
        "CUDA_Speedup_Compile": 1.5,
        "CUDA_Code": CUDA.replace("VARIANT", str(variant)),
        "PyTorch_Code_Module": MODULE,
        "PyTorch_Code_Functional": FUNCTIONAL,
        "Correct": True,
        "Max_Diff": 0.001,
        "Error": None,
        "NCU_Profile": str(
            {
                "metrics": {"SM Busy": {"unit": "%", "avg_value": 42.7, "variance": 0.0, "n": 5}},
                "rules": {"Occupancy": {"type": "WRN", "description": "low"}},
            }
        ),
        "Clang_Tidy": str({"stdout": f"{HOME}base.cu:9:3: warning: x", "errored": False}),
        "__index_level_0__": 1,
    } | changes


FAILED = {
    "Correct": False,
    "CUDA_Runtime": None,
    "CUDA_Speedup_Native": 0.0,
    "CUDA_Speedup_Compile": 0.0,
    "Max_Diff": None,
    "Error": f"{HOME}base.cu(7): error: expected a ';'",
    "NCU_Profile": None,
    "Clang_Tidy": None,
}


def sakana_file(folder: Path, *rows: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "level_1.parquet")
    return folder


def taken(importer: Importer, path: Path) -> tuple[MemoryArchive, Report]:
    archive = MemoryArchive()
    return archive, import_from(archive, importer, path)


def only(archive: MemoryArchive) -> ArchivedKernel:
    [kernel] = archive.kernels(ANY)
    return kernel


def kernelbench(folder: Path) -> Path:
    """A checkout with two problems and a run of three kernels, one of them judged right."""
    level, run = folder / "KernelBench" / "level1", folder / "runs" / "first"
    level.mkdir(parents=True)
    run.mkdir(parents=True)
    (level / "1_scaled_relu.py").write_text(MODULE)
    (level / "2_other.py").write_text(MODULE.replace("relu", "tanh"))
    new = MODULE.replace("class Model", "class ModelNew")
    for problem, sample, source in ((1, 0, new), (1, 1, new + "# 1\n"), (2, 0, new + "# 2\n"), (3, 0, new)):
        (run / f"level_1_problem_{problem}_sample_{sample}_kernel.py").write_text(source)
    right = {
        "sample_id": 0,
        "compiled": True,
        "correctness": True,
        "runtime": 0.25,
        "runtime_stats": {"std": 0.1},
        "metadata": {"hardware": "NVIDIA L40S", "device": "cuda:0"},
    }
    wrong = {
        "sample_id": 1,
        "compiled": True,
        "correctness": False,
        "runtime": -1.0,
        "runtime_stats": {},
        "metadata": {"hardware": "NVIDIA L40S", "runtime_error": f"in {HOME}x.py: bad"},
    }
    results = {"1": [right, wrong], "9": [right], "x": ["nonsense"]}
    (run / "eval_results.json").write_text(json.dumps(results))
    return run


TASK = '''
import torch
import torch.nn as nn

class AutogradFunction(torch.autograd.Function):
    backward_fn = None

def forward_fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiplies and cuts off."""
    return torch.relu(x * weight)

class Model(nn.Module):
    def __init__(self, size: int = 4, gain: float = 1.0):
        super(Model, self).__init__()
        self.weight = nn.Parameter(gain * torch.randn(size))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight)

def get_inputs(batch_size: int = 2, size: int = 4):
    return [torch.randn(batch_size, size, requires_grad=True)]

input_names = ["x"]
'''


def robust_task(root: Path) -> Path:
    """A checkout with one task, both directions, a kernel of its own and a highlighted one."""
    folder = root / "tasks" / "scaled_relu"
    folder.mkdir(parents=True)
    configurations = {
        "single_input_configs": [{"batch_size": 3}],
        "single_init_configs": [{"gain": 0.5}],
        "single_shared_configs": [{"size": 8}],
    }
    for direction in ("forward", "backward"):
        (folder / f"func_{direction}.py").write_text(TASK)
        (folder / f"config_{direction}.json").write_text(json.dumps(configurations))
    (folder / "forward.cu").write_text(CUDA)
    (root / "highlighted" / "scaled_relu" / "backward").mkdir(parents=True)
    kernel = CUDA.replace("forward", "backward")
    (root / "highlighted" / "scaled_relu" / "backward" / "kernel.cu").write_text(kernel)
    (root / "highlighted" / "results.csv").write_text(
        "Kernel Name,Correct,Runtime (ms),Speedup,Speedup Compile,Max Diff,Error,Code,task_name,forward\n"
        "fused_grad,True,0.5,1.25,1.5,0.0,,,scaled_relu,False\n"
        "unknown,True,0.5,1.25,1.5,0.0,,,nothing,False\n"
        "broken,True,fast,1.25,1.5,0.0,,,scaled_relu,False\n"
    )
    broken = root / "tasks" / "broken"
    broken.mkdir()
    (broken / "func_forward.py").write_text(TASK)
    (broken / "config_forward.json").write_text("{}")
    return root


REFERENCE = """from utils import make_match_reference, Quiet as Q
import torch
from task import input_t, output_t

def ref_kernel(data: input_t) -> output_t:
    with Q():
        x, y = data
        return torch.relu(x) + y

def generate_input(size: int, seed: int) -> input_t:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, generator=gen), torch.randn(size, 4, generator=gen)

check_implementation = make_match_reference(ref_kernel)
"""
UTILS = """from __future__ import annotations

def make_match_reference(reference):
    return lambda data, output: (True, "")

class Quiet:
    def __enter__(self): return self
    def __exit__(self, *_): return None
"""
SUBMITTED = "import torch\nfrom task import input_t, output_t\n\ndef custom_kernel(data: input_t) -> output_t:\n" + (
    "    x, y = data\n    return torch.relu(x) + y\n"
)


def gpu_mode(root: Path, licence: str) -> Path:
    """A checkout with a set of one good problem, one in another language, and one without a reference."""
    folder = root / "problems" / "ours" / "add_py"
    (folder / "solutions" / "correct").mkdir(parents=True)
    (folder / "solutions" / "wrong").mkdir()
    (root / "LICENSE").write_text(licence)
    (root / "problems" / "ours.yaml").write_text(
        "name: Ours\nproblems:\n  - directory: ours/add_py\n    name: add_v2\n"
    )
    (root / "problems" / "ours" / "utils.py").write_text(UTILS)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "task.yml").write_text(
        'files:\n  - {"name": "utils.py", "source": "../utils.py"}\n  - {"name": "task.py", "source": "task.py"}\n'
        'lang: "py"\ntests:\n  - {"size": 2, "seed": 1}\nbenchmarks:\n  - {"size": 2, "seed": 1}\n'
        '  - {"size": 6, "seed": 2}\n'
    )
    (folder / "task.py").write_text("input_t = output_t = tuple\n")
    (folder / "submission.py").write_text(SUBMITTED)
    (folder / "solutions" / "correct" / "ref.py").write_text(SUBMITTED + "# right\n")
    (folder / "solutions" / "wrong" / "empty.py").write_text(SUBMITTED + "# wrong\n")
    (folder / "solutions" / "correct" / "whole.py").write_text("import utils\n" + SUBMITTED)
    for name, text in (("cpp_py", "lang: cu\ntests: [{size: 1}]\n"), ("bare_py", "tests: [{size: 1}]\n")):
        (root / "problems" / "ours" / name).mkdir()
        (root / "problems" / "ours" / name / "task.yml").write_text(text)
    return root
