"""Kernels in the forms of other projects, each read, built and called by that project's own code where it is installed,
and in a process that cannot import ours."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from factories import attempt, candidate, passed, problem
from support import contract_pieces as pieces
from support.kept import kept_workers
from support.processes import alone

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Candidate
from rag_kernels.export.packages import PACKAGES, packages_of, write_package
from rag_kernels.export.plain.texts import CUDA_FLAGS, LETTERS, kernel_text, on_default_queue
from rag_kernels.ingest.functional.functionalize import functionalize

CUDA = """
#include "rag_kernel.h"
#include <cuda_runtime.h>
// on the stream of the output
__global__ void stream_tanh(const float* x, float* out, int64_t n, float f) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = tanhf(x[i]) * f;
}
void launched(const float* x, float* out, int64_t n, float f, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((n + 255) / 256), config.blockDim = dim3(256);
  config.stream = stream, config.numAttrs = 0;
  config.numAttrs = 0, config.stream = stream;
  config.stream = stream;
  cudaLaunchKernelEx(&config, stream_tanh, x, out, n, f);
}
void run(rk::Tensor<const float> x, double factor, rk::Tensor<float> out) {
  cudaStream_t stream = (cudaStream_t)rk::stream(out);
  cudaMemsetAsync(out.data, 0, 4 * out.numel(), stream);
  RK_LAUNCH(stream_tanh, dim3((x.numel() + 255) / 256), dim3(256), 0, out, x.data, out.data, x.numel(), float(factor));
  launched(x.data, out.data, x.numel(), float(factor), static_cast<cudaStream_t>(rk::stream(out)));
}
RK_EXPORT(forward, run)
"""


HALVES = """
#include "rag_kernel.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__global__ void twice(const __nv_bfloat16* x, const __half* y, __nv_bfloat16* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  const float a = x[i], b = y[i];
  out[i] = a + b;
}
void run(rk::Tensor<const __nv_bfloat16> x, rk::Tensor<const __half> y, rk::Tensor<__nv_bfloat16> out) {
  RK_LAUNCH(twice, dim3((x.numel() + 255) / 256), dim3(256), 0, out, x.data, y.data, out.data, x.numel());
}
RK_EXPORT(forward, run)
"""


@pytest.mark.skipif(not shutil.which("nvcc"), reason="builds for a GPU")
def test_sixteen_bit_types_convert_under_the_flags_of_torchs_own_builds(tmp_path: Path) -> None:
    """`load_inline` takes their conversions away, which the judge's compiler has; one file's flags give them back."""
    from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

    (tmp_path / "kernel.cu").write_text(kernel_text(Candidate(HALVES, "kernel", "cuda")))
    command = ["nvcc", "-arch=sm_90a", "-c", str(tmp_path / "kernel.cu"), "-o", str(tmp_path / "kernel.o")]
    command += [f"-I{place}" for place in torch_headers()] + COMMON_NVCC_FLAGS
    assert subprocess.run([*command, "-std=c++17"], capture_output=True).returncode != 0
    done = subprocess.run([*command, *CUDA_FLAGS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def torch_headers() -> list[str]:
    from torch.utils.cpp_extension import include_paths

    return [*include_paths(), sysconfig.get_path("include")]


@pytest.fixture(scope="module")
def tanh() -> Attempt:
    """Also refuses some calls that it was verified for, as kernels with checks of their own may."""
    p = problem("tanh")
    source = candidate(p).source.replace("  #pragma", '  RK_CHECK(x.data[0] != 77.0f, "no 77");\n  #pragma')
    return attempt(p=p, candidate=Candidate(source, "kernel", "cpu"), verdict=passed())


@pytest.fixture(scope="module")
def on_gpu() -> Attempt:
    return attempt(p=problem("tanh"), candidate=Candidate(CUDA, "kernel", "cuda"), verdict=passed())


def written(made: Attempt, form: str, folder: Path) -> Path:
    return write_package(made, form, PACKAGES[form].place(folder, "made"))


def test_gpu_modes_file_runs_as_its_evaluator_runs_it(tanh: Attempt, tmp_path: Path) -> None:
    file = written(tanh, "gpu-mode", tmp_path)
    head = file.read_text().splitlines()
    assert head[0] == "#!POPCORN leaderboard scaled_tanh" and head[1].startswith("#!POPCORN gpus ")
    (tmp_path / "task.py").write_text("input_t = output_t = object\n")
    alone(
        """
