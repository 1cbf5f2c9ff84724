"""How long does it take to import an archive of 30,600 rows?

    python tests/bench/import_scale.py --rows 30600

Writes Parquet files in the schema of the AI CUDA Engineer archive, with 230 problems and sources, errors and profiles
of the sizes that the published rows have (all made here), imports them into a new archive in a temporary folder with
the built-in embedder, and prints a Markdown table: wall and CPU seconds of each stage (this process; DuckDB and Chroma
use threads of their own, so CPU may exceed wall), and the memory that the process has had at most so far.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rag_kernels.archive.audit import verify
from rag_kernels.archive.records import KernelFilter
from rag_kernels.archive.store import FileArchive
from rag_kernels.ingest.description.embedder import load_embedder
from rag_kernels.ingest.description.pipeline import reindex
from rag_kernels.ingest.importers.sakana import Sakana
from rag_kernels.ingest.importers.take import import_from

SHARES = {1: 0.397, 2: 0.423, 3: 0.18}  # of rows, by level, as published
TASKS = {1: 91, 2: 95, 3: 44}
CORRECT = 0.57
OPERATORS = ("relu", "gelu", "tanh", "sigmoid", "silu", "softplus", "mish", "hardswish", "elu", "selu")
METRICS = [f"Metric {i}" for i in range(27)]


def problem(level: int, task: int) -> tuple[str, str]:
    """A module and its functional form; every task is another chain of operators."""
    rng = random.Random(f"{level} {task}")
    chain = [rng.choice(OPERATORS) for _ in range(level + 1)]
    body = "\n".join(f"    x = F.{name}(x)" for name in chain)
    functional = (
        f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
        f"def module_fn(x, weight, bias):\n    x = F.linear(x, weight, bias)\n{body}\n    return x * {task}.0\n"
    )
    size = 16 * task
    module = functional.replace("module_fn", "compute") + (
        f"\n\nclass Model(nn.Module):\n    def __init__(self, size):\n        super().__init__()\n"
        f"        self.linear = nn.Linear(size, size)\n\n    def forward(self, x):\n"
        f"        return compute(x, self.linear.weight, self.linear.bias)\n\n\ndef get_inputs():\n"
        f"    return [torch.randn(16, {size})]\n\n\ndef get_init_inputs():\n    return [{size}]\n"
    )
    return module, functional


def source(rng: random.Random) -> str:
    """CUDA text of about 3.5 thousand characters, never twice the same."""
    lines = "\n".join(f"    value = fmaf(value, {rng.random():.9f}f, {rng.random():.9f}f);" for _ in range(65))
    return (
        f"#include <torch/extension.h>\n// {rng.random()}\n__global__ void kernel(const float* x, float* y, int n) {{\n"
        f"  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) {{\n    float value = x[i];\n{lines}\n"
        "    y[i] = value;\n  }\n}\ntorch::Tensor forward(torch::Tensor x, torch::Tensor w, torch::Tensor b) {\n"
        "  auto y = torch::empty_like(x);\n  kernel<<<1, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());\n"
        '  return y;\n}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }\n'
    )


def row(level: int, number: int, rng: random.Random) -> dict[str, object]:
    task = 1 + number % TASKS[level]
    module, functional = problem(level, task)
    correct = rng.random() < CORRECT
    eager, compiled, runtime = 0.4 + task / 100, 0.3 + task / 100, round(rng.uniform(0.05, 2.0), 3)
    place = f"/home/somebody/20250203_optimize_b10_s4_e0_sweep/level_{level}/task_{task}"
    here = f"{place}/b{number % 10}_s{number % 4}_fused_{number}/base/base.cu"
    tidy = "".join(f"{here}:{i}:1: warning: easily swappable parameters\n" for i in range(20))
    metrics = {name: {"unit": "%", "avg_value": rng.random(), "variance": 0.0, "n": 5} for name in METRICS}
    rules = {"Occupancy": {"type": "WRN", "description": "Low occupancy. " * 20}}
    return {
        "Op_Name": f"{task}_chain_{level}",
        "Level_ID": level,
        "Task_ID": task,
        "Kernel_Name": f"fused_{number}_base",
        "CUDA_Runtime": runtime if correct else None,
        "PyTorch_Native_Runtime": eager,
        "PyTorch_Compile_Runtime": compiled,
        "CUDA_Speedup_Native": eager / runtime if correct else 0.0,
        "CUDA_Speedup_Compile": compiled / runtime if correct else 0.0,
        "CUDA_Code": source(rng),
        "PyTorch_Code_Module": module,
        "PyTorch_Code_Functional": functional,
        "Correct": correct,
        "Max_Diff": 0.0 if correct else None,
        "Error": None if correct else f"{here}(12): error: expected a ';'\n" * 30,
        "NCU_Profile": str({"metrics": metrics, "rules": rules}) if correct else None,
        "Torch_Profile": str({"kernel": {"time": runtime}}) * 20 if correct else None,
        "Clang_Tidy": str({"stdout": tidy, "stderr": "", "errored": False}),
        "__index_level_0__": number,
    }


def write(folder: Path, rows: int) -> None:
    """The three files, a batch at a time."""
    for level, share in SHARES.items():
        rng = random.Random(level)
        writer: pq.ParquetWriter | None = None
        count = round(rows * share)
        for start in range(0, count, 1000):
            made = [row(level, n, rng) for n in range(start, min(start + 1000, count))]
            table = pa.Table.from_pylist(made, schema=None if writer is None else writer.schema)
            writer = writer or pq.ParquetWriter(folder / f"level_{level}.parquet", table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


@contextmanager
def stage(name: str, table: list[tuple[str, float, float, float]]) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.append((name, time.perf_counter() - wall, time.process_time() - cpu, peak))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_600)
    rows = parser.parse_args().rows
    table: list[tuple[str, float, float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch) / "parquet"
        files.mkdir()
        if child := os.fork():  # makes the files, so that their memory does not count
            os.waitpid(child, 0)
        else:
            write(files, rows)
            os._exit(0)
        store, embedder = FileArchive(Path(scratch) / "archive"), load_embedder()
        with stage("read, check and store rows (DuckDB)", table):
            report = import_from(store, Sakana(), files)
        with stage("embed and index (DuckDB, Chroma)", table):
            vectors = reindex(store, embedder)
        importing = list(table)
        with stage("the same import again (nothing new)", table):
            again = import_from(store, Sakana(), files)
        with stage("`kernels()` of all claimed kernels", table):
            found = len(store.kernels(KernelFilter()))
        with stage("`archive verify`", table):
            wrong = verify(store)
        size = sum(file.stat().st_size for file in store.root.rglob("*") if file.is_file()) / 2**20
    assert not any(again.new.values()), again.new
    assert not wrong, wrong[0]
    print(f"{report.read} rows, {len(report.skipped)} left out: {dict(report.new)}; {vectors} vectors, {found} shown.")
    print(f"The archive takes {size:.0f} MiB.\n")
    print("| stage | wall s | CPU s | peak memory so far, MiB |\n|---|---|---|---|")
    total = ("**import, in all**", sum(r[1] for r in importing), sum(r[2] for r in importing), importing[-1][3])
    for name, wall, cpu, peak in [*importing, total, *table[len(importing) :]]:
        print(f"| {name} | {wall:.1f} | {cpu:.1f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