import torch
from made import custom_kernel
x, out = torch.randn(64, 1024), torch.empty(64, 1024)
torch.testing.assert_close(custom_kernel(x), torch.tanh(x) * 2.0)
assert custom_kernel({"data": (x, out)}) is out
torch.testing.assert_close(out, torch.tanh(x) * 2.0)
try:
    custom_kernel((x[:3],))
except ValueError as error:
    assert "(64, 1024)" in str(error) and "(3, 1024)" in str(error)
else:
    raise AssertionError
""",
        tmp_path,
        hidden=("rag_kernels", "tvm_ffi"),
    )


def test_gpu_modes_letters_are_nowhere_and_launches_go_to_the_default_queue(on_gpu: Attempt, tmp_path: Path) -> None:
    text = written(on_gpu, "gpu-mode", tmp_path).read_text()
    assert not re.search("stream", text, re.IGNORECASE) and len(text) < 1_000_000
    kernel = kernel_text(on_gpu.candidate, default_queue=True)
    assert "queue_tanh" in kernel and "config.numAttrs = 0" in kernel and "config.queue" not in kernel
    if shutil.which("nvcc"):
        compiled(kernel, tmp_path)


def test_a_file_of_its_own_has_the_headers_that_its_kernel_includes(tmp_path: Path) -> None:
    source = f'#include "rag_mma.h"\n{pieces.source("multicast")}'
    for default_queue in (False, True):
        text = kernel_text(Candidate(source, "kernel", "cuda"), default_queue=default_queue)
        assert '"rag_' not in text and text.count("#define RK_WGMMA_COLUMNS(N) ") == 1
        assert text.count("void launch_clusters(") == 2
    assert LETTERS not in text.lower()
    if shutil.which("nvcc"):
        compiled(text, tmp_path)


@pytest.mark.parametrize("line", ["#include <sstream>", "cudaStreamSynchronize(0);", 'const char* s = "upstream";'])
def test_a_kernel_that_needs_the_letters_is_refused(line: str) -> None:
    with pytest.raises(ProblemError, match="line 1 of the kernel needs them"):
        on_default_queue(f"{line}\n")


def compiled(source: str, folder: Path, **headers: str) -> None:
    """Compile CUDA here, where no GPU is."""
    for name, text in {"kernel.cu": source, **headers}.items():
        (folder / name).write_text(text)
    command = ["nvcc", "-std=c++17", "-arch=sm_90a", "-c", "kernel.cu", "-o", "kernel.o"]
    command += [f"-I{tvm_ffi.libinfo.find_include_path()}", f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_kernelbenchs_model_new_is_right_and_falls_back(tanh: Attempt, tmp_path: Path) -> None:
    file = written(tanh, "kernelbench", tmp_path)
    # executed as KernelBench executes it: as text, in a dictionary that has no name
    alone(
        f"""
import warnings, torch
names = {{}}
exec(compile(open({str(file)!r}).read(), "<string>", "exec"), names)
x, module = torch.randn(64, 1024), names["ModelNew"](2.0)
with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    torch.testing.assert_close(module(x), torch.tanh(x) * 2.0)
    assert not seen
    three = names["ModelNew"](3.0)
    for other, given, word in [(three, x, "settings"), (module, x.double(), "float64"), (module, x[:3], "(3, ")]:
        torch.testing.assert_close(other(given), torch.tanh(given) * other.factor)
        assert word in str(seen.pop().message)
    odd = x.clone()
    odd[0, 0] = 77.0
    torch.testing.assert_close(module(odd), torch.tanh(odd) * 2.0)
    assert "refuses the call: no 77" in str(seen.pop().message)
    module.factor = 0.5
    torch.testing.assert_close(module(x), torch.tanh(x) * 0.5)
    names["Model"].forward = lambda self, x: {{"y": torch.tanh(x) * self.factor, "none": None}}
    made = names["ModelNew"](2.0)(x)
    torch.testing.assert_close(made, {{"y": torch.tanh(x) * 2.0, "none": None}})
init = names["Model"].__init__
def with_weight(self, *args):
    init(self, *args)
    self.weight = torch.nn.Parameter(torch.ones(2))
names["Model"].__init__ = with_weight  # evaluators time forward passes outside of no_grad
assert not names["ModelNew"](2.0).weight.requires_grad and names["Model"](2.0).weight.requires_grad
""",
        hidden=("rag_kernels", "tvm_ffi"),
    )


def test_a_file_that_stands_alone_imports_nothing_of_ours(tanh: Attempt, tmp_path: Path) -> None:
    file = written(tanh, "standalone", tmp_path)
    imported = [n.module for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
    assert not [name for name in imported if name.split(".")[0] == "rag_kernels"]
    alone(
        """
import copy, pickle, torch, warnings
from made import ModelNew
x, module = torch.randn(64, 1024), ModelNew(factor=2.0)
with torch.no_grad():
    for each in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(each(x), torch.tanh(x) * 2.0)
        assert each.kernel_used, each.kernel_reason
    whole = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(whole(x), torch.tanh(x) * 2.0)
    module.factor = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(module(x), torch.tanh(x) * 0.5)
    assert "factor is 0.5" in module.kernel_reason
""",
        tmp_path,
    )


def test_a_wheel_is_installed_and_runs_where_no_compiler_is(tanh: Attempt, tmp_path: Path) -> None:
    made = write_package(tanh, "wheel", tmp_path)
    assert re.fullmatch(r"scaled_tanh-1-py3-none-manylinux_2_\d+_\w+\.whl", made.name)
    venv = tmp_path / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    python = str(venv / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run([*pip, "install", "-q", "--no-deps", "--no-index", str(made)])
    assert "scaled-tanh" in run([*pip, "list"]) and "torch" not in run([*pip, "list"])
    [site] = (venv / "lib").glob("python*/site-packages")
    own = [p for p in sys.path if p.endswith("site-packages")]
    (site / "peers.pth").write_text("\n".join(own) + "\n")  # torch and tvm-ffi, of here
    code = """
import sys; sys.modules["rag_kernels"] = None
import shutil, torch, scaled_tanh
assert not any(map(shutil.which, ("g++", "gcc", "cc", "c++", "clang", "nvcc", "ninja")))
x = torch.randn(64, 1024)
torch.testing.assert_close(scaled_tanh.scaled_tanh(x), torch.tanh(x) * 2.0)
"""
    run([python, "-c", code], env={**os.environ, "PATH": str(tmp_path / "nothing"), "PYTHONPATH": ""})


def run(command: list[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Sized:
    """A tensor of which only the sizes are asked."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)


def test_a_data_set_is_as_flashinfer_bench_writes_it(tanh: Attempt, on_gpu: Attempt, tmp_path: Path) -> None:
    place = written(tanh, "flashinfer-bench", tmp_path)
    [definition] = [json.loads(p.read_text()) for p in (place / "definitions").rglob("*.json")]
    [solution] = [json.loads(p.read_text()) for p in (place / "solutions").rglob("*.json")]
    [trace] = [json.loads(p.read_text()) for p in (place / "traces").rglob("*.jsonl")]
    assert definition["inputs"] == {"x": {"shape": ["size_64", "size_1024"], "dtype": "float32"}}
    names: dict[str, Any] = {}
    exec(definition["reference"], names)
    assert callable(names["run"])
    assert solution["definition"] == trace["definition"] == definition["name"] and trace["solution"] == solution["name"]
    entry, symbol = solution["spec"]["entry_point"].split("::")
    sources = {source["path"]: source["content"] for source in solution["sources"]}
    assert f"def {symbol}(x, output)" in sources[entry] and "rag_kernel.h" in sources
    names = {}
    exec(next(f"def {part}" for part in sources[entry].split("\ndef ") if part.startswith("require")), names)
    fits = partial(names["require"], shape=(None, 8))
    fits(Sized(3, 8))
    for other in ((0, 8), (3, 7), (8,), (2**28, 8)):
        with pytest.raises(ValueError, match="verified for"):
            fits(Sized(*other))
    assert trace["evaluation"]["performance"]["speedup_factor"] == 2.0
    extra = trace["evaluation"]["correctness"]["extra"]
    assert extra["label"] and extra["over_eager"]["low"] <= 2.0
    gpu = write_package(on_gpu, "flashinfer-bench", tmp_path / "gpu")
    [solution] = [json.loads(p.read_text()) for p in (gpu / "solutions").rglob("*.json")]
    assert solution["spec"]["language"] == "cuda" and solution["spec"]["entry_point"] == "kernel.cu::run"
    if shutil.which("nvcc"):
        sources = {source["path"]: source["content"] for source in solution["sources"]}
        compiled(sources.pop("kernel.cu"), tmp_path, **sources)


ROWS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)

    def forward(self, index, other):
        return self.table(index) * other.unsqueeze(-1)


def get_inputs():
    return [torch.randint(0, 50, (16, 4)), torch.OTHER]


def get_init_inputs():
    return []
"""


def test_indices_of_a_data_set_lie_within_what_they_read(tmp_path: Path) -> None:
    """Other whole numbers are refused: nothing says what they may be."""
    with kept_workers() as workers:
        weighted, counted = (
            attempt(p=functionalize(problem_from_source("rows", ROWS.replace("OTHER", other)), workers=workers))
            for other in ("rand(16, 4)", "randint(0, 9, (16, 4))")
        )
    with pytest.raises(ProblemError, match="other holds whole numbers"):
        written(counted, "flashinfer-bench", tmp_path)
    place = written(weighted, "flashinfer-bench", tmp_path)
    [trace] = [json.loads(p.read_text()) for p in (place / "traces").rglob("*.jsonl")]
    given = {name: one["type"] for name, one in trace["workload"]["inputs"].items()}
    assert given == dict.fromkeys(given, "random") | {"index": "safetensors"}
    pytest.importorskip("flashinfer_bench")
    alone(
        f"""
from pathlib import Path
import torch
from flashinfer_bench import TraceSet
from flashinfer_bench.bench.utils import load_safetensors
data = TraceSet.from_path({str(place)!r})
[definition], [[trace]] = data.definitions.values(), data.workloads.values()
found = load_safetensors(definition, trace.workload, Path({str(place)!r}))["index"]
assert found.dtype == torch.int64 and tuple(found.shape) == (16, 4)
assert 0 <= found.min() < found.max() < 50
"""
    )


def test_flashinfer_bench_reads_builds_and_serves_it(tanh: Attempt, tmp_path: Path) -> None:
    pytest.importorskip("flashinfer_bench")
    place = written(tanh, "flashinfer-bench", tmp_path)
    alone(
        f"""
import os
os.environ["FIB_CACHE_PATH"] = {str(tmp_path / "cache")!r}
import torch
from flashinfer_bench import TraceSet, apply, enable_apply
from flashinfer_bench.apply import ApplyConfig
from flashinfer_bench.compile import BuilderRegistry
data = TraceSet.from_path({str(place)!r})
[definition] = data.definitions.values()
[solution] = data.solutions[definition.name]
assert data.get_best_trace(definition.name).solution == solution.name
x, out = torch.randn(64, 1024), torch.empty(64, 1024)
BuilderRegistry.get_instance().build(definition, solution).call_destination_passing(x, out)
torch.testing.assert_close(out, torch.tanh(x) * 2.0)
with enable_apply({str(place)!r}, ApplyConfig(on_miss_policy="use_def_best")):
    torch.testing.assert_close(apply(definition.name, args=(x,), fallback=None), torch.tanh(x) * 2.0)
"""
    )


def test_sol_execbenchs_sources_build_to_a_python_module(on_gpu: Attempt, tanh: Attempt, tmp_path: Path) -> None:
    assert "sol-execbench" not in packages_of(tanh.candidate)
    with pytest.raises(ProblemError, match="kernel for the CPU cannot be written as sol-execbench"):
        written(tanh, "sol-execbench", tmp_path)
    place = written(on_gpu, "sol-execbench", tmp_path)
    solution = json.loads((place / "solution.json").read_text())
    assert solution["spec"]["languages"] == ["cuda_cpp"] and solution["spec"]["entry_point"] == "main.cpp::run"
    assert "--use_fast_math" not in solution["spec"]["compile_options"]["cuda_cflags"]
    sources = {source["path"]: source["content"] for source in solution["sources"]}
    assert '{"run",' in sources["main.cpp"] and "double(2.0)" in sources["main.cpp"]
    if shutil.which("nvcc"):
        compiled(sources["kernel.cu"], tmp_path)


def test_sol_execbenchs_own_records_and_packager_take_it(on_gpu: Attempt, tmp_path: Path) -> None:
    pytest.importorskip("sol_execbench")
    place = written(on_gpu, "sol-execbench", tmp_path)
    alone(
        f"""
import json
import math
from functools import partial
from pathlib import Path
from sol_execbench.core import BenchmarkConfig, Definition, Solution, Trace, Workload
from sol_execbench.driver.problem_packager import ProblemPackager
read = lambda kind, name: kind(**json.loads(Path({str(place)!r}, name).read_text()))
definition, solution, workload = map(read, (Definition, Solution, Workload),
                                     ("definition.json", "solution.json", "workload.jsonl"))
assert read(Trace, "trace.jsonl").evaluation.status.value == "PASSED"
driven = Path({str(tmp_path / "driven")!r})
packager = ProblemPackager(definition, [workload], solution, BenchmarkConfig(), driven, True)
assert packager.compile()[0][-1] == "build_ext.py"
"""
    )
